"""The boxes of KITTI's raw data: `tracklet_labels.xml`."""

import pathlib
import xml.etree.ElementTree as ElementTree
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ._log_files import COPY_AGAIN
from ._rig import rigid_of
from .errors import CaptureError

TRACKLETS = "tracklet_labels.xml"


class Tracklet(NamedTuple):
    """A box in one frame.

    Attributes:
        id: The number of its track in the file.
        label: What it is.
        size: Length, width and height in metres.
        frame: The frame's number.
        velo_from_box: From the middle of the box, in the lidar's frame.
    """

    id: str
    label: str
    size: tuple[float, float, float]
    frame: int
    velo_from_box: Float64[np.ndarray, "4 4"]


def read_tracklets(file: pathlib.Path) -> list[Tracklet]:
    """Reads all boxes of a recording.

    Raises:
        CaptureError: The file is no XML, or a number is missing.
    """
    try:
        root = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise CaptureError(file, "", f"not valid XML ({error})", COPY_AGAIN) from error
    tracklets = root.find("tracklets") if root.tag != "tracklets" else root
    if tracklets is None:
        raise CaptureError(file, "", "found no <tracklets>", COPY_AGAIN)
    boxes = []
    for number, item in enumerate(tracklets.findall("item")):
        place = f"tracklets[{number}]"
        length, width, height = (_number(file, place, item, tag) for tag in ("l", "w", "h"))
        first = int(_number(file, place, item, "first_frame"))
        label = (item.findtext("objectType") or "").strip() or "unknown"
        for index, pose in enumerate(item.findall("poses/item")):
            inner = f"{place}.poses[{index}]"
            x, y, z, *angles = (
                _number(file, inner, pose, tag) for tag in ("tx", "ty", "tz", "rx", "ry", "rz")
            )
            # The file's point is in the middle of the box's floor.
            middle = rigid_of(_turned(angles), np.array([x, y, z]))
            middle[:3, 3] += middle[:3, 2] * height / 2
            size = (length, width, height)
            boxes.append(Tracklet(str(number), label, size, first + index, middle))
    return boxes


def _turned(angles: list[float]) -> Float64[np.ndarray, "3 3"]:
    from scipy.spatial.transform import Rotation

    return Rotation.from_euler("xyz", angles).as_matrix()


def _number(file: pathlib.Path, place: str, item: ElementTree.Element, tag: str) -> float:
    text = item.findtext(tag)
    try:
        number = float(text or "")
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        found = "found nothing" if text is None else f"found {text.strip()[:40]!r}"
        raise CaptureError(file, f"{place}.{tag}", found, "wanted a number")
    return number
