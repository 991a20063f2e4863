"""Refinement of cameras: small corrections of poses and lenses, from exact values on."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from ..geometry import rigid_from_twist, rotate
from ..sensors import PinholeCamera
from ._check import want

# Rigid motions and the scale of everything: seven directions in which all cameras may go at once.
GAUGE = 7
# Values of a lens: log of the focal lengths, principal point, five coefficients of distortion.
LENS = 8
# A direction whose singular value is below this share of the largest is none: one camera alone.
_RANK = 1e-6


@dataclasses.dataclass(frozen=True)
class CameraRefinement:
    """What is corrected about the cameras of a capture while the scene is fitted.

    A rate of 0 keeps what it belongs to as the capture says. Rates decay as those of features do.
    """

    poses: float = 0.0
    """Adam's step size for poses, in radians and scene units for each visit of an image."""
    focal: float = 0.0
    """Of the logarithm of the focal lengths, whose ratio stays."""
    principal: float = 0.0
    """Of the principal point, in focal lengths."""
    distortion: float = 0.0
    """Of the coefficients k1, k2, p1, p2, k3."""
    lenses: Literal["shared", "each"] = "shared"
    """Whether images with equal intrinsics keep one lens, or each image gets its own."""
    start: float = 0.1
    """Share of the horizon after which the cameras move: the scene must say something first."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        for name in ("poses", "focal", "principal", "distortion"):
            rate = getattr(self, name)
            want(0 <= rate < np.inf, f"cameras.{name}", rate, ">= 0")
        want(self.lenses in ("shared", "each"), "cameras.lenses", self.lenses, "shared or each")
        want(0 <= self.start < 1, "cameras.start", self.start, "0 to 1, below 1")

    @property
    def lens_rates(self) -> tuple[float, ...]:
        """Step sizes of the values of a lens."""
        return (self.focal, *(self.principal,) * 2, *(self.distortion,) * 5)


def moved_camera(camera: PinholeCamera, twists: Float[Array, "views 6"]) -> PinholeCamera:
    """Moves a stack of cameras by twists about their own centres, along the scene's axes.

    The pose is always the given one times one exponential: nothing accumulates, and a rotation
    stays one to rounding however many steps have changed the twist. Differentiable.

    Args:
        camera: The stack.
        twists: Rotation vector in radians, then translation; see `rigid_from_twist`.
    """
    motion = rigid_from_twist(twists)
    pose = camera.world_from_camera
    columns = jnp.swapaxes(pose[..., :3, :3], -1, -2)
    turned = rotate(motion[..., None, :3, :3], columns)
    pose = pose.at[..., :3, :3].set(jnp.swapaxes(turned, -1, -2))
    pose = pose.at[..., :3, 3].add(motion[..., :3, 3])
    return dataclasses.replace(camera, world_from_camera=pose)


def changed_lens(
    camera: PinholeCamera, change: Float[Array, "*views 8"], *, distorted: bool
) -> PinholeCamera:
    """Changes the lens of a camera or those of a stack. Differentiable.

    Args:
        camera: The camera or the stack.
        change: Logarithm of the factor of both focal lengths, shift of the principal point in
            focal lengths, and what is added to (k1, k2, p1, p2, k3).
        distorted: Whether an ideal lens may become a distorted one.
    """
    distortion = camera.distortion
    if distorted:
        added = change[..., 3:]
        distortion = added if distortion is None else distortion + added
    return dataclasses.replace(
        camera,
        focal=camera.focal * jnp.exp(change[..., :1]),
        principal=camera.principal + change[..., 1:3] * camera.focal,
        distortion=distortion,
    )


def gauge(cameras: Sequence[PinholeCamera]) -> Float32[np.ndarray, "images 6 7"]:
    """Computes the twists by which all cameras move together, which no photograph can tell.

    Args:
        cameras: In scene coordinates.

    Returns:
        An orthonormal basis of the rotations, translations and change of size of the whole rig,
        for small ones; columns of zeros where a rig has fewer of them.
    """
    places = np.stack([np.asarray(c.world_from_camera, np.float64)[:3, 3] for c in cameras])
    basis = np.zeros((len(cameras), 6, GAUGE))
    for axis, direction in enumerate(np.eye(3)):
        basis[:, :3, axis] = direction
        basis[:, 3:, axis] = np.cross(direction, places)
        basis[:, 3:, 3 + axis] = direction
    basis[:, 3:, 6] = places
    columns, sizes, _ = np.linalg.svd(basis.reshape(-1, GAUGE), full_matrices=False)
    found = np.zeros((len(cameras) * 6, GAUGE))
    found[:, : len(sizes)] = columns * (sizes > _RANK * sizes[0])
    return found.reshape(basis.shape).astype(np.float32)


def common_motion(
    twists: Float[Array, "images 6"], basis: Float[Array, "images 6 7"]
) -> Float[Array, "images 6"]:
    """Returns the part of all twists that is common to the rig, to be taken off each."""
    shares = (twists[..., None] * basis).sum(axis=(0, 1))
    return (basis * jnp.broadcast_to(shares, basis.shape)).sum(axis=-1)


def lens_key(camera: PinholeCamera) -> tuple[float, ...]:
    """Returns the intrinsics and the size of an image as a value to compare."""
    distortion = np.zeros(5) if camera.distortion is None else np.asarray(camera.distortion)
    values = (np.asarray(camera.focal), np.asarray(camera.principal), distortion)
    sizes = (float(camera.width), float(camera.height))
    return (*(float(v) for v in np.concatenate(values).astype(np.float32)), *sizes)


def lens_rows(
    cameras: Sequence[PinholeCamera], refinement: CameraRefinement
) -> Int32[np.ndarray, " images"]:
    """Says which image's row holds the lens of each image: the first one with equal intrinsics."""
    if refinement.lenses == "each":
        return np.arange(len(cameras), dtype=np.int32)
    first: dict[tuple[float, ...], int] = {}
    rows = [first.setdefault(lens_key(camera), i) for i, camera in enumerate(cameras)]
    return np.asarray(rows, np.int32)
