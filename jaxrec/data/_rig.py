"""Poses of a log in float64 and on its own clock, and how they become a drive's trajectories."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from ..trajectory import Edge, Path, Still, Trajectory
from .drive import Track

# Positions this far from the origin, in metres, are moved: float32 tells 0.06 mm there.
_FAR = 1000.0
# What is seen once is held for this long before and after, in nanoseconds: half a turn of a
# lidar at 10 Hz.
_ONCE = 50_000_000


def rigid_of(
    rotation: Float[np.ndarray, "*batch 3 3"], translation: Float[np.ndarray, "*batch 3"]
) -> Float64[np.ndarray, "*batch 4 4"]:
    """The rigid transforms of rotations and translations."""
    matrix = np.zeros((*translation.shape[:-1], 4, 4))
    matrix[..., :3, :3], matrix[..., :3, 3], matrix[..., 3, 3] = rotation, translation, 1
    return matrix


def rigid_of_quaternion(
    wxyz: Float[np.ndarray, "*batch 4"], translation: Float[np.ndarray, "*batch 3"]
) -> Float64[np.ndarray, "*batch 4 4"]:
    """The rigid transforms of quaternions (w first, of any length but 0) and translations."""
    from scipy.spatial.transform import Rotation

    flat = np.asarray(wxyz, np.float64).reshape(-1, 4)
    rotation = Rotation.from_quat(np.roll(flat, -1, axis=-1)).as_matrix()
    return rigid_of(rotation.reshape(*wxyz.shape[:-1], 3, 3), np.asarray(translation, np.float64))


def inverse_of(b_from_a: Float64[np.ndarray, "*batch 4 4"]) -> Float64[np.ndarray, "*batch 4 4"]:
    """The inverses of rigid transforms."""
    turned = np.swapaxes(b_from_a[..., :3, :3], -1, -2)
    return rigid_of(turned, -np.einsum("...ij,...j->...i", turned, b_from_a[..., :3, 3]))


def moved(
    b_from_a: Float64[np.ndarray, "*some 4 4"], points: Float64[np.ndarray, "*batch 3"]
) -> Float64[np.ndarray, "*batch 3"]:
    """Points in frame a, in frame b; one transform for all points or one for each."""
    turned = np.einsum("...ij,...j->...i", b_from_a[..., :3, :3], points)
    return turned + b_from_a[..., :3, 3]


@dataclasses.dataclass(frozen=True, eq=False)
class Poses:
    """Where a body was, at increasing times.

    Attributes:
        times: In nanoseconds on the log's clock.
        world_from_body: Rigid poses in metres.
    """

    times: Int64[np.ndarray, " poses"]
    world_from_body: Float64[np.ndarray, "poses 4 4"]

    @classmethod
    def sorted(cls, times: Any, world_from_body: Any) -> "tuple[Poses, int]":
        """Brings poses into order, one for each time, and counts those left out."""
        times = np.asarray(times, np.int64)
        kept, first = np.unique(times, return_index=True)
        poses = np.asarray(world_from_body, np.float64)[first]
        return cls(kept, poses), len(times) - len(kept)

    def mounted(self, body_from_sensor: Float64[np.ndarray, "4 4"]) -> "Poses":
        """Where a sensor on the body was. Its own poses are interpolated, as by `Path.mounted`."""
        return Poses(self.times, self.world_from_body @ body_from_sensor)

    def at(self, times: Int64[np.ndarray, "*batch"]) -> Float64[np.ndarray, "*batch 4 4"]:
        """Poses as `Trajectory` interpolates them; beyond the ends the motion goes on."""
        from scipy.spatial.transform import Rotation

        if len(self.times) == 1:
            return np.broadcast_to(self.world_from_body[0], (*times.shape, 4, 4)).copy()
        asked = np.asarray(times, np.int64).reshape(-1)
        index = np.searchsorted(self.times, asked, side="right") - 1
        index = np.clip(index, 0, len(self.times) - 2)
        span = self.times[index + 1] - self.times[index]
        weight = (asked - self.times[index]) / span
        start, end = self.world_from_body[index], self.world_from_body[index + 1]
        first = Rotation.from_matrix(start[:, :3, :3])
        turn = (first.inv() * Rotation.from_matrix(end[:, :3, :3])).as_rotvec()
        rotation = (first * Rotation.from_rotvec(weight[:, None] * turn)).as_matrix()
        position = start[:, :3, 3] + weight[:, None] * (end[:, :3, 3] - start[:, :3, 3])
        return rigid_of(rotation, position).reshape(*times.shape, 4, 4)


@dataclasses.dataclass(frozen=True)
class Anchor:
    """What a drive's times and positions are counted from.

    Attributes:
        epoch: In nanoseconds on the log's clock.
        origin: In whole metres.
    """

    epoch: int
    origin: tuple[float, float, float]

    @classmethod
    def of(cls, poses: Poses) -> "Anchor":
        """The first pose's time, and a place near the poses if they are far from the origin."""
        positions = poses.world_from_body[:, :3, 3]
        x, y, z = np.round(np.median(positions, axis=0)).tolist()
        far = np.abs(positions).max() > _FAR
        return cls(int(poses.times[0]), (x, y, z) if far else (0.0, 0.0, 0.0))

    def message(self) -> list[str]:
        """What to tell about the origin, if it is not that of the log."""
        if not any(self.origin):
            return []
        place = ", ".join(f"{value:.0f}" for value in self.origin)
        return [f"the log is far from its origin: ({place}) is subtracted from all positions"]

    def seconds(self, times: Any) -> np.ndarray:
        """Seconds since the epoch of int64 nanoseconds."""
        return np.asarray((np.asarray(times, np.int64) - self.epoch) / 1e9)

    def local(
        self, world_from_body: Float64[np.ndarray, "*batch 4 4"]
    ) -> Float64[np.ndarray, "*batch 4 4"]:
        """Poses counted from the origin."""
        local = np.array(world_from_body)
        local[..., :3, 3] -= self.origin
        return local

    def path(self, poses: Poses, edge: Edge = "nan") -> Path:
        """The path of a body, counted from the epoch and the origin."""
        local = self.local(poses.world_from_body)
        if len(local) == 1:
            return Still(local[0])
        return Trajectory(local, poses.times, epoch=self.epoch, edge=edge)


