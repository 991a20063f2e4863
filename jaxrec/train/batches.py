"""Frames on the device, and the order in which training visits them."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from .._typing import pytree
from ..sensors import Frame, PinholeCamera
from .normalizer import SceneNormalizer
from .settings import FitSettings


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class FrameStack:
    """Frames of one size on the device, cameras in scene coordinates.

    Attributes:
        cameras: One camera pytree whose arrays have a leading axis for the frames.
        images: Straight (not premultiplied) colour in [0, 1], or in 0..255 if 8-bit.
        alphas: Coverage in [0, 1]; None if no frame has any.
        masks: Pixels to use; None for all.
        numbers: Place of each frame among all that are fitted, of whatever size.
        depths: Along the optical axis in metres, 0 where there is none; None for none at all.
    """

    cameras: PinholeCamera
    images: Float[Array, "frames height width 3"] | UInt8[Array, "frames height width 3"]
    alphas: Float[Array, "frames height width"] | UInt8[Array, "frames height width"] | None
    masks: Bool[Array, "frames height width"] | None
    numbers: Int[Array, " frames"]
    depths: Float[Array, "frames height width"] | None


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Views:
    """The views of one step, as the objective wants them."""

    cameras: PinholeCamera
    images: Float[Array, "views height width 3"]
    alphas: Float[Array, "views height width"] | None
    masks: Bool[Array, "views height width"] | None
    numbers: Int[Array, " views"]
    depths: Float[Array, "views height width"] | None


def stack_frames(
    frames: Sequence[Frame], normalizer: SceneNormalizer, *, compact: bool = False
) -> list[FrameStack]:
    """Puts frames on the device, those of one image size together, in their order.

    Args:
        frames: What was measured.
        normalizer: Carries the cameras into the scene.
        compact: Whether to round images to 8 bits.
    """
    return [
        _stack([frames[i] for i in group], group, normalizer, compact)
        for group in group_by_size(frames)
    ]


def group_by_size(frames: Sequence[Frame]) -> list[list[int]]:
    """Groups the frames' indices by image size, in order of first appearance."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, frame in enumerate(frames):
        groups.setdefault((frame.camera.height, frame.camera.width), []).append(index)
    return list(groups.values())


def reduce_stack(stack: FrameStack, factor: int) -> FrameStack:
    """Makes the images of a stack smaller, each pixel a mean; rows and columns over are cut off.

    Args:
        stack: Frames.
        factor: How many pixels of a row become one. A pixel of the result is masked out if one of
            those that it comes from is.
    """
    if factor == 1:
        return stack
    width, height = stack.cameras.width // factor, stack.cameras.height // factor
    cut = dataclasses.replace(stack.cameras, width=width * factor, height=height * factor)
    scaled = cut.scaled(width, height)
    images, alphas = _blocks(_as_float(stack.images), height, width, factor), None
    if stack.alphas is None:
        images = images.mean(axis=(2, 4))
    else:
        # Straight colour is a mean over what is covered.
        blocks = _blocks(_as_float(stack.alphas)[..., None], height, width, factor)
        alphas = blocks.mean(axis=(2, 4))
        images = (images * blocks).mean(axis=(2, 4)) / jnp.maximum(alphas, 1e-6)
        alphas = _like(alphas[..., 0], stack.alphas)
    masks = stack.masks
    if masks is not None:
        masks = _blocks(masks[..., None], height, width, factor).all(axis=(2, 4))[..., 0]
    depths = stack.depths
    if depths is not None:
        # The mean of those that were measured; 0 where none was.
        blocks = _blocks(depths[..., None], height, width, factor)
        known = jnp.isfinite(blocks) & (blocks > 0)
        depths = jnp.where(known, blocks, 0).sum(axis=(2, 4))
        depths = (depths / jnp.maximum(known.sum(axis=(2, 4)), 1).astype(depths.dtype))[..., 0]
    return dataclasses.replace(
        stack,
        cameras=scaled,
        images=_like(images, stack.images),
        alphas=alphas,
        masks=masks,
        depths=depths,
    )


def reduction(settings: FitSettings, step: int) -> int:
    """Returns how many times smaller images are at a step, from 0: a power of two, at last 1."""
    span = settings.coarse_until * settings.horizon
    if settings.coarse_levels == 0 or step >= span:
        return 1
    return 2 ** (settings.coarse_levels - int(step * settings.coarse_levels / span))


