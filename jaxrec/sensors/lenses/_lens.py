"""What a lens is to a camera, and what lenses share."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._typing import Numbers, float_array
from .._image import check_positive, like


@runtime_checkable
class Lens(Protocol):
    """How directions and pixels correspond: the part of a camera that is not its pose.

    A lens is a value whose arrays may be differentiated, and may carry one more leading
    axis in a stack. Camera axes are OpenCV's: x right, y down, z forward.
    """

    @property
    def principal(self) -> Float[Array, "*views 2"]:
        """Where the optical axis meets the image, in pixels."""
        ...

    def directions(
        self, pixels: Float[Array, "*grid 2"]
    ) -> tuple[Float[Array, "*grid 3"], Bool[Array, "*grid"]]:
        """Vectors in the camera's frame, and whether the lens has one for the pixel.

        They may have any length; the camera scales them to 1, last of all. Where the lens
        has none, the vector is finite, and without gradient once it is masked.
        """
        ...

    def pixels(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Bool[Array, "*batch"]]:
        """Where points in the camera's frame are seen, and whether the lens sees them."""
        ...

    def half_pixel(self) -> Float[Array, ""]:
        """Tangent of half the angle of a pixel in the middle of the image."""
        ...

    def scaled(self, ratio: Float[Array, "2"]) -> "Lens":
        """The lens of an image whose (width, height) is multiplied by the ratio."""
        ...


def lens_array(name: str, value: Numbers, count: int, dtype: Any = None) -> jax.Array:
    """Checks one vector of a lens, or a stack of such."""
    return float_array(name, value, (..., count), dtype)


def focal_and_principal(focal: Numbers, principal: Numbers) -> dict[str, jax.Array]:
    """Checks the two vectors in pixels that most lenses have."""
    focal_array = lens_array("focal", focal, 2)
    check_positive("focal", focal_array, "pixels")
    return {
        "focal": focal_array,
        "principal": lens_array("principal", principal, 2, focal_array.dtype),
    }


def set_lens_fields(lens: Any, fields: dict[str, Any], **ranks: int) -> None:
    """Fills a frozen lens; its arrays must agree on the leading axes of a stack."""
    views = fields["principal"].shape[:-1]
    for name, value in fields.items():
        object.__setattr__(lens, name, value)
        leading = np.shape(value)[: np.ndim(value) - ranks.get(name, 1)]
        if isinstance(value, jax.Array) and leading != views:
            raise ValueError(
                f"{name}: got leading axes {list(leading)} for a stack of {list(views)} principal "
                "points; give every array of a stack the same ones"
            )


def from_axis(
    points: Float[Array, "*batch 3"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"], Bool[Array, "*batch"]]:
    """The angle from the optical axis, the angle over |(x, y)|, and where it is defined.

    Both are differentiable on the axis in front, where the quotient is 0/0. On the axis
    behind, the direction of the image point is not defined.
    """
    squared = points[..., 0] * points[..., 0] + points[..., 1] * points[..., 1]
    z = points[..., 2]
    defined = (squared > 0) | (z > 0)
    # atan(t)/t with t^2 as the variable; the next term is below a double's rounding.
    near = (squared < 1e-6 * z * z) & (z > 0)
    front = jnp.where(near, z, jnp.ones_like(z))
    t = jnp.where(near, squared, jnp.zeros_like(squared)) / (front * front)
    series = (1 - t * (1 / 3 - t * (1 / 5 - t / 7))) / front
    away = defined & ~near
    across = jnp.sqrt(jnp.where(away, squared, jnp.ones_like(squared)))
    quotient = jnp.arctan2(across, jnp.where(away, z, jnp.ones_like(z))) / across
    ratio = jnp.where(near, series, quotient)
    positive = squared > 0
    radius = jnp.sqrt(jnp.where(positive, squared, jnp.ones_like(squared)))
    return jnp.where(positive, radius * ratio, jnp.zeros_like(ratio)), ratio, defined


def sine_over(angle: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """sin(x) / x, differentiable at 0."""
    squared = angle * angle
    small = squared < 1e-6
    series = 1 - squared * (1 / 6 - squared / 120)
    safe = jnp.where(small, jnp.ones_like(angle), angle)
    return jnp.where(small, series, jnp.sin(safe) / safe)


def length(vectors: Float[Array, "*batch 2"]) -> Float[Array, "*batch"]:
    """Euclidean length, with a gradient of 0 at 0."""
    squared = jnp.sum(vectors * vectors, axis=-1)
    positive = squared > 0
    root = jnp.sqrt(jnp.where(positive, squared, jnp.ones_like(squared)))
    return jnp.where(positive, root, jnp.zeros_like(root))


def centered(
    principal: Float[Array, "2"], pixels: Float[Array, "*grid 2"]
) -> Float[Array, "*grid 2"]:
    """Pixels counted from the principal point."""
    return pixels - like(principal, pixels)
