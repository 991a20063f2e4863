"""Held-out frames of a drive: scores, pictures and the summary."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import __version__
from ..data import Drive
from ..train import (
    ExposureView,
    FittedDrive,
    SweepView,
    every_other,
    score_views,
    view_exposures,
    view_sweeps,
)
from .contact_sheet import Row, choose_rows, contact_sheet, to_bytes
from .drive_sheets import range_picture, sweep_sheet
from .run_folder import RunFolder, write_image, write_text

if TYPE_CHECKING:
    from rich.table import Table

_OF_IMAGES = {"psnr": (2, " dB"), "psnr_movers": (2, " dB"), "ssim": (4, "")}
_OF_SWEEPS = {
    "range_median_abs_m": (3, " m"),
    "range_p90_abs_m": (3, " m"),
    "range_median_sq_m2": (5, " m2"),
    "range_rel": (4, ""),
    "intensity_rmse": (4, ""),
    "drop_accuracy": (4, ""),
    "chamfer_m2": (3, " m2"),
}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Ranges that are judged, in metres."""

    nearest: float = 0.0
    farthest: float = float("inf")

    def __post_init__(self):
        """Raises `ValueError` naming the option."""
        if not 0 <= self.nearest < self.farthest:
            raise ValueError(
                f"nearest: got {self.nearest:g} with --farthest {self.farthest:g}, want >= 0 and "
                "below it"
            )


def describe_drive(drive: Drive) -> list[str]:
    """Says what was read of a drive, and what of it is held out: a line for each sensor."""
    lines = [f"{drive.path} ({drive.format})"]
    both: dict[str, Sequence[Any]] = {"images": drive.exposures, "sweeps": drive.sweeps}
    for what, measured in both.items():
        halves = every_other(measured)
        for name in dict.fromkeys(one.sensor for one in measured):
            fitted, held_out = ([one for one in half if one.sensor == name] for half in halves)
            times = [one.time for one in (*fitted, *held_out)]
            lines.append(
                f"{name}: {len(times)} {what} of {_size(fitted[0])} in "
                f"{max(times) - min(times):.2f} s, {len(fitted)} to fit, {len(held_out)} held out "
                "(every second)"
            )
    lines.append(f"tracks: {len(drive.tracks)}")
    return lines


def evaluate_drive(
    run: RunFolder, fitted: FittedDrive, drive: Drive, *, seconds: float, bounds: Bounds
) -> dict[str, Any]:
    """Compares a fitted drive with what was held out, and writes pictures and `summary.json`.

    Args:
        run: Where to write.
        fitted: What was fitted.
        drive: Every second frame of each of its sensors is held out.
        seconds: How long the fit has taken.
        bounds: Of ranges that are judged; each number of ranges is over these alone.

    Returns:
        What `summary.json` holds.
    """
    folder = run.renders / "held_out"
    images: list[dict[str, Any]] = []
    views = list(view_exposures(fitted, every_other(drive.exposures)[1], drive.tracks))
    for index, view in enumerate(views):
        stem = f"{index:04d}_{_stem(view.name)}"
        images.append(_of_image(view))
        write_image(folder / f"{stem}.png", to_bytes(view.image))
        write_text(folder / f"{stem}.json", json.dumps(images[-1], indent=2) + "\n")
    sweeps: list[dict[str, Any]] = []
    scans = list(view_sweeps(fitted, every_other(drive.sweeps)[1]))
    for index, scan in enumerate(scans):
        stem = f"sweep_{index:04d}_{_stem(scan.name)}"
        sweeps.append(_of_sweeps([scan], bounds) | {"name": scan.name, "lidar": scan.sensor})
        write_image(folder / f"{stem}.png", range_picture(scan.ranges, scan.heard))
        write_text(folder / f"{stem}.json", json.dumps(sweeps[-1], indent=2) + "\n")
    if views:
        write_image(run.contact_sheet_file, _contact_sheet(views))
    if scans:
        write_image(run.sweeps_file, sweep_sheet(_some(scans)))
    summary = _summary(fitted, images, sweeps, scans, seconds, bounds)
    run.write_summary(summary)
    return summary


def drive_table(summary: dict[str, Any]) -> "Table":
    """Puts the scores of all held-out frames, and those of all together, into a table."""
    from rich.table import Table

    rows = Table("held out", pad_edge=False)
    shown = [
        name
        for name in (*_OF_IMAGES, *_OF_SWEEPS)
        if any(each.get(name) is not None for each in (*summary["images"], *summary["sweeps"]))
    ]
    for name in shown:
        rows.add_column(name, justify="right")
    for each in (*summary["images"], *summary["sweeps"]):
        rows.add_row(each["name"], *(_shown(name, each.get(name)) for name in shown))
    rows.add_section()
    rows.add_row("all", *(_shown(name, summary.get(name)) for name in shown))
    return rows


