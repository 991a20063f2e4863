"""Trains a little and tells what a profiler saw: the program that `test_gpu.py` runs.

    python traced_steps.py FOLDER

FOLDER gets `arrays.npz` (losses of the first steps and the optimiser's moments after one, of two
runs from the same start) and `seen.json` (what the GPU did in 100 later steps: how many events,
how many kernels of this library, how many of those in CUDA graphs, and which copies to the host).
"""

import json
import pathlib
import re
import sys

import jax
import numpy as np

from jaxrec.sensors import Frame, PinholeCamera, look_at
from jaxrec.train import (
    FitSettings,
    FrameOrder,
    Relocation,
    grow,
    growth_due,
    make_step,
    stack_frames,
    start,
)

SIZE = 64
COMPARED, TRACED = 20, 100
SETTINGS = FitSettings(
    steps=1000,
    spheres=2000,
    shader="mlp",
    view_start=0.0,
    initialization="random",
    growth=Relocation(every=20, start=0.0),
)


def frames():
    """Pictures of noise: what a step does depends on sizes alone."""
    draw = np.random.default_rng(0)
    made = []
    for angle in np.arange(6, dtype=np.float32):
        eye = np.float32([3 * np.cos(angle), 3 * np.sin(angle), 1])
        camera = PinholeCamera(
            look_at(eye, np.zeros(3, np.float32), np.float32([0, 0, 1])),
            focal=np.full(2, 80, np.float32),
            principal=np.full(2, SIZE / 2, np.float32),
            width=SIZE,
            height=SIZE,
        )
        made.append(Frame(camera, draw.uniform(0, 1, (SIZE, SIZE, 3)).astype(np.float32)))
    return made


class Training:
    """The library's own step over its own order of frames, from the start."""

    def __init__(self):
        views = frames()
        self.state, normalizer = start(views, SETTINGS)
        self.stacks = stack_frames(views, normalizer)
        self.order = FrameOrder([len(views)], SETTINGS.views_per_step, SETTINGS.seed)
        self.step = make_step(SETTINGS, normalizer)
        self.done = 0

    def steps(self, count: int) -> list[jax.Array]:
        losses = []
        for _ in range(count):
            group, index = self.order.at(self.done)
            self.state, metrics = self.step(self.state, self.stacks[group], index)
            losses.append(metrics["loss"])
            self.done += 1
            if growth_due(SETTINGS, self.done):
                self.state = grow(self.state, SETTINGS)
        return losses


def compare_runs():
    """Two runs from the same start: the second one, and the arrays of both."""
    arrays, training = {}, None
    for run in ("first", "second"):
        training = Training()
        losses = training.steps(1)
        moments = [
            np.asarray(leaf).ravel()
            for leaf in jax.tree.leaves(training.state.optimizer)
            if leaf.ndim and leaf.dtype == np.float32
        ]
        losses += training.steps(COMPARED - 1)
        arrays[f"losses_{run}"] = np.asarray(jax.device_get(losses))
        arrays[f"moments_{run}"] = np.concatenate(moments)
    return training, arrays


def traced(work, folder: pathlib.Path) -> dict:
    """Counts what the GPU does while `work` runs."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        jax.block_until_ready(work())
    (file,) = folder.rglob("*.xplane.pb")
    seen = {"events": 0, "kernels": 0, "kernels_in_graphs": 0, "to_host": []}
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            for event in line.events:
                seen["events"] += 1
                if "jaxrec" in event.name:
                    seen["kernels"] += 1
                    seen["kernels_in_graphs"] += "cuda_graph_id" in dict(event.stats)
                if "emcpy" in event.name:
                    what = f"{event.name} {dict(event.stats)}"
                    if re.search(r"D2H|DtoH|kind_src:device kind_dst:(?!device)", what):
                        seen["to_host"].append(what)
    return seen


def main(folder: pathlib.Path) -> None:
    training, arrays = compare_runs()
    np.savez(folder / "arrays.npz", **arrays)
    seen = traced(lambda: training.steps(TRACED), folder / "steps")
    # The same with one loss read, to see that a copy to the host does show.
    control = traced(lambda: np.asarray(training.steps(1)[0]), folder / "control")
    (folder / "seen.json").write_text(json.dumps({"steps": seen, "control": control}))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
