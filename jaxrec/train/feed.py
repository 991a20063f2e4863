"""Where the views of each step come from: all held on the device, or read when they are due."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from ..sensors import Frame, stream_frames
from .batches import (
    FrameOrder,
    FrameStack,
    group_by_size,
    reduce_stack,
    reduction,
    stack_cameras,
    stack_frames,
)
from .normalizer import SceneNormalizer
from .settings import FitSettings


def make_feed(
    frames: Sequence[Frame], normalizer: SceneNormalizer, settings: FitSettings, first: int
) -> "HeldFeed | StreamedFeed":
    """Chooses a feed: frames that hold their pixels are put on the device once.

    The views of each step are the same to the bit either way.

    Args:
        frames: Views to fit.
        normalizer: Carries the cameras into the scene.
        settings: Of the fit.
        first: The first step that will be asked for.
    """
    kind = HeldFeed if all(frame.in_memory for frame in frames) else StreamedFeed
    return kind(frames, normalizer, settings, first)


class HeldFeed:
    """All views on the device.

    Attributes:
        cameras: Of all views in scene coordinates, those of one image size in one stack.
    """

    def __init__(
        self,
        frames: Sequence[Frame],
        normalizer: SceneNormalizer,
        settings: FitSettings,
        first: int,
    ):
        """Stacks the frames. See `make_feed`."""
        del first
        self._settings = settings
        self._whole = stack_frames(frames, normalizer, compact=settings.compact_images)
        self._level, self._shown = 1, self._whole
        sizes = [stack.images.shape[0] for stack in self._whole]
        self._order = FrameOrder(sizes, settings.views_per_step, settings.seed)
        self.cameras = [stack.cameras for stack in self._whole]

    def at(self, step: int) -> tuple[FrameStack, np.ndarray]:
        """Returns a stack with the views of a step, and their places in it (int32)."""
        level = reduction(self._settings, step)
        if level != self._level:
            self._level, self._shown = level, [reduce_stack(x, level) for x in self._whole]
        group, places = self._order.at(step)
        return self._shown[group], places


class StreamedFeed:
    """Views that are put on the device when they are due, read ahead by the frames.

    Attributes:
        cameras: Of all views in scene coordinates, those of one image size in one stack.
    """

    def __init__(
        self,
        frames: Sequence[Frame],
        normalizer: SceneNormalizer,
        settings: FitSettings,
        first: int,
    ):
        """Looks at what the frames hold. See `make_feed`."""
        self._normalizer, self._settings = normalizer, settings
        self._groups = group_by_size(frames)
        # Steps of one group see arrays of the same kinds, whichever frames have them.
        self._masked = [any(frames[i].mask is not None for i in group) for group in self._groups]
        sizes = [len(group) for group in self._groups]
        self._order = FrameOrder(sizes, settings.views_per_step, settings.seed)
        self.cameras = [
            stack_cameras([normalizer.scene_camera(frames[i].camera) for i in group])
            for group in self._groups
        ]
        self._coming = stream_frames(frames, self._places(first))

    def _places(self, first: int) -> Iterator[list[int]]:
        for step in range(first, self._settings.steps):
            group, places = self._order.at(step)
            yield [self._groups[group][place] for place in places]

    def at(self, step: int) -> tuple[FrameStack, np.ndarray]:
        """Reads and stacks the views of a step; steps are asked for one after the other."""
        group, places = self._order.at(step)
        frames = next(self._coming)
        if self._masked[group]:
            everything = np.ones(frames[0].image.shape[:2], bool)
            frames = [
                frame if frame.mask is not None else dataclasses.replace(frame, mask=everything)
                for frame in frames
            ]
        (stack,) = stack_frames(frames, self._normalizer, compact=self._settings.compact_images)
        numbers = [self._groups[group][place] for place in places]
        stack = dataclasses.replace(stack, numbers=jnp.asarray(numbers, jnp.int32))
        stack = reduce_stack(stack, reduction(self._settings, step))
        return stack, np.arange(len(places), dtype=np.int32)
