"""The angles of a spinning lidar, from what it has measured."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from .._typing import positive_integer


@dataclasses.dataclass(frozen=True, eq=False)
class RowFit:
    """Angles of the rows of a lidar, and how well points agree. Printed, it says so.

    Attributes:
        elevations: Of the rows in radians; NaN for rows without points.
        azimuth_offsets: Of the rows in radians, of mean 0; 0 if columns are not known.
        azimuths: Of the columns in radians, not wrapped; none if columns are not known, NaN
            for columns without points.
        heights: Where the rows' rays leave the axis, in metres; 0 if they were not fitted.
        counts: How many points each row has.
        residuals: Angle in radians between each point and the ray of its row (and column).
    """

    elevations: Float[np.ndarray, " rows"]
    azimuth_offsets: Float[np.ndarray, " rows"]
    azimuths: Float[np.ndarray, " columns"] | None
    heights: Float[np.ndarray, " rows"]
    counts: Int[np.ndarray, " rows"]
    residuals: Float[np.ndarray, " points"]

    def __str__(self) -> str:
        degrees = np.rad2deg(self.residuals)
        lowest, highest = (
            np.rad2deg(np.nanmin(self.elevations)),
            np.rad2deg(np.nanmax(self.elevations)),
        )
        empty = np.flatnonzero(self.counts == 0).tolist()
        text = (
            f"{len(self.elevations)} rows from {lowest:.3f} to {highest:.3f} degrees; residual "
            f"{np.median(degrees):.4f} degrees in the median, {np.quantile(degrees, 0.95):.4f} at "
            f"95 %, {degrees.max():.4f} at most, over {len(degrees)} points"
        )
        return text + (f"; rows without points: {empty}" if empty else "")


def fit_rows(
    points: Float[np.ndarray, "n 3"],
    rows: Int[np.ndarray, " n"],
    columns: Int[np.ndarray, " n"] | None = None,
    *,
    count: int,
) -> RowFit:
    """Fits the elevation of each row, and if columns are known the azimuths too.

    Args:
        points: In the lidar's frame at the time of each, in metres: without the motion of the
            sweep taken out, and none at the origin.
        rows: Which row, or ring, each point is from, from 0.
        columns: Which column each point is from, from 0; or none.
        count: How many rows the lidar has; rows without points are kept.

    Returns:
        Medians for the rows, so that single wrong points do no harm, with residuals.

    Raises:
        ValueError: If there are no points, one is at the origin or not finite, or a row or
            column is out of range.
    """
    points, distance = _checked(points, rows, count)
    if columns is not None and columns.min() < 0:
        raise ValueError(f"columns: got {columns.min()}; give numbers from 0")
    elevation = np.arcsin(np.clip(points[:, 2] / distance, -1, 1))
    elevations = _medians(elevation, rows, count)
    azimuth = np.arctan2(points[:, 1], points[:, 0])
    offsets, azimuths = np.zeros(count), None
    modelled = azimuth
    if columns is not None:
        offsets, azimuths = _fit_azimuths(azimuth, rows, columns, count)
        modelled = azimuths[columns] + offsets[rows]
    level = np.cos(elevations[rows])
    rays = np.stack(
        [level * np.cos(modelled), level * np.sin(modelled), np.sin(elevations[rows])], axis=-1
    )
    # By the chord: the arccosine of a number near 1 has no digits left.
    chord = np.linalg.norm(points / distance[:, None] - rays, axis=-1)
    residuals = 2 * np.arcsin(np.clip(chord / 2, 0, 1))
    counts = np.bincount(rows, minlength=count)
    return RowFit(elevations, offsets, azimuths, np.zeros(count), counts, residuals)


def fit_rows_and_heights(
    points: Float[np.ndarray, "n 3"], rows: Int[np.ndarray, " n"], *, count: int
) -> RowFit:
    """Fits the elevation of each row and the height at which its rays leave the axis.

    Lidars whose lasers sit above each other need it: of a Velodyne HDL-64E, 9 cm apart, rays
    from one point are half a degree off. Each row needs points at different distances.

    Args:
        points: As in `fit_rows`.
        rows: As in `fit_rows`.
        count: How many rows the lidar has; rows with fewer than two points have NaN angles.

    Returns:
        A robust line for each row in the plane of distance from the axis and height, with
        residuals as angles seen from where the ray leaves the axis; 0 in rows that have none.

    Raises:
        ValueError: As `fit_rows`.
    """
    points, _ = _checked(points, rows, count)
    across, up = np.hypot(points[:, 0], points[:, 1]), points[:, 2]
    elevations, heights = np.full(count, np.nan), np.zeros(count)
    residuals = np.zeros(len(points))
    for row in range(count):
        of_row = np.flatnonzero(rows == row)
        if len(of_row) < 2:
            continue
        slope, heights[row] = _robust_line(across[of_row], up[of_row])
        elevations[row] = np.arctan(slope)
        seen = np.arctan2(up[of_row] - heights[row], across[of_row])
        residuals[of_row] = np.abs(seen - elevations[row])
    counts = np.bincount(rows, minlength=count)
    return RowFit(elevations, np.zeros(count), None, heights, counts, residuals)


def _checked(points, rows, count):
    """The points in float64 and their distances."""
    count = positive_integer("count", count)
    points = np.asarray(points, np.float64)
    distance = np.linalg.norm(points, axis=-1)
    if not len(points):
        raise ValueError("points: got none; give some of each row")
    if not np.all(np.isfinite(distance) & (distance > 0)):
        bad = int(np.sum(~(np.isfinite(distance) & (distance > 0))))
        raise ValueError(f"points: got {bad} at the origin or not finite; leave them out")
    if rows.min() < 0 or rows.max() >= count:
        raise ValueError(f"rows: got {rows.min()} to {rows.max()}; give 0 to {count - 1}")
    return points, distance


def _robust_line(x, y):
    """Slope and constant of a line through points whose errors are angles seen from 0."""
    terms = np.stack([x, np.ones_like(x)], axis=-1)
    near = 1 / np.maximum(x, 1e-3)
    weight, line = np.ones_like(x), np.zeros(2)
    for _ in range(20):
        scale = near * weight
        line = np.linalg.lstsq(terms * scale[:, None], y * scale, rcond=None)[0]
        error = (y - terms @ line) * near
        # Cauchy's weights, at a width that follows what most of the points show.
        width = 2 * np.median(np.abs(error)) + 1e-9
        weight = 1 / np.sqrt(1 + (error / width) ** 2)
    return line


def _medians(values, groups, count):
    """The median of each group, NaN for empty ones."""
    order = np.lexsort((values, groups))
    values, sizes = values[order], np.bincount(groups, minlength=count)
    first = np.cumsum(sizes) - sizes
    full = sizes > 0
    low, high = first + (sizes - 1) // 2, first + sizes // 2
    found = np.full(count, np.nan)
    found[full] = (values[low[full]] + values[high[full]]) / 2
    return found


def _fit_azimuths(azimuth, rows, columns, count):
    """Offsets of rows and azimuths of columns, by turns: each the median of what is left."""
    number = int(columns.max()) + 1
    offsets, azimuths = np.zeros(count), np.zeros(number)
    # A first guess on the circle, for medians need a line to be taken on.
    phasor = np.zeros(number, complex)
    np.add.at(phasor, columns, np.exp(1j * azimuth))
    azimuths = np.angle(phasor)
    for _ in range(20):
        left = _wrapped(azimuth - azimuths[columns])
        offsets = np.nan_to_num(_medians(left, rows, count))
        offsets -= offsets[np.bincount(rows, minlength=count) > 0].mean()
        left = _wrapped(azimuth - offsets[rows] - azimuths[columns])
        azimuths = azimuths + np.nan_to_num(_medians(left, columns, number))
    azimuths = np.where(np.bincount(columns, minlength=number) > 0, azimuths, np.nan)
    full = np.isfinite(azimuths)
    azimuths[full] = np.unwrap(azimuths[full])
    return offsets, azimuths


def _wrapped(angle):
    return np.mod(angle + np.pi, 2 * np.pi) - np.pi
