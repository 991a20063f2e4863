"""A fit of a drive inside a run folder: begun or resumed, and evaluated."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from ..data import Drive
from ..io import Checkpoints
from ..train import (
    DriveSettings,
    DriveState,
    FittedDrive,
    begin_drive,
    drive_template,
    every_other,
    fit_drive,
    make_drive_record,
    read_drive_record,
)
from .drive_evaluation import Bounds, describe_drive, evaluate_drive, report_drive
from .run_folder import RunFolder
from .session import Hooks, Session, as_command_error, begun_config


@dataclasses.dataclass(frozen=True)
class DrivePoint:
    """A fit of a drive at one step, with how long it took to get there."""

    state: DriveState
    settings: DriveSettings
    seconds: float
    saved: bool = False
    messages: Sequence[str] = ()

    @property
    def step(self) -> int:
        """Number of steps done. The state must not have been donated."""
        return int(self.state.step)


def begun_drive_settings(out: pathlib.Path) -> DriveSettings | None:
    """Reads the settings of the run in a folder, or None if no fit of a drive has begun there.

    Raises:
        CommandError: If they cannot be read.
    """
    config = begun_config(out, "drive")
    if config is None:
        return None
    with as_command_error(RunFolder(out).config_file):
        return DriveSettings.from_dict(config.settings)


def fit_drive_run(
    run: RunFolder, drive: Drive, settings: DriveSettings, resume: str, bounds: Bounds
) -> dict[str, Any]:
    """Begins, resumes or finds finished the fit of a drive, and evaluates it.

    Args:
        run: Where everything is written; claimed by this process.
        drive: Every other frame of each sensor is fitted, the others are held out.
        settings: How to fit.
        resume: What to type to go on, told when a signal interrupts.
        bounds: Of ranges that are judged.

    Returns:
        What `summary.json` holds.

    Raises:
        CommandError: If the settings do not work out.
        Interrupted: If SIGINT or SIGTERM came; the state is saved.
    """
    began = time.monotonic()
    exposures, sweeps = every_other(drive.exposures)[0], every_other(drive.sweeps)[0]
    point = restore_drive(run, settings)
    for message in () if point is None else point.messages:
        print(message)
    if point is None:
        with as_command_error(drive.path):
            state = begin_drive(exposures, sweeps, drive.tracks, settings, ego=drive.ego)
        point = DrivePoint(state, settings, seconds=0.0)
    if point.step < settings.steps:
        if point.step > 0:
            print(f"going on at step {point.step}")
        run.truncate_metrics(point.step)

        def work(state: DriveState, hooks: Hooks) -> DriveState:
            return fit_drive(
                exposures, sweeps, drive.tracks, settings, state=state, **hooks.as_arguments()
            ).state

        session = Session(run, settings.steps, settings.save_every, resume)
        # The time to read a checkpoint or to make the first spheres belongs to the fit.
        spent = point.seconds + time.monotonic() - began
        at = point.step if point.saved else None
        state, spent = session.run(
            point.state, at, spent, work, lambda state: make_drive_record(state, settings)
        )
        point = DrivePoint(state, settings, spent)
    else:
        print(f"{run.path}: finished already, at step {point.step}; more --steps go further")
    fitted = FittedDrive(point.state, settings)
    learned = fitted.state.calibration.describe()
    if learned:
        run.write_rig(learned)
        print(f"refined rig: {run.rig_file}")
    summary = evaluate_drive(run, fitted, drive, seconds=point.seconds, bounds=bounds)
    print(report_drive(run, summary))
    return summary


def restore_drive(run: RunFolder, settings: DriveSettings | None = None) -> DrivePoint | None:
    """Reads the newest whole checkpoint of a fit of a drive.

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
        found = checkpoints.restore(lambda record: drive_template(record, settings))
        saved_settings = read_drive_record(found.record)
    return DrivePoint(
        state=found.tree,
        settings=settings or saved_settings,
        seconds=found.record["seconds"],
        saved=True,
        messages=found.messages,
    )


def print_drive(drive: Drive) -> None:
    """Says what was read of a drive, and what is held out."""
    for line in (*describe_drive(drive), *drive.messages):
        print(line)
