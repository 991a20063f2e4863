"""The equirectangular projection: longitude and latitude as pixel axes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._typing import Numbers, positive_integer, pytree
from .._image import like
from ._lens import centered, focal_and_principal, set_lens_fields


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class EquirectangularLens:
    """A panorama: columns are longitudes, rows latitudes, and the middle looks along z.

    The longitude grows to the right from -pi to pi, the latitude downward from -pi/2 to
    pi/2. `full` makes the lens of a whole sphere; other values show a part of it.

    Attributes:
        focal: (fx, fy) in pixels per radian, positive.
        principal: (cx, cy) in pixels: the pixel of the optical axis.

    Raises:
        ValueError: If an array has the wrong shape or dtype, is not finite, or a focal
            length is not positive.
    """

    focal: Float[Array, "*views 2"]
    principal: Float[Array, "*views 2"]

    def __init__(self, focal: Numbers, principal: Numbers):
        set_lens_fields(self, dict(focal_and_principal(focal, principal)))

    @classmethod
    def full(cls, width: int, height: int, dtype=jnp.float32) -> "EquirectangularLens":
        """The lens of an image that shows the whole sphere.

        Raises:
            ValueError: If a side is not a whole number above 0.
        """
        width, height = positive_integer("width", width), positive_integer("height", height)
        focal = np.array([width / (2 * np.pi), height / np.pi])
        principal = np.array([width / 2, height / 2])
        return cls(jnp.asarray(focal, dtype), jnp.asarray(principal, dtype))

    def directions(
        self, pixels: Float[Array, "*grid 2"]
    ) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
        """See `Lens`."""
        angles = centered(self.principal, pixels) / like(self.focal, pixels)
        longitude, latitude = angles[..., 0], angles[..., 1]
        level = jnp.cos(latitude)
        direction = jnp.stack(
            [level * jnp.sin(longitude), jnp.sin(latitude), level * jnp.cos(longitude)], axis=-1
        )
        # A whole image ends at pi exactly: its last corner must not be lost to rounding.
        slack = 1 + 8 * jnp.finfo(pixels.dtype).eps
        valid = jnp.abs(longitude) <= slack * jnp.pi
        return direction, valid & (jnp.abs(latitude) <= slack * jnp.pi / 2)

    def pixels(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
        """See `Lens`. Points on the axis through the poles have no longitude."""
        x, y, z = points[..., 0], points[..., 1], points[..., 2]
        squared = x * x + z * z
        valid = squared > 0
        z = jnp.where(valid, z, jnp.ones_like(z))
        level = jnp.sqrt(jnp.where(valid, squared, jnp.ones_like(squared)))
        angles = jnp.stack([jnp.arctan2(x, z), jnp.arctan2(y, level)], axis=-1)
        return angles * like(self.focal, angles) + like(self.principal, angles), valid

    def half_pixel(self) -> Float[Array, ""]:
        """See `Lens`."""
        return 0.5 / jnp.sqrt(jnp.prod(jax.lax.stop_gradient(self.focal)))

    def scaled(self, ratio: Float[Array, "2"]) -> "EquirectangularLens":
        """See `Lens`."""
        return dataclasses.replace(
            self,
            focal=self.focal * like(ratio, self.focal),
            principal=self.principal * like(ratio, self.principal),
        )