def report_drive(run: RunFolder, summary: dict[str, Any]) -> str:
    """Puts a summary into words, and says where the pictures are."""
    lines = []
    if summary["images"]:
        worst = summary["worst_view"]
        movers = summary["psnr_movers"]
        of_movers = "" if movers is None else f", {movers:.2f} dB on movers"
        lines.append(
            f"held-out images: PSNR {_shown('psnr', summary['psnr'])}{of_movers} over "
            f"{len(summary['images'])}, worst {_shown('psnr', worst['psnr'])} ({worst['name']})"
        )
    if summary["sweeps"]:
        named = (
            f"{name} {_shown(name, summary[name])}"
            for name in ("range_median_abs_m", "range_p90_abs_m", "intensity_rmse", "drop_accuracy")
        )
        lines.append(f"held-out sweeps: {', '.join(named)} over {len(summary['sweeps'])}")
    lines.append(
        f"{summary['spheres']} spheres, {summary['steps']} steps, {summary['seconds']:.1f} s on "
        f"{summary['device']}"
    )
    if summary["images"]:
        lines.append(f"contact sheet: {run.contact_sheet_file}")
    if summary["sweeps"]:
        lines.append(f"sweeps:        {run.sweeps_file}")
    lines.append(f"summary:       {run.summary_file}")
    lines.append(f"checkpoint:    {run.checkpoints / str(summary['steps'])}")
    return "\n".join(lines)


def _summary(fitted, images, sweeps, scans, seconds, bounds) -> dict[str, Any]:
    together: dict[str, Any] = _of_sweeps(scans, bounds) if scans else dict.fromkeys(_OF_SWEEPS)
    cameras = dict.fromkeys(image["camera"] for image in images)
    known = [image for image in images if image["psnr"] is not None]
    return {
        **{name: _mean(image[name] for image in images) for name in _OF_IMAGES},
        **together,
        "nearest_m": bounds.nearest,
        "farthest_m": _finite(bounds.farthest),
        "cameras": {
            camera: _mean(image["psnr"] for image in images if image["camera"] == camera)
            for camera in cameras
        },
        "worst_view": min(known, key=lambda image: image["psnr"]) if known else None,
        "seconds": round(seconds, 3),
        "steps": int(fitted.state.step),
        "spheres": int(np.sum(np.asarray(fitted.scene.spheres.alive))),
        "device": jax.devices()[0].device_kind,
        "version": __version__,
        "images": images,
        "sweeps": sweeps,
    }


def _of_image(view: ExposureView) -> dict[str, Any]:
    scores = {name: _finite(getattr(view, name)) for name in _OF_IMAGES}
    return {"name": view.name, "camera": view.sensor, **scores}


def _of_sweeps(scans: Sequence[SweepView], bounds: Bounds) -> dict[str, Any]:
    score = score_views(scans, nearest=bounds.nearest, farthest=bounds.farthest)
    return {name: _finite(value) for name, value in dataclasses.asdict(score).items()}


def _contact_sheet(views: Sequence[ExposureView]) -> np.ndarray:
    rows = [
        Row(view.name, np.where(view.mask[..., None], view.target, 0), view.image, view.psnr)
        for view in (views[index] for index in choose_rows([view.psnr for view in views]))
    ]
    return contact_sheet([row._replace(truth=row.truth.astype(np.float32)) for row in rows])


def _some(scans: Sequence[SweepView]) -> list[SweepView]:
    """The first, the middle and the last one."""
    return [scans[i] for i in sorted({0, len(scans) // 2, len(scans) - 1})]


def _size(one: Any) -> str:
    if hasattr(one, "camera"):
        return f"{one.camera.width} x {one.camera.height} pixels"
    return f"{one.ranges.shape[0]} x {one.ranges.shape[1]} rays"


def _stem(name: str) -> str:
    return name.replace("/", "_").rsplit(".", 1)[0] or "frame"


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _shown(name: str, value: float | None) -> str:
    digits, unit = (_OF_IMAGES | _OF_SWEEPS)[name]
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def _finite(value: float) -> float | None:
    """The value for JSON, which knows neither infinity nor NaN."""
    return float(value) if math.isfinite(value) else None
