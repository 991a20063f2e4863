"""Where optimisation starts: coloured points seen by the training images."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Key
from scipy.spatial import KDTree

from ..scene import Spheres
from ..sensors import Frame
from .batches import group_by_size, stack_cameras
from .consistency import Gallery, cost_of_points, points_on_rays
from .normalizer import SceneNormalizer
from .settings import FitSettings

# Distances in scene units between which the first spheres lie: a camera is about 1 from the scene.
_NEAREST, _FARTHEST = 0.3, 8.0
# Views that vote on a point: enough for any capture, and they bound time and memory.
_MOST_VOTERS = 64
_NEIGHBOURS = 3
_INTERVALS = 48
_REFINEMENTS = 8
_DOUBTFUL = 0.5
# Known points are worth having from this share of the spheres.
_ENOUGH = 0.1

Colored = tuple[Float32[np.ndarray, "count 3"], Float32[np.ndarray, "count 3"]]
"""Places in scene units, and their colours."""


@runtime_checkable
class Points(Protocol):
    """Coloured points on what frames show, in the world frame of their cameras."""

    @property
    def positions(self) -> Float32[np.ndarray, "points 3"]:
        """Where they are, in metres."""
        ...

    @property
    def colors(self) -> Float32[np.ndarray, "points 3"]:
        """Their colours in [0, 1]."""
        ...


def initial_spheres(
    frames: Sequence[Frame],
    normalizer: SceneNormalizer,
    settings: FitSettings,
    shader: Any,
    key: Key[Array, ""],
    points: Points | None = None,
) -> Spheres:
    """Scatters spheres over the scene, in scene coordinates.

    `initialization="points"` takes known points, at random if there are more than needed. The rest
    are random pixels (that the mask allows and whose alpha is not zero), carried out along their
    rays to a distance that is uniform in its inverse (`"random"`), or where the surrounding views
    show the same colour; where images have alpha, only to places that every view shows as covered.
    Colours are the points' or the pixels'; radii follow from the spacing. `"auto"` takes points
    where they are at least a tenth of the spheres.

    Args:
        frames: What was measured.
        normalizer: From world to scene.
        settings: `spheres`, `first_share`, `seed`, `initialization` and `opacity` are used.
        shader: Gives the spheres the features that show their colours.
        key: Randomness of those features.
        points: What is known of the scene's shape, from the same frames. Where it is not given,
            measured depths of the frames take its place.

    Raises:
        ValueError: If no pixel may be used, or points are wanted and there are none.
    """
    random = np.random.default_rng([settings.seed, 1])
    count = settings.first_spheres
    if points is None and settings.initialization in ("points", "auto"):
        points = depth_points(frames, count, random)
    parts = [_known(points, normalizer, settings.initialization, count, random)]
    parts += _scattered(frames, normalizer, settings, count - len(parts[0][0]), random)
    places = np.concatenate([part[0] for part in parts])
    colors = jnp.asarray(np.concatenate([part[1] for part in parts]))
    return Spheres.create(
        places,
        spacing(places),
        np.full(len(places), settings.opacity, np.float32),
        shader.initial_features(colors, key),
        # Rays that lead nowhere may leave fewer points; growth fills the rest.
        capacity=settings.spheres,
    )


class DepthPoints(NamedTuple):
    """Places in the world that pixels with a measured depth show. See `Points`."""

    positions: Float32[np.ndarray, "points 3"]
    colors: Float32[np.ndarray, "points 3"]


def depth_points(
    frames: Sequence[Frame], count: int, random: np.random.Generator
) -> DepthPoints | None:
    """Picks pixels whose depth was measured, and finds what they show.

    Args:
        frames: What was measured.
        count: How many to pick, as many from each frame.
        random: Which ones.

    Returns:
        Points in the frames' own world; None if no frame has a depth that may be used.
    """
    measured = [frame for frame in frames if frame.depth is not None]
    positions, colors = [], []
    for frame in measured:
        depth = np.asarray(frame.depth)
        usable = np.isfinite(depth) & (depth > 0)
        if frame.mask is not None:
            usable &= frame.mask
        rows, columns = np.nonzero(usable)
        each = min(-(-count // len(measured)), len(rows))
        chosen = random.choice(len(rows), each, replace=False)
        rows, columns = rows[chosen], columns[chosen]
        centers = np.stack([columns, rows], axis=-1).astype(np.float32) + np.float32(0.5)
        rays = frame.camera.rays(jnp.asarray(centers))
        directions = np.asarray(rays.directions)
        ahead = directions @ np.asarray(frame.camera.world_from_camera)[:3, 2]
        along = (depth[rows, columns] / ahead)[:, None]
        positions.append(np.asarray(rays.origins) + along * directions)
        colors.append(frame.image[rows, columns])
    if not sum(map(len, positions)):
        return None
    return DepthPoints(
        np.concatenate(positions).astype(np.float32), np.concatenate(colors).astype(np.float32)
    )


def _known(
    points: Points | None,
    normalizer: SceneNormalizer,
    way: str,
    count: int,
    random: np.random.Generator,
) -> Colored:
    """As many of the points as are wanted, none if the settings say so."""
    nothing = np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)
    if way not in ("points", "auto"):
        return nothing
    places, colors = nothing
    if points is not None:
        places = normalizer.scene_points(points.positions)
        seen = np.isfinite(places).all(axis=1) & (np.linalg.norm(places, axis=1) < normalizer.far)
        places, colors = places[seen], np.clip(points.colors[seen], 0, 1)
    if way == "points" and not len(places):
        raise ValueError(
            "initialization: got points, but the capture has none; use consistent or auto"
        )
    if way == "auto" and len(places) < _ENOUGH * count:
        return nothing
    if len(places) > count:
        chosen = random.choice(len(places), count, replace=False)
        places, colors = places[chosen], colors[chosen]
    return places, colors


def _scattered(
    frames: Sequence[Frame],
    normalizer: SceneNormalizer,
    settings: FitSettings,
    count: int,
    random: np.random.Generator,
) -> list[Colored]:
    """Points and colours of random pixels, from the frames of each size."""
    groups = [[frames[i] for i in group] for group in group_by_size(frames)]
    usable = [[_usable_pixels(frame) for frame in group] for group in groups]
    totals = np.array([sum(len(pixels) for pixels in group) for group in usable])
    if totals.sum() == 0:
        raise ValueError("frames: masks and alphas leave no pixel to fit; check them")
    shares = random.multinomial(count, totals / totals.sum())
    return [
        _scatter(group, pixels, int(share), normalizer, settings.initialization, random)
        for group, pixels, share in zip(groups, usable, shares, strict=True)
        if share > 0
    ]


def spacing(points: Float32[np.ndarray, "points 3"]) -> Float32[np.ndarray, " points"]:
    """Computes each point's mean distance to its three nearest neighbours.

    Kept within a factor of 5 of the median, because stray points would become huge spheres. A
    single point gets 0.01.
    """
    count = min(len(points), _NEIGHBOURS + 1)
    if count < 2:
        return np.full(len(points), 0.01, np.float32)
    distances, _ = KDTree(points).query(points, k=count)
    mean = np.asarray(distances)[:, 1:].mean(axis=1)
    median = max(float(np.median(mean)), 1e-6)
    return np.clip(mean, median / 5, median * 5).astype(np.float32)


def _scatter(
    frames: list[Frame],
    usable: list[np.ndarray],
    count: int,
    normalizer: SceneNormalizer,
    way: str,
    random: np.random.Generator,
) -> Colored:
    """Points and colours from frames of one size."""
    voters = [i for i, pixels in enumerate(usable) if len(pixels)]
    voters = voters[:: -(-len(voters) // _MOST_VOTERS)]
    frames, usable = [frames[i] for i in voters], [usable[i] for i in voters]
    cameras = stack_cameras([normalizer.scene_camera(frame.camera) for frame in frames])
    gallery = Gallery.create(frames, cameras)
    # The same number of rays from each view, so that one compiled program serves all of them,
    # and some to spare: rays along the rim of a cut-out object may miss its hull.
    rays_each = -(-count * 5 // (4 * len(voters)))
    points, colors, costs = [], [], []
    for view, (frame, allowed) in enumerate(zip(frames, usable, strict=True)):
        rows, columns = np.divmod(random.choice(allowed, rays_each), frame.image.shape[1])
        pixels = np.stack([columns, rows], axis=-1) + random.random((rays_each, 2))
        edges = _depth_edges(gallery, view)
        found, cost = _place(gallery, view, pixels.astype(np.float32), edges, way, random)
        points.append(found)
        costs.append(cost)
        colors.append(frame.image[rows, columns])
    found, shown, cost = map(np.concatenate, (points, colors, costs))
    # Rays that a lens model cannot make lead nowhere; points outside the hull, or outside the
    # picture in most views, come last.
    order = random.permutation(np.flatnonzero(np.isfinite(found).all(axis=1)))
    keep = order[np.argsort(cost[order] > _DOUBTFUL, kind="stable")][:count]
    return found[keep], shown[keep].astype(np.float32)


def _place(
    gallery: Gallery,
    view: int,
    pixels: Float32[np.ndarray, "rays 2"],
    edges: np.ndarray,
    way: str,
    random: np.random.Generator,
) -> tuple[Float32[np.ndarray, "rays 3"], Float32[np.ndarray, " rays"]]:
    """Chooses a point on each ray of a view, and returns its cost with it."""
    rows = np.arange(len(pixels))
    index = np.int32(view)
    neighbours = gallery.neighbours(view)
    if way == "random":
        neighbours = neighbours[:0]

    def best(low, high):
        # One candidate at a random place of each interval.
        share = random.random(low.shape, np.float32)
        distances = low + share * (high - low)
        points = points_on_rays(gallery.cameras, index, pixels, distances.astype(np.float32))
        cost = np.array(cost_of_points(gallery, index, neighbours, pixels, points))
        # Breaks ties: without anything to compare, every interval is as good as another.
        cost += (1e-6 if len(neighbours) else 1.0) * random.random(cost.shape, np.float32)
        choice = cost.argmin(axis=1)
        return choice, np.asarray(points)[rows, choice], cost[rows, choice]

    shape = (len(pixels), len(edges) - 1)
    low, high = np.broadcast_to(edges[:-1], shape), np.broadcast_to(edges[1:], shape)
    choice, found, cost = best(low, high)
    if not len(neighbours):
        return found, cost
    # Once more, in the interval around the best place.
    low = edges[np.maximum(choice - 1, 0)]
    high = edges[np.minimum(choice + 2, len(edges) - 1)]
    finer = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, _REFINEMENTS + 1)
    return best(finer[:, :-1], finer[:, 1:])[1:]


def _depth_edges(gallery: Gallery, view: int) -> np.ndarray:
    """Distances along a view's rays that bound the intervals to choose from."""
    if gallery.covered is None:
        return 1 / np.linspace(1 / _NEAREST, 1 / _FARTHEST, _INTERVALS + 1)
    # A cut-out object lies about the origin, where the cameras look.
    position = np.asarray(gallery.cameras.world_from_camera)[view, :3, 3]
    distance = max(float(np.linalg.norm(position)), 0.5)
    return distance * np.linspace(0.3, 1.7, _INTERVALS + 1)


def _usable_pixels(frame: Frame) -> np.ndarray:
    usable = np.ones(frame.image.shape[:2], bool)
    if frame.mask is not None:
        usable &= frame.mask
    if frame.alpha is not None:
        usable &= frame.alpha > 0.5
    return np.flatnonzero(usable)
