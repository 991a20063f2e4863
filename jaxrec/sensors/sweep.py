"""A sweep: what one lidar measured in one turn, or in one exposure."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float32

from ._arrays import check_array
from .lidar import RayBundle, SpinningLidar


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """The returns of a lidar and the rays that brought them. It lives on the host, in NumPy.

    Rays without a return are data: they say how far the beam met nothing.

    Attributes:
        lidar: The rays, a grid of rows and columns.
        ranges: Metres from a ray's origin to its first return; 0 where there is none.
        returned: True where a return came back.
        intensities: Of first returns in [0, 1], 0 where there is none; or none at all.
        second_ranges: Metres to the next surface behind the first, 0 where there is no second
            return; or none at all.
        mask: True where the ray was fired and may be used, or none to use all. Grids of logs
            have holes.
        name: What to call it: a file's name, for one.
        sensor: The lidar's name in its rig.
        time: Of the middle of the sweep, in seconds since the epoch of the lidar's trajectory.

    Raises:
        ValueError: If an array has the wrong dtype or shape, or a range is negative or not
            finite.
    """

    lidar: SpinningLidar | RayBundle
    ranges: Float32[np.ndarray, "rows columns"]
    returned: Bool[np.ndarray, "rows columns"]
    intensities: Float32[np.ndarray, "rows columns"] | None = None
    second_ranges: Float32[np.ndarray, "rows columns"] | None = None
    mask: Bool[np.ndarray, "rows columns"] | None = None
    name: str = ""
    sensor: str = ""
    time: float = 0.0

    def __post_init__(self):
        for field, dtype in _FIELDS.items():
            array = getattr(self, field)
            if array is not None:
                self._check(field, array, dtype)

    def fired(self) -> Bool[np.ndarray, "rows columns"]:
        """Which rays may be used and have a direction; others are holes of the grid."""
        directions = np.asarray(self.lidar.rays().directions)
        exists = np.asarray(np.isfinite(directions).all(axis=-1))
        return exists if self.mask is None else exists & self.mask

    def points(self) -> tuple[Float32[np.ndarray, "n 3"], Float32[np.ndarray, " n"]]:
        """Where first returns came from, with the motion of the sweep taken out.

        Returns:
            World coordinates in metres, and when each was measured in seconds since the epoch, of
            the rays that may be used and have a direction, in rows.
        """
        rays = self.lidar.rays()
        assert rays.times is not None
        origins, directions, times = map(np.asarray, (rays.origins, rays.directions, rays.times))
        used = self.returned & self.fired()
        points = origins[used] + self.ranges[used][:, None] * directions[used]
        return points.astype(np.float32), times[used].astype(np.float32)

    def _grid(self) -> tuple[int, ...]:
        if isinstance(self.lidar, SpinningLidar):
            return (self.lidar.elevations.shape[0], self.lidar.azimuths.shape[0])
        return self.lidar.directions.shape[:-1]

    def _check(self, field: str, array, dtype) -> None:
        where = f"sweep {self.name!r}: {field}"
        check_array(where, array, dtype, self._grid(), "the lidar's rows and columns")
        sound = np.isfinite(array) & (array >= 0)
        if not np.all(sound):
            at = np.argwhere(~sound)[0]
            raise ValueError(
                f"{where}: got {array[tuple(at)]} in row {at[0]}, column {at[1]}; give finite "
                "values from 0, and 0 where there is no return"
            )


_FIELDS = {
    "ranges": np.float32,
    "returned": np.bool_,
    "intensities": np.float32,
    "second_ranges": np.float32,
    "mask": np.bool_,
}
