"""Pixels of points and rays of pixels, for looking at captures."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32

from ..sensors import PinholeCamera

LUMINANCE = np.asarray([0.2126, 0.7152, 0.0722], np.float32)


def in_image(
    camera: PinholeCamera, points: Float32[np.ndarray, "points 3"]
) -> tuple[Float[np.ndarray, "points 2"], Bool[np.ndarray, " points"]]:
    """Pixels of points, and which of them lie before the camera and inside its image."""
    pixels, depth = (np.asarray(part) for part in project(camera, jnp.asarray(points)))
    size = np.asarray([camera.width, camera.height])
    with np.errstate(invalid="ignore"):
        return pixels, (depth > 0) & ((pixels >= 0) & (pixels < size)).all(axis=1)


def spread_evenly(count: int, most: int) -> list[int]:
    """At most so many of `count` places, evenly spaced, the first and last among them."""
    return sorted({int(place) for place in np.linspace(0, count - 1, min(count, most)).round()})


@jax.jit
def project(camera: PinholeCamera, points: Float[Array, "points 3"]):
    """Pixels of points and their depth, compiled; see `PinholeCamera.project`."""
    return camera.project(points)


@jax.jit
def ray_directions(camera: PinholeCamera, pixels: Float[Array, "pixels 2"]):
    """Unit directions of pixels, compiled; NaN where the lens has no ray."""
    return camera.rays(pixels).directions
