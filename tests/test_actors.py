"""Actors: spheres that ride in boxes which move."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation, Slerp

from jaxrec.geometry import matrix_from_axis_angle, rigid, rigid_from_twist
from jaxrec.scene import STATIC, Actors, Spheres
from jaxrec.shading import SphericalHarmonics
from jaxrec.trajectory import ScrewTrajectory, Still
from moving_boxes import (
    ACTOR,
    POSES,
    POST,
    TIMES,
    TIMES_OF_ALL,
    actors,
    paths,
    place,
    quick,
    sample,
    spheres,
)


@pytest.mark.parametrize("edge", ["nan", "hold", "extrapolate"])
def test_all_paths_are_evaluated_as_each_alone(x64, edge):
    times = jnp.asarray(TIMES_OF_ALL)
    found, valid = sample(actors(jnp.float64, edge), times)
    assert found.shape == (3, 7, 4, 4) and np.all(np.isfinite(found))
    for row, path in enumerate(paths(jnp.float64, edge).values()):
        alone, known = sample(path, times)
        np.testing.assert_array_equal(valid[row], known)
        np.testing.assert_allclose(found[row], alone, atol=1e-13)


def test_a_scene_is_placed_sphere_by_sphere(x64):
    scene, time = spheres(jnp.float64), 0.8
    found = place(actors(jnp.float64), scene, jnp.asarray(time))
    for i, number in enumerate(ACTOR):
        center = np.asarray(scene.centers[i])
        if number == STATIC:
            turn, where = np.eye(3), np.zeros(3)
        elif number == 2:
            turn, where = POST[:3, :3], POST[:3, 3]
        else:
            name = ("van", "car")[number]
            of = POSES[name][:, :3]
            turn = Slerp(TIMES[name], Rotation.from_matrix(of[:, :, :3]))(time).as_matrix()
            where = np.array([np.interp(time, TIMES[name], of[:, axis, 3]) for axis in range(3)])
        np.testing.assert_allclose(found.spheres.centers[i], turn @ center + where, atol=1e-13)
        np.testing.assert_allclose(found.world_from_actor[i], turn, atol=1e-13)
    assert np.all(found.spheres.alive)
    np.testing.assert_array_equal(found.spheres.radii, scene.radii)


def test_the_static_world_stays_to_the_bit():
    scene = spheres()
    found = place(actors(), scene, jnp.float32(0.8))
    still = ACTOR == STATIC
    np.testing.assert_array_equal(found.spheres.centers[still], scene.centers[still])
    np.testing.assert_array_equal(found.velocities[still], 0)
    np.testing.assert_array_equal(found.world_from_actor[still], np.tile(np.eye(3), (2, 1, 1)))


def test_actors_are_hidden_where_they_have_no_pose():
    # The car is known from 0.3 s to 0.9 s, the van from 0 to 2, the post always.
    for time, hidden in ((0.1, [1]), (0.9, []), (1.5, [1]), (2.5, [0, 1])):
        found = place(actors(), spheres(), jnp.float32(time))
        np.testing.assert_array_equal(found.spheres.alive, ~np.isin(ACTOR, hidden))
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found))
        np.testing.assert_array_equal(found.velocities[np.isin(ACTOR, hidden)], 0)
    dead = dataclasses.replace(spheres(), alive=jnp.zeros(7, bool))
    assert not np.any(place(actors(), dead, jnp.float32(0.5)).spheres.alive)


def test_at_its_last_pose_an_actor_still_moves():
    # Shorter paths are padded: the span behind the last pose must not be found.
    found = place(actors(), spheres(), jnp.float32(0.9))
    np.testing.assert_allclose(found.spheres.alive, True)
    speed = np.linalg.norm(np.asarray(found.velocities)[ACTOR == 1], axis=-1)
    assert np.all(speed > 7)


def test_twists_move_boxes_along_their_own_axes(x64):
    moving = actors(jnp.float64)
    twists = moving.twists.at[0, 0].set(jnp.asarray([0, 0, 0.2, 0.5, -0.1, 0]))
    refined = dataclasses.replace(moving, twists=twists)
    motion = np.asarray(rigid_from_twist(twists[0, 0]))
    before, after = (np.asarray(sample(value, TIMES_OF_ALL)[0]) for value in (moving, refined))
    np.testing.assert_allclose(after[0, [2, 5]], before[0, [2, 5]] @ motion, atol=1e-14)
    np.testing.assert_array_equal(after[1:], before[1:])
    # Refined or not, rotations stay rotations.
    turn = after[0, :, :3, :3]
    np.testing.assert_allclose(
        turn @ np.swapaxes(turn, 1, 2), np.tile(np.eye(3), (7, 1, 1)), atol=1e-14
    )


def test_actors_are_taken_out():
    gone = actors().without(["van"])
    found = place(gone, spheres(), jnp.float32(0.5))
    np.testing.assert_array_equal(found.spheres.alive, ACTOR != 0)
    np.testing.assert_array_equal(place(gone.without([]), spheres(), 0.5).spheres.alive, ACTOR != 0)
    # Nothing is compiled anew.
    assert jax.tree.structure(gone) == jax.tree.structure(actors())


def test_actors_are_moved_along_their_own_axes(x64):
    moving = actors(jnp.float64)
    moving = dataclasses.replace(moving, twists=moving.twists.at[1, 0, 3].set(0.4))
    left = np.eye(4)
    left[1, 3] = 1.5
    before, after = (
        np.asarray(sample(value, TIMES_OF_ALL)[0]) for value in (moving, moving.moved("car", left))
    )
    np.testing.assert_array_equal(after[0], before[0])
    # Between poses the moved ones are interpolated, on a line of their own.
    np.testing.assert_allclose(after[1, [1, 4]], before[1, [1, 4]] @ left, atol=1e-14)
    assert np.all(after[1, :, 1, 3] < before[1, :, 1, 3] - 1.4)  # it drives towards -x


def test_view_dependent_colour_turns_with_the_actor():
    # A sphere looked at from the side it turns is looked at from the same side of itself.
    turn = quick(matrix_from_axis_angle)(jnp.asarray([0.2, -0.4, 1.1]))
    moved = {"a": Still(rigid(turn, jnp.asarray([4.0, 5, 6])))}
    one = Spheres.create(
        np.zeros((1, 3)), [0.3], [1.0], np.random.default_rng(3).normal(size=(1, 27))
    )
    found = place(Actors.create(moved), one, jnp.float32(0), (0,))
    seen = jnp.asarray([[0.6, 0.0, -0.8]])
    color = quick(SphericalHarmonics(2).per_sphere)
    wanted = color(one.features, seen)
    turned = found.local(jnp.einsum("ij,nj->ni", turn, seen))
    np.testing.assert_allclose(color(one.features, turned), wanted, atol=1e-5)
    stack = jnp.tile(jnp.einsum("ij,nj->ni", turn, seen)[None], (3, 1, 1))
    np.testing.assert_allclose(found.local(stack)[2], turned, atol=1e-6)


@quick
def owners(moving, points, times, sizes, margin=0.0):
    return moving.owners(points, times, sizes, margin=margin)


def test_points_are_given_to_the_boxes_that_hold_them():
    moving, scene = actors(), spheres()
    sizes = jnp.asarray([[6.0, 6, 6], [6, 6, 6], [0.1, 0.1, 0.1]])

    def find(moving, points, time, margin=0.0):
        return owners(moving, points, jnp.full(7, time), sizes, margin)

    riding = np.isin(ACTOR, (0, 1))
    for time in (0.5, 0.8):
        placed = place(moving, scene, jnp.float32(time)).spheres.centers
        owner, local = find(moving, placed, time)
        np.testing.assert_array_equal(np.asarray(owner)[riding], ACTOR[riding])
        np.testing.assert_allclose(local[riding], scene.centers[riding], atol=2e-5)
    # The post's box is too small for its sphere; with a margin it is not.
    alone = moving.without(["van"])
    owner, local = find(alone, placed, 0.8)
    assert owner[4] == STATIC and owner[0] == STATIC
    np.testing.assert_array_equal(local[4], placed[4])
    assert find(alone, placed, 0.8, 2.5)[0][4] == 2
    # Before the car is there, its box holds nothing.
    assert not np.any(np.asarray(find(moving, placed, 0.2)[0]) == 1)


def test_a_point_in_two_boxes_is_in_that_where_it_lies_deepest():
    twice = Actors.create({"a": Still(jnp.eye(4)), "b": Still(jnp.eye(4))})
    boxes = jnp.asarray([[2.0, 2, 2], [4, 4, 4]])
    assert owners(twice, jnp.zeros((1, 3)), jnp.zeros(1), boxes)[0] == 1


def test_a_scene_without_actors_and_one_without_spheres():
    nobody = Actors.create({})
    found = place(nobody, spheres(), jnp.float32(1), np.full(7, STATIC))
    np.testing.assert_array_equal(found.spheres.centers, spheres().centers)
    assert np.all(found.spheres.alive) and not np.any(found.velocities)
    owner, _ = owners(nobody, jnp.zeros((2, 3)), jnp.zeros(2), jnp.zeros((0, 3)))
    np.testing.assert_array_equal(owner, STATIC)
    empty = Spheres.create(np.zeros((0, 3)), np.zeros(0), np.zeros(0), np.zeros((0, 3)))
    none = place(actors(), empty, jnp.float32(1), np.zeros(0, np.int32))
    assert none.velocities.shape == (0, 3)


def test_times_may_be_a_batch():
    times = jnp.asarray([0.4, 0.8])
    many = jax.vmap(place, (None, None, 0))(actors(), spheres(), times)
    for i in range(2):
        alone = place(actors(), spheres(), times[i])
        np.testing.assert_allclose(many.spheres.centers[i], alone.spheres.centers, atol=1e-6)
        np.testing.assert_allclose(many.velocities[i], alone.velocities, atol=1e-5)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: Actors.create({"a": ScrewTrajectory(POSES["car"], TIMES["car"])}),
            "paths: got ScrewTrajectory for 'a'; give a Trajectory or Still",
        ),
        (
            lambda: Actors.create({**paths(), "b": paths(edge="hold")["car"]}),
            "edge: got 'nan' of 'van' and 'hold' of 'b'; give paths of one",
        ),
        (lambda: actors().without(["bus"]), "id: got 'bus'; give one of van, car, post"),
        (lambda: Actors.create({}).number("bus"), "id: got 'bus'; give one of none, for nothing"),
        (lambda: actors().moved("van", 2 * np.eye(4)), "box_from_box: got the last row"),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call()
