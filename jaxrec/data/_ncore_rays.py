"""The rays of a sweep, on their way into an NCore sequence."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from ..sensors import SpinningLidar, Sweep
from ._ncore_lidars import encode_grid
from ._zarr_writing import StoreWriter

# All rays of NCore start at the lidar's origin, in metres.
_APART = 1e-3


class Span(NamedTuple):
    """Start and end of an image or a sweep in microseconds."""

    start: int
    end: int


class RaysToWrite:
    """The rays of a sweep as NCore lists them.

    Attributes:
        frame: From the first to the last of them.
        grid: The model of the lidar, or none.
        mount: `body_from_lidar`.

    Raises:
        ValueError: They do not start at the lidar's origin.
    """

    def __init__(self, sweep: Sweep, microseconds: Callable[[Any], Int64[np.ndarray, "*n"]]):
        lidar = sweep.lidar
        if isinstance(lidar, SpinningLidar):
            self.grid: dict[str, Any] | None = encode_grid(lidar)
            self.mount = np.asarray(lidar.body_from_lidar)
            directions, times, starts = _spun(lidar)
            order = np.argsort(-np.asarray(lidar.elevations, np.float64), kind="stable")
            place = np.argsort(order, kind="stable")
            edges = [float(lidar.start + lidar.offset), float(lidar.end + lidar.offset)]
        else:
            self.grid, place = None, np.arange(sweep.ranges.shape[0])
            self.mount = np.asarray(lidar.body_from_sensor)
            directions = np.asarray(lidar.directions, np.float64)
            times = np.asarray(lidar.times, np.float64) + float(lidar.offset)
            starts, edges = np.asarray(lidar.origins), []
        if np.abs(starts).max(initial=0) > _APART:
            raise ValueError(
                f"{sweep.name}: got rays that start up to {np.abs(starts).max():.3g} m from the "
                "lidar's origin; NCore's all start there"
            )
        fired = np.ones(sweep.ranges.shape, np.bool_) if sweep.mask is None else sweep.mask
        rows, columns = np.nonzero(fired)
        self._elements = np.stack([place[rows], columns], axis=-1).astype(np.uint16)
        directions = directions[fired]
        lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
        self._directions = (directions / lengths).astype(np.float32)
        self._times = microseconds(times[fired])
        around = np.concatenate([self._times, microseconds(edges)])
        if not len(around):
            around = microseconds([sweep.time])
        self.frame = Span(int(around.min()), int(around.max()))
        self._returns(sweep, fired)

    def write(self, writer: StoreWriter, key: str) -> None:
        """Stores the rays of a frame."""
        count, returns = len(self._directions), len(self._distances)
        writer.group(f"{key}/generic_data", {})
        writer.group(f"{key}/ray_bundle", {"n_rays": count})
        writer.array(f"{key}/ray_bundle/direction", self._directions)
        writer.array(f"{key}/ray_bundle/timestamp_us", self._times.astype(np.uint64))
        if self.grid is not None:
            writer.array(f"{key}/ray_bundle/model_element", self._elements)
        writer.group(f"{key}/ray_bundle_returns", {"n_returns": returns})
        for name, values in (("distance_m", self._distances), ("intensity", self._intensities)):
            writer.array(f"{key}/ray_bundle_returns/{name}", values, (1, count))
        packed = np.packbits(np.isfinite(self._distances))
        writer.array(f"{key}/ray_bundle_returns_valid_mask_packed", packed)
        writer.attributes(
            f"{key}/ray_bundle_returns_valid_mask_packed",
            {"n_returns": returns, "n_rays": count},
        )

    def _returns(self, sweep: Sweep, fired: np.ndarray) -> None:
        distances = [np.where(sweep.returned, sweep.ranges, np.nan)[fired]]
        bright = np.zeros(sweep.ranges.shape, np.float32)
        if sweep.intensities is not None:
            bright = np.clip(sweep.intensities, 0, 1)
        if sweep.second_ranges is not None:
            distances.append(np.where(sweep.second_ranges > 0, sweep.second_ranges, np.nan)[fired])
        self._distances = np.stack(distances).astype(np.float32)
        # A drive has no intensities of second returns; NCore wants a number for each.
        firsts = np.stack([bright[fired], np.zeros_like(bright[fired])])[: len(distances)]
        absent = np.isnan(self._distances)
        self._intensities = np.where(absent, np.nan, firsts).astype(np.float32)


def _spun(lidar: SpinningLidar):
    """The directions, the times and the origins of all shots of a lidar, in its frame."""
    elevations = np.asarray(lidar.elevations, np.float64)[:, None]
    azimuths = np.asarray(lidar.azimuths, np.float64)
    azimuths = azimuths + np.asarray(lidar.azimuth_offsets, np.float64)[:, None]
    level = np.cos(elevations)
    up = np.broadcast_to(np.sin(elevations), azimuths.shape)
    directions = np.stack([level * np.cos(azimuths), level * np.sin(azimuths), up], axis=-1)
    turned = np.arange(azimuths.shape[1]) / max(azimuths.shape[1] - 1, 1)
    start, end = float(lidar.start + lidar.offset), float(lidar.end + lidar.offset)
    times = start + (end - start) * turned + np.asarray(lidar.delays, np.float64)[:, None]
    return directions, times, np.asarray(lidar.heights)
