"""A windshield in front of a lens."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._typing import Numbers, float_array, pytree
from ...geometry import unit
from .._inverse import invert_plane, jacobian, polynomial
from ._lens import Lens


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class WindshieldLens:
    """A lens behind a windshield that bends rays by two bivariate polynomials.

    A ray (x, y, z) of length 1 outside the windshield has the angles phi = asin x and
    theta = asin y. Inside they are the values of the polynomials

        sum over j of theta^j (sum over i <= N - j of c_ij phi^i),

    coefficients in this order: all i for j = 0 first. The way out is the inverse, by
    Newton's method: pixel to ray and back agree to rounding. `StoredWindshieldLens` takes
    the approximate inverse that a calibration brings along.

    Attributes:
        lens: The lens behind the glass.
        horizontal: Coefficients for phi in radians; (N + 1)(N + 2) / 2 of them.
        vertical: Coefficients for theta in radians, of any degree too.

    Raises:
        ValueError: If an array has the wrong shape or dtype, or is not finite.

    References:
        `BivariateWindshieldModel` of NVIDIA NCore.
    """

    lens: Lens
    horizontal: Float[Array, "*views n"]
    vertical: Float[Array, "*views m"]

    def __init__(self, lens: Lens, horizontal: Numbers, vertical: Numbers):
        _set_fields(self, lens, horizontal=horizontal, vertical=vertical)

    @property
    def principal(self) -> Float[Array, "*views 2"]:
        """See `Lens`."""
        return self.lens.principal

    def directions(
        self, pixels: Float[Array, "*grid 2"]
    ) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
        """See `Lens`."""
        inside, valid = self.lens.directions(pixels)
        inside = unit(inside)
        coefficients = self.horizontal, self.vertical
        outside, found = invert_plane(_deflect, _one_to_one, _angles(inside, valid), coefficients)
        valid &= found
        return _direction(*outside, inside, valid), valid

    def pixels(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
        """See `Lens`."""
        return _through(self.lens, self.horizontal, self.vertical, points)

    def half_pixel(self) -> Float[Array, ""]:
        """See `Lens`."""
        return self.lens.half_pixel()

    def scaled(self, ratio: Float[Array, "2"]) -> "WindshieldLens":
        """See `Lens`."""
        return dataclasses.replace(self, lens=self.lens.scaled(ratio))


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class StoredWindshieldLens:
    """A windshield with polynomials for both ways, as a calibration stores them.

    Both ways are closed forms. They are each other's inverse as far as the coefficients
    are; for the polynomials see `WindshieldLens`.

    Attributes:
        lens: The lens behind the glass.
        horizontal: Coefficients for phi on the way in, in radians.
        vertical: Coefficients for theta on the way in.
        horizontal_inverse: Coefficients for phi on the way out.
        vertical_inverse: Coefficients for theta on the way out.

    Raises:
        ValueError: As `WindshieldLens`.
    """

    lens: Lens
    horizontal: Float[Array, "*views n"]
    vertical: Float[Array, "*views m"]
    horizontal_inverse: Float[Array, "*views k"]
    vertical_inverse: Float[Array, "*views l"]

    def __init__(
        self,
        lens: Lens,
        horizontal: Numbers,
        vertical: Numbers,
        horizontal_inverse: Numbers,
        vertical_inverse: Numbers,
    ):
        _set_fields(
            self,
            lens,
            horizontal=horizontal,
            vertical=vertical,
            horizontal_inverse=horizontal_inverse,
            vertical_inverse=vertical_inverse,
        )

    @property
    def principal(self) -> Float[Array, "*views 2"]:
        """See `Lens`."""
        return self.lens.principal

    def directions(
        self, pixels: Float[Array, "*grid 2"]
    ) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
        """See `Lens`."""
        inside, valid = self.lens.directions(pixels)
        inside = unit(inside)
        coefficients = self.horizontal_inverse, self.vertical_inverse
        outside = _deflect(*_angles(inside, valid), coefficients)
        valid &= _is_direction(*outside)
        return _direction(*outside, inside, valid), valid

    def pixels(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
        """See `Lens`."""
        return _through(self.lens, self.horizontal, self.vertical, points)

    def half_pixel(self) -> Float[Array, ""]:
        """See `Lens`."""
        return self.lens.half_pixel()

    def scaled(self, ratio: Float[Array, "2"]) -> "StoredWindshieldLens":
        """See `Lens`."""
        return dataclasses.replace(self, lens=self.lens.scaled(ratio))


def _set_fields(shield, lens, **polynomials):
    object.__setattr__(shield, "lens", lens)
    views = lens.principal.shape[:-1]
    for name, value in polynomials.items():
        array = float_array(name, value, (..., None), lens.principal.dtype)
        if array.shape[:-1] != views:
            raise ValueError(
                f"{name}: got leading axes {list(array.shape[:-1])} for a stack of {list(views)} "
                "lenses; give every array of a stack the same ones"
            )
        count, degree = array.shape[-1], _degree(array)
        if (degree + 1) * (degree + 2) // 2 != count:
            raise ValueError(
                f"{name}: got {count} coefficients; give 1, 3, 6, 10, ...: "
                "all terms up to one total degree"
            )
        object.__setattr__(shield, name, array)


def _degree(coefficients):
    """The total degree of a bivariate polynomial."""
    return (math.isqrt(8 * coefficients.shape[-1] + 1) - 3) // 2


def _bivariate(coefficients, phi, theta):
    degree, start, value = _degree(coefficients), 0, jnp.zeros_like(phi)
    powers = []
    for j in range(degree + 1):
        powers.append(polynomial(coefficients[start : start + degree + 1 - j], phi))
        start += degree + 1 - j
    for power in reversed(powers):
        value = value * theta + power
    return value


def _deflect(phi, theta, coefficients):
    horizontal, vertical = coefficients
    return _bivariate(horizontal, phi, theta), _bivariate(vertical, phi, theta)


def _one_to_one(phi, theta, coefficients):
    """Whether angles are those of a direction, at which the glass does not fold the image."""
    coefficients, phi, theta = jax.lax.stop_gradient((coefficients, phi, theta))
    _, (xx, xy, yx, yy) = jacobian(_deflect, phi, theta, coefficients)
    return _is_direction(phi, theta) & (xx * yy - xy * yx > 0) & (xx + yy > 0)


def _through(lens, horizontal, vertical, points):
    """The pixels of points outside the windshield."""
    squared = jnp.sum(points * points, axis=-1)
    valid = squared > 0
    norm = jnp.sqrt(jnp.where(valid, squared, jnp.ones_like(squared)))
    outside = points / norm[..., None]
    phi, theta = _deflect(*_angles(outside, valid), (horizontal, vertical))
    valid &= _is_direction(phi, theta)
    pixels, seen = lens.pixels(_direction(phi, theta, outside, valid))
    return pixels, valid & seen


def _angles(directions, valid):
    """The arcsines of x and y; 0 where it has no derivative, straight to a side."""
    x, y = directions[..., 0], directions[..., 1]
    inside = valid & (jnp.abs(x) < 1) & (jnp.abs(y) < 1)
    zero = jnp.zeros_like(x)
    return jnp.arcsin(jnp.where(inside, x, zero)), jnp.arcsin(jnp.where(inside, y, zero))


def _is_direction(phi, theta):
    x, y = jnp.sin(phi), jnp.sin(theta)
    return x * x + y * y < 1


def _direction(phi, theta, other, valid):
    """The unit vector of two angles, on the side of the image plane of another vector."""
    x, y = jnp.sin(phi), jnp.sin(theta)
    rest = jnp.where(valid, 1 - x * x - y * y, jnp.ones_like(x))
    z = jnp.where(other[..., 2] < 0, -jnp.sqrt(rest), jnp.sqrt(rest))
    return jnp.stack([x, y, z], axis=-1)
