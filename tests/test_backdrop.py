"""Backdrops: what an environment shows, and what each kind makes of a fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from derivatives import assert_exact_derivatives
from jaxrec.cli.errors import CommandError
from jaxrec.cli.fitting import _read_picture
from jaxrec.sensors import Frame
from jaxrec.shading import EnvironmentMap
from jaxrec.train import Backdrop, FitSettings, evaluate, fit, make_step, stack_frames, start
from known_scene import BACKGROUND, NORMALIZER, SETTINGS, cameras, photographs


def unit_vectors(key, count):
    vectors = jax.random.normal(key, (count, 3))
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def test_axes_lie_where_a_panorama_shows_them():
    rows, columns = 4, 8
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    picture = jnp.asarray(np.stack([row, column, 0 * row], axis=-1), jnp.float32)
    tilt = 1e-4
    directions = jnp.asarray(
        [[1, 0, 0], [0, 1, 0], [0, -1, 0], [tilt, 0, 1], [tilt, 0, -1]], jnp.float32
    )
    shown = EnvironmentMap(picture)(directions)
    np.testing.assert_allclose(shown[:, 0], [1.5, 1.5, 1.5, 0, 3], atol=1e-3)
    np.testing.assert_allclose(shown[:3, 1], [3.5, 1.5, 5.5], atol=1e-5)


def test_the_seam_does_not_show(key):
    environment = EnvironmentMap(jax.random.uniform(key, (5, 6, 3)))
    around = jnp.asarray([[-1.0, 1e-6, 0.1], [-1.0, -1e-6, 0.1]]) / np.sqrt(1.01)
    left, right = environment(around)
    np.testing.assert_allclose(left, right, atol=1e-4)


def test_one_texel_is_a_color(key):
    color = jnp.asarray([0.1, 0.5, 0.9])
    shown = EnvironmentMap(color[None, None])(unit_vectors(key, 7))
    np.testing.assert_array_equal(shown, np.broadcast_to(color, (7, 3)))


def test_gradients_are_exact_and_do_not_depend_on_the_order(key, x64):
    keys = jax.random.split(key, 3)
    picture = jax.random.uniform(keys[0], (4, 6, 3), jnp.float64)
    directions = unit_vectors(keys[1], 50).astype(jnp.float64)
    weights = jax.random.normal(keys[2], (50, 3), jnp.float64)

    def total(picture, order):
        return (EnvironmentMap(picture)(directions[order]) * weights[order]).sum()

    forwards = jax.grad(total)(picture, jnp.arange(50))
    backwards = jax.grad(total)(picture, jnp.arange(50)[::-1])
    np.testing.assert_array_equal(forwards, backwards)
    # Linear in the picture, so that differences are exact but for the whole numbers' rounding.
    step = 1e-3 * jnp.zeros_like(picture).at[2, 3, 1].set(1.0)
    slope = (total(picture + step, jnp.arange(50)) - total(picture - step, jnp.arange(50))) / 2e-3
    np.testing.assert_allclose(forwards[2, 3, 1], slope, atol=1e-6)
    picture32 = EnvironmentMap(picture)
    assert_exact_derivatives(lambda d: picture32(d), directions[:3])


def test_straight_up_and_no_direction_have_finite_gradients(key):
    environment = EnvironmentMap(jax.random.uniform(key, (3, 4, 3)))
    directions = jnp.asarray([[0.0, 0, 1], [0, 0, -1], [0, 0, 0]])
    gradient = jax.grad(lambda d: environment(d).sum())(directions)
    assert np.isfinite(gradient).all()


# ---- fits


@pytest.fixture(scope="module")
def frames():
    return photographs(cameras())


def settings_for(kind, **changes):
    backdrop = Backdrop(kind=kind, rows=6, columns=8, **changes)
    return dataclasses.replace(
        SETTINGS, steps=40, horizon=40, backdrop=backdrop, background=(0.9, 0.5, 0.5)
    )


@pytest.mark.parametrize("kind", ["learned", "environment"])
def test_the_color_behind_a_scene_is_learned(frames, kind):
    rates = dataclasses.replace(SETTINGS.rates, backdrop=0.05)
    settings = dataclasses.replace(settings_for(kind), rates=rates, steps=60, horizon=60)
    scene = fit(frames, settings)
    picture = np.asarray(scene.state.params["backdrop"]["picture"])
    assert picture.shape == ((1, 1, 3) if kind == "learned" else (6, 8, 3))
    if kind == "learned":
        np.testing.assert_allclose(picture[0, 0], BACKGROUND, atol=0.1)
    # It is what is shown unless a colour is asked for.
    camera = frames[0].camera
    own, black = scene.render(camera), scene.render(camera, (0.0, 0.0, 0.0))
    np.testing.assert_allclose(own.color[0, 0] - black.color[0, 0], BACKGROUND, atol=0.12)
    [score] = evaluate(scene, frames[:1])
    np.testing.assert_array_equal(score.image, np.clip(own.color, 0, 1))


def test_a_given_picture_stays(frames, key):
    settings = settings_for("picture", file="unused.png")
    picture = jax.random.uniform(key, (6, 8, 3))
    state, normalizer = start(frames, settings, NORMALIZER, picture=picture)
    [stack] = stack_frames(frames, normalizer)
    state, _ = make_step(settings, normalizer)(state, stack, jnp.asarray([0]))
    np.testing.assert_array_equal(state.params["backdrop"]["picture"], picture)
    with pytest.raises(ValueError, match="picture: got 2 rows of 3, want backdrop.rows = 6"):
        start(frames, settings, NORMALIZER, picture=picture[:2, :3])
    with pytest.raises(ValueError, match="picture: got none for backdrop.kind picture"):
        start(frames, settings, NORMALIZER)


def test_cut_out_images_refuse_a_learned_backdrop(frames):
    alpha = np.ones((32, 32), np.float32)
    cut = [Frame(frame.camera, frame.image, alpha) for frame in frames]
    with pytest.raises(ValueError, match="backdrop.kind: got learned for images with alpha"):
        start(cut, settings_for("learned"))


def test_a_file_is_read_in_the_wanted_size(tmp_path):
    file = tmp_path / "sky.png"
    Image.fromarray(np.full((12, 16, 3), 51, np.uint8)).save(file)
    picture = _read_picture(settings_for("environment", file=str(file)))
    np.testing.assert_allclose(picture, np.full((6, 8, 3), 0.2), atol=1e-6)
    assert _read_picture(FitSettings()) is None
    missing = tmp_path / "none.png"
    with pytest.raises(CommandError, match=r"none.png: cannot be read as an image \(No such file"):
        _read_picture(settings_for("picture", file=str(missing)))


@pytest.mark.parametrize(
    "values", [{"kind": "sky"}, {"rows": 0}, {"kind": "picture"}, {"file": "a.png"}]
)
def test_settings_out_of_range_are_named(values, own_errors):
    with pytest.raises(ValueError, match="backdrop\\.(kind|rows|file): got"):
        Backdrop(**values)
