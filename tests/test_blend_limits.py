"""Where formulas divide by nothing: empty, degenerate and hidden input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import NEAR, Problem, gradients, problem, run

pytestmark = pytest.mark.optimized

KINDS = ("softmax", "alpha")
GAMMA = jnp.float32(0.1)


def changed(case: Problem, **fields) -> Problem:
    return Problem(**{**vars(case), **fields})


def image(case: Problem, kind: str, **options):
    options = (("kind", kind), *options.items())
    return jax.tree.map(np.asarray, run(case.arrays(np.float32), GAMMA, options))


def pulled(case: Problem, kind: str, **options):
    options = (("kind", kind), *options.items())
    found = gradients(case.arrays(np.float32), GAMMA, options)
    return jax.tree.map(np.asarray, found)


def few(count: int, **fields) -> Problem:
    return changed(problem(spheres=count, grid=(1, 5, 6)), **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_no_spheres(kind):
    out = image(few(0), kind, nearest=2, hit_counts=True)
    background = few(0).background.astype(np.float32)
    np.testing.assert_array_equal(out.features, np.tile(background, (1, 5, 6, 1)))
    assert not out.depth.any() and not out.alpha.any() and not out.counts.any()
    assert np.all(out.ids == -1)
    found = pulled(few(0), kind)
    phase = np.arange(90, dtype=np.float32).reshape(1, 5, 6, 3)
    expected = (0.7 * np.sin(1.3 * phase)).sum(axis=(0, 1, 2))
    np.testing.assert_allclose(found["background"], expected, atol=1e-5)
    assert found["centers"].shape == (0, 3) and not found["origins"].any()


@pytest.mark.parametrize("grid", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_rays(kind, grid):
    for sensor in ("pinhole", "pinhole, moving"):
        case = problem(sensor, spheres=5, grid=grid)
        assert image(case, kind).features.shape == (*grid, 3)
        found = pulled(case, kind)
        assert not any(found[name].any() for name in found if name != "background")


@pytest.mark.parametrize("kind", KINDS)
def test_more_nearest_hits_than_spheres(kind):
    out = image(few(3), kind, nearest=7)
    assert out.ids.shape == (1, 5, 6, 7) and np.all(out.ids[..., 3:] == -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [-9.0, NEAR / 2, 1e4], ids=["behind", "too-near", "too-far"])
def test_nothing_visible(kind, depth):
    case = few(4)
    case = changed(case, centers=case.centers * [1, 1, 0] + [0, 0, depth])
    out = image(case, kind, hit_counts=True)
    assert not out.counts.any() and not out.alpha.any()
    assert all(np.isfinite(x).all() for x in pulled(case, kind).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["centers", "radii", "opacities", "features"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sphere_that_is_not_finite_is_hidden(kind, field, value):
    case = few(6)
    broken = getattr(case, field).copy()
    broken.reshape(6, -1)[2, 0] = value
    without = changed(case, radii=np.where(np.arange(6) == 2, -1.0, case.radii))
    case = changed(case, **{field: broken})
    np.testing.assert_array_equal(image(case, kind).features, image(without, kind).features)
    assert all(np.isfinite(x).all() for x in pulled(case, kind).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "field, value",
    [
        ("origins", np.nan),
        ("origins", np.inf),
        ("directions", np.nan),
        ("directions", np.inf),
        ("directions", 3.0),
    ],
)
def test_a_bad_ray_shows_background_and_disturbs_no_other(kind, field, value):
    case = few(8)
    rays = getattr(case, field).copy()
    rays[0, 2, 3] = value
    broken = changed(case, **{field: rays})
    out, good = image(broken, kind), image(case, kind)
    np.testing.assert_allclose(out.features[0, 2, 3], case.background.astype(np.float32), rtol=1e-6)
    other = np.ones((1, 5, 6), bool)
    other[0, 2, 3] = False
    np.testing.assert_allclose(out.features[other], good.features[other], atol=1e-6)
    found = pulled(broken, kind)
    assert all(np.isfinite(x).all() for x in found.values())
    assert not found["origins"][0, 2, 3].any() and not found["directions"][0, 2, 3].any()


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_spheres_have_finite_gradients(kind):
    # A ray through a center, a tangent ray, coincident spheres, radius 0, opacities 0 and 1.
    case = few(8)
    ahead = np.broadcast_to([0.0, 0.0, 1.0], case.directions.shape).copy()
    tilted = np.array([0.1, 0.0, np.sqrt(1 - 0.01)])
    ahead[0, 1] = tilted
    centers = np.array([[0, 0, 9.0]] * 3 + [[1.0, 0, 9]] + [[0, 0, 12.0]] * 2 + [[0.5, 0, 5.0]] * 2)
    radii = np.array([1.0, 1.0, 0.0, 1.0, 2.0, 2.0, 0.5, 0.01])
    opacities = np.array([0.0, 1.0, 1.0, 0.5, 1.0, 0.0, 1.0, 0.3])
    case = changed(case, centers=centers, radii=radii, opacities=opacities, directions=ahead)
    for hits in (None, 2):
        found = pulled(case, kind, gradient_hits=hits)
        assert all(np.isfinite(x).all() for x in found.values())
    assert np.abs(pulled(case, kind)["opacities"][0]) > 0  # opacity 0 may rise


@pytest.mark.parametrize("kind", KINDS)
def test_radius_zero_is_seen(kind):
    case = few(1)
    ahead = case.directions[0, 2, 3]
    centers = 4.0 * ahead[None] + case.origins[0, 2, 3]
    case = changed(case, centers=centers, radii=np.zeros(1), opacities=np.ones(1))
    out = image(case, kind, hit_counts=True)
    assert out.counts[0, 2, 3] == 1 and out.counts.sum() <= 4
    assert (out.alpha[0, 2, 3] > 0.4) == (kind == "softmax")  # for alpha it covers nothing


def test_thin_spheres_keep_their_opacity_mass():
    # Shrinking below a pixel must not change the summed alpha faster than the area r^2.
    def mass(radius, offset):
        case = problem(spheres=1, grid=(1, 24, 24))
        centers = np.array([[offset[0], offset[1], 9.0]])
        case = changed(case, centers=centers, radii=np.array([radius]), opacities=np.ones(1))
        return image(case, "alpha").alpha.sum() / radius**2

    draw = np.random.default_rng(0)
    offsets = draw.uniform(-0.5, 0.5, (40, 2))
    thin, thick = (np.mean([mass(r, o) for o in offsets]) for r in (0.15, 1.5))
    assert abs(thin / thick - 1) < 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_one_sphere_over_everything(kind):
    case = problem(spheres=2, grid=(1, 70, 90))
    case = changed(
        case, centers=np.array([[0, 0, 100.0], [0, 0, 9.0]]), radii=np.array([80.0, 1.0])
    )
    out = image(case, kind, hit_counts=True)
    assert np.all(out.counts >= 1)


@pytest.mark.parametrize("kind", KINDS)
def test_wide_angle_spheres_are_not_lost(kind):
    # A sphere that reaches past the camera's plane, seen by a camera of almost 180 degrees.
    case = problem("pinhole", spheres=1, grid=(1, 31, 31))
    x = np.tan(np.linspace(-1.5, 1.5, 31))
    rays = np.stack([*np.meshgrid(x, x), np.ones((31, 31))], axis=-1)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    case = changed(
        case,
        directions=rays[None],
        origins=np.zeros((1, 31, 31, 3)),
        centers=np.array([[3.0, 0.0, 0.5]]),
        radii=np.array([2.0]),
    )
    beside = np.linalg.norm(np.cross(case.centers, rays), axis=-1)
    ahead = rays @ case.centers[0] > 0
    chord = np.sqrt(beside**2 + (np.linalg.norm(case.centers) - rays @ case.centers[0]) ** 2)
    expected = (chord <= 2.0) & ahead
    out = image(case, kind, hit_counts=True)
    assert expected.sum() > 100
    np.testing.assert_array_equal(out.counts[0] > 0, expected)
