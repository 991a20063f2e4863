"""The orthographic camera: parallel rays, one pixel apart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import Numbers, float_array, positive_integer, pytree
from ..geometry import check_rigid, rotate, unit
from ._image import check_positive, into_camera, like, pixel_centers, set_fields
from .rays import Rays


@pytree("width", "height")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class OrthographicCamera:
    """A camera with parallel rays: size on the image does not depend on distance.

    Every array may be differentiated, and may carry one more leading axis: a stack.

    Attributes:
        world_from_camera: Rigid pose, in metres. The image's middle looks along z from here.
        pixel_size: Side of a square pixel in the world, in metres, positive.
        width: Image width in pixels.
        height: Image height in pixels.

    Raises:
        ValueError: If an array has the wrong shape or dtype, is not finite, the pose is not
            rigid within 1e-4, or the pixel size or an image side is not positive.
    """

    world_from_camera: Float[Array, "*views 4 4"]
    pixel_size: Float[Array, "*views"]
    width: int
    height: int

    def __init__(self, world_from_camera: Numbers, pixel_size: Numbers, width: int, height: int):
        pose = check_rigid("world_from_camera", world_from_camera)
        fields = {
            "world_from_camera": pose,
            "pixel_size": float_array("pixel_size", pixel_size, (...,), pose.dtype),
            "width": positive_integer("width", width),
            "height": positive_integer("height", height),
        }
        check_positive("pixel_size", fields["pixel_size"], "metres")
        set_fields(self, fields)

    def rays(self, pixels: Float[Array, "*grid 2"] | None = None) -> Rays:
        """Makes the ray of each pixel; see `PinholeCamera.rays`."""
        return _orthographic_rays(self, pixels)

    def project(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Float[Array, "*batch"]]:
        """Finds where points appear in the image: pixels (x, y) and depth in metres."""
        return _orthographic_project(self, points)


@jax.jit
def _orthographic_rays(camera, pixels):
    if camera.world_from_camera.ndim > 2:
        return jax.vmap(lambda camera: camera.rays(pixels))(camera)
    if pixels is None:
        pixels = pixel_centers(camera.width, camera.height, camera.pixel_size.dtype)
    offsets = (pixels - _middle(camera, pixels)) * camera.pixel_size
    local = jnp.concatenate([offsets, jnp.zeros_like(offsets[..., :1])], axis=-1)
    rotated = rotate(camera.world_from_camera[:3, :3], local)
    half = 0.5 * jax.lax.stop_gradient(camera.pixel_size)
    return Rays(
        origins=rotated + like(camera.world_from_camera[:3, 3], local),
        directions=like(unit(camera.world_from_camera[:3, 2]), local),
        footprint=jnp.stack([half, jnp.zeros_like(half)]),
    )


@jax.jit
def _orthographic_project(camera, points):
    if camera.world_from_camera.ndim > 2:
        return jax.vmap(lambda camera: camera.project(points))(camera)
    local = into_camera(camera.world_from_camera, points)
    return local[..., :2] / camera.pixel_size + _middle(camera, local[..., :2]), local[..., 2]


def _middle(camera, pixels):
    middle = np.array([camera.width / 2, camera.height / 2])
    return like(jnp.asarray(middle, pixels.dtype), pixels)
