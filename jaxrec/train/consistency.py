"""How well points agree with what several views show: plane sweeping for first depths."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from .._typing import pytree
from ..sensors import Frame, PinholeCamera

# Views are compared at this size; it bounds memory and hides pixel noise.
_LARGEST_SIDE = 256
_COMPARED_VIEWS = 8
# Differences saturate here: a view in which the point is hidden must not outvote the others.
_LARGEST_DIFFERENCE = 0.15
# Outweighs any difference of colours: a place outside the hull is a last resort.
_OUTSIDE = 100.0
_SMOOTHING = (1, 3)


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Gallery:
    """Views of one size that points are compared with, cameras in scene coordinates.

    Attributes:
        cameras: A stack for images of the original size.
        descriptors: What each view shows around each of its reduced pixels.
        covered: Where anything can be, for cut-out images; None for all.
    """

    cameras: PinholeCamera
    descriptors: Float[Array, "views rows columns channels"]
    covered: Bool[Array, "views rows columns"] | None

    @classmethod
    def create(cls, frames: Sequence[Frame], cameras: PinholeCamera) -> "Gallery":
        """Reduces the frames' images; `cameras` is the stack of their cameras."""
        factor = -(-max(frames[0].image.shape[:2]) // _LARGEST_SIDE)
        descriptors = np.stack([_describe(frame, factor) for frame in frames])
        covered = None
        if any(frame.alpha is not None for frame in frames):
            covered = np.stack([_coverage(frame, factor) for frame in frames])
        return cls(
            cameras,
            jnp.asarray(descriptors),
            None if covered is None else jnp.asarray(covered),
        )

    def neighbours(self, view: int) -> Int[np.ndarray, " neighbours"]:
        """Returns the views nearest to a view, by position."""
        positions = np.asarray(self.cameras.world_from_camera)[:, :3, 3]
        order = np.argsort(np.linalg.norm(positions - positions[view], axis=1), kind="stable")
        return order[order != view][:_COMPARED_VIEWS].astype(np.int32)


@jax.jit
def cost_of_points(
    gallery: Gallery,
    view: Int[Array, ""],
    neighbours: Int[Array, " neighbours"],
    pixels: Float[Array, "rays 2"],
    points: Float[Array, "rays candidates 3"],
) -> Float[Array, "rays candidates"]:
    """Computes how much the views disagree about points on the rays of one of them.

    Args:
        gallery: The views.
        view: The view that the rays belong to.
        neighbours: Views to compare colours with; may be none.
        pixels: Where the rays start in their view.
        points: Places on the rays.

    Returns:
        Mean difference of descriptors, each at most 0.15. For cut-out images also the share of
        views that do not frame the point, and 100 for each view that shows nothing there.
    """
    cost = jnp.zeros(points.shape[:2], points.dtype)
    if gallery.covered is not None:
        unframed = 1.0 / gallery.covered.shape[0]

        def objection(camera, covered):
            found, seen = _look_up(covered[..., None], camera, points)
            return jnp.where(seen, jnp.where(found[..., 0], 0.0, _OUTSIDE), unframed)

        cost = cost + jax.vmap(objection)(gallery.cameras, gallery.covered).sum(axis=0)
    if not neighbours.size:
        return cost
    camera = jax.tree.map(lambda leaf: leaf[view], gallery.cameras)
    wanted = _sample(gallery.descriptors[view], pixels, camera)[:, None]

    def difference(camera, descriptors):
        found, seen = _look_up(descriptors, camera, points)
        error = jnp.abs(found - jnp.broadcast_to(wanted, found.shape)).mean(axis=-1)
        return jnp.where(seen, jnp.minimum(error, _LARGEST_DIFFERENCE), _LARGEST_DIFFERENCE)

    others = jax.tree.map(lambda leaf: leaf[neighbours], (gallery.cameras, gallery.descriptors))
    return cost + jax.vmap(difference)(*others).mean(axis=0)


@jax.jit
def points_on_rays(
    cameras: PinholeCamera,
    view: Int[Array, ""],
    pixels: Float[Array, "rays 2"],
    distances: Float[Array, "rays candidates"],
) -> Float[Array, "rays candidates 3"]:
    """Computes places on one view's rays, at distances along them."""
    rays = jax.tree.map(lambda leaf: leaf[view], cameras).rays(pixels)
    return rays.origins[:, None] + distances[..., None] * rays.directions[:, None]


def _look_up(image: Array, camera: PinholeCamera, points: Array) -> tuple[Array, Array]:
    """The image's values where the points appear, and whether they appear in it at all."""
    pixels, depth = camera.project(points)
    size = jnp.asarray(np.array([camera.width, camera.height]), pixels.dtype)
    inside = (pixels >= 0) & (pixels < jnp.broadcast_to(size, pixels.shape))
    return _sample(image, pixels, camera), (depth > 0) & inside.all(axis=-1)


def _sample(image: Array, pixels: Array, camera: PinholeCamera) -> Array:
    """Nearest reduced pixel of an image that shows the camera's whole field of view."""
    rows, columns = image.shape[:2]
    column = jnp.nan_to_num(pixels[..., 0]) * (columns / camera.width)
    row = jnp.nan_to_num(pixels[..., 1]) * (rows / camera.height)
    column = jnp.clip(column.astype(jnp.int32), 0, columns - 1)
    row = jnp.clip(row.astype(jnp.int32), 0, rows - 1)
    return image.reshape(rows * columns, -1)[row * columns + column]


def _describe(frame: Frame, factor: int) -> Float32[np.ndarray, "rows columns channels"]:
    """Colours averaged over neighbourhoods of several sizes, on mid grey."""
    reduced = _blocks(frame.over((0.5, 0.5, 0.5)), factor).mean(axis=(1, 3))
    parts = [_box(reduced, radius) for radius in _SMOOTHING]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def _coverage(frame: Frame, factor: int) -> Bool[np.ndarray, "rows columns"]:
    if frame.alpha is None:
        rows, columns = (-(-side // factor) for side in frame.image.shape[:2])
        return np.ones((rows, columns), bool)
    return _blocks(frame.alpha[..., None], factor).max(axis=(1, 3))[..., 0] > 0.05


def _blocks(image: np.ndarray, factor: int) -> np.ndarray:
    """Splits an image into squares, repeating its last rows and columns to fill them."""
    height, width, channels = image.shape
    extra = [(0, -height % factor), (0, -width % factor), (0, 0)]
    padded = np.pad(image, extra, mode="edge")
    return padded.reshape(-(-height // factor), factor, -(-width // factor), factor, channels)


def _box(image: np.ndarray, radius: int) -> np.ndarray:
    """Mean over a square around each pixel."""
    for axis in (0, 1):
        width = [(0, 0)] * 3
        width[axis] = (radius + 1, radius)
        sums = np.cumsum(np.pad(image.astype(np.float64), width, mode="edge"), axis=axis)
        size = 2 * radius + 1
        upper, lower = [slice(None)] * 3, [slice(None)] * 3
        upper[axis], lower[axis] = slice(size, None), slice(None, -size)
        image = (sums[tuple(upper)] - sums[tuple(lower)]) / size
    return image
