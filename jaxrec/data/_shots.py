"""Points of a lidar sorted back into the grid of rows and columns that it measures in.

Logs give points without the shots that met nothing. Here each point gets a place of its own:
in the row of its laser, in a column near its azimuth. The ray through it is exact; what stands
in the places left over is a guess, and their mask says so.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int

from ..sensors import RayBundle, Sweep
from ..trajectory import Path


@dataclasses.dataclass(frozen=True, eq=False)
class Shots:
    """What one sweep has met, in the lidar's frame at the time of each shot.

    Attributes:
        points: In metres.
        rows: From 0, the lasers of the lidar.
        times: In seconds since the drive's epoch.
        intensities: In [0, 1].
    """

    points: Float64[np.ndarray, "n 3"]
    rows: Int[np.ndarray, " n"]
    times: Float64[np.ndarray, " n"]
    intensities: Float32[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a grid.

    Attributes:
        elevations: In radians.
        origins: Where the rays of each row start in the lidar's frame, in metres.
    """

    elevations: Float64[np.ndarray, " rows"]
    origins: Float64[np.ndarray, "rows 3"]

    @classmethod
    def filled(
        cls, elevations: Float[np.ndarray, " rows"], heights: Float[np.ndarray, " rows"]
    ) -> "Rows":
        """Rows on an axis; those without an elevation get one from their neighbours."""
        elevations, index = np.array(elevations, np.float64), np.arange(len(elevations))
        known = np.isfinite(elevations)
        elevations = np.interp(index, index[known], elevations[known])
        zero = np.zeros(len(elevations))
        heights = np.interp(index, index[known], heights[known])
        return cls(elevations, np.stack([zero, zero, heights], axis=-1))

    def order(self) -> Int[np.ndarray, " rows"]:
        """The rows from the highest to the lowest."""
        return np.argsort(-self.elevations, kind="stable")


class Bands(NamedTuple):
    """Rows made of what has no rings: which each point is in, and the rows."""

    of: Int[np.ndarray, " n"]
    rows: Rows


def bands_of(
    points: Float64[np.ndarray, "n 3"], count: int, origin: tuple[float, float, float] = (0, 0, 0)
) -> Bands:
    """Sorts points by elevation into rows of as many points each.

    Args:
        points: In the lidar's frame, none at the origin of the rays.
        count: How many rows to make.
        origin: Where all rays start.
    """
    offsets = points - np.asarray(origin, np.float64)
    elevation = np.arctan2(offsets[:, 2], np.hypot(offsets[:, 0], offsets[:, 1]))
    order = np.argsort(-elevation, kind="stable")
    rows = np.empty(len(points), np.int64)
    rows[order] = np.arange(len(points)) * count // max(len(points), 1)
    middles = [
        np.median(elevation[rows == row]) if np.any(rows == row) else np.nan for row in range(count)
    ]
    filled = Rows.filled(np.array(middles), np.zeros(count))
    return Bands(rows, Rows(filled.elevations, filled.origins + np.asarray(origin, np.float64)))


def away(
    points: Float[np.ndarray, "n 3"], origin: tuple[float, float, float] = (0, 0, 0)
) -> Bool[np.ndarray, " n"]:
    """Which points are finite and not at the origin, where there is no ray through them."""
    distances = np.linalg.norm(points - np.asarray(origin), axis=-1)
    return np.isfinite(distances) & (distances > 1e-3)


def grid_width(sweeps: Sequence[Shots], count: int) -> int:
    """How many columns hold the fullest row of all sweeps, in whole warps."""
    most = max(int(np.bincount(shots.rows, minlength=count).max()) for shots in sweeps)
    return max(-(-most // 32) * 32, 32)


def columns_of(azimuths: Float[np.ndarray, " n"], width: int) -> Int[np.ndarray, " n"]:
    """Columns near azimuths in [-pi, pi], one for each: points that share one are moved on.

    Args:
        azimuths: In radians, of one row, sorted; at most as many as there are columns.
        width: How many columns there are.

    Returns:
        Increasing columns from 0.
    """
    count = np.arange(len(azimuths))
    wanted = np.floor((azimuths + np.pi) / (2 * np.pi) * width).astype(np.int64)
    found = count + np.maximum.accumulate(np.clip(wanted, 0, width - 1) - count)
    return np.minimum(found, width - len(azimuths) + count)


def sweep_of(
    shots: Shots,
    rows: Rows,
    width: int,
    *,
    mount: Float64[np.ndarray, "4 4"],
    path: Path,
    name: str,
    sensor: str,
    time: float,
    beam: tuple[float, float] = (0.0, 1e-3),
) -> Sweep:
    """Puts shots into a grid. No shot is left out; places without one have a mask of False.

    Args:
        shots: The sweep.
        rows: The rows of the lidar; they come out from the highest to the lowest.
        width: How many columns to make.
        mount: `body_from_lidar`.
        path: Of the body.
        name: Of the sweep.
        sensor: Name of the lidar.
        time: Of the middle of the sweep, in seconds since the epoch.
        beam: As of `RayBundle`.
    """
    shape = (len(rows.elevations), width)
    azimuths = (np.arange(width) + 0.5) / width * 2 * np.pi - np.pi
    directions = np.zeros((*shape, 3))
    times = np.full(shape, float(np.median(shots.times)) if len(shots.times) else time)
    ranges, intensities = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    returned = np.zeros(shape, np.bool_)
    offsets = shots.points - rows.origins[shots.rows]
    distances = np.linalg.norm(offsets, axis=-1)
    around = np.arctan2(offsets[:, 1], offsets[:, 0])
    for target, row in enumerate(rows.order()):
        of_row = np.flatnonzero(shots.rows == row)
        of_row = of_row[np.argsort(around[of_row], kind="stable")]
        at = columns_of(around[of_row], width)
        level, up = np.cos(rows.elevations[row]), np.sin(rows.elevations[row])
        guess = [level * np.cos(azimuths), level * np.sin(azimuths), np.full(width, up)]
        directions[target] = np.stack(guess, axis=-1)
        if len(of_row):
            times[target] = np.interp(np.arange(width), at, shots.times[of_row])
        directions[target, at] = offsets[of_row] / distances[of_row, None]
        ranges[target, at] = distances[of_row]
        intensities[target, at] = shots.intensities[of_row]
        returned[target, at] = True
    origins = np.broadcast_to(rows.origins[rows.order()][:, None], (*shape, 3))
    bundle = RayBundle(mount, path, directions, times, origins=origins, beam=beam)
    return Sweep(
        lidar=bundle,
        ranges=ranges,
        returned=returned,
        intensities=intensities,
        mask=returned.copy(),
        name=name,
        sensor=sensor,
        time=time,
    )
