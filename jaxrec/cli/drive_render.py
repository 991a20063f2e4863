"""`jaxrec render` on the run of a drive: other sensors, other paths, other traffic."""

import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..data.rig_files import MountedSensor, read_path, read_sensors, sensor_of
from ..geometry import matrix_from_axis_angle, rigid
from ..train import FittedDrive
from ..trajectory import Path, Trajectory
from .contact_sheet import to_bytes
from .drive_sheets import range_picture
from .errors import CommandError
from .run_folder import replace_file, write_image
from .saved_run import SavedDrive
from .video import open_video

# A turn or a shutter that ends with the path has to lie in it in spite of rounding.
_SLACK = 1e-4
_RATE = 10.0


@dataclasses.dataclass(frozen=True)
class Replay:
    """What is to be seen, and from where.

    Attributes:
        sensors: Names of sensors of the drive, or files of sensors; all of the drive's if none.
        trajectory: File of a path; that of the drive if None.
        lane: Metres by which the rig drives to the left of it.
        move: ID:dx,dy,dz or ID:dx,dy,dz,yaw, in metres and degrees along the box's own axes.
        without: Ids of actors that are not there.
        rate: Images of each camera, and sweeps, in a second; None for the times of the drive's own
            sensors on its own path, and else 10.
    """

    sensors: Sequence[str] = ()
    trajectory: pathlib.Path | None = None
    lane: float = 0.0
    move: Sequence[str] = ()
    without: Sequence[str] = ()
    rate: float | None = None


def render_drive(run: SavedDrive, replay: Replay, out: pathlib.Path | None, fps: int) -> None:
    """Renders a drive as it was not driven, and says where the results are.

    Raises:
        CommandError: If a sensor, an actor or a path is not what it should be.
        CaptureError: If a file cannot be used.
    """
    fitted = edited(run.fitted, replay)
    sensors = _sensors(run, replay.sensors)
    path: Path = run.drive.ego
    if replay.trajectory is not None:
        path = read_path(replay.trajectory, run.drive.origin)
    if replay.lane != 0:
        aside = jnp.eye(4, dtype=jnp.float32).at[1, 3].set(replay.lane)
        path = path.mounted(aside)
    out = run.folder.renders / "drive" if out is None else out
    for sensor in sensors:
        times = _times(run, path, sensor, replay)
        folder = out / sensor.name
        # What an earlier and longer replay has left would pass for a part of this one.
        for file in folder.glob("[0-9][0-9][0-9][0-9].*"):
            file.unlink()
        placed = [(time, _placed(run, sensor, path, time, replay)) for time in times]
        if sensor.kind == "lidar":
            count = sum(_write_sweep(fitted, folder, *each) for each in enumerate(placed))
            print(f"{sensor.name}: {len(times)} sweeps with {count} returns: {folder}")
            continue
        video, camera = out / f"{sensor.name}.mp4", placed[0][1]
        frames = _pictures(fitted, sensor.name, placed, folder)

        def film(file: pathlib.Path, frames=frames, camera=camera) -> None:
            with open_video(file, camera.width, camera.height, fps=fps) as add:
                for picture in frames:
                    add(picture)

        replace_file(video, film)
        print(f"{sensor.name}: {len(times)} pictures: {folder}\nvideo: {video}")


def edited(fitted: FittedDrive, replay: Replay) -> FittedDrive:
    """The drive with its actors as they are wanted.

    Raises:
        CommandError: If there is no actor of a name, or a motion cannot be read.
    """
    for text in replay.move:
        name, motion = _motion(text)
        try:
            fitted = fitted.moved(name, motion)
        except ValueError as error:
            raise CommandError(f"--move: {error}") from error
    try:
        return fitted.without(replay.without)
    except ValueError as error:
        raise CommandError(f"--without: {error}") from error


def _motion(text: str) -> tuple[str, np.ndarray]:
    """Name and motion of ID:dx,dy,dz[,yaw]."""
    name, _, numbers = text.rpartition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not name or len(values) not in (3, 4) or not np.isfinite(values).all():
        raise CommandError(
            f"--move: got {text}, want ID:dx,dy,dz or ID:dx,dy,dz,yaw in metres and degrees along "
            "the box's axes (forward, left, up)"
        )
    turn = np.deg2rad(values[3]) if len(values) == 4 else 0.0
    rotation = matrix_from_axis_angle(jnp.asarray([0.0, 0.0, turn], jnp.float32))
    return name, np.asarray(rigid(rotation, jnp.asarray(values[:3], jnp.float32)))


