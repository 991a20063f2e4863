"""Motion and gradients of actors, and of the rows that they gather."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derivatives import assert_exact_derivatives
from jaxrec._gather import gather
from jaxrec.scene import Actors, Spheres
from jaxrec.trajectory import Trajectory
from moving_boxes import ACTOR, actors, paths, place, pose, quick, spheres


def test_velocities_are_derivatives_of_centers_in_time(x64):
    moving, scene, step = actors(jnp.float64), spheres(jnp.float64), 1e-5
    at = [place(moving, scene, jnp.asarray(0.8 + s)) for s in (-step, 0, step)]
    numeric = (at[2].spheres.centers - at[0].spheres.centers) / (2 * step)
    np.testing.assert_allclose(at[1].velocities, numeric, atol=1e-8)
    speed = np.linalg.norm(at[1].velocities, axis=-1)
    assert speed[0] > 3 and speed[4] < 1e-20


def test_a_turning_box_moves_its_corners_across():
    # 2 rad/s about z, standing: v = omega x r.
    turning = Trajectory(np.stack([pose(1, 2, 0), pose(1, 2, 0.5)]), np.array([0.0, 0.25]))
    corner = Spheres.create([[3.0, 0, 0]], [0.1], [1.0], [[0.0]])
    found = place(Actors.create({"a": turning}), corner, jnp.float32(0), (0,))
    np.testing.assert_allclose(found.velocities, [[0, 6, 0]], atol=1e-5)


def test_linear_motion_holds_for_an_exposure(x64):
    # The bound of the documentation: w^2 r dt^2 / 2.
    turning = Trajectory(np.stack([pose(0, 0, 0), pose(5, 1, 0.5)]), np.array([0.0, 1.0]))
    moving = Actors.create({"a": turning})
    scene = Spheres.create(jnp.asarray([[2.5, 0, 0]]), jnp.ones(1), jnp.ones(1), jnp.ones((1, 1)))
    times = jnp.asarray([0.5, 0.52])
    found = quick(jax.vmap(lambda time: moving.placed(scene, jnp.array([0]), time)))(times)
    here, there = found.spheres.centers
    error = there - here - 0.02 * found.velocities[0]
    assert 0 < np.linalg.norm(error) <= 0.5 * 0.5**2 * 2.5 * 0.02**2 * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("refined", ["actor", "pose"])
def test_placing_has_exact_derivatives(x64, refined):
    # Without the post, whose times lie so far away that steps would be lost in them.
    moving = {name: path for name, path in paths(jnp.float64).items() if name != "post"}
    moving, scene = Actors.create(moving, refined=refined), spheres(jnp.float64)
    twists = 0.3 * np.random.default_rng(1).normal(size=moving.twists.shape)

    def outputs(poses, times, intervals, twists, centers, time):
        changed = dataclasses.replace(
            moving, world_from_box=poses, times=times, intervals=intervals, twists=twists
        )
        placed = dataclasses.replace(scene, centers=centers)
        found = changed.placed(placed, jnp.asarray(ACTOR % 2), time)
        return found.spheres.centers, found.velocities, found.world_from_actor

    assert_exact_derivatives(
        outputs,
        moving.world_from_box,
        moving.times,
        moving.intervals,
        jnp.asarray(twists),
        scene.centers,
        jnp.asarray(0.8),
        atol=1e-7,
    )


@pytest.mark.slow
def test_gradients_are_those_of_double_precision():
    # In float32 rows are gathered by a function whose gradient is our own.
    def loss(moving, scene, twists, time):
        found = dataclasses.replace(moving, twists=twists).placed(scene, jnp.asarray(ACTOR), time)
        total = jnp.sum(jnp.sin(found.spheres.centers)) + jnp.sum(jnp.cos(found.velocities))
        return total + jnp.sum(found.world_from_actor * jnp.arange(9.0).reshape(1, 3, 3))

    def gradients(dtype):
        moving = actors(dtype, refined="pose")
        twists = jnp.asarray(0.1 * np.random.default_rng(2).normal(size=(3, 4, 6)), dtype)
        gradient = quick(jax.grad(loss, argnums=(2, 3)))
        return gradient(moving, spheres(dtype), twists, jnp.asarray(0.8, dtype))

    single = gradients(jnp.float32)
    with jax.enable_x64(True):
        for ours, truth in zip(single, gradients(jnp.float64), strict=True):
            np.testing.assert_allclose(ours, truth, rtol=2e-4, atol=2e-4)


def test_gathered_rows_have_the_gradient_of_indexing():
    draw = np.random.default_rng(0)
    table, weight = (draw.normal(size=shape).astype(np.float32) for shape in ((5, 3), (400, 3)))
    index = draw.integers(0, 5, 400)
    # One past the end is the last row, without a gradient.
    index[7] = 5

    @quick
    def rows_and_gradient(table):
        rows, pullback = jax.vjp(lambda table: gather(table, jnp.asarray(index)), table)
        return rows, pullback(jnp.asarray(weight))[0]

    rows, gradient = rows_and_gradient(table)
    np.testing.assert_array_equal(rows, table[np.minimum(index, 4)])
    wanted = np.zeros((6, 3))
    np.add.at(wanted, index, weight)
    # Each of 80 terms is rounded to a billionth of the sum of all sizes, 1000.
    np.testing.assert_allclose(gradient, wanted[:5], atol=80 * 5e-7)
