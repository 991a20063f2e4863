"""How close a fitted drive comes to exposures and sweeps that it was not fitted to."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .. import lidar_metrics
from ..metrics import psnr
from ..rendering import first_surface
from ..sensors import Exposure, Sweep
from .moving_scene import MovingScene

Measured = TypeVar("Measured", Exposure, Sweep)

# Returns that are nearer to each other than this are heard as one, in metres.
_SEPARATION = 0.5


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


@dataclasses.dataclass(frozen=True)
class SweepScore:
    """How close all sweeps come; see `lidar_metrics`.

    Attributes:
        range_median_abs_m: Of the surface that stops most of each beam; see `first_surface`.
        range_p90_abs_m: The error that nine of ten rays stay below.
        range_rel: Mean error as a share of the range.
        intensity_rmse: Of rays that returned.
        drop_accuracy: Of rays that were fired.
    """

    range_median_abs_m: float
    range_p90_abs_m: float
    range_rel: float
    intensity_rmse: float
    drop_accuracy: float


def score_exposures(scene: MovingScene, exposures: Sequence[Exposure]) -> list[ExposureScore]:
    """Renders exposures and compares them with what was measured.

    Args:
        scene: A fitted scene.
        exposures: Held out from the fit.
    """
    scores = []
    for exposure in exposures:
        seen = _photograph(scene, exposure.camera, jnp.float32(exposure.time))
        measured = map(jnp.asarray, (exposure.image, exposure.usable()))
        value = float(psnr(jnp.clip(seen, 0, 1), *measured))
        scores.append(ExposureScore(exposure.name, exposure.sensor, value))
    return scores


def score_sweeps(
    scene: MovingScene,
    sweeps: Sequence[Sweep],
    *,
    nearest: float = 0.0,
    farthest: float = np.inf,
) -> SweepScore:
    """Renders sweeps and compares them with what was measured, all rays together.

    Args:
        scene: A fitted scene.
        sweeps: Held out from the fit, at least one.
        nearest: Ranges below, in metres, do not count among ranges.
        farthest: Ranges above do not count either.
    """
    rows = [_swept(scene, sweep) for sweep in sweeps]
    ranges, shades, drops, true, shown, returned, fired = (
        np.concatenate([row[i].ravel() for row in rows]) for i in range(7)
    )
    counted = returned & (true >= nearest) & (true <= farthest)
    errors = np.abs(ranges - true)[counted]
    return SweepScore(
        range_median_abs_m=lidar_metrics.range_median_abs_m(ranges, true, counted),
        range_p90_abs_m=float(np.percentile(errors, 90)) if errors.size else float("nan"),
        range_rel=lidar_metrics.range_rel(ranges, true, counted),
        intensity_rmse=lidar_metrics.intensity_rmse(shades, shown, returned),
        drop_accuracy=lidar_metrics.drop_accuracy(drops, returned, fired),
    )


def _swept(scene: MovingScene, sweep: Sweep) -> tuple[Any, ...]:
    swept, first = _sweep(scene, sweep.lidar, jnp.float32(sweep.time))
    fired = sweep.fired()
    shown = np.zeros_like(sweep.ranges) if sweep.intensities is None else sweep.intensities
    found = map(np.asarray, (first, swept.intensities, swept.drops))
    return (*found, sweep.ranges, shown, sweep.returned & fired, fired)


@jax.jit
def _photograph(scene, camera, time):
    return scene.photograph(camera, time).color


@jax.jit
def _sweep(scene, lidar, time):
    bare = scene.for_lidars(time)
    first = first_surface(bare, lidar, near=scene.near, far=scene.far, separation=_SEPARATION)
    return scene.sweep(lidar, time), first
