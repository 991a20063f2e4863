"""Rows of a table, whose gradient does not depend on the order in which threads come."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.custom_vjp
def gather(
    table: Float[Array, "rows channels"], index: Int[Array, "*batch"]
) -> Float[Array, "*batch channels"]:
    """Reads rows of a table, which any number of threads may do.

    Args:
        table: What is read.
        index: Numbers of rows. One past the end reads the last row and takes no part in the
            gradient.

    Returns:
        The rows. Differentiable once, in reverse mode, to a billionth of the sum of all sizes;
        the same to the bit each time.
    """
    return table.at[index].get(mode="clip")


def _forward(table, index):
    return gather(table, index), (table, index)


def _backward(kept, d_out):
    # Whole numbers add up to the same in any order, which floats do not: threads may come as they
    # like. The sum of all sizes is 2^30 at most, so that nothing overflows; a power of two as the
    # unit keeps even the rounding of that sum from showing.
    table, index = kept
    inside = index < table.shape[0]
    d_out = jnp.where(inside[..., None], d_out, jnp.zeros_like(d_out))
    total = jnp.abs(d_out).sum()
    unit = jnp.exp2(jnp.ceil(jnp.log2(jnp.where(total > 0, total, jnp.ones_like(total)))) - 30)
    whole = jnp.round(d_out / unit).astype(jnp.int32)
    sums = jnp.zeros(table.shape, jnp.int32).at[index].add(whole, mode="drop")
    return sums.astype(table.dtype) * unit, None


gather.defvjp(_forward, _backward)
