"""Lenses that bend a ray by its angle from the optical axis alone.

One polynomial is the model: `Outward` gives the distance in the image from the angle,
`Inward` the angle from the distance. The other way is its inverse, on the interval from 0
on which it increases; beyond, it would fold the image over, and there is no ray.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._typing import pytree
from .._inverse import derivative, first_failure, invert_polynomial, polynomial
from ._lens import from_axis, length, sine_over


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Outward:
    """Distance = polynomial(angle), up to a largest angle in radians."""

    coefficients: Float[Array, " n"]
    max_angle: Float[Array, ""]

    def angle(self, distance):
        """The angle, the angle over the distance, and where there is one."""
        limit = self._limit()
        end = polynomial(jax.lax.stop_gradient(self.coefficients), limit)
        start = jax.lax.stop_gradient(self.coefficients[0])
        valid = (distance >= start) & (distance <= end)
        safe = jnp.where(valid, distance, (start + end) / 2)
        angle = invert_polynomial(self.coefficients, safe, limit)
        return angle, 1 / _over(self.coefficients, angle), valid

    def distance(self, angle):
        """The distance, over the angle, and where there is one."""
        valid = angle <= self._limit()
        return _over(self.coefficients, angle), valid

    def _limit(self):
        coefficients, bound = jax.lax.stop_gradient((self.coefficients, self.max_angle))
        slope = derivative(coefficients)
        return first_failure(lambda x: polynomial(slope, x) > 0, jnp.minimum(bound, jnp.pi))


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Inward:
    """Angle = polynomial(distance), up to a largest angle in radians."""

    coefficients: Float[Array, " n"]
    max_angle: Float[Array, ""]

    def angle(self, distance):
        """The angle, the angle over the distance, and where there is one."""
        valid = distance <= self._limit()
        # Beyond its end a polynomial of degree 5 may overflow; 0 is as good as any.
        safe = jnp.where(valid, distance, jnp.zeros_like(distance))
        return polynomial(self.coefficients, safe), _over(self.coefficients, safe), valid

    def distance(self, angle):
        """The distance, over the angle, and where there is one."""
        limit = self._limit()
        end = polynomial(jax.lax.stop_gradient(self.coefficients), limit)
        start = jax.lax.stop_gradient(self.coefficients[0])
        valid = (angle >= start) & (angle <= end)
        safe = jnp.where(valid, angle, (start + end) / 2)
        distance = invert_polynomial(self.coefficients, safe, limit)
        return 1 / _over(self.coefficients, distance), valid

    def _limit(self):
        coefficients, bound = jax.lax.stop_gradient((self.coefficients, self.max_angle))
        slope = derivative(coefficients)

        def holds(x):
            grows = polynomial(slope, x) > 0
            return grows & (polynomial(coefficients, x) <= jnp.minimum(bound, jnp.pi))

        # Real lenses end within twice the distance that their middle promises.
        return first_failure(holds, 4 * bound / coefficients[1])


def radial_directions(
    profile: Outward | Inward, offsets: Float[Array, "*grid 2"]
) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
    """Unit vectors for points of the image plane, counted from the optical axis."""
    angle, ratio, valid = profile.angle(length(offsets))
    across = (sine_over(angle) * ratio)[..., None] * offsets
    return jnp.concatenate([across, jnp.cos(angle)[..., None]], axis=-1), valid


def radial_offsets(
    profile: Outward | Inward, points: Float[Array, "*batch 3"]
) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
    """Points of the image plane, counted from the optical axis."""
    angle, over_radius, defined = from_axis(points)
    over_angle, valid = profile.distance(angle)
    return (over_angle * over_radius)[..., None] * points[..., :2], valid & defined


def _over(coefficients, x):
    """polynomial(x) / x, where the constant term counts as 0 at x = 0."""
    zero = x == 0
    constant = coefficients[0] / jnp.where(zero, jnp.ones_like(x), x)
    return polynomial(coefficients[1:], x) + jnp.where(zero, jnp.zeros_like(x), constant)
