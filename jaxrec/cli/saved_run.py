"""A run that was fitted before, opened to be looked at."""

import dataclasses
import pathlib
import sys
from typing import TypeVar

from ..data import Capture, Drive, open_capture, open_drive
from ..data.sfm import is_reconstructed
from ..train import FittedDrive, FittedScene
from .drive_fitting import DrivePoint, restore_drive
from .errors import CommandError
from .fitting import Point, restore
from .run_folder import RunConfig, RunFolder
from .sizes import IMAGE_MEMORY, parse_size

AnyPoint = TypeVar("AnyPoint", Point, DrivePoint)


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """The newest whole checkpoint of a run.

    Attributes:
        folder: Where it lies.
        scene: What it has learned.
        capture: What it was fitted to.
        seconds: How long it was fitted.
    """

    folder: RunFolder
    scene: FittedScene
    capture: Capture
    seconds: float


@dataclasses.dataclass(frozen=True)
class SavedDrive:
    """The newest whole checkpoint of a fit of a drive.

    Attributes:
        folder: Where it lies.
        fitted: What it has learned.
        drive: What it was fitted to.
        seconds: How long it was fitted.
    """

    folder: RunFolder
    fitted: FittedDrive
    drive: Drive
    seconds: float


def open_any_run(path: pathlib.Path) -> SavedRun | SavedDrive:
    """Reads the newest whole checkpoint of a run and what it was fitted to; see `open_run`."""
    config = RunFolder(path).read_config()
    return _open_drive_run(RunFolder(path), config) if config.kind == "drive" else open_run(path)


def open_run(path: pathlib.Path) -> SavedRun:
    """Reads the newest whole checkpoint of a run and its capture; tells of damage on stderr.

    Raises:
        CommandError: If the folder is no run, is that of a drive, or has no checkpoint yet.
        CheckpointError: If all checkpoints are damaged.
        CaptureError: If its capture cannot be read any more.
    """
    run = RunFolder(path)
    config = run.read_config()
    if config.kind != "capture":
        raise CommandError(f"{path}: is the run of a {config.kind}; give that of a capture")
    point = _newest(run, restore(run))
    memory = parse_size("image-memory", IMAGE_MEMORY)
    data = run.structure if is_reconstructed(run.structure) else path / config.data
    capture = open_capture(data, **config.reading(), image_memory=memory)
    scene = FittedScene(point.state, point.settings, point.normalizer)
    return SavedRun(run, scene, capture, point.seconds)


def _open_drive_run(run: RunFolder, config: RunConfig) -> SavedDrive:
    point = _newest(run, restore_drive(run))
    drive = open_drive(run.path / config.data, downscale=config.downscale)
    return SavedDrive(run, FittedDrive(point.state, point.settings), drive, point.seconds)


def _newest(run: RunFolder, point: AnyPoint | None) -> AnyPoint:
    """The checkpoint that was found; tells of damage on stderr."""
    if point is None:
        raise CommandError(f"{run.path}: has no checkpoint yet; let its fit run for longer")
    for message in point.messages:
        print(message, file=sys.stderr)
    return point
