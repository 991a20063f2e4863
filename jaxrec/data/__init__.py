"""Readers: captures on a disk become frames with OpenCV cameras."""

import os
import pathlib

from .._typing import positive_integer
from .blender import read_blender
from .capture import Capture as Capture
from .errors import CaptureError as CaptureError
from .transforms import read_transforms, split_file, whole_file


def open_capture(path: str | os.PathLike[str], *, downscale: int = 1) -> Capture:
    """Reads a capture, recognising its layout.

    Args:
        path: a folder that holds `transforms_train.json` (NeRF-synthetic) or `transforms.json`
            (instant-ngp, nerfstudio), or such a file itself, under any name.
        downscale: images become this many times smaller, each side rounded down.

    Returns:
        The frames in file order (by file name where jaxrec itself holds some out), all with
        alpha or none.

    Raises:
        CaptureError: the capture cannot be used: one line that names the file, the field, what
            was found and what to do.
        ValueError: `downscale` is no whole number above zero.
    """
    downscale = positive_integer("downscale", downscale)
    path = pathlib.Path(path)
    if path.is_dir():
        return _open_folder(path, downscale)
    if not path.exists():
        raise CaptureError(path, "", "no such file or folder", "check the path")
    if path.suffix.lower() != ".json":
        raise CaptureError(path, "", "not a json file", "give a folder or its transforms.json")
    train = split_file(path.parent, "train")
    if train is not None and path in _splits(path.parent):
        return read_blender(train, downscale=downscale)
    return read_transforms(path, downscale=downscale)


def _open_folder(folder: pathlib.Path, downscale: int) -> Capture:
    train, whole = split_file(folder, "train"), whole_file(folder)
    if train is not None:
        return read_blender(train, downscale=downscale)
    if whole is not None:
        return read_transforms(whole, downscale=downscale)
    inside = sorted(file.parent.name for file in folder.glob("*/transforms*.json"))
    others = sorted(file.name for file in folder.glob("*.json"))
    if inside:
        advice = f"give the capture in it: {folder / inside[0]}"
    elif others:
        advice = f"give the json itself if it is one of: {', '.join(others[:5])}"
    else:
        advice = "give the folder that holds one of them, or the json itself"
    found = "found neither transforms.json nor transforms_train.json"
    raise CaptureError(folder, "", found, advice)


def _splits(folder: pathlib.Path) -> list[pathlib.Path | None]:
    return [split_file(folder, split) for split in ("train", "test", "val")]