def _sensors(run: SavedDrive, names: Sequence[str]) -> list[MountedSensor]:
    found: list[MountedSensor] = []
    for name in names or tuple(run.drive.mounts):
        own = sensor_of(run.drive, name)
        if own is not None:
            found.append(own)
        elif pathlib.Path(name).is_file():
            found += read_sensors(name)
        elif names:
            known = ", ".join(run.drive.mounts)
            raise CommandError(
                f"--sensor: {name} is no file; give the json of a sensor, or one of {known}"
            )
    twice = [one.name for one in found if sum(one.name == each.name for each in found) > 1]
    if twice:
        raise CommandError(f"--sensor: {twice[0]} is there twice; give each a name of its own")
    return found


def _times(run: SavedDrive, path: Path, sensor: MountedSensor, replay: Replay) -> list[float]:
    """Middles of measurements: from the first that the path covers to the last."""
    frames = (*run.drive.exposures, *run.drive.sweeps)
    own = [one.time for one in frames if one.sensor == sensor.name]
    if own and replay.trajectory is None and replay.rate is None:
        return sorted(own)
    measured = [one.time for one in frames]
    first, last = min(measured), max(measured)
    if replay.trajectory is not None and isinstance(path, Trajectory):
        first, last = float(path.times[0]), float(path.times[-1])
        half = sensor.seconds / 2 + _SLACK if sensor.seconds > 0 else 0.0
        first, last = first + half, last - half
    if last < first:
        raise CommandError(
            f"{replay.trajectory}: {sensor.name} measures for {sensor.seconds:g} s, more than the "
            "path has; give a longer one"
        )
    rate = _RATE if replay.rate is None else replay.rate
    count = int(np.floor((last - first) * rate + 1e-6)) + 1
    return [first + index / rate for index in range(count)]


def _placed(run: SavedDrive, sensor: MountedSensor, path: Path, time: float, replay: Replay) -> Any:
    placed = sensor.place(path, time)
    # What was learned about the path belongs to the path that was driven.
    if replay.trajectory is not None:
        return placed
    return run.fitted.moved_sensor(placed, sensor.name, time)


def _pictures(
    fitted: FittedDrive, name: str, placed: Sequence[tuple[float, Any]], folder: pathlib.Path
) -> Iterator[np.ndarray]:
    """Renders images one by one, and writes each as a PNG file before it gives it away."""
    for index, (time, camera) in enumerate(placed):
        picture = to_bytes(np.asarray(fitted.see(camera, name, time).color))
        write_image(folder / f"{index:04d}.png", picture)
        _tell(name, index, len(placed))
        yield picture


def _write_sweep(
    fitted: FittedDrive, folder: pathlib.Path, index: int, placed: tuple[float, Any]
) -> int:
    """Writes the points of a sweep and a picture of its ranges; returns how many points."""
    time, lidar = placed
    view = fitted.beam(lidar, time)
    rays = lidar.rays()
    kept = np.asarray(view.returned)
    origins, directions = np.asarray(rays.origins), np.asarray(rays.directions)
    ranges = np.where(kept, np.asarray(view.ranges), 0).astype(np.float32)
    points = origins[kept] + ranges[kept][:, None] * directions[kept]
    arrays = {
        "points": points.astype(np.float32),
        "intensities": np.asarray(view.intensities)[kept],
        "times": np.asarray(rays.times)[kept],
        "ranges": ranges,
        "drops": np.asarray(view.drops),
    }
    replace_file(folder / f"{index:04d}.npz", lambda file: np.savez_compressed(file, **arrays))
    write_image(folder / f"{index:04d}.png", range_picture(ranges, kept))
    return int(kept.sum())


def _tell(name: str, index: int, count: int) -> None:
    if sys.stdout.isatty():
        print(f"\r{name} {index + 1}/{count}", end="\n" if index + 1 == count else "", flush=True)
