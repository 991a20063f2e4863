"""Metrics: two arrays in, a number out."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32

FLIP_PIXELS_PER_DEGREE = 67.02064514160156
"""FLIP's default viewing distance: 0.7 m from a display 0.7 m wide with 3840 pixels in a row."""


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


def color_corrected(
    prediction: Float32[np.ndarray, "height width 3"],
    target: Float32[np.ndarray, "height width 3"],
    mask: Bool[np.ndarray, "height width"] | None = None,
) -> Float32[np.ndarray, "height width 3"]:
    """Brings an image's colours as close to another's as an affine map of them can.

    A 3 x 3 matrix and an offset, by least squares over the pixels that count, in float64 on the
    host. What differs after that is no matter of exposure or white balance.

    Args:
        prediction: Colour in [0, 1].
        target: The truth.
        mask: True where a pixel counts; all of them by default.

    Returns:
        The prediction with new colours, clipped to [0, 1]; as it was if no pixel counts.

    Raises:
        ValueError: If the images differ in size.
    """
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction: got shape {prediction.shape} for a target of {target.shape}; give images "
            "of the same size"
        )
    counted = np.ones(target.shape[:2], bool) if mask is None else mask
    counted = counted & np.isfinite(prediction).all(axis=-1) & np.isfinite(target).all(axis=-1)
    if not counted.any():
        return prediction

    def terms(colors):
        ones = np.ones((*colors.shape[:-1], 1))
        return np.concatenate([colors.astype(np.float64), ones], axis=-1)

    # Of flat images many maps are best: this takes the least one.
    affine, *_ = np.linalg.lstsq(
        terms(prediction[counted]), target[counted].astype(np.float64), rcond=1e-8
    )
    return np.clip(terms(prediction) @ affine, 0, 1).astype(np.float32)


def flip(
    prediction: Float32[np.ndarray, "height width 3"],
    target: Float32[np.ndarray, "height width 3"],
    mask: Bool[np.ndarray, "height width"] | None = None,
    *,
    pixels_per_degree: float = FLIP_PIXELS_PER_DEGREE,
) -> float:
    """Measures LDR-FLIP, the difference that a person sees who flips between two images.

    The mean over pixels of NVIDIA's own implementation, which runs on the host: no gradient, and
    no use inside `jax.jit`.

    Args:
        prediction: sRGB colour in [0, 1].
        target: The truth.
        mask: True where a pixel counts; all of them by default. Others are black in both images,
            so that the value does not depend on what they hold.
        pixels_per_degree: Pixels of the image in one degree of the viewer's field, > 0: what
            decides how fine a difference is still seen.

    Returns:
        0 for equal images, up to 1, without unit; NaN if no pixel counts or one of those that do
        is not finite.

    Raises:
        ValueError: If the images differ in size, are not colours in [0, 1], or
            `pixels_per_degree` is not positive.

    References:
        Andersson et al., "FLIP: A Difference Evaluator for Alternating Images", HPG 2020.
    """
    from flip_evaluator import evaluate

    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction: got shape {prediction.shape} for a target of {target.shape}; give images "
            "of the same size"
        )
    # Checked here, for the package ends the process instead.
    if not 0 < pixels_per_degree < np.inf:
        raise ValueError(f"pixels_per_degree: got {pixels_per_degree}; give a number above 0")
    counted = np.ones(target.shape[:2], bool) if mask is None else mask
    # The package takes NaN for a colour.
    if not counted.any() or not np.isfinite([prediction[counted], target[counted]]).all():
        return float("nan")
    black = np.float32(0)
    images = {
        "prediction": np.where(counted[..., None], prediction, black),
        "target": np.where(counted[..., None], target, black),
    }
    for name, image in images.items():
        if image.min() < 0 or image.max() > 1:
            raise ValueError(
                f"{name}: got values from {image.min():g} to {image.max():g}; clip them to [0, 1]"
            )
    errors, *_ = evaluate(
        images["target"],
        images["prediction"],
        "LDR",
        applyMagma=False,
        parameters={"ppd": float(pixels_per_degree)},
    )
    # In float64: the package's own mean is a running float32 sum, 1e-5 off at 800 x 800.
    return float(errors[..., 0].mean(where=counted, dtype=np.float64))
