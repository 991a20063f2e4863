"""Held-out views of a run: scores, pictures and the summary."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import __version__
from ..data import Capture
from ..lpips import LEAST_SIZE, Lpips, load_lpips
from ..sensors import Frame
from ..train import FittedScene, ViewScore, evaluate
from .contact_sheet import Row, choose_rows, contact_sheet, to_bytes
from .errors import CommandError
from .run_folder import RunFolder, write_image, write_text

if TYPE_CHECKING:
    from rich.table import Table

# Where the weights of LPIPS are looked for.
LPIPS_WEIGHTS = pathlib.Path("~/.cache/jaxrec/lpips_alex.npz")


# Names of the measures, whether more is better, digits to show, and unit.
MEASURES = {
    "psnr": ("PSNR", True, 2, " dB"),
    "ssim": ("SSIM", True, 4, ""),
    "flip": ("FLIP", False, 4, ""),
    "lpips": ("LPIPS", False, 4, ""),
    "psnr_corrected": ("PSNR, colours corrected", True, 2, " dB"),
}


def find_lpips(path: pathlib.Path | None = None) -> Lpips | None:
    """Reads the weights of LPIPS from a file, or from where they are kept, if they are there.

    Raises:
        CommandError: If the file is not what it should be, or the one that is given is missing.
    """
    if path is None:
        path = LPIPS_WEIGHTS.expanduser()
        if not path.is_file():
            return None
    try:
        return load_lpips(path)
    except ValueError as error:
        raise CommandError(str(error)) from error


def evaluate_held_out(
    run: RunFolder,
    scene: FittedScene,
    capture: Capture,
    *,
    seconds: float,
    lpips: Lpips | None = None,
) -> dict[str, Any]:
    """Compares a scene with the held-out views and writes pictures and `summary.json`.

    Colours are compared as they were captured with what is rendered, clipped to [0, 1] but not
    rounded. FLIP has no unit, is 0 for equal images and 1 at most, and supposes a viewer who sees
    67 pixels in a degree, its default. PSNR after an affine correction of the colours stands on
    its own. Beside the picture of each view lies a json with its scores.

    Args:
        run: Where to write.
        scene: What was fitted.
        capture: Its held-out views are rendered.
        seconds: How long the fit has taken.
        lpips: The metric, or none to leave it out.

    Returns:
        What `summary.json` holds.
    """
    scores = list(evaluate(scene, capture.test))
    views = [_view(score, frame, lpips) for score, frame in zip(scores, capture.test, strict=True)]
    for index, (score, view) in enumerate(zip(scores, views, strict=True)):
        stem = f"{index:04d}_{pathlib.PurePosixPath(score.name).stem}"
        write_image(run.renders / "held_out" / f"{stem}.png", to_bytes(score.image))
        write_text(run.renders / "held_out" / f"{stem}.json", json.dumps(view, indent=2) + "\n")
    _write_contact_sheet(run, scores)
    summary = _summary(scene, views, seconds)
    run.write_summary(summary)
    return summary


def table(summary: dict[str, Any]) -> "Table":
    """Puts the scores of all views, their mean and the worst of each measure into a table."""
    from rich.table import Table

    measures = [name for name in MEASURES if summary[name] is not None]
    rows = Table("held-out view", pad_edge=False)
    for name in measures:
        rows.add_column(MEASURES[name][0], justify="right")
    for view in summary["views"]:
        rows.add_row(view["name"], *(_shown(name, view[name]) for name in measures))
    rows.add_section()
    rows.add_row("mean", *(_shown(name, summary[name]) for name in measures))
    worst = summary["worst"]
    rows.add_row("worst", *(_shown(name, worst[name]["value"]) for name in measures))
    rows.add_row("", *(worst[name]["name"] for name in measures), style="dim")
    return rows


def report(run: RunFolder, summary: dict[str, Any]) -> str:
    """Puts a summary into words, and says where the pictures are."""
    ssim = "" if summary["ssim"] is None else f", SSIM {summary['ssim']:.4f}"
    flip = "" if summary["flip"] is None else f", FLIP {summary['flip']:.4f}"
    lpips = "" if summary["lpips"] is None else f", LPIPS {summary['lpips']:.4f}"
    worst = summary["worst_view"]
    return (
        f"held-out PSNR {summary['psnr']:.2f} dB{ssim}{flip}{lpips} over "
        f"{len(summary['views'])} views, worst {worst['psnr']:.2f} dB ({worst['name']}); "
        f"{summary['spheres']} spheres, {summary['steps']} steps, {summary['seconds']:.1f} s on "
        f"{summary['device']}\n"
        f"contact sheet: {run.contact_sheet_file}\n"
        f"summary:       {run.summary_file}\n"
        f"checkpoint:    {run.checkpoints / str(summary['steps'])}"
    )


def _view(score: ViewScore, frame: Frame, lpips: Lpips | None) -> dict[str, Any]:
    """The measures of one view; what cannot be measured is None."""
    mask = frame.mask
    distance = float("nan")
    if lpips is not None and min(score.target.shape[:2]) >= LEAST_SIZE:
        # Masked pixels are taken from the frame, as for SSIM.
        image = score.image
        if mask is not None:
            image = np.where(mask[..., None], image, score.target)
        distance = float(_lpips(lpips, jnp.asarray(image), jnp.asarray(score.target)))
    return {
        "name": score.name,
        "psnr": _finite(score.psnr),
        "ssim": _finite(score.ssim),
        "flip": _finite(score.flip),
        "lpips": _finite(distance),
        "psnr_corrected": _finite(score.psnr_corrected),
    }


_lpips = jax.jit(lambda metric, prediction, target: metric(prediction, target))


def _summary(scene: FittedScene, views: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    worst = {name: _worst(name, views) for name in MEASURES}
    return {
        **{name: _mean(name, views) for name in MEASURES},
        "seconds": round(seconds, 3),
        "steps": int(scene.state.step),
        "spheres": int(np.sum(np.asarray(scene.state.alive))),
        "device": jax.devices()[0].device_kind,
        "version": __version__,
        "worst_view": next(view for view in views if view["name"] == worst["psnr"]["name"]),
        "worst": worst,
        "views": list(views),
    }


def _values(name: str, views: Sequence[dict[str, Any]]) -> list[float]:
    return [float("nan") if view[name] is None else view[name] for view in views]


def _mean(name: str, views: Sequence[dict[str, Any]]) -> float | None:
    return _finite(np.mean(_values(name, views)))


def _worst(name: str, views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Name and value of the view with the worst score; one that has none counts as such."""
    values = np.asarray(_values(name, views))
    index = int(np.argmin(values if MEASURES[name][1] else -values))
    return {"name": views[index]["name"], "value": views[index][name]}


def _shown(name: str, value: float | None) -> str:
    return "-" if value is None else f"{value:.{MEASURES[name][2]}f}{MEASURES[name][3]}"


def _write_contact_sheet(run: RunFolder, scores: Sequence[ViewScore]) -> None:
    rows = [
        Row(
            scores[index].name,
            scores[index].target,
            scores[index].image,
            scores[index].psnr,
        )
        for index in choose_rows([score.psnr for score in scores])
    ]
    write_image(run.contact_sheet_file, contact_sheet(rows))


def _finite(value: float | np.floating) -> float | None:
    """The value for JSON, which knows neither infinity nor NaN."""
    return float(value) if math.isfinite(value) else None
