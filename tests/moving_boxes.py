"""Boxes that move, and spheres that ride in them, for the tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrec.scene import STATIC, Actors, Spheres
from jaxrec.trajectory import Still, Trajectory

TIMES = {"van": np.array([0.0, 0.5, 1.2, 2.0]), "car": np.array([0.3, 0.9])}
TIMES_OF_ALL = np.array([-1.0, 0.3, 0.5, 0.8, 0.9, 2.0, 3.0])
ACTOR = np.array([0, STATIC, 1, 0, 2, STATIC, 1], np.int32)


def pose(x, y, turn):
    return np.array(
        [[np.cos(turn), -np.sin(turn), 0, x], [np.sin(turn), np.cos(turn), 0, y]]
        + [[0, 0, 1, 0.5], [0, 0, 0, 1]]
    )


POSES = {
    "van": np.stack([pose(0, 0, 0.1), pose(2, 0.5, 0.4), pose(5, 2, 0.5), pose(8, 4, 0.9)]),
    "car": np.stack([pose(20, -3, 3.0), pose(15, -3.5, 2.9)]),
}
POST = pose(3, 3, 0.7)


def paths(dtype=jnp.float32, edge="nan"):
    moving = {
        name: Trajectory(jnp.asarray(POSES[name], dtype), TIMES[name], edge=edge) for name in POSES
    }
    return {**moving, "post": Still(jnp.asarray(POST, dtype))}


def actors(dtype=jnp.float32, edge="nan", **kwargs) -> Actors:
    return Actors.create(paths(dtype, edge), **kwargs)


def spheres(dtype=jnp.float32) -> Spheres:
    draw = np.random.default_rng(0)
    return Spheres.create(
        jnp.asarray(draw.normal(size=(7, 3)), dtype),
        jnp.asarray(draw.uniform(0.1, 0.4, 7), dtype),
        jnp.asarray(draw.uniform(0.1, 0.9, 7), dtype),
        jnp.asarray(draw.normal(size=(7, 12)), dtype),
        capacity=7,
    )


# Compiled to run once: without optimisation it takes half the time.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
sample = quick(lambda path, times: path.sample(times))


@quick
def place(moving, scene, time, actor=ACTOR):
    return moving.placed(scene, jnp.asarray(actor, jnp.int32), time)
