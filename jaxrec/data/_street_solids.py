"""Balls, boxes and the ground: where they are, and where beams meet them, as closed forms.

Coordinates come first, `[3, rays]`, so that each is one run of memory.
"""

import dataclasses
import functools
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64

from ._street_paint import Paint
from ._street_patterns import dot

# Nearer than this a beam does not see: it starts on a surface.
_NEAREST = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Beams:
    """Rays with a time and a width.

    Attributes:
        origins: In metres.
        directions: Unit vectors.
        times: In seconds.
        footprint: As of `jaxrec.Rays`.
    """

    origins: Float64[np.ndarray, "3 rays"]
    directions: Float64[np.ndarray, "3 rays"]
    times: Float64[np.ndarray, " rays"]
    footprint: tuple[float, float]

    def only(self, index) -> "Beams":
        """Some of the beams."""
        return Beams(
            self.origins[:, index], self.directions[:, index], self.times[index], self.footprint
        )


@runtime_checkable
class Place(Protocol):
    """Where a thing is."""

    def into(
        self, beams: Beams
    ) -> tuple[Float64[np.ndarray, "3 rays"], Float64[np.ndarray, "3 rays"]]:
        """Origins and directions in the thing's frame; NaN when it is nowhere."""
        ...

    def within(self, start: float, end: float) -> tuple[Float64[np.ndarray, "3"], float]:
        """A point from which the thing's origin is not farther than a distance for a while."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed:
    """A place that stays: a position, and a turn about z in radians."""

    position: Float64[np.ndarray, "3"]
    yaw: float = 0.0

    def into(self, beams: Beams):
        """See `Place`."""
        moved = beams.origins - self.position[:, None]
        if self.yaw == 0:
            return moved, beams.directions
        cosine, sine = np.cos(self.yaw), np.sin(self.yaw)
        return _turned(moved, cosine, sine), _turned(beams.directions, cosine, sine)

    def within(self, start: float, end: float):
        """See `Place`."""
        return self.position, 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Moving:
    """A place on a path: between knots, positions on a line and turns at a constant rate.

    Attributes:
        times: Of the knots, in seconds; before the first and after the last it is nowhere.
        positions: In metres.
        yaws: About z in radians, not wrapped.
        shift: `world_from_path`: rigid, the identity but for what has been moved.
    """

    times: Float64[np.ndarray, " knots"]
    positions: Float64[np.ndarray, "knots 3"]
    yaws: Float64[np.ndarray, " knots"]
    shift: Float64[np.ndarray, "4 4"] = dataclasses.field(default_factory=lambda: np.eye(4))

    def into(self, beams: Beams):
        """See `Place`."""
        back = self.shift[:3, :3].T
        origins = back @ (beams.origins - self.shift[:3, 3:])
        directions = back @ beams.directions
        where = np.stack([self._at(beams.times, axis) for axis in self.positions.T])
        yaw = self._at(beams.times, self.yaws)
        cosine, sine = np.cos(yaw), np.sin(yaw)
        return _turned(origins - where, cosine, sine), _turned(directions, cosine, sine)

    def within(self, start: float, end: float):
        """See `Place`."""
        middle = (start + end) / 2
        center = np.array([np.interp(middle, self.times, axis) for axis in self.positions.T])
        moved = self.shift[:3, :3] @ center + self.shift[:3, 3]
        return moved, self._fastest * (end - start) / 2

    @functools.cached_property
    def _fastest(self) -> float:
        steps = np.linalg.norm(np.diff(self.positions, axis=0), axis=1)
        return float((steps / np.diff(self.times)).max())

    def _at(self, times, values):
        return np.interp(times, self.times, values, left=np.nan, right=np.nan)


@runtime_checkable
class Solid(Protocol):
    """A thing that beams meet from outside."""

    @property
    def paint(self) -> Paint:
        """Of its surface."""
        ...

    @property
    def density(self) -> float:
        """How much it stops: the share exp(-density c) of a beam gets through c metres of it.

        Infinite if it is neither fence nor foliage.
        """
        ...

    @property
    def actor(self) -> int:
        """Number of the track that it follows, or -1."""
        ...

    @property
    def moves(self) -> bool:
        """Whether its bounds depend on the time."""
        ...

    def bound(self, start: float, end: float) -> tuple[Float64[np.ndarray, "3"], float]:
        """A ball, by middle and radius, that holds the thing from one time to another."""
        ...

    def cross(
        self, beams: Beams
    ) -> tuple[Float64[np.ndarray, " rays"], Float64[np.ndarray, " rays"]]:
        """How far along each beam it enters and leaves; infinite where it does not enter."""
        ...

    def touch(
        self, beams: Beams, ranges: Float64[np.ndarray, " rays"]
    ) -> tuple[
        Float64[np.ndarray, "3 rays"], Float64[np.ndarray, "3 rays"], Float64[np.ndarray, "3 rays"]
    ]:
        """Points, directions and normals in its own frame where beams enter."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Ground:
    """The plane z = 0, seen from above."""

    paint: Paint
    density: float = np.inf
    actor: int = -1
    moves: bool = False

    def bound(self, start: float, end: float):
        """See `Solid`."""
        return np.zeros(3), np.inf

    def cross(self, beams: Beams):
        """See `Solid`."""
        height, fall = beams.origins[2], -beams.directions[2]
        hit = (fall > 0) & (height > 0)
        entry = np.where(hit, height / np.where(hit, fall, 1), np.inf)
        return entry, entry

    def touch(self, beams: Beams, ranges):
        """See `Solid`."""
        points = beams.origins + ranges * beams.directions
        normals = np.zeros_like(points)
        normals[2] = 1
        return points, beams.directions, normals


