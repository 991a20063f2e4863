"""What every shader offers."""

from typing import Protocol

from jaxtyping import Array, Float, Key


class Shader(Protocol):
    """A map from spheres' features and viewing directions to colour, in two stages.

    `per_sphere` makes of each sphere's features what is blended. Calling the shader makes of that,
    blended, the colour of each pixel. What a stage does for spheres costs nothing for pixels, and
    few blended channels make a fast blend: a shader that is linear in the features belongs into
    the first stage.

    Blending is over nothing, so values fade out with alpha, and so must the colour: shaders return
    *premultiplied* colour, over which `(1 - alpha) * background` is added.

    Attributes:
        channels: How many features a sphere needs for this shader.
        blended: How many channels of a sphere are blended.
    """

    channels: int
    blended: int

    def per_sphere(
        self,
        features: Float[Array, "spheres channels"],
        directions: Float[Array, "*views spheres 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*views_or_none spheres blended"]:
        """Computes what is blended of each sphere.

        Args:
            features: Features of the spheres.
            directions: Unit vectors from each view's sensor to the spheres, in the spheres' frame.
            view_weight: Strength in [0, 1] of all that depends on the direction.

        Returns:
            Channels for each view, or once, without the axes of views, where all views are to
            blend the same. Differentiable in all floating-point arguments.
        """
        ...

    def __call__(
        self,
        features: Float[Array, "*pixels blended"],
        alpha: Float[Array, "*pixels"],
        directions: Float[Array, "*pixels 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*pixels 3"]:
        """Computes the premultiplied colour of each pixel.

        Args:
            features: What `per_sphere` returned, blended over a background of zero.
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
