"""What only an NVIDIA GPU can show: CUDA graphs, traffic to the host, and sizes without limits."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrec
from jaxrec import Rays, _ffi, blend
from traced_steps import TRACED

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU"),
]

KINDS = ("softmax", "alpha")
NEAR, FAR = 0.5, 40.0


def test_the_cuda_kernels_are_under_test():
    assert "CUDA" in _ffi.modules()


# ---- a training step in a CUDA graph, and its traffic

# Without choosing the fastest of several algorithms, which may differ from run to run. XLA leaves
# graphs out while it is profiled unless told otherwise.
ALWAYS = "--xla_gpu_autotune_level=0 --xla_enable_command_buffers_during_profiling=true"
FLAGS = {
    "without graphs": f"{ALWAYS} --xla_gpu_enable_command_buffer=",
    "with graphs": f"{ALWAYS} --xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL,CUBLAS,CUDNN"
    " --xla_gpu_graph_min_graph_size=1",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Arrays of the first training steps, and what was traced of later ones, by kind of run."""
    program = pathlib.Path(__file__).with_name("traced_steps.py")
    package = pathlib.Path(jaxrec.__file__).parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    started = {}
    for name, flags in FLAGS.items():
        folder = tmp_path_factory.mktemp("traced")
        settings = {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        process = subprocess.Popen(
            [sys.executable, str(program), str(folder)],
            env={**os.environ, "PYTHONPATH": path, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started[name] = folder, process
    found = {}
    for name, (folder, process) in started.items():
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{name}: {said[-3000:]}"
        with np.load(folder / "arrays.npz") as arrays:
            found[name] = dict(arrays), json.loads((folder / "seen.json").read_text())
    return found


def test_a_training_step_gives_the_same_with_and_without_graphs(runs):
    plain, graphs = (runs[name][0] for name in FLAGS)
    # Bit for bit, where two runs without graphs agree to the bit. Otherwise gradients are sums in
    # an order that changes: 1e-5 of the largest, which twenty steps of Adam amplify.
    for what, tolerance in (("moments", 1e-5), ("losses", 1e-2)):
        first, second = plain[f"{what}_first"], plain[f"{what}_second"]
        scale = np.abs(first).max()
        assert 0 < scale < np.inf
        atol = 0 if np.array_equal(first, second) else tolerance * scale
        for run in ("first", "second"):
            np.testing.assert_allclose(graphs[f"{what}_{run}"], first, rtol=0, atol=atol)
    # Before any update the result depends on images alone, and those repeat to the bit. The mean
    # over 12 288 values may be taken in another order.
    np.testing.assert_allclose(graphs["losses_first"][0], plain["losses_first"][0], rtol=1e-6)


def test_a_training_step_runs_inside_a_graph(runs):
    plain, graphs = (runs[name][1]["steps"] for name in FLAGS)
    assert plain["kernels"] >= TRACED and plain["kernels_in_graphs"] == 0
    assert graphs["kernels"] == graphs["kernels_in_graphs"] == plain["kernels"]


@pytest.mark.parametrize("name", FLAGS)
def test_a_hundred_training_steps_copy_nothing_to_the_host(runs, name):
    steps, control = runs[name][1]["steps"], runs[name][1]["control"]
    assert steps["events"] >= TRACED, "the profiler saw no GPU"
    assert control["to_host"], "reading a loss leaves no trace: nothing is proved"
    assert not steps["to_host"], f"{len(steps['to_host'])} copies: {steps['to_host'][:3]}"


# ---- no limits


def pinhole(height: int, width: int, focal: float, eyes=((0.0, 0.0, 0.0),)) -> Rays:
    """Cameras that look along z."""

    @jax.jit
    def make(eyes):
        x = (jnp.arange(width, dtype=jnp.float32) + 0.5 - width / 2) / focal
        y = (jnp.arange(height, dtype=jnp.float32) + 0.5 - height / 2) / focal
        x, y = jnp.meshgrid(x, y)
        rays = jnp.stack([x, y, jnp.ones_like(x)], axis=-1)
        rays = rays / jnp.linalg.norm(rays, axis=-1, keepdims=True)
        grid = (eyes.shape[0], height, width, 3)
        footprint = jnp.broadcast_to(jnp.float32([0, 0.5 / focal]), (grid[0], 2))
        origins = jnp.broadcast_to(eyes[:, None, None], grid)
        return Rays(origins, jnp.broadcast_to(rays[None], grid), footprint)

    return make(jnp.float32(eyes))


@functools.partial(jax.jit, static_argnames=("kind", "gamma"))
def draw(spheres, rays, background, *, kind, gamma=0.1):
    """Blends; `spheres` are centers, radii, opacities and features."""
    return blend(
        *spheres, rays, background, near=NEAR, far=FAR, gamma=gamma, kind=kind, hit_counts=True
    )


@functools.partial(jax.jit, static_argnames=("kind", "gamma"))
def pull(spheres, rays, background, weights, *, kind, gamma=0.1):
    """Gradients of a weighted sum of the features, for the spheres and the background."""

    def value(spheres, background):
        out = draw(spheres, rays, background, kind=kind, gamma=gamma)
        return jnp.sum(out.features * weights)

    return jax.grad(value, argnums=(0, 1))(spheres, background)


def in_double(function, *arrays, **options):
    """The same by the plain JAX definition in float64, on the GPU as well."""
    with jax.enable_x64(True):
        return function(*jax.tree.map(lambda x: x.astype(jnp.float64), arrays), **options)


def assert_near(found, expected, atol: float):
    with jax.enable_x64(True):
        difference = float(jnp.max(jnp.abs(found.astype(expected.dtype) - expected)))
    assert difference <= atol


def assert_gradients_near(found, expected, share: float):
    """Compares trees; `share` is of the largest value of each leaf."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        with jax.enable_x64(True):
            scale = float(jnp.max(jnp.abs(theirs)))
        assert_near(ours, theirs, share * scale)


BACKGROUND = (0.2, 0.5, 0.9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_sphere_over_an_8k_image(kind):
    height, width = 4320, 7680
    rays = pinhole(height, width, float(width))
    spheres = (
        jnp.float32([[0.3, -0.2, 10.0]]),
        jnp.float32([8.0]),
        jnp.float32([0.7]),
        jnp.float32([[0.9, 0.1, 0.4]]),
    )
    background = jnp.float32(BACKGROUND)
    out = draw(spheres, rays, background, kind=kind)
    expected = in_double(draw, spheres, rays, background, kind=kind)
    assert bool(jnp.all(out.counts == 1))
    # Distances of up to 12 m are rounded by 1e-6 m, over (far - near) gamma = 4 m.
    assert_near(out.features, expected.features, 1e-5)
    assert_near(out.alpha, expected.alpha, 1e-5)
    assert_near(out.depth, expected.depth, 1e-4)

    ramp = jnp.linspace(-1, 1, width, dtype=jnp.float32)[None, None, :, None]
    weights = jnp.broadcast_to(1 + 0.5 * ramp, (1, height, width, 3))
    found = pull(spheres, rays, background, weights, kind=kind)
    expected = in_double(pull, spheres, rays, background, weights, kind=kind)
    # One address takes the sums of all 130 000 tiles: 6e-8 of the total each, mostly cancelling.
    assert_gradients_near(found, expected, 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_million_spheres_over_one_tile(key, kind):
    # All centers lie on the axis of the middle tile of 3 x 3, and radii grow with distance so that
    # all spheres cover the same pixels: those within the square root of 66.5 pixels of the axis.
    count, size, focal = 1_000_000, 48, 500.0
    keys = jax.random.split(key, 3)
    depths = jax.random.uniform(keys[0], (count,), minval=5.0, maxval=35.0)
    slope = 66.5**0.5 / focal
    opacities = jax.random.uniform(keys[1], (count,), minval=0.5)
    spheres = (
        depths[:, None] * jnp.float32([[0, 0, 1]]),
        depths * (slope / (1 + slope**2) ** 0.5),
        opacities if kind == "alpha" else jnp.ones(count),
        jax.random.uniform(keys[2], (count, 3)),
    )
    # softmax: fronts are sorted like centers; those beyond 5.8 m, 0.8 m behind the first, weigh
    # exp(-0.78 / (39.5 gamma)) = 3e-9 of what is before them. alpha: opacities of at least 0.0018
    # let through 1e-4 of the light after 5000 spheres; 5.8 m is beyond 26 000.
    gamma, near_ones = 1e-3, jnp.flatnonzero(depths < 5.8)
    few = tuple(x[near_ones] for x in spheres)
    rays, background = pinhole(size, size, focal), jnp.float32(BACKGROUND)
    out = draw(spheres, rays, background, kind=kind, gamma=gamma)
    known = draw(few, rays, background, kind=kind, gamma=gamma)

    place = np.arange(size) + 0.5 - size / 2
    covered = np.hypot(*np.meshgrid(place, place))[None] ** 2 < 66.5
    np.testing.assert_array_equal(np.asarray(out.counts) > 0, covered)
    if kind == "softmax":  # nothing stops, so every ray draws every sphere
        assert np.all(np.asarray(out.counts)[covered] == count)
    outside = np.asarray(out.features)[~covered]
    np.testing.assert_array_equal(outside, np.broadcast_to(background, outside.shape))
    # The same hits in the same order, in other batches: sums of 26 000 terms, rounded by
    # sqrt(26 000) 6e-8 = 1e-5 of the total; depths are about 5 m.
    assert_near(out.features, known.features, 5e-5)
    assert_near(out.alpha, known.alpha, 5e-5)
    assert_near(out.depth, known.depth, 5e-4)

    weights = 1 + jnp.sin(jnp.arange(size * size * 3, dtype=jnp.float32)).reshape(1, size, size, 3)
    found, _ = pull(spheres, rays, background, weights, kind=kind, gamma=gamma)
    expected, _ = pull(few, rays, background, weights, kind=kind, gamma=gamma)
    # Sums over 256 rays of differences to a blended value that is rounded as above.
    assert_gradients_near(tuple(x[near_ones] for x in found), expected, 1e-3)
    hidden = jnp.flatnonzero(depths >= 5.8)
    for ours, theirs in zip(found, expected, strict=True):
        assert float(jnp.abs(ours[hidden]).max()) <= 1e-6 * float(jnp.abs(theirs).max())


@pytest.mark.parametrize("kind", KINDS)
def test_a_million_spheres_of_which_none_is_seen(key, kind):
    # Behind the camera, hidden by a negative radius, not finite, beyond `far`.
    count = 1_000_000
    centers = jax.random.uniform(key, (count, 3), minval=-5.0, maxval=5.0)
    reason = jnp.arange(count) % 4
    depths = jnp.where(reason == 0, -20.0, jnp.where(reason == 3, 60.0, 20.0))
    centers = centers + depths[:, None] * jnp.float32([[0, 0, 1]])
    centers = jnp.where((reason == 2)[:, None], jnp.nan, centers)
    radii = jnp.where(reason == 1, -1.0, 0.2)
    spheres = (centers, radii, jnp.full(count, 0.8), jnp.ones((count, 3)))
    rays = pinhole(1080, 1920, 1000.0, eyes=((0.0, 0.0, 0.0), (1.0, 0.0, 0.0)))
    background = jnp.float32(BACKGROUND)
    out = draw(spheres, rays, background, kind=kind)
    assert not bool(jnp.any(out.counts)) and not bool(jnp.any(out.alpha))
    assert not bool(jnp.any(out.depth))
    assert_near(out.features, jnp.broadcast_to(background, out.features.shape), 0.0)
    weights = jnp.ones(out.features.shape)
    found, d_background = pull(spheres, rays, background, weights, kind=kind)
    assert not any(bool(jnp.any(x)) for x in found)  # a NaN would count as something
    np.testing.assert_allclose(d_background, np.full(3, 2 * 1080 * 1920), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_views_of_two_million_spheres(key, kind):
    # 40 million pairs of view and sphere: gigabytes of scratch, byte offsets beyond 2^32.
    count, views, size = 2_000_000, 20, 64
    keys = jax.random.split(key, 5)
    low, high = jnp.float32([[-5, -5, 5]]), jnp.float32([[5, 5, 35]])
    spheres = (
        low + (high - low) * jax.random.uniform(keys[0], (count, 3)),
        0.05 * jax.random.uniform(keys[1], (count,)),
        jax.random.uniform(keys[2], (count,), minval=0.1),
        jax.random.uniform(keys[3], (count, 3)),
    )
    eyes = [(0.4 * (v - 10), 0.2 * (v % 5), -0.1 * v) for v in range(views)]
    background = jnp.float32(BACKGROUND)
    rays = pinhole(size, size, 60.0, eyes)
    weights = jax.random.uniform(keys[4], (views, size, size, 3))
    out = draw(spheres, rays, background, kind=kind)
    found = pull(spheres, rays, background, weights, kind=kind)
    expected = None
    for v in range(views):
        one = jax.tree.map(lambda x, v=v: x[v : v + 1], (rays, weights))
        alone = draw(spheres, one[0], background, kind=kind)
        # A view's own spheres in its own order: at most the batches differ.
        assert_near(out.features[v : v + 1], alone.features, 1e-5)
        assert_near(out.depth[v : v + 1], alone.depth, 1e-4)
        np.testing.assert_array_equal(out.counts[v : v + 1], alone.counts)
        pulled = pull(spheres, one[0], background, one[1], kind=kind)
        expected = pulled if v == 0 else jax.tree.map(jnp.add, expected, pulled)
    assert int(jnp.max(out.counts)) > 10
    # Sums of 20 views and of the pixels of each, taken in another order.
    assert_gradients_near(found, expected, 1e-5)


# ---- motion

ROWS, COLUMNS = 270, 480


def rolling(kind: str) -> Rays:
    """Half a second from the first row to the last; parallel rays for `alpha`."""
    rays = pinhole(ROWS, COLUMNS, 300.0)
    times = jnp.broadcast_to(jnp.linspace(-0.2, 0.3, ROWS)[None, :, None], (1, ROWS, COLUMNS))
    if kind == "softmax":
        return dataclasses.replace(rays, times=times)
    y, x = jnp.meshgrid(jnp.arange(float(ROWS)), jnp.arange(float(COLUMNS)), indexing="ij")
    across = jnp.stack([x - COLUMNS / 2, y - ROWS / 2, 0 * x], axis=-1)[None] / 20
    ahead = jnp.broadcast_to(jnp.float32([0, 0, 1]), across.shape)
    return Rays(across, ahead, jnp.float32([[0.025, 0.0]]), times)


def moving_cloud(key, kind: str, count: int):
    """Spheres, and velocities of up to 20 m/s; along the rays only where order plays no part."""
    keys = jax.random.split(key, 5)
    low, high = jnp.float32([[-12, -7, 5]]), jnp.float32([[12, 7, 30]])
    spheres = (
        low + (high - low) * jax.random.uniform(keys[0], (count, 3)),
        0.02 + 0.1 * jax.random.uniform(keys[1], (count,)),
        jax.random.uniform(keys[2], (count,), minval=0.1),
        jax.random.uniform(keys[3], (count, 3)),
    )
    velocities = jax.random.uniform(keys[4], (count, 3), minval=-20.0, maxval=20.0)
    axes = jnp.float32([[1, 1, 1 if kind == "softmax" else 0]])
    return spheres, velocities * axes


@functools.partial(jax.jit, static_argnames="kind")
def seen(spheres, velocities, rays, *, kind):
    return blend(
        *spheres, rays, jnp.float32(BACKGROUND), near=NEAR, far=FAR, gamma=0.1, kind=kind,
        hit_counts=True, velocities=velocities,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_rolling_image_of_many_moving_spheres(key, kind):
    spheres, velocities = moving_cloud(key, kind, 200_000)
    rays = rolling(kind)
    out = seen(spheres, velocities, rays, kind=kind)
    assert int(jnp.max(out.counts)) > 5
    for row in (0, 100, 269):
        now = (spheres[0] + velocities * rays.times[0, row, 0], *spheres[1:])
        alone = seen(now, None, rays, kind=kind)
        # Rims and the ends of rays, of either rounding, may take one sphere more or less.
        for found, expected in ((out.features, alone.features), (out.alpha, alone.alpha)):
            wrong = jnp.abs(found[0, row] - expected[0, row]) > 1e-3
            assert float(jnp.mean(wrong)) < 0.01
        assert float(jnp.mean(out.counts[0, row] != alone.counts[0, row])) < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_row_of_a_rolling_image(key, kind):
    spheres, velocities = moving_cloud(key, kind, 200_000)
    rays, row = rolling(kind), 240
    weights = jnp.zeros((1, ROWS, COLUMNS, 3)).at[0, row].set(1 + jnp.arange(3.0) / 3)

    def value(centers, velocities, times):
        at_times = dataclasses.replace(rays, times=times)
        features = seen((centers, *spheres[1:]), velocities, at_times, kind=kind).features
        return jnp.sum(features * weights)

    pull = jax.jit(jax.grad(value, argnums=(0, 1, 2)))
    found = pull(spheres[0], velocities, rays.times)
    again = pull(spheres[0], velocities, rays.times)
    jax.tree.map(np.testing.assert_array_equal, found, again)
    d_centers, d_velocities, d_times = found
    time = rays.times[0, row, 0]
    # One row is measured at one time: all of it is a product with that of the centers.
    scale = float(jnp.max(jnp.abs(d_centers)))
    assert scale > 0
    assert_near(d_velocities, time * d_centers, 1e-5 * scale)
    moved = float(jnp.sum(d_centers * velocities))
    size = float(jnp.sum(jnp.abs(d_centers * velocities)))
    assert abs(float(jnp.sum(d_times)) - moved) <= 1e-5 * size
    still = jax.grad(lambda centers: value(centers, None, rays.times))
    expected = still(spheres[0] + velocities * time)
    wrong = jnp.abs(d_centers - expected) > 1e-2 * scale
    assert float(jnp.mean(jnp.any(wrong, axis=-1))) < 1e-3
