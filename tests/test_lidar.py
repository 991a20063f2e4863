"""Spinning lidars, lists of rays, and the fit of a lidar's angles."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derivatives import assert_exact_derivatives
from jaxrec.sensors import (
    RayBundle,
    SpinningLidar,
    Sweep,
    fit_rows,
    fit_rows_and_heights,
    spin,
)
from jaxrec.trajectory import (
    Still,
    Trajectory,
)
from sensor_cases import (
    ELEVATIONS,
    HEIGHTS,
    OFFSETS,
    mount,
    origins_and_directions,
    path,
    rays_of,
    spinning,
)

I4 = np.eye(4, dtype=np.float32)


def bundle(dtype=jnp.float32):
    random = np.random.default_rng(0)
    directions, origins = random.normal(size=(2, 2, 5, 3))
    times = np.array([[1.0, 2, 3, 4, 7], [9, 8, 7, 3, 0.5]])
    return RayBundle(mount(dtype), path(dtype=dtype), directions, times, origins=origins)


MOVING = {"cw": spinning, "ccw": lambda **kwargs: spinning("ccw", **kwargs), "bundle": bundle}


@pytest.mark.parametrize("direction", ["cw", "ccw"])
def test_each_shot_is_fired_from_where_the_lidar_is_then(x64, direction):
    lidar = spinning(direction, jnp.float64)
    rays = rays_of(lidar)
    assert rays.directions.shape == (4, 7, 3)
    np.testing.assert_allclose(rays.footprint, [0.01, 0.0015])
    turn = 1 if direction == "ccw" else -1
    for row, column in ((0, 0), (1, 6), (3, 2)):
        time = 1.15 + 7 * column / 6 + 0.1 * row
        azimuth = np.pi + turn * 2 * np.pi * column / 7 + OFFSETS[row]
        e = ELEVATIONS[row]
        local = [np.cos(e) * np.cos(azimuth), np.cos(e) * np.sin(azimuth), np.sin(e)]
        carrier = path(dtype=jnp.float64).mounted(mount(jnp.float64))
        pose = np.asarray(carrier.at(jnp.asarray(time)))
        np.testing.assert_allclose(rays.times[row, column], time, atol=1e-14)
        origin = pose[:3, :3] @ [0, 0, HEIGHTS[row]] + pose[:3, 3]
        np.testing.assert_allclose(rays.origins[row, column], origin, atol=1e-13)
        np.testing.assert_allclose(rays.directions[row, column], pose[:3, :3] @ local, atol=1e-13)
    chosen = lidar.rays(jnp.asarray([[1, 6], [3, 2]]))
    np.testing.assert_allclose(chosen.directions[0], rays.directions[1, 6], atol=1e-14)
    np.testing.assert_allclose(chosen.times[1], rays.times[3, 2], atol=1e-14)


def test_a_lidar_that_stands_turns_from_x_to_y():
    # Four columns counter-clockwise from ahead: forward, left, backward, right.
    lidar = SpinningLidar(
        np.eye(4, dtype=np.float32),
        Still(jnp.eye(4)),
        [0.0],
        spin(4, "ccw", start=0.0),
        start=0.0,
        end=0.1,
    )
    rays = rays_of(lidar)
    wanted = [[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]]
    np.testing.assert_allclose(rays.directions[0], wanted, atol=1e-6)
    np.testing.assert_array_equal(rays.origins, 0)


def test_a_sweep_is_straight_once_the_drive_is_in_the_rays():
    # 20 m/s past a wall at y = 8: 2 m of motion in one sweep of 0.1 s.
    poses = np.tile(np.eye(4), (2, 1, 1))
    poses[1, 0, 3] = 2
    with jax.enable_x64(True):
        drive = Trajectory(poses, np.array([0, 100_000_000]))
        lidar = SpinningLidar(np.eye(4), drive, [0.1, -0.1], spin(100, "cw"), start=0.0, end=0.1)
        rays = rays_of(lidar)
        up = np.asarray(rays.directions)[..., 1]
        hit = up > 0.05
        distance = np.where(hit, 8 / np.where(hit, up, 1), np.nan)
        points = np.asarray(rays.origins) + distance[..., None] * np.asarray(rays.directions)
        np.testing.assert_allclose(points[hit, 1], 8, atol=1e-12)
        np.testing.assert_allclose(rays.origins[0, :, 0], 2 * np.arange(100) / 99, atol=1e-12)


def test_a_bundle_is_its_rays_taken_to_the_world(x64):
    rays, given = rays_of(bundle(jnp.float64)), bundle(jnp.float64)
    carrier = path(dtype=jnp.float64).mounted(mount(jnp.float64))
    for place in ((0, 0), (1, 3)):
        pose = np.asarray(carrier.at(given.times[place]))
        wanted = pose[:3, :3] @ np.asarray(given.origins[place]) + pose[:3, 3]
        np.testing.assert_allclose(rays.origins[place], wanted, atol=1e-13)
        wanted = pose[:3, :3] @ np.asarray(given.directions[place])
        wanted /= np.linalg.norm(wanted)
        np.testing.assert_allclose(rays.directions[place], wanted, atol=1e-13)


@pytest.mark.parametrize("name", MOVING)
def test_rays_have_exact_derivatives(x64, name):
    # Mount, poses and their times, elevations, azimuths, offsets, delays and clocks.
    assert_exact_derivatives(origins_and_directions, MOVING[name](dtype=jnp.float64))


@pytest.mark.parametrize("name", MOVING)
def test_rays_are_unit_and_a_stack_is_a_loop(name):
    sensor = MOVING[name]()
    later = dataclasses.replace(sensor, offset=jnp.float32(0.4))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), sensor, later)
    rays = rays_of(stacked)
    for view, single in enumerate((sensor, later)):
        alone = rays_of(single)
        lengths = np.linalg.norm(alone.directions, axis=-1)
        np.testing.assert_allclose(lengths, 1, atol=5e-7)
        np.testing.assert_allclose(rays.directions[view], alone.directions, atol=2e-6)
        np.testing.assert_allclose(rays.origins[view], alone.origins, atol=2e-6)


def test_shots_before_the_first_pose_have_no_ray():
    early = dataclasses.replace(spinning(), start=jnp.float32(-3), end=jnp.float32(4))
    missing = np.isnan(rays_of(early).directions).any(axis=-1)
    np.testing.assert_array_equal(missing, np.asarray(rays_of(early).times) < 0)
    assert missing.any() and not missing.all()


def test_a_sweep_as_long_as_its_trajectory_has_all_rays():
    # The last column's time is rounded to one past the last pose.
    drive = Trajectory(np.tile(I4, (2, 1, 1)), np.array([0.0, 0.1]))
    lidar = SpinningLidar(I4, drive, [0.0], np.linspace(-0.2, 0.2, 41), start=0.0, end=0.1)
    rays = rays_of(lidar)
    assert rays.times[0, -1] > drive.times[-1]
    assert np.all(np.isfinite(rays.directions))


def test_points_of_a_sweep_are_where_its_rays_end():
    lidar = spinning()
    rays = rays_of(lidar)
    ranges = np.random.default_rng(3).uniform(2, 30, (4, 7)).astype(np.float32)
    returned = np.ones((4, 7), bool)
    returned[0, 2] = False
    mask = np.ones((4, 7), bool)
    mask[3, 3] = False
    points, times = Sweep(lidar, ranges * returned, returned, mask=mask).points()
    used = returned & mask
    wanted = rays.origins + ranges[..., None] * rays.directions
    assert len(points) == 26
    np.testing.assert_allclose(points, np.asarray(wanted)[used], atol=1e-5)
    np.testing.assert_array_equal(times, np.asarray(rays.times)[used])


def measured(noise, columns=360):
    random = np.random.default_rng(0)
    rows, turns = (grid.ravel() for grid in np.meshgrid(range(4), range(columns), indexing="ij"))
    azimuth = spin(columns, "cw")[turns] + OFFSETS[rows] + noise * random.normal(size=rows.shape)
    elevation = ELEVATIONS[rows] + noise * random.normal(size=rows.shape)
    level = np.cos(elevation)
    rays = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)], axis=-1)
    return random.uniform(2, 60, (len(rows), 1)) * rays, rows, turns


def test_fit_finds_the_angles_and_says_how_well():
    noise = 3e-4
    points, rows, turns = measured(noise)
    points[::97] += 5  # one in a hundred is from elsewhere
    found = fit_rows(points, rows, turns, count=6)
    # A median of 360 errs by 1.25 sigma / sqrt(360), here three times that.
    np.testing.assert_allclose(found.elevations[:4], ELEVATIONS, atol=6e-5)
    np.testing.assert_allclose(found.azimuth_offsets[:4], OFFSETS - OFFSETS.mean(), atol=6e-5)
    # Columns have four points each.
    turned = found.azimuths - spin(360, "cw") - OFFSETS.mean()
    turned -= 2 * np.pi * np.round(turned[0] / (2 * np.pi))
    np.testing.assert_allclose(turned, 0, atol=8e-4)
    assert np.all(np.isnan(found.elevations[4:])) and found.counts.tolist() == [360] * 4 + [0, 0]
    assert 0.5 * noise < np.median(found.residuals) < 2 * noise
    assert found.residuals.max() > 0.05
    text = str(found)
    assert "6 rows from -22.9" in text and "rows without points: [4, 5]" in text
    assert f"{np.rad2deg(np.median(found.residuals)):.4f} degrees in the median" in text


def test_fit_without_columns_judges_elevations_alone():
    points, rows, _ = measured(0.0)
    found = fit_rows(points, rows, count=4)
    np.testing.assert_allclose(found.elevations, ELEVATIONS, atol=1e-12)
    assert found.azimuths is None and found.residuals.max() < 1e-12
    # The wrong table of rings shows: rows 1 and 2 exchanged for half of the points.
    wrong = np.where((rows == 1) & (np.arange(len(rows)) % 2 == 0), 2, rows)
    assert np.quantile(fit_rows(points, wrong, count=4).residuals, 0.95) > 0.1


def test_fit_finds_lasers_above_each_other():
    points, rows, _ = measured(1e-4)
    points[:, 2] += HEIGHTS[rows]
    points[::97] += 5
    found = fit_rows_and_heights(points, rows, count=5)
    np.testing.assert_allclose(found.elevations[:4], ELEVATIONS, atol=1e-4)
    np.testing.assert_allclose(found.heights[:4], HEIGHTS, atol=2e-3)
    assert np.isnan(found.elevations[4]) and np.median(found.residuals) < 1.5e-4
    # From one point, these rays are seen to disagree.
    assert np.median(fit_rows(points, rows, count=4).residuals) > 1e-3


def test_fit_of_a_real_sweep(shared):
    # KITTI writes ring by ring, each counter-clockwise from ahead: a ring ends at the wrap.
    with np.load(shared / "data/kitti_sfnd_drive/velodyne/0000000000.npz") as sweep:
        points = sweep["xyz_q"].T.astype(np.float64) * float(sweep["scale"])
    azimuth = np.mod(np.arctan2(points[:, 1], points[:, 0]), 2 * np.pi)
    rows = np.concatenate([[0], np.cumsum(np.diff(azimuth) < -np.pi)])
    assert rows[-1] == 63
    found = fit_rows_and_heights(points, rows, count=64)
    degrees = np.rad2deg(found.residuals)
    # 1 cm of quantised coordinates at 50 m is 0.01 degrees.
    assert np.median(degrees) < 0.02 and np.quantile(degrees, 0.95) < 0.1
    assert np.median(fit_rows(points, rows, count=64).residuals) > np.deg2rad(0.3)
    # The upper and the lower block of lasers of a Velodyne HDL-64E.
    assert np.all(np.diff(found.elevations) < 0.002)
    np.testing.assert_allclose(np.median(found.heights[:32]), 0.2, atol=0.02)
    np.testing.assert_allclose(np.median(found.heights[32:]), 0.12, atol=0.02)


SPIN = {"start": 0.0, "end": 0.1}


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: SpinningLidar(I4, Still(I4), [0.0], [0.0, 1, 0.5], **SPIN),
            "azimuths: got 1 and then 0.5, columns 1 and 2, against the turn",
        ),
        (
            lambda: SpinningLidar(I4, Still(I4), [0.0], [0.0, 4, 7], **SPIN),
            "azimuths: got a span of 7; give one turn",
        ),
        (
            lambda: SpinningLidar(I4, Still(I4), [0.0, 1], [0.0], delays=[0.0], **SPIN),
            r"delays: got shape \[1\]; give \[2\]",
        ),
        (lambda: Still(2 * I4), "world_from_body: got the last row"),
        (lambda: spin(0, "cw"), "columns: got 0; give a whole number"),
        (lambda: spin(4, "left"), "direction: got 'left'; give 'cw' or 'ccw'"),
        (
            lambda: RayBundle(I4, Still(I4), np.zeros((1, 2, 3)), np.zeros((1, 2))),
            "directions: got 2 of length 0; give vectors",
        ),
        (
            lambda: RayBundle(I4, Still(I4), np.ones((1, 2, 3)), np.zeros(2)),
            r"times: got shape \[2\]; give \[1, 2\]",
        ),
        (
            lambda: fit_rows(np.ones((2, 3)), np.array([0, 4]), count=4),
            "rows: got 0 to 4; give 0 to 3",
        ),
        (
            lambda: fit_rows(np.zeros((2, 3)), np.array([0, 1]), count=4),
            "points: got 2 at the origin",
        ),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call()
