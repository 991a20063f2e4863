r"""The OpenCV lens model with coefficients (k1, k2, p1, p2, k3), and its inverse.

With s = |x|^2, the radial polynomial g = 1 + k1 s + k2 s^2 + k3 s^3 and p = (p2, p1),
the undistorted image point x = (x/z, y/z) is seen at

    distort(x) = (g + 2 p.x) x + s p.

This is the gradient of a potential, so its Jacobian is symmetric:

    J = (g + 2 p.x) I + 2 g' x x^T + 2 (x p^T + p x^T),   g' = dg/ds.

The lens maps one to one around its centre for as long as J stays positive definite.
Further out the polynomial folds the image over. No lens does that: there the model has
left the region that it was calibrated in, and such points have no image here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Newton's method follows the solution out from the centre: `TRACK` targets on the way to
# the point, then `POLISH` more steps on the point itself. Measured over 600 random
# coefficient sets, points up to 50 degrees off axis and 90 % of the way to the fold: all
# converge with (4, 6); one jump to the point loses 1 in 30 sets, and OpenCV's own fixed
# point up to half of the image of a wide-angle lens.
TRACK, POLISH = 8, 6


def distort(
    points: Float[Array, "*batch 2"], coefficients: Float[Array, "5"]
) -> Float[Array, "*batch 2"]:
    """Applies the lens model to undistorted image points.

    Args:
        points: (x/z, y/z) in the camera's frame.
        coefficients: (k1, k2, p1, p2, k3), OpenCV's order, without unit.

    Returns:
        Distorted points; the same points to the bit if all coefficients are 0.
        Differentiable. `is_monotonic` tells where they make sense.
    """
    x, y, _ = _model(points[..., 0], points[..., 1], coefficients)
    return jnp.stack([x, y], axis=-1)


def undistort(
    points: Float[Array, "*batch 2"], coefficients: Float[Array, "5"]
) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
    """Inverts `distort`.

    Args:
        points: Distorted (x/z, y/z), as measured.
        coefficients: (k1, k2, p1, p2, k3), OpenCV's order, without unit.

    Returns:
        The undistorted points, the same to the bit if all coefficients are 0, and where
        they exist: outside the image of the region in which the lens is one to one, the
        point is 0 and the flag is false. Differentiable in both arguments, forward,
        reverse and repeatedly, by the implicit function theorem.
    """
    inverse = _inverse(points, coefficients)
    again = distort(*jax.lax.stop_gradient((inverse, coefficients)))
    target = jax.lax.stop_gradient(points)
    tolerance = 64 * jnp.finfo(points.dtype).eps * (1 + jnp.max(jnp.abs(target), axis=-1))
    return inverse, jnp.max(jnp.abs(again - target), axis=-1) <= tolerance


def is_monotonic(
    points: Float[Array, "*batch 2"], coefficients: Float[Array, "5"]
) -> Bool[Array, "*batch"]:
    """Whether the lens model is one to one from its centre out to each undistorted point.

    That is, the radial polynomial grows all the way out to the point, and the Jacobian is
    positive definite at the point itself.
    """
    points, coefficients = jax.lax.stop_gradient((points, coefficients))
    x, y = points[..., 0], points[..., 1]
    k1, k2, _, _, k3 = coefficients
    squared = x * x + y * y
    # d(r g)/dr = 1 + 3 k1 s + 5 k2 s^2 + 7 k3 s^3 is smallest on [0, |x|^2] at an end or at
    # a root of 21 k3 s^2 + 10 k2 s + 3 k1; written so that k3 = 0 and k2 = 0 divide nothing.
    root = jnp.sqrt(jnp.maximum(25 * k2 * k2 - 63 * k1 * k3, 0))
    half = -5 * k2 - jnp.where(k2 < 0, -root, root)
    growing = jnp.ones(squared.shape, bool)
    for stationary in (_divide(half, 21 * k3), _divide(3 * k1, half), jnp.zeros_like(k1)):
        inside = jnp.logical_and(stationary > 0, stationary < squared)
        s = jnp.where(inside, stationary, squared)
        growing &= 1 + s * (3 * k1 + s * (5 * k2 + s * 7 * k3)) > 0
    _, _, (xx, xy, yy) = _model(x, y, coefficients)
    return growing & (xx + yy > 0) & (xx * yy - xy * xy > 0)


@jax.custom_jvp
def _inverse(points, coefficients):
    """Solves distort(x) = points; 0 where that has no solution in the one-to-one region."""
    target_x, target_y = points[..., 0], points[..., 1]

    def step(i, point):
        here_x, here_y = point
        fraction = jnp.minimum((i.astype(points.dtype) + 1) / TRACK, 1)
        x, y, jacobian = _model(here_x, here_y, coefficients)
        step_x, step_y = _solve(jacobian, x - fraction * target_x, y - fraction * target_y)
        return here_x - step_x, here_y - step_y

    start = jnp.zeros_like(target_x), jnp.zeros_like(target_y)
    found = jnp.stack(jax.lax.fori_loop(0, TRACK + POLISH, step, start), axis=-1)
    valid = is_monotonic(found, coefficients) & jnp.all(jnp.isfinite(found), axis=-1)
    return jnp.where(valid[..., None], found, jnp.zeros_like(found))


@_inverse.defjvp
def _inverse_jvp(primals, tangents):
    # distort(x, k) = points  =>  dx = J^-1 (dpoints - d(distort)/dk dk).
    points, coefficients = primals
    d_points, d_coefficients = tangents
    inverse = _inverse(points, coefficients)
    _, moved = jax.jvp(lambda k: distort(inverse, k), (coefficients,), (d_coefficients,))
    _, _, jacobian = _model(inverse[..., 0], inverse[..., 1], coefficients)
    right = d_points - moved
    return inverse, jnp.stack(_solve(jacobian, right[..., 0], right[..., 1]), axis=-1)


def _model(x, y, coefficients):
    """The distorted point, and the entries (xx, xy, yy) of its symmetric Jacobian."""
    k1, k2, p1, p2, k3 = coefficients
    s = x * x + y * y
    scale = 1 + s * (k1 + s * (k2 + s * k3)) + 2 * (p2 * x + p1 * y)
    slope = 2 * (k1 + s * (2 * k2 + s * 3 * k3))
    jacobian = (
        scale + slope * x * x + 4 * p2 * x,
        slope * x * y + 2 * (p2 * y + p1 * x),
        scale + slope * y * y + 4 * p1 * y,
    )
    return scale * x + s * p2, scale * y + s * p1, jacobian


def _solve(jacobian, x, y):
    """Applies the inverse of a symmetric 2 x 2 matrix."""
    xx, xy, yy = jacobian
    determinant = xx * yy - xy * xy
    return (yy * x - xy * y) / determinant, (xx * y - xy * x) / determinant


def _divide(a, b):
    """A quotient that is 0, not NaN, where the divisor is 0."""
    return jnp.where(b == 0, jnp.zeros_like(a), a / jnp.where(b == 0, jnp.ones_like(b), b))
