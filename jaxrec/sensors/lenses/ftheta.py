"""f-theta lenses: a polynomial between the angle from the axis and the distance in pixels."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._typing import Numbers, concrete, float_array, pytree
from .._image import check_positive, like
from ._lens import centered, lens_array, set_lens_fields
from ._radial import Inward, Outward, radial_directions, radial_offsets

_IDENTITY = ((1.0, 0.0), (0.0, 1.0))


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class _FTheta(abc.ABC):
    """What both have: fields, and everything but the radius."""

    principal: Float[Array, "*views 2"]
    coefficients: Float[Array, "*views n"]
    max_angle: Float[Array, "*views"]
    linear: Float[Array, "*views 2 2"]

    def __init__(
        self,
        principal: Numbers,
        coefficients: Numbers,
        max_angle: Numbers,
        linear: Numbers = _IDENTITY,
    ):
        _set_fields(self, principal, coefficients, max_angle, linear)

    @abc.abstractmethod
    def radius(self) -> Outward | Inward:
        """How angles and distances from the axis correspond."""

    def directions(
        self, pixels: Float[Array, "*grid 2"]
    ) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
        """See `Lens`."""
        return radial_directions(self.radius(), _plane(self, pixels))

    def pixels(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
        """See `Lens`."""
        offsets, valid = radial_offsets(self.radius(), points)
        return _image(self, offsets), valid

    def scaled(self, ratio: Float[Array, "2"]) -> Any:
        """See `Lens`."""
        rows = jnp.broadcast_to(ratio[:, None], self.linear.shape)
        return dataclasses.replace(
            self,
            principal=self.principal * like(ratio, self.principal),
            linear=self.linear * rows,
        )


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class FThetaLens(_FTheta):
    """An f-theta lens whose polynomial gives the distance in pixels from the angle.

    A direction at the angle t from the axis is seen at

        principal + linear f(t) (x, y) / |(x, y)|,   f(t) = c0 + c1 t + c2 t^2 + ...

    The field of view may exceed 180 degrees. The lens ends where f stops growing or at the
    largest angle, whichever comes first. `FThetaBackwardLens` is the same the other way.

    Attributes:
        principal: (cx, cy) in pixels, from the image's upper left corner. NCore stores it
            from the first pixel's centre: add 0.5.
        coefficients: c0, c1, ... in pixels per radian^i; c1 positive.
        max_angle: Largest angle from the axis in radians, in (0, pi].
        linear: Matrix from sensor to image axes; [[c, d], [e, 1]] in NCore's terms.

    Raises:
        ValueError: If an array has the wrong shape or dtype, is not finite, or is not
            positive where it must be, or the matrix mirrors or has no inverse.

    References:
        Courbon et al., "A generic fisheye camera model for robotic applications",
        IROS 2007, for such polynomials; the conventions are NCore's.
    """

    def radius(self) -> Outward:
        """How angles and distances from the axis correspond."""
        return Outward(self.coefficients, self.max_angle)

    def half_pixel(self) -> Float[Array, ""]:
        """See `Lens`."""
        return 0.5 / (_magnification(self) * jax.lax.stop_gradient(self.coefficients[1]))


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class FThetaBackwardLens(_FTheta):
    """An f-theta lens whose polynomial gives the angle from the distance in pixels.

    A pixel at the distance r from the axis, after the inverse of the linear part, shows the
    angle b0 + b1 r + b2 r^2 + ... from the axis; see `FThetaLens`.

    Attributes:
        principal: (cx, cy) in pixels, from the image's upper left corner. NCore stores it
            from the first pixel's centre: add 0.5.
        coefficients: b0, b1, ... in radians per pixel^i; b1 positive.
        max_angle: Largest angle from the axis in radians, in (0, pi].
        linear: Matrix from sensor to image axes; [[c, d], [e, 1]] in NCore's terms.

    Raises:
        ValueError: As `FThetaLens`.
    """

    def radius(self) -> Inward:
        """How angles and distances from the axis correspond."""
        return Inward(self.coefficients, self.max_angle)

    def half_pixel(self) -> Float[Array, ""]:
        """See `Lens`."""
        return 0.5 * jax.lax.stop_gradient(self.coefficients[1]) / _magnification(self)


def _set_fields(lens, principal, coefficients, max_angle, linear):
    center = lens_array("principal", principal, 2)
    dtype, views = center.dtype, center.shape[:-1]
    matrix = float_array("linear", linear, (..., 2, 2), dtype)
    angle = float_array("max_angle", max_angle, (...,), dtype)
    fields = {
        "principal": center,
        "coefficients": float_array("coefficients", coefficients, (..., None), dtype),
        "max_angle": jnp.broadcast_to(angle, views) if angle.ndim == 0 else angle,
        "linear": jnp.broadcast_to(matrix, (*views, 2, 2)) if matrix.ndim == 2 else matrix,
    }
    if fields["coefficients"].shape[-1] < 2:
        raise ValueError("coefficients: got fewer than 2; give the constant term and the slope")
    check_positive("coefficients[1]", fields["coefficients"][..., 1], "a slope")
    check_positive("max_angle", fields["max_angle"], "radians")
    values = concrete(fields["linear"])
    if values is not None and np.any(np.linalg.det(values) <= 0):
        raise ValueError(
            f"linear: got {values.tolist()}, of determinant 0 or less; "
            "give a matrix that keeps the image's orientation"
        )
    set_lens_fields(lens, fields, max_angle=0, linear=2)


def _plane(lens, pixels):
    """Points of the image plane before the linear part."""
    x, y = jnp.moveaxis(centered(lens.principal, pixels), -1, 0)
    (a, b), (c, d) = lens.linear
    determinant = a * d - b * c
    return jnp.stack([(d * x - b * y) / determinant, (a * y - c * x) / determinant], axis=-1)


def _image(lens, offsets):
    x, y = offsets[..., 0], offsets[..., 1]
    (a, b), (c, d) = lens.linear
    return jnp.stack([a * x + b * y, c * x + d * y], axis=-1) + like(lens.principal, offsets)


def _magnification(lens):
    (a, b), (c, d) = jax.lax.stop_gradient(lens.linear)
    return jnp.sqrt(a * d - b * c)
