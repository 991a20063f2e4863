"""Checks of derivatives, entry by entry."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


# Compiled for once-only use: without optimisation it takes half the time.
@ft.partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def jacobians(function, args):
    """The Jacobian by central differences of fourth order, forward and reverse."""
    start, unravel = ravel_pytree(args)

    def flat(x):
        return ravel_pytree(function(*unravel(x)))[0]

    steps = 1e-3 * jnp.asarray([-2.0, -1, 1, 2])
    weights = jnp.asarray([1.0, -8, 8, -1]) / 12e-3
    units = jnp.eye(start.size)
    moved = start[None, None] + steps[:, None, None] * units[None]
    numeric = jnp.einsum("s,spm->mp", weights, jax.vmap(jax.vmap(flat))(moved))
    return numeric, jax.jacfwd(flat)(start), jax.jacrev(flat)(start)


def assert_exact_derivatives(function, *args, atol=1e-8):
    """Every entry of the Jacobian, in both modes; the differences err by h^4 = 1e-12."""
    numeric, forward, reverse = jacobians(function, args)
    assert np.all(np.isfinite(numeric)) and np.any(numeric)
    np.testing.assert_allclose(forward, numeric, atol=atol)
    np.testing.assert_allclose(reverse, forward, atol=1e-12)
