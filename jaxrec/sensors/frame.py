"""A frame: what one camera measured at one time."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float32

from ._arrays import check_array
from .camera import PinholeCamera


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """An image and the camera that took it. It lives on the host, in NumPy.

    Attributes:
        camera: The camera, with the size of the image.
        image: Colour in [0, 1], straight: not multiplied by alpha.
        alpha: Coverage in [0, 1], or none if the image has no alpha channel.
        mask: True where the pixel may be used, or none to use all.
        name: What to call it: the file's name, for one.
        depth: Measured depth along the optical axis in metres, 0 or not finite where there is
            none; or none at all.

    Raises:
        ValueError: If an array has the wrong dtype, or another size than the camera's.
    """

    camera: PinholeCamera
    image: Float32[np.ndarray, "height width 3"]
    alpha: Float32[np.ndarray, "height width"] | None = None
    mask: Bool[np.ndarray, "height width"] | None = None
    name: str = ""
    depth: Float32[np.ndarray, "height width"] | None = None

    def __post_init__(self):
        size = (self.camera.height, self.camera.width)
        self._check("image", self.image, np.float32, (*size, 3))
        self._check("alpha", self.alpha, np.float32, size)
        self._check("mask", self.mask, np.bool_, size)
        self._check("depth", self.depth, np.float32, size)

    @property
    def in_memory(self) -> bool:
        """Whether the pixels are held; if not, each look at them may read a file."""
        return True

    def prefetch(self) -> None:
        """Begins to read the pixels, if they are not held; returns at once."""

    def load(self) -> "Frame":
        """Returns a frame that holds its pixels: this one, if it does."""
        return self

    def over(
        self, background: Float32[np.ndarray, "3"] | tuple[float, float, float]
    ) -> Float32[np.ndarray, "height width 3"]:
        """Lays the image over a background colour in [0, 1]; the image if it has no alpha."""
        if self.alpha is None:
            return self.image
        alpha = self.alpha[..., None]
        return self.image * alpha + np.asarray(background, np.float32) * (1 - alpha)

    def _check(self, field: str, array, dtype, shape: tuple[int, ...]) -> None:
        if array is not None or field == "image":
            where = f"frame {self.name!r}: {field}"
            check_array(where, array, dtype, shape, "the camera's height and width first")
