"""OpenCV's fisheye lens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._typing import Numbers, float_array, pytree
from .._image import check_positive, like
from ._lens import centered, focal_and_principal, lens_array, set_lens_fields
from ._radial import Outward, radial_directions, radial_offsets


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class FisheyeLens:
    """A lens that maps the angle from its axis to a distance: OpenCV's `fisheye`.

    An angle t is seen at the distance t (1 + k1 t^2 + k2 t^4 + k3 t^6 + k4 t^8), times the
    focal lengths. Without coefficients that is the equidistant projection. The lens ends
    where this stops growing or at the largest angle, whichever comes first.

    Attributes:
        focal: (fx, fy) in pixels per radian, positive.
        principal: (cx, cy) in pixels, from the image's upper left corner.
        coefficients: (k1, k2, k3, k4), OpenCV's order, without unit.
        max_angle: Largest angle from the axis in radians, in (0, pi].

    Raises:
        ValueError: If an array has the wrong shape or dtype, is not finite, or is not
            positive where it must be.

    References:
        Kannala and Brandt, "A Generic Camera Model and Calibration Method for
        Conventional, Wide-Angle, and Fish-Eye Lenses", PAMI 2006.
    """

    focal: Float[Array, "*views 2"]
    principal: Float[Array, "*views 2"]
    coefficients: Float[Array, "*views 4"]
    max_angle: Float[Array, "*views"]

    def __init__(
        self,
        focal: Numbers,
        principal: Numbers,
        coefficients: Numbers = (0.0, 0.0, 0.0, 0.0),
        max_angle: Numbers = np.pi,
    ):
        fields = focal_and_principal(focal, principal)
        dtype, views = fields["focal"].dtype, fields["focal"].shape[:-1]
        fields["coefficients"] = lens_array("coefficients", coefficients, 4, dtype)
        fields["max_angle"] = float_array("max_angle", max_angle, (...,), dtype)
        if fields["max_angle"].ndim == 0:
            fields["max_angle"] = jnp.broadcast_to(fields["max_angle"], views)
        check_positive("max_angle", fields["max_angle"], "radians")
        set_lens_fields(self, fields, max_angle=0)

    def directions(
        self, pixels: Float[Array, "*grid 2"]
    ) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
        """See `Lens`."""
        offsets = centered(self.principal, pixels) / like(self.focal, pixels)
        return radial_directions(self._profile(), offsets)

    def pixels(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
        """See `Lens`."""
        offsets, valid = radial_offsets(self._profile(), points)
        return offsets * like(self.focal, offsets) + like(self.principal, offsets), valid

    def half_pixel(self) -> Float[Array, ""]:
        """See `Lens`."""
        return 0.5 / jnp.sqrt(jnp.prod(jax.lax.stop_gradient(self.focal)))

    def scaled(self, ratio: Float[Array, "2"]) -> "FisheyeLens":
        """See `Lens`."""
        return dataclasses.replace(
            self,
            focal=self.focal * like(ratio, self.focal),
            principal=self.principal * like(ratio, self.principal),
        )

    def _profile(self):
        zero = jnp.zeros_like(self.coefficients[0])
        odd = jnp.concatenate([jnp.ones_like(zero)[None], self.coefficients])
        terms = jnp.stack([jnp.zeros_like(odd), odd], axis=-1)
        return Outward(terms.reshape(-1), self.max_angle)
