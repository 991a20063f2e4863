"""Cameras without photographs: the poses of a transforms file, for rendering."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..sensors import PinholeCamera
from ._document import Fields, load_document
from ._intrinsics import resolve_intrinsics
from ._poses import FLIP, POSE, camera_to_world
from .errors import CaptureError

_FOCAL = ("fl_x", "fl_y", "camera_angle_x", "camera_angle_y", "x_fov", "y_fov")
_IN_PIXELS = ("fl_x", "fl_y", "cx", "cy")


def read_cameras(
    path: str | os.PathLike[str],
    default: PinholeCamera,
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> list[PinholeCamera]:
    """Reads the cameras of a transforms file, whose images need not exist.

    Args:
        path: A json with `frames`, each with a `transform_matrix` (camera to world, OpenGL axes).
        default: Gives image size and intrinsics where the file has none.
        origin: What to subtract from all positions: that of the capture.

    Returns:
        One camera for each entry of `frames`, in their order.

    Raises:
        CaptureError: The file cannot be used.
    """
    document = load_document(pathlib.Path(path))
    cameras = [_camera(entry, document, default, origin) for entry in document.objects("frames")]
    if not cameras:
        raise CaptureError(document.file, "frames", "found no frame", "list at least one pose")
    return cameras


def cameras_document(
    cameras: Sequence[PinholeCamera],
    names: Sequence[str],
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> dict[str, Any]:
    """Describes cameras as `read_cameras` reads them, one by one and with their lenses.

    Args:
        cameras: What to describe.
        names: Of their images, written as `file_path`.
        origin: What to add to all positions: that of the capture.

    Returns:
        Plain values, fit for JSON.
    """
    entries = zip(cameras, names, strict=True)
    return {"frames": [_entry(camera, name, origin) for camera, name in entries]}


def _entry(camera: PinholeCamera, name: str, origin: tuple[float, float, float]) -> dict[str, Any]:
    pose = np.asarray(camera.world_from_camera, np.float64) @ FLIP
    pose[:3, 3] += origin
    entry: dict[str, Any] = {"file_path": name, "w": camera.width, "h": camera.height}
    entry["fl_x"], entry["fl_y"] = np.asarray(camera.focal, np.float64).tolist()
    entry["cx"], entry["cy"] = np.asarray(camera.principal, np.float64).tolist()
    if camera.distortion is not None:
        coefficients = np.asarray(camera.distortion, np.float64).tolist()
        entry |= dict(zip(("k1", "k2", "p1", "p2", "k3"), coefficients, strict=True))
    return {**entry, POSE: pose.tolist()}


def _camera(
    entry: Fields, document: Fields, default: PinholeCamera, origin: tuple[float, float, float]
) -> PinholeCamera:
    pose = camera_to_world(entry)
    pose[:3, 3] -= origin
    sized = entry if entry.has("w", "h") else document
    width, height = sized.size("w"), sized.size("h")
    if (width is None) != (height is None):
        key = "w" if width is None else "h"
        raise sized.error(key, "found nothing", "give both w and h, or none of them")
    if width is None or height is None:
        for fields in (entry, document):
            if fields.has(*_IN_PIXELS):
                key = next(key for key in _IN_PIXELS if fields.has(key))
                found = "given in pixels of an image of unknown size"
                raise fields.error(key, found, "give w and h as well")
        width, height = default.width, default.height
    if entry.has(*_FOCAL) or document.has(*_FOCAL):
        name = entry.text("file_path") or entry.place
        intrinsics = resolve_intrinsics(entry, document, width=width, height=height, image=name)
        focal, principal = intrinsics.focal, intrinsics.principal
        distortion = np.asarray(intrinsics.distortion, np.float32)
    else:
        scaled = default.scaled(width, height)
        focal, principal, distortion = scaled.focal, scaled.principal, scaled.distortion
    return PinholeCamera.from_opengl(
        pose.astype(np.float32),
        np.asarray(focal, np.float32),
        np.asarray(principal, np.float32),
        width,
        height,
        distortion=distortion,
    )
