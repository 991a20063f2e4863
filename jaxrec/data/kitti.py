"""The layout of KITTI's raw data: one recording, with the calibration of its day."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from ..sensors import Exposure, PinholeCamera, Sweep
from ..trajectory import Path
from ._clock import nanoseconds_of
from ._kitti_calibration import calibration_folder, imu_from_velo, velo_from_camera
from ._kitti_tracklets import TRACKLETS, read_tracklets
from ._log_files import COPY_AGAIN, points_message, text_lines
from ._rig import Anchor, Poses, Sighting, rigid_of, tracks_of
from ._shots import Shots, away, grid_width, sweep_of
from ._stored_exposures import StoredExposure, image_reader
from ._velodyne import find_rows, firing_times
from .drive import Drive
from .errors import CaptureError

_OXTS, _LIDAR = "oxts", "velodyne_points"
_CAMERAS = ("image_00", "image_01", "image_02", "image_03")
# Of the Earth in metres, as the set's own tools have it.
_RADIUS = 6378137.0
# A turn at 10 Hz, in nanoseconds, where the files say nothing better.
_TURN = 100_000_000


def is_kitti(folder: pathlib.Path) -> bool:
    """Whether a folder is a recording of KITTI's raw data."""
    return (folder / _OXTS / "data").is_dir()


def read_kitti(folder: pathlib.Path) -> Drive:
    """Reads a recording of KITTI's raw data, synchronised and rectified.

    The body is the inertial unit, the world east, north and up by the Mercator projection of
    the recording's latitude. The points of a turn are as they were measured: each is put where
    the lidar stood by its azimuth. Boxes are those of points at their azimuth, too.

    Args:
        folder: Holds `oxts`, `velodyne_points` and `image_02` or others; the calibration
            (`calib_*.txt`) is in it or beside it.

    Raises:
        CaptureError: A file cannot be used.

    References:
        Geiger et al., "Vision meets Robotics: The KITTI Dataset", IJRR 2013.
    """
    poses, twice = _inertial_poses(folder)
    messages = [f"{twice} poses are not used: they have the time of another"] if twice else []
    anchor = Anchor.of(poses)
    ego = anchor.path(poses, edge="extrapolate")
    calibration = calibration_folder(folder)
    lidar = imu_from_velo(calibration)
    velodyne = poses.mounted(lidar)
    turns = _turns(folder)
    sweeps, about_sweeps = _sweeps(folder, turns, anchor, lidar, ego)
    exposures, mounts = _exposures(folder, calibration, poses, anchor, lidar)
    tracks, about_tracks = tracks_of(_boxes(folder, turns, velodyne), anchor)
    if not exposures:
        messages.append("the recording has no images")
    if not tracks:
        messages.append(f"the recording has no boxes ({TRACKLETS})")
    return Drive(
        exposures=exposures,
        sweeps=sweeps,
        tracks=tracks,
        ego=ego,
        mounts={"imu": np.eye(4), _LIDAR: lidar, **mounts},
        epoch=anchor.epoch,
        format="kitti-raw",
        path=folder,
        origin=anchor.origin,
        messages=[*messages, *about_sweeps, *about_tracks, *anchor.message()],
    )


def _stamps(file: pathlib.Path) -> Int64[np.ndarray, " n"]:
    """The times in a file, in nanoseconds; one for each frame."""
    found = [nanoseconds_of(line) for line in text_lines(file)]
    for number, stamp in enumerate(found, 1):
        if stamp is None:
            wanted = "wanted a time such as 2011-09-26 13:02:25.964389445"
            raise CaptureError(file, f"line {number}", "found no time", wanted)
    return np.array(found, np.int64)


def _frames(folder: pathlib.Path, ending: str) -> dict[int, pathlib.Path]:
    """The files of a sensor by the number of their frame; some recordings have gaps."""
    files = sorted((folder / "data").glob(f"*{ending}"))
    wrong = [file for file in files if not file.stem.isdigit()]
    if wrong:
        raise CaptureError(wrong[0], "", "the name is no number", "wanted the frame's number")
    return {int(file.stem): file for file in files}


