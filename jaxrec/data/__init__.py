"""Readers: captures on a disk become frames with OpenCV cameras."""

import dataclasses
import os
import pathlib
from collections.abc import Callable

from .._typing import positive_integer
from .blender import read_blender
from .capture import Capture as Capture, PointCloud as PointCloud
from .colmap import find_models, read_colmap
from .errors import CaptureError as CaptureError
from .llff import poses_file, read_llff
from .rgbd import pose_files, read_rgbd
from .transforms import read_transforms, split_file, whole_file


def open_capture(path: str | os.PathLike[str], *, downscale: int = 1) -> Capture:
    """Reads a capture, recognising its layout.

    A folder may hold, and where it holds several the first of them is taken and a message names
    the others:

    1. `transforms_train.json` (NeRF-synthetic);
    2. `transforms.json` (instant-ngp, nerfstudio);
    3. a COLMAP model, binary or text, in `sparse/0`, `sparse`, `colmap/sparse/0` or itself, with
       photographs in `images`;
    4. `poses_bounds.npy` (LLFF), with photographs in `images`;
    5. `NAME.color.jpg` and `NAME.pose.txt` for each frame, and `camera-intrinsics.txt` (7-Scenes).

    Args:
        path: a folder of a known layout, the folder of a COLMAP model in it, a transforms file
            under any name, or a `poses_bounds.npy`.
        downscale: images become this many times smaller, each side rounded down. In the layouts
            of COLMAP and LLFF, images of a folder such as `images_4` are used as they are for 4;
            where there is no `images`, the largest images are taken for the photographs.

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
    if path.suffix.lower() == ".npy":
        return read_llff(path, downscale=downscale)
    if path.suffix.lower() != ".json":
        raise CaptureError(path, "", "not a json file", "give a folder or its transforms.json")
    train = split_file(path.parent, "train")
    if train is not None and path in _splits(path.parent):
        return read_blender(train, downscale=downscale)
    return read_transforms(path, downscale=downscale)


def _open_folder(folder: pathlib.Path, downscale: int) -> Capture:
    layouts: list[tuple[str, Callable[[], Capture]]] = []
    train, whole = split_file(folder, "train"), whole_file(folder)
    if train is not None:
        layouts.append((train.name, lambda: read_blender(train, downscale=downscale)))
    elif whole is not None:
        layouts.append((whole.name, lambda: read_transforms(whole, downscale=downscale)))
    if find_models(folder):
        layouts.append(("the COLMAP model", lambda: read_colmap(folder, downscale=downscale)))
    poses = poses_file(folder)
    if poses is not None:
        layouts.append((poses.name, lambda: read_llff(poses, downscale=downscale)))
    if pose_files(folder):
        layouts.append(("*.pose.txt", lambda: read_rgbd(folder, downscale=downscale)))
    if not layouts:
        raise _nothing_found(folder)
    (name, read), *others = layouts
    capture = read()
    messages = [f"{other} is not used: {name} comes first" for other, _ in others]
    return dataclasses.replace(capture, messages=[*messages, *capture.messages])


def _nothing_found(folder: pathlib.Path) -> CaptureError:
    inside = sorted(file.parent.name for file in folder.glob("*/transforms*.json"))
    others = sorted(file.name for file in folder.glob("*.json"))
    if inside:
        advice = f"give the capture in it: {folder / inside[0]}"
    elif others:
        advice = f"give the json itself if it is one of: {', '.join(others[:5])}"
    else:
        advice = "give the folder that holds one of them, or the json itself"
    found = (
        "found neither transforms.json nor transforms_train.json, nor a COLMAP model in sparse/0, "
        "nor poses_bounds.npy, nor RGB-D frames (*.pose.txt)"
    )
    return CaptureError(folder, "", found, advice)


def _splits(folder: pathlib.Path) -> list[pathlib.Path | None]:
    return [split_file(folder, split) for split in ("train", "test", "val")]
