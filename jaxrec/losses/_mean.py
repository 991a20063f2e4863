"""Means over what counts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Mask = Bool[Array, "*pixels"] | Float[Array, "*pixels"]


def masked_mean(values: Array, mask: Array | None) -> Array:
    """The mean over pixels and channels, weighted by a mask of pixels; 0 if nothing counts."""
    if mask is None:
        return values.mean()
    weights = mask.astype(values.dtype)
    total = (values * weights[..., None]).sum()
    # Nothing selected gives 0 / tiny = 0; weights that sum to less than one pixel still average.
    floor = jnp.asarray(np.finfo(values.dtype).tiny, values.dtype)
    return total / jnp.maximum(weights.sum() * values.shape[-1], floor)