def _of_frame(stamps: np.ndarray, frame: int, file: pathlib.Path) -> int:
    if frame >= len(stamps):
        found = f"frame {frame}, but there are {len(stamps)} times"
        raise CaptureError(file, "", found, "copy timestamps.txt again")
    return int(stamps[frame])


def _inertial_poses(folder: pathlib.Path) -> tuple[Poses, int]:
    """Where the inertial unit was, and how many poses have the time of another."""
    stamps = _stamps(folder / _OXTS / "timestamps.txt")
    files = _frames(folder / _OXTS, ".txt")
    if not files:
        raise CaptureError(folder / _OXTS / "data", "", "found no poses", COPY_AGAIN)
    times = [_of_frame(stamps, frame, file) for frame, file in files.items()]
    values = np.stack([_oxts(file) for file in files.values()])
    latitude, longitude, altitude, roll, pitch, yaw = values.T
    scale = np.cos(np.deg2rad(latitude[0]))
    east = scale * _RADIUS * np.deg2rad(longitude)
    north = scale * _RADIUS * np.log(np.tan(np.deg2rad(90 + latitude) / 2))
    return Poses.sorted(
        times, rigid_of(_turned(roll, pitch, yaw), np.stack([east, north, altitude], axis=-1))
    )


def _oxts(file: pathlib.Path) -> Float64[np.ndarray, "6"]:
    """Latitude, longitude in degrees, altitude in metres, roll, pitch and yaw in radians."""
    words = text_lines(file)[0].split()
    try:
        found = np.array([float(word) for word in words[:6]])
    except ValueError:
        found = np.zeros(0)
    if len(found) != 6 or not np.isfinite(found).all():
        raise CaptureError(
            file, "", f"found {' '.join(words[:6])[:60]!r}", "wanted latitude, longitude, ..."
        )
    return found


def _turned(roll, pitch, yaw) -> Float64[np.ndarray, "n 3 3"]:
    from scipy.spatial.transform import Rotation

    return Rotation.from_euler("xyz", np.stack([roll, pitch, yaw], axis=-1)).as_matrix()


class _Turn(NamedTuple):
    """One turn of the lidar.

    Attributes:
        middle: When it looks ahead, in nanoseconds.
        period: Of the turn, in nanoseconds.
        known: Whether the files have said so.
        file: The points, if they are there.
    """

    middle: int
    period: int
    known: bool
    file: pathlib.Path | None


