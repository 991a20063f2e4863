"""What a fit of a drive looks at in a step: one exposure and one sweep, on the device."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from .._typing import pytree
from ..scene import STATIC, Actors
from ..sensors import Exposure, Rays, Sweep, depth_image

# Sweeps farther away in time than this say nothing of the depths of an image, in seconds.
_LATEST = 0.2


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Photo:
    """An exposure.

    Attributes:
        camera: At its place in the world, as the log says.
        time: Of its middle, in seconds since the epoch.
        image: Colours in [0, 1].
        mask: Pixels that count.
        depths: Metres along the rays, 0 where nothing is known; or none.
        number: Of the camera among the cameras.
        sensor: Of the camera among the sensors.
    """

    camera: Any
    time: Float[Array, ""]
    image: Float[Array, "height width 3"]
    mask: Bool[Array, "height width"]
    depths: Float[Array, "height width"] | None
    number: Int[Array, ""]
    sensor: Int[Array, ""]


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A sweep.

    Attributes:
        lidar: At its place in the world, as the log says.
        time: Of its middle, in seconds since the epoch.
        ranges: In metres.
        intensities: Of first returns, in [0, 1].
        returned: Rays that count and came back.
        fired: Rays that count.
        shown: Rays that came back with an intensity.
        sensor: Number of the lidar among the sensors.
    """

    lidar: Any
    time: Float[Array, ""]
    ranges: Float[Array, "rows columns"]
    intensities: Float[Array, "rows columns"]
    returned: Bool[Array, "rows columns"]
    fired: Bool[Array, "rows columns"]
    shown: Bool[Array, "rows columns"]
    sensor: Int[Array, ""]


def make_photo(
    exposure: Exposure,
    *,
    number: int,
    sensor: int,
    hidden: Bool[np.ndarray, "height width"] | None = None,
    depths: Float32[np.ndarray, "height width"] | None = None,
) -> Photo:
    """Puts an exposure on the device.

    Args:
        exposure: The exposure.
        number: Of its camera among the cameras.
        sensor: Of its camera among the sensors.
        hidden: Pixels that do not count although they may be used; see `crosses_boxes`.
        depths: See `lidar_depths`.
    """
    mask = exposure.usable()
    return Photo(
        camera=exposure.camera,
        time=jnp.float32(exposure.time),
        image=jnp.asarray(exposure.image),
        mask=jnp.asarray(mask if hidden is None else mask & ~hidden),
        depths=None if depths is None else jnp.asarray(depths),
        number=jnp.int32(number),
        sensor=jnp.int32(sensor),
    )


def make_scan(
    sweep: Sweep, *, sensor: int, hidden: Bool[np.ndarray, "rows columns"] | None = None
) -> Scan:
    """Puts a sweep on the device; see `make_photo`."""
    fired = sweep.fired()
    if hidden is not None:
        fired = fired & ~hidden
    returned = sweep.returned & fired
    blank = np.zeros_like(sweep.ranges)
    return Scan(
        lidar=sweep.lidar,
        time=jnp.float32(sweep.time),
        ranges=jnp.asarray(sweep.ranges),
        intensities=jnp.asarray(blank if sweep.intensities is None else sweep.intensities),
        returned=jnp.asarray(returned),
        fired=jnp.asarray(fired),
        shown=jnp.asarray(returned & (sweep.intensities is not None)),
        sensor=jnp.int32(sensor),
    )


def crosses_boxes(
    rays: Rays,
    time: float,
    actors: Actors,
    sizes: Float[np.ndarray, "actors 3"],
    margin: float,
) -> Bool[np.ndarray, "*grid"]:
    """Finds rays that pass through the box of an actor, hidden behind something or not.

    Args:
        rays: Of one sensor.
        time: Of the middle of what it measures, in seconds since the epoch; boxes are where they
            are then.
        actors: Where the boxes are.
        sizes: Of the boxes, in metres.
        margin: How much larger boxes are taken at each side, in metres.
    """
    arrays = (jnp.asarray(sizes, jnp.float32), jnp.float32(margin))
    return np.asarray(_crosses(rays, jnp.float32(time), actors, *arrays))


