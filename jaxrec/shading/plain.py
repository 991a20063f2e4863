"""The shader for which a feature is a colour."""

from flax import nnx
from jaxtyping import Array, Float, Key


class PlainColor(nnx.Module):
    """Shows a sphere's three features as its colour, the same from everywhere."""

    channels: int = 3
    blended: int = 3

    def per_sphere(
        self,
        features: Float[Array, "spheres 3"],
        directions: Float[Array, "*views spheres 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "spheres 3"]:
        """Returns the features. See `Shader`."""
        del directions, view_weight
        return features

    def __call__(
        self,
        features: Float[Array, "*pixels 3"],
        alpha: Float[Array, "*pixels"],
        directions: Float[Array, "*pixels 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*pixels 3"]:
        """Returns the features. See `Shader`."""
        del alpha, directions, view_weight
        return features

    def initial_features(
        self, colors: Float[Array, "spheres 3"], key: Key[Array, ""]
    ) -> Float[Array, "spheres 3"]:
        """Returns the colours. See `Shader`."""
        del key
        return colors
