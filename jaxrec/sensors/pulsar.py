"""Pulsar's camera, with its own conventions, to compare pictures with that renderer.

It is no rigid pose: its usual axes, x right, image rows downward and z into the scene
with y up, are a reflection. Pixel (0, 0) has its centre at index (0, 0), and the
orthographic image is shifted by half a pixel to the right and down.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import Numbers, concrete, float_array, positive_integer, pytree
from ..geometry import matrix_from_rotation6, unit
from .rays import Rays


@pytree("width", "height", "orthographic", "right_handed")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class PulsarCamera:
    """A pinhole or orthographic camera as Pulsar's kernels see it.

    Every array may be differentiated, and may carry one more leading axis: a stack.

    Attributes:
        eye: Centre of projection; for orthographic cameras the sensor's middle. Metres.
        p00: Centre of pixel (0, 0) on the sensor plane. Orthographic rays do not use it.
        dx: Step to the next column on the sensor plane, in metres.
        dy: Step to the next row, in metres, as long as `dx` and perpendicular to it.
        pp_offset: Principal point offset in whole pixels; positive ones move the picture
            left and up. No gradient.
        width: Image width in pixels.
        height: Image height in pixels.
        orthographic: Parallel rays instead of rays through the eye.
        right_handed: Whether z = x cross y looks backward; see `from_vector`.

    Raises:
        ValueError: If an array has the wrong shape or dtype or is not finite, or an image
            side is not positive.
    """

    eye: Float[Array, "*views 3"]
    p00: Float[Array, "*views 3"]
    dx: Float[Array, "*views 3"]
    dy: Float[Array, "*views 3"]
    pp_offset: Float[Array, "*views 2"]
    width: int
    height: int
    orthographic: bool
    right_handed: bool

    def __init__(
        self,
        eye: Numbers,
        p00: Numbers,
        dx: Numbers,
        dy: Numbers,
        pp_offset: Numbers,
        width: int,
        height: int,
        orthographic: bool = False,
        right_handed: bool = False,
    ):
        eye = float_array("eye", eye, (..., 3))
        fields = {
            "eye": eye,
            "p00": float_array("p00", p00, (..., 3), eye.dtype),
            "dx": float_array("dx", dx, (..., 3), eye.dtype),
            "dy": float_array("dy", dy, (..., 3), eye.dtype),
            "pp_offset": float_array("pp_offset", pp_offset, (..., 2), eye.dtype),
            "width": positive_integer("width", width),
            "height": positive_integer("height", height),
            "orthographic": orthographic,
            "right_handed": right_handed,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_vector(
        cls,
        vector: Numbers,
        width: int,
        height: int,
        orthographic: bool = False,
        right_handed: bool = False,
    ) -> "PulsarCamera":
        """Makes a camera from Pulsar's parameter vector.

        Args:
            vector: eye (3), rotation as two 3-vectors (6), focal length, sensor width (all
                lengths in metres), principal point offset in pixels (2; the fraction is
                cut off).
            width: Image width in pixels.
            height: Image height in pixels.
            orthographic: Parallel rays; the focal length must then be 0.
            right_handed: The camera looks along -z instead of z of its rotation.

        Returns:
            The camera, differentiable in the vector save the principal point offset.

        Raises:
            ValueError: As the class, and if the focal length does not fit the kind of camera
                or the sensor width is not positive.
        """
        vector = float_array("vector", vector, (13,))
        _check_lengths(vector, orthographic)
        eye, focal, sensor = vector[:3], vector[9], vector[10]
        rows = matrix_from_rotation6(vector[3:9])
        x, down, forward = rows[:, 0], -rows[:, 1], (-1 if right_handed else 1) * rows[:, 2]
        pixel = sensor / width
        dx, dy = pixel * x, pixel * down
        p00 = eye + focal * forward - dx * ((width - 1) / 2) - dy * ((height - 1) / 2)
        offset = jnp.trunc(jax.lax.stop_gradient(vector[11:]))
        return cls(eye, p00, dx, dy, offset, width, height, orthographic, right_handed)

    def rays(self) -> Rays:
        """Makes the ray of each pixel, differentiable in all fields but the offset."""
        return _rays(self)


@jax.jit
def _rays(camera):
    if camera.eye.ndim > 1:
        return jax.vmap(lambda camera: camera.rays())(camera)
    offset = jax.lax.stop_gradient(camera.pp_offset)
    dtype = camera.eye.dtype
    columns = (jnp.arange(camera.width, dtype=dtype) + offset[0])[None, :, None]
    rows = (jnp.arange(camera.height, dtype=dtype) + offset[1])[:, None, None]
    shape = (camera.height, camera.width, 3)
    forward = unit(jnp.cross(camera.dy, camera.dx))
    if camera.right_handed:
        forward = -forward
    half = 0.5 * jnp.linalg.norm(jax.lax.stop_gradient(camera.dx))
    if camera.orthographic:
        # Pulsar's screen coordinates measure both axes in units of |dx|.
        down = jnp.linalg.norm(camera.dx) * unit(camera.dy)
        origins = (
            jnp.broadcast_to(camera.eye, shape)
            + (columns - camera.width / 2) * jnp.broadcast_to(camera.dx, shape)
            + (rows - camera.height / 2) * jnp.broadcast_to(down, shape)
        )
        footprint = jnp.stack([half, jnp.zeros_like(half)])
        return Rays(origins, jnp.broadcast_to(forward, shape), footprint)
    directions = unit(
        jnp.broadcast_to(camera.p00 - camera.eye, shape)
        + columns * jnp.broadcast_to(camera.dx, shape)
        + rows * jnp.broadcast_to(camera.dy, shape)
    )
    focal = jax.lax.stop_gradient(jnp.sum(forward * (camera.p00 - camera.eye)))
    footprint = jnp.stack([jnp.zeros_like(half), half / jnp.abs(focal)])
    return Rays(jnp.broadcast_to(camera.eye, shape), directions, footprint)


def _check_lengths(vector: jax.Array, orthographic: bool) -> None:
    values = concrete(vector)
    if values is None:
        return
    focal, sensor = float(values[9]), float(values[10])
    if orthographic and focal != 0:
        raise ValueError(f"vector: got the focal length {focal:g}; orthographic cameras have 0")
    if not orthographic and focal <= 0:
        raise ValueError(f"vector: got the focal length {focal:g}; give one greater than 0")
    if sensor <= 0:
        raise ValueError(f"vector: got the sensor width {sensor:g}; give one greater than 0")
    if not np.all(np.linalg.norm(np.cross(values[3:6], values[6:9]))):
        raise ValueError("vector: got parallel rotation vectors; give two that span a plane")
