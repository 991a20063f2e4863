"""What rays, cameras and lidars measure of the things on the street."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32

from ..sensors import RayBundle, SpinningLidar, Sweep
from . import _street_caster as caster
from ._street_grid import Grid, edges, within_pixels

LAYERS = 6
"""Surfaces behind each other that `Hits` tells of."""

REACH = 40.0
"""Range in metres from which the lidar hears a surface across its beam that scatters a tenth."""

SEPARATION = 0.5
"""Returns of one beam that are nearer to each other than this, in metres, are heard as one."""

# Light that one ray on the rim of a beam stands for.
_RIM = 1 / 8


@dataclasses.dataclass(frozen=True, eq=False)
class Hits:
    """What rays meet.

    Attributes:
        colors: What a camera sees, in [0, 1]; 0 where a ray does not exist.
        ranges: Of the surfaces behind each other, in metres from the ray's origin. All but the
            last are porous: they stop a share of the beam. Infinite where there are no more.
        covers: Share of the whole beam that each stops.
        reflectances: Share of the lidar's light that each surface would scatter back if it lay
            across the beam, in [0, 1].
        cosines: Of the angles between beam and normals.
        surfaces: Numbers of the things, -1 where there is none; 0 is the ground.
        actors: Numbers of the tracks that the things follow, or -1.
    """

    colors: Float32[np.ndarray, "*grid 3"]
    ranges: Float32[np.ndarray, "*grid layers"]
    covers: Float32[np.ndarray, "*grid layers"]
    reflectances: Float32[np.ndarray, "*grid layers"]
    cosines: Float32[np.ndarray, "*grid layers"]
    surfaces: Int32[np.ndarray, "*grid layers"]
    actors: Int32[np.ndarray, "*grid layers"]


def cast(scene: caster.Scene, grid: Grid) -> Hits:
    """Follows rays through a scene; nothing is met where a ray does not exist."""
    owners = np.array([solid.actor for solid in scene.solids] + [-1], np.int32)

    def measure(beams):
        layers = caster.cast(scene, beams)
        colors = caster.colors(scene, layers, beams)
        return [colors, *caster.sorted_layers(layers, LAYERS)]

    colors, ranges, covers, reflectances, cosines, surfaces = (
        np.moveaxis(values, 0, -1) for values in grid.measure(measure)
    )
    valid = grid.valid[..., None]
    surfaces = np.where(valid, surfaces, np.int32(-1))
    return Hits(
        colors=np.where(valid, colors, 0),
        ranges=np.where(valid, ranges, np.float32(np.inf)),
        covers=np.where(valid, covers, 0),
        reflectances=np.where(valid, reflectances, 0),
        cosines=np.where(valid, cosines, 0),
        surfaces=surfaces,
        actors=owners[surfaces],
    )


def visible(hits: Hits, values, nothing):
    """The value of the layer with which half of each beam is stopped."""
    half = np.cumsum(hits.covers, -1) >= 0.5
    found = np.take_along_axis(values, half.argmax(-1)[..., None], -1)[..., 0]
    return np.where(half.any(-1), found, nothing)


def picture(
    scene: caster.Scene, camera: Any, time: float | None, samples: int
) -> Float32[np.ndarray, "height width 3"]:
    """What a camera sees; see `Street.image`."""
    grid = Grid.of(camera.rays(), time)
    colors, marks, thin = grid.measure(lambda beams: caster.survey(scene, beams))
    image = np.moveaxis(np.where(grid.valid, colors, 0), 0, -1)
    marks = np.where(grid.valid, marks, -1)
    # Patterns fade as their mean over a pixel does, so one ray is enough but at edges.
    doubtful = edges(marks) | thin
    if samples > 1 and doubtful.any():
        fine, rows, columns = within_pixels(camera, doubtful, samples, time, grid.origins.dtype)
        (colors,) = fine.measure(
            lambda beams: [caster.colors(scene, caster.cast(scene, beams), beams)]
        )
        colors = np.where(fine.valid, colors, 0).reshape(3, len(rows), -1).mean(-1)
        image[rows, columns] = colors.T
    return np.round(255 * np.ascontiguousarray(image)) / np.float32(255)


def sweep(scene: caster.Scene, lidar: SpinningLidar | RayBundle) -> Sweep:
    """What a lidar measures; see `Street.sweep`."""
    grid = Grid.of(lidar.rays(), None)
    hits = cast(scene, grid)
    heard = _heard(hits, 1.0)
    returned = np.asarray(heard.any(-1))
    chosen = heard.argmax(-1)[..., None]

    def first(values):
        return np.where(returned, np.take_along_axis(values, chosen, -1)[..., 0], 0)

    nearest = first(hits.ranges)
    beyond = nearest[..., None] + np.float32(SEPARATION)
    behind = np.where(heard & (hits.ranges >= beyond), hits.ranges, np.inf).min(-1)
    surface = np.take_along_axis(hits.surfaces, chosen, -1)
    for part in grid.rim():
        rim = cast(scene, part)
        passed = ~(rim.surfaces == surface).any(-1, keepdims=True)
        second = passed & _heard(rim, _RIM) & (rim.ranges >= beyond)
        behind = np.minimum(behind, np.where(second, rim.ranges, np.inf).min(-1))
    return Sweep(
        lidar=lidar,
        ranges=nearest.astype(np.float32),
        returned=returned,
        intensities=first(hits.covers * hits.reflectances * hits.cosines).astype(np.float32),
        second_ranges=np.where(returned & np.isfinite(behind), behind, 0).astype(np.float32),
        mask=None if grid.valid.all() else grid.valid,
        time=(float(grid.times.min()) + float(grid.times.max())) / 2,
    )


def _heard(hits: Hits, share: float) -> Bool[np.ndarray, "*grid layers"]:
    """Which layers a lidar hears of a share of its beam."""
    signal = share * hits.covers * hits.reflectances * hits.cosines
    return np.isfinite(hits.ranges) & (signal >= 0.1 * (hits.ranges / REACH) ** 2)
