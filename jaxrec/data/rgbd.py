"""The layout of 7-Scenes: colour, depth and pose of each frame of a video in files of its own."""

import pathlib

import numpy as np
from jaxtyping import Float

from ._document import Fields, listed
from ._frames import Listing
from ._hold_out import unsplit_capture
from ._images import find_image, image_size
from ._intrinsics import resolve_intrinsics
from ._poses import FLIP, POSE, camera_to_world
from ._reading import Reading
from .capture import Capture
from .errors import CaptureError

_POSE, _COLOR, _DEPTH = ".pose.txt", ".color", ".depth"
_INTRINSICS = "camera-intrinsics.txt"


def pose_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The pose files of a folder of RGB-D frames, by name."""
    return sorted(folder.glob(f"*{_POSE}"))


def read_rgbd(folder: pathlib.Path, reading: Reading) -> Capture:
    """Reads a folder of RGB-D frames with poses. Every 8th frame by name is held out.

    A frame is `NAME.color.jpg` (or another kind of image) and `NAME.pose.txt`: camera to world,
    in metres, with OpenCV axes. `camera-intrinsics.txt` holds K, in pixels of the colour images
    from the corner of the first pixel. `NAME.depth.png`, if it is there, holds depths along the
    optical axis in whole millimetres; 0 and 65535 are not measured.

    Args:
        folder: holds all the files.
        reading: how to read the images.

    Raises:
        CaptureError: a file cannot be used.
    """
    intrinsics = _intrinsics(folder / _INTRINSICS)
    listings, lost = [], []
    for file in pose_files(folder):
        pose = _matrix(file, 4)
        name = file.name.removesuffix(_POSE)
        # What trackers write where they lost the camera.
        if not np.isfinite(pose).all():
            lost.append(name)
        else:
            listings.append(_listing(file, name, pose, intrinsics))
    if not listings:
        advice = "wanted at least two frames with finite poses"
        raise CaptureError(folder, "", f"found none among {len(lost)} frames", advice)
    used = {*lost, *(listing.name.partition(_COLOR)[0] for listing in listings)}
    colors = {file.name.partition(_COLOR)[0] for file in folder.glob(f"*{_COLOR}.*")}
    messages = []
    for names, reason in (
        (lost, "their poses are not finite"),
        (colors - used, "they have no pose"),
    ):
        if names:
            messages.append(f"not used, as {reason}: {listed(sorted(names))}")
    depths = sum(listing.depth is not None for listing in listings)
    if depths:
        messages.append(f"{depths} of {len(listings)} frames have a depth map")
    return unsplit_capture(
        listings,
        folder,
        format="rgbd",
        path=folder,
        root=folder,
        messages=messages,
        reading=reading,
    )


def _listing(
    file: pathlib.Path, name: str, pose: Float[np.ndarray, "4 4"], intrinsics: Fields
) -> Listing:
    fields = Fields(file, "", {POSE: pose.tolist()})
    image = find_image(file.parent, name + _COLOR)
    if image is None:
        found = f"no image {name + _COLOR}.jpg (nor .png) beside it"
        raise CaptureError(file, "", found, "copy the image there, or remove this file")
    width, height = image_size(image)
    depth = file.parent / f"{name}{_DEPTH}.png"
    return Listing(
        fields=fields,
        name=image.name,
        image=image,
        mask=None,
        camera_to_world=camera_to_world(fields) @ FLIP,
        intrinsics=resolve_intrinsics(
            intrinsics, intrinsics, width=width, height=height, image=image.name
        ),
        depth=depth if depth.is_file() else None,
    )


def _intrinsics(file: pathlib.Path) -> Fields:
    """What K says, under the names of a transforms file."""
    if not file.is_file():
        advice = "write K there: three lines of three numbers, in pixels of the colour images"
        raise CaptureError(file, "", "no such file", advice)
    matrix = _matrix(file, 3)
    (fx, _, cx), (_, fy, cy), _ = matrix.tolist()
    expected = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    if not np.allclose(matrix, expected, rtol=0, atol=1e-6, equal_nan=True):
        found = "found " + " / ".join(" ".join(f"{value:g}" for value in row) for row in matrix)
        raise CaptureError(file, "", found, "wanted K without skew: fx 0 cx / 0 fy cy / 0 0 1")
    return Fields(file, "", {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy})


def _matrix(file: pathlib.Path, size: int) -> Float[np.ndarray, "size size"]:
    """A square matrix in a text file; blank lines do not count."""
    wanted = f"wanted {size} lines of {size} numbers"
    try:
        lines = file.read_text(errors="backslashreplace").splitlines()
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
        raise CaptureError(file, "", found, "check the file and its permissions") from error
    rows = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            rows.append([float(word) for word in words])
        except ValueError as error:
            found = f"found {line.strip()[:60]!r}"
            raise CaptureError(file, f"line {number}", found, wanted) from error
        if len(words) != size:
            raise CaptureError(file, f"line {number}", f"found {len(words)} numbers", wanted)
    if len(rows) != size:
        raise CaptureError(file, "", f"found {len(rows)} lines of numbers", wanted)
    return np.array(rows)