@jax.jit
def _crosses(rays, time, actors, sizes, margin):
    poses, valid = actors.sample(time)

    def look(found, one):
        pose, there, size = one
        # One matrix for all rays: rows of the inverse are columns of the pose.
        local = [
            sum((rays.directions[..., k] * pose[k, i] for k in range(3)), jnp.float32(0))
            for i in range(3)
        ]
        apart = [
            sum(
                ((rays.origins[..., k] - pose[k, 3]) * pose[k, i] for k in range(3)),
                jnp.float32(0),
            )
            for i in range(3)
        ]
        enter, leave = jnp.zeros_like(local[0]), jnp.full_like(local[0], jnp.inf)
        for axis in range(3):
            slope = jnp.where(jnp.abs(local[axis]) < 1e-9, 1e-9, local[axis])
            half = size[axis] / 2 + margin
            ends = (-half - apart[axis]) / slope, (half - apart[axis]) / slope
            enter = jnp.maximum(enter, jnp.minimum(*ends))
            leave = jnp.minimum(leave, jnp.maximum(*ends))
        return found | (there & (enter <= leave)), None

    nothing = jnp.zeros(rays.directions.shape[:-1], bool)
    return jax.lax.scan(look, nothing, (poses, valid, sizes))[0]


def lidar_depths(
    exposures: Sequence[Exposure],
    sweeps: Sequence[Sweep],
    actors: Actors,
    sizes: Float[np.ndarray, "actors 3"],
    margin: float,
) -> list[Float32[np.ndarray, "height width"]]:
    """Measures depths of exposures by the sweep of each lidar that is nearest in time.

    What was met in the box of an actor is taken to where the box is when the image is taken.

    Args:
        exposures: To be measured.
        sweeps: Of all lidars.
        actors: Where the boxes are.
        sizes: Of the boxes, in metres.
        margin: How far outside a box its points still belong to it, in metres.

    Returns:
        For each exposure see `depth_image`; zeros where no sweep is within 0.2 s.
    """
    lidars = list(dict.fromkeys(sweep.sensor for sweep in sweeps))
    clouds = [_cloud(sweep, actors, sizes, margin) for sweep in sweeps]
    found = []
    for exposure in exposures:
        points = [np.zeros((0, 3), np.float32)]
        poses, valid = map(np.asarray, _boxes(actors, jnp.float32(exposure.time)))
        for lidar in lidars:
            own = [i for i, sweep in enumerate(sweeps) if sweep.sensor == lidar]
            nearest = min(own, key=lambda i: abs(sweeps[i].time - exposure.time))
            if abs(sweeps[nearest].time - exposure.time) <= _LATEST:
                points.append(_placed(*clouds[nearest], poses, valid))
        found.append(depth_image(exposure.camera, np.concatenate(points)))
    return found


def _cloud(sweep, actors, sizes, margin):
    """Owners of points, and the points in their boxes or in the world."""
    points, times = sweep.points()
    # Sizes that come again, for every sweep has another number of points.
    size = 1 << max(len(points) - 1, 0).bit_length()
    spare = size - len(points)
    padded = np.pad(points, ((0, spare), (0, 0))), np.pad(times, (0, spare))
    arrays = map(jnp.asarray, (*padded, np.asarray(sizes, np.float32)))
    owners, places = map(np.asarray, actors.owners(*arrays, margin=margin))
    return owners[: len(points)], places[: len(points)]


def _placed(owners, places, poses, valid):
    world = places[owners == STATIC]
    parts = [world]
    for number in np.flatnonzero(valid):
        local = places[owners == number]
        parts.append((local @ poses[number, :3, :3].T + poses[number, :3, 3]).astype(np.float32))
    return np.concatenate(parts)


@jax.jit
def _boxes(actors, time):
    return actors.sample(time)
