"""`jaxrec fit`: a capture becomes a scene in a run folder."""

import dataclasses
import pathlib
import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import tyro

from ..data import Capture, is_drive, needs_poses, open_capture, open_drive, reconstruct
from ..data.sfm import LEAST_IMAGES, VIDEO_FRAMES, require_images
from ..train import DriveSettings, FitSettings
from .drive_evaluation import Bounds
from .drive_fitting import begun_drive_settings, fit_drive_run, print_drive
from .fitting import begun_settings, fit_run, make_config
from .run_folder import RunConfig, RunFolder
from .sizes import IMAGE_MEMORY, parse_size


def make_fit_command(arguments: Sequence[str]) -> Callable[..., Callable[[], None]]:
    """Makes the command, with the settings of the preset among the arguments as its defaults.

    The settings are those of a drive where one is among the arguments.
    """
    if _names_drive(arguments):
        return _make_drive_command(arguments)
    defaults = FitSettings.preset("gpu" if _typed(arguments, "--preset") == "gpu" else "cpu")

    def fit_command(
        data: tyro.conf.Positional[pathlib.Path],
        *,
        out: pathlib.Path,
        preset: Literal["cpu", "gpu"] = "cpu",
        downscale: int = 1,
        mask_invert: bool = False,
        ignore_distortion: bool = False,
        image_memory: str = IMAGE_MEMORY,
        video_frames: int = VIDEO_FRAMES,
        settings: Annotated[FitSettings, tyro.conf.arg(name="")] = defaults,
    ) -> Callable[[], None]:
        """Fits spheres to a capture and measures them on its held-out views.

        Photos without poses and videos are taken as well: structure from motion places them
        first, once, in the folder sfm of the run. It stops where fewer than half of the images
        can be placed.

        The same command goes on with a run that was stopped, with more --steps also with a
        finished one.

        The log of a drive is taken as well, with settings of its own: jaxrec fit DRIVE --help.

        Args:
            data: Folder of a capture (NeRF-synthetic, instant-ngp, nerfstudio, COLMAP, LLFF or
                7-Scenes), or its json; or a folder of photos without poses, or a video.
            out: Run folder to make, or to go on with.
            preset: Machine to suit; the defaults below are those of the preset that is typed.
            downscale: Take images this many times smaller.
            mask_invert: Masks mark what to ignore. Else 0 is ignored, anything else is used.
            ignore_distortion: Images are undistorted already, whatever the capture says.
            image_memory: How much memory images may take (4GB, 512MiB, or a part of the machine's);
                where they take more they are read from their files again and again.
            video_frames: How many pictures of a video to take at most, the sharpest of as many
                stretches of equal length.
            settings: How to fit. Without --horizon it is --steps of the first such command.
        """
        if _typed(arguments, "--horizon") is None:
            begun = begun_settings(out)
            horizon = settings.steps if begun is None else begun.horizon
            settings = dataclasses.replace(settings, horizon=horizon)
        config = make_config(
            out,
            data,
            downscale=downscale,
            mask_invert=mask_invert,
            ignore_distortion=ignore_distortion,
            preset=preset,
            settings=settings,
        )
        memory = parse_size("image-memory", image_memory)
        if video_frames < LEAST_IMAGES:
            raise ValueError(f"video-frames: got {video_frames}, want >= {LEAST_IMAGES}")
        resume = shlex.join(["jaxrec", *arguments])
        run = RunFolder(out)

        def work() -> None:
            run.check(config)
            if needs_poses(data):
                require_images(data)
                with run.claimed(config):
                    capture = place_images(data, run, config, settings.seed, video_frames, memory)
                    fit_run(run, capture, settings, resume)
                return
            capture = open_capture(data, **config.reading(), image_memory=memory)
            for message in capture.messages:
                print(message)
            with run.claimed(config):
                fit_run(run, capture, settings, resume)

        return work

    return fit_command


def _make_drive_command(arguments: Sequence[str]) -> Callable[..., Callable[[], None]]:
    """Makes the command for the log of a drive."""
    defaults = DriveSettings.preset("gpu" if _typed(arguments, "--preset") == "gpu" else "cpu")

    def fit_command(
        data: tyro.conf.Positional[pathlib.Path],
        *,
        out: pathlib.Path,
        preset: Literal["cpu", "gpu"] = "cpu",
        downscale: int = 1,
        nearest: float = 0.0,
        farthest: float = float("inf"),
        settings: Annotated[DriveSettings, tyro.conf.arg(name="")] = defaults,
    ) -> Callable[[], None]:
        """Fits spheres to cameras and lidars of a drive, and measures them on held-out frames.

        Every second frame of each sensor is held out, and takes no part in anything. The same
        command goes on with a run that was stopped, with more --steps also with a finished one.

        Args:
            data: The log of a drive, as `jaxrec check` takes it.
            out: Run folder to make, or to go on with.
            preset: Machine to suit; the defaults below are those of the preset that is typed.
            downscale: Take images this many times smaller.
            nearest: Ranges below, in metres, do not count among the scores of ranges.
            farthest: Ranges above do not count either.
            settings: How to fit. Without --horizon it is --steps of the first such command.
        """
        if _typed(arguments, "--horizon") is None:
            begun = begun_drive_settings(out)
            horizon = settings.steps if begun is None else begun.horizon
            settings = dataclasses.replace(settings, horizon=horizon)
        config = make_config(out, data, downscale=downscale, preset=preset, settings=settings)
        bounds = Bounds(nearest, farthest)
        resume = shlex.join(["jaxrec", *arguments])
        run = RunFolder(out)

        def work() -> None:
            run.check(config)
            drive = open_drive(data, downscale=downscale)
            print_drive(drive)
            with run.claimed(config):
                fit_drive_run(run, drive, settings, resume, bounds)

        return work

    return fit_command


def _names_drive(arguments: Sequence[str]) -> bool:
    """Whether the capture among the arguments of `fit` is the log of a drive."""
    if list(arguments[:1]) != ["fit"]:
        return False
    pairs = zip(arguments[:-1], arguments[1:], strict=True)
    # Run folders are no captures, though a drive may lie in one.
    named = [word for before, word in pairs if not word.startswith("-") and before != "--out"]
    return any(is_drive(word) for word in named)


def place_images(
    data: pathlib.Path,
    run: RunFolder,
    config: RunConfig,
    seed: int,
    video_frames: int,
    image_memory: int,
) -> Capture:
    """Estimates the poses of photos or a video, or takes them from where the run has them.

    Args:
        data: The photos or the video.
        run: Where the structure is kept.
        config: How images are read.
        seed: Every random choice follows from it.
        video_frames: How many pictures of a video to take at most.
        image_memory: Bytes that images may take.

    Raises:
        CaptureError: Too few images can be placed.
    """
    structure = reconstruct(data, run.structure, seed=seed, video_frames=video_frames, say=print)
    capture = open_capture(structure.folder, **config.reading(), image_memory=image_memory)
    for message in (*structure.messages, *capture.messages):
        print(message)
    return capture


def _typed(arguments: Sequence[str], option: str) -> str | None:
    """What was typed for an option, or None."""
    for index, argument in enumerate(arguments):
        if argument == option:
            return next(iter(arguments[index + 1 :]), "")
        if argument.startswith(option + "="):
            return argument.removeprefix(option + "=")
    return None
