"""The layout of Argoverse 2 logs: Feather files of poses, calibration, boxes and sweeps."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..sensors import Exposure, PinholeCamera, Sweep, fit_rows
from ..trajectory import Path
from ._document import listed
from ._log_files import COPY_AGAIN, points_message
from ._rig import Anchor, Poses, Sighting, inverse_of, moved, rigid_of_quaternion, tracks_of
from ._shots import Rows, Shots, away, grid_width, sweep_of
from ._stored_exposures import StoredExposure, image_reader
from .drive import Drive
from .errors import CaptureError

POSES = "city_SE3_egovehicle.feather"
_MOUNTS, _INTRINSICS = "egovehicle_SE3_sensor.feather", "intrinsics.feather"
_POSE_COLUMNS = ("qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m")
_SWEEP_COLUMNS = ("x", "y", "z", "intensity", "laser_number", "offset_ns")
# Which lasers are whose: two lidars with 32 each are stored in one file.
_LASERS = {"up_lidar": 0, "down_lidar": 32}
_COUNT = 32


def read_argoverse(folder: pathlib.Path) -> Drive:
    """Reads a log of the Argoverse 2 sensor or lidar data set.

    The points of a sweep are stored in the vehicle's frame at the sweep's time, with its motion
    taken out: each is put back to where its own lidar stood when it was measured.

    Args:
        folder: Holds `city_SE3_egovehicle.feather`, `calibration` and `sensors`, and
            `annotations.feather` if the log has boxes.

    Raises:
        CaptureError: A file cannot be used, or `pyarrow` is not installed.
    """
    table = _table(folder / POSES, ("timestamp_ns", *_POSE_COLUMNS))
    poses, twice = Poses.sorted(table["timestamp_ns"], _rigid(table))
    if not len(poses.times):
        raise CaptureError(folder / POSES, "", "found no poses", COPY_AGAIN)
    messages = [f"{twice} poses are not used: they have the time of another"] if twice else []
    anchor = Anchor.of(poses)
    ego = anchor.path(poses)
    file = folder / "calibration" / _MOUNTS
    table = _table(file, ("sensor_name", *_POSE_COLUMNS))
    mounts = dict(zip(table["sensor_name"].tolist(), _rigid(table), strict=True))
    sweeps, about_sweeps = _sweeps(folder, file, poses, anchor, mounts, ego)
    exposures, about_images = _exposures(folder, poses, anchor, mounts)
    tracks, about_tracks = _tracks(folder, poses, anchor)
    return Drive(
        exposures=exposures,
        sweeps=sweeps,
        tracks=tracks,
        ego=ego,
        mounts=mounts,
        epoch=anchor.epoch,
        format="argoverse2",
        path=folder,
        origin=anchor.origin,
        messages=[*messages, *about_sweeps, *about_images, *about_tracks, *anchor.message()],
    )


def _table(file: pathlib.Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a Feather file."""
    try:
        from pyarrow import ArrowException, feather
    except ImportError as error:
        advice = "install it: pip install 'jaxrec[argoverse]'"
        raise CaptureError(file, "", "Feather files need pyarrow", advice) from error
    if not file.is_file():
        raise CaptureError(file, "", "no such file", "copy the whole log")
    try:
        table = feather.read_table(file)
    except (ArrowException, OSError, ValueError) as error:
        raise CaptureError(file, "", f"cannot be read ({error})", COPY_AGAIN) from error
    for column in columns:
        if column not in table.column_names:
            found = f"no such column among {', '.join(table.column_names)}"
            raise CaptureError(file, column, found, "wanted a log of Argoverse 2")
    return {column: table[column].to_numpy() for column in columns}


def _rigid(table: Mapping[str, np.ndarray]) -> Float64[np.ndarray, "n 4 4"]:
    columns = [np.asarray(table[name], np.float64) for name in _POSE_COLUMNS]
    return rigid_of_quaternion(np.stack(columns[:4], axis=-1), np.stack(columns[4:], axis=-1))


def _sweeps(
    folder: pathlib.Path,
    calibration: pathlib.Path,
    poses: Poses,
    anchor: Anchor,
    mounts: Mapping[str, Any],
    ego: Path,
) -> tuple[list[Sweep], list[str]]:
    files = sorted((folder / "sensors" / "lidar").glob("*.feather"), key=_stamp)
    sweeps, messages = [], []
    for sensor, first in _LASERS.items():
        if files and sensor not in mounts:
            raise CaptureError(
                calibration, sensor, "no such sensor", "wanted the pose of each lidar"
            )
        if files:
            found, told = _lidar_sweeps(files, sensor, first, poses, anchor, mounts[sensor], ego)
            sweeps += found
            messages += told
    if files:
        messages.append(
            "points are stored in 16 bits: ranges are rounded by up to 0.8 cm at 30 m and 3 cm "
            "beyond 64 m; shots without a return are not stored: they are masked"
        )
    else:
        messages.append("the log has no sweeps")
    return sorted(sweeps, key=lambda sweep: sweep.time), messages


