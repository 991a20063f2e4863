"""Lidar sweeps as NVIDIA NCore stores them: lists of rays, and the grid that they are from."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int, Int64

from ..sensors import RayBundle, SpinningLidar, Sweep
from ..trajectory import Path
from ._document import Fields
from ._log_files import need, numbers
from ._rig import Anchor
from ._shots import bands_of, columns_of
from ._zarr import Group

# Rays whose model is off by more are taken as they are stored.
_ANGLE, _SECONDS = 1e-3, 1e-4
_BANDS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The model of a spinning lidar.

    Attributes:
        elevations: Of the rows, in radians.
        azimuths: Of the columns, in radians, not wrapped.
        offsets: Azimuths added in each row.
    """

    elevations: Float64[np.ndarray, " rows"]
    azimuths: Float64[np.ndarray, " columns"]
    offsets: Float64[np.ndarray, " rows"]

    def directions(
        self, rows: Int[np.ndarray, "*n"], columns: Int[np.ndarray, "*n"]
    ) -> Float64[np.ndarray, "*n 3"]:
        """Unit vectors in the lidar's frame."""
        azimuth = self.azimuths[columns] + self.offsets[rows]
        level, up = np.cos(self.elevations[rows]), np.sin(self.elevations[rows])
        return np.stack([level * np.cos(azimuth), level * np.sin(azimuth), up], axis=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class RayList:
    """The rays of one sweep.

    Attributes:
        directions: In the lidar's frame.
        times: In nanoseconds on the log's clock.
        elements: Row and column of each, or none.
        distances: To the first and, if there are any, to the second returns; NaN for none.
        intensities: Of first returns; NaN for none.
    """

    directions: Float64[np.ndarray, "n 3"]
    times: Int64[np.ndarray, " n"]
    elements: Int[np.ndarray, "n 2"] | None
    distances: Float64[np.ndarray, "n 2"]
    intensities: Float64[np.ndarray, " n"]


def decode_lidar(fields: Fields) -> Grid:
    """Reads the model of a lidar.

    Raises:
        CaptureError: A field is missing, or the model is not known.
    """
    kind = need(fields, "lidar_model_type", fields.text("lidar_model_type"), "the model's name")
    values = fields.values.get("lidar_model_parameters")
    if kind != "row-offset-spinning" or not isinstance(values, dict):
        raise fields.error("lidar_model_type", f"found {kind!r}", "wanted row-offset-spinning")
    stored = Fields(fields.file, fields.name("lidar_model_parameters"), values)
    rows, columns = (
        int(need(stored, key, stored.positive(key, "a number"), "a number"))
        for key in ("n_rows", "n_columns")
    )
    spin = stored.text("spinning_direction")
    if spin not in ("cw", "ccw"):
        raise stored.error("spinning_direction", f"found {spin!r}", "wanted cw or ccw")
    azimuths = numbers(stored, "column_azimuths_rad", columns, "azimuths in radians")
    # Stored wrapped or not; each column is less than a turn beyond the one before.
    steps = np.mod(np.diff(azimuths) * (1 if spin == "ccw" else -1), 2 * np.pi)
    turned = np.concatenate([[0.0], np.cumsum(steps)]) * (1 if spin == "ccw" else -1)
    return Grid(
        numbers(stored, "row_elevations_rad", rows, "elevations in radians"),
        azimuths[0] + turned,
        numbers(stored, "row_azimuth_offsets_rad", rows, "azimuths in radians"),
    )


def read_rays(frame: Group) -> tuple[RayList, int]:
    """Reads the rays of one sweep, and how many returns beyond the second it has.

    Raises:
        CaptureError: An array is missing or damaged.
    """
    bundle, returns = frame.group("ray_bundle"), frame.group("ray_bundle_returns")
    directions = bundle.array("direction").astype(np.float64)
    times = bundle.array("timestamp_us").astype(np.int64) * 1000
    elements = None
    if bundle.has("model_element"):
        elements = bundle.array("model_element").astype(np.int64)
    distances = returns.array("distance_m").astype(np.float64)
    intensities = returns.array("intensity").astype(np.float64)
    count = len(directions)
    sizes = [directions.shape, times.shape, distances.shape[1:], intensities.shape]
    if elements is not None:
        sizes.append(elements.shape)
    wanted = [(count, 3), (count,), (count,), distances.shape, (count, 2)]
    if sizes != wanted[: len(sizes)]:
        found = f"arrays of the shapes {', '.join(map(str, sizes))}"
        raise frame.error("ray_bundle", found, "wanted one entry for each ray")
    valid = np.isfinite(distances) & (distances > 0)
    packed = "ray_bundle_returns_valid_mask_packed"
    if frame.has(packed):
        bits = np.unpackbits(frame.array(packed), count=distances.size)
        valid &= bits.astype(np.bool_).reshape(distances.shape)
    distances = np.where(valid, distances, np.inf)
    # In the order in which the beam meets them, whatever the sensor's own is.
    order = np.argsort(distances, axis=0, kind="stable")
    distances = np.take_along_axis(distances, order, axis=0)
    intensities = np.take_along_axis(intensities, order, axis=0)
    beyond = int(np.sum(np.isfinite(distances[2:])))
    two = np.full((len(directions), 2), np.nan)
    count = min(len(distances), 2)
    two[:, :count] = np.where(np.isfinite(distances), distances, np.nan)[:2].T
    first = np.full(len(directions), np.nan) if not count else intensities[0]
    lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
    directions = directions / np.where(lengths > 0, lengths, 1)
    return RayList(directions, times, elements, two, first), beyond


def agreement(grid: Grid, rays: RayList, start: int, end: int) -> tuple[float, float, int]:
    """How far stored rays are from the model's.

    Returns:
        The largest angle in radians, the largest difference of times in seconds, and how many
        rays have the place of another.
    """
    assert rays.elements is not None
    if not len(rays.elements):
        return 0.0, 0.0, 0
    rows, columns = rays.elements.T
    apart = np.linalg.norm(grid.directions(rows, columns) - rays.directions, axis=-1)
    modelled = start + (end - start) * columns / max(len(grid.azimuths) - 1, 1)
    late = np.abs(rays.times - modelled).max() / 1e9
    places = rows * len(grid.azimuths) + columns
    return float(apart.max()), float(late), len(places) - len(np.unique(places))


def is_spun(angle: float, seconds: float, shared: int) -> bool:
    """Whether rays are those of the model, as far as anything can tell."""
    return angle <= _ANGLE and seconds <= _SECONDS and not shared


def sweep_from(
    rays: RayList,
    grid: Grid | None,
    spun: bool,
    *,
    mount: Float64[np.ndarray, "4 4"],
    path: Path,
    anchor: Anchor,
    start: int,
    end: int,
    name: str,
    sensor: str,
) -> Sweep:
    """Puts rays into the grid of their lidar, or into one made for them.

    Args:
        rays: The sweep's.
        grid: The lidar's model, or none.
        spun: Whether the model's rays are the sweep's; else those stored are kept.
        mount: `body_from_lidar`.
        path: Of the body.
        anchor: What times are counted from.
        start: Of the sweep, in nanoseconds on the log's clock.
        end: Of the sweep.
        name: Of the sweep.
        sensor: Name of the lidar.
    """
    if grid is None or rays.elements is None:
        rows, columns, shape = _made_up(rays)
    else:
        shape = (len(grid.elevations), len(grid.azimuths))
        rows, columns, shape = _places(rays.elements, shape)
    returned = np.isfinite(rays.distances)
    lidar: SpinningLidar | RayBundle
    begin, finish = anchor.seconds([start, end]).tolist()
    if spun and grid is not None:
        lidar = SpinningLidar(
            mount,
            path,
            grid.elevations,
            grid.azimuths,
            azimuth_offsets=grid.offsets,
            start=begin,
            end=finish,
        )
    else:
        directions, times = _guesses(grid, shape, begin, finish)
        directions[rows, columns] = rays.directions
        times[rows, columns] = anchor.seconds(rays.times)
        lidar = RayBundle(mount, path, directions, times)
    second = None
    if returned[:, 1].any():
        second = _spread(shape, rows, columns, np.nan_to_num(rays.distances[:, 1]))
    mask = np.zeros(shape, np.bool_)
    mask[rows, columns] = True
    hit = np.zeros(shape, np.bool_)
    hit[rows, columns] = returned[:, 0]
    bright = np.where(returned[:, 0], np.clip(np.nan_to_num(rays.intensities), 0, 1), 0)
    return Sweep(
        lidar=lidar,
        ranges=_spread(shape, rows, columns, np.nan_to_num(rays.distances[:, 0])),
        returned=hit,
        intensities=_spread(shape, rows, columns, bright),
        second_ranges=second,
        mask=mask,
        name=name,
        sensor=sensor,
        time=(begin + finish) / 2,
    )


def _spread(shape, rows, columns, values) -> Float32[np.ndarray, "rows columns"]:
    grid = np.zeros(shape, np.float32)
    grid[rows, columns] = values
    return grid


def _made_up(rays: RayList):
    """Rows by elevation and columns by azimuth, for rays without a grid."""
    bands = bands_of(rays.directions, _BANDS)
    most = int(np.bincount(bands.of, minlength=_BANDS).max()) if len(bands.of) else 0
    width = max(-(-most // 32) * 32, 32)
    columns = np.zeros(len(bands.of), np.int64)
    azimuth = np.arctan2(rays.directions[:, 1], rays.directions[:, 0])
    for row in range(_BANDS):
        of_row = np.flatnonzero(bands.of == row)
        of_row = of_row[np.argsort(azimuth[of_row], kind="stable")]
        columns[of_row] = columns_of(azimuth[of_row], width)
    return bands.of, columns, (_BANDS, width)


def _places(elements: Int[np.ndarray, "n 2"], shape: tuple[int, int]):
    """The elements, where those that share one are moved on in their row.

    A row that overflows makes the grid wider.
    """
    rows, columns = elements[:, 0].copy(), elements[:, 1].copy()
    places = rows * shape[1] + columns
    _, first = np.unique(places, return_index=True)
    again = np.ones(len(places), np.bool_)
    again[first] = False
    if not again.any():
        return rows, columns, shape
    most = int(np.bincount(rows).max())
    width = max(shape[1], most)
    taken = np.zeros((shape[0], width), np.bool_)
    taken[rows[~again], columns[~again]] = True
    for at in np.flatnonzero(again):
        free = np.flatnonzero(~taken[rows[at]])
        columns[at] = free[np.argmin(np.abs(free - columns[at]))]
        taken[rows[at], columns[at]] = True
    return rows, columns, (shape[0], width)


def _guesses(grid: Grid | None, shape: tuple[int, int], start: float, end: float):
    """Rays for places without one."""
    rows, columns = np.indices(shape)
    times = start + (end - start) * columns / max(shape[1] - 1, 1)
    if grid is not None:
        return grid.directions(rows, np.minimum(columns, len(grid.azimuths) - 1)), times
    azimuth = (columns + 0.5) / shape[1] * 2 * np.pi - np.pi
    level = [np.cos(azimuth), np.sin(azimuth), np.zeros(shape)]
    return np.stack(level, axis=-1), times


def encode_grid(lidar: SpinningLidar) -> dict[str, Any]:
    """The model of a spinning lidar as NCore stores it, rows from the highest to the lowest."""
    elevations = np.asarray(lidar.elevations, np.float64)
    order = np.argsort(-elevations, kind="stable")
    azimuths = np.asarray(lidar.azimuths, np.float64)
    turn = float(lidar.end - lidar.start)
    return {
        "lidar_model_type": "row-offset-spinning",
        "lidar_model_parameters": {
            "spinning_frequency_hz": round(1 / turn, 3) if turn > 0 else 10.0,
            "spinning_direction": "ccw" if len(azimuths) < 2 or azimuths[1] > azimuths[0] else "cw",
            "n_rows": len(elevations),
            "n_columns": len(azimuths),
            "row_elevations_rad": elevations[order].tolist(),
            "column_azimuths_rad": azimuths.tolist(),
            "row_azimuth_offsets_rad": np.asarray(lidar.azimuth_offsets, np.float64)[
                order
            ].tolist(),
        },
    }
