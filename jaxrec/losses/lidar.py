"""Objectives for what lidars measure, for depths of cameras that lidars tell, and for the sky.

Values have one number for each ray. A mask selects rays: of the others neither value is looked at,
so that they may hold anything, NaN too.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._mean import Mask
from .image import huber, l1, mse

# Probabilities are mixed with as much of the opposite: it bounds what a single ray can pull.
_DOUBT = 1e-3


def range_l1(
    prediction: Float[Array, "*pixels"],
    target: Float[Array, "*pixels"],
    mask: Mask | None = None,
) -> Float[Array, ""]:
    """Computes the mean absolute difference of ranges.

    Args:
        prediction: Metres along the ray: of a lidar, or the expected depth of a camera.
        target: What was measured: ranges of a sweep, or a `depth_image` of its points.
        mask: Which rays count, or how much: those that returned, or pixels that have a depth.

    Returns:
        Metres, differentiable.
    """
    return l1(*_selected(prediction, target, mask))


def range_huber(
    prediction: Float[Array, "*pixels"],
    target: Float[Array, "*pixels"],
    mask: Mask | None = None,
    *,
    width: float,
) -> Float[Array, ""]:
    """Computes the mean Huber difference of ranges; see `huber`.

    Args:
        prediction: Metres along the ray.
        target: What was measured.
        mask: Which rays count, or how much.
        width: Where the square ends, in metres, > 0: the lidar's noise.

    Returns:
        Metres, differentiable.
    """
    return huber(*_selected(prediction, target, mask), width=width)


def intensity_mse(
    prediction: Float[Array, "*pixels"],
    target: Float[Array, "*pixels"],
    mask: Mask | None = None,
) -> Float[Array, ""]:
    """Computes the mean squared difference of intensities.

    Args:
        prediction: Intensities in [0, 1].
        target: What was measured.
        mask: Which rays count, or how much: those that returned.

    Returns:
        The mean, differentiable.
    """
    return mse(*_selected(prediction, target, mask))


def drop_bce(
    drops: Float[Array, "*pixels"],
    returned: Bool[Array, "*pixels"],
    mask: Mask | None = None,
) -> Float[Array, ""]:
    """Computes the mean binary cross-entropy of dropped rays, in nats.

    Args:
        drops: Probability in [0, 1] that no return comes back.
        returned: Whether one did.
        mask: Which rays count, or how much: those that were fired.

    Returns:
        The mean, differentiable. Probabilities are drawn a thousandth towards 1/2, so that value
        and gradient are finite at 0 and 1: the mean of certain and right answers is 1e-3.
    """
    right = jnp.where(returned, 1 - drops, drops)
    right, sure, mask = _selected(right, jnp.ones_like(right), mask)
    return l1(-jnp.log(_DOUBT + (1 - 2 * _DOUBT) * right), jnp.zeros_like(sure), mask)


def sky_cost(alpha: Float[Array, "*pixels"], sky: Mask) -> Float[Array, ""]:
    """Computes the mean alpha where the sky is, which keeps it free of spheres.

    Args:
        alpha: Share of the pixel covered by spheres, in [0, 1].
        sky: Where the sky is, or how sure.

    Returns:
        The mean in [0, 1], differentiable; 0 where there is no sky.
    """
    return l1(*_selected(alpha, jnp.zeros_like(alpha), sky))


def _selected(prediction: Array, target: Array, mask: Array | None):
    """Both with an axis of channels, equal where the mask is 0, and the mask."""
    if mask is not None:
        # Selected, not multiplied: a masked ray may hold NaN, and so may its gradient.
        counted = mask if mask.dtype == jnp.bool_ else mask > 0
        zero = jnp.zeros_like(prediction)
        prediction = jnp.where(counted, prediction, zero)
        target = jnp.where(counted, target, zero)
    return prediction[..., None], target[..., None], mask
