"""Procedural square textures in [0, 1], all of which tile without a seam."""

import numpy as np
from jaxtyping import Float64, Int64

SIZE = 128


def sample(
    textures: Float64[np.ndarray, "textures size size 3"],
    index: Int64[np.ndarray, " points"],
    uv: Float64[np.ndarray, "points 2"],
) -> Float64[np.ndarray, "points 3"]:
    """Looks textures up with wrapped bilinear interpolation.

    Args:
        textures: Stack of textures of one size.
        index: Which texture each point has.
        uv: Where each point lies, in repeats of the texture.
    """
    size = textures.shape[1]
    place = (uv % 1.0) * size - 0.5
    corner = np.floor(place).astype(np.int64)
    share = place - corner
    color = np.zeros((len(uv), 3))
    for du in (0, 1):
        for dv in (0, 1):
            u, v = (corner[:, 0] + du) % size, (corner[:, 1] + dv) % size
            weight = np.abs(1 - du - share[:, 0]) * np.abs(1 - dv - share[:, 1])
            color += weight[:, None] * textures[index, v, u]
    return color


def planks(generator: np.random.Generator) -> Float64[np.ndarray, "size size 3"]:
    """Four boards of wood with grain along u."""
    u, v = _coordinates()
    board = np.floor(4 * v).astype(np.int64) % 4
    tone = generator.uniform(0.75, 1.1, 4)[board]
    shift = generator.uniform(0.0, 1.0, 4)[board]
    wave = 0.06 * np.sin(2 * np.pi * (u + shift)) + 0.03 * np.sin(2 * np.pi * (3 * u + 2 * shift))
    grain = 0.5 + 0.5 * np.sin(2 * np.pi * (12 * v + 6 * wave))
    seam = np.abs(4 * v - np.round(4 * v)) < 0.06
    color = _mix([0.50, 0.31, 0.17], [0.76, 0.55, 0.34], grain) * tone[..., None]
    return np.clip(np.where(seam[..., None], 0.45 * color, color), 0, 1)


def bricks(generator: np.random.Generator) -> Float64[np.ndarray, "size size 3"]:
    """Four courses of two bricks with light mortar."""
    u, v = _coordinates()
    course = np.floor(4 * v).astype(np.int64) % 4
    along = 2 * u + 0.5 * (course % 2)
    brick = np.floor(along).astype(np.int64) % 2
    tone = generator.uniform(0.0, 1.0, (4, 2))[course, brick]
    color = _mix([0.55, 0.16, 0.10], [0.85, 0.42, 0.25], tone)
    mortar = (np.abs(along - np.round(along)) < 0.05) | (np.abs(4 * v - np.round(4 * v)) < 0.1)
    return np.where(mortar[..., None], np.array([0.86, 0.83, 0.77]), color)


def checks(first, second, count: int) -> Float64[np.ndarray, "size size 3"]:
    """A board of `count` by `count` fields in two colours, `count` even."""
    u, v = _coordinates()
    odd = (np.floor(count * u) + np.floor(count * v)) % 2
    return _mix(first, second, odd)


def bands(colors) -> Float64[np.ndarray, "size size 3"]:
    """Bands of equal height along v, one for each colour, with a sine edge along u."""
    u, v = _coordinates()
    colors = np.asarray(colors, float)
    wave = 0.25 * np.sin(2 * np.pi * u)
    return colors[np.floor(len(colors) * v + wave).astype(np.int64) % len(colors)]


def dots(ground, dot) -> Float64[np.ndarray, "size size 3"]:
    """Round dots in a staggered pattern."""
    u, v = _coordinates()
    straight = np.hypot(u - 0.5, v - 0.5)
    staggered = np.hypot(np.minimum(u, 1 - u), np.minimum(v, 1 - v))
    return _mix(ground, dot, (np.minimum(straight, staggered) < 0.24).astype(float))


def _coordinates():
    centre = (np.arange(SIZE) + 0.5) / SIZE
    v, u = np.meshgrid(centre, centre, indexing="ij")
    return u, v


def _mix(first, second, share):
    first, second = np.asarray(first, float), np.asarray(second, float)
    return first + np.asarray(share)[..., None] * (second - first)
