"""What every shader offers."""

from typing import Protocol

from jaxtyping import Array, Float, Key


class Shader(Protocol):
    """A map from blended features, coverage and viewing direction to colour.

    Features arrive blended over nothing, so they fade out with alpha, and so must the colour:
    shaders return *premultiplied* colour, over which `(1 - alpha) * background` is added.

    Attributes:
        channels: How many features a sphere needs for this shader.
    """

    channels: int

    def __call__(
        self,
        features: Float[Array, "*pixels channels"],
        alpha: Float[Array, "*pixels"],
        directions: Float[Array, "*pixels 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*pixels 3"]:
        """Computes the premultiplied colour of each pixel.

        Args:
            features: Features blended over a background of zero.
            alpha: Share of the pixel covered by spheres, in [0, 1].
            directions: Unit viewing directions in the spheres' frame.
            view_weight: Strength in [0, 1] of all that depends on the direction.

        Returns:
            Premultiplied colour, differentiable in all floating-point arguments.
        """
        ...

    def initial_features(
        self, colors: Float[Array, "spheres 3"], key: Key[Array, ""]
    ) -> Float[Array, "spheres channels"]:
        """Gives spheres features with which they show `colors` from everywhere.

        Args:
            colors: Colours in [0, 1].
            key: Randomness for features that must differ at the start.
        """
        ...
