"""Rotations and rigid transforms: functions on arrays.

A rigid transform is a 4 x 4 matrix `b_from_a` that takes points in frame a to
frame b; products read without thought: `c_from_a = c_from_b @ b_from_a`.
Everything is differentiable, and written as sums of products rather than as matrix
multiplications, which accelerators may round to fewer digits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._typing import Numbers, concrete, float_array

RIGID_TOLERANCE = 1e-4
"""How far R^T R may be from the identity; float32 files carry about 1e-6."""


def unit(vectors: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Scales vectors to length 1; a zero vector gives NaN."""
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def matrix_from_quaternion(quaternion: Float[Array, "*batch 4"]) -> Float[Array, "*batch 3 3"]:
    """Turns quaternions into rotation matrices.

    Args:
        quaternion: (w, x, y, z), of any length but 0: it is normalised.

    Returns:
        The rotation matrices. Differentiable.
    """
    w, x, y, z = jnp.moveaxis(unit(quaternion), -1, 0)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def matrix_from_axis_angle(axis_angle: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """Turns rotation vectors into rotation matrices (Rodrigues' formula).

    Args:
        axis_angle: The axis times the angle in radians; any size, 0 included.

    Returns:
        The rotation matrices. Differentiable everywhere, at 0 too.
    """
    sine, cosine = _quotients(jnp.sum(axis_angle * axis_angle, axis=-1))
    x, y, z = jnp.moveaxis(axis_angle, -1, 0)
    rows = (
        (1 - cosine * (y * y + z * z), cosine * x * y - sine * z, cosine * x * z + sine * y),
        (cosine * x * y + sine * z, 1 - cosine * (x * x + z * z), cosine * y * z - sine * x),
        (cosine * x * z - sine * y, cosine * y * z + sine * x, 1 - cosine * (x * x + y * y)),
    )
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def rigid_from_twist(twist: Float[Array, "*batch 6"]) -> Float[Array, "*batch 4 4"]:
    r"""Turns twists into rigid transforms: the exponential map of SE(3).

    With t = |w| the rotation is exp([w]) and the translation V v, where
    V = I + (1 - cos t) / t^2 [w] + (t - sin t) / t^3 [w]^2.

    Args:
        twist: Rotation vector w in radians, then v in metres; any size, 0 included.

    Returns:
        The transforms. Differentiable everywhere, at 0 too.

    References:
        Eade, "Lie Groups for 2D and 3D Transformations", 2013, section 3.2.
    """
    turn, shift = twist[..., :3], twist[..., 3:]
    squared = jnp.sum(turn * turn, axis=-1, keepdims=True)
    # Differences that cancel at small angles; the series' next terms are below rounding.
    small = squared < 1
    safe = jnp.where(small, jnp.ones_like(squared), squared)
    angle = jnp.sqrt(safe)
    near = jnp.where(small, squared, jnp.zeros_like(squared))
    first = jnp.where(small, _series(near, 1 / 2, 2), 2 * jnp.square(jnp.sin(angle / 2)) / safe)
    second = jnp.where(small, _series(near, 1 / 6, 3), (angle - jnp.sin(angle)) / (safe * angle))
    once = jnp.cross(turn, shift)
    moved = shift + first * once + second * jnp.cross(turn, once)
    return rigid(matrix_from_axis_angle(turn), moved)


def matrix_from_rotation6(rotation6: Float[Array, "*batch 6"]) -> Float[Array, "*batch 3 3"]:
    """Turns two 3-vectors into a rotation matrix whose first two **rows** they span.

    Args:
        rotation6: Two vectors that are not parallel; Gram-Schmidt keeps the first one's
            direction and the second one's side.

    Returns:
        The rotation matrices. Differentiable.

    References:
        Zhou et al., "On the Continuity of Rotation Representations in Neural
        Networks", CVPR 2019, section 4.2 (there: columns).
    """
    first = unit(rotation6[..., :3])
    second = rotation6[..., 3:]
    second = unit(second - jnp.sum(first * second, axis=-1, keepdims=True) * first)
    return jnp.stack([first, second, jnp.cross(first, second)], axis=-2)


def rigid(
    rotation: Float[Array, "*batch 3 3"], translation: Float[Array, "*batch 3"]
) -> Float[Array, "*batch 4 4"]:
    """Puts a rotation and a translation in metres into one 4 x 4 matrix."""
    top = jnp.concatenate([rotation, translation[..., None]], axis=-1)
    bottom = jnp.zeros_like(top[..., :1, :]).at[..., 3].set(1)
    return jnp.concatenate([top, bottom], axis=-2)


def rigid_inverse(b_from_a: Float[Array, "*batch 4 4"]) -> Float[Array, "*batch 4 4"]:
    """Inverts rigid transforms by transposing the rotation."""
    rotation = jnp.swapaxes(b_from_a[..., :3, :3], -1, -2)
    return rigid(rotation, -rotate(rotation, b_from_a[..., :3, 3]))


def look_at(eye: Numbers, target: Numbers, up: Numbers) -> Float[Array, "4 4"]:
    """Makes the pose of a camera at `eye` whose optical axis meets `target`.

    Args:
        eye: Position of the camera, in metres.
        target: A point to see in the middle of the image.
        up: The direction, of any length, that is upward in the image.

    Returns:
        `world_from_camera`. Differentiable.

    Raises:
        ValueError: If the arguments do not fix a pose: the eye is the target, or `up` is
            parallel to the line of sight.
    """
    eye = float_array("eye", eye, (3,))
    target = float_array("target", target, (3,), eye.dtype)
    up = float_array("up", up, (3,), eye.dtype)
    forward = target - eye
    right = jnp.cross(forward, up)
    _check_sight(concrete(eye), concrete(forward), concrete(up))
    forward, right = unit(forward), unit(right)
    down = jnp.cross(forward, right)
    return rigid(jnp.stack([right, down, forward], axis=-1), eye)


def rotate(
    rotation: Float[Array, "... 3 3"], vectors: Float[Array, "*batch 3"]
) -> Float[Array, "*batch 3"]:
    """Multiplies vectors by matrices, at full precision on every platform.

    Args:
        rotation: One matrix for each vector; missing leading axes are shared by all.
        vectors: The vectors, in any unit.

    Returns:
        The rotated vectors. Differentiable.
    """
    missing = vectors.ndim - rotation.ndim + 1
    columns = jnp.moveaxis(jnp.expand_dims(rotation, tuple(range(missing))), -1, 0)
    x, y, z = (vectors[..., i : i + 1] for i in range(3))
    return x * columns[0] + y * columns[1] + z * columns[2]


def multiply(
    first: Float[Array, "*batch 3 3"], second: Float[Array, "*batch 3 3"]
) -> Float[Array, "*batch 3 3"]:
    """Multiplies matrices, at full precision on every platform. Differentiable."""
    products = (first[..., :, i : i + 1] * second[..., i : i + 1, :] for i in range(3))
    return sum(products, jnp.zeros_like(first))


def compose(
    c_from_b: Float[Array, "*batch 4 4"], b_from_a: Float[Array, "... 4 4"]
) -> Float[Array, "*batch 4 4"]:
    """Multiplies rigid transforms, at full precision on every platform. Differentiable.

    Args:
        c_from_b: The transforms on the left.
        b_from_a: Those on the right; missing leading axes, or such of length 1, are shared.

    Returns:
        The products `c_from_a`.
    """
    right = jnp.broadcast_to(b_from_a, c_from_b.shape)
    rotation = multiply(c_from_b[..., :3, :3], right[..., :3, :3])
    moved = rotate(c_from_b[..., :3, :3], right[..., :3, 3])
    return rigid(rotation, moved + c_from_b[..., :3, 3])


def axis_angle_from_matrix(rotation: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3"]:
    """Turns rotation matrices into rotation vectors; see `matrix_from_axis_angle`.

    Args:
        rotation: The rotation matrices.

    Returns:
        The axis times the angle in [0, pi] radians. Differentiable everywhere but at pi,
        where the axis changes its sign.

    References:
        Shepperd, "Quaternion from Rotation Matrix", 1978: the largest component of the
        quaternion tells the others without loss of digits.
    """
    m = [[rotation[..., i, j] for j in range(3)] for i in range(3)]
    x, y, z = m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]
    xy, xz, yz = m[1][0] + m[0][1], m[2][0] + m[0][2], m[2][1] + m[1][2]
    # Each row is the quaternion (w, x, y, z) times 4 of one of its components.
    rows = [
        [1 + m[0][0] + m[1][1] + m[2][2], x, y, z],
        [x, 1 + m[0][0] - m[1][1] - m[2][2], xy, xz],
        [y, xy, 1 - m[0][0] + m[1][1] - m[2][2], yz],
        [z, xz, yz, 1 - m[0][0] - m[1][1] + m[2][2]],
    ]
    candidates = jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)
    largest = jnp.argmax(jnp.stack([row[i] for i, row in enumerate(rows)], axis=-1), axis=-1)
    chosen = jnp.take_along_axis(candidates, largest[..., None, None], axis=-2)[..., 0, :]
    quaternion = unit(chosen)
    quaternion = jnp.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    cosine, sine = quaternion[..., 0], quaternion[..., 1:]
    squared = jnp.sum(sine * sine, axis=-1)
    # 2 atan(t)/t with t^2 as the variable, as in `matrix_from_axis_angle`.
    small = squared < 1e-6
    t = jnp.where(small, squared / jnp.where(small, cosine * cosine, jnp.ones_like(cosine)), 0)
    series = (1 - t * (1 / 3 - t * (1 / 5 - t / 7))) / jnp.where(small, cosine, 1)
    norm = jnp.sqrt(jnp.where(small, jnp.ones_like(squared), squared))
    factor = 2 * jnp.where(small, series, jnp.arctan2(norm, cosine) / norm)
    return factor[..., None] * sine


