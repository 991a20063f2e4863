"""What stands and drives on the street, in metres: x along it, y to the left, z up.

The road runs along y = 0 between kerbs at |y| = 5.4; traffic keeps to the right. Facades stand
8 m to 11 m from the middle, further ones beyond a side street on the left (x = 22 to 30) and a
yard on the right (x = 10 to 19), and one across each end.
"""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
from jaxtyping import Float64

from .._typing import float_array
from ..geometry import check_rigid
from ._street_caster import Scene
from ._street_paint import Bodywork, Facade, Plain, Road, Sky, Stripes
from ._street_patterns import Waves
from ._street_solids import Ball, Box, Fixed, Ground, Moving, Solid

LANE = 1.8
"""Distance of the middle of a lane from the middle of the road."""

CAR = (4.4, 1.8, 1.5)
KNOTS_PER_SECOND = 10
# Tracks reach this far beyond both ends of the drive.
MARGIN = 0.2
_BRICKS = ((0.62, 0.36, 0.27), (0.70, 0.62, 0.48), (0.52, 0.50, 0.48), (0.74, 0.70, 0.64),
           (0.58, 0.44, 0.36), (0.47, 0.53, 0.47))  # fmt: skip
_BODIES = ((0.62, 0.12, 0.12), (0.15, 0.28, 0.52), (0.72, 0.72, 0.70), (0.20, 0.21, 0.22),
           (0.68, 0.58, 0.25), (0.18, 0.40, 0.28), (0.50, 0.55, 0.60))  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Actor:
    """A car that drives.

    Attributes:
        id: Its name.
        size: Length, width and height.
        path: Of the middle of its box.
    """

    id: str
    size: Float64[np.ndarray, "3"]
    path: Moving


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """All things, the sky behind them, and which of them move."""

    still: list[Solid]
    actors: list[Actor]
    movers: list[Box]
    sky: Sky

    def scene(self, hidden: Collection[str], moved: Mapping[str, np.ndarray] | None) -> Scene:
        """All things, without the hidden cars and with the moved ones elsewhere.

        Raises:
            ValueError: If there is no such car, or a transform is not rigid.
        """
        moved = {} if moved is None else moved
        names = [actor.id for actor in self.actors]
        for argument, given in (("hidden", hidden), ("moved", moved)):
            unknown = [name for name in given if name not in names]
            if unknown:
                raise ValueError(f"{argument}: got {unknown[0]!r}; give ids of {names}")
        shifts = {name: _rigid(name, matrix) for name, matrix in moved.items()}
        solids = list(self.still)
        for actor, mover in zip(self.actors, self.movers, strict=True):
            if actor.id in shifts:
                place = dataclasses.replace(actor.path, shift=shifts[actor.id])
                mover = dataclasses.replace(mover, place=place)
            if actor.id not in hidden:
                solids.append(mover)
        return Scene(solids, self.sky)


def build(seed: int, seconds: float) -> World:
    """Builds the street.

    Args:
        seed: Of colours, patterns and the sizes of houses; roads and cars are always the same.
        seconds: How long the cars drive.
    """
    random = np.random.default_rng(seed)
    still: list[Solid] = [
        Ground(Road(Waves.random(random, 3.0, 0.3, 0.05, 10), Waves.random(random, 4.0, 0.4, 0.06)))
    ]
    still += _buildings(random) + _parked(random) + _furniture(random) + _trees(random)
    actors = _drivers(seconds)
    colors = ((0.75, 0.50, 0.12), (0.16, 0.42, 0.62), (0.66, 0.16, 0.22))
    movers = [
        Box(actor.path, actor.size / 2, _bodywork(random, color, actor.size / 2), actor=number)
        for number, (actor, color) in enumerate(zip(actors, colors, strict=True))
    ]
    sky = Sky(Waves.random(random, 1.2, 0.35, 0.04))
    return World(still, actors, movers, sky)


