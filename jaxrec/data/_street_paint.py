"""Paints of the street: colour and reflectance of points, averaged over the beam that sees them.

Colours are painted on: none depends on light or shadow, so a thing that moves keeps its looks and
changes no other's.
"""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from ._street_patterns import Touch, Waves, band, face, pulses


class Look(NamedTuple):
    """What a surface looks like to a camera, and to a lidar.

    Attributes:
        colors: In [0, 1].
        reflectances: Share of a lidar's light that a surface across its beam scatters back, in
            [0, 1]; 0 for glass, which mirrors it away.
    """

    colors: Float32[np.ndarray, "3 n"]
    reflectances: Float32[np.ndarray, " n"]

    def over(self, color, reflectance, share: Float32[np.ndarray, " n"]) -> "Look":
        """The look with another laid over a share of the surface."""
        top = np.reshape(np.asarray(color, np.float32), (3, -1))
        return Look(
            self.colors + share * (top - self.colors),
            self.reflectances + share * (np.asarray(reflectance, np.float32) - self.reflectances),
        )


@runtime_checkable
class Paint(Protocol):
    """How a thing is painted."""

    def look(self, touch: Touch) -> Look:
        """The mean look over each beam's trace."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Plain:
    """One colour with waves on it."""

    color: Float32[np.ndarray, "3"]
    reflectance: float
    waves: Waves

    def look(self, touch: Touch) -> Look:
        """See `Paint`."""
        return _base(self.color, self.reflectance, self.waves, touch)


@dataclasses.dataclass(frozen=True, eq=False)
class Road:
    """Asphalt along x with markings, kerbs and pavements of slabs, in the world's frame."""

    asphalt: Waves
    slabs: Waves

    def look(self, touch: Touch) -> Look:
        """See `Paint`."""
        x, y, wide_x, wide_y = touch.points[0], touch.points[1], *face(touch)[2:4]
        look = _base((0.31, 0.31, 0.33), 0.22, self.asphalt, touch)
        away = np.abs(y)
        dashes = pulses(x, wide_x, 6.0, 0.0, 3.0) * band(y, wide_y, -0.08, 0.08)
        edges = band(away, wide_y, 3.45, 3.57)
        zebra = band(x, wide_x, 14.0, 17.0) * pulses(y, wide_y, 1.0, 0.25, 0.5)
        zebra = zebra * band(away, wide_y, 0.0, 3.3)
        paint = np.maximum(np.maximum(dashes, edges), zebra)
        look = look.over((0.86, 0.86, 0.82), 0.75, paint)
        slab = 0.56 + self.slabs.at(touch)
        joints = pulses(x, wide_x, 0.8, 0.0, 0.05)
        joints = np.maximum(joints, pulses(y, wide_y, 0.8, 0.0, 0.05))
        pavement = band(away, wide_y, 5.5, 1e4)
        look = look.over(slab - 0.2 * joints, 0.35, pavement)
        return look.over((0.70, 0.69, 0.66), 0.4, band(away, wide_y, 5.35, 5.6))


@dataclasses.dataclass(frozen=True, eq=False)
class Facade:
    """A wall with courses, and windows with frames in storeys; a plain roof.

    Attributes:
        color: Of the wall.
        foot: z of the ground in the building's frame, in metres.
        spacing: From window to window, in metres.
        storey: Height of one, in metres.
        window: Width and height of the glass, in metres.
        waves: On the wall.
        panes: On the glass.
    """

    color: Float32[np.ndarray, "3"]
    foot: float
    spacing: float
    storey: float
    window: tuple[float, float]
    waves: Waves
    panes: Waves

    def look(self, touch: Touch) -> Look:
        """See `Paint`."""
        u, v, wide_u, wide_v, axis = face(touch)
        height = v - np.float32(self.foot)
        look = _base(self.color, 0.45, self.waves, touch)
        tone = np.array([0.86, 1.0, 0.6], np.float32)[axis]
        look = Look(tone * look.colors, look.reflectances)
        wall = (axis != 2).astype(np.float32)
        courses = pulses(height, wide_v, self.storey / 6, 0.0, self.storey / 12)
        look = look.over(0.8 * look.colors, 0.4, 0.5 * wall * courses)
        plinth = wall * band(height, wide_v, -1.0, 0.7)
        look = look.over((0.33, 0.31, 0.30), 0.3, plinth)
        above = wall * band(height, wide_v, 0.7, 1e4)
        wide, tall = self.window
        sill = 0.3 * self.storey
        frames, glass = (
            above
            * pulses(u, wide_u, self.spacing, -border, wide + 2 * border)
            * pulses(height, wide_v, self.storey, sill - border, tall + 2 * border)
            for border in (0.12, 0.0)
        )
        # The glass lies in the frames: what is seen of both is not a product of shares.
        inner = glass / np.maximum(frames, np.float32(1e-6))
        pane = np.array([[0.20], [0.27], [0.34]], np.float32) + self.panes.at(touch)
        return look.over(0.85 + inner * (pane - 0.85), 0.6 * (1 - inner), frames)


