"""How the images of a capture are to be read."""

import dataclasses

from .._typing import positive_integer


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a person may ask of every reader.

    Attributes:
        downscale: Images become this many times smaller, by area average, each side rounded down.
        mask_invert: Whether masks mark what is to be ignored, instead of what is to be used.
        ignore_distortion: Whether the images are undistorted already, whatever the capture says
            about the lens.
        image_memory: Bytes that decoded images may take; beyond, they are read from their files
            whenever they are needed. No limit if None.

    Raises:
        ValueError: `downscale` is no whole number above zero, or `image_memory` is negative.
    """

    downscale: int = 1
    mask_invert: bool = False
    ignore_distortion: bool = False
    image_memory: int | None = None

    def __post_init__(self):
        positive_integer("downscale", self.downscale)
        if self.image_memory is not None and self.image_memory < 0:
            raise ValueError(f"image_memory: got {self.image_memory}; give a number of bytes >= 0")