def _turns(folder: pathlib.Path) -> dict[int, _Turn]:
    """The turns of the lidar by frame."""
    place = folder / _LIDAR
    if not place.is_dir():
        return {}
    middles = _stamps(place / "timestamps.txt")
    files = _frames(place, ".bin")
    for frame, file in files.items():
        _of_frame(middles, frame, file)
    edges = [place / f"timestamps_{edge}.txt" for edge in ("start", "end")]
    if all(edge.is_file() for edge in edges):
        starts, ends = (_stamps(edge) for edge in edges)
        periods = ends - starts if len(starts) == len(ends) == len(middles) else 0 * middles
    else:
        periods = 0 * middles
    # Some recordings have a clock that stumbles.
    known = (periods > _TURN // 2) & (periods < 2 * _TURN)
    periods = np.where(known, periods, _TURN)
    return {
        frame: _Turn(int(middle), int(period), bool(sure), files.get(frame))
        for frame, (middle, period, sure) in enumerate(zip(middles, periods, known, strict=True))
    }


def _sweeps(
    folder: pathlib.Path,
    turns: Mapping[int, _Turn],
    anchor: Anchor,
    mount: Float64[np.ndarray, "4 4"],
    ego: Path,
) -> tuple[list[Sweep], list[str]]:
    stored = [(turn, turn.file) for turn in turns.values() if turn.file is not None]
    if not stored:
        return [], ["the recording has no sweeps"]
    messages = []
    if len(stored) < len(turns):
        messages.append(f"{len(turns) - len(stored)} of {len(turns)} sweeps are not stored")
    nominal = sum(not turn.known for turn, _ in stored)
    if nominal:
        messages.append(f"{nominal} of {len(stored)} sweeps are taken to last 0.1 s")
    clouds, intensities, lost, total = [], [], 0, 0
    for _, file in stored:
        values = _points(file)
        kept = away(values[:, :3])
        lost, total = lost + int(np.sum(~kept)), total + len(kept)
        clouds.append(values[kept, :3])
        intensities.append(np.clip(values[kept, 3], 0, 1).astype(np.float32))
    if not any(len(cloud) for cloud in clouds):
        raise CaptureError(folder / _LIDAR, "", "found no points", COPY_AGAIN)
    rings, rows, told = find_rows(clouds)
    middles = anchor.seconds([turn.middle for turn, _ in stored]).tolist()
    shots = [
        Shots(points, of, firing_times(points, middle, turn.period / 1e9), intensity)
        for points, of, middle, (turn, _), intensity in zip(
            clouds, rings, middles, stored, intensities, strict=True
        )
    ]
    width = grid_width(shots, len(rows.elevations))
    sweeps = [
        sweep_of(
            each,
            rows,
            width,
            mount=mount,
            path=ego,
            name=f"{_LIDAR}/{file.name}",
            sensor=_LIDAR,
            time=middle,
        )
        for each, (_, file), middle in zip(shots, stored, middles, strict=True)
    ]
    unknown = "shots without a return are not stored: they are masked, their rays are guesses"
    told = [*messages, *told, unknown, *points_message(_LIDAR, lost, total)]
    return sorted(sweeps, key=lambda sweep: sweep.time), told


def _points(file: pathlib.Path) -> Float64[np.ndarray, "n 4"]:
    """x, y, z and the reflectance of the points of a sweep."""
    try:
        values = np.fromfile(file, "<f4")
    except OSError as error:
        raise CaptureError(file, "", f"cannot be read ({error.strerror})", COPY_AGAIN) from error
    if file.stat().st_size % 16:
        found = f"has {file.stat().st_size} bytes"
        raise CaptureError(file, "", found, "wanted 16 for each point: copy it again")
    return values.reshape(-1, 4).astype(np.float64)


def _exposures(
    folder: pathlib.Path,
    calibration: pathlib.Path,
    poses: Poses,
    anchor: Anchor,
    lidar: Float64[np.ndarray, "4 4"],
) -> tuple[list[Exposure], dict[str, Float64[np.ndarray, "4 4"]]]:
    exposures: list[Exposure] = []
    mounts = {}
    for sensor in _CAMERAS:
        place = folder / sensor
        if not (place / "data").is_dir():
            continue
        stamps = _stamps(place / "timestamps.txt")
        mount, focal, principal, size = velo_from_camera(calibration, sensor[-2:])
        mounts[sensor] = lidar @ mount
        files = {**_frames(place, ".png"), **_frames(place, ".jpg")}
        times = [_of_frame(stamps, frame, file) for frame, file in files.items()]
        where = anchor.local(poses.mounted(mounts[sensor]).at(np.array(times, np.int64)))
        for file, time, pose in zip(files.values(), times, where, strict=True):
            width, height = size
            exposures.append(
                StoredExposure.create(
                    PinholeCamera(pose, focal, principal, width=width, height=height),
                    image_reader(file, width, height),
                    name=f"{sensor}/{file.name}",
                    sensor=sensor,
                    time=float(anchor.seconds(time)),
                )
            )
    return sorted(exposures, key=lambda exposure: exposure.time), mounts


def _boxes(folder: pathlib.Path, turns: Mapping[int, _Turn], velodyne: Poses) -> list[Sighting]:
    """The boxes of the recording, in the world when the lidar looked at them."""
    file = folder / TRACKLETS
    if not file.is_file() or not turns:
        return []
    sightings = []
    for box in read_tracklets(file):
        turn = turns.get(box.frame)
        if turn is None:
            found = f"a box of frame {box.frame}"
            raise CaptureError(file, "first_frame", found, f"wanted 0 to {len(turns) - 1}")
        x, y = box.velo_from_box[:2, 3]
        time = turn.middle - round(turn.period * np.arctan2(y, x) / (2 * np.pi))
        place = velodyne.at(np.array([time]))[0] @ box.velo_from_box
        sightings.append(Sighting(box.id, box.label, box.size, time, place))
    return sightings
