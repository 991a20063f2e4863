"""A base colour and a small network's view-dependent residual."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from .harmonics import MAX_DEGREE, harmonics_basis


class ViewMLP(nnx.Module):
    """Adds to a base colour what a small network sees in the features and the direction.

    The first three features are the base colour; the network reads all of them and the direction
    in low-degree harmonics. Its output is bounded by `limit`, faded by alpha, and zero before
    training, so that the shader starts as `PlainColor`. With few training views an unregularised
    network explains the *viewpoint* instead of the scene: let `view_weight` come in late.

    Attributes:
        channels: Features of each sphere, 3 + `extra`.
        blended: As many: the network runs on blended features, once for each pixel.
        degree: Largest degree of the harmonics that describe the direction.
        limit: Largest change of a colour.
    """

    def __init__(
        self,
        extra: int = 5,
        *,
        hidden: int = 32,
        degree: int = 2,
        limit: float = 0.5,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Builds the network with two hidden layers.

        Args:
            extra: Features besides the base colour, >= 0.
            hidden: Width of the hidden layers, >= 1.
            degree: Degree of the harmonics of the direction, 0 to 3; 0 ignores it.
            limit: Largest change of a colour, > 0.
            dtype: Type of the weights, which must be that of the features.
            rngs: Randomness of the weights.

        Raises:
            ValueError: If a size is out of range.
        """
        if extra < 0 or hidden < 1 or not 0 <= degree <= MAX_DEGREE or not limit > 0:
            raise ValueError(
                f"ViewMLP: got extra={extra}, hidden={hidden}, degree={degree}, limit={limit}; "
                f"want extra >= 0, hidden >= 1, degree 0 to {MAX_DEGREE}, limit > 0"
            )
        self.channels = self.blended = 3 + extra
        self.degree = degree
        self.limit = limit
        inputs = self.channels + (degree + 1) ** 2 - 1
        self.first = nnx.Linear(inputs, hidden, param_dtype=dtype, rngs=rngs)
        self.second = nnx.Linear(hidden, hidden, param_dtype=dtype, rngs=rngs)
        zeros = nnx.initializers.zeros_init()
        self.last = nnx.Linear(hidden, 3, kernel_init=zeros, param_dtype=dtype, rngs=rngs)

    def per_sphere(
        self,
        features: Float[Array, "spheres channels"],
        directions: Float[Array, "*views spheres 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "spheres channels"]:
        """Returns the features. See `Shader`."""
        del directions, view_weight
        return features

    def __call__(
        self,
        features: Float[Array, "*pixels channels"],
        alpha: Float[Array, "*pixels"],
        directions: Float[Array, "*pixels 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*pixels 3"]:
        """Adds the residual to the base colour. See `Shader`."""
        view = harmonics_basis(directions, self.degree)[..., 1:]
        view = view * jnp.asarray(view_weight, features.dtype)
        hidden = nnx.relu(self.first(jnp.concatenate([features, view], axis=-1)))
        residual = jnp.tanh(self.last(nnx.relu(self.second(hidden))))
        return features[..., :3] + self.limit * alpha[..., None] * residual

    def initial_features(
        self, colors: Float[Array, "spheres 3"], key: Key[Array, ""]
    ) -> Float[Array, "spheres channels"]:
        """Starts from the colours and small random extra features. See `Shader`."""
        shape = (colors.shape[0], self.channels - 3)
        return jnp.concatenate([colors, 0.1 * jax.random.normal(key, shape, colors.dtype)], axis=-1)
