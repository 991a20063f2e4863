"""Refinement of cameras: its maps, its gauge, what it recovers, and what it writes."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from derivatives import assert_exact_derivatives
from jaxrec.data.camera_file import cameras_document, read_cameras
from jaxrec.geometry import rigid_from_twist
from jaxrec.io import Checkpoints
from jaxrec.train import (
    Calibration,
    CameraRefinement,
    FittedScene,
    LearningRates,
    evaluate,
    fit,
    make_record,
    make_step,
    stack_frames,
    state_template,
)
from jaxrec.train.refinement import common_motion, gauge, moved_camera
from jaxrec.train.rows import Rows
from known_scene import IMAGES, NORMALIZER, SETTINGS, begin, cameras, photographs
from test_train import assert_equal_states

# ---- twists


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-3, 0.5, 0.999, 1.001, 3.0, 7.0])
def test_a_twist_is_the_matrix_exponential(x64, angle):
    x, y, z = turn = angle * np.array([2.0, -1.0, 2.0]) / 3
    matrix = np.zeros((4, 4))
    matrix[:3, :3] = [[0, -z, y], [z, 0, -x], [-y, x, 0]]
    matrix[:3, 3] = shift = np.array([0.3, -2.0, 1.1])
    found = jax.jit(rigid_from_twist)(jnp.asarray(np.concatenate([turn, shift])))
    np.testing.assert_allclose(found, expm(matrix), atol=2e-13)


@pytest.mark.parametrize("size", [0.0, 0.3, 1.5])
def test_twists_have_exact_derivatives(x64, size):
    twist = size * jnp.asarray(np.random.default_rng(1).normal(size=6))
    assert_exact_derivatives(rigid_from_twist, twist)


def placed(some):
    return [NORMALIZER.scene_camera(camera) for camera in some]


def stack(some):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *some)


def test_thirty_thousand_changes_of_a_twist_leave_a_rotation(key):
    steps = 1e-3 * jax.random.normal(key, (30_000, 1, 6))
    wanted = stack(placed(cameras(1)))

    def step(twist, change):
        pose = moved_camera(wanted, twist).world_from_camera
        columns = jnp.swapaxes(pose[0, :3, :3], 0, 1)
        gram = (columns[:, None] * columns[None]).sum(-1)
        return twist + change, jnp.abs(gram - jnp.eye(3)).max()

    twist, errors = jax.jit(lambda: jax.lax.scan(step, jnp.zeros((1, 6)), steps))()
    assert np.linalg.norm(twist) > 0.1
    # A few roundings of products of rotations, at the last step as at the first.
    assert np.max(errors) < 1e-6


def test_a_camera_turns_about_itself(key):
    [camera] = placed(cameras(1))
    twist = jnp.asarray([[0.1, -0.2, 0.3, 0.0, 0.0, 0.0]])
    moved = moved_camera(stack([camera]), twist).world_from_camera[0]
    np.testing.assert_array_equal(moved[:3, 3], camera.world_from_camera[:3, 3])
    x, y, z = 0.1, -0.2, 0.3
    turn = expm(np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]))
    np.testing.assert_allclose(moved[:3, :3], turn @ camera.world_from_camera[:3, :3], atol=1e-6)


# ---- the gauge


def test_motions_of_the_whole_rig_are_taken_off():
    basis = gauge(placed(cameras()))
    turn, shift, size = np.array([0.02, -0.01, 0.03]), np.array([0.1, 0.2, -0.1]), 0.05
    centers = np.stack([np.asarray(c.world_from_camera)[:3, 3] for c in placed(cameras())])
    motion = np.cross(turn, centers) + shift + size * centers
    twists = np.concatenate([np.broadcast_to(turn, motion.shape), motion], axis=1)
    twists = jnp.asarray(twists, jnp.float32)
    np.testing.assert_allclose(common_motion(twists, jnp.asarray(basis)), twists, atol=1e-6)
    other = jax.random.normal(jax.random.key(0), (IMAGES, 6))
    rest = other - common_motion(other, jnp.asarray(basis))
    np.testing.assert_allclose(common_motion(rest, jnp.asarray(basis)), 0, atol=1e-5)
    assert np.abs(rest).max() > 0.1


def test_a_single_camera_stays_where_it_is(key):
    basis = jnp.asarray(gauge(placed(cameras(1))))
    twist = jax.random.normal(key, (1, 6))
    np.testing.assert_allclose(common_motion(twist, basis), twist, atol=1e-5)


# ---- recovery


def perturbed(camera, generator):
    """The camera turned by 1 degree and moved by 2 % of its distance, in random directions."""
    turn, shift = generator.normal(size=(2, 3))
    turn *= np.deg2rad(1.0) / np.linalg.norm(turn)
    shift *= 0.06 / np.linalg.norm(shift)
    pose = np.array(camera.world_from_camera)
    rotation = np.asarray(rigid_from_twist(jnp.asarray([*turn, 0, 0, 0], jnp.float32)))[:3, :3]
    pose[:3, :3] = rotation @ pose[:3, :3]
    pose[:3, 3] += shift
    return dataclasses.replace(camera, world_from_camera=jnp.asarray(pose))


def aligned_errors(found, truth):
    """Angles in degrees and distances in metres, after the similarity that suits best."""
    a, b = (
        np.stack([np.asarray(c.world_from_camera, np.float64) for c in s]) for s in (found, truth)
    )
    left, _, right = np.linalg.svd(np.einsum("nij,nkj->ik", b[:, :3, :3], a[:, :3, :3]))
    turn = left @ right
    places, wanted = a[:, :3, 3] @ turn.T, b[:, :3, 3]
    places, wanted = places - places.mean(0), wanted - wanted.mean(0)
    places = places * (places * wanted).sum() / (places * places).sum()
    relative = np.einsum("nji,njk->nik", turn @ a[:, :3, :3], b[:, :3, :3])
    angle = np.arccos(np.clip((np.trace(relative, axis1=1, axis2=2) - 1) / 2, -1, 1))
    return np.rad2deg(angle), np.linalg.norm(places - wanted, axis=1)


# Spheres that start close to the truth must not outrun the cameras.
SLOW = dataclasses.replace(
    SETTINGS,
    steps=1000,
    horizon=1000,
    rates=LearningRates(others_final=0.01, opacities=5e-3, radii=3e-3),
)
POSED = dataclasses.replace(SLOW, cameras=CameraRefinement(poses=8e-3, start=0.0))


@pytest.fixture(scope="module")
def truth():
    return photographs(cameras())


@pytest.fixture(scope="module")
def shaken(truth):
    generator = np.random.default_rng(5)
    return [dataclasses.replace(f, camera=perturbed(f.camera, generator)) for f in truth]


def fit_known(frames, settings):
    return fit(frames, settings, state=begin(frames, settings, 0.01), normalizer=NORMALIZER)


@pytest.fixture(scope="module")
def posed(shaken):
    return fit_known(shaken, POSED)


@pytest.mark.slow
def test_poses_are_recovered(truth, shaken, posed):
    wanted = [frame.camera for frame in truth]
    before = aligned_errors([frame.camera for frame in shaken], wanted)
    after = aligned_errors(posed.cameras(shaken), wanted)
    for first, last in zip(before, after, strict=True):
        assert last.mean() < 0.25 * first.mean()
    for camera in posed.cameras(shaken):
        rotation = np.asarray(camera.world_from_camera, np.float64)[:3, :3]
        np.testing.assert_allclose(rotation.T @ rotation, np.eye(3), atol=1e-6)


@pytest.mark.slow
def test_the_rig_as_a_whole_stays(shaken, posed):
    twists = posed.state.calibration.poses.twists.values
    assert np.any(twists)
    basis = gauge(placed([frame.camera for frame in shaken]))
    applied = twists - common_motion(twists, jnp.asarray(basis))
    np.testing.assert_allclose(np.einsum("nik,ni->k", basis, applied), 0, atol=1e-6)


@pytest.mark.slow
def test_resuming_gives_the_same_bits(shaken, posed, tmp_path):
    first = fit_known(shaken, dataclasses.replace(POSED, steps=30))
    record = make_record(first.settings, first.normalizer, len(shaken))
    Checkpoints(tmp_path).save(30, first.state, record)
    found = Checkpoints(tmp_path).restore(state_template)
    resumed = fit(shaken, POSED, state=found.tree, normalizer=NORMALIZER)
    assert_equal_states(resumed.state, posed.state)


@pytest.mark.slow
def test_a_focal_length_is_recovered_and_serves_held_out_views(truth):
    def zoomed(frames, factor):
        cameras = [dataclasses.replace(f.camera, focal=factor * f.camera.focal) for f in frames]
        both = zip(frames, cameras, strict=True)
        return [dataclasses.replace(frame, camera=camera) for frame, camera in both]

    refinement = CameraRefinement(focal=2e-3, start=0.0)
    settings = dataclasses.replace(SLOW, cameras=refinement)
    wrong = zoomed(truth, 1.03)
    result = fit_known(wrong, settings)
    found = np.asarray([camera.focal for camera in result.cameras(wrong)])
    np.testing.assert_allclose(found, 44.0, rtol=0.005)
    assert np.all(found == found[0])
    held_out = photographs(cameras(3, 0.4))
    # Another lens than that of the fit is left as it is stated.
    right, wrong = (
        np.mean([score.psnr for score in evaluate(result, zoomed(held_out, factor))])
        for factor in (1.03, 1.0301)
    )
    assert right > wrong + 3


# ---- one step


@pytest.mark.parametrize("lenses", ["shared", "each"])
def test_a_step_moves_what_has_a_rate_once_it_is_time(truth, lenses):
    refinement = CameraRefinement(
        poses=1e-3, focal=1e-3, distortion=1e-3, lenses=lenses, start=1 / 400
    )
    settings = dataclasses.replace(SETTINGS, cameras=refinement)
    [frames] = stack_frames(truth, NORMALIZER)
    step = make_step(settings, NORMALIZER)
    state = begin(truth, settings)
    state, _ = step(state, frames, jnp.asarray([2]))
    learned = state.calibration
    assert learned.poses is not None and learned.lenses is not None
    assert not np.any(learned.poses.twists.values) and not np.any(learned.lenses.changes.values)
    state, _ = step(state, frames, jnp.asarray([2]))
    learned = state.calibration
    assert learned.poses is not None and learned.lenses is not None
    assert np.flatnonzero(np.any(learned.poses.twists.values, axis=1)).tolist() == [2]
    changed = np.asarray(learned.lenses.changes.values)
    row = {"shared": 0, "each": 2}[lenses]
    assert np.flatnonzero(changed.any(axis=1)).tolist() == [row]
    assert changed[row, 0] != 0 and changed[row, 3:].all() and not changed[row, 1:3].any()


def test_a_lens_is_known_again():
    refinement = CameraRefinement(focal=1e-3, distortion=1e-3)
    settings = dataclasses.replace(SETTINGS, cameras=refinement)
    some = cameras()
    some[3] = dataclasses.replace(some[3], focal=jnp.full(2, 50.0))
    learned = Calibration.create(placed(some), settings)
    assert learned.lenses is not None
    np.testing.assert_array_equal(learned.lenses.rows, [0, 0, 0, 3, 0, 0, 0, 0])
    change = jnp.zeros((IMAGES, 8)).at[0, 0].set(0.1).at[3, 3].set(0.2)
    learned = Calibration(lenses=dataclasses.replace(learned.lenses, changes=Rows.create(change)))
    first = learned.lens_of(settings, some[5])
    np.testing.assert_allclose(first.focal, 44 * np.exp(0.1), rtol=1e-6)
    third = learned.lens_of(settings, some[3])
    np.testing.assert_allclose(third.focal, 50)
    np.testing.assert_allclose(third.distortion, np.float32([0.2, 0, 0, 0, 0]))
    other = dataclasses.replace(some[0], focal=jnp.full(2, 45.0))
    assert learned.lens_of(settings, other) is other


def test_refined_cameras_are_read_as_they_were_written(tmp_path):
    some = cameras(3)
    lens = jnp.asarray([0.1, -0.02, 1e-3, 2e-3, 0.01])
    some[1] = dataclasses.replace(some[1], distortion=lens, principal=jnp.asarray([15.0, 17.5]))
    file = tmp_path / "cameras.json"
    file.write_text(json.dumps(cameras_document(some, ["a.png", "b.png", "c.png"])))
    for camera, found in zip(some, read_cameras(file, cameras(1)[0]), strict=True):
        for name in ("world_from_camera", "focal", "principal"):
            np.testing.assert_allclose(getattr(found, name), getattr(camera, name), atol=2e-6)
        expected = np.zeros(5) if camera.distortion is None else camera.distortion
        np.testing.assert_allclose(found.distortion, expected, atol=1e-7)
        assert (found.width, found.height) == (camera.width, camera.height)


def test_cameras_that_were_not_refined_are_those_of_the_capture():
    frames = photographs(cameras(2))
    scene = FittedScene(begin(frames, SETTINGS), SETTINGS, NORMALIZER)
    assert not scene.refined
    for camera, frame in zip(scene.cameras(frames), frames, strict=True):
        for ours, theirs in zip(
            jax.tree.leaves(camera), jax.tree.leaves(frame.camera), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("name, value", [("poses", -1.0), ("start", 1.0), ("lenses", "none")])
def test_settings_out_of_range_are_named(name, value, own_errors):
    with pytest.raises(ValueError, match=f"cameras.{name}: got"):
        CameraRefinement(**{name: value})
