"""OpenCV's full pinhole lens: rational radial, tangential and thin prism terms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._typing import Numbers, pytree
from .._image import like
from .._inverse import first_failure, invert_plane, jacobian
from ._lens import centered, focal_and_principal, lens_array, set_lens_fields

# Wider lenses are no pinholes: at 89 degrees a pixel's tangent has grown 3000-fold.
_WIDEST = np.deg2rad(89.0)


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class RationalLens:
    """A perspective lens with OpenCV's twelve coefficients.

    With s = |x|^2, an undistorted point x = (x/z, y/z) is seen at

        x (1 + k1 s + k2 s^2 + k3 s^3) / (1 + k4 s + k5 s^2 + k6 s^3)
          + (2 p1 x y + p2 (s + 2 x^2), p1 (s + 2 y^2) + 2 p2 x y)
          + (s1 s + s2 s^2, s3 s + s4 s^2),

    times the focal lengths. It is one to one out to where the radial part stops growing or
    the determinant of the Jacobian reaches 0; beyond, pixels and points have no counterpart.

    Attributes:
        focal: (fx, fy) in pixels, positive.
        principal: (cx, cy) in pixels, from the image's upper left corner.
        radial: (k1, k2, k3, k4, k5, k6), without unit. OpenCV's own vector of coefficients
            is ordered (k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4).
        tangential: (p1, p2).
        thin_prism: (s1, s2, s3, s4).

    Raises:
        ValueError: If an array has the wrong shape or dtype, is not finite, or a focal
            length is not positive.
    """

    focal: Float[Array, "*views 2"]
    principal: Float[Array, "*views 2"]
    radial: Float[Array, "*views 6"]
    tangential: Float[Array, "*views 2"]
    thin_prism: Float[Array, "*views 4"]

    def __init__(
        self,
        focal: Numbers,
        principal: Numbers,
        radial: Numbers,
        tangential: Numbers,
        thin_prism: Numbers,
    ):
        fields = focal_and_principal(focal, principal)
        dtype = fields["focal"].dtype
        fields["radial"] = lens_array("radial", radial, 6, dtype)
        fields["tangential"] = lens_array("tangential", tangential, 2, dtype)
        fields["thin_prism"] = lens_array("thin_prism", thin_prism, 4, dtype)
        set_lens_fields(self, fields)

    def directions(
        self, pixels: Float[Array, "*grid 2"]
    ) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
        """See `Lens`."""
        offsets = centered(self.principal, pixels) / like(self.focal, pixels)
        (x, y), valid = invert_plane(
            _distort, _one_to_one, (offsets[..., 0], offsets[..., 1]), self._coefficients()
        )
        return jnp.stack([x, y, jnp.ones_like(x)], axis=-1), valid

    def pixels(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
        """See `Lens`."""
        valid = points[..., 2] > 0
        z = jnp.where(valid, points[..., 2], jnp.ones_like(points[..., 2]))
        x, y = points[..., 0] / z, points[..., 1] / z
        valid &= _one_to_one(x, y, self._coefficients())
        # Beyond its end the model may divide by 0.
        x, y = (jnp.where(valid, value, jnp.zeros_like(value)) for value in (x, y))
        seen = jnp.stack(_distort(x, y, self._coefficients()), axis=-1)
        return seen * like(self.focal, seen) + like(self.principal, seen), valid

    def half_pixel(self) -> Float[Array, ""]:
        """See `Lens`."""
        return 0.5 / jnp.sqrt(jnp.prod(jax.lax.stop_gradient(self.focal)))

    def scaled(self, ratio: Float[Array, "2"]) -> "RationalLens":
        """See `Lens`."""
        return dataclasses.replace(
            self,
            focal=self.focal * like(ratio, self.focal),
            principal=self.principal * like(ratio, self.principal),
        )

    def _coefficients(self):
        return self.radial, self.tangential, self.thin_prism


def _one_to_one(x, y, coefficients):
    """Whether undistorted points lie in the region around the axis that does not fold."""
    coefficients, x, y = jax.lax.stop_gradient((coefficients, x, y))

    def grows(angle):
        radius = jnp.tan(angle)
        s = radius * radius
        numerator, d_numerator, divisor, d_divisor = _parts(coefficients[0], s)
        slope = numerator * divisor + 2 * s * (d_numerator * divisor - numerator * d_divisor)
        return (divisor > 0) & (slope > 0)

    widest = jnp.asarray(_WIDEST, x.dtype)
    limit = first_failure(grows, widest)
    limit = jnp.where(limit < widest, jnp.tan(limit), jnp.inf)
    _, (xx, xy, yx, yy) = jacobian(_distort, x, y, coefficients)
    return (x * x + y * y < limit * limit) & (xx * yy - xy * yx > 0) & (xx + yy > 0)


def _parts(radial, s):
    """The numerator and the divisor of the radial factor, each with its derivative by s."""
    k1, k2, k3, k4, k5, k6 = radial
    return (
        1 + s * (k1 + s * (k2 + s * k3)),
        k1 + s * (2 * k2 + s * 3 * k3),
        1 + s * (k4 + s * (k5 + s * k6)),
        k4 + s * (2 * k5 + s * 3 * k6),
    )


def _distort(x, y, coefficients):
    radial, (p1, p2), (s1, s2, s3, s4) = coefficients
    s = x * x + y * y
    numerator, _, divisor, _ = _parts(radial, s)
    scale = numerator / divisor + 2 * (p2 * x + p1 * y)
    return scale * x + s * (p2 + s1 + s * s2), scale * y + s * (p1 + s3 + s * s4)
