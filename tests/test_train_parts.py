"""The parts of training: coordinates, settings, frame order, optimiser, relocation."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrec.scene import Spheres
from jaxrec.sensors import Frame, PinholeCamera, look_at
from jaxrec.shading import PlainColor
from jaxrec.train import (
    Edit,
    FitSettings,
    FitState,
    FrameOrder,
    LearningRates,
    LossWeights,
    Relocation,
    SceneNormalizer,
    SphereModel,
    apply_edit,
    depth_points,
    grow,
    growth_due,
    initial_spheres,
    make_optimizer,
    make_record,
    plan_relocation,
    read_record,
)

CENTER = np.array([2.0, -1.0, 0.5])
NORMALIZER = SceneNormalizer((0.5, 0.0, -1.0), 0.25)


def camera_at(angle):
    eye = CENTER + 3 * np.array([np.cos(angle), np.sin(angle), 0])
    return PinholeCamera(
        look_at(eye.astype(np.float32), CENTER.astype(np.float32), np.float32([0, 0, 1])),
        focal=jnp.full(2, 40.0),
        principal=jnp.full(2, 16.0),
        width=32,
        height=32,
    )


# ---- coordinates


def test_measured_depths_give_points_on_what_was_measured():
    # A plane across the axis of each camera, 3 m ahead, with some pixels unmeasured or masked.
    random = np.random.default_rng(0)
    frames = []
    for angle in (0.0, 1.0):
        depth = np.full((32, 32), 3.0, np.float32)
        depth[:, :8], depth[:, 8:12] = 0, np.nan
        mask = np.ones((32, 32), bool)
        mask[16:] = False
        image = random.random((32, 32, 3), np.float32)
        frames.append(Frame(camera_at(angle), image, mask=mask, depth=depth))
    points = depth_points(frames, 100, random)
    assert points is not None and points.positions.shape == points.colors.shape == (100, 3)
    for frame, half in zip(frames, (slice(None, 50), slice(50, None)), strict=True):
        pixels, ahead = frame.camera.project(jnp.asarray(points.positions[half]))
        np.testing.assert_allclose(ahead, 3, atol=1e-5)
        columns, rows = np.floor(np.asarray(pixels)).astype(int).T
        assert columns.min() >= 12 and rows.max() < 16
        np.testing.assert_array_equal(points.colors[half], frame.image[rows, columns])
    assert depth_points([dataclasses.replace(frames[0], depth=None)], 10, random) is None
    settings = FitSettings(spheres=60, shader="plain", initialization="points")
    spheres = initial_spheres(frames, NORMALIZER, settings, PlainColor(), jax.random.key(0))
    placed = NORMALIZER.world_spheres(spheres).centers
    toward = np.asarray(frames[0].camera.world_from_camera)
    other = np.asarray(frames[1].camera.world_from_camera)
    depths = [(np.asarray(placed) - pose[:3, 3]) @ pose[:3, 2] for pose in (toward, other)]
    assert (np.abs(np.stack(depths) - 3).min(axis=0) < 1e-4).all()


def test_cameras_that_look_at_a_place_put_it_at_the_origin():
    cameras = [camera_at(angle) for angle in range(5)]
    normalizer = SceneNormalizer.from_cameras(cameras)
    assert normalizer.center == pytest.approx(tuple(CENTER), abs=1e-4)
    for camera in cameras:
        moved = normalizer.scene_camera(camera)
        position = np.asarray(moved.world_from_camera)[:3, 3]
        assert np.linalg.norm(position) == pytest.approx(1, abs=1e-4)


def test_cameras_side_by_side_take_their_scale_from_their_spread():
    poses = [np.eye(4, dtype=np.float32) for _ in range(4)]
    for i, pose in enumerate(poses):
        pose[0, 3] = i
    cameras = [dataclasses.replace(camera_at(0.0), world_from_camera=pose) for pose in poses]
    normalizer = SceneNormalizer.from_cameras(cameras)
    assert normalizer.center == pytest.approx((1.5, 0, 0))
    assert normalizer.scale == pytest.approx(1 / (4 * np.sqrt(1.25)))


def test_coordinates_survive_json_exactly():
    normalizer = SceneNormalizer((0.1, 1e7 / 3, -2e-9), 1 / 3, near=0.01, far=99.0)
    text = json.dumps(normalizer.to_dict())
    assert SceneNormalizer.from_dict(json.loads(text)) == normalizer


def test_coordinates_far_from_the_origin_keep_their_precision():
    normalizer = SceneNormalizer((4e6, 5e6, 100.0), 0.5)
    with jax.enable_x64(True):
        pose = np.eye(4)
        pose[:3, 3] = [4e6 + 0.125, 5e6, 101.0]
        camera = PinholeCamera(pose, np.ones(2), np.ones(2), width=2, height=2)  # pyright: ignore[reportArgumentType]
        moved = normalizer.scene_camera(camera)
    np.testing.assert_array_equal(moved.world_from_camera[:3, 3], [0.0625, 0, 0.5])


@pytest.mark.parametrize(
    "values", [{"scale": 0.0}, {"scale": float("nan")}, {"near": 5.0, "far": 1.0}]
)
def test_impossible_coordinates_are_refused(values):
    with pytest.raises(ValueError, match="SceneNormalizer: got"):
        SceneNormalizer(**{"center": (0.0, 0.0, 0.0), "scale": 1.0, **values})


# ---- settings


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_settings_survive_json(name):
    settings = FitSettings.preset(name, seed=5, background=(0.0, 0.5, 1.0))
    assert FitSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_the_horizon_is_fixed_when_a_fit_begins():
    settings = FitSettings.preset("cpu", steps=500)
    assert settings.horizon == 500
    assert dataclasses.replace(settings, steps=900).horizon == 500


@pytest.mark.parametrize(
    "name, value",
    [("steps", 0), ("seed", -1), ("kind", "gauss"), ("shader", "none"), ("gamma", 0.0)]
    + [("degree", 4), ("opacity", 1.0), ("background", (0.0, 0.0, 2.0)), ("view_full", 0.0)]
    + [("losses", LossWeights(d_ssim=2.0)), ("first_share", 0.0)],
)
def test_settings_out_of_range_are_named(name, value, own_errors):
    with pytest.raises(ValueError, match=f"{name}.*: got"):
        FitSettings(**{name: value})


def test_unknown_settings_and_formats_are_named(own_errors):
    with pytest.raises(ValueError, match=r"unknown rates\.speed"):
        FitSettings.from_dict({"rates": {"speed": 1.0}})
    with pytest.raises(ValueError, match="preset: got 'tpu'"):
        FitSettings.preset("tpu")  # pyright: ignore[reportArgumentType]
    record = make_record(FitSettings(), NORMALIZER)
    assert read_record(json.loads(json.dumps(record))) == (FitSettings(), NORMALIZER)
    with pytest.raises(ValueError, match="got format 9"):
        read_record({**record, "format": 9})


# ---- the order of frames


def test_every_epoch_shows_every_frame_once():
    order = FrameOrder([5, 3], 1, seed=4)
    assert order.steps_per_epoch == 8
    epochs = []
    for epoch in range(3):
        shown = [order.at(8 * epoch + i) for i in range(8)]
        epochs.append([(group, int(index[0])) for group, index in shown])
        assert sorted(epochs[-1]) == [(0, i) for i in range(5)] + [(1, i) for i in range(3)]
    assert epochs[0] != epochs[1]


def test_the_order_depends_on_seed_and_step_alone():
    first, second = FrameOrder([4], 2, seed=1), FrameOrder([4], 2, seed=1)
    forwards = [first.at(step)[1].tolist() for step in range(20)]
    backwards = [second.at(step)[1].tolist() for step in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert forwards != [FrameOrder([4], 2, seed=2).at(step)[1].tolist() for step in range(20)]


# ---- the optimiser


def test_each_group_has_its_rate_and_its_decay():
    rates = FitSettings().rates
    optimizer = make_optimizer(rates, horizon=10)
    leaves = ("centers", "log_radii", "logit_opacities", "features")
    params = {name: jnp.zeros(2) for name in leaves} | {"shader": {"kernel": jnp.zeros(2)}}
    gradients = jax.tree.map(jnp.ones_like, params)
    state = optimizer.init(params)
    starts = (rates.centers, rates.radii, rates.opacities, rates.features, rates.shader)
    ends = (rates.centers_final, *(rates.others_final,) * 4)
    with jax.numpy_dtype_promotion("standard"):
        for step in range(13):
            # Adam's step for a constant gradient is the rate itself.
            updates, state = optimizer.update(gradients, state, params)
            share = min(step / 10, 1)
            expected = [-a * b**share for a, b in zip(starts, ends, strict=True)]
            found = [updates[name][0] for name in leaves] + [updates["shader"]["kernel"][0]]
            np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_features_beyond_the_base_colour_have_a_rate_of_their_own():
    rates = LearningRates(features=4e-3, features_rest=1e-3)
    params = {"features": jnp.zeros((2, 12))}
    states = []
    for chosen in (rates, LearningRates()):
        optimizer = make_optimizer(chosen, horizon=10)
        states.append(optimizer.init(params))
    with jax.numpy_dtype_promotion("standard"):
        optimizer = make_optimizer(rates, horizon=10)
        gradients = jax.tree.map(jnp.ones_like, params)
        updates, _ = optimizer.update(gradients, states[0], params)
    expected = np.broadcast_to(np.where(np.arange(12) < 3, -4e-3, -1e-3), (2, 12))
    np.testing.assert_allclose(updates["features"], expected, rtol=1e-4)
    # A checkpoint fits whatever the rates are.
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


# ---- relocation


def test_an_edit_moves_rows_of_spheres_and_clears_the_moments_of_fresh_ones():
    edit = Edit(jnp.asarray([0, 2, 2]), jnp.asarray([False, True, False]), jnp.ones(3, bool))
    tree = {
        "centers": jnp.arange(9.0).reshape(3, 3),
        "log_radii": jnp.arange(3.0),
        "shader": {"kernel": jnp.arange(3.0)},
    }
    params = apply_edit(edit, tree, moments=False)
    np.testing.assert_array_equal(params["log_radii"], [0, 2, 2])
    np.testing.assert_array_equal(params["centers"][1], tree["centers"][2])
    np.testing.assert_array_equal(params["shader"]["kernel"], tree["shader"]["kernel"])
    moments = apply_edit(edit, tree, moments=True)
    np.testing.assert_array_equal(moments["log_radii"], [0, 0, 2])
    np.testing.assert_array_equal(moments["centers"][1], np.zeros(3))


def test_only_transparent_and_dead_spheres_move_and_only_onto_visible_ones(key):
    opacities = jax.random.uniform(key, (300,))
    alive = jax.random.bernoulli(key, 0.9, (300,))
    edit = plan_relocation(opacities, alive, Relocation(opacity=0.3, share=1.0), key)
    vacant = np.asarray((opacities < 0.3) | ~alive)
    np.testing.assert_array_equal(edit.fresh, vacant)
    assert not vacant[np.asarray(edit.source)].any()
    np.testing.assert_array_equal(np.asarray(edit.source)[~vacant], np.flatnonzero(~vacant))


def test_the_least_visible_move_first(key):
    opacities = jnp.linspace(0, 1, 100)
    rule = Relocation(opacity=0.5, share=0.1)
    edit = plan_relocation(opacities, jnp.ones(100, bool), rule, key)
    np.testing.assert_array_equal(np.flatnonzero(edit.fresh), np.arange(10))


def test_nothing_moves_where_nothing_is_visible(key):
    edit = plan_relocation(jnp.zeros(5), jnp.ones(5, bool), Relocation(share=1.0), key)
    assert not edit.fresh.any()
    np.testing.assert_array_equal(edit.source, np.arange(5))


def test_a_sphere_and_its_copies_let_through_as_much_light(key):
    count = 50
    opacities = jnp.where(jnp.arange(count) < 10, jnp.linspace(0.3, 0.95, count), 0.001)
    model = SphereModel(
        Spheres.create(
            jax.random.normal(key, (count, 3)),
            jnp.full(count, 0.1),
            opacities,
            jnp.arange(count, dtype=jnp.float32)[:, None] * jnp.ones((1, 3)),
            capacity=60,
        ),
        PlainColor(),
    )
    settings = FitSettings(growth=Relocation(share=1.0, opacity=0.02))
    before = FitState.create(model, settings)
    assert not before.alive.all()
    after = grow(before, settings)
    assert after.alive.all()
    spheres = nnx.merge(nnx.split(model)[0], after.params, {"alive": after.alive}).spheres()
    passed = np.ones(count)
    for row, opacity in zip(spheres.features[:, 0], spheres.opacities, strict=True):
        passed[int(row)] *= 1 - opacity
    np.testing.assert_allclose(passed[:10], 1 - opacities[:10], rtol=1e-4)
    np.testing.assert_array_equal(passed[10:], np.ones(count - 10))


@pytest.mark.parametrize("done", [0, 10, 49, 51, 100, 150])
def test_relocation_waits_for_its_turn(done):
    rule = Relocation(every=50, start=0.1, stop=0.5)
    assert not growth_due(FitSettings(horizon=200, growth=rule), done)
    assert growth_due(FitSettings(horizon=200, growth=rule), 50)
    never = dataclasses.replace(rule, every=0)
    assert not growth_due(FitSettings(horizon=200, growth=never), 50)


# ---- the model


def test_the_model_refuses_spheres_of_another_shader():
    spheres = Spheres.create(np.zeros((1, 3)), np.ones(1), np.ones(1), np.ones((1, 5)))
    with pytest.raises(ValueError, match="5 features, the shader wants 3"):
        SphereModel(spheres, PlainColor())
