"""A capture: the frames to fit, the frames held out, and what was noticed on the way."""

import dataclasses
import pathlib

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
        points: what the frames to fit know of the scene's shape, or none if nothing.
        origin: what was subtracted from all positions of the capture's files, in whole metres, so
            that float32 holds them: not zero where the cameras are far from the origin.
    """

    train: list[Frame]
    test: list[Frame]
    format: str
    path: pathlib.Path
    messages: list[str] = dataclasses.field(default_factory=list)
    points: PointCloud | None = None
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def frames(self) -> list[Frame]:
        """All frames, those to fit first."""
        return [*self.train, *self.test]

    @property
    def has_alpha(self) -> bool:
        """Whether the images are cut out: something in them is transparent."""
        return self.train[0].alpha is not None

    @property
    def has_distortion(self) -> bool:
        """Whether a camera has a lens distortion."""
        return self.train[0].camera.distortion is not None
