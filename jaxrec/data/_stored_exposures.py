"""Exposures that stay in their files until somebody looks at them."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from ..sensors import Exposure, RollingShutterCamera
from ..sensors.rolling_shutter import Camera
from ._images import image_size, read_image
from .errors import CaptureError


class StoredExposure(Exposure):
    """An exposure whose image is decoded whenever it is asked for.

    It holds nothing of it: what looks at an image often keeps it, or asks for `load`.
    """

    _read: Callable[[], Float32[np.ndarray, "height width 3"]]

    @classmethod
    def create(
        cls,
        camera: Camera | RollingShutterCamera,
        read: Callable[[], Float32[np.ndarray, "height width 3"]],
        *,
        name: str,
        sensor: str,
        time: float,
        mask: Bool[np.ndarray, "height width"] | None = None,
    ) -> "StoredExposure":
        """Describes an exposure without reading it.

        Args:
            camera: The camera, with the size of the image.
            read: Decodes the image.
            name: What to call it.
            sensor: The camera's name in its rig.
            time: In seconds since the epoch.
            mask: True where the pixel may be used, or none.
        """
        # The fields of the class it stands for would want the pixels at once.
        exposure = object.__new__(cls)
        fields = {"camera": camera, "mask": mask, "name": name, "sensor": sensor, "time": time}
        for field, value in (*fields.items(), ("_read", read)):
            object.__setattr__(exposure, field, value)
        return exposure

    # Not a property: `dataclasses.replace` has to be able to set the image.
    def __getattr__(self, name: str) -> Any:
        if name != "image":
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return self._read()

    def load(self) -> Exposure:
        """Reads the image into an exposure that keeps it."""
        return Exposure(self.camera, self.image, self.mask, self.name, self.sensor, self.time)


def image_reader(
    file: pathlib.Path, width: int, height: int
) -> Callable[[], Float32[np.ndarray, "height width 3"]]:
    """What decodes an image file, once its size is found to be the camera's.

    Raises:
        CaptureError: The file is no image, or has another size.
    """
    size = image_size(file)
    if size != (width, height):
        found = f"the image has {size[0]} x {size[1]} pixels"
        raise CaptureError(file, "", found, f"wanted the camera's {width} x {height}")
    return lambda: read_image(file)[0]
