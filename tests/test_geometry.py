"""Rotations and rigid transforms against their defining properties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from derivatives import assert_exact_derivatives
from jaxrec import geometry

ROTATIONS = [
    pytest.param(geometry.matrix_from_quaternion, 4, id="quaternion"),
    pytest.param(geometry.matrix_from_axis_angle, 3, id="axis-angle"),
    pytest.param(geometry.matrix_from_rotation6, 6, id="rotation6"),
]


def normal(*shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


axis_angle = jax.jit(geometry.matrix_from_axis_angle)


@pytest.mark.parametrize("rotation, size", ROTATIONS)
def test_rotations_are_rotations(rotation, size):
    matrices = jax.jit(rotation)(normal(5, 4, size))
    assert matrices.shape == (5, 4, 3, 3)
    product = np.swapaxes(matrices, -1, -2) @ np.asarray(matrices)
    # Each entry sums 3 products of numbers up to 1, made by about 10 operations.
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(3), product.shape), atol=4e-6)
    np.testing.assert_allclose(np.linalg.det(matrices), 1, atol=4e-6)


@pytest.mark.parametrize("rotation, size", ROTATIONS)
def test_rotations_have_exact_derivatives(x64, rotation, size):
    assert_exact_derivatives(rotation, normal(2, size, dtype=jnp.float64))


@pytest.mark.parametrize("axis", range(3))
def test_quarter_turn_takes_each_axis_to_the_next(axis):
    half = np.float32(np.sqrt(0.5))
    quaternion = jnp.zeros(4).at[0].set(half).at[1 + axis].set(half)
    vector = jnp.zeros(3).at[axis].set(np.pi / 2)
    start, end = np.roll(np.eye(3), 1 + axis, 1)[0], np.roll(np.eye(3), 2 + axis, 1)[0]
    for matrix in (
        geometry.matrix_from_quaternion(quaternion),
        geometry.matrix_from_axis_angle(vector),
    ):
        np.testing.assert_allclose(matrix @ jnp.asarray(start, jnp.float32), end, atol=1e-6)


@pytest.mark.parametrize("angle", [0.0, 1e-8, 9.9e-4, 1.01e-3, 0.5, 3.0, np.pi, 7.0])
def test_axis_angle_is_the_matrix_exponential(x64, angle):
    vector = angle * np.array([2.0, -1.0, 2.0]) / 3
    x, y, z = vector
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    matrix = axis_angle(jnp.asarray(vector))
    np.testing.assert_allclose(matrix, expm(cross), atol=1e-13)


def test_axis_angle_is_differentiable_at_zero(x64):
    # The derivative at 0 is the generator of each axis: d R / d w_k = [e_k]_x.
    derivative = jax.jit(jax.jacobian(axis_angle))(jnp.zeros(3, jnp.float64))
    for axis, e in enumerate(np.eye(3)):
        generator = np.cross(np.broadcast_to(e, (3, 3)), np.eye(3)).T
        np.testing.assert_allclose(derivative[..., axis], generator, atol=1e-15)


def test_rotation6_rows_keep_the_first_direction():
    value = normal(6)
    rows = geometry.matrix_from_rotation6(value)
    np.testing.assert_allclose(rows[0], value[:3] / jnp.linalg.norm(value[:3]), rtol=1e-5)
    assert jnp.dot(rows[1], value[3:]) > 0
    # The second vector stays in the plane of the first two rows.
    assert abs(jnp.dot(rows[2], value[3:])) < 1e-5


def test_rigid_inverse():
    twist = normal(2, 6)
    pose = jax.jit(geometry.rigid)(axis_angle(twist[:, :3]), twist[:, 3:])
    product = np.asarray(pose) @ np.asarray(jax.jit(geometry.rigid_inverse)(pose))
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(4), (2, 4, 4)), atol=2e-6)


def test_rotate_is_a_matrix_product():
    matrices, points = normal(2, 3, 3), normal(5, 2, 3)
    expected = np.einsum("vij,nvj->nvi", matrices, points)
    np.testing.assert_allclose(geometry.rotate(matrices, points), expected, atol=2e-6)
    shared = geometry.rotate(matrices[0], points)
    np.testing.assert_allclose(shared[:, 0], expected[:, 0], atol=2e-6)


def test_check_rigid_accepts_float32_poses_and_tracers():
    pose = geometry.rigid(axis_angle(normal(3)), jnp.ones(3))
    np.testing.assert_array_equal(geometry.check_rigid("pose", pose), pose)
    jax.jit(lambda matrix: geometry.check_rigid("pose", 2 * matrix))(pose)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m[:3], r"pose: got shape \[3, 4\]; give \[\.\.\., 4, 4\]"),
        (lambda m: m.astype(bool), "pose: got dtype bool"),
        (lambda m: m.at[0, 3].set(jnp.nan), "pose: got 1 NaN or infinite"),
        (lambda m: m.at[3, 0].set(1.0), "pose: got the last row .1.0, 0.0, 0.0, 1.0."),
        (lambda m: m * 1.001, "pose: got the last row"),
        (lambda m: m.at[:3, :3].multiply(1.001), r"pose: got a rotation whose R\^T R .* 0.002"),
        (lambda m: m.at[:, 0].multiply(-1.0), r"pose: got a reflection"),
    ],
)
def test_check_rigid_says_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        geometry.check_rigid("pose", change(jnp.eye(4)))
