"""What must hold for any scene, sensor and option: checked on random ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from problems import FOOTPRINTS, MOVING, Problem, gradients, problem, run

pytestmark = pytest.mark.optimized

GRID = (1, 19, 23)
GAMMA = jnp.float32(0.07)
KINDS = ("softmax", "alpha")
seeds = st.integers(0, 10_000)
kinds = st.sampled_from(KINDS)
sensors = st.sampled_from(sorted((*FOOTPRINTS, *MOVING)))
some = settings(max_examples=12, deadline=None, derandomize=True)


def blended(case: Problem, kind: str, **options):
    options = (("kind", kind), ("nearest", 2), ("hit_counts", True), *options.items())
    return jax.tree.map(np.asarray, run(case.arrays(np.float32), GAMMA, options))


def case_of(sensor, seed, grid=GRID):
    return problem(sensor, seed=seed, spheres=50, grid=grid)


def changed(case, **fields):
    return Problem(**{**vars(case), **fields})


@some
@given(sensors, seeds, kinds)
def test_order_of_spheres_does_not_matter(sensor, seed, kind):
    case = case_of(sensor, seed)
    order = np.random.default_rng(seed).permutation(50)
    fields = ("centers", "radii", "opacities", "features", "velocities")
    given = {name: x for name in fields if (x := getattr(case, name)) is not None}
    shuffled = changed(case, **{name: x[order] for name, x in given.items()})
    a, b = blended(case, kind), blended(shuffled, kind)
    for x, y in zip(a[:3], b[:3], strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(a.ids, np.where(b.ids < 0, -1, order[b.ids]))


@some
@given(sensors, seeds, kinds, st.sampled_from([None, "per_sphere"]))
def test_tile_size_does_not_matter(sensor, seed, kind, stop):
    case = case_of(sensor, seed, (1, 37, 41))
    results = [blended(case, kind, tile=tile, stop=stop) for tile in (8, 16, 32)]
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0], other)


@some
@given(st.sampled_from(["pinhole", "panorama"]), seeds, kinds)
def test_order_of_rays_does_not_matter(sensor, seed, kind):
    case = case_of(sensor, seed)
    order = np.random.default_rng(seed).permutation(19 * 23)

    def shuffle(x):
        return x.reshape(1, 19 * 23, -1)[:, order].reshape(x.shape)

    shuffled = changed(case, origins=shuffle(case.origins), directions=shuffle(case.directions))
    a, b = blended(case, kind), blended(shuffled, kind)
    for x, y in zip(a, b, strict=True):
        flat = x.reshape(1, 19 * 23, -1)[:, order].reshape(x.shape)
        np.testing.assert_array_equal(flat, y)


@some
@given(seeds, kinds, st.sampled_from([(1, 1), (1, 437), (437, 1), (2, 220)]))
def test_shape_of_the_grid_does_not_matter(seed, kind, shape):
    case = case_of("pinhole", seed)

    def reshape(x):
        flat = np.resize(x.reshape(-1, x.shape[-1]), (shape[0] * shape[1], x.shape[-1]))
        return flat.reshape(1, *shape, x.shape[-1])

    thin = changed(case, origins=reshape(case.origins), directions=reshape(case.directions))
    a, b = blended(case, kind), blended(thin, kind)
    count = min(shape[0] * shape[1], 437)
    for x, y in zip(a, b, strict=True):
        x, y = (z.reshape(-1, *z.shape[3:])[:count] for z in (x, y))
        np.testing.assert_array_equal(x, y)


@some
@given(sensors, seeds, kinds)
def test_moving_everything_changes_nothing(sensor, seed, kind):
    # d/dt of a common translation and of a common rotation about the world's origin is 0.
    found = gradients(case_of(sensor, seed).arrays(np.float32), GAMMA, (("kind", kind),))
    found = {k: np.asarray(v, np.float64) for k, v in found.items()}
    case = case_of(sensor, seed)
    forces = found["centers"].sum(axis=0) + found["origins"].sum(axis=(0, 1, 2))
    scale = np.abs(found["centers"]).sum() + np.abs(found["origins"]).sum() + 1e-9
    assert np.abs(forces).max() <= 1e-5 * scale
    turns = [
        np.cross(case.centers, found["centers"]).sum(axis=0),
        np.cross(case.origins, found["origins"]).sum(axis=(0, 1, 2)),
        np.cross(case.directions, found["directions"]).sum(axis=(0, 1, 2)),
    ]
    if case.velocities is not None:
        turns.append(np.cross(case.velocities, found["velocities"]).sum(axis=0))
    size = sum(np.abs(turn).sum() for turn in turns) + 10 * scale
    assert np.abs(sum(turns)).max() <= 1e-4 * size


@some
@given(seeds, kinds)
def test_alpha_is_a_share(seed, kind):
    case = case_of("pinhole", seed)
    out = blended(changed(case, features=np.ones((50, 3)), background=np.zeros(3)), kind)
    np.testing.assert_allclose(out.features[..., 0], out.alpha, atol=1e-6)
    assert out.alpha.min() >= 0 and out.alpha.max() <= 1 + 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_spheres_are_as_if_absent(kind):
    case = case_of("pinhole", 3)
    alive = np.arange(50) % 3 > 0
    hidden = changed(case, radii=np.where(alive, case.radii, -1))
    fields = ("centers", "radii", "opacities", "features")
    absent = changed(case, **{name: getattr(case, name)[alive] for name in fields})
    a, b = blended(hidden, kind), blended(absent, kind)
    np.testing.assert_array_equal(a.features, b.features)
    found = gradients(hidden.arrays(np.float32), GAMMA, (("kind", kind),))
    assert not np.asarray(found["centers"])[~alive].any()
