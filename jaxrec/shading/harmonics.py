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
    one first. Coefficients are blended first and evaluated once for each pixel: evaluation is
    linear, so this differs from evaluating each sphere only in that all spheres of a pixel share
    the pixel's direction. Zero coefficients show mid grey, 0.5, where the alpha is 1.

    Attributes:
        degree: Largest degree of the harmonics.
        channels: Features of each sphere, 3 (degree + 1)^2.
    """

    def __init__(self, degree: int = 2):
        """Chooses the degree, 0 to 3."""
        if not 0 <= degree <= MAX_DEGREE:
            raise ValueError(f"SphericalHarmonics: degree: got {degree}, want 0 to {MAX_DEGREE}")
        self.degree = degree
        self.channels = 3 * (degree + 1) ** 2

    def __call__(
        self,
        features: Float[Array, "*pixels channels"],
        alpha: Float[Array, "*pixels"],
        directions: Float[Array, "*pixels 3"],
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*pixels 3"]:
        """Evaluates the blended coefficients. See `Shader`."""
        color = 0.5 * alpha[..., None] + _CONSTANT * features[..., :3]
        if self.degree == 0:
            return color
        # Term by term: XLA's own sum over a short axis is ten times slower on a CPU.
        basis = harmonics_basis(directions, self.degree)
        terms = (
            basis[..., k, None] * features[..., 3 * k : 3 * k + 3]
            for k in range(1, basis.shape[-1])
        )
        return color + jnp.asarray(view_weight, features.dtype) * sum(terms)

    def initial_features(
        self, colors: Float[Array, "spheres 3"], key: Key[Array, ""]
    ) -> Float[Array, "spheres channels"]:
        """Sets the constant function's coefficients. See `Shader`."""
        del key
        rest = jnp.zeros((colors.shape[0], self.channels - 3), colors.dtype)
        return jnp.concatenate([(colors - 0.5) / _CONSTANT, rest], axis=-1)
