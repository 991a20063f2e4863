"""Means over what a ray meets, out of sums over it and nothing behind."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Below this a ray meets nothing: derivatives of a quotient have its square in the denominator.
_LEAST_ALPHA = 1e-12


def mean_of(blended: Float[Array, "*rays"], alpha: Float[Array, "*rays"]) -> Float[Array, "*rays"]:
    """Divides what is blended over a background of 0 by the spheres' share; 0 where none is."""
    seen = alpha > _LEAST_ALPHA
    return jnp.where(seen, blended / jnp.where(seen, alpha, 1), 0)