@dataclasses.dataclass(frozen=True, eq=False)
class Bodywork:
    """A car: x forward, wheels, glass all around, white lights ahead and red ones behind."""

    color: Float32[np.ndarray, "3"]
    half: tuple[float, float, float]
    waves: Waves

    def look(self, touch: Touch) -> Look:
        """See `Paint`."""
        u, v, wide_u, wide_v, axis = face(touch)
        long, wide, tall = self.half
        x, y, z = touch.points
        look = _base(self.color, 0.35, self.waves, touch)
        side, end, top = (axis == 1).astype(np.float32), (axis == 0), (axis == 2)
        end, top = end.astype(np.float32), top.astype(np.float32)
        roof = band(x, wide_u, -0.62 * long, 0.28 * long) * top
        look = look.over(0.8 * look.colors, 0.3, roof)
        look = look.over(0.55 * look.colors, 0.2, side * band(v, wide_v, -2.0, -0.55 * tall))
        belt = band(v, wide_v, 0.12 * tall, 0.80 * tall)
        pillars = pulses(u, wide_u, 0.45 * long, -0.62 * long, 0.38 * long)
        glass = side * belt * pillars * band(u, wide_u, -0.62 * long, 0.66 * long)
        glass = glass + end * belt * band(u, wide_u, -0.82 * wide, 0.82 * wide)
        look = look.over((0.12, 0.15, 0.18), 0.0, glass)
        low = band(v, wide_v, -0.45 * tall, -0.15 * tall)
        lights = end * low * band(np.abs(y), wide_u, 0.62 * wide, 0.92 * wide)
        ahead = (x > 0).astype(np.float32)
        look = look.over((0.95, 0.95, 0.88), 0.6, ahead * lights)
        look = look.over((0.75, 0.08, 0.07), 0.6, (1 - ahead) * lights)
        plate = end * low * band(np.abs(y), wide_u, -1.0, 0.27)
        look = look.over((0.90, 0.88, 0.75), 0.95, plate)
        hub = np.hypot(np.abs(x) - np.float32(0.6 * long), z + np.float32(tall - 0.33))
        across = np.maximum(wide_u, wide_v)
        look = look.over((0.06, 0.06, 0.07), 0.06, side * band(hub, across, -1.0, 0.34))
        return look.over((0.62, 0.63, 0.65), 0.4, side * band(hub, across, -1.0, 0.17))


@dataclasses.dataclass(frozen=True, eq=False)
class Stripes:
    """Upright stripes of two colours on the walls of a box, such as corrugated iron."""

    colors: tuple[Float32[np.ndarray, "3"], Float32[np.ndarray, "3"]]
    period: float
    reflectance: float
    waves: Waves

    def look(self, touch: Touch) -> Look:
        """See `Paint`."""
        u, _, wide_u, _, axis = face(touch)
        look = _base(self.colors[0], self.reflectance, self.waves, touch)
        share = pulses(u, wide_u, self.period, 0.0, self.period / 2) * (axis != 2)
        color = self.colors[1][:, None] + look.colors - self.colors[0][:, None]
        return look.over(color, self.reflectance, share)


@dataclasses.dataclass(frozen=True, eq=False)
class Sky:
    """What is behind everything: brighter towards the horizon, with clouds."""

    clouds: Waves

    def at(self, directions: Float32[np.ndarray, "3 n"]) -> Float32[np.ndarray, "3 n"]:
        """Colours in [0, 1] of unit directions."""
        up = np.clip(directions[2], 0, 1)
        zenith, horizon = (
            np.array([[0.42], [0.58], [0.82]], np.float32),
            np.array([[0.80], [0.86], [0.91]], np.float32),
        )
        clouds = self.clouds.colors @ np.sin(self.clouds.vectors @ directions + self.clouds.phases)
        return np.clip(horizon + np.sqrt(up) * (zenith - horizon) + clouds, 0, 1)


def _base(color, reflectance, waves: Waves, touch: Touch) -> Look:
    detail = waves.at(touch)
    # What is brighter to the eye scatters more of the lidar's light, too.
    share = np.float32(reflectance) * (1 + detail.mean(0))
    colors = np.reshape(np.asarray(color, np.float32), (3, 1)) + detail
    return Look(np.clip(colors, 0, 1), np.clip(share, 0, 1))