def take_views(stack: FrameStack, index: Int[Array, " views"]) -> Views:
    """Picks views by their place in the stack, inside `jit`, as float32."""
    cameras = jax.tree.map(lambda leaf: leaf[index], stack.cameras)
    masks = None if stack.masks is None else stack.masks[index]
    alphas = None if stack.alphas is None else _as_float(stack.alphas[index])
    numbers = stack.numbers[index]
    depths = None if stack.depths is None else stack.depths[index]
    return Views(cameras, _as_float(stack.images[index]), alphas, masks, numbers, depths)


def stack_cameras(cameras: Sequence[PinholeCamera]) -> PinholeCamera:
    """Makes one stack of cameras with images of one size; ideal lenses may be among them."""
    if any(camera.distortion is not None for camera in cameras):
        cameras = [
            dataclasses.replace(camera, distortion=jnp.zeros(5, camera.focal.dtype))
            if camera.distortion is None
            else camera
            for camera in cameras
        ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cameras)


class FrameOrder:
    """Which views each step sees: every epoch is a new permutation.

    The order is a function of the seed and the step alone, so a resumed fit continues it exactly.
    """

    def __init__(self, group_sizes: Sequence[int], views_per_step: int, seed: int):
        """Describes the frames.

        Args:
            group_sizes: Number of frames in each stack; a step sees views of one stack.
            views_per_step: Views of one step; a short last batch is filled from the first ones.
            seed: Randomness, together with the epoch.
        """
        self._sizes = tuple(group_sizes)
        self._views = views_per_step
        self._seed = seed
        self.steps_per_epoch = sum(-(-size // views_per_step) for size in group_sizes)
        self._epoch = -1
        self._batches: list[tuple[int, np.ndarray]] = []

    def at(self, step: int) -> tuple[int, np.ndarray]:
        """Returns the stack's number and the views' places in it (int32) for a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffle(epoch)
        return self._batches[place]

    def _shuffle(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        random = np.random.default_rng([self._seed, epoch])
        batches = []
        for group, size in enumerate(self._sizes):
            order = random.permutation(size).astype(np.int32)
            for start in range(0, size, self._views):
                places = np.arange(start, start + self._views) % size
                batches.append((group, order[places]))
        return [batches[i] for i in random.permutation(len(batches))]


def _stack(
    frames: list[Frame], numbers: list[int], normalizer: SceneNormalizer, compact: bool
) -> FrameStack:
    images = np.stack([frame.image for frame in frames])
    shape = images.shape[:3]
    alphas = masks = None
    if any(frame.alpha is not None for frame in frames):
        alphas = np.ones(shape, np.float32)
        for index, frame in enumerate(frames):
            if frame.alpha is not None:
                alphas[index] = frame.alpha
    if any(frame.mask is not None for frame in frames):
        masks = np.ones(shape, bool)
        for index, frame in enumerate(frames):
            if frame.mask is not None:
                masks[index] = frame.mask
    depths = None
    if any(frame.depth is not None for frame in frames):
        depths = np.zeros(shape, np.float32)
        for index, frame in enumerate(frames):
            if frame.depth is not None:
                depths[index] = frame.depth
    return FrameStack(
        stack_cameras([normalizer.scene_camera(frame.camera) for frame in frames]),
        _on_device(images, compact),
        None if alphas is None else _on_device(alphas, compact),
        None if masks is None else jnp.asarray(masks),
        jnp.asarray(numbers, jnp.int32),
        None if depths is None else jnp.asarray(depths),
    )


def _blocks(values: Array, height: int, width: int, factor: int) -> Array:
    """Squares of `factor` pixels, in axes 2 and 4."""
    cut = values[:, : height * factor, : width * factor]
    return cut.reshape(cut.shape[0], height, factor, width, factor, cut.shape[-1])


def _like(values: Array, stored: Array) -> Array:
    if stored.dtype == jnp.uint8:
        return jnp.round(255 * jnp.clip(values, 0, 1)).astype(jnp.uint8)
    return values


def _on_device(values: np.ndarray, compact: bool) -> Array:
    if compact:
        return jnp.asarray(np.round(np.clip(values, 0, 1) * 255).astype(np.uint8))
    return jnp.asarray(values, jnp.float32)


def _as_float(values: Array) -> Array:
    return values.astype(jnp.float32) / 255 if values.dtype == jnp.uint8 else values
