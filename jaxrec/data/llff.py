"""The layout of LLFF: `poses_bounds.npy`, and its photographs in the order of their names."""

import dataclasses
import pathlib

import numpy as np
from jaxtyping import Float

from ._document import Fields
from ._frames import Listing
from ._hold_out import unsplit_capture
from ._image_folders import ImageFolder, choose_images, image_files
from ._images import image_size
from ._intrinsics import resolve_intrinsics
from ._poses import POSE, camera_to_world
from ._reading import Reading
from .capture import Capture
from .errors import CaptureError

_WANTED = "wanted a row of 17 numbers for each image: a pose of 3 x 5, the nearest and farthest"


def poses_file(folder: pathlib.Path) -> pathlib.Path | None:
    """The file of the poses, if the folder has one."""
    file = folder / "poses_bounds.npy"
    return file if file.is_file() else None


def read_llff(file: pathlib.Path, reading: Reading) -> Capture:
    """Reads `poses_bounds.npy` and the photographs beside it. Every 8th is held out.

    A row of the file is a matrix of 3 x 5 and two depths. The matrix holds the camera's axes in
    the world (down, right, back), its position, and height, width and focal length in pixels.
    The principal point is the image's middle. The depths are not used.

    Args:
        file: the poses; the first is that of the first image by name, and so on.
        reading: how to read the images. Images of `images_4` are used as they are for a
            `downscale` of 4, and so on.

    Raises:
        CaptureError: the file or an image cannot be used, or their numbers differ.
    """
    rows = _rows(file)

    def lacks(folder: pathlib.Path) -> str:
        count = len(image_files(folder))
        return "" if count == len(rows) else f"it holds {count} images for {len(rows)} poses"

    choice = choose_images(file.parent, reading.downscale, lacks)
    images = image_files(choice.path)
    if len(images) != len(rows):
        found = f"found {len(rows)} poses for the {len(images)} images in {choice.path}"
        advice = "wanted one image for each pose: copy what is missing there, or remove the rest"
        raise CaptureError(file, "", found, advice)
    return unsplit_capture(
        [
            _listing(Fields(file, f"row {index}", _values(row)), image, choice)
            for index, (row, image) in enumerate(zip(rows, images, strict=True))
        ],
        file,
        format="llff",
        path=file.parent,
        root=file.parent,
        messages=choice.messages,
        reading=dataclasses.replace(reading, downscale=choice.downscale),
    )


def _rows(file: pathlib.Path) -> Float[np.ndarray, "images 17"]:
    try:
        rows = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        found = f"cannot be read as an array ({error})"
        raise CaptureError(file, "", found, "copy the file again") from error
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "fiu":
        kind = getattr(rows, "dtype", type(rows).__name__)
        raise CaptureError(file, "", f"found values of type {kind}", _WANTED)
    if rows.ndim != 2 or rows.shape[1] != 17 or not len(rows):
        shape = " x ".join(str(size) for size in rows.shape)
        raise CaptureError(file, "", f"found an array of {shape or 'one number'}", _WANTED)
    return rows.astype(np.float64)


def _values(row: Float[np.ndarray, "17"]) -> dict[str, object]:
    """What a row says, under the names and with the axes of a transforms file."""
    down, right, back, position, size = row[:15].reshape(3, 5).T
    pose = np.stack([right, -down, back, position], axis=1)
    height, width, focal = size.tolist()
    return {POSE: pose.tolist(), "h": height, "w": width, "fl_x": focal}


def _listing(fields: Fields, image: pathlib.Path, choice: ImageFolder) -> Listing:
    width, height = fields.size("w"), fields.size("h")
    assert width is not None and height is not None
    intrinsics = resolve_intrinsics(
        fields, fields, width=width, height=height, image="the photograph"
    )
    return Listing(
        fields=fields,
        name=image.relative_to(choice.path).as_posix(),
        image=image,
        mask=None,
        camera_to_world=camera_to_world(fields),
        intrinsics=choice.fit(
            intrinsics,
            image,
            image_size(image),
            lambda found, advice: fields.error("w", found, advice),
        ),
    )
