"""`jaxrec demo`: a scene, its capture, a fit and its pictures, within a minute."""

import dataclasses
import pathlib
import shlex
import time
from collections.abc import Callable, Sequence

from ..data import open_capture
from ..data.mesh_scene import mesh_scene, write_blender
from ..train import FitSettings
from .errors import CommandError
from .fitting import fit_run, make_config
from .run_folder import RunFolder, replace_file

# Chosen for two CPU cores, a minute, and views of 128 x 128 pixels.
SETTINGS = FitSettings(steps=1500, spheres=8000, progress_every=25)


def make_demo_command(arguments: Sequence[str]) -> Callable[..., Callable[[], None]]:
    """Makes the command; the arguments are told again when a signal interrupts it."""

    def demo_command(
        *,
        out: pathlib.Path = pathlib.Path("jaxrec_demo"),
        steps: int = SETTINGS.steps,
        size: int = 128,
        seed: int = SETTINGS.seed,
    ) -> Callable[[], None]:
        """Photographs a small scene of textured meshes, fits spheres to it and measures them.

        Args:
            out: Run folder to make, or to go on with; the capture lies in it as well.
            steps: Total number of steps; the schedule is made for the default.
            size: Pixels along an edge of the square photographs, at least 11.
            seed: Every random choice follows from it.
        """
        if size < 11:
            raise ValueError(f"size: got {size}, want >= 11")
        settings = dataclasses.replace(SETTINGS, steps=steps, seed=seed)
        return lambda: demonstrate(out, settings, size, shlex.join(["jaxrec", *arguments]))

    return demo_command


def demonstrate(out: pathlib.Path, settings: FitSettings, size: int, resume: str) -> None:
    """Makes the capture, fits it and says where everything is.

    Args:
        out: The run folder.
        settings: How to fit.
        size: Pixels along an edge of the photographs.
        resume: What to type to go on, told when a signal interrupts.
    """
    began = time.monotonic()
    run, data = RunFolder(out), out / "capture"
    config = make_config(out, data, downscale=1, preset="demo", settings=settings)
    with run.claimed(config):
        if not data.exists():
            replace_file(data, lambda temporary: write_blender(mesh_scene(size=size), temporary))
        capture = open_capture(data)
        width = capture.train[0].camera.width
        if width != size:
            raise CommandError(
                f"{data}: has images of {width} pixels, not {size}; choose another --out or --size"
            )
        print(f"capture: {data}, {len(capture.train)} views to fit, {len(capture.test)} held out")
        fit_run(run, capture, settings, resume)
    print(f"all in {time.monotonic() - began:.0f} s; for your own photographs: jaxrec fit --help")
