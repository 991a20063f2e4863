"""Cameras that move while they expose one line after another."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derivatives import assert_exact_derivatives
from jaxrec.sensors import (
    RollingShutterCamera,
)
from jaxrec.trajectory import (
    Trajectory,
)
from sensor_cases import (
    ROLLING,
    mount,
    origins_and_directions,
    path,
    pinhole,
    pixel_centers,
    project,
    rays_of,
    rolling,
)

X, Y = pixel_centers()[..., 0], pixel_centers()[..., 1]
LINES = {
    "top_to_bottom": np.floor(Y) / 6,
    "bottom_to_top": (7 - np.ceil(Y)) / 6,
    "left_to_right": np.floor(X) / 8,
    "right_to_left": (9 - np.ceil(X)) / 8,
}


@pytest.mark.parametrize("direction", LINES)
def test_each_line_sees_from_where_the_camera_is_then(x64, direction):
    shutter = rolling(direction=direction, dtype=jnp.float64)
    rays = rays_of(shutter)
    times = 1.1 + 7.2 * LINES[direction].astype(np.float64)
    np.testing.assert_allclose(rays.times, times, atol=1e-14)
    poses = jax.jit(jax.vmap(path(dtype=jnp.float64).mounted(mount(jnp.float64)).at))(
        jnp.asarray(times)
    )
    for row, column in ((0, 0), (2, 7), (6, 4)):
        still = dataclasses.replace(
            pinhole(dtype=jnp.float64), world_from_camera=poses[row, column]
        )
        wanted = still.rays(jnp.asarray([column + 0.5, row + 0.5]))
        np.testing.assert_allclose(rays.directions[row, column], wanted.directions, atol=1e-14)
        np.testing.assert_allclose(rays.origins[row, column], wanted.origins, atol=1e-14)


@pytest.mark.parametrize("name", ROLLING)
def test_rays_are_a_grid_with_times(name):
    shutter = ROLLING[name]()
    rays = rays_of(shutter)
    assert rays.origins.shape == rays.directions.shape == (7, 9, 3)
    assert rays.times is not None and rays.times.shape == (7, 9)
    np.testing.assert_allclose(np.linalg.norm(rays.directions, axis=-1), 1, atol=5e-7)
    chosen = shutter.rays(jnp.asarray(pixel_centers()[::3, ::4]))
    np.testing.assert_allclose(chosen.directions, rays.directions[::3, ::4], atol=1e-6)
    np.testing.assert_allclose(chosen.origins, rays.origins[::3, ::4], atol=2e-6)
    np.testing.assert_array_equal(rays.footprint, rays_of(shutter.camera).footprint)


@pytest.mark.parametrize("name", ROLLING)
def test_projection_inverts_rays(x64, name):
    shutter = ROLLING[name](dtype=jnp.float64)
    # Slow motion, so that lines do not overtake the image: g' of the iteration below 1 / 2.
    shutter = dataclasses.replace(shutter, end=shutter.start + 0.4)
    random = np.random.default_rng(0)
    pixels = random.uniform([0, 0], [9, 7], (200, 2))
    rays = jax.jit(lambda shutter, pixels: shutter.rays(pixels))(shutter, jnp.asarray(pixels))
    seen, depth = project(shutter, rays.origins + 6 * rays.directions)
    # A pixel near the edge of its line may be seen by the next line as well: a shift of the image
    # of at most 0.1 lines between two.
    inside = np.abs(pixels - np.round(pixels)).min(axis=-1) > 0.1
    np.testing.assert_allclose(seen[inside], pixels[inside], atol=1e-11)
    np.testing.assert_allclose(seen, pixels, atol=0.2)
    assert np.all(depth > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROLLING)
def test_rays_have_exact_derivatives(x64, name):
    # The camera, its mount, the poses and their times, the shutter's times and the offset.
    assert_exact_derivatives(origins_and_directions, ROLLING[name](dtype=jnp.float64))


def projection(shutter, points):
    return shutter.project(points)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top_to_bottom", "right_to_left-screw"])
def test_projection_has_exact_derivatives(x64, name):
    shutter = ROLLING[name](dtype=jnp.float64)
    shutter = dataclasses.replace(shutter, end=shutter.start + 0.4)
    rays = rays_of(shutter)
    points = (rays.origins + 6 * rays.directions)[::3, ::4]
    assert_exact_derivatives(projection, shutter, points, atol=1e-7)


def test_a_stack_is_a_loop():
    shutters = [rolling(), dataclasses.replace(rolling(), offset=jnp.float32(0.5))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *shutters)
    rays = rays_of(stacked)
    for view, shutter in enumerate(shutters):
        np.testing.assert_allclose(rays.origins[view], rays_of(shutter).origins, atol=2e-6)
        np.testing.assert_allclose(rays.times[view], rays_of(shutter).times, atol=2e-6)


def test_lines_without_a_pose_have_no_ray_and_no_gradient():
    # Poses reach to 10 s: of the lines at 7.1 s and so on every 1.2 s, three have one.
    shutter = dataclasses.replace(rolling(), start=jnp.float32(7), end=jnp.float32(14.2))
    missing = np.isnan(rays_of(shutter).directions).any(axis=-1)
    np.testing.assert_array_equal(missing.all(axis=1), [0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(missing.any(axis=1), [0, 0, 0, 1, 1, 1, 1])

    def loss(shutter):
        found = shutter.rays().directions
        return jnp.sum(jnp.where(jnp.isnan(found), 0.0, found))

    gradient = jax.jit(jax.grad(loss))(shutter)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    held = dataclasses.replace(shutter, trajectory=path(edge="hold"))
    assert np.all(np.isfinite(rays_of(held).directions))


def test_points_behind_the_camera_are_not_seen():
    shutter = rolling()
    rays = rays_of(shutter)
    pixels, _ = project(shutter, rays.origins - 6 * rays.directions)
    assert np.all(np.isnan(pixels))


def test_a_straight_drive_shears_a_pole():
    # 10 m/s along x, a pole 10 m ahead, 0.1 s from the first line to the last of 101: line i
    # is exposed 0.01 i m further on, and sees the pole 100 px/m further left.
    poses = np.tile(np.eye(4, dtype=np.float32), (2, 1, 1))
    poses[1, 0, 3] = 1
    trajectory = Trajectory(poses, np.array([0, 100_000_000]))
    still = dataclasses.replace(
        pinhole(width=101, height=101),
        world_from_camera=jnp.eye(4),
        focal=jnp.asarray([1000.0, 1000.0]),
        principal=jnp.asarray([50.5, 50.5]),
    )
    shutter = RollingShutterCamera(still, trajectory, 0.0, 0.1)
    rows = np.array([0.0, 25, 50, 100])
    heights = (rows + 0.5 - 50.5) / 100
    points = np.stack([np.full(4, 0.5), heights, np.full(4, 10.0)], axis=-1)
    pixels, _ = project(shutter, jnp.asarray(points, jnp.float32))
    np.testing.assert_allclose(pixels[:, 0], 50.5 + 50 - rows, atol=1e-3)
    np.testing.assert_allclose(pixels[:, 1], rows + 0.5, atol=1e-3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: rolling(direction="down"), "direction: got 'down'; give 'top_to_bottom', 'bott"),
        (
            lambda: RollingShutterCamera(pinhole(), path(), np.nan, 1.0),
            "start: got 1 NaN or infinite",
        ),
        (
            lambda: RollingShutterCamera(pinhole(), path(), 0.0, [1.0]),
            r"end: got shape \[1\]; give \[\]",
        ),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call()
