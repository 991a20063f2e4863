"""Readers: captures on a disk become frames with OpenCV cameras."""

import dataclasses
import os
import pathlib
from collections.abc import Callable

from ._reading import Reading
from .blender import read_blender
from .capture import Capture as Capture, PointCloud as PointCloud
from .colmap import find_models, read_colmap
from .drive import Drive as Drive, Track as Track
from .drives import is_drive as is_drive, open_drive as open_drive
from .errors import CaptureError as CaptureError
from .llff import poses_file, read_llff
from .ncore_writer import write_ncore as write_ncore
from .rgbd import pose_files, read_rgbd
from .sfm import Structure as Structure, photo_folder, reconstruct as reconstruct
from .street import Hits as Hits, Street as Street
from .transforms import read_transforms, split_file, whole_file
from .video import is_video

_ESTIMATE = "`jaxrec fit` estimates them (jaxrec.data.reconstruct in Python)"


def open_capture(
    path: str | os.PathLike[str],
    *,
    downscale: int = 1,
    mask_invert: bool = False,
    ignore_distortion: bool = False,
    image_memory: int | None = None,
) -> Capture:
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
        mask_invert: whether masks mark what is to be ignored. Else 0 is ignored, and what is not
            0 is used. Masks are what a frame names, `NAME_mask.png` beside an image, or
            `masks/NAME.png`, `masks/NAME.jpg.png` and `masks/NAME_mask.png`; the alpha channel
            of an image is no mask, but says what is cut out.
        ignore_distortion: whether the images are undistorted already, whatever the capture says
            about the lens.
        image_memory: bytes that decoded images may take; where they take more, they are read from
            their files whenever they are needed, with the same results. No limit if None.

    Returns:
        The frames in file order (by file name where jaxrec itself holds some out), all with
        alpha or none.

    Raises:
        CaptureError: the capture cannot be used: one line that names the file, the field, what
            was found and what to do.
        ValueError: `downscale` is no whole number above zero, or `image_memory` is negative.
    """
    reading = Reading(downscale, mask_invert, ignore_distortion, image_memory)
    path = pathlib.Path(path)
    if path.is_dir():
        return _open_folder(path, reading)
    if not path.exists():
        raise CaptureError(path, "", "no such file or folder", "check the path")
    if is_video(path):
        raise CaptureError(path, "", "a video has no poses", _ESTIMATE)
    if path.suffix.lower() == ".npy":
        return read_llff(path, reading)
    if path.suffix.lower() != ".json":
        raise CaptureError(path, "", "not a json file", "give a folder or its transforms.json")
    train = split_file(path.parent, "train")
    if train is not None and path in _splits(path.parent):
        return read_blender(train, reading)
    return read_transforms(path, reading)


def needs_poses(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a video, or a folder of photos in none of the layouts.

    Such are no captures yet: `jaxrec.data.reconstruct` makes one of them. A folder with a json
    beside the photos is not meant: the poses may be in it, and the error says so.
    """
    path = pathlib.Path(path)
    if is_video(path):
        return True
    if not path.is_dir() or _layouts(path, Reading()) or any(path.glob("*.json")):
        return False
    return photo_folder(path) is not None


def _open_folder(folder: pathlib.Path, reading: Reading) -> Capture:
    layouts = _layouts(folder, reading)
    if not layouts:
        raise _nothing_found(folder)
    (name, read), *others = layouts
    capture = read()
    messages = [f"{other} is not used: {name} comes first" for other, _ in others]
    return dataclasses.replace(capture, messages=[*messages, *capture.messages])


def _layouts(folder: pathlib.Path, reading: Reading) -> list[tuple[str, Callable[[], Capture]]]:
    """The layouts that a folder has, with what reads them; the first comes first."""
    layouts: list[tuple[str, Callable[[], Capture]]] = []
    train, whole = split_file(folder, "train"), whole_file(folder)
    if train is not None:
        layouts.append((train.name, lambda: read_blender(train, reading)))
    elif whole is not None:
        layouts.append((whole.name, lambda: read_transforms(whole, reading)))
    if find_models(folder):
        layouts.append(("the COLMAP model", lambda: read_colmap(folder, reading)))
    poses = poses_file(folder)
    if poses is not None:
        layouts.append((poses.name, lambda: read_llff(poses, reading)))
    if pose_files(folder):
        layouts.append(("*.pose.txt", lambda: read_rgbd(folder, reading)))
    return layouts


def _nothing_found(folder: pathlib.Path) -> CaptureError:
    inside = sorted(file.parent.name for file in folder.glob("*/transforms*.json"))
    others = sorted(file.name for file in folder.glob("*.json"))
    if inside:
        advice = f"give the capture in it: {folder / inside[0]}"
    elif others:
        advice = f"give the json itself if it is one of: {', '.join(others[:5])}"
    elif photo_folder(folder) is not None:
        advice = f"there are images: if they have no poses, {_ESTIMATE}"
    else:
        advice = "give the folder that holds one of them, or the json itself"
    found = (
        "found neither transforms.json nor transforms_train.json, nor a COLMAP model in sparse/0, "
        "nor poses_bounds.npy, nor RGB-D frames (*.pose.txt)"
    )
    return CaptureError(folder, "", found, advice)


def _splits(folder: pathlib.Path) -> list[pathlib.Path | None]:
    return [split_file(folder, split) for split in ("train", "test", "val")]
