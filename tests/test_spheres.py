"""Spheres: padding, the unconstrained form, and errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxrec.scene import Spheres, UnconstrainedSpheres


def arrays(count=5, channels=4) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "centers": jnp.asarray(random.normal(size=(count, 3)), jnp.float32),
        "radii": jnp.asarray(random.uniform(0.01, 1, count), jnp.float32),
        "opacities": jnp.asarray(random.uniform(0.01, 0.99, count), jnp.float32),
        "features": jnp.asarray(random.normal(size=(count, channels)), jnp.float32),
    }


def test_create_pads_with_dead_spheres():
    given = arrays()
    spheres = Spheres.create(**given, capacity=8)
    np.testing.assert_array_equal(spheres.alive, np.arange(8) < 5)
    for name, array in given.items():
        padded = getattr(spheres, name)
        np.testing.assert_array_equal(padded[:5], array)
        assert padded.shape == (8, *array.shape[1:]) and not np.any(padded[5:])


def test_create_without_capacity_has_no_spare_rows():
    assert np.all(Spheres.create(**arrays()).alive)
    assert Spheres.create(**arrays(count=0)).centers.shape == (0, 3)


def test_unconstrained_round_trip():
    spheres = Spheres.create(**arrays(), capacity=6)
    again = spheres.unconstrained().constrained()
    np.testing.assert_allclose(again.radii[:5], spheres.radii[:5], rtol=1e-6)
    np.testing.assert_allclose(again.opacities[:5], spheres.opacities[:5], rtol=1e-5)
    for name in ("centers", "features", "alive"):
        np.testing.assert_array_equal(getattr(again, name), getattr(spheres, name))


def test_unconstrained_is_finite_at_the_limits():
    limits = Spheres.create(
        jnp.zeros((3, 3)),
        jnp.array([0.0, 1e-20, 1.0]),
        jnp.array([0.0, 1.0, 0.5]),
        jnp.ones((3, 1)),
    )

    def total(spheres):
        free = spheres.unconstrained()
        return jnp.sum(free.log_radii) + jnp.sum(free.logit_opacities)

    free = limits.unconstrained()
    gradient = jax.grad(total, allow_int=True)(limits)
    for leaf in jax.tree.leaves((free, gradient.radii, gradient.opacities)):
        assert np.all(np.isfinite(leaf))
    back = free.constrained()
    np.testing.assert_allclose(back.opacities, [0, 1, 0.5], atol=1.1e-6)
    np.testing.assert_allclose(back.radii, [1e-8, 1e-8, 1], rtol=1e-5)


def test_constrained_has_the_derivatives_of_exp_and_sigmoid(x64):
    free = Spheres.create(**arrays()).unconstrained()
    log_radii = free.log_radii.astype(jnp.float64)
    logits = free.logit_opacities.astype(jnp.float64)

    def constrain(log_radii, logits):
        changed = UnconstrainedSpheres(free.centers, log_radii, logits, free.features, free.alive)
        spheres = changed.constrained()
        return spheres.radii, spheres.opacities

    check_grads(jax.jit(constrain), (log_radii, logits), order=1, modes=["fwd", "rev"])


def test_spheres_pass_through_transformations():
    stack = jax.vmap(lambda scale: Spheres.create(**arrays()).unconstrained())(jnp.ones(3))
    assert stack.constrained().centers.shape == (3, 5, 3)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(stack)]
    assert paths == [".centers", ".log_radii", ".logit_opacities", ".features", ".alive"]


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("centers", jnp.zeros((5, 2)), r"centers: got shape \[5, 2\]; give \[any, 3\]"),
        ("centers", jnp.zeros((5, 3), bool), "centers: got dtype bool; give float32"),
        ("centers", jnp.full((5, 3), jnp.inf), "centers: got 15 NaN or infinite"),
        ("radii", jnp.zeros(4), "radii: got 4 rows for 5 centers"),
        ("radii", jnp.full(5, -1.0), "radii: got values from -1 to -1; give values from 0 to inf"),
        ("radii", jnp.zeros((5, 1)), r"radii: got shape \[5, 1\]; give \[any\]"),
        ("opacities", jnp.linspace(0, 2, 5), "opacities: got values from 0 to 2; .* 0 to 1"),
        ("features", jnp.zeros(5), r"features: got shape \[5\]; give \[any, any\]"),
        ("features", "blue", "features: got .* give an array of numbers"),
        ("capacity", 4, "capacity: got 4 for 5 spheres; give at least 5"),
    ],
)
def test_create_says_what_is_wrong(own_errors, name, value, message):
    with pytest.raises(ValueError, match=message):
        Spheres.create(**{**arrays(), name: value})
