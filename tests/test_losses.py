"""Training objectives against NumPy, against dm-pix, and against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxrec import losses, metrics

DIFFERENCES = {"l1": losses.l1, "mse": losses.mse, "d_ssim": losses.d_ssim}


def images(key, shape=(24, 30)):
    first, second = jax.random.split(key)
    return jax.random.uniform(first, (*shape, 3)), jax.random.uniform(second, (*shape, 3))


@pytest.fixture(params=DIFFERENCES)
def difference(request):
    return DIFFERENCES[request.param]


def test_l1_and_mse_are_means(key):
    prediction, target = images(key)
    error = np.asarray(prediction, np.float64) - np.asarray(target, np.float64)
    np.testing.assert_allclose(losses.l1(prediction, target), np.abs(error).mean(), rtol=1e-6)
    np.testing.assert_allclose(losses.mse(prediction, target), (error**2).mean(), rtol=1e-6)


def test_masked_means_are_means_of_the_selection(key):
    prediction, target = images(key)
    mask = jax.random.bernoulli(key, 0.3, prediction.shape[:2])
    chosen = np.asarray(prediction)[np.asarray(mask)], np.asarray(target)[np.asarray(mask)]
    np.testing.assert_allclose(
        losses.l1(prediction, target, mask), np.abs(chosen[0] - chosen[1]).mean(), rtol=1e-6
    )


def test_equal_images_have_no_difference(difference, key):
    image, _ = images(key)
    np.testing.assert_allclose(difference(image, image), 0, atol=1e-6)


def test_a_full_mask_changes_nothing(difference, key):
    prediction, target = images(key)
    full = difference(prediction, target, jnp.ones(prediction.shape[:2], bool))
    np.testing.assert_allclose(full, difference(prediction, target), rtol=1e-5)


def test_masked_pixels_do_not_matter(difference, key):
    prediction, target = images(key)
    mask = jnp.arange(prediction.shape[1]) % 3 > 0
    mask = jnp.broadcast_to(mask, prediction.shape[:2])
    changed = jnp.where(mask[..., None], prediction, 0.5)
    np.testing.assert_array_equal(
        difference(prediction, target, mask), difference(changed, target, mask)
    )
    gradient = jax.grad(difference)(prediction, target, mask)
    assert not np.any(np.asarray(gradient)[~np.asarray(mask)])


def test_an_empty_mask_is_zero_and_harmless(difference, key):
    prediction, target = images(key)
    empty = jnp.zeros(prediction.shape[:2], bool)
    value, gradient = jax.value_and_grad(difference)(prediction, target, empty)
    assert value == 0 and not np.any(gradient)


def test_d_ssim_at_every_pixel_is_that_of_dm_pix(key):
    prediction, target = images(key)
    target = 0.7 * prediction + 0.3 * target
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = (1 - metrics.ssim(prediction, target)) / 2
    np.testing.assert_allclose(losses.d_ssim(prediction, target, stride=1), expected, atol=1e-5)


def test_d_ssim_with_strides_estimates_the_same(key):
    prediction, target = images(key, (80, 80))
    target = 0.7 * prediction + 0.3 * target
    full = losses.d_ssim(prediction, target, stride=1)
    np.testing.assert_allclose(losses.d_ssim(prediction, target), full, rtol=0.05)


def test_d_ssim_of_a_stack_is_the_mean(key):
    prediction, target = images(key)
    other = prediction[::-1]
    both = losses.d_ssim(jnp.stack([prediction, other]), jnp.stack([target, target]))
    apart = losses.d_ssim(prediction, target) + losses.d_ssim(other, target)
    np.testing.assert_allclose(both, apart / 2, rtol=1e-5)


def test_gradients_are_derivatives(difference, key, x64):
    prediction, target = (x[:12, :13].astype(jnp.float64) for x in images(key))
    mask = jax.random.bernoulli(key, 0.8, prediction.shape[:2])
    check_grads(
        jax.jit(lambda image: difference(image, target, mask)), (prediction,), 1, modes=["rev"]
    )


def test_small_images_are_refused(key):
    prediction, target = images(key, (10, 30))
    with pytest.raises(ValueError, match="30 x 10, want at least 11"):
        losses.d_ssim(prediction, target)


def test_regularisers_count_the_living():
    values = jnp.asarray([0.2, 0.4, 9.0])
    alive = jnp.asarray([True, True, False])
    np.testing.assert_allclose(losses.opacity_cost(values, alive), 0.3, rtol=1e-6)
    np.testing.assert_allclose(losses.radius_cost(values, alive), 0.3, rtol=1e-6)


def test_weighted_sum_is_named():
    terms = {"a": jnp.float32(2), "b": jnp.float32(3)}
    assert losses.weighted_sum(terms, {"a": 0.5, "b": 2.0, "unused": 1.0}) == 7
    with pytest.raises(ValueError, match="none given for b"):
        losses.weighted_sum(terms, {"a": 1.0})
    with pytest.raises(ValueError, match="got none"):
        losses.weighted_sum({}, {})
