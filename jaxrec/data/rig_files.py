"""Sensors and paths that nobody drove, as JSON files, for rendering.

**A sensor.** One object, or `{"sensors": [...]}` with several. All have

* `name` (by default the file's);
* `body_from_sensor`: 4 x 4, rigid, metres: the mount on the rig, whose body looks along x with y
  to its left and z up. Cameras look along z with x to their right and y down; lidars along x with
  y to their left and z up;
* `seconds`: how long it measures, from the first line or column to the last, 0 by default.

`"kind": "camera"` has `width` and `height` in pixels and `model`:

* `pinhole` (default): `fl_x`, `fl_y` (by default the same), `cx`, `cy` (by default the middle) in
  pixels from the image's corner, and `k1`, `k2`, `p1`, `p2`, `k3` of OpenCV;
* `fisheye`: the same with `coefficients`, the four of OpenCV's fisheye, and `max_angle_degrees`
  from the axis;
* `ftheta`: `cx`, `cy`, `polynomial` (pixels from the centre by angle in radians, from the constant
  on, which is 0) and `max_angle_degrees`;
* `equirectangular`: the whole sphere.

Where `seconds` is above 0 its shutter rolls, in `direction` `top_to_bottom` (default),
`bottom_to_top`, `left_to_right` or `right_to_left`.

`"kind": "lidar"` turns once: `elevations_degrees`, a list from its rows, `columns`, `direction`
`cw` (default) or `ccw` seen from above, `start_degrees`, the azimuth of the first column (180 by
default, backward), and `beam_mrad`, half of the divergence (1 by default).

**A path.** `{"frames": [{"time": seconds, "world_from_body": 4 x 4}, ...]}`, at least two, in the
log's own world and in seconds since the epoch of the drive (`Drive.epoch`); between two of them the
rig moves on a line and turns by slerp.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from ..sensors import (
    EquirectangularLens,
    FisheyeLens,
    FThetaLens,
    LensCamera,
    PinholeCamera,
    RayBundle,
    RollingShutterCamera,
    SpinningLidar,
    spin,
)
from ..sensors.rolling_shutter import Camera
from ..trajectory import Path, Trajectory
from ._document import Fields, finite_number, load_document, quote
from ._log_files import need, numbers
from ._poses import rigid_matrix
from .drive import Drive
from .errors import CaptureError

_DIRECTIONS = ("top_to_bottom", "bottom_to_top", "left_to_right", "right_to_left")


@dataclasses.dataclass(frozen=True)
class MountedSensor:
    """A sensor on a rig, that may be carried along any path.

    Attributes:
        name: What to call it.
        kind: "camera" or "lidar".
        seconds: From the first line or column that it measures to the last.
        place: Makes the sensor on a path of the rig, in the middle of its measurement at a time
            in seconds since the epoch.
    """

    name: str
    kind: str
    seconds: float
    place: Callable[[Path, float], Any]


def sensor_of(drive: Drive, name: str) -> MountedSensor | None:
    """A sensor of a drive by its name, as in its first measurement; None if it has no such."""
    if name not in drive.mounts:
        return None
    mount = jnp.asarray(drive.mounts[name], jnp.float32)
    for exposure in drive.exposures:
        if exposure.sensor == name:
            shutter: Any = exposure.camera
            if not isinstance(shutter, RollingShutterCamera):
                return _camera(name, shutter, mount, 0.0, "top_to_bottom")
            seconds = float(shutter.end - shutter.start)
            return _camera(name, shutter.camera, mount, seconds, shutter.direction)
    for sweep in drive.sweeps:
        if sweep.sensor == name:
            return _lidar_of(name, sweep.lidar, mount, sweep.time)
    return None


def read_sensors(path: str | os.PathLike[str]) -> list[MountedSensor]:
    """Reads sensors of a rig; see the module.

    Raises:
        CaptureError: The file cannot be used: its name, the field, and what was wanted.
    """
    document = load_document(pathlib.Path(path))
    entries = document.objects("sensors") if document.has("sensors") else [document]
    if not entries:
        raise document.error("sensors", "found none", "wanted at least one sensor")
    names = [entry.text("name") or document.file.stem for entry in entries]
    for index, name in enumerate(names):
        if name in names[:index] or pathlib.PurePath(name).name != name:
            found = f"found {quote(name)}"
            raise entries[index].error("name", found, "wanted a name of its own, without folders")
    readers = {"camera": _read_camera, "lidar": _read_lidar}
    return [
        readers[_one_of(entry, "kind", tuple(readers))](entry, name)
        for entry, name in zip(entries, names, strict=True)
    ]


def read_path(
    path: str | os.PathLike[str], origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> Trajectory:
    """Reads the path of a rig; see the module.

    Args:
        path: The file.
        origin: What to subtract from all positions: that of the drive.

    Raises:
        CaptureError: The file cannot be used: its name, the field, and what was wanted.
    """
    document = load_document(pathlib.Path(path))
    frames = document.objects("frames")
    if len(frames) < 2:
        raise document.error("frames", f"found {len(frames)}", "wanted at least two poses")
    times = [need(frame, "time", frame.number("time"), "seconds") for frame in frames]
    for before, after, frame in zip(times[:-1], times[1:], frames[1:], strict=True):
        if after <= before:
            raise frame.error("time", f"found {after:g} after {before:g}", "wanted growing times")
    poses = np.stack(
        [rigid_matrix(frame, "world_from_body", "world-from-body") for frame in frames]
    )
    poses[:, :3, 3] -= origin
    return Trajectory(poses.astype(np.float32), np.asarray(times, np.float64))


def _read_camera(entry: Fields, name: str) -> MountedSensor:
    wanted = "an image size in pixels"
    width, height = (need(entry, key, entry.size(key), wanted) for key in ("width", "height"))
    mount = jnp.asarray(rigid_matrix(entry, "body_from_sensor", "body-from-sensor"), jnp.float32)
    model = _one_of(entry, "model", ("pinhole", "fisheye", "ftheta", "equirectangular"), "pinhole")
    principal = _number(entry, "cx", width / 2), _number(entry, "cy", height / 2)
    middle = np.asarray(principal, np.float32)
    camera: Camera
    if model == "pinhole":
        names = ("k1", "k2", "p1", "p2", "k3")
        bent = [_number(entry, key, 0.0) for key in names] if entry.has(*names) else None
        distortion = None if bent is None else np.asarray(bent, np.float32)
        size = {"width": width, "height": height}
        camera = PinholeCamera(mount, _focal(entry), middle, distortion, **size)
    else:
        if model == "fisheye":
            bent = numbers(entry, "coefficients", 4, "k1 to k4 of OpenCV's fisheye")
            coefficients, angle = bent.astype(np.float32), np.float32(_angle(entry))
            lens = FisheyeLens(_focal(entry), middle, coefficients, angle)
        elif model == "ftheta":
            polynomial = _list(entry, "polynomial", "pixels by angle in radians")
            if len(polynomial) < 2 or polynomial[0] != 0 or polynomial[1] <= 0:
                found = f"found {quote(entry.values['polynomial'])}"
                raise entry.error("polynomial", found, "wanted 0 and then a number above zero")
            lens = FThetaLens(middle, polynomial.astype(np.float32), np.float32(_angle(entry)))
        else:
            lens = EquirectangularLens.full(width, height)
        camera = LensCamera(mount, lens, width=width, height=height)
    direction = _one_of(entry, "direction", _DIRECTIONS, "top_to_bottom")
    return _camera(name, camera, mount, _duration(entry), direction)


def _read_lidar(entry: Fields, name: str) -> MountedSensor:
    mount = jnp.asarray(rigid_matrix(entry, "body_from_sensor", "body-from-sensor"), jnp.float32)
    rows = np.deg2rad(_list(entry, "elevations_degrees", "elevations of the rows in degrees"))
    columns = need(entry, "columns", entry.size("columns"), "a number of shots in a turn")
    start = np.deg2rad(_number(entry, "start_degrees", 180.0))
    direction: Any = _one_of(entry, "direction", ("cw", "ccw"), "cw")
    azimuths = spin(columns, direction, start).astype(np.float32)
    beam = (0.0, 1e-3 * _number(entry, "beam_mrad", 1.0))
    rays = {"elevations": rows.astype(np.float32), "azimuths": azimuths, "beam": beam}
    seconds = _duration(entry)

    def place(path: Path, time: float) -> SpinningLidar:
        times = {"start": time - seconds / 2, "end": time + seconds / 2}
        return SpinningLidar(mount, path, **rays, **times)

    return MountedSensor(name, "lidar", seconds, place)


def _camera(name: str, camera: Any, mount, seconds: float, direction: Any) -> MountedSensor:
    camera = dataclasses.replace(camera, world_from_camera=mount)

    def place(path: Path, time: float) -> Any:
        if seconds == 0:
            pose = _pose_at(path.mounted(mount), jnp.float32(time))
            return dataclasses.replace(camera, world_from_camera=pose)
        start, end = time - seconds / 2, time + seconds / 2
        return RollingShutterCamera(camera, path, start, end, direction=direction)

    return MountedSensor(name, "camera", seconds, place)


def _lidar_of(name: str, lidar: SpinningLidar | RayBundle, mount, middle: float) -> MountedSensor:
    if isinstance(lidar, SpinningLidar):
        seconds = float(lidar.end - lidar.start)
    else:
        seconds = float(lidar.times.max() - lidar.times.min())

    def place(path: Path, time: float) -> Any:
        moved: dict[str, Any] = {"trajectory": path}
        late = jnp.float32(time - middle)
        if isinstance(lidar, SpinningLidar):
            times = {"start": lidar.start + late, "end": lidar.end + late}
            moved |= {"body_from_lidar": mount, **times}
        else:
            moved |= {"body_from_sensor": mount, "times": lidar.times + late}
        return dataclasses.replace(lidar, **moved)

    return MountedSensor(name, "lidar", seconds, place)


@jax.jit
def _pose_at(path, time):
    return path.at(time)


def _one_of(entry: Fields, key: str, known: Sequence[str], default: str | None = None) -> str:
    value = entry.text(key) or default
    if value is None or value not in known:
        found = f"found {quote(entry.values.get(key))}"
        raise entry.error(key, found, f"wanted one of {', '.join(known)}")
    return value


def _number(entry: Fields, key: str, default: float) -> float:
    value = entry.number(key)
    return default if value is None else value


def _focal(entry: Fields) -> np.ndarray:
    wanted = "a focal length in pixels"
    across = need(entry, "fl_x", entry.positive("fl_x", wanted), wanted)
    down = entry.positive("fl_y", wanted)
    return np.asarray([across, across if down is None else down], np.float32)


def _angle(entry: Fields) -> float:
    wanted = "an angle from the axis in degrees"
    angle = need(entry, "max_angle_degrees", entry.positive("max_angle_degrees", wanted), wanted)
    if angle > 180:
        raise entry.error("max_angle_degrees", f"found {angle:g}", "wanted at most 180")
    return float(np.deg2rad(angle))


def _duration(entry: Fields) -> float:
    seconds = _number(entry, "seconds", 0.0)
    if seconds < 0:
        raise entry.error("seconds", f"found {seconds:g}", "wanted a duration from 0")
    return seconds


def _list(entry: Fields, key: str, meaning: str) -> Float64[np.ndarray, " n"]:
    value = entry.values.get(key)
    found = [finite_number(each) for each in value] if isinstance(value, list) else []
    if not found or any(each is None for each in found):
        raise CaptureError(
            entry.file, entry.name(key), f"found {quote(value)}", f"wanted a list of {meaning}"
        )
    return np.array(found, np.float64)
