"""Where spinning lidars see points."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derivatives import assert_exact_derivatives
from jaxrec.sensors import SpinningLidar, spin
from jaxrec.trajectory import Still, Trajectory
from sensor_cases import HEIGHTS, OFFSETS, rays_of, spinning

I4 = np.eye(4, dtype=np.float32)

# Compiled to run once: without optimisation it takes half the time.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
project = quick(lambda lidar, points: lidar.project(points))


@pytest.mark.parametrize("direction", ["cw", "ccw"])
def test_projection_inverts_rays(x64, direction):
    lidar = spinning(direction, jnp.float64)
    rays, distance = rays_of(lidar), np.random.default_rng(1).uniform(15, 60, (4, 7))
    points = rays.origins + distance[..., None] * rays.directions
    elements, times, ranges = project(lidar, points)
    wanted = np.stack(np.meshgrid(range(4), range(7), indexing="ij"), axis=-1)
    np.testing.assert_allclose(elements, wanted, atol=1e-10)
    np.testing.assert_allclose(times, rays.times, atol=1e-10)
    np.testing.assert_allclose(ranges, distance, atol=1e-9)


def test_projection_goes_on_between_shots(x64):
    # A lidar that does not move, so that angles can be read off points.
    lidar = dataclasses.replace(spinning(dtype=jnp.float64), trajectory=Still(np.eye(4)))
    lidar = dataclasses.replace(lidar, body_from_lidar=jnp.eye(4))
    azimuth = lidar.azimuths[2] - 0.3 * 2 * np.pi / 7 + OFFSETS[1]
    elevation = 0.05 + 0.4 * (0.2 - 0.05)
    level = np.cos(elevation)
    local = 9 * np.array([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)])
    elements, times, ranges = project(lidar, jnp.asarray(local + [0, 0, HEIGHTS[1]]))
    np.testing.assert_allclose(elements, [0.6, 2.3], atol=1e-12)
    np.testing.assert_allclose(times, 1.15 + 7 * 2.3 / 6 + 0.1, atol=1e-12)
    np.testing.assert_allclose(ranges, 9, atol=1e-12)


def test_projection_takes_rows_in_any_order():
    shuffled = np.array([2, 0, 3, 1])
    lidar = spinning()
    mixed = dataclasses.replace(
        lidar,
        **{
            name: getattr(lidar, name)[shuffled]
            for name in ("elevations", "azimuth_offsets", "heights", "delays")
        },
    )
    rays = rays_of(lidar)
    elements, _, _ = project(mixed, rays.origins + 30 * rays.directions)
    np.testing.assert_allclose(
        elements[..., 0], np.argsort(shuffled)[:, None] * np.ones(7), atol=1e-3
    )
    # And above the uppermost row, and below the lowest.
    rows = np.asarray(project(lidar, jnp.asarray([[20.0, 5, 30], [20, 5, -40]]))[0])[:, 0]
    assert rows[0] < -0.5 and rows[1] > 3.5


def test_a_real_sweep_needs_single_precision_only():
    # 20 m/s, 128 rows, 2048 columns, ten turns a second, and points 3 to 100 m away.
    poses = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    poses[1:, 0, 3] = 2, 4
    drive = Trajectory(poses, np.array([0.0, 0.1, 0.2]))
    lidar = SpinningLidar(
        I4, drive, np.linspace(0.26, -0.43, 128), spin(2048, "cw"), start=0.05, end=0.15
    )
    # At the seam the first shots meet points that the last ones, 2 m on, meet or miss.
    draw = np.random.default_rng(2)
    shots = draw.integers([0, 8], [128, 2040], (3000, 2)).astype(np.int32)
    distance = draw.uniform(3, 100, (3000, 1)).astype(np.float32)
    rays = lidar.rays(jnp.asarray(shots))
    elements, times, ranges = project(lidar, rays.origins + distance * rays.directions)
    np.testing.assert_allclose(elements, shots, atol=0.01)
    np.testing.assert_allclose(times, rays.times, atol=1e-6)
    np.testing.assert_allclose(ranges, distance[:, 0], rtol=1e-6)


def test_points_that_no_shot_meets_have_no_place_and_no_gradient():
    # Half a turn, ahead; poses for the first half of that.
    drive = Trajectory(np.tile(I4, (2, 1, 1)), np.array([0.0, 0.05]))
    lidar = SpinningLidar(I4, drive, [0.1, -0.1], np.linspace(-1.5, 1.5, 31), start=0.0, end=0.1)
    points = jnp.asarray([[5.0, -4, 0], [5, 4, 0], [-5, 0, 0], [0, 0, 5], [0, 0, 0]])

    def total(lidar, points):
        found = lidar.project(points)
        return sum(jnp.sum(jnp.where(jnp.isnan(x), 0.0, x)) for x in found)

    missing = np.isnan(np.asarray(project(lidar, points)[0]))
    np.testing.assert_array_equal(missing[:3].any(axis=-1), [False, True, True])
    gradient = quick(jax.grad(total, argnums=(0, 1)))(lidar, points)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    assert np.any(gradient[1][0]) and not np.any(gradient[1][1:3])


def test_a_stack_projects_as_a_loop():
    later = dataclasses.replace(spinning(), offset=jnp.float32(0.4))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), spinning(), later)
    points = rays_of(spinning()).origins[:2] + 20 * rays_of(spinning()).directions[:2]
    elements, times, ranges = project(stacked, points)
    for view, single in enumerate((spinning(), later)):
        for ours, alone in zip((elements, times, ranges), project(single, points), strict=True):
            np.testing.assert_allclose(ours[view], alone, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["cw", "ccw"])
def test_projection_has_exact_derivatives(x64, direction):
    lidar = spinning(direction, jnp.float64)
    # Between shots: where one column ends and the next begins, a table of angles has a kink.
    rays = rays_of(lidar)
    points = (rays.origins + 25 * rays.directions)[1:3, 1:6:2]
    points = points + jnp.asarray([[[0.3, -2.5, 0.9]]])
    assert not np.any(np.isnan(project(lidar, points)[0]))
    assert_exact_derivatives(lambda lidar, points: lidar.project(points), lidar, points, atol=1e-7)
