"""The rings of a Velodyne HDL-64E, and when its shots were fired, from points alone.

KITTI stores the points of a turn ring by ring, each counter-clockwise from straight ahead, where
they were measured: the car's motion within the turn is still in them.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int

from ..sensors import fit_rows_and_heights
from ._shots import Rows, bands_of

# A point cloud that is not stored ring by ring turns back at random, or its "rings" have no
# elevation: those of an HDL-64E agree within 0.01 degrees.
_MOST_RINGS = 130
_WORST_RESIDUAL = np.deg2rad(0.3)
# Enough for the angles to be exact to the data's rounding.
_FITTED = 4


def ring_numbers(points: Float64[np.ndarray, "n 3"]) -> Int[np.ndarray, " n"]:
    """The ring of each point, from 0, by counting how often the azimuth starts again."""
    azimuth = np.mod(np.arctan2(points[:, 1], points[:, 0]), 2 * np.pi)
    jumps = np.diff(azimuth, prepend=azimuth[:1])
    # A beam that trembles about straight ahead jumps back as well.
    rings = np.cumsum((jumps < -np.pi).astype(np.int64) - (jumps > np.pi))
    return np.maximum(rings, 0)


def firing_times(
    points: Float64[np.ndarray, "n 3"], middle: float, period: float
) -> Float64[np.ndarray, " n"]:
    """When each point was measured, if the lidar turns clockwise, seen from above.

    Velodyne's azimuths grow clockwise. KITTI's returns to the sides of the car fit that slightly
    better than the other direction, which they hardly tell from it.

    Args:
        points: In the lidar's frame.
        middle: When it looks straight ahead, in seconds.
        period: Seconds for a turn.
    """
    return middle - period * np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi)


def find_rows(
    sweeps: Sequence[Float64[np.ndarray, "_ 3"]],
) -> tuple[list[Int[np.ndarray, " _"]], Rows, list[str]]:
    """Sorts the points of sweeps into the rows of their lidar.

    Args:
        sweeps: Points in the lidar's frame, none at the origin; at least one sweep has some.

    Returns:
        The row of each point, the rows' angles and origins, and what there is to say.
    """
    rings = [ring_numbers(points) for points in sweeps]
    counts = [int(found.max()) + 1 if len(found) else 0 for found in rings]
    usual = Counter(count for count in counts if count).most_common(1)[0][0]
    if usual > _MOST_RINGS:
        return _by_elevation(sweeps)
    whole = [at for at, count in enumerate(counts) if count == usual][:_FITTED]
    fitted = np.concatenate([sweeps[at] for at in whole])
    fit = fit_rows_and_heights(fitted, np.concatenate([rings[at] for at in whole]), count=usual)
    if np.median(fit.residuals) > _WORST_RESIDUAL:
        return _by_elevation(sweeps)
    rows = Rows.filled(fit.elevations, fit.heights)
    messages = [f"rings are recovered from the order of the points: {fit}"]
    odd = [at for at, count in enumerate(counts) if count not in (0, usual)]
    for at in odd:
        rings[at] = _matched(sweeps[at], rings[at], rows)
    if odd:
        found = sorted({counts[at] for at in odd})
        messages.append(
            f"{len(odd)} of {len(sweeps)} sweeps have {found} rings instead of {usual}: theirs "
            "are put where they fit best"
        )
    return rings, rows, messages


def _matched(points, rings, rows):
    """The row of each ring whose elevation its points agree with best."""
    target = np.zeros(int(rings.max()) + 1, np.int64)
    across = np.hypot(points[:, 0], points[:, 1])
    for ring in np.unique(rings):
        of_ring = rings == ring
        seen = np.arctan2(points[of_ring, 2, None] - rows.origins[:, 2], across[of_ring, None])
        target[ring] = np.argmin(np.median(np.abs(seen - rows.elevations), axis=0))
    return target[rings]


def _by_elevation(sweeps):
    rows = bands_of(np.concatenate(sweeps), 64)
    parts = np.split(rows.of, np.cumsum([len(points) for points in sweeps])[:-1])
    told = "the points are not stored ring by ring: 64 rows are made by elevation"
    return parts, rows.rows, [told]
