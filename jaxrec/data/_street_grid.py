"""Grids of rays, block by block: from sensors to the caster."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..sensors import Rays
from ._street_patterns import dot
from ._street_solids import Beams

BLOCK = 64
"""Side of the blocks of a grid that are cast together, near rays with near ones."""

# Rays for chosen pixels are made in batches of one size, which is compiled once.
_BATCH = 16384


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Rays on the host, and which of them exist.

    Attributes:
        origins: In metres.
        directions: Unit vectors.
        times: In seconds.
        valid: Whether the ray exists.
        footprint: As of `Rays`.
        blocks: What is cast together.
    """

    origins: Float[np.ndarray, "*grid 3"]
    directions: Float[np.ndarray, "*grid 3"]
    times: Float[np.ndarray, "*grid"]
    valid: Bool[np.ndarray, "*grid"]
    footprint: tuple[float, float]
    blocks: list[tuple[slice, ...]]

    @classmethod
    def of(cls, rays: Rays, time: float | None) -> "Grid":
        """Takes the rays of a sensor from the device.

        Raises:
            ValueError: If neither the rays have times nor one is given.
        """
        if rays.times is None and time is None:
            raise ValueError("time: got none for rays without times; give the exposure's time")
        directions = np.asarray(rays.directions)
        valid = np.isfinite(directions[..., 0])
        times = np.full(valid.shape, time) if rays.times is None else np.asarray(rays.times)
        base, slope = np.asarray(rays.footprint).tolist()
        blocks = list(_blocks(valid.shape))
        return cls(np.asarray(rays.origins), directions, times, valid, (base, slope), blocks)

    def measure(self, measure: Callable[[Beams], list[np.ndarray]]) -> list[np.ndarray]:
        """Measures all rays.

        Args:
            measure: Turns beams into arrays whose last axis is that of the rays.

        Returns:
            These arrays, their last axis unfolded to the grid.
        """
        shape = self.valid.shape
        found: list[np.ndarray] = []
        for block in self.blocks:
            size = self.valid[block].shape
            for index, values in enumerate(measure(self._beams(block))):
                if index == len(found):
                    found.append(np.zeros((*values.shape[:-1], *shape), values.dtype))
                found[index][(..., *block)] = values.reshape(*values.shape[:-1], *size)
        return found

    def rim(self) -> list["Grid"]:
        """The rays on the rims of the beams: to both sides, above and below."""
        forward, (base, slope) = self.directions, self.footprint
        level = np.hypot(forward[..., 0], forward[..., 1])[..., None]
        flat = np.stack([-forward[..., 1], forward[..., 0], 0 * forward[..., 2]], axis=-1)
        # Straight up there is no level direction: any will do.
        aside = np.where(level > 0, flat / np.where(level > 0, level, 1), [1.0, 0.0, 0.0])
        above = np.cross(forward, aside)
        return [
            dataclasses.replace(
                self, origins=self.origins + base * shift, directions=forward + slope * shift
            )
            for shift in (aside, -aside, above, -above)
        ]

    def _beams(self, block) -> Beams:
        origins, directions = (
            np.ascontiguousarray(values[block].reshape(-1, 3).T, np.float64)
            for values in (self.origins, self.directions)
        )
        # Rays that do not exist are followed all the same, and forgotten.
        exist = self.valid[block].ravel()
        if not exist.all():
            directions[:, ~exist] = [[0], [0], [1]]
            origins[:, ~exist] = 0
        directions /= np.sqrt(dot(directions, directions))
        times = np.asarray(self.times[block], np.float64).ravel()
        return Beams(origins, directions, times, self.footprint)


def within_pixels(
    camera: Any,
    chosen: Bool[np.ndarray, "height width"],
    samples: int,
    time: float | None,
    dtype: Any = np.float32,
) -> tuple[Grid, Int[np.ndarray, " pixels"], Int[np.ndarray, " pixels"]]:
    """Makes rays that are spread evenly over each of some pixels.

    Args:
        camera: The camera.
        chosen: Which pixels; at least one.
        samples: Rays along each side of a pixel.
        time: See `Grid.of`.
        dtype: That of the camera.

    Returns:
        The rays, pixel after pixel, and the row and the column of each pixel.
    """
    rows, columns = np.nonzero(chosen)
    tiles = rows // BLOCK * (chosen.shape[1] // BLOCK + 1) + columns // BLOCK
    order = np.argsort(tiles, kind="stable")
    rows, columns, tiles = rows[order], columns[order], tiles[order]
    inside = (np.arange(samples) + 0.5) / samples
    offsets = np.stack(np.meshgrid(inside, inside), axis=-1).reshape(1, -1, 2)
    pixels = (np.stack([columns, rows], axis=-1)[:, None] + offsets).reshape(-1, 2)
    # The last pixel fills the last batch up.
    padded = np.pad(pixels, ((0, -len(pixels) % _BATCH), (0, 0)), mode="edge")
    grids = [
        Grid.of(camera.rays(jnp.asarray(batch, dtype)), time)
        for batch in padded.reshape(-1, _BATCH, 2)
    ]

    def joined(name):
        return np.concatenate([getattr(grid, name) for grid in grids])[: len(pixels)]

    each = samples * samples
    ends = np.flatnonzero(np.diff(tiles, append=-1)) + 1
    starts = np.concatenate([[0], ends[:-1]])
    base, slope = grids[0].footprint
    grid = Grid(
        origins=joined("origins"),
        directions=joined("directions"),
        times=joined("times"),
        valid=joined("valid"),
        footprint=(base / samples, slope / samples),
        blocks=[(slice(each * i, each * j),) for i, j in zip(starts, ends, strict=True)],
    )
    return grid, rows, columns


def edges(marks: Int[np.ndarray, "height width"]) -> Bool[np.ndarray, "height width"]:
    """Which pixels have a neighbour, of eight, with another mark."""
    height, width = marks.shape
    wider = np.pad(marks, 1, mode="edge")
    found = np.zeros(marks.shape, bool)
    for row in range(3):
        for column in range(3):
            found |= wider[row : row + height, column : column + width] != marks
    return found


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    side = BLOCK if len(shape) > 1 else BLOCK * BLOCK
    axes = [[slice(i, min(i + side, n)) for i in range(0, n, side)] for n in shape]
    for index in np.ndindex(*(len(parts) for parts in axes)):
        yield tuple(parts[i] for parts, i in zip(axes, index, strict=True))
