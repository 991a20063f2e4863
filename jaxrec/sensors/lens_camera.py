"""The camera of any lens.

Camera axes are OpenCV's: x right, y down, z forward. Pixel coordinates are (x, y) with
the image's corner at (0, 0), so the first pixel's centre is (0.5, 0.5).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import Numbers, positive_integer, pytree
from ..geometry import check_rigid, rotate, unit
from ._image import into_camera, like, pixel_centers
from .lenses import Lens
from .rays import Rays


@pytree("width", "height")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class LensCamera:
    """A camera whose rays all pass through one point, with the lens as a value.

    Every array may be differentiated, and may carry one more leading axis: a stack of
    cameras with images of the same size.

    Attributes:
        world_from_camera: Rigid pose, in metres.
        lens: How directions and pixels correspond, such as `FisheyeLens`.
        width: Image width in pixels.
        height: Image height in pixels.

    Raises:
        ValueError: If the pose is not rigid within 1e-4 or has another dtype or other
            leading axes than the lens, or an image side is not positive.
    """

    world_from_camera: Float[Array, "*views 4 4"]
    lens: Lens
    width: int
    height: int

    def __init__(self, world_from_camera: Numbers, lens: Lens, *, width: int, height: int):
        pose = check_rigid("world_from_camera", world_from_camera)
        principal = lens.principal
        if principal.dtype != pose.dtype or principal.shape[:-1] != pose.shape[:-2]:
            raise ValueError(
                f"lens: got {principal.dtype} and leading axes {list(principal.shape[:-1])} for a "
                f"pose of {pose.dtype} and {list(pose.shape[:-2])}; give both the same"
            )
        object.__setattr__(self, "world_from_camera", pose)
        object.__setattr__(self, "lens", lens)
        object.__setattr__(self, "width", positive_integer("width", width))
        object.__setattr__(self, "height", positive_integer("height", height))

    def rays(self, pixels: Float[Array, "*grid 2"] | None = None) -> Rays:
        """Makes the ray of each pixel.

        Args:
            pixels: Continuous pixel coordinates (x, y); by default the centres of all
                pixels, in rows.

        Returns:
            Rays, differentiable in the pose, the lens and the pixels. Pixels that the lens
            cannot reach have NaN directions, without gradient.
        """
        return _rays(self, pixels)

    def project(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Float[Array, "*batch"]]:
        """Finds where points appear in the image.

        Args:
            points: World coordinates in metres.

        Returns:
            Pixel coordinates (x, y), inside the image or not, and the depth in metres along
            the optical axis, negative behind the camera, where wide lenses still see. Points
            that the lens cannot see have NaN pixels, without gradient. Differentiable.
        """
        return _project(self, points)

    def scaled(self, width: int, height: int) -> "LensCamera":
        """The same camera for its image resized; see `PinholeCamera.scaled`."""
        width, height = positive_integer("width", width), positive_integer("height", height)
        ratio = np.array([width / self.width, height / self.height])
        lens = self.lens.scaled(jnp.asarray(ratio, self.world_from_camera.dtype))
        return dataclasses.replace(self, lens=lens, width=width, height=height)


@jax.jit
def _rays(camera, pixels):
    if camera.world_from_camera.ndim > 2:
        return jax.vmap(lambda camera: camera.rays(pixels))(camera)
    if pixels is None:
        pixels = pixel_centers(camera.width, camera.height, camera.world_from_camera.dtype)
    local, valid = camera.lens.directions(pixels)
    directions = unit(rotate(camera.world_from_camera[:3, :3], local))
    half = jax.lax.stop_gradient(camera.lens.half_pixel())
    return Rays(
        origins=like(camera.world_from_camera[:3, 3], local),
        # Last, so that no NaN meets a zero cotangent on the way back.
        directions=jnp.where(valid[..., None], directions, jnp.nan),
        footprint=jnp.stack([jnp.zeros_like(half), half]),
    )


@jax.jit
def _project(camera, points):
    if camera.world_from_camera.ndim > 2:
        return jax.vmap(lambda camera: camera.project(points))(camera)
    local = into_camera(camera.world_from_camera, points)
    pixels, valid = camera.lens.pixels(local)
    return jnp.where(valid[..., None], pixels, jnp.nan), local[..., 2]
