"""`jaxrec eval`: measures a run on its held-out views."""

import pathlib
from collections.abc import Callable
from typing import Annotated

import tyro

from .drive_evaluation import Bounds, drive_table, evaluate_drive, report_drive
from .evaluation import LPIPS_WEIGHTS, evaluate_held_out, find_lpips, report, table
from .info import show_json
from .saved_run import SavedDrive, open_any_run


def eval_command(
    run: tyro.conf.Positional[pathlib.Path],
    *,
    lpips: pathlib.Path | None = None,
    nearest: float = 0.0,
    farthest: float = float("inf"),
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> Callable[[], None]:
    """Renders the held-out views of a run, and writes its summary and contact sheet anew.

    For each view, in the mean and at the worst: PSNR in dB and SSIM (1 for equal images), where
    higher is better; LDR-FLIP (no unit, 0 for equal images, 1 at most, for a viewer who sees 67
    pixels in a degree) and LPIPS, where lower is; and PSNR after an affine correction of the
    colours. Each view's picture and json lie in RUN/renders/held_out.

    Of a drive: PSNR and SSIM of images, PSNR of the pixels that show boxes of actors, and for
    sweeps the median and 90th percentile of errors of ranges in metres, the root mean square
    error of intensities, the share of rays whose return or loss is told rightly, and the chamfer
    distance in square metres.

    Args:
        run: Run folder that `jaxrec fit` or `jaxrec demo` has made.
        lpips: An npz file with the weights of LPIPS; without it, ~/.cache/jaxrec/lpips_alex.npz if
            it is there. In Python, where the package lpips is: net = lpips.LPIPS(net="alex");
            numpy.savez(FILE, **{k: v.numpy() for k, v in net.state_dict().items()}).
        nearest: Of a drive, ranges below, in metres, do not count among the scores of ranges.
        farthest: Ranges above do not count either.
        as_json: Print what `summary.json` holds, and nothing else, to standard output.
    """
    bounds = Bounds(nearest, farthest)
    return lambda: evaluate_run(run, lpips=lpips, bounds=bounds, as_json=as_json)


def evaluate_run(
    path: pathlib.Path, *, lpips: pathlib.Path | None, bounds: Bounds, as_json: bool
) -> None:
    """Evaluates the newest checkpoint of a run and prints the result."""
    from rich.console import Console

    metric = find_lpips(lpips)
    run = open_any_run(path)
    if isinstance(run, SavedDrive):
        summary = evaluate_drive(
            run.folder, run.fitted, run.drive, seconds=run.seconds, bounds=bounds
        )
        if as_json:
            show_json(summary)
            return
        Console(highlight=False).print(drive_table(summary))
        print(report_drive(run.folder, summary))
        return
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
