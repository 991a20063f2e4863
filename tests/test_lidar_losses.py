"""Objectives of lidars against values that can be computed by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxrec import losses

RANGES = {
    "l1": losses.range_l1,
    "huber": functools.partial(losses.range_huber, width=0.3),
    "intensity": losses.intensity_mse,
}
PREDICTION = jnp.asarray([[1.0, 2.5, 3], [9, 5, 6]], jnp.float32)
TARGET = jnp.asarray([[1.1, 2.0, 5], [0, 5, 6]], jnp.float32)
MASK = jnp.asarray([[1, 1, 1], [0, 1, 1]], bool)


@pytest.fixture(params=RANGES)
def difference(request):
    return RANGES[request.param]


def test_differences_are_means_of_the_selection():
    # Of five rays: 0.1, 0.5, 2, 0 and 0.
    call = {name: float(loss(PREDICTION, TARGET, MASK)) for name, loss in RANGES.items()}
    assert call["l1"] == pytest.approx(2.6 / 5, rel=1e-5)
    assert call["huber"] == pytest.approx((0.1**2 / 0.6 + 0.35 + 1.85) / 5, rel=1e-5)
    assert call["intensity"] == pytest.approx((0.01 + 0.25 + 4) / 5, rel=1e-5)
    assert float(losses.range_l1(PREDICTION, TARGET)) == pytest.approx(11.6 / 6, rel=1e-5)


def test_masks_may_be_weights(difference):
    weights = jnp.asarray(MASK, jnp.float32)
    full = difference(PREDICTION, TARGET, MASK)
    np.testing.assert_allclose(difference(PREDICTION, TARGET, weights), full, rtol=1e-6)
    np.testing.assert_allclose(difference(PREDICTION, TARGET, weights / 2), full, rtol=1e-6)


def test_masked_rays_may_hold_anything(difference):
    spoiled, holes = (jnp.where(MASK, x, jnp.nan) for x in (PREDICTION, TARGET))
    value, gradient = jax.value_and_grad(difference)(spoiled, holes, MASK)
    np.testing.assert_array_equal(value, difference(PREDICTION, TARGET, MASK))
    assert np.all(np.isfinite(gradient)) and not np.any(np.asarray(gradient)[1, 0])


def test_an_empty_mask_is_zero_and_harmless(difference):
    empty = jnp.zeros((2, 3), bool)
    for loss in (difference, lambda x, y, mask: losses.drop_bce(x, y > 2, mask)):
        value, gradient = jax.value_and_grad(loss)(jnp.asarray(PREDICTION), TARGET, empty)
        assert value == 0 and not np.any(gradient)
    value, gradient = jax.value_and_grad(losses.sky_cost)(jnp.asarray(PREDICTION), empty)
    assert value == 0 and not np.any(gradient)


def test_drops_cost_what_was_believed_of_the_other():
    drops = jnp.asarray([0.2, 0.9, 0.5], jnp.float32)
    returned = jnp.asarray([True, False, False])
    kept = 1e-3 + 0.998 * np.array([0.8, 0.9, 0.5])
    wanted = -np.log(kept).mean()
    assert float(losses.drop_bce(drops, returned)) == pytest.approx(wanted, rel=1e-5)
    # As cross-entropies go, the mean is least where the probability is the share of drops.
    among = jnp.arange(100) < 30
    shares = np.linspace(0.05, 0.95, 91)
    every = jax.vmap(lambda share: losses.drop_bce(jnp.full(100, share), ~among))
    cost = every(jnp.asarray(shares, jnp.float32))
    assert shares[np.argmin(cost)] == pytest.approx(0.3, abs=0.011)


def test_certain_drops_have_finite_gradients():
    drops, returned = jnp.asarray([0.0, 1, 0, 1]), jnp.asarray([True, True, False, False])
    value, gradient = jax.value_and_grad(losses.drop_bce)(drops, returned)
    assert np.isfinite(value) and np.all(np.abs(gradient) <= 250)
    # Those that are wrong are pulled the right way.
    assert gradient[1] > 100 and gradient[2] < -100


def test_the_sky_is_kept_free():
    alpha, sky = jnp.asarray([0.2, 0.6, 1.0]), jnp.asarray([True, True, False])
    value, gradient = jax.value_and_grad(losses.sky_cost)(alpha, sky)
    assert float(value) == pytest.approx(0.4)
    np.testing.assert_allclose(gradient, [0.5, 0.5, 0])
    # At no alpha there is nothing to pull, and no corner that does.
    assert np.all(np.isfinite(jax.grad(losses.sky_cost)(0 * alpha, sky)))


def test_gradients_are_derivatives(difference, x64):
    prediction, target = (jnp.asarray(x, jnp.float64) for x in (PREDICTION + 0.05, TARGET))
    some = jax.jit(lambda x: difference(x, target, MASK))
    check_grads(some, (prediction,), 1, modes=["rev"])
    returned = jnp.asarray([[True, False, True], [False, True, True]])
    drops = jnp.asarray(np.random.default_rng(0).uniform(0.1, 0.9, (2, 3)))
    cost = jax.jit(lambda x: losses.drop_bce(x, returned, MASK))
    check_grads(cost, (drops,), 1, modes=["rev"])
