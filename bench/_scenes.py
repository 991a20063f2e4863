"""Spheres and sensors to time: the scene of Pulsar's own benchmark, and a street for a lidar."""

import dataclasses
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxrec import Blended, PinholeCamera, Rays, blend, look_at

Kind = Literal["softmax", "alpha"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OPACITY = {"softmax": 1.0, "alpha": 0.99}
# Where rays end: Pulsar's bound on a sphere's share; a transmittance of 1e-4, as in 3D Gaussians.
STOP = {"softmax": "per_sphere", "alpha": None}


class Limits(NamedTuple):
    """What bounds depths, in metres, and the softness of `softmax`."""

    near: float
    far: float
    gamma: float


PULSAR_LIMITS = Limits(near=5.000002, far=45.0, gamma=0.1)
STREET_LIMITS = Limits(near=0.5, far=120.0, gamma=0.01)


class Scene(NamedTuple):
    """The arrays that `blend` takes."""

    centers: jax.Array
    radii: jax.Array
    opacities: jax.Array
    colors: jax.Array
    rays: Rays
    background: jax.Array
    velocities: jax.Array | None = None


def render(scene: Scene, *, limits: Limits, kind: Kind, **options) -> Blended:
    """Blends a scene; `softmax` stops at a share of 1 % unless told otherwise."""
    return blend(
        scene.centers,
        scene.radii,
        scene.opacities,
        scene.colors,
        scene.rays,
        scene.background,
        **limits._asdict(),
        kind=kind,
        velocities=scene.velocities,
        **{"stop": STOP[kind], "stop_p": 0.01} | options,
    )


def pulsar_scene(spheres: int, rmax: float, rays: Rays, kind: Kind, *, seed: int = 1) -> Scene:
    """Spheres in [-5, 5]^2 x [25, 35] m with radii up to `rmax` and three channels."""
    draw = np.random.default_rng(seed)
    low, high = np.array([-5.0, -5.0, 25.0]), np.array([5.0, 5.0, 35.0])
    centers = draw.uniform(low, high, (spheres, 3))
    colors = draw.uniform(0, 1, (spheres, 3))
    radii = draw.uniform(0, rmax, spheres)
    return _scene(centers, radii, colors, rays, kind)


def pulsar_cameras(width: int, height: int, views: int = 1) -> PinholeCamera:
    """A stack of cameras with focal length 5 and a sensor 2 wide.

    One camera stands at the origin. Several stand on a circle of 0.5 m about it and look at the
    middle of the spheres.
    """
    pose = jnp.eye(4)[None]
    if views > 1:
        turn = 2 * np.pi * np.arange(views) / views
        eyes = np.stack([0.5 * np.cos(turn), 0.5 * np.sin(turn), 0 * turn], axis=-1)
        target, up = jnp.array([0.0, 0.0, 30.0]), jnp.array([0.0, -1.0, 0.0])
        pose = jax.vmap(lambda eye: look_at(eye, target, up))(jnp.asarray(eyes, jnp.float32))
    return PinholeCamera(
        pose,
        jnp.full((views, 2), 2.5 * width),
        jnp.tile(jnp.array([width / 2, height / 2]), (views, 1)),
        width=width,
        height=height,
    )


def rolling_rays(camera: PinholeCamera, distance: float) -> Rays:
    """Rays whose origin moves to the right by `distance` metres from the first row to the last."""
    rays = camera.rays()
    height = rays.origins.shape[1]
    moved = distance * jnp.linspace(0, 1, height)[:, None, None] * jnp.array([1.0, 0.0, 0.0])
    return dataclasses.replace(rays, origins=rays.origins + moved)


def street_scene(spheres: int, rays: Rays, kind: Kind) -> Scene:
    """A street along x, 100 m long and 20 m wide: ground, two walls 10 m high, and clutter."""
    draw = np.random.default_rng(2)
    where = draw.uniform([-50, -10, -2], [50, 10, 8], (spheres, 3))
    part = draw.uniform(0, 1, spheres)
    ground, wall = part < 0.4, (part >= 0.4) & (part < 0.8)
    where[ground, 2] = -2
    where[wall, 1] = np.where(where[wall, 1] < 0, -10, 10)
    radii = draw.uniform(0.02, 0.15, spheres)
    return _scene(where, radii, draw.uniform(0, 1, (spheres, 3)), rays, kind)


def in_motion(scene: Scene, share: float, speed: float, seconds: float, *, axis: int) -> Scene:
    """A share of the spheres moves by up to `speed` m/s along each axis while rays are measured.

    `axis` is that of the rays along which time passes: 1 for rows, 2 for columns.
    """
    draw = np.random.default_rng(3)
    count = scene.centers.shape[0]
    moves = draw.uniform(0, 1, (count, 1)) < share
    velocities = np.where(moves, draw.uniform(-speed, speed, (count, 3)), 0)
    grid = scene.rays.origins.shape[:-1]
    line = jnp.linspace(-seconds / 2, seconds / 2, grid[axis])
    times = jnp.broadcast_to(line[:, None] if axis == 1 else line[None], grid[1:])
    rays = dataclasses.replace(scene.rays, times=jnp.broadcast_to(times[None], grid))
    return scene._replace(rays=rays, velocities=jnp.asarray(velocities, jnp.float32))


def lidar_rays(rows: int, columns: int, travel: float) -> Rays:
    """One turn of a lidar that moves by `travel` metres along x meanwhile; z is up."""
    elevation = np.deg2rad(np.linspace(15, -25, rows))[:, None]
    azimuth = 2 * np.pi * np.arange(columns) / columns
    up = np.broadcast_to(np.sin(elevation), (rows, columns))
    flat = np.cos(elevation)
    directions = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), up], axis=-1)
    origins = np.zeros_like(directions)
    origins[..., 0] = travel * np.arange(columns) / columns
    return Rays(
        jnp.asarray(origins[None], jnp.float32),
        jnp.asarray(directions[None], jnp.float32),
        jnp.array([[0.005, 1.5e-3]]),
    )


def _scene(centers, radii, colors, rays: Rays, kind: Kind) -> Scene:
    return Scene(
        jnp.asarray(centers, jnp.float32),
        jnp.asarray(radii, jnp.float32),
        jnp.full(radii.shape, OPACITY[kind], jnp.float32),
        jnp.asarray(colors, jnp.float32),
        rays,
        jnp.ones(3),
    )