def _lidar_sweeps(files, sensor, first, poses, anchor, mount, ego):
    """The sweeps of one of the two lidars."""
    shots, middles, lost, total = [], [], 0, 0
    for file in files:
        table = _table(file, _SWEEP_COLUMNS)
        of_lidar = (table["laser_number"] >= first) & (table["laser_number"] < first + _COUNT)
        if table["laser_number"].max(initial=0) >= _COUNT * len(_LASERS):
            found = f"found laser {table['laser_number'].max()}"
            raise CaptureError(file, "laser_number", found, "wanted 0 to 63, of two lidars")
        columns = {name: column[of_lidar] for name, column in table.items()}
        stamp = _stamp(file)
        times = stamp + columns["offset_ns"].astype(np.int64)
        stored = np.stack([columns[axis].astype(np.float64) for axis in "xyz"], axis=-1)
        in_world = moved(poses.at(np.array([stamp]))[0], stored)
        points = moved(inverse_of(poses.mounted(mount).at(times)), in_world)
        kept = away(points)
        lost, total = lost + int(np.sum(~kept)), total + len(kept)
        rows = columns["laser_number"][kept].astype(np.int64) - first
        intensities = columns["intensity"][kept].astype(np.float32) / np.float32(255)
        shots.append(Shots(points[kept], rows, anchor.seconds(times[kept]), intensities))
        around = times if len(times) else np.array([stamp])
        middles.append(float(anchor.seconds((around.min() + around.max()) // 2)))
    points = np.concatenate([each.points for each in shots])
    if not len(points):
        return [], [f"{sensor} has no points"]
    fit = fit_rows(points, np.concatenate([each.rows for each in shots]), count=_COUNT)
    rows = Rows.filled(fit.elevations, fit.heights)
    width = grid_width(shots, _COUNT)
    sweeps = [
        sweep_of(
            each,
            rows,
            width,
            mount=mount,
            path=ego,
            name=f"{sensor}/{file.name}",
            sensor=sensor,
            time=middle,
        )
        for each, file, middle in zip(shots, files, middles, strict=True)
    ]
    told = [f"{sensor}: rays are rebuilt from time offsets and the vehicle's path: {fit}"]
    return sweeps, [*told, *points_message(sensor, lost, total)]


def _stamp(file: pathlib.Path) -> int:
    """The time that a file is named by, in nanoseconds."""
    if not file.stem.isdigit():
        raise CaptureError(file, "", "the name is no time", "wanted nanoseconds, such as 3159...")
    return int(file.stem)


def _exposures(folder, poses, anchor, mounts) -> tuple[list[Exposure], list[str]]:
    files = sorted((folder / "sensors" / "cameras").glob("*/*.jpg"), key=_stamp)
    if not files:
        return [], ["the log has no images"]
    columns = ("fx_px", "fy_px", "cx_px", "cy_px", "height_px", "width_px")
    calibration = folder / "calibration" / _INTRINSICS
    table = _table(calibration, ("sensor_name", *columns))
    known = dict(zip(table["sensor_name"].tolist(), range(len(table["sensor_name"])), strict=True))
    exposures: list[Exposure] = []
    times = np.array([_stamp(file) for file in files])
    for file, time, ego in zip(files, times.tolist(), poses.at(times), strict=True):
        sensor = file.parent.name
        if sensor not in known or sensor not in mounts:
            missing = calibration if sensor not in known else calibration.parent / _MOUNTS
            raise CaptureError(missing, sensor, "no such sensor", f"wanted that of {file}")
        fx, fy, cx, cy, height, width = (float(table[name][known[sensor]]) for name in columns)
        size = int(width), int(height)
        place = anchor.local(ego @ mounts[sensor])
        camera = PinholeCamera(place, [fx, fy], [cx, cy], width=size[0], height=size[1])
        exposures.append(
            StoredExposure.create(
                camera,
                image_reader(file, *size),
                name=f"{sensor}/{file.name}",
                sensor=sensor,
                time=float(anchor.seconds(time)),
            )
        )
    told = ["images are undistorted, as published: k1, k2 and k3 are of the lenses before"]
    unseen = sorted(set(known) - {exposure.sensor for exposure in exposures})
    if unseen:
        told.append(f"calibrated, but without images: {listed(unseen)}")
    return exposures, told


def _tracks(folder, poses, anchor):
    file = folder / "annotations.feather"
    if not file.is_file():
        return [], ["the log has no boxes"]
    columns = ("timestamp_ns", "track_uuid", "category", "length_m", "width_m", "height_m")
    table = _table(file, (*columns, *_POSE_COLUMNS))
    times = table["timestamp_ns"].astype(np.int64)
    boxes = poses.at(times) @ _rigid(table)
    sizes = np.stack([table[name].astype(np.float64) for name in columns[3:]], axis=-1)
    named = zip(table["track_uuid"].tolist(), table["category"].tolist(), strict=True)
    return tracks_of(
        (
            Sighting(id, label, size, time, box)
            for (id, label), size, time, box in zip(
                named, sizes.tolist(), times.tolist(), boxes, strict=True
            )
        ),
        anchor,
    )
