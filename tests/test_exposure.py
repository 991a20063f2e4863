"""Exposure of images: its maps, its gauge, its training, and what evaluation makes of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxrec import losses, metrics
from jaxrec.io import Checkpoints
from jaxrec.train import (
    Calibration,
    Exposure,
    FitSettings,
    evaluate,
    expose,
    fit,
    make_record,
    make_step,
    read_record,
    stack_frames,
    state_template,
)
from jaxrec.train.exposure import total_variation
from jaxrec.train.rows import Rows
from known_scene import NORMALIZER, SETTINGS, begin, cameras, photographs
from test_train import assert_equal_states

GRID = Exposure(kind="grid", columns=3, rows=4, levels=5)


def colors(key, views=2, height=6, width=7):
    return jax.random.uniform(key, (views, height, width, 3))


@pytest.mark.parametrize("shape", [(), (5, 4, 3)])
def test_nothing_is_changed_at_the_start(key, shape):
    color = colors(key)
    np.testing.assert_array_equal(expose(color, jnp.zeros((2, *shape, 3, 4))), color)


def test_an_affine_exposure_is_a_matrix_and_an_offset(key):
    color, maps = colors(key), jax.random.normal(key, (2, 3, 4))
    expected = np.einsum("vij,vhwj->vhwi", maps[..., :3], color)
    expected = color + expected + np.asarray(maps)[:, None, None, :, 3]
    np.testing.assert_allclose(expose(color, maps), expected, atol=1e-5)


def test_a_grid_of_equal_cells_is_an_affine_exposure(key):
    color, maps = colors(key), jax.random.normal(key, (2, 3, 4))
    grid = jnp.broadcast_to(maps[:, None, None, None], (2, 5, 4, 3, 3, 4))
    np.testing.assert_allclose(expose(color, grid), expose(color, maps), atol=1e-5)


def test_a_grid_is_interpolated_as_scipy_does(key):
    from scipy.ndimage import map_coordinates

    color, grid = colors(key), jax.random.normal(key, (2, 5, 4, 3, 3, 4))
    found = np.asarray(expose(color, grid) - color)
    height, width = color.shape[1:3]
    rows = (np.arange(height) + 0.5) / height * 3
    columns = (np.arange(width) + 0.5) / width * 2
    for view in range(2):
        level = np.asarray(color[view]) @ [0.299, 0.587, 0.114] * 4
        places = np.stack([level, *np.meshgrid(rows, columns, indexing="ij")])
        maps = np.empty((height, width, 3, 4))
        for i in range(3):
            for j in range(4):
                cells = np.asarray(grid[view, ..., i, j], np.float64)
                maps[..., i, j] = map_coordinates(cells, places, order=1, mode="nearest")
        one = np.concatenate([color[view], np.ones((height, width, 1))], axis=-1)
        np.testing.assert_allclose(found[view], np.einsum("hwij,hwj->hwi", maps, one), atol=2e-5)


def test_gradients_are_derivatives(key, x64):
    color = jax.random.uniform(key, (1, 2, 3, 3), jnp.float64)
    for shape in ((), (2, 2, 1)):
        maps = jax.random.normal(key, (1, *shape, 3, 4), jnp.float64)
        check_grads(jax.jit(expose), (color, maps), 1, modes=["rev"], eps=1e-6)


def test_total_variation_is_that_of_neighbours(key):
    grid = jax.random.normal(key, (2, 5, 1, 3, 3, 4))
    expected = sum(np.square(np.diff(grid, axis=axis)).mean() for axis in (1, 3))
    np.testing.assert_allclose(total_variation(grid), expected, rtol=1e-5)
    assert total_variation(jnp.ones((1, 1, 1, 1, 3, 4))) == 0


def test_the_mean_over_images_is_the_identity(key):
    for exposure in (Exposure(kind="affine"), GRID):
        blank = Calibration.blank(FitSettings(exposure=exposure), 6)
        assert blank.exposure is not None
        values = jax.random.normal(key, blank.exposure.values.shape)
        calibration = Calibration(Rows.create(values))
        everyone = jnp.arange(6)
        maps = calibration.exposures(calibration.take(everyone))
        assert maps is not None and np.any(maps)
        np.testing.assert_allclose(np.mean(maps, axis=0), 0, atol=1e-6)


# ---- rows


def test_rows_rest_while_they_are_not_seen(key):
    rows = Rows.create(jax.random.normal(key, (4, 3)))
    for index in ([0, 2], [2, 0]):
        moved = rows.moved(jnp.asarray(index), jnp.ones((2, 3)), 0.1)
        np.testing.assert_array_equal(moved.values[jnp.asarray([1, 3])], rows.values[1::2])
        # Adam's first step is the rate itself.
        np.testing.assert_allclose(moved.values[::2], rows.values[::2] - 0.1, atol=1e-6)
        rest = jax.tree.map(lambda leaf: leaf[1], moved.moments)
        assert all(not np.any(leaf) for leaf in jax.tree.leaves(rest))


def test_a_row_seen_twice_moves_once_along_the_sum():
    rows = Rows.create(jnp.zeros((2, 1)))
    once = rows.moved(jnp.asarray([1]), jnp.asarray([[3.0]]), 0.1)
    twice = rows.moved(jnp.asarray([1, 1]), jnp.asarray([[1.0], [2.0]]), 0.1)
    assert_equal_states(twice, once)


# ---- training

FACTORS = np.float32([1.0, 0.6, 1.4, 0.8, 1.2, 0.7, 1.3, 1.0])


@pytest.fixture(scope="module")
def varied():
    """Photographs of the known scene, each of a brightness of its own, 1 in the mean."""
    frames = zip(photographs(cameras()), FACTORS, strict=True)
    return [dataclasses.replace(frame, image=factor * frame.image) for frame, factor in frames]


def settings_for(kind):
    exposure = dataclasses.replace(GRID, kind=kind, rate=0.03)
    return dataclasses.replace(SETTINGS, exposure=exposure)


def fit_known(frames, settings):
    return fit(frames, settings, state=begin(frames, settings, 0.01), normalizer=NORMALIZER)


@pytest.fixture(scope="module")
def fitted(varied):
    return {kind: fit_known(varied, settings_for(kind)) for kind in ("none", "affine", "grid")}


@pytest.mark.slow
def test_brightness_is_recovered(fitted):
    calibration = fitted["affine"].state.calibration
    maps = np.asarray(calibration.exposures(calibration.take(jnp.arange(len(FACTORS)))))
    color = np.float32([0.3, 0.3, 0.3])
    found = (color + maps[..., :3] @ color + maps[..., 3]).mean(axis=-1) / 0.3
    np.testing.assert_allclose(found, FACTORS, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["affine", "grid"])
def test_held_out_views_gain(fitted, kind):
    held_out = photographs(cameras(3, 0.4))

    def score(name):
        return np.mean([view.psnr for view in evaluate(fitted[name], held_out)])

    assert score(kind) > score("none") + 3


@pytest.mark.slow
def test_resuming_gives_the_same_bits(varied, fitted, tmp_path):
    whole = settings_for("grid")
    first = fit_known(varied, dataclasses.replace(whole, steps=20))
    record = make_record(first.settings, first.normalizer, len(varied))
    Checkpoints(tmp_path).save(20, first.state, record)
    found = Checkpoints(tmp_path).restore(state_template)
    assert read_record(found.record)[0].exposure == whole.exposure
    resumed = fit(varied, whole, state=found.tree, normalizer=NORMALIZER)
    assert_equal_states(resumed.state, fitted["grid"].state)


def test_masked_pixels_do_not_expose(varied):
    mask = np.zeros((32, 32), bool)
    mask[:, :16] = True
    masked = [dataclasses.replace(frame, mask=mask) for frame in varied]
    spoiled = [
        dataclasses.replace(f, image=np.where(mask[..., None], f.image, np.float32(0.9)))
        for f in masked
    ]
    settings = settings_for("affine")
    step = make_step(settings, NORMALIZER)
    found = []
    for frames in (masked, spoiled):
        [stack] = stack_frames(frames, NORMALIZER)
        found.append(step(begin(frames, settings), stack, jnp.zeros(1, jnp.int32))[0])
    assert np.any(found[0].calibration.exposure.values)
    assert_equal_states(found[0], found[1])


def test_what_lies_behind_a_cut_out_image_is_exposed_alike(varied):
    # Nothing covered: an exposure must neither show nor be learned from the background.
    nothing = np.zeros((32, 32), np.float32)
    frames = [dataclasses.replace(frame, alpha=nothing) for frame in varied]
    settings = settings_for("affine")
    state = begin(frames, settings)
    logits = jnp.full_like(state.params["logit_opacities"], -100)
    drawn = jax.random.normal(jax.random.key(1), (8, 3, 4))
    state = dataclasses.replace(
        state,
        params={**state.params, "logit_opacities": logits},
        calibration=Calibration(Rows.create(drawn)),
    )
    [stack] = stack_frames(frames, NORMALIZER)
    _, measured = make_step(settings, NORMALIZER)(state, stack, jnp.zeros(1, jnp.int32))
    assert measured["l1"] < 1e-6


# ---- colour-corrected metrics


def test_an_affine_change_of_colors_is_undone(key):
    target = np.asarray(jax.random.uniform(key, (9, 8, 3)), np.float32)
    matrix = np.float32([[0.5, 0.1, 0], [0, 0.6, 0.1], [0.1, 0, 0.4]])
    changed = target @ matrix.T + np.float32(0.1)
    corrected = metrics.color_corrected(changed, target)
    np.testing.assert_allclose(corrected, target, atol=1e-5)


def test_correction_never_loses_where_it_counts(key):
    first, second = jax.random.split(key)
    target = np.asarray(jax.random.uniform(first, (9, 8, 3)), np.float32)
    image = np.asarray(jax.random.uniform(second, (9, 8, 3)), np.float32)
    mask = np.arange(72).reshape(9, 8) % 3 > 0
    for some in (image, np.full_like(image, 0.25), image[..., :1].repeat(3, axis=-1)):
        corrected = metrics.color_corrected(some, target, mask)
        assert losses.mse(*map(jnp.asarray, (corrected, target, mask))) < losses.mse(
            *map(jnp.asarray, (some, target, mask))
        )
    nothing = metrics.color_corrected(image, target, np.zeros_like(mask))
    np.testing.assert_array_equal(nothing, image)


@pytest.mark.parametrize("name, value", [("rate", 0.0), ("levels", 0), ("total_variation", -1.0)])
def test_settings_out_of_range_are_named(name, value, own_errors):
    with pytest.raises(ValueError, match=f"exposure.{name}: got"):
        Exposure(**{name: value})
    with pytest.raises(ValueError, match=r"exposure.kind: got magic, want none, affine or grid"):
        Exposure(kind="magic")  # pyright: ignore[reportArgumentType]