def body(times: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 4 4"]:
    """Poses of the rig, `world_from_body`: x forward, z up, its origin on the ground.

    It drives 30 m in 10 s, at 1.4 m/s to 4.6 m/s, swerves by 0.18 rad and 1.2 m, and sways.

    Args:
        times: In seconds from the start, increasing, from -MARGIN on.
    """
    # From the start of the margin in fixed steps: the same places, however long the drive is.
    fine = -MARGIN + np.arange(int(np.ceil(1000 * (times[-1] + MARGIN))) + 2) / 1000
    speed, yaw = 3.0 + 1.6 * np.sin(2 * np.pi * fine / 5.0), _yaw(fine)
    velocity = np.stack([speed * np.cos(yaw), speed * np.sin(yaw)])
    steps = (velocity[:, 1:] + velocity[:, :-1]) / 2 / 1000
    way = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
    x, y = (np.interp(times, fine, line) - np.interp(0.0, fine, line) for line in way)
    pitch = 0.008 * np.sin(2 * np.pi * 0.9 * times)
    roll = 0.010 * np.sin(2 * np.pi * 0.7 * times + 1.0)
    poses = np.tile(np.eye(4), (len(times), 1, 1))
    poses[:, :3, :3] = _turns(2, _yaw(times)) @ _turns(1, pitch) @ _turns(0, roll)
    poses[:, 0, 3], poses[:, 1, 3] = x, y - LANE - 0.4
    return poses


def _turns(axis: int, angles: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 3 3"]:
    """Rotations about an axis."""
    turns = np.tile(np.eye(3), (len(angles), 1, 1))
    i, j = (axis + 1) % 3, (axis + 2) % 3
    turns[:, i, i] = turns[:, j, j] = np.cos(angles)
    turns[:, j, i], turns[:, i, j] = np.sin(angles), -np.sin(angles)
    return turns


def _yaw(times):
    return 0.18 * np.sin(2 * np.pi * times / 4.0)


def _drivers(seconds: float) -> list[Actor]:
    count = int(np.ceil((seconds + 2 * MARGIN) * KNOTS_PER_SECOND - 1e-9)) + 1
    times = -MARGIN + np.arange(count) / KNOTS_PER_SECOND
    size = np.array(CAR)
    tall = size[2] / 2

    def path(x, y, yaw):
        positions = np.stack(np.broadcast_arrays(x, y, np.full(count, tall)), axis=1)
        return Moving(times, positions, np.broadcast_to(yaw, (count,)).astype(np.float64))

    # It brakes and speeds up: 10 m ahead of the rig's start, 33 m further on after 10 s.
    ahead = path(10.0 + 3.4 * times + 1.2 * np.sin(2 * np.pi * times / 6.0), -LANE, 0.0)
    oncoming = path(38.0 - 5.0 * times, LANE, np.pi)
    # Out of the side street, to the right around a quarter of a circle, and away to the left.
    straight, radius = 10.2, 5.0
    way = np.maximum(3.0 * times, -1.0)
    turned = np.clip((way - straight) / radius, 0, np.pi / 2)
    rest = np.maximum(way - straight - radius * np.pi / 2, 0)
    y = LANE + radius * (1 - np.sin(turned)) + straight - np.minimum(way, straight)
    x = 26.0 - radius * (1 - np.cos(turned)) - rest
    turning = path(x, y, -np.pi / 2 - turned)
    names = ("car-ahead", "car-oncoming", "car-turning")
    return [
        Actor(name, size, found)
        for name, found in zip(names, (ahead, oncoming, turning), strict=True)
    ]


def _buildings(random) -> list[Solid]:
    """Rows of facades on both sides, and what closes the views between and at the ends."""
    found: list[Solid] = []

    def row(start, end, side):
        x = start
        while x < end - 1e-9:
            length = min(float(random.uniform(8.0, 13.0)), end - x)
            if end - x - length < 5.0:
                length = end - x
            front = 8.0 + float(random.uniform(0.0, 3.0))
            height = float(random.uniform(6.0, 13.0))
            found.append(_building(random, x, x + length, side * front, side * (front + 9), height))
            x += length

    row(-32.0, 22.0, 1)
    row(30.0, 66.0, 1)
    row(-32.0, 10.0, -1)
    row(19.0, 66.0, -1)
    found.append(_building(random, 12.0, 42.0, 36.0, 44.0, 12.0))
    found.append(_building(random, 0.0, 30.0, -28.0, -36.0, 11.0))
    found.append(_building(random, 66.0, 74.0, -16.0, 16.0, 10.0))
    found.append(_building(random, -40.0, -32.0, -16.0, 16.0, 9.0))
    return found


def _building(random, x0, x1, y0, y1, height) -> Box:
    low, high = min(y0, y1), max(y0, y1)
    spacing, storey = float(random.uniform(2.2, 3.2)), float(random.uniform(2.8, 3.4))
    # Whole storeys, so that the roof cuts no window.
    height = storey * max(1, round(height / storey)) + 0.3
    half = np.array([(x1 - x0) / 2, (high - low) / 2, height / 2])
    center = np.array([(x0 + x1) / 2, (low + high) / 2, height / 2])
    glass = (spacing * float(random.uniform(0.4, 0.55)), storey * float(random.uniform(0.42, 0.5)))
    color = np.asarray(_BRICKS[int(random.integers(len(_BRICKS)))], np.float32)
    paint = Facade(
        color=color + random.uniform(-0.04, 0.04, 3).astype(np.float32),
        foot=-height / 2,
        spacing=spacing,
        storey=storey,
        window=glass,
        waves=Waves.random(random, 4.0, 0.25, 0.07, 10),
        panes=Waves.random(random, 3.0, 0.8, 0.05, 4),
    )
    return Box(Fixed(center), half, paint)


def _bodywork(random, color, half) -> Bodywork:
    long, wide, tall = (float(value) for value in half)
    waves = Waves.random(random, 1.6, 0.2, 0.06)
    return Bodywork(np.asarray(color, np.float32), (long, wide, tall), waves)


def _parked(random) -> list[Solid]:
    """Cars at the kerbs, not quite parallel to them."""
    found: list[Solid] = []
    for side, places in ((1, (-19.0, -9.5, -3.0, 6.0, 12.5, 36.5, 47.0)),
                         (-1, (-14.0, -6.0, 3.5, 22.5, 29.5, 41.0, 52.0))):  # fmt: skip
        for x in places:
            half = np.array(CAR) / 2 * random.uniform(0.92, 1.08, 3)
            center = np.array([x + random.uniform(-0.6, 0.6), side * 4.45, half[2]])
            yaw = float(random.uniform(-0.05, 0.05)) + (np.pi if side > 0 else 0.0)
            color = _BODIES[int(random.integers(len(_BODIES)))]
            found.append(Box(Fixed(center, yaw), half, _bodywork(random, color, half)))
    return found


def _furniture(random) -> list[Solid]:
    """Lamps, bollards, crates, a container and the fence of the yard."""
    found: list[Solid] = []

    def box(center, size, paint, density=np.inf, yaw=0.0):
        half = np.array(size) / 2
        place = Fixed(np.array(center), yaw)
        found.append(Box(place, half, paint, density))

    def plain(color, reflectance=0.4, amplitude=0.06):
        waves = Waves.random(random, 1.5, 0.2, amplitude)
        return Plain(np.asarray(color, np.float32), reflectance, waves)

    def stripes(first, second, period):
        pair = (np.asarray(first, np.float32), np.asarray(second, np.float32))
        return Stripes(pair, period, 0.5, Waves.random(random, 1.5, 0.2, 0.05))

    for number, x in enumerate(np.arange(-24.0, 62.0, 12.0)):
        side = 1 if number % 2 else -1
        box((x, side * 5.9, 2.6), (0.18, 0.18, 5.2), plain((0.24, 0.30, 0.28), 0.3))
        box((x, side * 5.2, 5.25), (0.3, 1.6, 0.12), plain((0.24, 0.30, 0.28), 0.3))
    for x in (20.0, 21.2, 31.0, 32.2):
        color = (0.80, 0.76, 0.30)
        found.append(Ball(np.array([x, 5.9, 0.42]), 0.42, plain(color, 0.6, 0.1)))
    box((44.0, 6.6, 1.3), (2.4, 1.6, 2.6), stripes((0.20, 0.42, 0.50), (0.82, 0.80, 0.72), 0.5))
    box((15.0, -13.5, 1.3), (6.0, 2.4, 2.6), stripes((0.62, 0.30, 0.16), (0.50, 0.22, 0.12), 0.4))
    box((12.2, -10.2, 0.6), (1.2, 1.2, 1.2), plain((0.58, 0.46, 0.30), 0.5, 0.12), yaw=0.4)
    box((-2.5, -6.9, 0.55), (1.3, 0.9, 1.1), plain((0.22, 0.40, 0.26), 0.4, 0.08), yaw=0.1)
    box((24.0, -6.6, 0.5), (2.0, 0.6, 1.0), plain((0.55, 0.42, 0.28), 0.5, 0.1))
    box((8.6, 6.8, 0.55), (1.4, 1.0, 1.1), plain((0.60, 0.28, 0.20), 0.4, 0.1), yaw=-0.2)
    # A mesh that stops half of what crosses it squarely, and more at a slant.
    box((14.5, -7.6, 1.0), (8.6, 0.06, 2.0), plain((0.30, 0.42, 0.36), 0.5, 0.05), density=11.5)
    for x in (10.2, 14.5, 18.8):
        box((x, -7.6, 1.05), (0.12, 0.12, 2.1), plain((0.36, 0.36, 0.34)))
    return found


def _trees(random) -> list[Solid]:
    """Trunks, and crowns that a beam may get through, at their rims above all."""
    found: list[Solid] = []
    for x, y in ((-12.0, 6.8), (0.5, 6.9), (14.5, 6.7), (34.5, 6.9), (52.0, 6.8), (-18.0, -6.8),
                 (7.0, -7.0), (16.5, -9.8), (27.0, -6.9), (38.0, -6.9), (50.0, -6.8),
                 (24.5, 20.0)):  # fmt: skip
        radius = float(random.uniform(1.1, 1.6))
        height = float(random.uniform(3.4, 4.2))
        trunk = Plain(
            np.array([0.32, 0.25, 0.19], np.float32), 0.35, Waves.random(random, 0.8, 0.15, 0.06)
        )
        half = np.array([0.15, 0.15, (height - 0.6 * radius) / 2])
        found.append(Box(Fixed(np.array([x, y, half[2]])), half, trunk))
        leaves = np.array([0.28, 0.42, 0.18]) + random.uniform(-0.05, 0.05, 3)
        crown = Plain(leaves.astype(np.float32), 0.65, Waves.random(random, 1.2, 0.18, 0.13, 12))
        found.append(Ball(np.array([x, y, height]), radius, crown, density=1.4))
    return found


def _rigid(name: str, matrix) -> Float64[np.ndarray, "4 4"]:
    argument = f"moved[{name!r}]"
    return np.asarray(check_rigid(argument, float_array(argument, matrix, (4, 4))), np.float64)
