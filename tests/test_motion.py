"""Spheres that move while rays are measured: in `blend`, in rolling images and in sweeps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.rendering import first_surface, render, render_lidar, second_return
from jaxrec.scene import STATIC, Actors, Spheres
from jaxrec.sensors import PinholeCamera, RollingShutterCamera, SpinningLidar
from jaxrec.train import MovingScene
from jaxrec.trajectory import Trajectory
from problems import Problem, gradients, in_double, loss, problem, run

KINDS = ("softmax", "alpha")
GAMMA = jnp.float32(0.05)
ON_CPU = jax.default_backend() == "cpu"


def image(case: Problem, kind: str, **options):
    options = (("kind", kind), ("hit_counts", True), *options.items())
    return jax.tree.map(np.asarray, run(case.arrays(np.float32), GAMMA, options))


def changed(case: Problem, **fields) -> Problem:
    return Problem(**{**vars(case), **fields})


def at_time(case: Problem, time: float) -> Problem:
    """The spheres of a problem moved by hand, and still from then on."""
    return changed(case, centers=case.centers + case.velocities * time, velocities=None, times=None)


# ---- blend


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_move_is_seen_as_ever(kind):
    case = problem("pinhole, moving", grid=(2, 13, 17))
    still = image(at_time(case, 0.0), kind)
    standing = image(changed(case, velocities=0 * case.velocities), kind)
    for found, expected in zip(standing[:3], still[:3], strict=True):
        if ON_CPU:  # to the bit: a GPU takes another path for what may move
            np.testing.assert_array_equal(found, expected)
        assert np.mean(np.abs(found - expected) > 3e-5) < 0.003


@pytest.mark.parametrize("kind", KINDS)
def test_rays_of_one_time_see_spheres_that_were_moved_there(kind):
    case = problem("pinhole, moving", grid=(1, 13, 17))
    case = changed(case, times=np.full_like(case.times, 0.7))
    found, expected = image(case, kind), image(at_time(case, 0.7), kind)
    for x, y in zip(found[:3], expected[:3], strict=True):
        assert np.mean(np.abs(x - y) > 3e-5) < 0.003


def test_rays_without_times_see_no_motion():
    case = problem("pinhole, moving", grid=(1, 5, 6))
    *values, velocities, times = case.arrays(np.float32)

    def alpha(velocities, times):
        return run((*values, velocities, times), GAMMA, (("kind", "alpha"),)).features

    still = run(tuple(values), GAMMA, (("kind", "alpha"),)).features
    np.testing.assert_array_equal(alpha(velocities, None), still)
    assert np.abs(alpha(velocities, times) - still).max() > 0.1
    assert not jax.grad(lambda v: alpha(v, None).sum())(velocities).any()


@pytest.mark.parametrize("stop", [None, "per_sphere"])
def test_each_row_sees_the_spheres_where_they_are_then(stop):
    # Fast spheres: across the whole image, towards the camera through `near`, away through `far`.
    case = problem("pinhole, moving", spheres=30, grid=(1, 33, 41))
    draw = np.random.default_rng(3)
    velocities = case.velocities * 3
    velocities[:6] = [200.0, 0, 0]  # 10 m to the left, 10 m to the right
    velocities[6:12] = [0, 0, -200.0]
    velocities[12:18] = [0, 0, 900.0]
    centers, radii = case.centers.copy(), case.radii.copy()
    centers[:6] = np.stack([np.zeros(6), draw.uniform(-2, 2, 6), draw.uniform(4, 9, 6)], axis=-1)
    centers[6:12] = np.stack([*draw.uniform(-2, 2, (2, 6)), np.full(6, 5.0)], axis=-1)
    centers[12:18] = np.stack([*draw.uniform(-6, 6, (2, 6)), np.full(6, 20.0)], axis=-1)
    radii[:18] = draw.uniform(0.3, 1.5, 18)
    times = np.broadcast_to(np.linspace(-0.05, 0.05, 33)[None, :, None], (1, 33, 41))
    directions = case.directions.copy()
    directions[0, 4:7, 5:30] = np.nan  # no rays
    times = np.where(np.isnan(directions[..., 0]), 1e9, times)
    case = changed(
        case, centers=centers, radii=radii, velocities=velocities, times=times,
        directions=directions,
    )  # fmt: skip
    options = {"stop": stop, "stop_p": 1e-5} if stop else {}
    found = image(case, "softmax", **options)
    assert found.counts[0, 0].sum() != found.counts[0, -1].sum()
    for y in range(33):
        row = changed(
            at_time(case, np.linspace(-0.05, 0.05, 33)[y]),
            origins=case.origins[:, y : y + 1],
            directions=directions[:, y : y + 1],
        )
        alone = image(row, "softmax", **options)
        assert np.mean(found.counts[0, y] != alone.counts[0, 0]) <= 2 / 41 or stop, y
        # What stops may be another sphere, of which all weigh a hundred-thousandth.
        wrong = np.abs(found.features[0, y] - alone.features[0, 0]) > (1e-3 if stop else 1e-4)
        assert wrong.mean() <= 2 / 41, y


@pytest.mark.parametrize("field", ["velocities", "times"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_hidden(field, value):
    case = problem("pinhole, moving", spheres=8, grid=(1, 5, 6))
    broken = getattr(case, field).copy()
    broken[(0, 2, 3) if field == "times" else (2, 1)] = value
    if field == "times":
        rays = case.directions.copy()
        rays[0, 2, 3] = np.nan
        expected = changed(case, directions=rays)
    else:
        expected = changed(case, radii=np.where(np.arange(8) == 2, -1.0, case.radii))
    case = changed(case, **{field: broken})
    np.testing.assert_array_equal(image(case, "alpha").features, image(expected, "alpha").features)
    found = gradients(case.arrays(np.float32), GAMMA, (("kind", "alpha"),))
    assert all(np.isfinite(x).all() for x in found.values())
    assert not np.asarray(found[field])[(0, 2, 3) if field == "times" else 2].any()


# Kernels that test_blend.py leaves out: of more channels, and of long rows.
OTHERS = [
    ("softmax", 5, (1, 9, 10), 2),
    ("alpha", 5, (1, 9, 10), 2),
    ("softmax", 2, (1, 3, 40), None),
    ("alpha", 5, (1, 3, 40), None),
]


@pytest.mark.parametrize("kind, channels, grid, hits", OTHERS)
def test_gradients_of_every_kernel(kind, channels, grid, hits):
    case = problem("pinhole, moving", channels=channels, grid=grid)
    options = (("kind", kind), ("gradient_hits", hits))
    found = gradients(case.arrays(np.float32), GAMMA, options)
    again = gradients(case.arrays(np.float32), GAMMA, options)
    expected = in_double(gradients, case, 0.05, options)
    for name, truth in expected.items():
        np.testing.assert_array_equal(found[name], again[name])
        error, scale = np.abs(found[name] - truth), np.abs(truth).max()
        assert np.sum(error > 1e-3 * scale) <= max(3, 0.005 * error.size), name
        assert scale > 0 and error.max() <= 0.03 * scale, name


@pytest.mark.parametrize("kind", KINDS)
def test_views_and_scenes_are_independent(kind):
    cases = [problem("lidar, moving", seed=s, grid=(2, 5, 9)).arrays(np.float32) for s in (0, 1)]
    velocities = cases[0][8]  # shared by all

    def one(*values):
        return run((*values[:8], velocities, values[8]), GAMMA, (("kind", kind),))

    split = [(*case[:8], case[9]) for case in cases]
    out = jax.vmap(one)(*(jnp.stack(x) for x in zip(*split, strict=True)))
    for i, case in enumerate(split):
        alone = one(*case)
        jax.tree.map(lambda x, y, i=i: np.testing.assert_array_equal(x[i], y), out, alone)
        for v in range(2):
            views = [x[v : v + 1] for x in (*case[4:7], case[8])]
            view = one(*case[:4], *views[:3], case[7], views[3])
            jax.tree.map(lambda x, y, v=v: np.testing.assert_array_equal(x[v], y[0]), alone, view)


def test_gradients_of_a_batch_are_those_of_each():
    case = problem("pinhole, moving", spheres=10, grid=(1, 4, 5)).arrays(np.float32)
    shifted = jnp.stack([case[9], case[9] + 0.1, case[9] - 0.2])

    def value(velocities, times):
        return loss(run((*case[:8], velocities, times), GAMMA, (("kind", "alpha"),)))

    gradient = jax.grad(value, argnums=(0, 1))
    batch = jax.vmap(gradient, in_axes=(None, 0))(case[8], shifted)
    for i, times in enumerate(shifted):
        for x, y in zip(batch, gradient(case[8], times), strict=True):
            np.testing.assert_allclose(x[i], y, atol=1e-6 * np.abs(y).max())


# ---- sensors


def car(key, features: int = 3, count: int = 300) -> Spheres:
    """The sides of a box, 4 m long, textured."""
    keys = jax.random.split(key, 3)
    size = jnp.float32([4.0, 1.6, 1.4])
    points = jax.random.uniform(keys[0], (count, 3), minval=-0.5, maxval=0.5)
    side = jax.nn.one_hot(jax.random.randint(keys[1], (count,), 0, 3), 3, dtype=bool)
    points = jnp.where(side, jnp.where(points < 0, -0.5, 0.5), points) * size[None]
    colors = jax.random.uniform(keys[2], (count, features))
    velocity = jnp.tile(jnp.float32([[12.0, 3.0, 0.0]]), (count, 1))
    return Spheres.create(
        points + jnp.float32([[0.0, 6.0, 0.0]]), jnp.full(count, 0.15), jnp.full(count, 0.9),
        colors, velocities=velocity, time=jnp.float32(100.0),
    )  # fmt: skip


def then(spheres: Spheres, time: float) -> Spheres:
    """Moved by hand."""
    passed = jnp.float32(time) - spheres.time
    centers = spheres.centers + spheres.velocities * passed
    return dataclasses.replace(spheres, centers=centers, velocities=None, time=None)


LOOKING_AHEAD = np.array([[1, 0, 0, 0], [0, 0, 1, -1.0], [0, -1, 0, 0], [0, 0, 0, 1]], np.float32)


def pinhole(pose, width, height):
    return PinholeCamera(pose, [30.0, 30.0], [width / 2, height / 2], width=width, height=height)


def rolling(width=40, height=24):
    camera = pinhole(np.eye(4, dtype=np.float32), width, height)
    poses = np.tile(LOOKING_AHEAD, (2, 1, 1))
    poses[1, 0, 3] = 0.4
    path = Trajectory(poses, np.array([99.9, 100.1]))
    return RollingShutterCamera(camera, path, 99.97, 100.03)


def test_a_moving_car_is_sharp_in_a_rolling_image(key):
    spheres, camera = car(key), rolling()
    options = {"near": 0.1, "far": 40.0, "kind": "softmax", "gamma": 1e-2}
    times = np.asarray(jax.jit(camera.rays)().times)
    seen = jax.jit(lambda spheres: render(spheres, camera, **options))
    found, frozen = seen(spheres), seen(then(spheres, 100.0))
    worst = 0.0
    for line in range(0, 24, 4):
        alone = seen(then(spheres, times[line, 0]))
        wrong = np.abs(found.features[line] - alone.features[line])
        assert np.mean(wrong > 2e-3) < 0.01, line
        worst = max(worst, float(np.abs(frozen.features[line] - alone.features[line]).max()))
    assert worst > 0.3 and np.asarray(found.alpha).max() > 0.9


def test_a_moving_car_is_straight_in_a_sweep(key):
    spheres = car(key, features=2)
    poses = np.tile(np.eye(4, dtype=np.float32), (2, 1, 1))
    poses[1, :3, 3] = [0.5, 0.2, 0.0]
    lidar = SpinningLidar(
        np.eye(4, dtype=np.float32), Trajectory(poses, np.array([99.95, 100.05])),
        np.linspace(-0.1, 0.1, 6, dtype=np.float32),
        np.linspace(np.pi, 0.2, 60, dtype=np.float32), start=99.95, end=100.05,
    )  # fmt: skip
    options = {"near": 0.1, "far": 40.0}
    kind = {"kind": "softmax", "gamma": 1e-2}

    @jax.jit
    def swept(spheres, first):
        behind = second_return(spheres, lidar, first, separation=0.2, far=40.0, **kind)
        ranges = render_lidar(spheres, lidar, **options, **kind).ranges
        return ranges, behind.ranges, first_surface(spheres, lidar, separation=0.2, **options)

    first = jax.jit(lambda spheres: render_lidar(spheres, lidar, **options, **kind).ranges)(spheres)
    found = swept(spheres, first)
    assert np.mean(np.asarray(found[2]) > 0) > 0.1
    times = np.asarray(jax.jit(lidar.rays)().times)
    standing = swept(dataclasses.replace(spheres, velocities=None, time=None), first)
    moved = 0.0
    for column in range(20, 44, 4):
        alone = swept(then(spheres, times[0, column]), first)
        for x, y in zip(found, alone, strict=True):
            wrong = np.abs(x[:, column] - y[:, column])
            assert np.sum(wrong > 5e-3) <= 1, (column, wrong)
        moved = max(moved, float(np.abs(standing[2][:, column] - alone[2][:, column]).max()))
    assert moved > 0.1


def test_a_sensor_without_a_clock_sees_the_spheres_at_their_time(key):
    spheres = car(key)
    camera = pinhole(LOOKING_AHEAD, 20, 12)
    seen = jax.jit(lambda spheres: render(spheres, camera, near=0.1, far=40.0))
    found, expected = seen(spheres), seen(dataclasses.replace(spheres, velocities=None))
    np.testing.assert_array_equal(found.features, expected.features)


def test_velocities_outlive_the_parameters_of_an_optimiser(key):
    spheres = car(key)
    again = spheres.unconstrained().constrained()
    np.testing.assert_array_equal(again.velocities, spheres.velocities)
    assert again.time == 100.0


def test_actors_move_within_an_exposure(key):
    still = dataclasses.replace(car(key), velocities=None, time=None)
    poses = np.tile(np.eye(4, dtype=np.float32), (2, 1, 1))
    poses[1, :3, 3] = [12.0, 3.0, 0.0]
    actors = Actors.create({"car": Trajectory(poses, np.array([99.5, 100.5]))})
    owner = jnp.where(jnp.arange(300) < 100, STATIC, 0)
    sky = jnp.zeros((2, 4, 3))
    scene = MovingScene(still.unconstrained(), owner, actors, sky, 0.1, 40.0)
    now, later = (scene.at(jnp.float32(time)) for time in (100.0, 100.03))
    np.testing.assert_allclose(then(now, 100.03).centers, later.centers, atol=1e-4)
    assert np.abs(later.centers - now.centers).max() > 0.3
    camera = rolling()
    seen = jax.jit(lambda time: scene.photograph(camera, time).color)
    # Seen in the middle and before it, linear motion is the same.
    early, middle = seen(jnp.float32(99.98)), seen(jnp.float32(100.0))
    assert np.mean(np.abs(early - middle) > 0.02) < 0.02 and np.asarray(middle).max() > 0.5
    alone = dataclasses.replace(scene, actors=Actors.create({}), actor=jnp.full(300, STATIC))
    assert alone.at(jnp.float32(100.0)).velocities is None
