"""Held-out views of a run: scores, pictures and the summary."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .. import __version__
from ..data import Capture
from ..train import FittedScene, ViewScore, evaluate
from .contact_sheet import Row, choose_rows, contact_sheet, to_bytes
from .run_folder import RunFolder, write_image


def evaluate_held_out(
    run: RunFolder, scene: FittedScene, capture: Capture, *, seconds: float
) -> dict[str, Any]:
    """Compares a scene with the held-out views and writes pictures and `summary.json`.

    Colours are compared as they were captured with what is rendered, clipped to [0, 1] but not
    rounded. FLIP has no unit, is 0 for equal images and 1 at most, and supposes a viewer who sees
    67 pixels in a degree, its default.

    Args:
        run: Where to write.
        scene: What was fitted.
        capture: Its held-out views are rendered.
        seconds: How long the fit has taken.

    Returns:
        What `summary.json` holds.
    """
    scores = list(evaluate(scene, capture.test))
    for index, score in enumerate(scores):
        stem = pathlib.PurePosixPath(score.name).stem
        write_image(run.renders / "held_out" / f"{index:04d}_{stem}.png", to_bytes(score.image))
    _write_contact_sheet(run, scores)
    summary = _summary(scene, scores, seconds)
    run.write_summary(summary)
    return summary


def report(run: RunFolder, summary: dict[str, Any]) -> str:
    """Puts a summary into words, and says where the pictures are."""
    ssim = "" if summary["ssim"] is None else f", SSIM {summary['ssim']:.4f}"
    flip = "" if summary["flip"] is None else f", FLIP {summary['flip']:.4f}"
    worst = summary["worst_view"]
    return (
        f"held-out PSNR {summary['psnr']:.2f} dB{ssim}{flip} over {len(summary['views'])} views, "
        f"worst {worst['psnr']:.2f} dB ({worst['name']}); {summary['spheres']} spheres, "
        f"{summary['steps']} steps, {summary['seconds']:.1f} s on {summary['device']}\n"
        f"{_table(summary)}\n"
        f"contact sheet: {run.contact_sheet_file}\n"
        f"summary:       {run.summary_file}\n"
        f"checkpoint:    {run.checkpoints / str(summary['steps'])}"
    )


def _table(summary: dict[str, Any]) -> str:
    """One line for each view, then the mean and the worst of each column."""
    columns = ("psnr", "ssim", "flip", "corrected_psnr")
    digits = dict(zip(columns, (2, 4, 4, 2), strict=True))
    views = summary["views"]
    rows = [(view["name"], [view[name] for name in columns]) for view in views]
    rows.append(("mean", [summary[name] for name in columns]))
    worst = []
    for name in columns:
        values = [view[name] for view in views if view[name] is not None]
        choose = max if name == "flip" else min
        worst.append(choose(values, default=None))
    rows.append(("worst", worst))
    width = max(4, *(len(name) for name, _ in rows))
    lines = [f"{'view':{width}}  PSNR dB    SSIM    FLIP  colour-corrected PSNR dB"]
    for label, values in rows:
        shown = [
            "-" if value is None else f"{value:.{digits[name]}f}"
            for name, value in zip(columns, values, strict=True)
        ]
        cells = (f"{cell:>{size}}" for cell, size in zip(shown, (7, 6, 6, 24), strict=True))
        lines.append(f"{label:{width}}  {'  '.join(cells)}")
    return "\n".join(lines)


def _summary(scene: FittedScene, scores: Sequence[ViewScore], seconds: float) -> dict[str, Any]:
    views = [
        {
            "name": score.name,
            "psnr": _finite(score.psnr),
            "ssim": _finite(score.ssim),
            "flip": _finite(score.flip),
            "corrected_psnr": _finite(score.corrected_psnr),
        }
        for score in scores
    ]
    worst = int(np.argmin([score.psnr for score in scores]))
    corrected = [score.corrected_psnr for score in scores]
    return {
        "psnr": _finite(np.mean([score.psnr for score in scores])),
        "ssim": _finite(np.mean([score.ssim for score in scores])),
        "flip": _finite(np.mean([score.flip for score in scores])),
        "corrected_psnr": _finite(np.mean(corrected)),
        "seconds": round(seconds, 3),
        "steps": int(scene.state.step),
        "spheres": int(np.sum(np.asarray(scene.state.alive))),
        "device": jax.devices()[0].device_kind,
        "version": __version__,
        "worst_view": views[worst],
        "worst_corrected_view": views[int(np.argmin(corrected))],
        "views": views,
    }


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
