"""Training: a scene of 32 x 32 pixels is recovered, and every rerun ends with the same bits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.io import Checkpoints
from jaxrec.rendering import render
from jaxrec.scene import Spheres
from jaxrec.sensors import Frame, PinholeCamera, look_at
from jaxrec.shading import PlainColor
from jaxrec.train import (
    MCMC,
    Backdrop,
    FitSettings,
    FitState,
    LossWeights,
    NoGrowth,
    Relocation,
    SceneNormalizer,
    evaluate,
    fit,
    initial_spheres,
    make_record,
    make_step,
    read_record,
    stack_frames,
    start,
)

SIZE = 32
CENTER = np.array([2.0, -1.0, 0.5])
SMALL = FitSettings(
    steps=30,
    horizon=100,
    spheres=100,
    shader="plain",
    progress_every=10,
    growth=Relocation(every=7, start=0.05, opacity=0.2),
)


def camera_at(angle, elevation=0.4, size=(SIZE, SIZE)):
    away = np.array([np.cos(angle), np.sin(angle), elevation])
    eye = CENTER + 3 * away / np.linalg.norm(away)
    return PinholeCamera(
        look_at(eye.astype(np.float32), CENTER.astype(np.float32), np.float32([0, 0, 1])),
        focal=jnp.full(2, 40.0),
        principal=jnp.asarray([size[0] / 2, size[1] / 2], jnp.float32),
        width=size[0],
        height=size[1],
    )


def photograph(camera, *, alpha=True, mask=None):
    """A frame of three large opaque spheres: red, green and blue."""
    offsets = np.float32([[0.5, 0, 0], [-0.3, 0.4, 0], [-0.2, -0.3, 0.3]])
    scene = Spheres.create(
        CENTER.astype(np.float32) + offsets,
        np.float32([0.4, 0.35, 0.3]),
        np.float32([1, 1, 1]),
        np.eye(3, dtype=np.float32),
    )
    # Of a Pulsar-like softness that makes the spheres solid balls with a thin soft rim.
    seen = render(scene, camera, near=0.1, far=10.0, kind="softmax", gamma=1e-2)
    cover = np.clip(np.asarray(seen.alpha), 0, 1)
    color = np.where(cover[..., None] > 0.5, np.asarray(seen.features), 0).astype(np.float32)
    cover = (cover > 0.5).astype(np.float32)
    return Frame(camera, np.clip(color, 0, 1), cover if alpha else None, mask)


@pytest.fixture(scope="module")
def frames():
    return [photograph(camera_at(angle, 0.3 + 0.1 * angle)) for angle in np.arange(7)]


@pytest.fixture(scope="module")
def normalizer(frames):
    return SceneNormalizer.from_cameras([frame.camera for frame in frames])


@pytest.fixture(scope="module")
def fitted(frames):
    return fit(frames, SMALL)


def assert_equal_states(found, expected):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        np.testing.assert_array_equal(ours, theirs)


# ---- fit


def test_views_that_were_held_out_are_predicted(frames, fitted):
    held_out = [photograph(camera_at(angle + 0.5)) for angle in range(3)]
    before = fit(frames, dataclasses.replace(SMALL, steps=1))
    first = [score.psnr for score in evaluate(before, held_out)]
    last = [score.psnr for score in evaluate(fitted, held_out)]
    # From the coarse hull on, thirty steps take more than a third of the squared error.
    assert np.mean(last) > np.mean(first) + 2
    assert all(0 < score.ssim <= 1 and 0 < score.flip < 0.5 for score in evaluate(fitted, held_out))


def test_a_rerun_gives_the_same_bits(frames, fitted):
    assert_equal_states(fit(frames, SMALL).state, fitted.state)


@pytest.mark.parametrize("stop", [1, 29])
def test_resuming_from_a_checkpoint_gives_the_same_bits(frames, fitted, stop, tmp_path):
    # The first run knows only of fewer steps; the second raises them.
    short = dataclasses.replace(SMALL, steps=stop)
    first = fit(frames, short)
    record = make_record(short, first.normalizer)
    Checkpoints(tmp_path).save(stop, first.state, record)

    found = Checkpoints(tmp_path).restore(lambda r: FitState.template(read_record(r)[0]))
    settings, normalizer = read_record(found.record)
    assert normalizer == first.normalizer and int(found.tree.step) == stop
    settings = dataclasses.replace(settings, steps=SMALL.steps)
    resumed = fit(frames, settings, state=found.tree, normalizer=normalizer)
    assert_equal_states(resumed.state, fitted.state)


def test_callbacks_see_every_step_and_can_stop(frames):
    steps, reports = [], []
    result = fit(
        frames,
        SMALL,
        on_step=lambda done, state: steps.append((done, int(state.step))),
        on_progress=lambda done, metrics: reports.append((done, metrics)),
        should_stop=lambda: len(steps) == 13,
    )
    assert steps == [(i, i) for i in range(1, 14)] and int(result.state.step) == 13
    assert [done for done, _ in reports] == [10, 13]
    assert {"loss", "l1", "d_ssim", "psnr", "spheres"} == set(reports[0][1])
    assert all(isinstance(value, float) for value in reports[0][1].values())


def test_a_step_neither_reads_back_nor_leaves_the_old_state_alive(frames, normalizer):
    state, _ = start(frames, SMALL, normalizer)
    [stack] = stack_frames(frames, normalizer)
    step = make_step(SMALL, normalizer)
    index = jnp.zeros(1, jnp.int32)
    state, _ = step(state, stack, index)
    with jax.transfer_guard("disallow"):
        after, metrics = step(state, stack, index)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    assert isinstance(metrics["loss"], jax.Array) and np.isfinite(metrics["loss"])
    assert int(after.step) == 2


# Each of them differs from SMALL in several settings: compiling is what takes the time.
VARIANTS = {
    "harmonics, two views": {"shader": "harmonics", "view_start": 0.0, "views_per_step": 2},
    "mlp, 8-bit images": {"shader": "mlp", "view_start": 0.0, "compact_images": True},
    "softmax, black": {
        "kind": "softmax",
        "gamma": 0.05,
        "backdrop": Backdrop(kind="constant"),
        "background": (0.0, 0.0, 0.0),
    },
    "u-net, penalised view dependence": {
        "image_shader": "unet",
        "view_start": 0.0,
        "losses": LossWeights(view=0.1),
    },
    "mcmc, few at the start": {
        "growth": MCMC(every=4, start=0.0, stop=1.0),
        "first_share": 0.5,
        "losses": LossWeights(opacity=0.01, radius=0.01),
    },
    "regularised, no relocation": {
        "losses": LossWeights(d_ssim=0.0, opacity=0.01, radius=0.01),
        "growth": NoGrowth(),
        "initialization": "random",
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns(frames, variant):
    settings = dataclasses.replace(SMALL, steps=20, progress_every=1, **VARIANTS[variant])
    losses = []
    result = fit(frames, settings, on_progress=lambda _, metrics: losses.append(metrics["loss"]))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    for leaf in jax.tree.leaves(result.state.params):
        assert np.all(np.isfinite(leaf))


def test_images_of_several_sizes_and_without_alpha_are_fitted_together(frames):
    wide = [photograph(camera_at(a, size=(40, 24)), alpha=False) for a in (0.2, 1.4, 2.5)]
    result = fit([*frames[:3], *wide], dataclasses.replace(SMALL, steps=6))
    assert int(result.state.step) == 6


def test_a_single_view_is_enough_to_run(frames):
    result = fit(frames[:1], dataclasses.replace(SMALL, steps=2))
    assert np.all(np.isfinite(result.state.params["centers"]))


def test_masked_pixels_have_no_influence(frames):
    mask = np.ones((SIZE, SIZE), bool)
    mask[10:20, 12:22] = False
    masked = [dataclasses.replace(frame, mask=mask) for frame in frames]
    spoiled = []
    for frame in masked:
        image = frame.image.copy()
        image[~mask] = 0.123
        spoiled.append(dataclasses.replace(frame, image=image))
    # Where to start may be guessed from neighbouring pixels: start both from the same.
    settings = dataclasses.replace(SMALL, steps=3)
    results = []
    for some in (masked, spoiled):
        state, normalizer = start(masked, settings)
        results.append(fit(some, settings, state=state, normalizer=normalizer))
    assert_equal_states(results[0].state, results[1].state)


def test_what_cannot_be_fitted_is_named(frames, normalizer):
    with pytest.raises(ValueError, match="frames: got none"):
        fit([], SMALL)
    nothing = dataclasses.replace(frames[0], mask=np.zeros((SIZE, SIZE), bool))
    with pytest.raises(ValueError, match="leave no pixel"):
        fit([nothing], SMALL)
    state, _ = start(frames, SMALL, normalizer)
    with pytest.raises(ValueError, match="normalizer: got none with a state"):
        fit(frames, SMALL, state=state)


# ---- evaluation and the scene in the world


def test_a_scene_is_seen_alike_in_the_world_and_in_its_own_coordinates(frames, fitted):
    camera = frames[0].camera
    ours = fitted.render(camera, (0.1, 0.2, 0.3))
    world = render(
        fitted.spheres(),
        camera,
        near=fitted.normalizer.near / fitted.normalizer.scale,
        far=fitted.normalizer.far / fitted.normalizer.scale,
    )
    background = np.float32([0.1, 0.2, 0.3])
    color = np.asarray(world.features) + (1 - np.asarray(world.alpha))[..., None] * background
    # The similarity rounds positions by float32's 6e-8 of 3 m, which edges of about 1 cm amplify.
    np.testing.assert_allclose(ours.color, color, atol=2e-3)
    seen = np.asarray(world.alpha) > 0.9
    np.testing.assert_allclose(np.asarray(ours.depth)[seen], world.depth[seen], rtol=1e-3)


def test_scores_honour_masks(frames, fitted):
    mask = np.zeros((SIZE, SIZE), bool)
    mask[8:24, 8:24] = True
    image = frames[0].image.copy()
    image[~mask] = 1 - image[~mask]
    spoiled = dataclasses.replace(frames[0], image=image, mask=mask)
    clean = dataclasses.replace(frames[0], mask=mask)
    [first], [second] = evaluate(fitted, [spoiled]), evaluate(fitted, [clean])
    assert (first.psnr, first.flip) == (second.psnr, second.flip)


# ---- where a fit starts


def test_an_object_starts_inside_its_hull(frames, normalizer):
    spheres = initial_spheres(frames, normalizer, SMALL, PlainColor(), jax.random.key(0))
    assert spheres.centers.shape == (100, 3) and bool(spheres.alive.all())
    outside = 0
    for frame in frames:
        pixels, _ = normalizer.scene_camera(frame.camera).project(spheres.centers)
        column, row = np.asarray(pixels).astype(int).T
        assert frame.alpha is not None
        outside += (frame.alpha[row, column] == 0).sum()
    assert outside <= 0.02 * 100 * len(frames)


def test_first_colors_are_those_of_allowed_pixels(frames, normalizer):
    mask = np.zeros((SIZE, SIZE), bool)
    mask[:, : SIZE // 2] = True
    painted = []
    for frame in frames:
        image = np.where(mask[..., None], np.float32([0.25, 0.5, 0.75]), np.float32(0))
        painted.append(dataclasses.replace(frame, image=image, mask=mask))
    spheres = initial_spheres(painted, normalizer, SMALL, PlainColor(), jax.random.key(0))
    np.testing.assert_array_equal(
        spheres.features, np.broadcast_to(np.float32([0.25, 0.5, 0.75]), (100, 3))
    )


def test_depths_are_found_where_views_agree(normalizer):
    # A textured plane through the scene's origin: its depth is known for every ray.
    cameras = [camera_at(0.0, elevation) for elevation in np.linspace(0.5, 1.2, 8)]
    texture = jax.random.uniform(jax.random.key(3), (40, 40, 3))
    made = [Frame(camera, _photograph_plane(camera, texture)) for camera in cameras]
    settings = dataclasses.replace(SMALL, spheres=200)
    errors = {}
    for way in ("consistent", "random"):
        chosen = dataclasses.replace(settings, initialization=way)
        spheres = initial_spheres(made, normalizer, chosen, PlainColor(), jax.random.key(0))
        height = np.asarray(spheres.centers)[:, 2] / normalizer.scale + normalizer.center[2]
        errors[way] = np.median(np.abs(height - CENTER[2]))
    assert errors["consistent"] < 0.5 * errors["random"]


def _photograph_plane(camera, texture):
    """Colours of the plane z = CENTER[2], in bilinear cells of 10 cm."""
    rays = camera.rays()
    origins, directions = np.asarray(rays.origins), np.asarray(rays.directions)
    distance = (CENTER[2] - origins[..., 2]) / directions[..., 2]
    place = (origins + distance[..., None] * directions)[..., :2] - CENTER[:2]
    place = np.clip(place / 0.1 + 20, 0, 38.999)
    cell, part = place.astype(int), place % 1
    values = np.asarray(texture)
    color = 0.0
    for i in (0, 1):
        for j in (0, 1):
            weight = np.abs(1 - i - part[..., :1]) * np.abs(1 - j - part[..., 1:])
            color = color + weight * values[cell[..., 0] + i, cell[..., 1] + j]
    return np.asarray(color, np.float32)


def test_the_template_has_the_shape_of_a_state(fitted):
    template = FitState.template(SMALL)
    assert jax.tree.structure(template) == jax.tree.structure(fitted.state)
    for wanted, leaf in zip(jax.tree.leaves(template), jax.tree.leaves(fitted.state), strict=True):
        assert (wanted.shape, wanted.dtype) == (leaf.shape, leaf.dtype)


class Cloud:
    """Points on the plane z = CENTER[2], red in one half."""

    def __init__(self, count):
        place = np.random.default_rng(0).uniform(-1, 1, (count, 3)).astype(np.float32)
        place[:, 2] = 0
        self.positions = CENTER.astype(np.float32) + place
        self.colors = np.where(place[:, :1] > 0, np.float32([1, 0, 0]), np.float32([0, 0, 1]))


@pytest.mark.parametrize("known", [5, 40, 400])
def test_known_points_come_first(frames, normalizer, known):
    cloud = Cloud(known)
    settings = dataclasses.replace(SMALL, first_share=0.8)
    spheres = {
        way: initial_spheres(
            frames,
            normalizer,
            dataclasses.replace(settings, initialization=way),
            PlainColor(),
            jax.random.key(0),
            cloud,
        )
        for way in ("points", "auto", "consistent")
    }
    assert all(int(found.alive.sum()) == 80 for found in spheres.values())
    wanted = normalizer.scene_points(cloud.positions)
    taken = min(known, 80)
    first = np.asarray(spheres["points"].centers)[:taken]
    distance = np.linalg.norm(first[:, None] - wanted[None], axis=-1)
    assert distance.min(axis=1).max() < 1e-6
    # Each point once, in its own colour.
    nearest = distance.argmin(axis=1)
    assert len(set(nearest)) == taken
    np.testing.assert_array_equal(spheres["points"].features[:taken], cloud.colors[nearest])
    # Five are too few to start from.
    chosen = "points" if known > 5 else "consistent"
    np.testing.assert_array_equal(spheres["auto"].centers, spheres[chosen].centers)


def test_levels_that_leave_no_image_are_named(frames, normalizer):
    deep = dataclasses.replace(SMALL, coarse_levels=8)
    with pytest.raises(ValueError, match="coarse_levels: got 8 for images of"):
        start(frames, deep, normalizer)


def test_points_that_are_wanted_and_missing_are_named(frames, normalizer):
    wanting = dataclasses.replace(SMALL, initialization="points")
    with pytest.raises(ValueError, match="initialization: got points, but the capture has none"):
        start(frames, wanting, normalizer)
    far = Cloud(50)
    far.positions = far.positions + np.float32(1e6)
    with pytest.raises(ValueError, match="initialization: got points"):
        start(frames, wanting, normalizer, points=far)
