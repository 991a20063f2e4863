"""How close a fitted drive comes to exposures and sweeps that it was not fitted to."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32

from .. import lidar_metrics
from ..metrics import psnr, ssim
from ..sensors import Exposure, Sweep
from .drive_data import crosses_boxes
from .drive_fit import FittedDrive
from .drive_start import Moving, boxes_of

Measured = TypeVar("Measured", Exposure, Sweep)


def every_other(measured: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Splits what was measured by frame, as drives are judged: half is fitted, half held out.

    Args:
        measured: Exposures or sweeps.

    Returns:
        Of each sensor by itself, in the order of time, the first, the third, ..., and the others.
    """
    fitted, held_out = [], []
    for sensor in dict.fromkeys(one.sensor for one in measured):
        frames = sorted((one for one in measured if one.sensor == sensor), key=lambda one: one.time)
        fitted += frames[::2]
        held_out += frames[1::2]
    return fitted, held_out


class ExposureScore(NamedTuple):
    """How close one image comes.

    Attributes:
        name: Of the exposure.
        sensor: Its camera.
        psnr: In dB, of the pixels that may be used, predictions clipped to [0, 1].
    """

    name: str
    sensor: str
    psnr: float


class ExposureView(NamedTuple):
    """One image beside what is rendered.

    Attributes:
        name: Of the exposure.
        sensor: Its camera.
        target: What was measured, in [0, 1].
        image: What is rendered, clipped to [0, 1].
        mask: Pixels that count.
        psnr: In dB, of the pixels that count; infinite for equal images.
        ssim: Of the image, with what does not count taken from the target; NaN if it is too small.
        psnr_movers: In dB, of the pixels whose rays cross the box of an actor; NaN if none do.
    """

    name: str
    sensor: str
    target: Float32[np.ndarray, "height width 3"]
    image: Float32[np.ndarray, "height width 3"]
    mask: Bool[np.ndarray, "height width"]
    psnr: float
    ssim: float
    psnr_movers: float


@dataclasses.dataclass(frozen=True)
class SweepScore:
    """How close all sweeps come; see `lidar_metrics`.

    Attributes:
        range_median_abs_m: Of the surface that stops most of each beam; see `first_surface`.
        range_median_sq_m2: Median squared error.
        range_p90_abs_m: The error that nine of ten rays stay below.
        range_rel: Mean error as a share of the range.
        intensity_rmse: Of rays that returned with an intensity.
        drop_accuracy: Of rays that were fired.
        chamfer_m2: Between points of rays that returned and of those said to, in the mean over
            sweeps.
    """

    range_median_abs_m: float
    range_median_sq_m2: float
    range_p90_abs_m: float
    range_rel: float
    intensity_rmse: float
    drop_accuracy: float
    chamfer_m2: float


@dataclasses.dataclass(frozen=True, eq=False)
class SweepView:
    """One sweep beside what is rendered.

    Attributes:
        name: Of the sweep.
        sensor: Its lidar.
        sweep: What was measured.
        ranges: In metres, of the surface that stops most of each beam.
        intensities: In [0, 1].
        drops: Probability that nothing comes back.
        heard: Rays that are said to come back.
        returned: Rays that count and came back.
        fired: Rays that count.
        origins: Of the rays, as the rig stands by what was learned.
        directions: Of the rays.
    """

    name: str
    sensor: str
    sweep: Sweep
    ranges: Float32[np.ndarray, "rows columns"]
    intensities: Float32[np.ndarray, "rows columns"]
    drops: Float32[np.ndarray, "rows columns"]
    heard: Bool[np.ndarray, "rows columns"]
    returned: Bool[np.ndarray, "rows columns"]
    fired: Bool[np.ndarray, "rows columns"]
    origins: Float32[np.ndarray, "rows columns 3"]
    directions: Float32[np.ndarray, "rows columns 3"]

    def points(self) -> Float32[np.ndarray, "n 3"]:
        """Where what is rendered says that beams come back from, in the world."""
        kept = self.fired & self.heard
        return self.origins[kept] + self.ranges[kept][:, None] * self.directions[kept]

    def true_points(self) -> Float32[np.ndarray, "n 3"]:
        """Where beams came back from, in the world."""
        kept = self.returned
        return self.origins[kept] + self.sweep.ranges[kept][:, None] * self.directions[kept]


