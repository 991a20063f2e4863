"""Paints of the street: colour and reflectance of points, averaged over the beam that sees them.

Patterns are sums of waves and pulses, whose averages over a beam have closed forms: a pattern
finer than a pixel fades to its mean and does not alias. Colours are painted on: none depends on
light or shadow, so a thing that moves keeps its looks and changes no other's.
"""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64


@dataclasses.dataclass(frozen=True, eq=False)
class Touch:
    """Where beams touch a surface, in the frame of the thing.

    Attributes:
        points: In metres.
        directions: Unit vectors along the beams.
        normals: Unit vectors, outward.
        slants: Products of normals and directions: negative.
        widths: Of the beams, across, in metres.
    """

    points: Float32[np.ndarray, "3 n"]
    directions: Float32[np.ndarray, "3 n"]
    normals: Float32[np.ndarray, "3 n"]
    slants: Float32[np.ndarray, " n"]
    widths: Float32[np.ndarray, " n"]


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
class Waves:
    """A sum of plane waves in space, seen on surfaces: detail of known sizes.

    Attributes:
        vectors: Wave vectors in radians per metre.
        phases: In radians.
        colors: Amplitudes.
    """

    vectors: Float32[np.ndarray, "waves 3"]
    phases: Float32[np.ndarray, "waves 1"]
    colors: Float32[np.ndarray, "3 waves"]

    @classmethod
    def random(
        cls,
        random: np.random.Generator,
        longest: float,
        shortest: float,
        amplitude: float,
        count: int = 8,
    ) -> "Waves":
        """Waves in all directions, from the longest to the shortest, which are the faintest."""
        directions = random.normal(size=(count, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        lengths = np.geomspace(longest, shortest, count)
        strengths = (lengths / longest) ** 0.35
        strengths *= amplitude / np.sqrt((strengths**2).sum())
        tints = random.uniform(0.6, 1.0, (3, count))
        return cls(
            (2 * np.pi / lengths[:, None] * directions).astype(np.float32),
            random.uniform(0, 2 * np.pi, (count, 1)).astype(np.float32),
            (np.sqrt(2) * strengths * tints).astype(np.float32),
        )

    def at(self, touch: Touch) -> Float32[np.ndarray, "3 n"]:
        """The mean of the waves over each beam's trace.

        A shift s of the ray across the beam moves its foot by s - d (n.s) / (n.d), and the phase
        of a wave k by s.(k - n (k.d) / (n.d)). The mean over a square beam of width w, whose
        variance is w^2 / 12 each way, fades the wave as a Gaussian of that variance does.
        """
        out = self.vectors @ touch.normals
        tangent = self.vectors @ touch.directions - out * touch.slants
        squared = (self.vectors**2).sum(1)[:, None] - out * out + (tangent / touch.slants) ** 2
        fade = np.exp(squared * (touch.widths * touch.widths / np.float32(-24)))
        return self.colors @ (fade * np.sin(self.vectors @ touch.points + self.phases))


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
        x, y, wide_x, wide_y = touch.points[0], touch.points[1], *_face(touch)[2:4]
        look = _base((0.31, 0.31, 0.33), 0.22, self.asphalt, touch)
        away = np.abs(y)
        dashes = _pulses(x, wide_x, 6.0, 0.0, 3.0) * _band(y, wide_y, -0.08, 0.08)
        edges = _band(away, wide_y, 3.45, 3.57)
        zebra = _band(x, wide_x, 14.0, 17.0) * _pulses(y, wide_y, 1.0, 0.25, 0.5)
        zebra = zebra * _band(away, wide_y, 0.0, 3.3)
        paint = np.maximum(np.maximum(dashes, edges), zebra)
        look = look.over((0.86, 0.86, 0.82), 0.75, paint)
        slab = 0.56 + self.slabs.at(touch)
        joints = _pulses(x, wide_x, 0.8, 0.0, 0.05)
        joints = np.maximum(joints, _pulses(y, wide_y, 0.8, 0.0, 0.05))
        pavement = _band(away, wide_y, 5.5, 1e4)
        look = look.over(slab - 0.2 * joints, 0.35, pavement)
        return look.over((0.70, 0.69, 0.66), 0.4, _band(away, wide_y, 5.35, 5.6))


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
        u, v, wide_u, wide_v, axis = _face(touch)
        height = v - np.float32(self.foot)
        look = _base(self.color, 0.45, self.waves, touch)
        tone = np.array([0.86, 1.0, 0.6], np.float32)[axis]
        look = Look(tone * look.colors, look.reflectances)
        wall = (axis != 2).astype(np.float32)
        courses = _pulses(height, wide_v, self.storey / 6, 0.0, self.storey / 12)
        look = look.over(0.8 * look.colors, 0.4, 0.5 * wall * courses)
        plinth = wall * _band(height, wide_v, -1.0, 0.7)
        look = look.over((0.33, 0.31, 0.30), 0.3, plinth)
        above = wall * _band(height, wide_v, 0.7, 1e4)
        wide, tall = self.window
        sill = 0.3 * self.storey
        frames, glass = (
            above
            * _pulses(u, wide_u, self.spacing, -border, wide + 2 * border)
            * _pulses(height, wide_v, self.storey, sill - border, tall + 2 * border)
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
        u, v, wide_u, wide_v, axis = _face(touch)
        long, wide, tall = self.half
        x, y, z = touch.points
        look = _base(self.color, 0.35, self.waves, touch)
        side, end, top = (axis == 1).astype(np.float32), (axis == 0), (axis == 2)
        end, top = end.astype(np.float32), top.astype(np.float32)
        roof = _band(x, wide_u, -0.62 * long, 0.28 * long) * top
        look = look.over(0.8 * look.colors, 0.3, roof)
        look = look.over(0.55 * look.colors, 0.2, side * _band(v, wide_v, -2.0, -0.55 * tall))
        belt = _band(v, wide_v, 0.12 * tall, 0.80 * tall)
        pillars = _pulses(u, wide_u, 0.45 * long, -0.62 * long, 0.38 * long)
        glass = side * belt * pillars * _band(u, wide_u, -0.62 * long, 0.66 * long)
        glass = glass + end * belt * _band(u, wide_u, -0.82 * wide, 0.82 * wide)
        look = look.over((0.12, 0.15, 0.18), 0.0, glass)
        low = _band(v, wide_v, -0.45 * tall, -0.15 * tall)
        lights = end * low * _band(np.abs(y), wide_u, 0.62 * wide, 0.92 * wide)
        ahead = (x > 0).astype(np.float32)
        look = look.over((0.95, 0.95, 0.88), 0.6, ahead * lights)
        look = look.over((0.75, 0.08, 0.07), 0.6, (1 - ahead) * lights)
        plate = end * low * _band(np.abs(y), wide_u, -1.0, 0.27)
        look = look.over((0.90, 0.88, 0.75), 0.95, plate)
        hub = np.hypot(np.abs(x) - np.float32(0.6 * long), z + np.float32(tall - 0.33))
        across = np.maximum(wide_u, wide_v)
        look = look.over((0.06, 0.06, 0.07), 0.06, side * _band(hub, across, -1.0, 0.34))
        return look.over((0.62, 0.63, 0.65), 0.4, side * _band(hub, across, -1.0, 0.17))


@dataclasses.dataclass(frozen=True, eq=False)
class Stripes:
    """Upright stripes of two colours on the walls of a box, such as corrugated iron."""

    colors: tuple[Float32[np.ndarray, "3"], Float32[np.ndarray, "3"]]
    period: float
    reflectance: float
    waves: Waves

    def look(self, touch: Touch) -> Look:
        """See `Paint`."""
        u, _, wide_u, _, axis = _face(touch)
        look = _base(self.colors[0], self.reflectance, self.waves, touch)
        share = _pulses(u, wide_u, self.period, 0.0, self.period / 2) * (axis != 2)
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


def dot(first, second):
    """Products of vectors along the first axis."""
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


def _base(color, reflectance, waves: Waves, touch: Touch) -> Look:
    detail = waves.at(touch)
    # What is brighter to the eye scatters more of the lidar's light, too.
    share = np.float32(reflectance) * (1 + detail.mean(0))
    colors = np.reshape(np.asarray(color, np.float32), (3, 1)) + detail
    return Look(np.clip(colors, 0, 1), np.clip(share, 0, 1))


def _face(
    touch: Touch,
) -> tuple[
    Float32[np.ndarray, " n"],
    Float32[np.ndarray, " n"],
    Float32[np.ndarray, " n"],
    Float32[np.ndarray, " n"],
    Int64[np.ndarray, " n"],
]:
    """Coordinates on a box's faces, the beam's widths along them, and the axis of the normal.

    On walls the second coordinate is z and the first x or y; on top and bottom they are x and y.
    """
    axis = np.abs(touch.normals).argmax(0)
    level, east = axis == 2, axis == 0
    x, y, z = touch.points
    u, v = np.where(east, y, x), np.where(level, y, z)
    dx, dy, dz = touch.directions
    run_u, run_v = np.where(east, dy, dx) / touch.slants, np.where(level, dy, dz) / touch.slants
    wide_u = touch.widths * np.sqrt(1 + run_u * run_u)
    wide_v = touch.widths * np.sqrt(1 + run_v * run_v)
    return u, v, wide_u, wide_v, axis


def _band(place, width, low: float, high: float) -> Float32[np.ndarray, " n"]:
    """Share of an interval of some width around each place that lies between two values."""
    half = width / 2
    inside = np.minimum(place + half, np.float32(high)) - np.maximum(place - half, np.float32(low))
    return np.clip(inside / width, 0, 1)


def _pulses(place, width, period: float, start: float, length: float):
    """As `_band`, for bands of one length that begin every period from a start on."""
    scaled = 1 / np.float32(period)
    duty = np.float32(length / period)
    turns, half = (place - np.float32(start)) * scaled, width * (scaled / 2)
    inside = _pulse_integral(turns + half, duty) - _pulse_integral(turns - half, duty)
    return np.clip(inside / (2 * half), 0, 1)


def _pulse_integral(turns, duty):
    whole = np.floor(turns)
    return whole * duty + np.minimum(turns - whole, duty)
