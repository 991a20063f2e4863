"""Speed of `jaxrec.blend` on the scene of Pulsar's own benchmark.

N spheres with centers in [-5, 5]^2 x [25, 35] m, radii up to `rmax`, three channels, seen by a
pinhole camera at the origin (focal length 5, sensor width 2), gamma 0.1. `softmax` has opacity 1
and Pulsar's stop at a share of 1 %, `alpha` opacity 0.99 and its usual stop at transmittance 1e-4.
Passes: forward; the pullback of the sum of the image to centers, colours, radii and rays (the
camera), for the 5 nearest hits and for all; value and gradient in one program (`both`).

    python bench/blend.py [--kind softmax|alpha|all] [--gpu] [--cases E] [--passes forward,both]
                          [--scaling]

Each row also tells its counted work: drawn `hits`, `pairs` of a sphere and an 8 x 4 block of
pixels before any stop, `least_mb` of memory traffic, and on a known device `floor_ms` = traffic
over bandwidth + hits x 40 instructions over all lanes, with `floor_fraction` = floor_ms / ms. On an
H200 that is 4.3 TB/s, the measured bandwidth of a copy, and 132 multiprocessors (data sheet) x 128
lanes x 1.755 GHz, a clock under load. The 40 is our count for a hit of `softmax` (see `_work.py`).
"""

import argparse
import functools
import itertools
from typing import NamedTuple

import numpy as np

from _harness import chosen, commit, device, report
from _passes import Renderer, backward, both, count_hits, forward
from _scenes import (
    KINDS,
    PULSAR_LIMITS,
    STOP,
    Kind,
    Limits,
    Scene,
    pulsar_cameras,
    pulsar_scene,
    render,
)
from _work import Reach, floor_ms, least_bytes, reach


class Case(NamedTuple):
    """A size of the scene."""

    spheres: int
    width: int
    height: int
    rmax: float
    gamma: float = PULSAR_LIMITS.gamma
    views: int = 1

    def limits(self) -> Limits:
        return PULSAR_LIMITS._replace(gamma=self.gamma)


CASES = {"E": Case(10_000, 256, 256, 0.5), "E5k": Case(5_000, 256, 256, 0.3)}
# Rows of the published comparison that need a GPU.
GPU_CASES = {
    "A": Case(1_000_000, 1000, 1000, 1.0),
    "A'": Case(1_000_000, 1000, 1000, 1.0, gamma=1e-3),
    "B": Case(1_000_000, 1000, 1000, 0.05),
    "C": Case(1_000_000, 1000, 1000, 0.01),
    "D": Case(100_000, 1000, 1000, 0.1),
    "E": Case(10_000, 256, 256, 0.5),
    "F": Case(4_400_000, 3840, 2160, 0.05),
    "G": Case(10_000, 64, 64, 0.5, views=256),
}
# Passes by name, and what they ask of `blend`.
PASSES = {
    "forward": (forward, {}),
    "backward_k5": (backward, {"gradient_hits": 5}),
    "backward_exact": (backward, {}),
    "both": (both, {}),
}
# Stops that draw many more hits, for `softmax` and the cases named here only.
SLOW_PASSES = {
    "forward_total": (forward, {"stop": "total"}),
    "forward_never": (forward, {"stop": None}),
}
SLOW_CASES = ("A",)


def run(kinds: tuple[Kind, ...], cases: dict[str, Case], passes: list[str]) -> None:
    """Prints the passes of each case."""
    for name, case in cases.items():
        cameras = pulsar_cameras(case.width, case.height, case.views)
        touched = None
        for kind in kinds:
            if kind == "alpha" and case.gamma != PULSAR_LIMITS.gamma:
                continue  # `alpha` knows no gamma
            scene = pulsar_scene(case.spheres, case.rmax, cameras.rays(), kind)
            touched = touched or reach(scene, cameras, case.limits())
            known = PASSES | (SLOW_PASSES if kind == "softmax" and name in SLOW_CASES else {})
            time_passes(name, case, kind, scene, touched, [x for x in passes if x in known])