def twist_from_rigid(b_from_a: Float[Array, "*batch 4 4"]) -> Float[Array, "*batch 6"]:
    """The inverse of `rigid_from_twist`, for turns of less than pi radians. Differentiable."""
    turn = axis_angle_from_matrix(b_from_a[..., :3, :3])
    translation = b_from_a[..., :3, 3]
    # (1 - (t/2) cot(t/2)) / t^2, by its series near 0.
    squared = jnp.sum(turn * turn, axis=-1)
    sine, cosine = _quotients(squared)
    small = squared < 1e-4
    safe = jnp.where(small, jnp.ones_like(squared), squared)
    series = 1 / 12 + squared * (1 / 720 + squared / 30240)
    factor = jnp.where(small, series, (1 - sine / (2 * cosine)) / safe)
    across = jnp.cross(turn, translation)
    velocity = translation - across / 2 + factor[..., None] * jnp.cross(turn, across)
    return jnp.concatenate([turn, velocity], axis=-1)


def _quotients(squared: jax.Array) -> tuple[jax.Array, jax.Array]:
    """sin(t)/t and (1 - cos(t))/t^2 with t^2 as the variable: smooth at 0.

    There the quotients are 0/0; the series' next terms are below rounding under the threshold.
    """
    small = squared < 1e-6
    angle = jnp.sqrt(jnp.where(small, jnp.ones_like(squared), squared))
    sine = jnp.where(small, 1 - squared / 6, jnp.sin(angle) / angle)
    half = jnp.sin(angle / 2) / angle
    cosine = jnp.where(small, 0.5 - squared / 24, 2 * half * half)
    return sine, cosine