def view_exposures(
    fitted: FittedDrive, exposures: Sequence[Exposure], tracks: Sequence[Moving] = ()
) -> Iterator[ExposureView]:
    """Renders exposures, one by one, and compares them with what was measured.

    Args:
        fitted: A fitted drive.
        exposures: Held out from the fit.
        tracks: Whose pixels are judged by themselves as well.
    """
    actors, sizes = boxes_of(tracks)
    for exposure in exposures:
        image = np.clip(np.asarray(fitted.photograph(exposure).color), 0, 1)
        target, mask = exposure.image, exposure.usable()
        movers = mask
        if len(tracks):
            rays = exposure.camera.rays()
            movers = mask & crosses_boxes(rays, exposure.time, actors, sizes, 0.0)
        of_movers = _psnr(image, target, movers) if len(tracks) and movers.any() else np.nan
        structure = np.nan
        # The window of SSIM.
        if min(mask.shape) >= 11:
            whole = np.where(mask[..., None], image, target)
            structure = float(ssim(jnp.asarray(whole), jnp.asarray(target)))
        value = _psnr(image, target, mask)
        yield ExposureView(
            exposure.name, exposure.sensor, target, image, mask, value, structure, of_movers
        )


def view_sweeps(fitted: FittedDrive, sweeps: Sequence[Sweep]) -> Iterator[SweepView]:
    """Renders sweeps, one by one.

    Args:
        fitted: A fitted drive.
        sweeps: Held out from the fit.
    """
    for sweep in sweeps:
        lidar = fitted.moved_sensor(sweep.lidar, sweep.sensor, sweep.time)
        beamed, rays = fitted.beam(lidar, sweep.time), lidar.rays()
        fired = sweep.fired()
        yield SweepView(
            name=sweep.name,
            sensor=sweep.sensor,
            sweep=sweep,
            ranges=np.asarray(beamed.ranges),
            intensities=np.asarray(beamed.intensities),
            drops=np.asarray(beamed.drops),
            heard=np.asarray(beamed.returned),
            returned=sweep.returned & fired,
            fired=fired,
            origins=np.asarray(rays.origins),
            directions=np.asarray(rays.directions),
        )


def score_exposures(fitted: FittedDrive, exposures: Sequence[Exposure]) -> list[ExposureScore]:
    """Renders exposures and compares them with what was measured.

    Args:
        fitted: A fitted drive.
        exposures: Held out from the fit.
    """
    views = view_exposures(fitted, exposures)
    return [ExposureScore(view.name, view.sensor, view.psnr) for view in views]


def score_sweeps(
    fitted: FittedDrive,
    sweeps: Sequence[Sweep],
    *,
    nearest: float = 0.0,
    farthest: float = np.inf,
) -> SweepScore:
    """Renders sweeps and compares them with what was measured, all rays together.

    Args:
        fitted: A fitted drive.
        sweeps: Held out from the fit, at least one.
        nearest: Ranges below, in metres, do not count among ranges.
        farthest: Ranges above do not count either.
    """
    return score_views(list(view_sweeps(fitted, sweeps)), nearest=nearest, farthest=farthest)


def score_views(
    views: Sequence[SweepView], *, nearest: float = 0.0, farthest: float = np.inf
) -> SweepScore:
    """Compares rendered sweeps with what was measured, all rays together; see `score_sweeps`."""

    def all_of(arrays):
        return np.concatenate([np.asarray(array).ravel() for array in arrays])

    ranges, true = (all_of(arrays) for arrays in (
        [view.ranges for view in views], [view.sweep.ranges for view in views]))  # fmt: skip
    drops, shades = all_of([v.drops for v in views]), all_of([v.intensities for v in views])
    returned, fired = all_of([v.returned for v in views]), all_of([v.fired for v in views])
    known = [view.sweep.intensities for view in views]
    blank = [np.zeros_like(view.sweep.ranges) for view in views]
    shown = all_of([b if k is None else k for k, b in zip(known, blank, strict=True)])
    measured = all_of([np.full(b.shape, k is not None) for k, b in zip(known, blank, strict=True)])
    counted = returned & (true >= nearest) & (true <= farthest)
    errors = np.abs(ranges - true)[counted]
    apart = [lidar_metrics.chamfer_m2(view.points(), view.true_points()) for view in views]
    return SweepScore(
        range_median_abs_m=lidar_metrics.range_median_abs_m(ranges, true, counted),
        range_median_sq_m2=lidar_metrics.range_median_sq_m2(ranges, true, counted),
        range_p90_abs_m=float(np.percentile(errors, 90)) if errors.size else float("nan"),
        range_rel=lidar_metrics.range_rel(ranges, true, counted),
        intensity_rmse=lidar_metrics.intensity_rmse(shades, shown, returned & measured),
        drop_accuracy=lidar_metrics.drop_accuracy(drops, returned, fired),
        chamfer_m2=float(np.mean(apart)),
    )


def _psnr(image, target, mask) -> float:
    return float(psnr(*map(jnp.asarray, (image, target, mask))))
