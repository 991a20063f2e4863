"""Spheres that no training view sees: how much of each gets through, and which go."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.rendering import render
from jaxrec.scene import Spheres
from jaxrec.sensors import Frame, PinholeCamera, look_at
from jaxrec.shading import PlainColor
from jaxrec.train import (
    FitSettings,
    FitState,
    NoGrowth,
    Pruning,
    SceneNormalizer,
    SphereModel,
    fit,
    prune_due,
    prune_hidden,
    visibility,
)


def camera_at(z, focal=150.0):
    return PinholeCamera(
        look_at(
            np.array([0, 0, z], np.float32),
            np.zeros(3, np.float32),
            np.array([0, 1, 0], np.float32),
        ),
        focal=np.full(2, focal, np.float32),
        principal=np.full(2, 32, np.float32),
        width=64,
        height=64,
    )


def stack(*cameras):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cameras)


def scene(centers, radii, opacities):
    count = len(radii)
    return Spheres(
        jnp.asarray(centers, jnp.float32),
        jnp.asarray(radii, jnp.float32),
        jnp.asarray(opacities, jnp.float32),
        jnp.zeros((count, 3)),
        jnp.ones(count, bool),
    )


def shares(spheres, *cameras):
    return np.asarray(visibility(spheres, stack(*cameras), near=0.1, far=20.0))


@pytest.mark.parametrize(("radius", "opacity"), [(0.05, 0.3), (0.2, 0.3), (0.1, 0.95)])
def test_a_sphere_alone_is_seen_whole_whatever_its_size_and_opacity(radius, opacity):
    spheres = scene([[0.1, 0.05, 0]], [radius], [opacity])
    np.testing.assert_allclose(shares(spheres, camera_at(-2.0)), 1.0, rtol=0.03)


def test_what_is_behind_a_sphere_is_seen_through_it():
    # In the middle of a sphere so much larger, its kernel is 1.
    opacity = 0.7
    spheres = scene([[0, 0, -0.5], [0, 0, 0.5]], [0.29, 0.04], [opacity, 0.5])
    from_front = shares(spheres, camera_at(-2.0))
    np.testing.assert_allclose(from_front, [1.0, 1 - opacity], rtol=0.05)
    # From behind, the small one is in front; the best view counts.
    np.testing.assert_allclose(shares(spheres, camera_at(-2.0), camera_at(2.0)), 1.0, rtol=0.05)


def test_what_no_view_shows_is_not_seen():
    spheres = scene([[0, 0, 0], [5, 0, 0], [0, 0, -4]], [0.1, 0.1, 0.1], [0.5, 0.5, 0.5])
    found = shares(spheres, camera_at(-2.0))
    assert found[0] > 0.9 and not found[1:].any()


def test_dead_spheres_hide_nothing():
    spheres = scene([[0, 0, -0.5], [0, 0, 0.5]], [0.29, 0.04], [0.9, 0.5])
    alone = Spheres(
        spheres.centers,
        spheres.radii,
        spheres.opacities,
        spheres.features,
        jnp.array([False, True]),
    )
    np.testing.assert_allclose(shares(alone, camera_at(-2.0)), [0, 1], atol=0.05)


def test_hidden_spheres_go_and_nothing_else_changes():
    # A wall of opaque spheres, one behind it and one beside it.
    grid = np.stack(np.meshgrid(np.arange(-4, 5), np.arange(-4, 5)), -1).reshape(-1, 2) * 0.05
    wall = np.concatenate([grid, np.zeros((len(grid), 1))], axis=1)
    wall = np.concatenate([wall, wall + [0, 0, -0.01], wall + [0, 0, 0.01]])
    centers = np.concatenate([wall, [[0, 0, 0.6], [0.5, 0, 0.6]]])
    count = len(centers)
    radii = np.full(count, 0.06)
    spheres = scene(centers, radii, np.full(count, 0.95))
    settings = FitSettings(spheres=count, shader="plain", pruning=Pruning(share=0.05))
    state = FitState.create(SphereModel(spheres, PlainColor()), settings)
    before = jax.tree.map(np.array, (state.params, state.optimizer))
    normalizer = SceneNormalizer((0.0, 0.0, 0.0), 1.0)
    after = prune_hidden(state, [stack(camera_at(-2.0))], normalizer, settings)
    assert not after.alive[-2] and after.alive[-1]
    # The first layer is seen; layers behind it are as far as they get through.
    assert after.alive[len(grid) : 2 * len(grid)].all()
    jax.tree.map(np.testing.assert_array_equal, before, (after.params, after.optimizer))


@pytest.mark.slow
def test_a_fit_prunes_and_resumes_to_the_bit():
    truth = scene([[0, 0, 0], [0.2, 0.1, 0]], [0.3, 0.2], [1, 1])
    truth = dataclasses.replace(truth, features=jnp.eye(3)[:2])
    cameras = [camera_at(z, focal=75.0) for z in (-2.0, -2.5, -3.0)]
    frames = [
        Frame(camera, np.asarray(render(truth, camera, near=0.1, far=9.0).features))
        for camera in cameras
    ]
    settings = FitSettings(
        steps=60, spheres=200, shader="plain", progress_every=1, growth=NoGrowth(),
        background=(0.0, 0.0, 0.0), pruning=Pruning(every=15, share=0.2),
    )  # fmt: skip
    alive = []
    whole = fit(frames, settings, on_progress=lambda _, found: alive.append(found["spheres"]))
    # The rounds after steps 15, 30 and 45 take effect in the step that follows.
    assert alive[0] == 200 and alive[-1] < 200
    assert {i for i in range(1, 60) if alive[i] != alive[i - 1]} <= {15, 30, 45}
    part = fit(frames, dataclasses.replace(settings, steps=20))
    rest = fit(frames, settings, state=part.state, normalizer=part.normalizer)
    jax.tree.map(np.testing.assert_array_equal, rest.state.params, whole.state.params)
    np.testing.assert_array_equal(rest.state.alive, whole.state.alive)


def test_rounds_come_when_the_settings_say_and_not_too_often():
    settings = FitSettings(horizon=1000, pruning=Pruning(every=100, start=0.2, stop=0.9))
    due = [done for done in range(1, 1001) if prune_due(settings, done, views=4)]
    assert due == list(range(200, 901, 100))
    # A round renders all views.
    due = [done for done in range(1, 1001) if prune_due(settings, done, views=50)]
    assert due == [250, 500, 750]
    assert prune_due(FitSettings(horizon=1000), 500, views=1)
    assert not prune_due(FitSettings(horizon=1000, pruning=Pruning(share=0.0)), 500, views=1)
    assert not prune_due(FitSettings(horizon=1000, kind="softmax"), 500, views=1)


def test_settings_out_of_range_are_named(own_errors):
    with pytest.raises(ValueError, match=r"pruning\.share: got 1\.0"):
        Pruning(share=1.0)
    with pytest.raises(ValueError, match=r"pruning\.every: got 0"):
        Pruning(every=0)


def test_what_reaches_beyond_the_image_is_no_less_visible():
    # Four times as wide as the image, and one at its edge.
    spheres = scene([[0, 0, 60], [0.42, 0, 0]], [50, 0.05], [0.5, 0.5])
    large, edge = np.asarray(visibility(spheres, stack(camera_at(-2.0)), near=0.0, far=100.0))
    assert large > 0.5 and edge > 0.5
