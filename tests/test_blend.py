"""The native kernel against the definition, and the definition against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec import _ffi
from problems import (
    FAR,
    FIELDS,
    FOOTPRINTS,
    MOVING,
    NEAR,
    Problem,
    gradients,
    in_double,
    loss,
    problem,
    run,
)

SENSORS = (*FOOTPRINTS, *MOVING)
KINDS = ("softmax", "alpha")
GAMMA = 0.05
EPS = float(np.finfo(np.float32).eps)
STOPS = {
    "never": (),
    "per_sphere": (("stop", "per_sphere"), ("stop_p", 0.05)),
}


def in_single(function, case: Problem, options: tuple, gamma: float = GAMMA):
    out = function(case.arrays(np.float32), jnp.float32(gamma), options)
    return jax.tree.map(np.asarray, out)


def test_native_kernels_are_under_test():
    assert {"cpu": "cpu", "gpu": "CUDA"}[jax.default_backend()] in _ffi.modules()


def assert_images_agree(actual, expected, gamma):
    """Float32 against float64 of the same inputs.

    An exponent z / gamma is wrong by a few units of x / ((far - near) gamma); and a ray within
    rounding of a rim, of `near` or of a change of order may see another set of spheres. That may
    happen to few rays only.
    """
    for name in ("features", "depth", "alpha"):
        found, truth = getattr(actual, name), getattr(expected, name)
        scale = FAR if name == "depth" else 1.0
        tolerance = max(1e-5, 8 * EPS * FAR / ((FAR - NEAR) * gamma)) * scale
        wrong = np.abs(found - truth) > tolerance
        assert wrong.mean() < 0.003, (name, np.abs(found - truth).max(), wrong.mean())


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("sensor", SENSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_matches_definition(kind, sensor, stop):
    case = problem(sensor, spheres=60)
    options = (("kind", kind), ("nearest", 3), ("hit_counts", True), *STOPS[stop])
    actual, expected = in_single(run, case, options), in_double(run, case, GAMMA, options)
    assert_images_agree(actual, expected, GAMMA)
    assert np.mean(actual.ids != expected.ids) < 0.005
    assert np.mean(actual.counts != expected.counts) < 0.01
    assert expected.counts.max() >= 3


def assert_gradients_agree(actual, expected, tolerance=1e-3):
    for name, truth in expected.items():
        error = np.abs(actual[name] - truth)
        # One ray on the other side of a rim changes the entries of one sphere.
        allowed = tolerance * np.abs(truth).max()
        wrong = np.sum(error > allowed)
        assert wrong <= max(3, 0.005 * error.size), (name, error.max() / np.abs(truth).max())
        assert error.max() <= 0.03 * np.abs(truth).max()


@pytest.mark.parametrize("hits", [None, 1, 4])
@pytest.mark.parametrize("sensor", SENSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_gradients_match_definition(kind, sensor, hits):
    case = problem(sensor, spheres=60)
    options = (("kind", kind), ("gradient_hits", hits))
    assert_gradients_agree(
        in_single(gradients, case, options), in_double(gradients, case, GAMMA, options)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_gradients_match_definition_when_stopped(kind):
    case = problem(spheres=60)
    options = (("kind", kind), ("stop", "per_sphere"), ("stop_p", 0.1))
    assert_gradients_agree(
        in_single(gradients, case, options), in_double(gradients, case, GAMMA, options)
    )


@pytest.mark.parametrize("channels", [1, 2, 8, 16, 65])
@pytest.mark.parametrize("kind", KINDS)
def test_channel_counts(kind, channels):
    case = problem(channels=channels, grid=(1, 9, 10))
    options = (("kind", kind),)
    actual, expected = in_single(run, case, options), in_double(run, case, GAMMA, options)
    assert actual.features.shape == (1, 9, 10, channels)
    assert_images_agree(actual, expected, GAMMA)
    assert_gradients_agree(
        in_single(gradients, case, options), in_double(gradients, case, GAMMA, options)
    )


@jax.jit
def moved(arrays, name_index, step, direction):
    """The arrays with one of them moved; directions stay of unit length."""
    out = list(arrays)
    for i, x in enumerate(arrays):
        out[i] = x + jnp.where(name_index == i, step, 0) * direction[i]
    out[5] = out[5] / jnp.linalg.norm(out[5], axis=-1, keepdims=True)
    return tuple(out)


@pytest.mark.parametrize("sensor", SENSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_the_derivative(x64, kind, sensor):
    # Guards the formulas: definition and kernel could share a mistake. Along random directions,
    # for every operand; of ray directions only the part across the ray is a variable.
    case = problem(sensor, spheres=20, grid=(2, 5, 7))
    arrays, options = case.arrays(np.float64), (("kind", kind),)
    found = gradients(arrays, jnp.float64(GAMMA), options)
    draw, step = np.random.default_rng(1), 1e-6
    for name in found:
        index = FIELDS.index(name)
        for _ in range(3):
            direction = [jnp.asarray(draw.normal(size=x.shape)) for x in arrays]
            ahead, back = (
                loss(run(moved(arrays, index, t, direction), jnp.float64(GAMMA), options))
                for t in (step, -step)
            )
            expected = float(np.vdot(found[name], direction[index]))
            size = float(np.linalg.norm(found[name]) * np.linalg.norm(direction[index]))
            assert abs((ahead - back) / (2 * step) - expected) <= 2e-6 * size + 1e-7, name


@pytest.mark.parametrize("kind", KINDS)
def test_background_for_each_ray(kind):
    case = problem(grid=(2, 6, 7))
    full = np.random.default_rng(0).uniform(0, 1, (2, 6, 7, 3))
    case = Problem(**{**vars(case), "background": full})
    options = (("kind", kind),)
    assert_images_agree(in_single(run, case, options), in_double(run, case, GAMMA, options), GAMMA)
    assert_gradients_agree(
        in_single(gradients, case, options), in_double(gradients, case, GAMMA, options)
    )


def rest_share(case, *options):
    """Share of the background: features 0 before a background of 1."""
    case = Problem(**{**vars(case), "features": case.features * 0, "background": np.ones(3)})
    options = (("kind", "softmax"), ("hit_counts", True), *options)
    out = in_single(run, case, options, gamma=0.01)
    return out.features[..., 0], out.counts


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_total_stop_keeps_its_promise(share):
    # What is omitted weighs at most `share` of the total: D may shrink by that much.
    case = problem(spheres=400, radius=3.0)
    exact, all_counts = rest_share(case)
    stopped, counts = rest_share(case, ("stop", "total"), ("stop_p", share))
    assert np.all(exact >= (1 - share - 1e-4) * stopped)
    assert counts.sum() < 0.95 * all_counts.sum()


def test_per_sphere_stop_ends_rays_early():
    case = problem(spheres=400, radius=3.0)
    _, all_counts = rest_share(case)
    _, counts = rest_share(case, ("stop", "per_sphere"), ("stop_p", 0.01))
    assert counts.sum() < 0.8 * all_counts.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_that_omits_nothing_changes_nothing(kind):
    case = problem()
    never = in_single(run, case, (("kind", kind),))
    if kind == "alpha":
        stopped = in_single(run, case, (("kind", kind), ("stop", "total"), ("stop_p", 1e-4)))
    else:
        stopped = in_single(run, case, (("kind", kind), ("stop", "per_sphere"), ("stop_p", 0.0)))
    np.testing.assert_array_equal(never.features, stopped.features)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [1e-5, 1e-3, 1.0])
def test_extreme_gammas(kind, gamma):
    case = problem(spheres=60)
    options = (("kind", kind),)
    actual, expected = in_single(run, case, options, gamma), in_double(run, case, gamma, options)
    assert_images_agree(actual, expected, gamma)
    found = in_single(gradients, case, options, gamma)
    assert all(np.isfinite(x).all() for x in found.values())


@pytest.mark.parametrize("sensor", ["pinhole", "pinhole, moving"])
@pytest.mark.parametrize("kind", KINDS)
def test_repeats_to_the_bit(kind, sensor):
    case = problem(sensor, spheres=300, grid=(3, 40, 70))
    options = (("kind", kind),)
    first, second = (in_single(gradients, case, options) for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
