"""Small problems for `blend`, and the same problem in double precision as its oracle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrec import Rays, blend

NEAR, FAR = 0.5, 40.0


@dataclasses.dataclass(frozen=True)
class Problem:
    """NumPy arrays (float64) of one call of `blend`."""

    centers: np.ndarray
    radii: np.ndarray
    opacities: np.ndarray
    features: np.ndarray
    origins: np.ndarray
    directions: np.ndarray
    footprint: np.ndarray
    background: np.ndarray
    velocities: np.ndarray | None = None
    times: np.ndarray | None = None

    def arrays(self, dtype) -> tuple[jax.Array, ...]:
        """In this order; velocities and times only of what moves."""
        fields = (getattr(self, f.name) for f in dataclasses.fields(self))
        return tuple(jnp.asarray(x.astype(dtype)) for x in fields if x is not None)


def directions_of(sensor: str, height: int, width: int) -> np.ndarray:
    y = (np.arange(height) + 0.5) / height - 0.5
    x = (np.arange(width) + 0.5) / width - 0.5
    x, y = np.meshgrid(x, y)
    if sensor == "orthographic":
        flat = np.stack([0 * x, 0 * x, np.ones_like(x)], axis=-1)
        angle = 0.3
        turn = np.array(
            [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
        )
        return flat @ turn.T
    if sensor in ("panorama", "lidar"):  # all around: the mean direction vanishes
        elevation = y * (1.2 if sensor == "panorama" else 0.6)
        azimuth = 2 * np.pi * x
        return np.stack(
            [
                np.sin(azimuth) * np.cos(elevation),
                np.sin(elevation),
                np.cos(azimuth) * np.cos(elevation),
            ],
            axis=-1,
        )
    rays = np.stack([1.2 * x, 1.2 * y * height / width, np.ones_like(x)], axis=-1)
    return rays / np.linalg.norm(rays, axis=-1, keepdims=True)


def origins_of(sensor: str, directions: np.ndarray) -> np.ndarray:
    height, width, _ = directions.shape
    origins = np.zeros((height, width, 3))
    y, x = np.meshgrid(np.arange(height) + 0.5, np.arange(width) + 0.5, indexing="ij")
    if sensor == "orthographic":
        n = directions[0, 0]
        right, down = np.cross([0.0, 1.0, 0.0], n), np.array([0.0, 1.0, 0.0])
        origins += ((x - width / 2) * 0.4)[..., None] * right
        origins += ((y - height / 2) * 0.4)[..., None] * down
    if sensor in ("rolling", "lidar"):  # the sensor moves while it reads
        along = x if sensor == "lidar" else y
        origins += (along / along.max())[..., None] * np.array([0.3, 0.0, 0.1])
    return origins


def times_of(sensor: str, grid: tuple[int, int, int]) -> np.ndarray:
    """Half a second, row by row or as a lidar turns; of other views not the same half."""
    view, y, x = np.meshgrid(*(np.arange(n) / max(n - 1, 1) for n in grid), indexing="ij")
    return 0.1 + 0.3 * view + 0.5 * (x if sensor == "lidar" else y)


FOOTPRINTS = {
    "pinhole": (0.0, 0.02),
    "rolling": (0.0, 0.02),
    "orthographic": (0.2, 0.0),
    "panorama": (0.0, 0.05),
    "lidar": (0.01, 0.01),
    "beamless": (0.0, 0.0),  # rays without width
}
MOVING = ("pinhole, moving", "orthographic, moving", "lidar, moving")


def problem(
    sensor: str = "pinhole",
    *,
    seed: int = 0,
    spheres: int = 40,
    channels: int = 3,
    grid: tuple[int, int, int] = (2, 11, 21),
    radius: float = 1.5,
) -> Problem:
    """A random scene, tiny and large spheres, seen by several views of one kind of sensor.

    Of sensors with "moving" in their name, each ray is measured at its time, and spheres move by
    some metres meanwhile.
    """
    sensor, _, moving = sensor.partition(", ")
    draw = np.random.default_rng(seed)
    views, height, width = grid
    directions = (
        directions_of(sensor, height, width) if height * width else np.zeros((*grid[1:], 3))
    )
    origins = origins_of(sensor, directions) if height * width else directions
    around = sensor in ("panorama", "lidar")
    spread = np.array([8.0, 8.0, 8.0]) if around else np.array([5.0, 3.0, 4.0])
    middle = np.zeros(3) if around else np.array([0.0, 0.0, 9.0])
    size = (2 if around else 1) * (1.5 if moving else 1)
    shift = 0.2 * np.arange(views)[:, None, None, None] * np.array([1.0, -0.5, 0.3])
    return Problem(
        centers=middle + draw.uniform(-1, 1, (spheres, 3)) * spread,
        radii=size * radius * draw.uniform(0, 1, spheres) ** 3,
        opacities=draw.uniform(0.1, 1, spheres),
        features=draw.uniform(-1, 1, (spheres, channels)),
        origins=origins[None] + shift,
        directions=np.broadcast_to(directions, (*grid, 3)).copy(),
        footprint=np.tile(np.array(FOOTPRINTS[sensor]), (views, 1)),
        background=draw.uniform(0, 1, channels),
        velocities=draw.normal(0, 4, (spheres, 3)) if moving else None,
        times=times_of(sensor, grid) if moving else None,
    )


@functools.partial(jax.jit, static_argnames="options")
def run(arrays, gamma, options):
    """Blends; `options` is a tuple of pairs."""
    centers, radii, opacities, features, origins, directions, footprint, background = arrays[:8]
    velocities, times = arrays[8:] or (None, None)
    rays = Rays(origins, directions, footprint, times)
    return blend(
        centers,
        radii,
        opacities,
        features,
        rays,
        background,
        near=NEAR,
        far=FAR,
        gamma=gamma,
        velocities=velocities,
        **dict(options),
    )


def loss(out) -> jax.Array:
    """A number that weighs every result of every ray differently."""
    total = jnp.zeros((), out.features.dtype)
    for x, rate in ((out.features, 0.7), (out.depth, 0.05), (out.alpha, 0.3)):
        phase = jnp.arange(x.size, dtype=x.dtype).reshape(x.shape)
        total = total + rate * jnp.sum(jnp.sin(1.3 * phase) * x)
    return total


FIELDS = tuple(f.name for f in dataclasses.fields(Problem))
VARIABLES = (
    "centers", "radii", "opacities", "features", "origins", "directions", "background",
)  # fmt: skip


@functools.partial(jax.jit, static_argnames="options")
def gradients(arrays, gamma, options):
    """Gradients of `loss` of every differentiable operand, by name."""

    def value(variables):
        return loss(run((*variables[:6], arrays[6], *variables[6:]), gamma, options))

    found = jax.grad(value)((*arrays[:6], *arrays[7:]))
    return dict(zip((*VARIABLES, "velocities", "times"), found, strict=False))


def in_double(function, case: Problem, gamma: float, options: tuple):
    """The same by the plain JAX definition in float64, from the float32 inputs."""
    rounded = [x.astype(np.float32) for x in case.arrays(np.float32)]
    with jax.enable_x64(True):
        arrays = tuple(jnp.asarray(np.asarray(x), jnp.float64) for x in rounded)
        out = function(arrays, jnp.asarray(np.float32(gamma), jnp.float64), options)
        return jax.tree.map(np.asarray, out)
