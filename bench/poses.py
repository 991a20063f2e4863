"""Speed of poses: where a rig and all actors are, at the times of a sweep or an exposure.

* `sweep`: a pose of the rig for each of 128 x 2048 rays, and the box of each of 64 actors in the
  middle; `camera`: for each of 1080 rows of a rolling shutter. Paths have 300 poses, half a
  minute at 10 Hz.
* `placed`: a flat scene of 1M spheres, a tenth of which ride with 64 actors, taken to the world
  with velocities and rotations.

Passes: `forward`; `both`, value and gradient to poses, refinement, times and centers; `separate`,
the forward pass as programs of one operation each, as an evaluation without `jax.jit` runs it.

    python bench/poses.py [--cases sweep,placed] [--passes forward,both] [--scale 0.01]

Each row tells how many `kernels` the compiled program launches: instructions of its entry
computation that do work. Loops count once, though they launch theirs again and again: `loops`
should be 0.
"""

import argparse
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from _harness import chosen, commit, device, measure, queued_ms, report
from jaxrec import Spheres
from jaxrec.scene import STATIC, Actors
from jaxrec.trajectory import Trajectory

ACTORS, POSES, RATE = 64, 300, 10.0
TIME = 0.4 * POSES / RATE
PASSES = ("forward", "both", "separate")
# Instructions of a program that launch nothing.
FREE = "parameter|constant|tuple|get-tuple-element|bitcast|iota|partition-id|replica-id"


class Case(NamedTuple):
    """A function of floating-point arguments, and the rest that it needs."""

    function: Callable[..., Any]
    variables: tuple[Any, ...]
    config: dict[str, int]


def sweep(scale: float) -> Case:
    return _rays((_count(128, scale**0.5), _count(2048, scale**0.5)))


def camera(scale: float) -> Case:
    return _rays((_count(1080, scale), 1))


def placed(scale: float) -> Case:
    count, moving = _count(1_000_000, scale), actors()
    draw = np.random.default_rng(3)
    owner = draw.integers(0, ACTORS, count)
    owner = jnp.asarray(np.where(draw.uniform(size=count) < 0.1, owner, STATIC), jnp.int32)
    scene = Spheres.create(
        draw.normal(size=(count, 3)).astype(np.float32),
        np.full(count, 0.1, np.float32),
        np.full(count, 0.9, np.float32),
        np.zeros((count, 1), np.float32),
    )

    def function(poses, twists, time, centers):
        changed = _changed(moving, world_from_box=poses, twists=twists)
        found = changed.placed(_changed(scene, centers=centers), owner, time)
        return found.spheres.centers, found.velocities, found.world_from_actor

    variables = (moving.world_from_box, moving.twists, jnp.float32(TIME), scene.centers)
    return Case(function, variables, {"spheres": count, "actors": ACTORS, "poses": POSES})


CASES = {"sweep": sweep, "camera": camera, "placed": placed}


def drive(seed: int, edge: Any = "nan") -> Trajectory:
    """A path that turns now and then, at 10 m/s."""
    draw = np.random.default_rng(seed)
    turn = np.cumsum(draw.normal(size=POSES)) / 20
    steps = np.stack([np.cos(turn), np.sin(turn), 0 * turn], axis=-1)
    poses = np.tile(np.eye(4, dtype=np.float32), (POSES, 1, 1))
    poses[:, 0, 0] = poses[:, 1, 1] = np.cos(turn)
    poses[:, 1, 0] = np.sin(turn)
    poses[:, 0, 1] = -np.sin(turn)
    poses[:, :3, 3] = np.cumsum(steps, axis=0)
    return Trajectory(poses, np.arange(POSES) / RATE, edge=edge)


def actors() -> Actors:
    moving = Actors.create({str(seed): drive(seed) for seed in range(ACTORS)}, refined="pose")
    draw = np.random.default_rng(1)
    twists = 0.01 * draw.normal(size=moving.twists.shape)
    return _changed(moving, twists=jnp.asarray(twists, jnp.float32))


def _rays(grid: tuple[int, int]) -> Case:
    moving, rig = actors(), drive(ACTORS)
    times = TIME + np.linspace(-0.05, 0.05, grid[0] * grid[1]).reshape(grid)

    def function(rig_poses, poses, twists, times):
        path = _changed(rig, world_from_body=rig_poses)
        boxes = _changed(moving, world_from_box=poses, twists=twists)
        return path.sample(times)[0], boxes.sample(times.mean())[0]

    variables = (rig.world_from_body, moving.world_from_box, moving.twists)
    config = {"times": times.size, "actors": ACTORS, "poses": POSES}
    return Case(function, (*variables, jnp.asarray(times, jnp.float32)), config)


def _changed(value: Any, **fields: Any) -> Any:
    """`dataclasses.replace` for values whose constructors check."""
    leaves, structure = jax.tree.flatten_with_path(value)
    new = [fields.get(path[0].name, leaf) for path, leaf in leaves]
    return jax.tree.unflatten(structure, new)


def time_pass(name: str, case: Case, step: str) -> None:
    """Prints one row."""
    if step == "separate":
        with jax.disable_jit():
            calls = {"calls": 3, "repeats": 3}
            measured = {"ms": round(queued_ms(lambda: case.function(*case.variables), **calls), 3)}
    else:
        function = jax.jit(case.function if step == "forward" else _value_and_gradient(case))
        measured = measure(function, *case.variables)
        measured |= count_kernels(function, *case.variables)
    where = {"device": device(), "commit": commit()}
    report(case=name, **{"pass": step}, **measured, **case.config, **where)


def _value_and_gradient(case: Case) -> Callable[..., Any]:
    def total(*variables):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(case.function(*variables)))

    return jax.value_and_grad(total, argnums=tuple(range(len(case.variables))))


def count_kernels(function: Any, *arguments: Any) -> dict[str, int]:
    """What the compiled program launches; conditions and bodies of loops are not looked into."""
    text = function.lower(*arguments).compile().as_text()
    entry = text[text.index("\nENTRY") :]
    done = re.findall(r"^  (?:ROOT )?\S+ = .*? ([a-z][\w-]*)\(", entry, re.M)
    work = [name for name in done if not re.fullmatch(FREE, name)]
    return {"kernels": len(work), "loops": work.count("while")}


def _count(number: int, scale: float) -> int:
    return max(1, round(number * scale))


def main() -> None:
    parser = argparse.ArgumentParser(description="Times poses of rigs and actors.")
    parser.add_argument("--cases", help="only these, separated by commas")
    parser.add_argument("--passes", help="only these, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rays and spheres")
    options = parser.parse_args()
    for name in chosen(options.cases, list(CASES), "--cases"):
        case = CASES[name](options.scale)
        for step in chosen(options.passes, list(PASSES), "--passes"):
            time_pass(name, case, step)


if __name__ == "__main__":
    main()
