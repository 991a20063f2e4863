"""Any shader as harmonics of each sphere, which other programs can show."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .harmonics import MAX_DEGREE, SphericalHarmonics, harmonics_basis

# Spheres at a time: bounds the memory of their colours in all directions.
_CHUNK = 4096


class Harmonics(NamedTuple):
    """Spheres as `SphericalHarmonics` shows them.

    Attributes:
        features: Coefficients, as that shader reads them; colours in degree 0 are among them.
        psnr: How well they show single, opaque spheres, in decibels against the shader's own
            colours clipped to [0, 1]; infinite where nothing is lost.
    """

    features: Float[Array, "spheres channels"]
    psnr: float


def to_harmonics(
    shader: Any,
    features: Float[Array, "spheres channels"],
    degree: int,
    *,
    view_weight: float = 1.0,
    samples: int = 256,
) -> Harmonics:
    """Fits harmonics to what a shader shows of each sphere, by least squares.

    Each sphere is looked at alone, opaque, from directions spread evenly over the sphere. What a
    shader makes of *blends* of features is lost where it is not linear in them; compare rendered
    views to learn how much (see `jaxrec.train.convert_shader`).

    Args:
        shader: What turns features into colour: a `Shader`.
        features: Of the spheres.
        degree: Of the harmonics, 0 to 3; 0 gives plain colours.
        view_weight: Strength of what depends on the direction, in [0, 1].
        samples: Number of directions, at least four for each function.

    Raises:
        ValueError: If the degree or the number of samples is out of range.
    """
    least = 4 * (degree + 1) ** 2
    if not 0 <= degree <= MAX_DEGREE or samples < least:
        raise ValueError(
            f"to_harmonics: got degree={degree}, samples={samples}; want degree 0 to "
            f"{MAX_DEGREE} and at least {least} samples for it"
        )
    directions = even_directions(samples)
    basis = np.asarray(harmonics_basis(jnp.asarray(directions), degree), np.float64)
    solve = jnp.asarray(np.linalg.pinv(basis), features.dtype)
    target = SphericalHarmonics(degree)
    looks = jnp.asarray(directions, features.dtype)

    @jax.jit
    def fit(part):
        # Every direction is a view of its own.
        shape = (samples, part.shape[0])
        along = jnp.broadcast_to(looks[:, None], (*shape, 3))
        alpha = jnp.ones(shape, part.dtype)

        def look(shader, features, view_weight):
            blended = shader.per_sphere(features, along, view_weight)
            blended = jnp.broadcast_to(blended, (*shape, blended.shape[-1]))
            return shader(blended, alpha, along, view_weight)

        color = look(shader, part, view_weight)
        exact = jax.lax.Precision.HIGHEST
        found = jnp.einsum("ks,snc->nkc", solve, color - 0.5, precision=exact)
        found = found.reshape(part.shape[0], -1)
        shown = look(target, found, 1.0)
        error = jnp.square(jnp.clip(shown, 0, 1) - jnp.clip(color, 0, 1))
        return found, error.sum()

    parts = [features[i : i + _CHUNK] for i in range(0, features.shape[0], _CHUNK)]
    fitted = [fit(part) for part in parts]
    if not fitted:
        return Harmonics(jnp.zeros((0, target.channels), features.dtype), float("inf"))
    total = sum(float(error) for _, error in fitted)
    mean = total / (features.shape[0] * samples * 3)
    psnr = float("inf") if mean == 0 else float(-10 * np.log10(mean))
    return Harmonics(jnp.concatenate([found for found, _ in fitted]), psnr)


def even_directions(count: int) -> Float[np.ndarray, "count 3"]:
    """Spreads unit vectors evenly over the sphere.

    References:
        Gonzalez, "Measurement of Areas on a Sphere Using Fibonacci and Latitude-Longitude
        Lattices", Mathematical Geosciences 2010, section 2.
    """
    place = np.arange(count)
    z = 1 - (2 * place + 1) / count
    azimuth = 2 * np.pi * place / ((1 + np.sqrt(5)) / 2)
    radius = np.sqrt(1 - z * z)
    return np.stack([radius * np.cos(azimuth), radius * np.sin(azimuth), z], axis=-1).astype(
        np.float32
    )
