"""Trains on real captures and tells how good their held-out views are: JSON lines and a table.

    python bench/quality.py --out OUT [--sets lego,fox] [--seeds 0,1,2] [--preset gpu]

Every fit has a process of its own, so that memory is that of one fit and a failure stays with one
row. Each prints a line of JSON, written to OUT/quality.jsonl as well; OUT/quality.md holds means
over the seeds and, in brackets, the difference between the largest and the smallest value.

psnr, ssim, flip: means over the held-out views; predictions are clipped to [0, 1], not quantised.
psnr_corrected: after the affine change of colours that suits a view best. worst: the least psnr.
seconds: from the first step to the last, without those spent compiling, which are `compiling`.
With `--parallel 4` fits share the device, so that their seconds and memory tell nothing.
preparing: reading images and making the first spheres. memory_mb: the most in use up to the last
step, of the device where it tells, else of the process.

Held out are the views that a capture names as its test, else every eighth by file name. Of sceaux,
where these say nothing, each of the nine inner views is held out once, from a fit of its own to all
others; its row is the mean over these fits, to be reported and not to be judged by.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.monitoring
import numpy as np

from _harness import chosen, commit, device
from jaxrec.data import Capture, PointCloud, open_capture
from jaxrec.sensors import Frame
from jaxrec.train import FitSettings, FittedScene, evaluate, fit, start

WHITE = (1.0, 1.0, 1.0)
PRESETS = ("cpu", "gpu")


@dataclasses.dataclass(frozen=True)
class Fold:
    """Views to fit, what is known from them of the scene's shape, and views to judge by."""

    train: Sequence[Frame]
    test: Sequence[Frame]
    points: PointCloud | None = None


def held_out(capture: Capture) -> list[Fold]:
    """The reader's own split."""
    return [Fold(capture.train, capture.test, capture.points)]


def leave_one_out(capture: Capture) -> list[Fold]:
    """Each view but the first and the last by name is held out once, without known points.

    What the capture knows of the scene's shape comes from the views that are held out, too.
    """
    frames = sorted(capture.frames, key=lambda frame: frame.name)
    return [
        Fold([*frames[:index], *frames[index + 1 :]], [frames[index]])
        for index in range(1, len(frames) - 1)
    ]


@dataclasses.dataclass(frozen=True)
class Definition:
    """How a set is read, fitted and judged."""

    folder: str
    cpu_downscale: int = 1
    """How many times smaller images are with the cpu preset; with gpu they are whole."""
    background: tuple[float, float, float] = WHITE
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings that differ from the preset's."""
    folds: Callable[[Capture], list[Fold]] = held_out


