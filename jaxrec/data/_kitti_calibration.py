"""The calibration of a day of KITTI's raw data."""

import pathlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from ._log_files import COPY_AGAIN, text_lines
from ._rig import inverse_of, rigid_of
from .errors import CaptureError

_CAMERA_FILE, _LIDAR_FILE = "calib_cam_to_cam.txt", "calib_velo_to_cam.txt"
_IMU_FILE = "calib_imu_to_velo.txt"
_ADVICE = "copy the calibration of the day into the recording's folder, or beside it"


def calibration_folder(folder: pathlib.Path) -> pathlib.Path:
    """Where the calibration of a recording is.

    Raises:
        CaptureError: Nowhere.
    """
    for place in (folder, folder.absolute().parent):
        if (place / _LIDAR_FILE).is_file():
            return place
    raise CaptureError(folder, _LIDAR_FILE, "no such file in it nor beside it", _ADVICE)


def imu_from_velo(folder: pathlib.Path) -> Float64[np.ndarray, "4 4"]:
    """The pose of the lidar on the inertial unit."""
    return inverse_of(_rigid(folder / _IMU_FILE))


def velo_from_camera(
    folder: pathlib.Path, number: str
) -> tuple[Float64[np.ndarray, "4 4"], list[float], list[float], tuple[int, int]]:
    """The pose of a rectified camera, its focal lengths, principal point and size in pixels."""
    file = folder / _CAMERA_FILE
    values = _calibration(file)
    projection = _matrix(file, values, f"P_rect_{number}", 3, 4)
    # All cameras are rectified into the orientation of the first.
    rectified = _matrix(file, values, "R_rect_00", 3, 3)
    left, _, right = np.linalg.svd(rectified)
    width, height = _matrix(file, values, f"S_rect_{number}", 2).tolist()
    shift = np.linalg.solve(projection[:, :3], projection[:, 3])
    first_from_velo = _rigid(folder / _LIDAR_FILE)
    camera_from_velo = rigid_of(left @ right, shift) @ first_from_velo
    focal = [projection[0, 0], projection[1, 1]]
    # The set counts pixels from the centre of the first.
    principal = [projection[0, 2] + 0.5, projection[1, 2] + 0.5]
    return inverse_of(camera_from_velo), focal, principal, (int(width), int(height))


def _calibration(file: pathlib.Path) -> dict[str, Float64[np.ndarray, " _"]]:
    """The numbers of a calibration by name."""
    if not file.is_file():
        raise CaptureError(file, "", "no such file", _ADVICE)
    found = {}
    for line in text_lines(file):
        name, _, values = line.partition(":")
        try:
            found[name.strip()] = np.array([float(word) for word in values.split()])
        except ValueError:
            continue  # the date
    return found


def _matrix(
    file: pathlib.Path, values: Mapping[str, np.ndarray], name: str, *shape: int
) -> Float64[np.ndarray, "..."]:
    found = values.get(name)
    count = int(np.prod(shape))
    if found is None or len(found) != count:
        number = "nothing" if found is None else f"{len(found)} numbers"
        raise CaptureError(file, name, f"found {number}", f"wanted {count} numbers")
    return found.reshape(shape)


def _rigid(file: pathlib.Path) -> Float64[np.ndarray, "4 4"]:
    """The transform in R and T."""
    values = _calibration(file)
    rotation = _matrix(file, values, "R", 3, 3)
    off = np.abs(rotation @ rotation.T - np.eye(3)).max()
    if not off < 1e-3:
        raise CaptureError(file, "R", f"not a rotation (by {off:.2g})", COPY_AGAIN)
    left, _, right = np.linalg.svd(rotation)
    return rigid_of(left @ right, _matrix(file, values, "T", 3))
