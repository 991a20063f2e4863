"""Shaders as harmonics: exact where they can be, and honest about what is lost."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrec.shading import PlainColor, SphericalHarmonics, ViewMLP
from jaxrec.shading.convert import even_directions, to_harmonics
from jaxrec.train import FitSettings, FittedScene, convert_shader, evaluate
from known_scene import NORMALIZER, SETTINGS, begin, cameras, photographs


def test_directions_are_spread_evenly():
    directions = even_directions(256)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(directions.mean(axis=0), 0, atol=5e-3)
    np.testing.assert_allclose(directions.T @ directions / 256, np.eye(3) / 3, atol=5e-3)


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_plain_colors_lose_nothing(degree, key):
    colors = jax.random.uniform(key, (5, 3))
    found = to_harmonics(PlainColor(), colors, degree)
    expected = SphericalHarmonics(degree).initial_features(colors, key)
    np.testing.assert_allclose(found.features, expected, atol=1e-5)
    assert found.psnr > 100


def test_harmonics_are_found_again_and_fewer_lose_what_they_must(key):
    features = 0.1 * jax.random.normal(key, (6, 27))
    same = to_harmonics(SphericalHarmonics(2), features, 2)
    np.testing.assert_allclose(same.features, features, atol=1e-5)
    fewer = to_harmonics(SphericalHarmonics(2), features, 1)
    # Orthonormal functions: the best of lower degree is a part of the whole.
    np.testing.assert_allclose(fewer.features, features[:, :12], atol=5e-3)
    rest = np.square(features[:, 12:]).sum() / (4 * np.pi * 6 * 3)
    assert fewer.psnr == pytest.approx(-10 * np.log10(rest), abs=0.1)


def test_a_network_is_shown_better_by_more_harmonics(key):
    shader = ViewMLP(rngs=nnx.Rngs(0))
    shader.last.kernel[...] = 0.3 * jax.random.normal(key, shader.last.kernel.shape)
    features = shader.initial_features(jax.random.uniform(key, (20, 3)), key)
    psnr = [to_harmonics(shader, features, degree).psnr for degree in range(4)]
    assert psnr == sorted(psnr) and psnr[3] > psnr[0] + 5


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="degree=4"):
        to_harmonics(PlainColor(), jnp.zeros((1, 3)), 4)
    with pytest.raises(ValueError, match="at least 64 samples"):
        to_harmonics(PlainColor(), jnp.zeros((1, 3)), 3, samples=40)


def test_a_scene_tells_what_its_conversion_costs():
    frames = photographs(cameras(2))
    scene = FittedScene(begin(frames, SETTINGS, 0.02), SETTINGS, NORMALIZER)
    converted = convert_shader(scene, 0, frames)
    assert converted.spheres.features.shape == (SETTINGS.spheres, 3)
    np.testing.assert_allclose(converted.loss, 0, atol=2e-2)
    assert "plain colours: " in converted.report() and "over 2 views" in converted.report()
    assert "no view" in convert_shader(scene, 1).report()


def test_a_lossy_conversion_is_measured_against_the_frames():
    frames = photographs(cameras(2))
    settings: FitSettings = dataclasses.replace(SETTINGS, shader="harmonics", degree=1)
    state = begin(frames, SETTINGS)
    features = SphericalHarmonics(1).initial_features(state.params["features"], jax.random.key(0))
    bright = features.at[:, 3:].set(0.3)
    state = dataclasses.replace(state, params={**state.params, "features": bright})
    scene = FittedScene(state, settings, NORMALIZER)
    taken = [
        dataclasses.replace(frame, image=score.image)
        for frame, score in zip(frames, evaluate(scene, frames), strict=True)
    ]
    lost = convert_shader(scene, 0, taken).loss
    assert min(lost) > 20
    kept = convert_shader(scene, 1, frames).loss
    np.testing.assert_allclose(kept, 0, atol=2e-2)
