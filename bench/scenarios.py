"""Speed of what people do with `jaxrec`: training, many small scenes, lidars, rolling shutters.

* `train/l1`: a step of `jaxrec.train` on 1M spheres and an 800 x 800 view: rendering, mean absolute
  difference, gradient, Adam; the state is donated. `train/gpu`: the same with all that the preset
  for GPUs adds (harmonics, D-SSIM, relocation), for `alpha`.
* `vmap`: 64 scenes of 10k spheres under `jax.vmap`, one 64 x 64 view of each.
* `lidar/fixed`, `lidar/moving`: 128 x 2048 rays in a street of 1M spheres; the origin moves by 2 m
  during a turn, or not.
* `rolling`: case B of `blend.py`, 1000 x 1000 pixels, where the origin moves by 0.3 m from the
  first row to the last.
* `rolling/traffic`, `lidar/traffic`: the same, `lidar` with the origin that moves, while a tenth of
  the spheres moves by up to 15 m/s along each axis, for 30 ms and for 100 ms.

    python bench/scenarios.py [--kind softmax|alpha|all] [--cases vmap,rolling] [--scale 0.01]
"""

import argparse
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from _harness import chosen, commit, device, queued_ms, report
from _passes import Renderer, backward, both, count_hits, forward
from _scenes import (
    KINDS,
    PULSAR_LIMITS,
    STREET_LIMITS,
    Kind,
    Limits,
    Scene,
    in_motion,
    lidar_rays,
    pulsar_cameras,
    pulsar_scene,
    render,
    rolling_rays,
    street_scene,
)
from _training import synthetic_fit
from jaxrec.train import Backdrop, FitSettings, LossWeights, Relocation, make_step
from jaxrec.train.batches import stack_frames

Passes = dict[str, Callable[[Renderer, Scene], dict[str, float]]]
PASSES: Passes = {"forward": forward, "backward_exact": backward}


def train_l1(kind: Kind, scale: float) -> None:
    settings = FitSettings(
        spheres=_count(1_000_000, scale),
        kind=kind,
        shader="plain",
        backdrop=Backdrop(kind="constant"),
        losses=LossWeights(d_ssim=0.0),
        growth=Relocation(every=0),
    )
    _train("train/l1", settings, _side(800, scale))


def train_gpu(kind: Kind, scale: float) -> None:
    if kind == "alpha":
        settings = FitSettings.preset("gpu", spheres=_count(1_000_000, scale))
        _train("train/gpu", settings, _side(800, scale))


def vmap(kind: Kind, scale: float) -> None:
    scenes, spheres, side = max(2, _count(64, scale)), _count(10_000, scale), 64
    rays = pulsar_cameras(side, side, views=scenes).rays()
    parts = [
        pulsar_scene(spheres, 0.5, jax.tree.map(lambda x, i=i: x[i : i + 1], rays), kind, seed=i)
        for i in range(scenes)
    ]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *parts)
    passes = PASSES | {"both": both}
    _passes("vmap", kind, batch, PULSAR_LIMITS, passes, over=jax.vmap, scenes=scenes)


def lidar_fixed(kind: Kind, scale: float) -> None:
    _lidar("lidar/fixed", kind, scale, travel=0.0)


def lidar_moving(kind: Kind, scale: float) -> None:
    _lidar("lidar/moving", kind, scale, travel=2.0)


def lidar_traffic(kind: Kind, scale: float) -> None:
    _lidar("lidar/traffic", kind, scale, travel=2.0, moving=0.1)


def rolling(kind: Kind, scale: float) -> None:
    _passes("rolling", kind, _rolled(kind, scale), PULSAR_LIMITS, PASSES)


def rolling_traffic(kind: Kind, scale: float) -> None:
    scene = in_motion(_rolled(kind, scale), 0.1, 15.0, 0.03, axis=1)
    _passes("rolling/traffic", kind, scene, PULSAR_LIMITS, PASSES)


CASES: dict[str, Callable[[Kind, float], None]] = {
    "train/l1": train_l1,
    "train/gpu": train_gpu,
    "vmap": vmap,
    "lidar/fixed": lidar_fixed,
    "lidar/moving": lidar_moving,
    "lidar/traffic": lidar_traffic,
    "rolling": rolling,
    "rolling/traffic": rolling_traffic,
}


def _rolled(kind: Kind, scale: float) -> Scene:
    side = _side(1000, scale)
    rays = rolling_rays(pulsar_cameras(side, side), 0.3)
    return pulsar_scene(_count(1_000_000, scale), 0.05, rays, kind)


def _lidar(name: str, kind: Kind, scale: float, travel: float, *, moving: float = 0.0) -> None:
    rays = lidar_rays(_side(128, scale), _side(2048, scale), travel)
    scene = street_scene(_count(1_000_000, scale), rays, kind)
    scene = in_motion(scene, moving, 15.0, 0.1, axis=2) if moving else scene
    _passes(name, kind, scene, STREET_LIMITS, PASSES)


def _passes(
    name: str,
    kind: Kind,
    scene: Scene,
    limits: Limits,
    passes: Passes,
    *,
    over: Callable = lambda function: function,
    **config: int,
) -> None:
    """Prints the passes of a renderer, which `over` may transform."""
    renderer = functools.partial(render, limits=limits, kind=kind)
    hits = count_hits(over(functools.partial(renderer, hit_counts=True)), scene)
    sizes = {"spheres": scene.centers.shape[-2], "rays": list(hits.shape[-2:])}
    for step, function in passes.items():
        measured = function(over(renderer), scene)
        counted = {"hits": int(hits.sum()), "hits_per_ray": round(float(hits.mean()), 2)}
        _report(name, step, kind, **measured, **counted, **sizes, **config)


def _train(name: str, settings: FitSettings, side: int) -> None:
    """Prints the time of the library's own step."""
    frames, state, normalizer = synthetic_fit(settings, views=4, size=side)
    (stack,) = stack_frames(frames, normalizer)
    step, index = make_step(settings, normalizer), np.zeros(1, np.int32)

    def next_step():
        nonlocal state  # donated: each step has the state of the one before
        state, metrics = step(state, stack, index)
        return metrics

    ms = round(queued_ms(next_step), 3)
    _report(name, "step", settings.kind, ms=ms, spheres=settings.spheres, rays=[side, side])


def _report(name: str, step: str, kind: Kind, **fields) -> None:
    where = {"kind": kind, "device": device(), "commit": commit()}
    report(case=name, **{"pass": step}, **fields, **where)


def _count(number: int, scale: float) -> int:
    return max(1, round(number * scale))


def _side(number: int, scale: float) -> int:
    return max(16, round(number * scale**0.5))


def main() -> None:
    parser = argparse.ArgumentParser(description="Times what people do with jaxrec.")
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--cases", help="only these, separated by commas")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the spheres, scenes and rays"
    )
    options = parser.parse_args()
    for name in chosen(options.cases, list(CASES), "--cases"):
        for kind in KINDS if options.kind == "all" else (options.kind,):
            CASES[name](kind, options.scale)


if __name__ == "__main__":
    main()
