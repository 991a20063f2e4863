"""What changes in the course of a fit: resolution, softness, and the least size of spheres."""

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
    Backdrop,
    FitSettings,
    FitState,
    SceneNormalizer,
    SphereModel,
    bound_due,
    bound_radii,
    fit,
    reduce_stack,
    reduction,
    sharpest_pixels,
    stack_frames,
)
from jaxrec.train.model import softness

NORMALIZER = SceneNormalizer((0.0, 0.0, 0.0), 1.0)


def camera_at(distance, focal=40.0, size=(32, 24)):
    return PinholeCamera(
        look_at(np.float32([0, 0, -distance]), np.zeros(3, np.float32), np.float32([0, 1, 0])),
        np.full(2, focal, np.float32),
        np.float32([size[0] / 2, size[1] / 2]),
        width=size[0],
        height=size[1],
    )


# ---- resolution


def test_images_become_whole_level_by_level():
    settings = FitSettings(horizon=100, coarse_levels=2, coarse_until=0.4)
    assert [reduction(settings, step) for step in (0, 19, 20, 39, 40, 99)] == [4, 4, 2, 2, 1, 1]
    assert reduction(FitSettings(horizon=100), 0) == 1
    assert reduction(FitSettings(horizon=100, coarse_levels=3, coarse_until=0.0), 0) == 1


@pytest.mark.parametrize("compact", [False, True])
def test_a_reduced_stack_is_what_a_smaller_camera_sees(compact):
    random = np.random.default_rng(0)
    camera = camera_at(2.0, size=(33, 26))
    alpha = random.uniform(0, 1, (26, 33)).astype(np.float32)
    alpha[:4, :4] = 0
    mask = np.ones((26, 33), bool)
    mask[0, 9] = False
    frame = Frame(camera, random.uniform(0, 1, (26, 33, 3)).astype(np.float32), alpha, mask)
    [stack] = stack_frames([frame], NORMALIZER, compact=compact)
    small = reduce_stack(stack, 4)
    assert small.images.shape == (1, 6, 8, 3) and small.images.dtype == stack.images.dtype
    # A pixel is a mean of what is seen, whatever is behind it.
    for background in (0.0, 1.0):
        seen = frame.over((background,) * 3)[:24, :32].reshape(6, 4, 8, 4, 3).mean(axis=(1, 3))
        unit = 255 if compact else 1
        assert small.alphas is not None and small.masks is not None
        cover = np.asarray(small.alphas[0], np.float64)[..., None] / unit
        color = np.asarray(small.images[0], np.float64) / unit
        tolerance = 2.5 / 255 if compact else 1e-5
        np.testing.assert_allclose(color * cover + background * (1 - cover), seen, atol=tolerance)
    assert not small.masks[0, 0, 2] and small.masks.sum() == 47
    # Rays through the corners of reduced pixels are rays of the original.
    corners = jnp.asarray([[0.0, 0.0], [3.0, 5.0], [8.0, 6.0]])
    single = jax.tree.map(lambda leaf: leaf[0], small.cameras)
    np.testing.assert_allclose(
        single.rays(corners).directions, camera.rays(4 * corners).directions, atol=1e-6
    )
    assert reduce_stack(stack, 1) is stack


@pytest.mark.slow
def test_a_fit_goes_through_all_levels():
    truth = Spheres.create(
        np.float32([[0.2, 0, 0], [-0.2, 0.1, 0]]), np.full(2, 0.3), np.ones(2), np.eye(3)[:2]
    )
    frames = []
    for distance in (1.5, 2.0, 2.5):
        seen = render(truth, camera_at(distance, size=(48, 48)), near=0.1, far=9.0)
        frames.append(Frame(camera_at(distance, size=(48, 48)), np.asarray(seen.features)))
    settings = FitSettings(
        steps=20, spheres=60, shader="plain", coarse_levels=1, coarse_until=0.5, progress_every=1,
        backdrop=Backdrop(kind="constant"), background=(0.0, 0.0, 0.0), smallest_radius=0.5,
    )  # fmt: skip
    losses = []
    whole = fit(frames, settings, on_progress=lambda _, metrics: losses.append(metrics["loss"]))
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    # A fit that stops among the coarse steps goes on to the same bits.
    part = fit(frames, dataclasses.replace(settings, steps=7))
    rest = fit(frames, settings, state=part.state, normalizer=part.normalizer)
    for ours, theirs in zip(
        jax.tree.leaves(rest.state.params), jax.tree.leaves(whole.state.params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


# ---- softness


def test_softness_falls_geometrically_and_stays():
    settings = FitSettings(horizon=100, gamma=0.1, gamma_final=1e-3)
    found = [float(softness(settings, jnp.int32(step))) for step in (0, 50, 100, 900)]
    np.testing.assert_allclose(found, [0.1, 0.01, 1e-3, 1e-3], rtol=1e-5)
    same = FitSettings(horizon=100, gamma=0.05)
    assert float(softness(same, jnp.int32(70))) == pytest.approx(0.05)


# ---- the least size


def test_pixels_are_as_wide_as_depth_over_focal_length():
    cameras = [camera_at(2.0), camera_at(3.0, focal=80.0)]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cameras)
    centers = jnp.asarray([[0.0, 0, 0], [0.5, 0, 0], [0, 0, 1.0], [9.0, 0, 0], [0, 0, -9.0]])
    # At the origin 2 / 40 and 3 / 80. At x = 0.5 the second, narrower, still sees the margin of
    # 15 %: 13.3 of 16 + 4.8 pixels. Beside and behind both cameras there is no pixel.
    expected = [3 / 80, 3 / 80, 4 / 80, np.inf, np.inf]
    np.testing.assert_allclose(sharpest_pixels(centers, stack), expected, rtol=1e-5)


def test_small_spheres_grow_and_fade_by_as_much():
    radii = jnp.asarray([0.001, 0.01, 0.3, 0.001])
    opacities = jnp.asarray([0.9, 0.5, 0.7, 0.9])
    centers = jnp.zeros((4, 3)).at[3, 0].set(9.0)
    model = SphereModel(
        Spheres(centers, radii, opacities, jnp.ones((4, 3)), jnp.ones(4, bool)), PlainColor()
    )
    settings = FitSettings(spheres=4, shader="plain", smallest_radius=0.5)
    stack = jax.tree.map(lambda leaf: leaf[None], camera_at(2.0))
    state = bound_radii(FitState.create(model, settings), [stack], settings)
    after = state.model(settings).spheres()
    least = 0.5 * 2 / 40
    np.testing.assert_allclose(after.radii, [least, least, 0.3, 0.001], rtol=1e-5)
    covered = np.asarray(opacities) * np.square(radii)
    np.testing.assert_allclose(after.opacities * jnp.square(after.radii), covered, rtol=1e-4)
    assert bound_due(settings, 20) and not bound_due(FitSettings(), 20)
