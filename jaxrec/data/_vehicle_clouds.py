"""Point clouds whose rings, times and misses are unknown, as the DGP has them."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Float64

from ..sensors import Sweep
from ..trajectory import Path
from ._log_files import points_message
from ._shots import Shots, away, bands_of, grid_width, sweep_of

# As many rows as give 50 000 points a grid about 800 columns wide.
_BANDS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Cloud:
    """Points at one time.

    Attributes:
        name: Of the sweep.
        points: In the vehicle's frame, or the lidar's, in metres.
        intensities: In [0, 1].
        time: In seconds since the drive's epoch.
    """

    name: str
    points: Float[np.ndarray, "n 3"]
    intensities: Float[np.ndarray, " n"]
    time: float


def middle_of(mounts: Mapping[str, Float64[np.ndarray, "4 4"]]) -> tuple[float, float, float]:
    """The middle of where the cameras sit, from where they and the points look alike."""
    if not mounts:
        return 0.0, 0.0, 0.0
    x, y, z = np.median([mount[:3, 3] for mount in mounts.values()], axis=0).tolist()
    return x, y, z


def vehicle_sweeps(
    clouds: Sequence[Cloud],
    origin: tuple[float, float, float],
    path: Path,
    sensor: str,
    mount: Float64[np.ndarray, "4 4"] | None = None,
) -> tuple[list[Sweep], list[str]]:
    """Makes sweeps of point clouds whose rays are not known.

    Args:
        clouds: Of one lidar.
        origin: Where in the points' frame to let the rays start.
        path: Of the vehicle.
        sensor: What the lidar is called.
        mount: `vehicle_from_points`; none if they are in the vehicle's frame.

    Returns:
        The sweeps in the order of time, and what there is to say about them.
    """
    if not clouds:
        return [], []
    kept = [away(cloud.points, origin) for cloud in clouds]
    bands = [
        bands_of(cloud.points[some].astype(np.float64), _BANDS, origin)
        for cloud, some in zip(clouds, kept, strict=True)
    ]
    shots = [
        Shots(
            cloud.points[some].astype(np.float64),
            of,
            np.full(int(some.sum()), cloud.time),
            np.clip(cloud.intensities[some], 0, 1).astype(np.float32),
        )
        for cloud, some, (of, _) in zip(clouds, kept, bands, strict=True)
    ]
    width = grid_width(shots, _BANDS)
    sweeps = [
        sweep_of(
            each,
            band.rows,
            width,
            mount=np.eye(4) if mount is None else mount,
            path=path,
            name=cloud.name,
            sensor=sensor,
            time=cloud.time,
        )
        for each, band, cloud in zip(shots, bands, clouds, strict=True)
    ]
    place = ", ".join(f"{value:.2f}" for value in origin)
    total = sum(len(some) for some in kept)
    lost = total - sum(int(some.sum()) for some in kept)
    start = f"points of {sensor} are all taken at the time of their sweep"
    if any(origin):
        start = (
            f"points of {sensor} are in the vehicle's frame: their rays are taken to start at "
            f"({place}) in it, in the middle of the cameras, all at the time of the sweep"
        )
    messages = [
        start,
        f"rings of {sensor} are not stored: {_BANDS} rows are made by elevation, and shots "
        "without a return are masked",
        *points_message(sensor, lost, total),
    ]
    return sorted(sweeps, key=lambda sweep: sweep.time), messages


def apart_message(apart: float) -> list[str]:
    """What to say of cameras whose poses are not those of the vehicle's path."""
    if apart < 0.01:
        return []
    return [
        f"cameras stand where the file says, up to {apart:.2f} m from where the vehicle's path "
        "and their mounts put them"
    ]
