"""A capture: the frames to fit, the frames held out, and what was noticed on the way."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from ..sensors import Frame


@dataclasses.dataclass(frozen=True, eq=False)
class PointCloud:
    """Points on what a capture shows, in the world frame of its cameras.

    Attributes:
        positions: x, y, z, finite.
        colors: red, green and blue in [0, 1].
    """

    positions: Float32[np.ndarray, "points 3"]
    colors: Float32[np.ndarray, "points 3"]


@dataclasses.dataclass(frozen=True)
class Capture:
    """Posed images of one scene.

    Attributes:
        train: frames to fit; never empty. Either all frames of a capture have alpha, or none,
            and either all their cameras have a distortion, or none.
        test: frames held out; never empty, and never used to fit.
        format: name of the layout, such as `blender` or `transforms`.
        path: the file or folder it was read from.
        messages: one line each for the person who asked: how the split was made, and what was
            passed over or put right.
        points: what the capture knows of the scene's shape, or none if it holds no points.
    """

    train: list[Frame]
    test: list[Frame]
    format: str
    path: pathlib.Path
    messages: list[str] = dataclasses.field(default_factory=list)
    points: PointCloud | None = None

    @property
    def frames(self) -> list[Frame]:
        """All frames, those to fit first."""
        return [*self.train, *self.test]

    @property
    def has_alpha(self) -> bool:
        """Whether the images are cut out: something in them is transparent."""
        return any(frame.alpha is not None for frame in self.frames)

    @property
    def has_distortion(self) -> bool:
        """Whether a camera has a lens distortion."""
        return any(frame.camera.distortion is not None for frame in self.frames)


def make_capture(
    train: Sequence[Frame],
    test: Sequence[Frame],
    *,
    format: str,
    path: pathlib.Path,
    messages: Sequence[str] = (),
    points: PointCloud | None = None,
) -> Capture:
    """Builds a capture in which alpha is there for all frames or for none.

    An alpha that is opaque everywhere says nothing and is dropped; where some frames are cut out,
    the others become opaque ones.
    """
    transparent = any(
        frame.alpha is not None and bool((frame.alpha < 1).any()) for frame in (*train, *test)
    )

    def with_alpha(frame: Frame) -> Frame:
        if (frame.alpha is not None) == transparent:
            return frame
        alpha = np.ones(frame.image.shape[:2], np.float32) if transparent else None
        return dataclasses.replace(frame, alpha=alpha)

    return Capture(
        train=[with_alpha(frame) for frame in train],
        test=[with_alpha(frame) for frame in test],
        format=format,
        path=path,
        messages=list(messages),
        points=points,
    )
