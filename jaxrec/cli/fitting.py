"""A fit inside a run folder: begun or resumed, saved now and then, stopped by signals."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import __version__
from ..data import Capture
from ..data.camera_file import cameras_document
from ..io import Checkpoints
from ..train import (
    DriveSettings,
    FitSettings,
    FitState,
    FittedScene,
    SceneNormalizer,
    fit,
    make_record,
    read_record,
    start,
    state_template,
)
from .errors import CommandError
from .evaluation import evaluate_held_out, find_lpips, report
from .run_folder import RunConfig, RunFolder
from .session import Hooks, Session, as_command_error, begun_config


@dataclasses.dataclass(frozen=True)
class Point:
    """A fit at one step, with how long it took to get there."""

    state: FitState
    settings: FitSettings
    normalizer: SceneNormalizer
    seconds: float
    saved: bool = False
    messages: Sequence[str] = ()

    @property
    def step(self) -> int:
        """Number of steps done. The state must not have been donated."""
        return int(self.state.step)


def make_config(
    out: pathlib.Path,
    data: pathlib.Path,
    *,
    downscale: int,
    preset: str,
    settings: FitSettings | DriveSettings,
    mask_invert: bool = False,
    ignore_distortion: bool = False,
) -> RunConfig:
    """Describes the run in the folder `out`; data that lies in there moves with it.

    Raises:
        ValueError: If `downscale` is not positive.
    """
    if downscale < 1:
        raise ValueError(f"downscale: got {downscale}, want >= 1")
    data, folder = data.resolve(), out.resolve()
    inside = data.is_relative_to(folder)
    return RunConfig(
        data=str(data.relative_to(folder) if inside else data),
        downscale=downscale,
        mask_invert=mask_invert,
        ignore_distortion=ignore_distortion,
        preset=preset,
        settings=settings.to_dict(),
        version=__version__,
        kind="drive" if isinstance(settings, DriveSettings) else "capture",
    )


def begun_settings(out: pathlib.Path) -> FitSettings | None:
    """Reads the settings of the run in a folder, or None if no fit of a capture has begun there.

    Raises:
        CommandError: If they cannot be read.
    """
    config = begun_config(out, "capture")
    if config is None:
        return None
    with as_command_error(RunFolder(out).config_file):
        return FitSettings.from_dict(config.settings)


def fit_run(run: RunFolder, capture: Capture, settings: FitSettings, resume: str) -> dict[str, Any]:
    """Begins, resumes or finds finished the fit of a run, and evaluates it.

    Args:
        run: Where everything is written; claimed by this process.
        capture: What to fit, and what is held out.
        settings: How to fit.
        resume: What to type to go on, told when a signal interrupts.

    Returns:
        What `summary.json` holds.

    Raises:
        CommandError: If the settings do not work out.
        Interrupted: If SIGINT or SIGTERM came; the state is saved.
    """
    began = time.monotonic()
    point = restore(run, settings)
    for message in () if point is None else point.messages:
        print(message)
    if point is None:
        picture = _read_picture(settings)
        with as_command_error():
            state, normalizer = start(
                capture.train, settings, points=capture.points, picture=picture
            )
        point = Point(state, settings, normalizer, seconds=0.0)
    if point.step < settings.steps:
        if point.step > 0:
            print(f"going on at step {point.step}")
        run.truncate_metrics(point.step)
        # The time to read a checkpoint or to make the first spheres belongs to the fit.
        point = dataclasses.replace(point, seconds=point.seconds + time.monotonic() - began)
        point = _continue(run, point, capture, resume)
    else:
        print(f"{run.path}: finished already, at step {point.step}; more --steps go further")
    scene = FittedScene(point.state, settings, point.normalizer)
    if scene.refined:
        cameras = scene.cameras(capture.train)
        names = [frame.name for frame in capture.train]
        run.write_cameras(cameras_document(cameras, names, capture.origin))
        print(f"refined cameras: {run.cameras_file}")
    summary = evaluate_held_out(run, scene, capture, seconds=point.seconds, lpips=find_lpips())
    print(report(run, summary))
    return summary


def restore(run: RunFolder, settings: FitSettings | None = None) -> Point | None:
    """Reads the newest whole checkpoint of a run.

    Args:
        run: The run.
        settings: Its settings; those of the checkpoint if None.

    Returns:
        The state, or None if there is no checkpoint yet.

    Raises:
        CheckpointError: If all checkpoints are damaged.
        CommandError: If the checkpoint is that of another version.
    """
    checkpoints = Checkpoints(run.checkpoints)
    if not checkpoints.steps():
        return None
    with as_command_error(run.checkpoints):
        found = checkpoints.restore(lambda record: state_template(record, settings))
        saved_settings, normalizer = read_record(found.record)
    return Point(
        state=found.tree,
        settings=settings or saved_settings,
        normalizer=normalizer,
        seconds=found.record["seconds"],
        saved=True,
        messages=found.messages,
    )


def _continue(run: RunFolder, point: Point, capture: Capture, resume: str) -> Point:
    """Fits from a point to the end, or until a signal comes."""
    settings = point.settings

    def record(_: FitState) -> dict[str, Any]:
        return make_record(settings, point.normalizer, len(capture.train))

    def work(state: FitState, hooks: Hooks) -> FitState:
        return fit(
            capture.train,
            settings,
            state=state,
            normalizer=point.normalizer,
            **hooks.as_arguments(),
        ).state

    session = Session(run, settings.steps, settings.save_every, resume)
    at = point.step if point.saved else None
    state, seconds = session.run(point.state, at, point.seconds, work, record)
    return Point(state, settings, point.normalizer, seconds)


def _read_picture(settings: FitSettings) -> jax.Array | None:
    """Reads the picture that the settings put behind the scene, in the size that they want."""
    from PIL import Image

    backdrop = settings.backdrop
    if not backdrop.file:
        return None
    try:
        with Image.open(backdrop.file) as image:
            size = (backdrop.columns, backdrop.rows)
            resized = image.convert("RGB").resize(size, Image.Resampling.BOX)
    except OSError as error:
        why = error.strerror or "of no known kind"
        raise CommandError(
            f"{backdrop.file}: cannot be read as an image ({why}); give a PNG or JPEG to "
            "--backdrop.file"
        ) from error
    return jnp.asarray(np.asarray(resized, np.float32) / 255)