SETS = {
    "lego": Definition("nerf_synthetic_lego_400", cpu_downscale=2),
    "fox": Definition("ingp_fox", cpu_downscale=4),
    "fern": Definition("llff_fern", cpu_downscale=2),
    "sceaux": Definition("sceaux_castle_colmap", cpu_downscale=4, folds=leave_one_out),
    "sevenscenes": Definition("sevenscenes_rgbd", cpu_downscale=4),
}
# Of a view.
MEASURES = ("psnr", "psnr_corrected", "ssim", "flip")
# Names and digits of the columns.
COLUMNS = {
    "psnr": 2,
    "worst": 2,
    "psnr_corrected": 2,
    "ssim": 4,
    "flip": 4,
    "seconds": 1,
    "compiling": 1,
    "preparing": 1,
    "spheres": 0,
    "memory_mb": 0,
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One row: a set and a seed."""

    name: str
    seed: int
    data: pathlib.Path
    preset: Any
    scale: int
    changes: Mapping[str, Any]
    variant: str = "preset"
    """What the changes are called."""

    def downscale(self) -> int:
        return self.scale * (SETS[self.name].cpu_downscale if self.preset == "cpu" else 1)

    def settings(self) -> FitSettings:
        known = SETS[self.name]
        changes = {"background": known.background, **known.changes, **self.changes}
        return FitSettings.preset(self.preset, **{**changes, "seed": self.seed})


class Stopwatch:
    """Tells time spent compiling from other time. There may be one in a process."""

    def __init__(self) -> None:
        self._compiling: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: Any) -> None:
        # Tracing, lowering and XLA's own work. They may contain each other.
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            self._compiling.append((now - duration_secs, now))

    def compiling(self, begin: float, end: float) -> float:
        """Seconds of an interval of `time.perf_counter` in which something was compiled."""
        return covered(self._compiling, begin, end)


def covered(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """How much of an interval is covered by spans that may overlap."""
    total = 0.0
    for first, last in sorted(spans):
        first, last = max(first, begin), min(last, end)
        total += max(0.0, last - first)
        begin = max(begin, last)
    return total


def measure(job: Job) -> dict[str, Any]:
    """Fits and judges: one row."""
    watch = Stopwatch()
    began = time.perf_counter()
    capture = open_capture(job.data / SETS[job.name].folder, downscale=job.downscale())
    reading = time.perf_counter() - began
    folds = [_measure_fold(fold, job.settings(), watch) for fold in SETS[job.name].folds(capture)]
    views = [view for fold in folds for view in fold.pop("views")]
    mean = {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}
    worst = min(views, key=lambda view: view["psnr"])
    camera = capture.test[0].camera
    return {
        "case": "quality",
        "set": job.name,
        "variant": job.variant,
        "seed": job.seed,
        **{name: float(np.mean([view[name] for view in views])) for name in MEASURES},
        "worst": worst["psnr"],
        "worst_view": worst["name"],
        **mean,
        "preparing": mean["preparing"] + reading,
        "steps": job.settings().steps,
        "fits": len(folds),
        "width": camera.width,
        "height": camera.height,
        "preset": job.preset,
        "memory_of": "process" if _device_peak() is None else "device",
        "device": device(),
        "commit": commit(),
        "views": views,
    }


def _measure_fold(fold: Fold, settings: FitSettings, watch: Stopwatch) -> dict[str, Any]:
    began = time.perf_counter()
    state, normalizer = start(fold.train, settings, points=fold.points)
    first: list[float] = []

    def before_step() -> bool:
        if not first:
            first.append(time.perf_counter())
        return False

    scene = fit(fold.train, settings, state=state, normalizer=normalizer, should_stop=before_step)
    jax.block_until_ready(scene.state)
    last = time.perf_counter()
    compiling, memory = watch.compiling(first[0], last), _peak_memory()
    return {
        "views": list(_judge(scene, fold.test)),
        "seconds": last - first[0] - compiling,
        "compiling": compiling,
        "preparing": first[0] - began,
        "spheres": int(np.sum(np.asarray(scene.state.alive))),
        "memory_mb": memory / 1e6,
    }


def _judge(scene: FittedScene, frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [
        {"name": score.name, **{measure: getattr(score, measure) for measure in MEASURES}}
        for score in evaluate(scene, frames)
    ]


def _peak_memory() -> int:
    found = _device_peak()
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if found is None else found


def _device_peak() -> int | None:
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get("peak_bytes_in_use")


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as anyone reads; none for what JSON does not know."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sets as lines of markdown: means over seeds, and in brackets how far these lie apart."""
    head = ["set", "size", "steps", "seeds", *COLUMNS, "device"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in dict.fromkeys(row["set"] for row in rows):
        group = [row for row in rows if row["set"] == name]
        first = group[0]
        cells = [name, f"{first['width']} x {first['height']}", first["steps"], len(group)]
        for column, digits in COLUMNS.items():
            values = [row[column] for row in group]
            cells.append(f"{np.mean(values):.{digits}f} ({np.ptp(values):.{digits}f})")
        cells.append(first["device"])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says how sets are fitted; see `fit_changes`."""
    parser.add_argument("--preset", choices=PRESETS, default="gpu")
    parser.add_argument("--steps", type=int, help="of each fit, instead of the preset's")
    parser.add_argument("--spheres", type=int, help="of each fit, instead of the preset's")
    parser.add_argument("--scale", type=int, default=1, help="images this many times smaller still")
    shared = pathlib.Path(__file__).resolve().parents[1] / "../shared/data"
    parser.add_argument("--data", type=pathlib.Path, default=shared, help="folder of the captures")
    parser.add_argument("--parallel", type=int, default=1, help="fits at the same time")


def fit_changes(
    parser: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str]
) -> dict[str, int]:
    """Settings that differ from the preset's; ends the program where options do not work out."""
    if missing := [name for name in names if not (options.data / SETS[name].folder).is_dir()]:
        folders = ", ".join(SETS[name].folder for name in missing)
        parser.error(f"argument --data: found no {folders} in {options.data}; name their folder")
    for name in ("scale", "parallel"):
        if (value := getattr(options, name)) < 1:
            parser.error(f"argument --{name}: got {value}; give a whole number of at least 1")
    changes = {"steps": options.steps, "spheres": options.spheres}
    return {name: value for name, value in changes.items() if value is not None}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains on real captures and judges.")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for both files")
    parser.add_argument("--sets", help=f"some of {','.join(SETS)}; all by default")
    parser.add_argument("--seeds", default="0,1,2", help="whole numbers, separated by commas")
    add_fit_options(parser)
    options = parser.parse_args(arguments)
    names = chosen(options.sets, list(SETS), "--sets")
    if not all(seed.isdecimal() for seed in options.seeds.split(",")):
        parser.error(f"argument --seeds: got {options.seeds!r}; give whole numbers such as 0,1,2")
    changes = fit_changes(parser, options, names)
    jobs = [
        Job(name, int(seed), options.data, options.preset, options.scale, changes)
        for name in names
        for seed in options.seeds.split(",")
    ]
    try:
        jobs[0].settings()
    except ValueError as error:
        parser.error(str(error))
    rows, failures = [], 0
    for result in measured(jobs, options.out / "quality.jsonl", options.parallel):
        failures += "failure" in result
        rows += [] if "failure" in result else [result]
        (options.out / "quality.md").write_text(table(rows))
    print(table(rows), end="")
    if failures:
        sys.exit(f"quality: {failures} of {len(jobs)} fits failed")


def measured(jobs: Sequence[Job], path: pathlib.Path, parallel: int) -> Iterator[dict[str, Any]]:
    """Measures one job after the other, or some at a time; prints each and writes it to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file, concurrent.futures.ThreadPoolExecutor(parallel) as threads:
        for result in threads.map(_result, jobs):
            line = json.dumps(_rounded(result))
            print(line, file=file, flush=True)
            print(line, flush=True)
            yield result


def _result(job: Job) -> dict[str, Any]:
    """Measures in a new process. This one never touches the device, whose memory it would share."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(measure, job).result()
        except Exception as error:  # whatever it is, the other rows are still wanted
            failure = f"{type(error).__name__}: {error}"
            known = {"set": job.name, "variant": job.variant, "seed": job.seed}
            return {"case": "quality", **known, "failure": failure}


if __name__ == "__main__":
    main()
