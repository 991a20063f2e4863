"""`jaxrec eval`: measures a run on its held-out views."""

import pathlib
from collections.abc import Callable
from typing import Annotated

import tyro

from .evaluation import evaluate_held_out, report
from .info import show_json
from .saved_run import open_run


def eval_command(
    run: tyro.conf.Positional[pathlib.Path],
    *,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> Callable[[], None]:
    """Renders the held-out views of a run, and writes its summary and contact sheet anew.

    For each view and in the mean: PSNR in dB and SSIM (1 for equal images), where higher is
    better, and LDR-FLIP (no unit, 0 for equal images, 1 at most, for a viewer who sees 67 pixels
    in a degree), where lower is. A column of its own holds the PSNR after an affine change of each
    view's colours to those of its photograph.

    Args:
        run: Run folder that `jaxrec fit` or `jaxrec demo` has made.
        as_json: Print what `summary.json` holds, and nothing else, to standard output.
    """
    return lambda: evaluate_run(run, as_json=as_json)


def evaluate_run(path: pathlib.Path, *, as_json: bool) -> None:
    """Evaluates the newest checkpoint of a run and prints the result."""
    run = open_run(path)
    summary = evaluate_held_out(run.folder, run.scene, run.capture, seconds=run.seconds)
    if as_json:
        show_json(summary)
    else:
        print(report(run.folder, summary))