@dataclasses.dataclass(frozen=True, eq=False)
class Sighting:
    """A box at one time, as a log tells it.

    Attributes:
        id: Of what is in it.
        label: In the log's words.
        size: Length, width and height in metres.
        time: In nanoseconds on the log's clock.
        world_from_box: From the middle of the box, x forward and z up.
    """

    id: str
    label: str
    size: Sequence[float]
    time: int
    world_from_box: Float64[np.ndarray, "4 4"]


def tracks_of(sightings: Iterable[Sighting], anchor: Anchor) -> tuple[list[Track], list[str]]:
    """Joins what was seen of each box into its path.

    Args:
        sightings: In any order.
        anchor: What the paths are counted from.

    Returns:
        The tracks in the order in which they begin, and what there is to say about them.
    """
    seen: dict[str, list[Sighting]] = {}
    for sighting in sightings:
        seen.setdefault(sighting.id, []).append(sighting)
    tracks, once, resized, twice = [], [], [], 0
    for id, found in seen.items():
        times = [sighting.time for sighting in found]
        poses, left_out = Poses.sorted(times, [sighting.world_from_box for sighting in found])
        twice += left_out
        if len(poses.times) == 1:
            once.append(id)
            around = poses.times[0] + np.array([-_ONCE, _ONCE])
            poses = Poses(around, np.repeat(poses.world_from_body, 2, axis=0))
        sizes = np.array([sighting.size for sighting in found], np.float64)
        if np.ptp(sizes, axis=0).max() > 0.05:
            resized.append(id)
        start = int(poses.times[0])
        label = found[0].label
        tracks.append((start, Track(id, label, np.median(sizes, axis=0), anchor.path(poses))))
    messages = []
    if once:
        messages.append(
            f"{len(once)} of {len(tracks)} tracks are seen once: they stand still for "
            f"{2 * _ONCE / 1e9:g} s around it"
        )
    if resized:
        messages.append(
            f"{len(resized)} of {len(tracks)} tracks change their size by more than 5 cm: the "
            "median is taken"
        )
    if twice:
        messages.append(f"{twice} boxes are not used, as their tracks have two at one time")
    return [track for _, track in sorted(tracks, key=lambda entry: entry[0])], messages