def time_passes(
    name: str, case: Case, kind: Kind, scene: Scene, touched: Reach, passes: list[str]
) -> None:
    """Prints one row for each pass."""
    counts = {}
    for step in passes:
        function, options = (PASSES | SLOW_PASSES)[step]
        renderer = functools.partial(render, limits=case.limits(), kind=kind, **options)
        stop = options.get("stop", STOP[kind])
        if stop not in counts:
            counts[stop] = count_hits(functools.partial(renderer, hit_counts=True), scene)
        hits = int(np.minimum(counts[stop], options.get("gradient_hits", 2**31)).sum())
        timing = {"calls": 2, "repeats": 3} if step in SLOW_PASSES else {}
        measured = function(renderer, scene, **timing)
        work = counted_work(step, measured["ms"], hits, scene, touched)
        config = {**case._asdict(), "kind": kind, "stop": stop}
        where = {"device": device(), "commit": commit()}
        report(case=name, **{"pass": step}, **measured, **work, **config, **where)


def counted_work(step: str, ms: float, hits: int, scene: Scene, touched: Reach) -> dict:
    """The fields of a row that say what had to be done."""
    kind_of_pass = step.split("_")[0]
    traffic = least_bytes(kind_of_pass, scene, touched.visible)
    least = floor_ms(traffic, (2 if kind_of_pass == "both" else 1) * hits)
    return {
        "hits": hits,
        "hits_per_pixel": round(hits * 3 / scene.rays.directions.size, 2),
        "visible": touched.visible,
        "pairs": touched.pairs,
        "least_mb": round(traffic / 1e6, 2),
        "floor_ms": None if least is None else round(least, 4),
        "floor_fraction": None if least is None else round(least / ms, 3),
    }


def scaling(kind: Kind) -> None:
    """Prints how cost grows: the exponents of the number of spheres and of pixels."""
    sweeps = {
        "spheres": [(n, 256, 0.3) for n in (5_000, 10_000, 20_000, 40_000)],
        "pixels": [(10_000, w, 0.3) for w in (128, 256, 512, 1024)],
    }
    renderer: Renderer = functools.partial(render, limits=PULSAR_LIMITS, kind=kind)
    for axis, sizes in sweeps.items():
        times = {"forward": [], "backward_exact": []}
        for spheres, width, rmax in sizes:
            scene = pulsar_scene(spheres, rmax, pulsar_cameras(width, width).rays(), kind)
            times["forward"].append(forward(renderer, scene)["ms"])
            times["backward_exact"].append(backward(renderer, scene)["ms"])
        steps = [n for n, *_ in sizes] if axis == "spheres" else [w * w for _, w, _ in sizes]
        for step, ms in times.items():
            pairs = itertools.pairwise(zip(steps, ms, strict=True))
            local = [float(np.log(t1 / t0) / np.log(s1 / s0)) for (s0, t0), (s1, t1) in pairs]
            slope = float(np.polyfit(np.log(steps), np.log(ms), 1)[0])
            report(
                case=f"scaling/{axis}",
                **{"pass": step},
                exponent=round(slope, 2),
                between=[round(x, 2) for x in local],
                ms=[round(t, 2) for t in ms],
                kind=kind,
                device=device(),
                commit=commit(),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Times jaxrec.blend.")
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="softmax")
    parser.add_argument("--gpu", action="store_true", help="the cases for a GPU")
    parser.add_argument("--cases", help="only these, separated by commas")
    parser.add_argument("--passes", help="only these, separated by commas")
    parser.add_argument("--scaling", action="store_true", help="also print growth exponents")
    options = parser.parse_args()
    known = GPU_CASES if options.gpu else CASES
    cases = {name: known[name] for name in chosen(options.cases, list(known), "--cases")}
    passes = chosen(options.passes, [*PASSES, *SLOW_PASSES], "--passes")
    kinds = KINDS if options.kind == "all" else (options.kind,)
    run(kinds, cases, passes)
    for kind in kinds if options.scaling else ():
        scaling(kind)


if __name__ == "__main__":
    main()
