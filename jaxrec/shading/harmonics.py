"""Real spherical harmonics and the shader made of them."""

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

MAX_DEGREE = 3
_CONSTANT = 0.5 / math.sqrt(math.pi)


def harmonics_basis(
    directions: Float[Array, "*batch 3"], degree: int
) -> Float[Array, "*batch functions"]:
    r"""Evaluates the real spherical harmonics up to a degree.

    The functions are orthonormal on the sphere, $\int Y_i Y_j\,d\omega = \delta_{ij}$, ordered by
    degree l and then by order m = -l..l, without the Condon-Shortley phase.

    Args:
        directions: Unit vectors.
        degree: Largest degree, 0 to 3.

    Returns:
        The (degree + 1)^2 values for each direction. Differentiable.

    Raises:
        ValueError: If the degree is out of range.
    """
    if not 0 <= degree <= MAX_DEGREE:
        raise ValueError(f"degree: got {degree}, want 0 to {MAX_DEGREE}")
    x, y, z = directions[..., 0], directions[..., 1], directions[..., 2]
    values = [jnp.full_like(x, _CONSTANT)]
    if degree >= 1:
        first = math.sqrt(3 / (4 * math.pi))
        values += [first * y, first * z, first * x]
    if degree >= 2:
        cross = math.sqrt(15 / (4 * math.pi))
        values += [
            cross * x * y,
            cross * y * z,
            math.sqrt(5 / (16 * math.pi)) * (3 * z * z - 1),
            cross * x * z,
            cross / 2 * (x * x - y * y),
        ]
    if degree >= 3:
        outer, middle = math.sqrt(35 / (32 * math.pi)), math.sqrt(21 / (32 * math.pi))
        inner = math.sqrt(105 / (4 * math.pi))
        values += [
            outer * y * (3 * x * x - y * y),
            inner * x * y * z,
            middle * y * (5 * z * z - 1),
            math.sqrt(7 / (16 * math.pi)) * z * (5 * z * z - 3),
            middle * x * (5 * z * z - 1),
            inner / 2 * z * (x * x - y * y),
            outer * x * (x * x - 3 * y * y),
        ]
    return jnp.stack(values, axis=-1)


class SphericalHarmonics(nnx.Module):
    """Shows a sphere in colours that vary smoothly with the viewing direction.

    A sphere's features are three coefficients (red, green, blue) for each function, the constant
    one first. They are evaluated once for each sphere, in the direction from the sensor to its
    center, so that three channels are blended whatever the degree. Zero coefficients show mid
    grey, 0.5.

    Colours are not clamped to [0, 1]: a clamped sphere gets no gradient from the very views that
    show its colour to be wrong, and negative colours, which the loss removes, do no harm.

    Attributes:
        degree: Largest degree of the harmonics.
        channels: Features of each sphere, 3 (degree + 1)^2.
        blended: Channels that are blended, 3.
    """

    def __init__(self, degree: int = 2):
        """Chooses the degree, 0 to 3."""
        if not 0 <= degree <= MAX_DEGREE:
            raise ValueError(f"SphericalHarmonics: degree: got {degree}, want 0 to {MAX_DEGREE}")
        self.degree = degree
        self.channels = 3 * (degree + 1) ** 2
        self.blended = 3

    def per_sphere(
        self,
        features: Float[Array, "spheres channels"],
        directions: Float[Array, "*views spheres 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*views_or_none spheres 3"]:
        """Evaluates the colour of each sphere. See `Shader`."""
        color = 0.5 + _CONSTANT * features[..., :3]
        if self.degree == 0:
            return color
        basis = harmonics_basis(directions, self.degree)[..., 1:]
        basis = basis * jnp.asarray(view_weight, features.dtype)
        # A product and a sum, whose gradients are products too: on a CPU, the slices of a sum term
        # by term take three times as long to differentiate.
        rest = features[..., 3:].reshape(*features.shape[:-1], -1, 3)
        shape = (*directions.shape[:-1], *rest.shape[-2:])
        varying = (basis[..., None] * jnp.broadcast_to(rest, shape)).sum(axis=-2)
        return jnp.broadcast_to(color, varying.shape) + varying

    def __call__(
        self,
        features: Float[Array, "*pixels 3"],
        alpha: Float[Array, "*pixels"],
        directions: Float[Array, "*pixels 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*pixels 3"]:
        """Returns the blended colours. See `Shader`."""
        del alpha, directions, view_weight
        return features

    def initial_features(
        self, colors: Float[Array, "spheres 3"], key: Key[Array, ""]
    ) -> Float[Array, "spheres channels"]:
        """Sets the constant function's coefficients. See `Shader`."""
        del key
        rest = jnp.zeros((colors.shape[0], self.channels - 3), colors.dtype)
        return jnp.concatenate([(colors - 0.5) / _CONSTANT, rest], axis=-1)
