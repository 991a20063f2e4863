"""Trained values of which each step sees a few rows, with Adam for the rows that it sees."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._typing import pytree

# As for the spheres: gradients of a mean over pixels are tiny.
_ADAM = optax.scale_by_adam(eps=1e-15)


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Values with a row for each image, say, and each row's own moments.

    A row rests while it is not seen. An Adam for all rows would go on along its momentum, and
    take the many gradients of zero for a small slope.

    Attributes:
        values: What is trained.
        moments: Adam's state, with the same leading axis.
    """

    values: Float[Array, "rows ..."]
    moments: Any

    @classmethod
    def create(cls, values: Float[Array, "rows ..."]) -> "Rows":
        """Starts from values, with moments of zero."""
        return cls(values, jax.vmap(_ADAM.init)(values))

    def moved(
        self, index: Int[Array, " seen"], gradients: Float[Array, "seen ..."], rate: ArrayLike
    ) -> "Rows":
        """Takes one step of Adam with the rows that were seen.

        Args:
            index: Their numbers. One that appears twice moves once, along the sum.
            gradients: Of the loss, with respect to each of them.
            rate: Size of the step; one for all, or one for each value of a row.
        """
        # Equal rows compute equal results, so it does not matter which of them is written last.
        same = (index[:, None] == index[None, :]).astype(gradients.dtype)
        flat = gradients.reshape(gradients.shape[0], -1)
        summed = jnp.einsum("ij,jk->ik", same, flat, precision=jax.lax.Precision.HIGHEST)
        seen = jax.tree.map(lambda leaf: leaf[index], self.moments)
        # Optax itself mixes dtypes where JAX is told to be strict.
        with jax.numpy_dtype_promotion("standard"):
            updates: Any
            updates, moments = jax.vmap(_ADAM.update)(summed.reshape(gradients.shape), seen)
        step = jnp.broadcast_to(jnp.asarray(rate, updates.dtype), updates.shape) * updates
        return Rows(
            self.values.at[index].set(self.values[index] - step),
            jax.tree.map(lambda old, new: old.at[index].set(new), self.moments, moments),
        )
