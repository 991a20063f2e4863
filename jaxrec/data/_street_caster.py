"""What beams meet among things: surfaces behind each other, and what a camera sees of them."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32

from ._street_paint import Look, Sky
from ._street_patterns import Touch, dot
from ._street_solids import Beams, Box, Solid

# In float32 the sides of a narrower beam are too close for the mean of a pattern between them.
_NARROWEST = 1e-3
# Cosines of grazing beams stop here: such a beam covers more than any pattern's period.
_GRAZING = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """One of the surfaces behind each other along beams.

    Attributes:
        ranges: Where it is in metres, infinite where there is none.
        covers: Share of the beam that it stops, of what arrives there.
        solids: Which thing it is of, or -1.
        faces: The same for each pair of a box's faces, or -1.
        colors: In [0, 1].
        reflectances: See `Look`.
        cosines: Of the angle between the beam and the normal.
    """

    ranges: Float64[np.ndarray, " rays"]
    covers: Float64[np.ndarray, " rays"]
    solids: Int32[np.ndarray, " rays"]
    faces: Int32[np.ndarray, " rays"]
    colors: Float32[np.ndarray, "3 rays"]
    reflectances: Float32[np.ndarray, " rays"]
    cosines: Float32[np.ndarray, " rays"]


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """Things and the sky behind them.

    Attributes:
        solids: The things.
        sky: What is behind.
    """

    solids: Sequence[Solid]
    sky: Sky

    def bounds(self, start: float, end: float):
        """Middles [solids, 3] and radii of balls around all things from one time to another."""
        centers, radii = (array.copy() for array in self._still)
        for index in self._moving:
            centers[index], radii[index] = self.solids[index].bound(start, end)
        return centers, radii

    @functools.cached_property
    def _moving(self):
        return [index for index, solid in enumerate(self.solids) if solid.moves]

    @functools.cached_property
    def _still(self):
        balls = [solid.bound(0.0, 0.0) for solid in self.solids]
        return np.stack([center for center, _ in balls]), np.array([radius for _, radius in balls])


def cast(scene: Scene, beams: Beams) -> list[Layer]:
    """Finds the surfaces that beams meet: porous ones in order, then the first that stops all.

    Args:
        scene: The things.
        beams: Preferably near each other: things that none of them can meet are passed over.

    Returns:
        At least one layer, the last of which is solid or the sky. Where a beam meets fewer than
        others, the layers between have infinite ranges.
    """
    solids = scene.solids
    nearest, which = np.full(len(beams.times), np.inf), np.full(len(beams.times), -1, np.int32)
    porous = []
    for index in np.flatnonzero(_reached(scene, beams)).tolist():
        entry, leave = solids[index].cross(beams)
        if np.isinf(solids[index].density):
            closer = entry < nearest
            np.copyto(nearest, entry, where=closer)
            which[closer] = index
        elif np.isfinite(entry).any():
            porous.append((index, entry, leave))
    last = _layer(solids, beams, nearest, np.ones(len(nearest)), which)
    return [*_porous(solids, beams, nearest, porous), last] if porous else [last]


def colors(scene: Scene, layers: Sequence[Layer], beams: Beams) -> Float32[np.ndarray, "3 rays"]:
    """What a camera sees along beams: all layers before the sky, each by its share."""
    total = np.zeros_like(layers[0].colors)
    left = np.ones(total.shape[1], np.float32)
    for layer in layers:
        hit = np.isfinite(layer.ranges)
        share = np.where(hit, left * layer.covers.astype(np.float32), np.float32(0))
        total += share * layer.colors
        left = left - share
    free = np.flatnonzero(left > 0)
    total[:, free] += left[free] * scene.sky.at(beams.directions[:, free].astype(np.float32))
    return total


def sorted_layers(layers: Sequence[Layer], count: int) -> list[np.ndarray]:
    """Ranges, shares of the whole beam, reflectances, cosines and things of the first layers.

    Each has the shape [count, rays]; layers that a beam does not meet come last.
    """
    left = np.ones(len(layers[0].ranges))
    shares = []
    for layer in layers:
        stopped = np.where(np.isfinite(layer.ranges), layer.covers, 0)
        shares.append(left * stopped)
        left = left * (1 - stopped)
    ranges = np.stack([layer.ranges for layer in layers])
    order = np.argsort(ranges, axis=0, kind="stable")[:count]
    lack = ((0, count - len(order)), (0, 0))
    return [
        np.pad(
            np.take_along_axis(np.stack(values), order, 0).astype(dtype),
            lack,
            constant_values=nothing,
        )
        for values, nothing, dtype in (
            (list(ranges), np.inf, np.float32),
            (shares, 0, np.float32),
            ([layer.reflectances for layer in layers], 0, np.float32),
            ([layer.cosines for layer in layers], 0, np.float32),
            ([layer.solids for layer in layers], -1, np.int32),
        )
    ]


def survey(scene: Scene, beams: Beams) -> list[np.ndarray]:
    """Colours of pixels, and what tells where one ray is not enough for one.

    Returns:
        Colours [3, rays]; marks [rays], which differ where what is seen is another thing or
        another face of a box; and whether something thinner than two beams is near [rays].
    """
    layers = cast(scene, beams)
    marks = np.zeros(len(beams.times), np.int64)
    for layer in layers:
        marks = np.where(layer.faces < 0, marks, 4099 * marks + layer.faces + 1)
    return [colors(scene, layers, beams), marks, _beside_thin(scene, beams)]


def _beside_thin(scene: Scene, beams: Beams) -> Bool[np.ndarray, " rays"]:
    near = np.zeros(len(beams.times), bool)
    centers, _ = scene.bounds(float(beams.times.min()), float(beams.times.max()))
    distances = np.linalg.norm(centers - beams.origins.mean(1), axis=1)
    base, slope = beams.footprint
    for index in np.flatnonzero(_reached(scene, beams)).tolist():
        solid = scene.solids[index]
        width = 2 * (base + slope * distances[index])
        if isinstance(solid, Box) and solid.half.min() < width:
            wider = dataclasses.replace(solid, half=solid.half + width)
            near |= np.isfinite(wider.cross(beams)[0])
    return near


def _porous(solids, beams, nearest, crossed) -> list[Layer]:
    """The layers of porous things in front of what stops the beam, sorted for each beam."""
    indices = np.array([index for index, _, _ in crossed], np.int32)
    densities = np.array([solids[index].density for index in indices])[:, None]
    entry, leave = (np.stack([values[i] for values in crossed]) for i in (1, 2))
    met = entry < nearest
    # A thing that stands in the leaves, such as the trunk, ends the way through them.
    chord = np.where(met, np.minimum(leave, nearest), 0) - np.where(met, entry, 0)
    entry, cover = np.where(met, entry, np.inf), -np.expm1(-densities * chord)
    order = np.argsort(entry, axis=0, kind="stable")
    entry, cover = np.take_along_axis(entry, order, 0), np.take_along_axis(cover, order, 0)
    which = np.where(np.isfinite(entry), indices[order], np.int32(-1))
    return [
        _layer(solids, beams, entry[rank], cover[rank], which[rank])
        for rank in range(len(entry))
        if np.isfinite(entry[rank]).any()
    ]


def _layer(solids, beams: Beams, ranges, covers, which) -> Layer:
    count = len(ranges)
    seen, faces = np.zeros((3, count), np.float32), np.full(count, -1, np.int32)
    reflectances, cosines = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for index in np.flatnonzero(np.bincount(which + 1)[1:]).tolist():
        chosen = np.flatnonzero(which == index)
        some = beams.only(chosen)
        points, directions, normals = solids[index].touch(some, ranges[chosen])
        base, slope = beams.footprint
        slants = np.minimum(dot(normals, directions), -_GRAZING)
        touch = Touch(
            points.astype(np.float32),
            directions.astype(np.float32),
            normals.astype(np.float32),
            slants.astype(np.float32),
            np.maximum(2 * (base + slope * ranges[chosen]), _NARROWEST).astype(np.float32),
        )
        look: Look = solids[index].paint.look(touch)
        seen[:, chosen] = look.colors
        # Of a box, the axis of the normal; 0 for what is smooth.
        smooth = not isinstance(solids[index], Box)
        faces[chosen] = 3 * index + (0 if smooth else np.abs(normals).argmax(0))
        reflectances[chosen] = look.reflectances
        cosines[chosen] = -slants
    return Layer(ranges, covers, which, faces, seen, reflectances, cosines)


def _reached(scene: Scene, beams: Beams) -> Bool[np.ndarray, " solids"]:
    """Which things the cone around the beams may meet."""
    start, end = float(beams.times.min()), float(beams.times.max())
    centers, radii = scene.bounds(start, end)
    origin = beams.origins.mean(1)
    offsets = beams.origins - origin[:, None]
    slack = np.sqrt(dot(offsets, offsets).max())
    mean = beams.directions.mean(1)
    length = np.linalg.norm(mean)
    if length < 1e-3:
        return np.ones(len(radii), bool)
    axis = mean / length
    # As a chord: an arc cosine would lose a small angle.
    across = beams.directions - axis[:, None]
    chord = np.sqrt(dot(across, across).max())
    opening = 2 * np.arcsin(min(chord / 2, 1.0)) + 1e-6
    offsets = centers - origin
    distances = np.linalg.norm(offsets, axis=1)
    reach = radii + slack
    inside = distances <= reach
    safe = np.where(inside, 1, distances)
    angle = np.arccos(np.clip(offsets @ axis / safe, -1, 1))
    return inside | (angle <= opening + np.arcsin(np.where(inside, 0, reach) / safe))
