"""Cameras that expose one line after another while they move."""

import dataclasses
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._typing import Numbers, float_array, pytree
from ..trajectory import Path
from ._image import pixel_centers
from ._moving import moving_rays, turn_each
from .rays import Rays

Direction = Literal["top_to_bottom", "bottom_to_top", "left_to_right", "right_to_left"]

# Each step is as good as the image's shift while a line is read is small: a thousandth of the
# line's width in cars. Even half of it leaves 1e-3 lines after ten.
_STEPS = 10


@runtime_checkable
class Camera(Protocol):
    """What a shutter needs of a camera that stands still."""

    @property
    def world_from_camera(self) -> Float[Array, "*views 4 4"]:
        """The camera's pose, here in the frame of what it is mounted on."""
        ...

    @property
    def width(self) -> int:
        """Image width in pixels."""
        ...

    @property
    def height(self) -> int:
        """Image height in pixels."""
        ...

    def rays(self, pixels: Float[Array, "*grid 2"] | None = None) -> Rays:
        """The rays of pixels, by default of all."""
        ...

    def project(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Float[Array, "*batch"]]:
        """The pixels of points, NaN where there are none, and their depths."""
        ...


@pytree("direction")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class RollingShutterCamera:
    """Any camera on a moving body, whose lines are exposed one after another.

    Line i of n is exposed at start + offset + (end - start) i / (n - 1), counted in the
    shutter's direction: all of its pixels at once, and the first line at the start. The pose
    is that of the sensor on its path, interpolated as the trajectory does.

    Attributes:
        camera: The camera; its pose is `body_from_camera`, the identity if the trajectory is
            that of the camera itself.
        trajectory: Where the body is at any time.
        start: When the first line is exposed, in seconds since the trajectory's epoch.
        end: When the last line is exposed.
        offset: Seconds that the camera's clock is behind that of the trajectory.
        direction: Which lines there are, and their order.

    Raises:
        ValueError: If a time is not a finite number, or the direction none of the four.

    References:
        The times of lines are those of `CameraModel` of NVIDIA NCore.
    """

    camera: Camera
    trajectory: Path
    start: Float[Array, "*views"]
    end: Float[Array, "*views"]
    offset: Float[Array, "*views"]
    direction: Direction

    def __init__(
        self,
        camera: Camera,
        trajectory: Path,
        start: Numbers,
        end: Numbers,
        *,
        offset: Numbers = 0.0,
        direction: Direction = "top_to_bottom",
    ):
        dtype = camera.world_from_camera.dtype
        if direction not in ("top_to_bottom", "bottom_to_top", "left_to_right", "right_to_left"):
            raise ValueError(
                f"direction: got {direction!r}; give 'top_to_bottom', 'bottom_to_top', "
                "'left_to_right' or 'right_to_left'"
            )
        object.__setattr__(self, "camera", camera)
        object.__setattr__(self, "trajectory", trajectory)
        object.__setattr__(self, "start", float_array("start", start, (), dtype))
        object.__setattr__(self, "end", float_array("end", end, (), dtype))
        object.__setattr__(self, "offset", float_array("offset", offset, (), dtype))
        object.__setattr__(self, "direction", direction)

    @property
    def width(self) -> int:
        """Image width in pixels."""
        return self.camera.width

    @property
    def height(self) -> int:
        """Image height in pixels."""
        return self.camera.height

    def rays(self, pixels: Float[Array, "*grid 2"] | None = None) -> Rays:
        """Makes the ray of each pixel, at the time of its line.

        Args:
            pixels: Continuous pixel coordinates (x, y); by default the centres of all
                pixels, in rows.

        Returns:
            Rays with their times in seconds since the epoch, differentiable in the camera,
            the poses, the shutter's times, the offset and the pixels (within a line). Pixels
            that the lens cannot reach, or whose time the trajectory does not cover, have NaN
            directions, without gradient.
        """
        return _rays(self, pixels)

    def project(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*batch 2"], Float[Array, "*batch"]]:
        """Finds where points appear in the image, each at the time of the line that sees it.

        Args:
            points: World coordinates in metres, of things that stand still.

        Returns:
            Pixel coordinates (x, y), inside the image or not, and the depth in metres. The
            inverse of `rays`: the line is found by fixed-point iteration, and the derivatives
            are those for this line. A point that slips between two lines is seen beside the
            line that comes next to it. Points that no line sees have NaN pixels, without
            gradient. Differentiable.
        """
        return _project(self, points)


@jax.jit
def _rays(shutter, pixels):
    if shutter.start.ndim > 0:
        return jax.vmap(lambda shutter: shutter.rays(pixels))(shutter)
    still = _at_origin(shutter.camera)
    rays = still.rays(pixels)
    if pixels is None:
        # One pose for each line, not for each pixel.
        centers = pixel_centers(shutter.width, shutter.height, shutter.start.dtype)
        lines = centers[:1] if _axis(shutter) == 0 else centers[:, :1]
    else:
        lines = pixels
    times = _times(shutter, _relative_time(shutter, lines))
    return moving_rays(_path(shutter), rays.origins, rays.directions, times, rays.footprint)


@jax.jit
def _project(shutter, points):
    if shutter.start.ndim > 0:
        return jax.vmap(lambda shutter: shutter.project(points))(shutter)
    frozen = jax.lax.stop_gradient((shutter, points))

    def refine(_, relative):
        line = _relative_time(shutter, _seen(*frozen, relative)[0])
        return jnp.where(jnp.isnan(line), relative, line)

    # The middle of the exposure, or else its ends: a point may come into view only then.
    start = jnp.full(points.shape[:-1], 0.5, points.dtype)
    for other in (0.0, 1.0):
        unseen = jnp.isnan(_seen(*frozen, start)[0][..., 0])
        start = jnp.where(unseen, jnp.full_like(start, other), start)
    relative = jax.lax.fori_loop(0, _STEPS, refine, start)
    pixels, depth, valid = _seen_or_not(shutter, points, relative)
    # The line's own time within one line: else the image moves faster than the shutter.
    off = jnp.abs(_relative_time(shutter, jax.lax.stop_gradient(pixels)) - relative)
    valid &= off <= 1.5 / _last_line(shutter)
    return jnp.where(valid[..., None], pixels, jnp.nan), depth


def _seen(shutter, points, relative):
    pixels, depth, valid = _seen_or_not(shutter, points, relative)
    return jnp.where(valid[..., None], pixels, jnp.nan), depth


def _seen_or_not(shutter, points, relative):
    """The pixels and depths of points for poses at relative times."""
    poses, valid = _path(shutter).sample(_times(shutter, relative))
    offsets = points - poses[..., :3, 3]
    local = turn_each(jnp.swapaxes(poses[..., :3, :3], -1, -2), offsets)
    pixels, depth = _at_origin(shutter.camera).project(local)
    return pixels, depth, valid


def _path(shutter):
    return shutter.trajectory.mounted(shutter.camera.world_from_camera)


def _at_origin(camera: Any) -> Any:
    pose = jnp.eye(4, dtype=camera.world_from_camera.dtype)
    return dataclasses.replace(camera, world_from_camera=pose)


def _times(shutter, relative):
    return shutter.start + shutter.offset + (shutter.end - shutter.start) * relative


def _axis(shutter):
    return 0 if shutter.direction in ("left_to_right", "right_to_left") else 1


def _last_line(shutter):
    return max((shutter.width, shutter.height)[_axis(shutter)] - 1, 1)


def _relative_time(shutter, pixels):
    """0 for the first line and 1 for the last; constant within each, without gradient."""
    axis = _axis(shutter)
    place = jax.lax.stop_gradient(pixels[..., axis])
    if shutter.direction in ("top_to_bottom", "left_to_right"):
        return jnp.floor(place) / _last_line(shutter)
    count = (shutter.width, shutter.height)[axis]
    return (count - jnp.ceil(place)) / _last_line(shutter)
