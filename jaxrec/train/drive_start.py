"""Where the spheres of a drive begin: on what its lidars met, and along its cameras' rays."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int32

from ..scene import STATIC, Actors, Spheres
from ..sensors import Exposure, Sweep
from ..trajectory import Path
from .drive_settings import DriveSettings
from .initialize import spacing
from .moving_scene import MovingScene

# Distances along cameras' rays at which spheres begin where no lidar looks, in metres.
_NEAREST, _FARTHEST = 3.0, 80.0
_GREY = 0.5
# Exposures say nothing of what was met earlier or later than this, in seconds.
_LATEST = 0.5
# Where nothing was met there is mostly nothing: what is there grows opaque.
_FAINT = 0.1


@runtime_checkable
class Moving(Protocol):
    """What a fit must know of a track."""

    @property
    def id(self) -> str:
        """Its name, the same in all of the log."""
        ...

    @property
    def size(self) -> Float[np.ndarray, "3"]:
        """Of its box in metres, along x, y and z."""
        ...

    @property
    def path(self) -> Path:
        """`world_from_box` at any time."""
        ...


class Found(NamedTuple):
    """Points to begin with, as many as are wanted."""

    places: Float32[np.ndarray, "points 3"]
    owners: Int32[np.ndarray, " points"]
    colors: Float32[np.ndarray, "points 3"]
    intensities: Float32[np.ndarray, " points"]


def start_drive(
    exposures: Sequence[Exposure],
    sweeps: Sequence[Sweep],
    tracks: Sequence[Moving],
    settings: DriveSettings,
) -> MovingScene:
    """Makes the scene that a fit begins with.

    Spheres sit where beams returned, in the boxes of actors where these were then, as large as
    the gaps between them. They have the colours that the nearest exposures in time show there.
    A share of them begins at random depths along the rays of cameras, for upper floors and
    whatever else no beam reaches.

    Args:
        exposures: Of all cameras; there may be none.
        sweeps: Of all lidars.
        tracks: What moves.
        settings: `spheres`, `scattered`, `seed`, `margin`, `movers`, `opacity`, `sky_rows`,
            `near`, `far`.

    Raises:
        ValueError: If no beam returned.
    """
    if not any(sweep.returned.any() for sweep in sweeps):
        raise ValueError(
            f"drive: got {len(sweeps)} sweeps without a return; give at least one return of a lidar"
        )
    random = np.random.default_rng([settings.seed, 2])
    actors, sizes = boxes_of(tracks)
    scattered = round(settings.scattered * settings.spheres) if exposures else 0
    met = _met(exposures, sweeps, actors, sizes, settings, settings.spheres - scattered, random)
    spare = _scattered(exposures, settings.spheres - len(met.places), random)
    found = Found(*(np.concatenate(parts) for parts in zip(met, spare, strict=True)))
    radii = np.empty(len(found.places), np.float32)
    for part in (slice(0, len(met.places)), slice(len(met.places), None)):
        for owner in np.unique(found.owners[part]):
            chosen = np.flatnonzero(found.owners[part] == owner) + part.start
            radii[chosen] = spacing(found.places[chosen])
    drops = np.full((len(radii), 1), -2.0, np.float32)
    features = [found.colors, found.intensities[:, None], drops]
    spheres = Spheres.create(
        found.places,
        radii,
        np.where(np.arange(len(radii)) < len(met.places), settings.opacity, _FAINT).astype(
            np.float32
        ),
        np.concatenate(features, axis=1),
        capacity=settings.spheres,
    )
    empty = settings.spheres - len(radii)
    rows = settings.sky_rows
    return MovingScene(
        spheres=spheres.unconstrained(),
        actor=jnp.asarray(np.concatenate([found.owners, np.full(empty, STATIC, np.int32)])),
        actors=actors,
        sky=jnp.full((rows, 2 * rows, 3), _GREY, jnp.float32),
        near=settings.near,
        far=settings.far,
    )


def boxes_of(tracks: Sequence[Moving]) -> tuple[Actors, Float32[np.ndarray, "actors 3"]]:
    """Where the boxes of tracks are, and their sizes in metres."""
    sizes = np.reshape([track.size for track in tracks], (-1, 3)).astype(np.float32)
    return Actors.create({track.id: track.path for track in tracks}), sizes


def _met(exposures, sweeps, actors, sizes, settings, count, random) -> Found:
    """Some of the points that beams met, evenly over space rather than over beams."""
    points, times, shades = [], [], []
    for sweep in sweeps:
        place, time = sweep.points()
        points.append(place)
        times.append(time)
        shades.append(_intensities(sweep))
    points, times, shades = map(np.concatenate, (points, times, shades))
    arrays = (jnp.asarray(x) for x in (points, times, sizes))
    owners, places = map(np.asarray, actors.owners(*arrays, margin=settings.margin))
    if settings.movers == "mask":
        still = np.flatnonzero(owners == STATIC)
        points, times, shades = points[still], times[still], shades[still]
        owners, places = owners[still], places[still]
    chosen = _thinned(places, owners, count, random)
    colors = _colors(points[chosen], times[chosen], exposures)
    return Found(places[chosen], owners[chosen], colors, shades[chosen])


def _intensities(sweep: Sweep) -> np.ndarray:
    used = sweep.returned & sweep.fired()
    shown = np.full(sweep.ranges.shape, _GREY, np.float32)
    return (shown if sweep.intensities is None else sweep.intensities)[used]


def _thinned(places, owners, count, random) -> np.ndarray:
    """One point of each cell, of cells that are as small as the number allows."""
    order = random.permutation(len(places))
    low, high = 1e-3, 10.0
    chosen = order
    for _ in range(30):
        if len(order) <= count:
            break
        size = np.sqrt(low * high)
        cells = np.floor(places[order] / size).astype(np.int64)
        keys = np.concatenate([cells, owners[order][:, None]], axis=1)
        first = np.unique(keys, axis=0, return_index=True)[1]
        low, high = (size, high) if len(first) > count else (low, size)
        if len(first) <= count:
            chosen = order[np.sort(first)]
        if high / low < 1.02:
            break
    return chosen[:count]


def _colors(points, times, exposures) -> np.ndarray:
    """What the exposures nearest in time show where points are; grey where none shows them."""
    colors = np.full((len(points), 3), _GREY, np.float32)
    least = np.full(len(points), np.inf)
    # All of them each time, so that projections are compiled once for each kind of camera.
    everywhere = jnp.asarray(points)
    for exposure in exposures:
        apart = np.abs(times - exposure.time)
        near = apart < np.minimum(least, _LATEST)
        if not near.any():
            continue
        pixels, depth = map(np.asarray, _project(exposure.camera, everywhere))
        cells = np.floor(np.where(np.isfinite(pixels), pixels, -1)).astype(int)
        height, width = exposure.image.shape[:2]
        inside = (cells >= 0).all(axis=1) & (cells < (width, height)).all(axis=1) & (depth > 0)
        seen = np.flatnonzero(near & inside)
        colors[seen] = exposure.image[cells[seen, 1], cells[seen, 0]]
        least[seen] = apart[seen]
    return colors


@jax.jit
def _project(camera, points):
    return camera.project(points)


def _scattered(exposures, count, random) -> Found:
    """Points at random depths along the rays of random pixels, of the colours seen there."""
    each = -(-count // max(len(exposures), 1))
    places, colors = [np.zeros((0, 3))], [np.zeros((0, 3), np.float32)]
    for exposure in exposures:
        height, width = exposure.image.shape[:2]
        rows, columns = random.integers(0, height, each), random.integers(0, width, each)
        rays = exposure.camera.rays(
            jnp.asarray(np.stack([columns + 0.5, rows + 0.5], -1).astype(np.float32))
        )
        share = random.random(each, np.float32)
        distance = 1 / ((1 - share) / _NEAREST + share / _FARTHEST)
        place = np.asarray(rays.origins) + distance[:, None] * np.asarray(rays.directions)
        used = np.isfinite(place).all(axis=1)
        places.append(place[used])
        colors.append(exposure.image[rows[used], columns[used]])
    places, colors = np.concatenate(places), np.concatenate(colors)
    chosen = random.permutation(len(places))[:count]
    nobody = np.full(len(chosen), STATIC, np.int32)
    grey = np.full(len(chosen), _GREY, np.float32)
    return Found(places[chosen].astype(np.float32), nobody, colors[chosen], grey)
