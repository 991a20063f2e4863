"""A small convolutional network that corrects the colours of a whole view."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .harmonics import MAX_DEGREE, harmonics_basis


class UNet(nnx.Module):
    """Computes what is added to the colours of a view, from what its neighbourhood shows.

    Two levels: convolutions of 3 x 3 pixels at full and at half resolution, joined by a skip
    connection. It reads blended features, alpha and the direction in low-degree harmonics. Its
    output is bounded by `limit`, faded by alpha and scaled by the view weight, and zero before
    training. It is a residual: a base that renders well alone stays what it is.

    Attributes:
        degree: Largest degree of the harmonics that describe the direction.
        limit: Largest change of a colour.

    References:
        Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation",
        MICCAI 2015.
    """

    def __init__(
        self,
        channels: int,
        *,
        width: int = 16,
        degree: int = 1,
        limit: float = 0.25,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Builds the network.

        Args:
            channels: Number of blended features.
            width: Channels at full resolution, >= 1; twice as many at half.
            degree: Degree of the harmonics of the direction, 0 to 3; 0 ignores it.
            limit: Largest change of a colour, > 0.
            dtype: Type of the weights, which must be that of the features.
            rngs: Randomness of the weights.

        Raises:
            ValueError: If a size is out of range.
        """
        if channels < 1 or width < 1 or not 0 <= degree <= MAX_DEGREE or not limit > 0:
            raise ValueError(
                f"UNet: got channels={channels}, width={width}, degree={degree}, limit={limit}; "
                f"want channels >= 1, width >= 1, degree 0 to {MAX_DEGREE}, limit > 0"
            )
        self.degree = degree
        self.limit = limit

        def convolution(inputs: int, outputs: int) -> nnx.Conv:
            return nnx.Conv(inputs, outputs, (3, 3), param_dtype=dtype, rngs=rngs)

        self.fine = convolution(channels + (degree + 1) ** 2, width)
        self.coarse = convolution(width, 2 * width)
        self.deep = convolution(2 * width, 2 * width)
        self.joined = convolution(3 * width, width)
        zeros = nnx.initializers.zeros_init()
        self.last = nnx.Linear(width, 3, kernel_init=zeros, param_dtype=dtype, rngs=rngs)

    def __call__(
        self,
        features: Float[Array, "*views height width channels"],
        alpha: Float[Array, "*views height width"],
        directions: Float[Array, "*views height width 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*views height width 3"]:
        """Computes the change of each pixel's premultiplied colour.

        Args:
            features: Features blended over a background of zero.
            alpha: Share of the pixel covered by spheres, in [0, 1].
            directions: Unit viewing directions in the spheres' frame.
            view_weight: Strength in [0, 1] of the whole change.

        Returns:
            What to add, differentiable in all floating-point arguments.
        """
        weight = jnp.asarray(view_weight, features.dtype)
        view = harmonics_basis(directions, self.degree)[..., 1:]
        # Where nothing is, directions say nothing either.
        view = view * alpha[..., None]
        fine = nnx.relu(self.fine(jnp.concatenate([features, alpha[..., None], view], axis=-1)))
        coarse = nnx.relu(self.coarse(_halved(fine)))
        coarse = nnx.relu(self.deep(coarse))
        height, width = alpha.shape[-2:]
        raised = coarse.repeat(2, axis=-3).repeat(2, axis=-2)[..., :height, :width, :]
        joined = nnx.relu(self.joined(jnp.concatenate([fine, raised], axis=-1)))
        residual = jnp.tanh(self.last(joined))
        return weight * self.limit * alpha[..., None] * residual


def _halved(image: Array) -> Array:
    """Means of 2 x 2 pixels; the last row and column of odd sizes count twice."""
    height, width, channels = image.shape[-3:]
    leading = [(0, 0)] * (image.ndim - 3)
    image = jnp.pad(image, [*leading, (0, height % 2), (0, width % 2), (0, 0)], mode="edge")
    shape = (*image.shape[:-3], (height + 1) // 2, 2, (width + 1) // 2, 2, channels)
    return image.reshape(shape).mean(axis=(-4, -2))
