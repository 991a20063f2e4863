"""Rays: all that a renderer is told about a sensor."""

import dataclasses

from jaxtyping import Array, Float

from .._typing import pytree


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Rays:
    """What a sensor looks along: a grid of rays in world coordinates.

    The grid is rows x columns, `[H, W]`, for one sensor and `[V, H, W]` for a stack.

    Attributes:
        origins: Where each ray starts, in metres.
        directions: Unit vectors. A ray that does not exist, such as a pixel outside
            the image of a fisheye lens, has a NaN direction and shows background.
        footprint: (e0, e1): a ray is a beam whose half-width at distance x is
            e0 + e1 x. e0 is in metres, e1 the tangent of the half-angle. It steers
            the drawing of spheres too small for a pixel and carries no gradient.
        times: When each ray is measured, in seconds since the epoch of the sensor's trajectory;
            none for a global shutter. For `blend`, since when the centers of the spheres hold:
            `render` and its like subtract `Spheres.time`.
    """

    origins: Float[Array, "*grid 3"]
    directions: Float[Array, "*grid 3"]
    footprint: Float[Array, "*views 2"]
    times: Float[Array, "*grid"] | None = None
