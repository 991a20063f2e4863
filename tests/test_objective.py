"""Terms of the objective beyond colour: depth, entropy, view dependence; and masks in each."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxrec import losses
from jaxrec.rendering import render
from jaxrec.train import DepthLoss, FitSettings, LossWeights, make_step, stack_frames
from jaxrec.train.depth import axial_depth, depth_cost
from known_scene import NORMALIZER, SETTINGS, SIZE, begin, cameras, photographs, world_spheres
from test_train import assert_equal_states

WAYS = [
    DepthLoss(1.0, kind, space) for kind in ("l1", "huber") for space in ("metres", "disparity")
]


def images(key, shape=(6, 7)):
    keys = jax.random.split(key)
    return [0.5 + jax.random.uniform(k, (1, *shape)) for k in keys]


def test_huber_is_square_near_and_absolute_far():
    difference = jnp.asarray([[0.05], [-0.1], [0.3], [-2.0]])
    expected = np.mean([0.05**2 / 0.2, 0.1**2 / 0.2, 0.3 - 0.05, 2.0 - 0.05])
    found = losses.huber(difference, jnp.zeros((4, 1)), width=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_entropy_is_largest_at_a_half_and_finite_at_the_ends():
    alive = jnp.asarray([True, True, False])
    half = losses.opacity_entropy(jnp.asarray([0.5, 0.5, 0.1]), alive)
    np.testing.assert_allclose(half, np.log(2), rtol=1e-6)
    ends = jnp.asarray([0.0, 1.0, 0.1])
    value, slope = jax.value_and_grad(losses.opacity_entropy)(ends, alive)
    assert value < 1e-4 and np.isfinite(slope).all() and slope[2] == 0


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.kind}-{way.space}")
def test_depth_has_exact_derivatives(way, key, x64):
    rendered, measured = (image.astype(jnp.float64) for image in images(key))
    mask = jax.random.bernoulli(key, 0.7, rendered.shape)

    def cost(rendered):
        return depth_cost(way, rendered, jnp.ones_like(rendered), measured, mask)

    check_grads(jax.jit(cost), (rendered,), 1, modes=["rev"])


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.kind}-{way.space}")
def test_depth_counts_only_where_it_is_known_wanted_and_rendered(way, key):
    rendered, measured = images(key)
    alpha = jnp.ones_like(rendered).at[0, 0].set(0.0)
    rendered = rendered.at[0, 0].set(0.0)
    measured = measured.at[0, 1].set(0.0).at[0, 2].set(jnp.nan).at[0, 3].set(jnp.inf)
    mask = jnp.ones(rendered.shape, bool).at[0, 4].set(False)
    value, slope = jax.value_and_grad(lambda r: depth_cost(way, r, alpha, measured, mask))(rendered)
    assert np.isfinite(value) and not np.any(slope[0, :5]) and np.all(slope[0, 5] != 0)
    # All that is left is the last row.
    last = depth_cost(way, rendered[:, 5:], alpha[:, 5:], measured[:, 5:], None)
    np.testing.assert_allclose(value, last, rtol=1e-6)
    nothing = depth_cost(way, rendered, alpha, jnp.zeros_like(measured), None)
    assert nothing == 0


@pytest.mark.parametrize("name", ["energy", "huber"])
def test_masked_pixels_have_no_gradient(name, key):
    difference = {
        "energy": lambda image, mask: losses.energy(image, mask),
        "huber": lambda image, mask: losses.huber(image, jnp.zeros_like(image), mask, width=0.1),
    }[name]
    image = jax.random.normal(key, (5, 6, 3))
    mask = jax.random.bernoulli(key, 0.5, (5, 6))
    slope = np.asarray(jax.grad(difference)(image, mask))
    assert not slope[~mask].any() and slope[mask].all()


def test_depth_along_the_axis_is_that_of_projection():
    camera = cameras(1)[0]
    points = jnp.asarray([[1.2, -1.9, 0.4], [0.8, -2.4, 0.9]])
    pixels, depth = camera.project(points)
    distance = jnp.linalg.norm(points - camera.world_from_camera[:3, 3][None], axis=-1)
    stack = jax.tree.map(lambda leaf: leaf[None], camera)
    ratio = axial_depth(jnp.ones((1, SIZE, SIZE)), stack)[0]
    # Within a pixel, the ratio changes by less than a percent.
    column, row = np.asarray(pixels).astype(int).T
    np.testing.assert_allclose(distance * ratio[row, column], depth, rtol=1e-2)


# ---- in a step

REGULARISED = LossWeights(d_ssim=0.0, mse=0.5, entropy=0.01, view=0.1, opacity=0.01)
WITH_DEPTH = dataclasses.replace(
    SETTINGS,
    losses=REGULARISED,
    depth=DepthLoss(weight=0.5),
    shader="plain",
)


@pytest.fixture(scope="module")
def measured():
    """The photographs with their depths in metres along the axis."""
    made = []
    for frame in photographs(cameras(3)):
        seen = render(world_spheres(), frame.camera, near=0.06, far=3000.0)
        stack = jax.tree.map(lambda leaf: leaf[None], frame.camera)
        # Of what is there: a camera sees no depth where it sees hardly anything.
        there = np.asarray(seen.alpha) > 0.3
        depth = np.array(axial_depth(seen.depth[None], stack)[0])
        depth = np.where(there, depth, 0).astype(np.float32)
        made.append(dataclasses.replace(frame, depth=depth))
    return made


def one_step(frames, settings=WITH_DEPTH):
    [stack] = stack_frames(frames, NORMALIZER)
    step = make_step(settings, NORMALIZER)
    return step(begin(frames, settings, 0.02), stack, jnp.asarray([1]))


def test_true_depths_cost_nothing_and_are_in_metres(measured):
    [stack] = stack_frames(measured, NORMALIZER)
    step = make_step(WITH_DEPTH, NORMALIZER)
    _, metrics = step(begin(measured, WITH_DEPTH), stack, jnp.asarray([1]))
    assert metrics["depth"] < 1e-4
    farther = [dataclasses.replace(f, depth=f.depth + np.float32(f.depth > 0)) for f in measured]
    [stack] = stack_frames(farther, NORMALIZER)
    _, metrics = step(begin(measured, WITH_DEPTH), stack, jnp.asarray([1]))
    assert abs(metrics["depth"] - 1) < 1e-3
    total = 0.5 * metrics["l1"] + 0.5 * metrics["mse"] + 0.01 * metrics["entropy"]
    total += 0.01 * metrics["opacity"] + 0.5 * metrics["depth"]
    np.testing.assert_allclose(metrics["loss"], total, rtol=1e-5)


def test_masks_hold_for_every_term(measured):
    mask = np.zeros((SIZE, SIZE), bool)
    mask[:, :20] = True
    spoiled = []
    for frame in measured:
        image, depth = frame.image.copy(), frame.depth.copy()
        image[~mask], depth[~mask] = 0.7, 123.0
        spoiled.append(dataclasses.replace(frame, image=image, depth=depth, mask=mask))
    masked = [dataclasses.replace(frame, mask=mask) for frame in measured]
    assert_equal_states(one_step(spoiled)[0], one_step(masked)[0])


def test_frames_without_depth_take_part_without_it(measured):
    some = [measured[0], dataclasses.replace(measured[1], depth=None), measured[2]]
    assert one_step(some)[1]["depth"] == 0
    none = [dataclasses.replace(frame, depth=None) for frame in measured]
    assert "depth" not in one_step(none)[1]


@pytest.mark.parametrize("name, value", [("weight", -1.0), ("space", "miles"), ("width", 0.0)])
def test_settings_out_of_range_are_named(name, value, own_errors):
    with pytest.raises(ValueError, match=f"depth.{name}: got"):
        DepthLoss(**{name: value})
    with pytest.raises(ValueError, match="losses.mse: got 2.0"):
        FitSettings(losses=LossWeights(mse=2.0))


def test_spheres_too_small_to_be_seen_have_no_gradient_of_depth():
    [frame, *_] = photographs(cameras(1))

    def depth(log_radius):
        spheres = world_spheres()
        tiny = jnp.full_like(spheres.radii, jnp.exp(log_radius))
        spheres = dataclasses.replace(spheres, radii=tiny)
        seen = render(spheres, frame.camera, near=0.06, far=3000.0)
        # What is not compared has a cotangent of 0, which times infinity is not.
        return jnp.where(seen.alpha > 0.05, seen.depth, 1).sum()

    for log_radius in (-25.0, -40.0):
        assert jax.grad(depth)(log_radius) == 0
