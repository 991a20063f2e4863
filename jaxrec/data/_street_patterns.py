"""What paints of the street are made of: waves and pulses, averaged over the beam that sees them.

The averages have closed forms: a pattern finer than a pixel fades to its mean and does not alias.
"""

import dataclasses

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


def dot(first, second):
    """Products of vectors along the first axis."""
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


def face(
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


def band(place, width, low: float, high: float) -> Float32[np.ndarray, " n"]:
    """Share of an interval of some width around each place that lies between two values."""
    half = width / 2
    inside = np.minimum(place + half, np.float32(high)) - np.maximum(place - half, np.float32(low))
    return np.clip(inside / width, 0, 1)


def pulses(place, width, period: float, start: float, length: float):
    """As `band`, for bands of one length that begin every period from a start on."""
    scaled = 1 / np.float32(period)
    duty = np.float32(length / period)
    turns, half = (place - np.float32(start)) * scaled, width * (scaled / 2)
    inside = _pulse_integral(turns + half, duty) - _pulse_integral(turns - half, duty)
    return np.clip(inside / (2 * half), 0, 1)


def _pulse_integral(turns, duty):
    whole = np.floor(turns)
    return whole * duty + np.minimum(turns - whole, duty)
