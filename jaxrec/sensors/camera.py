"""The pinhole camera, with a lens.

Camera axes are OpenCV's: x right, y down, z forward. Pixel coordinates are (x, y) with
the image's corner at (0, 0), so the first pixel's centre is (0.5, 0.5).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import Numbers, concrete, float_array, positive_integer, pytree
from ..geometry import check_rigid, check_rotation, rigid, rotate, unit
from ._image import check_positive, into_camera, like, pixel_centers, set_fields
from .distortion import distort, is_monotonic, undistort
from .rays import Rays


@pytree("width", "height")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class PinholeCamera:
    """A perspective camera, with OpenCV's five-coefficient lens distortion if it has any.

    Every array may be differentiated, and may carry one more leading axis: a stack of
    cameras with images of the same size.

    Attributes:
        world_from_camera: Rigid pose, in metres.
        focal: (fx, fy) in pixels, positive.
        principal: (cx, cy) in pixels; (width / 2, height / 2) is the image's middle.
        distortion: (k1, k2, p1, p2, k3), OpenCV's order, or none for an ideal lens.
        width: Image width in pixels.
        height: Image height in pixels.

    Raises:
        ValueError: If an array has the wrong shape or dtype, is not finite, the pose is not
            rigid within 1e-4, or a focal length or an image side is not positive. The dtype
            of the pose, float32 or float64, is that of the camera.
    """

    world_from_camera: Float[Array, "*views 4 4"]
    focal: Float[Array, "*views 2"]
    principal: Float[Array, "*views 2"]
    distortion: Float[Array, "*views 5"] | None
    width: int
    height: int

    def __init__(
        self,
        world_from_camera: Numbers,
        focal: Numbers,
        principal: Numbers,
        distortion: Numbers | None = None,
        *,
        width: int,
        height: int,
    ):
        pose = check_rigid("world_from_camera", world_from_camera)
        fields = {
            "world_from_camera": pose,
            "focal": float_array("focal", focal, (..., 2), pose.dtype),
            "principal": float_array("principal", principal, (..., 2), pose.dtype),
            "distortion": None,
            "width": positive_integer("width", width),
            "height": positive_integer("height", height),
        }
        if distortion is not None:
            fields["distortion"] = float_array("distortion", distortion, (..., 5), pose.dtype)
        check_positive("focal", fields["focal"], "pixels")
        set_fields(self, fields)

    @classmethod
    def from_opencv(
        cls,
        K: Numbers,
        R: Numbers,
        t: Numbers,
        width: int,
        height: int,
        *,
        distortion: Numbers | None = None,
    ) -> "PinholeCamera":
        """Makes a camera from OpenCV's matrices: pixel ~ K (R point + t).

        Args:
            K: Intrinsics in pixels, without skew. The first pixel's centre is (0.5, 0.5), as
                in COLMAP and instant-ngp; add 0.5 to the principal point that
                `cv2.calibrateCamera` returns, which counts from a pixel's centre.
            R: Rotation from world to camera.
            t: Translation from world to camera, in metres.
            width: Image width in pixels.
            height: Image height in pixels.
            distortion: (k1, k2, p1, p2, k3), or none.

        Raises:
            ValueError: As the class, and if K has skew or its last row is not (0, 0, 1).
        """
        rotation = check_rotation("R", R)
        translation = float_array("t", t, (..., 3), rotation.dtype)
        intrinsics = float_array("K", K, (..., 3, 3), rotation.dtype)
        _check_intrinsics(intrinsics)
        inverse = jnp.swapaxes(rotation, -1, -2)
        return cls(
            world_from_camera=rigid(inverse, -rotate(inverse, translation)),
            focal=jnp.stack([intrinsics[..., 0, 0], intrinsics[..., 1, 1]], axis=-1),
            principal=intrinsics[..., :2, 2],
            distortion=distortion,
            width=width,
            height=height,
        )

    @classmethod
    def from_opengl(
        cls,
        camera_to_world: Numbers,
        focal: Numbers,
        principal: Numbers,
        width: int,
        height: int,
        *,
        distortion: Numbers | None = None,
    ) -> "PinholeCamera":
        """Makes a camera from a pose with OpenGL's axes: x right, y up, z backward.

        This is the convention of Blender, NeRF-synthetic, instant-ngp and nerfstudio. Only
        the camera's own axes are converted; world coordinates stay as they are.

        Args:
            camera_to_world: Rigid pose in metres.
            focal: (fx, fy) in pixels.
            principal: (cx, cy) in pixels, from the image's upper left corner.
            width: Image width in pixels.
            height: Image height in pixels.
            distortion: (k1, k2, p1, p2, k3), or none.

        Raises:
            ValueError: As the class.
        """
        pose = check_rigid("camera_to_world", camera_to_world)
        flip = jnp.asarray(np.array([1, -1, -1, 1]), pose.dtype)
        return cls(
            world_from_camera=pose * jnp.broadcast_to(flip, pose.shape),
            focal=focal,
            principal=principal,
            distortion=distortion,
            width=width,
            height=height,
        )

    def rays(self, pixels: Float[Array, "*grid 2"] | None = None) -> Rays:
        """Makes the ray of each pixel.

        Args:
            pixels: Continuous pixel coordinates (x, y); by default the centres of all
                pixels, in rows.

        Returns:
            Rays, differentiable in the pose, the intrinsics, the distortion and the pixels.
            Pixels that the lens model cannot reach have NaN directions, without gradient.
        """
        return _pinhole_rays(self, pixels)

    def project(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Float[Array, "*batch"]]:
        """Finds where points appear in the image.

        Args:
            points: World coordinates in metres.

        Returns:
            Pixel coordinates (x, y), inside the image or not, and the depth in metres along
            the optical axis. Points that the camera cannot see at all, at a depth <= 0 or
            beyond the fold of the lens model, have NaN pixels, without gradient. Differentiable.
        """
        return _pinhole_project(self, points)

    def scaled(self, width: int, height: int) -> "PinholeCamera":
        """The same camera for its image resized to another size.

        Each axis of the intrinsics is scaled by its exact ratio of sizes, so that an image
        whose sides do not divide evenly stays aligned.
        """
        width, height = positive_integer("width", width), positive_integer("height", height)
        ratio = np.array([width / self.width, height / self.height])
        scale = like(jnp.asarray(ratio, self.focal.dtype), self.focal)
        return dataclasses.replace(
            self,
            focal=self.focal * scale,
            principal=self.principal * scale,
            width=width,
            height=height,
        )


# Compiled even in eager use: operation by operation, a megapixel of rays takes a second to
# start and holds a dozen images in memory.
@jax.jit
def _pinhole_rays(camera, pixels):
    if camera.world_from_camera.ndim > 2:
        return jax.vmap(lambda camera: camera.rays(pixels))(camera)
    if pixels is None:
        pixels = pixel_centers(camera.width, camera.height, camera.focal.dtype)
    points = (pixels - like(camera.principal, pixels)) / like(camera.focal, pixels)
    valid = None
    if camera.distortion is not None:
        points, valid = undistort(points, camera.distortion)
    local = jnp.concatenate([points, jnp.ones_like(points[..., :1])], axis=-1)
    directions = unit(rotate(camera.world_from_camera[:3, :3], local))
    if valid is not None:
        # Last, so that no NaN meets a zero cotangent on the way back.
        directions = jnp.where(valid[..., None], directions, jnp.nan)
    angle = 0.5 / jnp.sqrt(jnp.prod(jax.lax.stop_gradient(camera.focal)))
    return Rays(
        origins=like(camera.world_from_camera[:3, 3], local),
        directions=directions,
        footprint=jnp.stack([jnp.zeros_like(angle), angle]),
    )


@jax.jit
def _pinhole_project(camera, points):
    if camera.world_from_camera.ndim > 2:
        return jax.vmap(lambda camera: camera.project(points))(camera)
    local = into_camera(camera.world_from_camera, points)
    depth = local[..., 2]
    valid = depth > 0
    tangents = local[..., :2] / jnp.where(valid, depth, jnp.ones_like(depth))[..., None]
    if camera.distortion is not None:
        valid &= is_monotonic(tangents, camera.distortion)
        tangents = distort(tangents, camera.distortion)
    pixels = tangents * like(camera.focal, tangents) + like(camera.principal, tangents)
    return jnp.where(valid[..., None], pixels, jnp.nan), depth


def _check_intrinsics(intrinsics: jax.Array) -> None:
    values = concrete(intrinsics)
    if values is None:
        return
    if np.any(values[..., 2, :] != np.array([0, 0, 1])):
        raise ValueError(f"K: got the last row {values[..., 2, :].tolist()}; give [0, 0, 1]")
    if np.any(values[..., 0, 1]) or np.any(values[..., 1, 0]):
        raise ValueError(
            f"K: got the skew {values[..., 0, 1].tolist()}; give 0 off the diagonal: "
            "resample the image if its pixel axes are not perpendicular"
        )
