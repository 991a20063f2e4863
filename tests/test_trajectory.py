"""Trajectories and the maps of rigid motions that they are made of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm, logm
from scipy.spatial.transform import Rotation, Slerp

from derivatives import assert_exact_derivatives
from jaxrec.geometry import (
    axis_angle_from_matrix,
    matrix_from_axis_angle,
    rigid_from_twist,
    twist_from_rigid,
)
from jaxrec.trajectory import (
    ScrewTrajectory,
    Trajectory,
    seconds_since,
)
from sensor_cases import POSE_TIMES, mount, path

KINDS = [Trajectory, ScrewTrajectory]
AXES = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0, -0.8], [-0.48, 0.64, 0.6]])
at = jax.jit(lambda trajectory, times: trajectory.at(times))


def test_rotation_vectors_survive_the_matrix(x64):
    for angle in (0.0, 1e-9, 1e-4, 1.1e-3, 0.5, 2.0, 3.0, np.pi - 1e-6):
        vectors = jnp.asarray(angle * AXES)
        again = axis_angle_from_matrix(matrix_from_axis_angle(vectors))
        np.testing.assert_allclose(again, vectors, atol=1e-9 if angle > 3 else 1e-15)
    half = axis_angle_from_matrix(matrix_from_axis_angle(jnp.asarray(np.pi * AXES)))
    np.testing.assert_allclose(np.abs(half), np.pi * np.abs(AXES), atol=1e-7)


def test_screws_are_exponentials_of_matrices(x64):
    for size in (0.0, 1e-3, 0.9e-2, 1.1e-2, 0.3, 2.5):
        for axis in AXES:
            turn, velocity = size * axis, np.array([1.0, -2, 0.5])
            x, y, z = turn
            generator = np.zeros((4, 4))
            generator[:3, :3] = [[0, -z, y], [z, 0, -x], [-y, x, 0]]
            generator[:3, 3] = velocity
            twist = jnp.asarray(np.concatenate([turn, velocity]))
            motion = rigid_from_twist(twist)
            np.testing.assert_allclose(motion, expm(generator), atol=2e-14)
            np.testing.assert_allclose(twist_from_rigid(motion), twist, atol=2e-13)
    assert np.allclose(logm(expm(generator)), generator)


@pytest.mark.parametrize("size", [0.0, 5e-3, 0.4])
def test_screws_have_exact_derivatives(x64, size):
    twist = jnp.asarray(np.array([0.6, 0, -0.8, 1, 2, 3]) * np.array([size] * 3 + [1] * 3))
    assert_exact_derivatives(rigid_from_twist, twist)
    assert_exact_derivatives(twist_from_rigid, rigid_from_twist(twist), atol=1e-7)


def test_trajectory_is_slerp_and_a_line(x64):
    trajectory = path(dtype=jnp.float64)
    poses = np.asarray(trajectory.world_from_body)
    times = np.linspace(0, 10, 21)
    slerp = Slerp(POSE_TIMES, Rotation.from_matrix(poses[:, :3, :3]))
    found = at(trajectory, jnp.asarray(times))
    np.testing.assert_allclose(found[:, :3, :3], slerp(times).as_matrix(), atol=1e-14)
    for axis in range(3):
        line = np.interp(times, POSE_TIMES, poses[:, axis, 3])
        np.testing.assert_allclose(found[:, axis, 3], line, atol=1e-14)


def test_screw_trajectory_is_an_exponential_seen_from_any_point(x64):
    trajectory = path(ScrewTrajectory, jnp.float64)
    first, second = np.asarray(trajectory.world_from_body)[:2]
    step = logm(np.linalg.inv(first) @ second)
    found = at(trajectory, jnp.asarray(2.0))
    np.testing.assert_allclose(found, first @ expm(0.4 * step), atol=1e-13)
    # The sensor rides along; by slerp and lerp it does not.
    times, offset = jnp.asarray([1.0, 7.0]), mount(jnp.float64)
    carried = at(trajectory.mounted(offset), times)
    np.testing.assert_allclose(carried, at(trajectory, times) @ offset, atol=1e-13)
    straight = path(dtype=jnp.float64)
    apart = at(straight.mounted(offset), times) - at(straight, times) @ offset
    assert np.max(np.abs(apart)) > 1e-3


def test_edges():
    times = jnp.asarray([-5.0, 0, 10, 15], jnp.float32)
    poses = np.asarray(path().world_from_body)
    outside = at(path(), times)
    assert np.all(np.isnan(np.asarray(outside)[[0, 3]]))
    np.testing.assert_allclose(outside[1:3], poses[[0, 2]], atol=1e-6)
    held = at(path(edge="hold"), times)
    np.testing.assert_allclose(held, poses[[0, 0, 2, 2]], atol=1e-6)
    further = at(path(edge="extrapolate"), times)
    np.testing.assert_allclose(further[0, :3, 3], 2 * poses[0, :3, 3] - poses[1, :3, 3], atol=1e-6)
    np.testing.assert_allclose(further[3, :3, 3], 2 * poses[2, :3, 3] - poses[1, :3, 3], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_poses_a_nanosecond_apart_are_kept(kind):
    # An hour into a drive on a clock that counts since 1970; the body jumps by a metre.
    epoch = np.int64(1_700_000_000_000_000_000)
    clock = epoch + np.array([0, 1, 2, 1_000_000_002], np.int64)
    poses = np.tile(np.eye(4, dtype=np.float32), (4, 1, 1))
    poses[:, 0, 3] = 0, 1, 2, 3
    trajectory = kind(poses, clock, epoch=epoch)
    queries = seconds_since(epoch, epoch + np.array([0, 1, 2, 500_000_002, 1_000_000_002]))
    found = at(trajectory, jnp.asarray(queries, jnp.float32))
    np.testing.assert_allclose(found[:, 0, 3], [0, 1, 2, 2.5, 3], atol=1e-6)
    # Times that float32 rounds to one give the last of their poses, and a finite gradient.
    late = kind(poses, clock, epoch=epoch - 3_600_000_000_000, edge="hold")
    position = jax.jit(jax.value_and_grad(lambda t: late.at(t)[0, 3]))
    for query in (3600.0, 3600.5, 3601.0):
        value, slope = position(jnp.float32(query))
        assert np.isfinite(slope) and 2 <= value <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_trajectories_have_exact_derivatives(x64, kind):
    trajectory = path(kind, jnp.float64)
    times = jnp.asarray([1.0, 4.0, 8.5])
    assert_exact_derivatives(lambda path, times: path.at(times), trajectory, times)


def test_gradients_are_whole_at_the_ends():
    # The first row of a shutter starts at the first pose exactly.
    slope = jax.jit(jax.jacfwd(lambda t: path().at(t)[:3, 3]))
    poses = path().world_from_body
    for time, (first, second) in ((0.0, (0, 1)), (10.0, (1, 2))):
        wanted = (poses[second, :3, 3] - poses[first, :3, 3]) / 5
        np.testing.assert_allclose(slope(jnp.float32(time)), wanted, atol=1e-6)


I2 = np.tile(np.eye(4, dtype=np.float32), (2, 1, 1))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Trajectory(I2, np.float32([0, 1])), "times: got float32; give float64 seconds or"),
        (lambda: Trajectory(I2, np.array([0.0])), r"times: got shape \[1\] for 2 poses; give one"),
        (lambda: Trajectory(I2, np.array([1.0, 1.0])), "times: got 1.0 and then 1.0, numbers 0 an"),
        (lambda: Trajectory(I2[0], np.array([0.0])), r"world_from_body: got shape \[4, 4\]; give"),
        (lambda: Trajectory(I2[:1], np.array([0.0])), "world_from_body: .* at least two poses"),
        (lambda: ScrewTrajectory(2 * I2, np.arange(2.0)), "world_from_body: got the last row"),
        (lambda: Trajectory(I2, np.arange(2.0), edge="stop"), "edge: got 'stop'; give 'nan', 'hol"),
        (lambda: Trajectory(I2, np.arange(2), epoch=0.5), "epoch: got float64 for times of int64"),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call()
