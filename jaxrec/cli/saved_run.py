"""A run that was fitted before, opened to be looked at."""

import dataclasses
import pathlib
import sys

from ..data import Capture, open_capture
from ..data.sfm import is_reconstructed
from ..train import FittedScene
from .errors import CommandError
from .fitting import restore
from .run_folder import RunFolder
from .sizes import IMAGE_MEMORY, parse_size


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


def open_run(path: pathlib.Path) -> SavedRun:
    """Reads the newest whole checkpoint of a run and its capture; tells of damage on stderr.

    Raises:
        CommandError: If the folder is no run, or has no checkpoint yet.
        CheckpointError: If all checkpoints are damaged.
        CaptureError: If its capture cannot be read any more.
    """
    run = RunFolder(path)
    config = run.read_config()
    point = restore(run)
    if point is None:
        raise CommandError(f"{path}: has no checkpoint yet; let its fit run for longer")
    for message in point.messages:
        print(message, file=sys.stderr)
    memory = parse_size("image-memory", IMAGE_MEMORY)
    data = run.structure if is_reconstructed(run.structure) else path / config.data
    capture = open_capture(data, **config.reading(), image_memory=memory)
    scene = FittedScene(point.state, point.settings, point.normalizer)
    return SavedRun(run, scene, capture, point.seconds)
