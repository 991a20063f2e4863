"""Metrics: two arrays in, a number out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def psnr(
    prediction: Float[Array, "*batch height width channels"],
    target: Float[Array, "*batch height width channels"],
    mask: Bool[Array, "*batch height width"] | None = None,
) -> Float[Array, ""]:
    """Measures the peak signal-to-noise ratio over all pixels, -10 log10(mean squared error).

    Args:
        prediction: Colour; the peak is 1.
        target: The truth.
        mask: True where a pixel counts; all of them by default.

    Returns:
        Decibels; infinity for equal images, NaN if no pixel counts.
    """
    squared = jnp.square(prediction - target)
    if mask is None:
        return -10 * jnp.log10(jnp.mean(squared))
    # Selected, not multiplied: a masked pixel may hold NaN.
    counted = jnp.where(mask[..., None], squared, jnp.zeros_like(squared))
    pixels = jnp.sum(mask, dtype=squared.dtype)
    return -10 * jnp.log10(jnp.sum(counted) / (pixels * prediction.shape[-1]))


def ssim(
    prediction: Float[Array, "*batch height width channels"],
    target: Float[Array, "*batch height width channels"],
) -> Float[Array, "*batch"]:
    """Measures structural similarity with an 11 x 11 Gaussian window (sigma 1.5).

    The mean over channels and over the window positions that lie inside the image.

    Args:
        prediction: Colour in [0, 1].
        target: The truth.

    Returns:
        1 for equal images, less otherwise. Differentiable.

    Raises:
        ValueError: If a side of the image is shorter than the window.

    References:
        Wang et al., "Image Quality Assessment: From Error Visibility to Structural
        Similarity", IEEE TIP 2004, equation 13.
    """
    import dm_pix

    if min(prediction.shape[-3:-1]) < 11:
        raise ValueError(
            f"prediction: got {prediction.shape[-3]} x {prediction.shape[-2]} pixels; "
            "give images of at least 11 x 11, the size of the window"
        )
    # dm-pix counts on implicit promotion, which the caller may have forbidden.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return jnp.asarray(dm_pix.ssim(prediction, target))
