"""`jaxrec render`: pictures and a video of a run from other cameras."""

import collections
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import numpy as np
import tyro
from jaxtyping import UInt8

from ..data.camera_file import read_cameras
from ..sensors import PinholeCamera
from .camera_path import spiral
from .contact_sheet import to_bytes
from .drive_render import Replay, render_drive
from .errors import CommandError
from .run_folder import replace_file, write_image
from .saved_run import SavedDrive, SavedRun, open_any_run
from .video import open_video


def render_command(
    run: tyro.conf.Positional[pathlib.Path],
    *,
    poses: str = "spiral",
    out: pathlib.Path | None = None,
    frames: int = 120,
    fps: int = 30,
    sensor: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    trajectory: pathlib.Path | None = None,
    lane: float = 0.0,
    move: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    without: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    rate: float | None = None,
) -> Callable[[], None]:
    """Renders a run from other cameras, as PNG files and as an mp4 video.

    The run of a drive is driven again, with other sensors, another path or other traffic: cameras
    give the same files, lidars the points of each sweep (npz) and a picture of its ranges. The
    json files are described in the documentation of jaxrec.data.rig_files.

    Args:
        run: Run folder that `jaxrec fit` or `jaxrec demo` has made.
        poses: `spiral` leads around the scene; `held-out` and `train` are the capture's own
            cameras, those to train as the fit has refined them; anything else is the path of a
            json like transforms.json, whose images need not exist and whose intrinsics are the
            capture's unless it has its own.
        out: Folder for the pictures; the video lies beside it. By default in RUN/renders.
        frames: Number of views on the spiral.
        fps: Views per second in the video.
        sensor: Of a drive, a json with sensors or the name of one of its own; may be repeated. By
            default all of its own.
        trajectory: A json with the path of the rig. By default the rig's own.
        lane: Metres by which the rig drives to the left of that path.
        move: ID:dx,dy,dz or ID:dx,dy,dz,yaw: moves an actor, in metres (and degrees about z) along
            the axes of its own box, forward, left and up, at all times; may be repeated.
        without: Id of an actor that is not there; may be repeated.
        rate: Images of each camera, and sweeps, in a second of the drive. By default the times of
            its own sensors on its own path, and 10 for others.
    """
    for name, value in (("frames", frames), ("fps", fps)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, want >= 1")
    if rate is not None and not 0 < rate < float("inf"):
        raise ValueError(f"rate: got {rate:g}, want > 0")
    replay = Replay(sensor, trajectory, lane, move, without, rate)

    def work() -> None:
        opened = open_any_run(run)
        if isinstance(opened, SavedDrive):
            if poses != "spiral":
                raise CommandError(f"{run}: is the run of a drive; give --trajectory, not --poses")
            render_drive(opened, replay, out, fps)
            return
        if replay != Replay():
            raise CommandError(
                f"{run}: is not the run of a drive; leave out --sensor, --trajectory, --lane, "
                "--move, --without and --rate"
            )
        render_run(opened, poses, out, frames=frames, fps=fps)

    return work


def render_run(
    run: SavedRun, poses: str, out: pathlib.Path | None, *, frames: int, fps: int
) -> None:
    """Renders the newest checkpoint of a run and says where the pictures are."""
    cameras = choose_cameras(run, poses, frames)
    if out is None:
        name = poses.replace("-", "_") if poses in _OWN else f"poses_{pathlib.Path(poses).stem}"
        out = run.folder.renders / name
    if len({(camera.width, camera.height) for camera in cameras}) == 1:
        video = out.with_name(out.name + ".mp4")
        replace_file(video, lambda temporary: _with_video(run, cameras, out, temporary, fps))
    else:
        video = "none, because the views differ in size"
        collections.deque(_pictures(run, cameras, out), maxlen=0)
    # What an earlier and longer tour has left would pass for a part of this one.
    for picture in out.glob("[0-9][0-9][0-9][0-9].png"):
        if int(picture.stem) >= len(cameras):
            picture.unlink()
    print(f"{len(cameras)} pictures: {out}\nvideo: {video}")


_OWN = ("spiral", "held-out", "train")


def choose_cameras(run: SavedRun, poses: str, frames: int) -> list[PinholeCamera]:
    """Finds the cameras that `--poses` names.

    Raises:
        CommandError: If there is no such file.
        CaptureError: If the file cannot be used.
    """
    train = run.scene.cameras(run.capture.train)
    if poses == "spiral":
        return spiral(train, frames)
    if poses == "held-out":
        return [frame.camera for frame in run.capture.test]
    if poses == "train":
        return train
    if not pathlib.Path(poses).is_file():
        raise CommandError(
            f"--poses: {poses} is no file; give a json like transforms.json, or one of "
            + ", ".join(_OWN)
        )
    return read_cameras(poses, train[0], run.capture.origin)


def _pictures(
    run: SavedRun, cameras: Sequence[PinholeCamera], folder: pathlib.Path
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """Renders views one by one, and writes each as a PNG file before it gives it away."""
    terminal = sys.stdout.isatty()
    for index, camera in enumerate(cameras):
        picture = to_bytes(np.asarray(run.scene.render(camera).color))
        write_image(folder / f"{index:04d}.png", picture)
        if terminal:
            print(f"\rview {index + 1}/{len(cameras)}", end="", flush=True)
        yield picture
    if terminal:
        print()


def _with_video(
    run: SavedRun,
    cameras: Sequence[PinholeCamera],
    folder: pathlib.Path,
    video: pathlib.Path,
    fps: int,
) -> None:
    with open_video(video, cameras[0].width, cameras[0].height, fps=fps) as add:
        for picture in _pictures(run, cameras, folder):
            add(picture)