def _series(squared: jax.Array, first: float, power: int) -> jax.Array:
    """Sums 1/power! - t^2/(power + 2)! + ..., given t^2 in [0, 1] and the first term."""
    term, total = jnp.full_like(squared, first), jnp.full_like(squared, first)
    for k in range(power + 2, power + 16, 2):
        term = -term * squared / (k * (k - 1))
        total = total + term
    return total


def _check_sight(eye: np.ndarray | None, forward: np.ndarray | None, up: np.ndarray | None) -> None:
    if eye is None or forward is None or up is None:
        return
    if not forward.any():
        raise ValueError(f"target: got {eye.tolist()}, the eye itself; give another point")
    across = np.linalg.norm(np.cross(forward, up))
    if across <= 1e-6 * np.linalg.norm(forward) * np.linalg.norm(up):
        raise ValueError(
            f"up: got {up.tolist()}, zero or parallel to the line of sight; "
            "give a direction across it"
        )


def check_rigid(name: str, matrix: Any, dtype: Any = None) -> jax.Array:
    """Checks that an argument is a rigid transform and returns it as an array.

    Args:
        name: The argument's name, for the message.
        matrix: Shape [4, 4], or a stack of such. Values are not looked at while traced.
        dtype: The dtype to return; by default the value's own.

    Raises:
        ValueError: If the shape, the dtype or the last row is wrong, a value is not
            finite, or the upper left 3 x 3 block is not a rotation.
    """
    array = float_array(name, matrix, (..., 4, 4), dtype)
    values = concrete(array)
    if values is None or not values.size:
        return array
    if np.any(np.abs(values[..., 3, :] - np.array([0, 0, 0, 1])) > RIGID_TOLERANCE):
        row = values[..., 3, :].reshape(-1, 4)[0].tolist()
        raise ValueError(f"{name}: got the last row {row}; give [0, 0, 0, 1]")
    check_rotation(name, values[..., :3, :3])
    return array


def check_rotation(name: str, matrix: Any, dtype: Any = None) -> jax.Array:
    """Checks that an argument is a rotation matrix and returns it as an array.

    Args:
        name: The argument's name, for the message.
        matrix: Shape [3, 3], or a stack of such. Values are not looked at while traced.
        dtype: The dtype to return; by default the value's own.

    Raises:
        ValueError: If the shape or dtype is wrong, a value is not finite, columns are
            not orthonormal within 1e-4, or the matrix mirrors.
    """
    array = float_array(name, matrix, (..., 3, 3), dtype)
    values = concrete(array)
    if values is None or not values.size:
        return array
    values = values.astype(np.float64)
    error = np.max(np.abs(np.swapaxes(values, -1, -2) @ values - np.eye(3)))
    if error > RIGID_TOLERANCE:
        raise ValueError(
            f"{name}: got a rotation whose R^T R differs from the identity by {error:.2g}; "
            f"give one within {RIGID_TOLERANCE:g}, without scale or shear"
        )
    if np.any(np.linalg.det(values) < 0):
        raise ValueError(
            f"{name}: got a reflection (determinant -1); give a rotation: "
            "flip one axis, or convert from the left-handed convention first"
        )
    return array
