"""`jaxrec eval`: measures a run on its held-out views."""

import pathlib
from collections.abc import Callable
from typing import Annotated

import tyro

from .evaluation import LPIPS_WEIGHTS, evaluate_held_out, find_lpips, report, table
from .info import show_json
from .saved_run import open_run


def eval_command(
    run: tyro.conf.Positional[pathlib.Path],
    *,
    lpips: pathlib.Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> Callable[[], None]:
    """Renders the held-out views of a run, and writes its summary and contact sheet anew.

    For each view, in the mean and at the worst: PSNR in dB and SSIM (1 for equal images), where
    higher is better; LDR-FLIP (no unit, 0 for equal images, 1 at most, for a viewer who sees 67
    pixels in a degree) and LPIPS, where lower is; and PSNR after an affine correction of the
    colours. Each view's picture and json lie in RUN/renders/held_out.

    Args:
        run: Run folder that `jaxrec fit` or `jaxrec demo` has made.
        lpips: An npz file with the weights of LPIPS; without it, ~/.cache/jaxrec/lpips_alex.npz if
            it is there. In Python, where the package lpips is: net = lpips.LPIPS(net="alex");
            numpy.savez(FILE, **{k: v.numpy() for k, v in net.state_dict().items()}).
        as_json: Print what `summary.json` holds, and nothing else, to standard output.
    """
    return lambda: evaluate_run(run, lpips=lpips, as_json=as_json)


def evaluate_run(path: pathlib.Path, *, lpips: pathlib.Path | None, as_json: bool) -> None:
    """Evaluates the newest checkpoint of a run and prints the result."""
    from rich.console import Console

    metric = find_lpips(lpips)
    run = open_run(path)
    summary = evaluate_held_out(
        run.folder, run.scene, run.capture, seconds=run.seconds, lpips=metric
    )
    if as_json:
        show_json(summary)
        return
    Console(highlight=False).print(table(summary))
    if metric is None:
        print(f"LPIPS is not measured: no weights in {LPIPS_WEIGHTS} (--lpips names another file)")
    print(report(run.folder, summary))
