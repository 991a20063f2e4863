"""Metrics against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec import metrics
from jaxrec.metrics import color_corrected

ssim = jax.jit(metrics.ssim)


def flip_pair():
    """Colours in 255ths, so that an 8-bit file holds them exactly: a ramp and a negative in it."""
    row, column = np.mgrid[:12, :16]
    target = np.stack([16 * column, 20 * row, 8 * (row + column)], axis=-1)
    prediction = target.copy()
    prediction[3:7, 4:10] = 255 - prediction[3:7, 4:10]
    return tuple(np.float32(image) / np.float32(255) for image in (prediction, target))


def images(*shape):
    random = np.random.default_rng(0)
    return tuple(jnp.asarray(random.uniform(size=shape), jnp.float32) for _ in range(2))


def test_psnr_is_that_of_a_constant_error():
    # An error of 0.1 everywhere is 20 dB below a peak of 1.
    assert metrics.psnr(jnp.full((4, 5, 3), 0.6), jnp.full((4, 5, 3), 0.5)) == pytest.approx(20)


def test_psnr_of_equal_images_is_infinite():
    image, _ = images(4, 4, 3)
    assert metrics.psnr(image, image) == jnp.inf


def test_psnr_counts_the_masked_pixels_only():
    prediction, target = images(6, 5, 3)
    mask = jnp.zeros((6, 5), bool).at[:2].set(True)
    expected = metrics.psnr(prediction[:2], target[:2])
    spoiled = prediction.at[3].set(jnp.nan)
    assert metrics.psnr(spoiled, target, mask) == pytest.approx(float(expected), rel=1e-6)
    assert jnp.isnan(metrics.psnr(prediction, target, jnp.zeros((6, 5), bool)))


def test_ssim_is_the_formula_for_one_window():
    # An 11 x 11 image has a single window: the formula is a handful of weighted moments.
    prediction, target = (np.asarray(image, np.float64) for image in images(11, 11, 1))
    weight = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    weight = np.outer(weight, weight)[..., None] / weight.sum() ** 2
    a, b = (weight * prediction).sum(), (weight * target).sum()
    variance_a, variance_b = (
        (weight * prediction**2).sum() - a**2,
        (weight * target**2).sum() - b**2,
    )
    covariance = (weight * prediction * target).sum() - a * b
    expected = (2 * a * b + 1e-4) * (2 * covariance + 9e-4)
    expected /= (a * a + b * b + 1e-4) * (variance_a + variance_b + 9e-4)
    actual = ssim(jnp.asarray(prediction, jnp.float32), jnp.asarray(target, jnp.float32))
    assert actual == pytest.approx(expected, abs=1e-5)


def test_ssim_of_equal_images_is_one():
    image, other = images(2, 16, 20, 3)
    np.testing.assert_allclose(ssim(image, image), 1, atol=1e-6)
    assert np.all(ssim(image, other) < 0.5)


def test_ssim_has_a_finite_gradient_on_flat_images():
    flat = jnp.zeros((12, 12, 3))
    gradient = jax.jit(jax.grad(lambda image: metrics.ssim(image, flat)))(flat)
    assert np.all(np.isfinite(gradient))


def test_ssim_rejects_images_below_its_window():
    with pytest.raises(ValueError, match="prediction: got 10 x 12 pixels; .* 11 x 11"):
        metrics.ssim(jnp.zeros((10, 12, 3)), jnp.zeros((10, 12, 3)))


@pytest.mark.parametrize(
    "options, expected", [({}, 0.203586), ({"pixels_per_degree": 30.0}, 0.156570)]
)
def test_flip_is_that_of_its_own_command_line(options, expected):
    # From `flip -r target.png -t prediction.png -v 2` (and `-ppd 30`), version 1.7.
    assert metrics.flip(*flip_pair(), **options) == pytest.approx(expected, abs=1e-6)


def test_flip_of_equal_images_is_zero():
    _, target = flip_pair()
    assert metrics.flip(target, target.copy()) == 0


def test_flip_counts_the_masked_pixels_only():
    prediction, target = flip_pair()
    mask = np.zeros(target.shape[:2], bool)
    mask[3:7, 4:10] = True
    expected = metrics.flip(prediction, target, mask)
    assert 0 < mask.mean() * expected < metrics.flip(prediction, target)
    for spoiled in (np.float32(np.nan), np.float32(7)):
        images = [np.where(mask[..., None], image, spoiled) for image in (prediction, target)]
        assert metrics.flip(*images, mask) == expected
    assert metrics.flip(prediction, target, ~mask) == 0


def test_flip_of_nothing_that_can_be_compared_is_nan():
    prediction, target = flip_pair()
    assert np.isnan(metrics.flip(prediction, target, np.zeros(target.shape[:2], bool)))
    prediction[0, 0] = np.nan
    assert np.isnan(metrics.flip(prediction, target))


@pytest.mark.parametrize(
    "change, options, message",
    [
        (lambda image: image[:-1], {}, r"prediction: got shape \(11, 16, 3\) .* same size"),
        (
            lambda image: 2 * image,
            {},
            r"prediction: got values from 0 to 1.88.*; clip them to \[0, 1\]",
        ),
        (lambda image: image, {"pixels_per_degree": 0.0}, "pixels_per_degree: got 0.0; give"),
    ],
)
def test_flip_reports_what_it_cannot_compare(own_errors, change, options, message):
    prediction, target = flip_pair()
    with pytest.raises(ValueError, match=message):
        metrics.flip(change(prediction), target, **options)


# Colour correction


@pytest.fixture
def colors():
    return np.random.default_rng(3).uniform(0.2, 0.8, (9, 11, 3)).astype(np.float32)


def test_an_affine_change_of_colours_is_undone(colors):
    matrix = np.asarray([[0.9, 0.1, 0.0], [0.0, 0.8, 0.1], [0.05, 0.0, 0.7]])
    changed = (colors @ matrix.T + 0.05).astype(np.float32)
    # The inverse map enlarges the rounding of float32 by less than two.
    np.testing.assert_allclose(color_corrected(changed, colors), colors, atol=1e-6)


def test_correction_never_does_harm_and_stays_in_range(colors):
    other = np.random.default_rng(4).random(colors.shape).astype(np.float32)
    corrected = color_corrected(other, colors)
    assert corrected.min() >= 0 and corrected.max() <= 1
    assert np.square(corrected - colors).mean() <= np.square(other - colors).mean()
    np.testing.assert_allclose(color_corrected(colors, colors), colors, atol=1e-6)


def test_correction_counts_the_masked_pixels_only(colors):
    changed = (0.5 * colors + 0.1).astype(np.float32)
    mask = np.ones(colors.shape[:2], bool)
    mask[:4] = False
    changed[:4] = np.random.default_rng(5).random((4, 11, 3))
    changed[0, 0] = np.nan
    found = color_corrected(changed, colors, mask)
    np.testing.assert_allclose(found[4:], colors[4:], atol=1e-6)
    nothing = color_corrected(changed, colors, np.zeros_like(mask))
    np.testing.assert_array_equal(nothing, changed)


def test_flat_images_are_corrected_to_the_mean(colors):
    flat = np.full_like(colors, 0.25)
    expected = np.broadcast_to(colors.mean(axis=(0, 1)), colors.shape)
    np.testing.assert_allclose(color_corrected(flat, colors), expected, atol=1e-5)


def test_correction_wants_one_size(colors, own_errors):
    with pytest.raises(ValueError, match="give images of the same size"):
        color_corrected(colors[1:], colors)