@dataclasses.dataclass(frozen=True, eq=False)
class Ball:
    """A ball that stays where it is."""

    center: Float64[np.ndarray, "3"]
    radius: float
    paint: Paint
    density: float = np.inf
    actor: int = -1
    moves: bool = False

    def bound(self, start: float, end: float):
        """See `Solid`."""
        return self.center, self.radius

    def cross(self, beams: Beams):
        """See `Solid`."""
        offset = self.center[:, None] - beams.origins
        along = dot(offset, beams.directions)
        aside = offset - along * beams.directions
        half = self.radius**2 - dot(aside, aside)
        hit = half > 0
        half = np.sqrt(np.where(hit, half, 0))
        hit &= along - half > _NEAREST
        return np.where(hit, along - half, np.inf), np.where(hit, along + half, np.inf)

    def touch(self, beams: Beams, ranges):
        """See `Solid`."""
        points = beams.origins + ranges * beams.directions - self.center[:, None]
        return points, beams.directions, points / self.radius


@dataclasses.dataclass(frozen=True, eq=False)
class Box:
    """A box: its place is that of its middle, its axes are those of its edges."""

    place: Place
    half: Float64[np.ndarray, "3"]
    paint: Paint
    density: float = np.inf
    actor: int = -1

    @property
    def moves(self) -> bool:
        """See `Solid`."""
        return isinstance(self.place, Moving)

    def bound(self, start: float, end: float):
        """See `Solid`."""
        center, drift = self.place.within(start, end)
        return center, float(np.linalg.norm(self.half)) + drift

    def cross(self, beams: Beams):
        """See `Solid`."""
        origins, directions = self.place.into(beams)
        entry = np.full(len(beams.times), -np.inf)
        leave = np.full(len(beams.times), np.inf)
        for origin, direction, half in zip(origins, directions, self.half, strict=True):
            inverse = 1 / np.where(direction == 0, 1e-300, direction)
            middle, reach = -origin * inverse, half * np.abs(inverse)
            np.maximum(entry, middle - reach, out=entry)
            np.minimum(leave, middle + reach, out=leave)
        # False where the box is nowhere, too.
        hit = (entry <= leave) & (entry > _NEAREST)
        return np.where(hit, entry, np.inf), np.where(hit, leave, np.inf)

    def touch(self, beams: Beams, ranges):
        """See `Solid`."""
        origins, directions = self.place.into(beams)
        points = origins + ranges * directions
        axis = (np.abs(points) - self.half[:, None]).argmax(0)
        normals = np.zeros_like(points)
        every = np.arange(points.shape[1])
        # Against the beam, not where the point is: rounding may put it beyond an edge.
        normals[axis, every] = -np.sign(directions[axis, every])
        return points, directions, normals


def _turned(vectors, cosine, sine):
    """Vectors in a frame that is turned about z."""
    x, y, z = vectors
    # z may stand for many turns.
    return np.stack([cosine * x + sine * y, cosine * y - sine * x, z + 0 * cosine])
