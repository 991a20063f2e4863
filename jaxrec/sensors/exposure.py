"""An exposure: what one camera of a moving rig measured at one time."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float32

from ._arrays import check_array
from .rolling_shutter import Camera, RollingShutterCamera


@dataclasses.dataclass(frozen=True, eq=False)
class Exposure:
    """An image of a camera of a rig, and when it was taken. It lives on the host, in NumPy.

    Attributes:
        camera: The camera at its place in the world, with the size of the image.
        image: Colour in [0, 1].
        mask: True where the pixel may be used, or none to use all.
        name: What to call it: the file's name, for one.
        sensor: The camera's name in its rig.
        time: Of the middle of the exposure, in seconds since the epoch of the rig's trajectory.

    Raises:
        ValueError: If an array has the wrong dtype, or another size than the camera's.
    """

    camera: Camera | RollingShutterCamera
    image: Float32[np.ndarray, "height width 3"]
    mask: Bool[np.ndarray, "height width"] | None = None
    name: str = ""
    sensor: str = ""
    time: float = 0.0

    def __post_init__(self):
        size, whose = (self.camera.height, self.camera.width), "the camera's height and width first"
        where = f"exposure {self.name!r}"
        check_array(f"{where}: image", self.image, np.float32, (*size, 3), whose)
        if self.mask is not None:
            check_array(f"{where}: mask", self.mask, np.bool_, size, whose)

    def usable(self) -> Bool[np.ndarray, "height width"]:
        """Which pixels may be used and have a ray: lenses may leave corners dark."""
        directions = np.asarray(self.camera.rays().directions)
        exists = np.asarray(np.isfinite(directions).all(axis=-1))
        return exists if self.mask is None else exists & self.mask
