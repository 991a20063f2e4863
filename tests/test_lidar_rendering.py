"""What lidars bring back from scenes of spheres whose surfaces are known."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxrec.rendering import first_surface, render_lidar, second_return
from jaxrec.scene import Spheres
from jaxrec.sensors import RayBundle, SpinningLidar
from jaxrec.trajectory import Still, Trajectory

NEAR, FAR = 0.3, 100.0
I4 = np.eye(4, dtype=np.float32)


def wall(distance, *, width=(-4.0, 4.0), opacity=0.95, seed=0, intensity=0.5, logit=-3.0):
    """Spheres on x = distance, 10 cm apart and 20 cm in radius: several deep to any beam."""
    y, z = np.meshgrid(np.arange(*width, 0.1), np.arange(-0.5, 0.5, 0.1))
    draw = np.random.default_rng(seed)
    shift = draw.uniform(-0.02, 0.02, (2, y.size))
    centers = np.stack([np.full(y.size, distance), y.ravel() + shift[0], z.ravel() + shift[1]], -1)
    features = np.tile([intensity, logit], (y.size, 1))
    return centers, np.full(y.size, 0.2), np.full(y.size, opacity), features


def scene(*walls, dtype=np.float32, capacity=None):
    parts = (np.concatenate(arrays).astype(dtype) for arrays in zip(*walls, strict=True))
    return Spheres.create(*parts, capacity=capacity)


def forward_lidar(dtype=np.float32, rows=5, columns=21, beam=(0.002, 5e-4)):
    """Looks along x, 0.3 rad to both sides."""
    elevation = np.linspace(0.04, -0.04, rows)[:, None]
    azimuth = np.linspace(-0.3, 0.3, columns)[None]
    flat = np.cos(elevation) * np.ones_like(azimuth)
    directions = np.stack(
        [flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation) + 0 * azimuth], axis=-1
    )
    pose = Still(np.eye(4, dtype=dtype))
    times = np.zeros((rows, columns))
    return RayBundle(np.eye(4, dtype=dtype), pose, directions, times, beam=beam)


look = jax.jit(lambda spheres, lidar: render_lidar(spheres, lidar, near=NEAR, far=FAR))
surface = jax.jit(
    lambda spheres, lidar: first_surface(spheres, lidar, near=NEAR, far=FAR, separation=0.5)
)
behind = jax.jit(
    lambda spheres, lidar, first: second_return(spheres, lidar, first, separation=0.5, far=FAR)
)


def to_plane(lidar, distance):
    return distance / np.asarray(lidar.rays().directions)[..., 0]


def test_a_wall_is_where_it_is():
    lidar, spheres = forward_lidar(), scene(wall(10))
    seen = look(spheres, lidar)
    truth = to_plane(lidar, 10)
    assert np.all(np.asarray(seen.alpha) > 0.97)
    # Seen at an angle t, a center p beside the ray is p tan(t) nearer or further along it, and the
    # nearer ones come first: at most 0.2 m x 0.31.
    np.testing.assert_allclose(seen.ranges, truth, atol=0.062)
    middle = np.s_[:, 9:12]
    np.testing.assert_allclose(seen.ranges[middle], truth[middle], atol=5e-3)
    np.testing.assert_allclose(surface(spheres, lidar), seen.ranges, atol=2e-3)


def test_the_soft_blend_sees_the_front_of_spheres():
    # Its depth is that of the front: 0.2 m before the plane of the centers, and less beside them.
    spheres, lidar = scene(wall(10, opacity=1.0)), forward_lidar()
    seen = jax.jit(
        lambda spheres: render_lidar(
            spheres, lidar, near=NEAR, far=FAR, gamma=1e-4, kind="softmax", stop="per_sphere"
        )
    )(spheres)
    front = to_plane(lidar, 10) - np.asarray(seen.ranges)
    assert np.all(np.asarray(seen.alpha) > 0.99) and np.all((front > 0.1) & (front < 0.3))
    np.testing.assert_allclose(seen.intensities, 0.5, rtol=1e-3)


def test_intensity_and_drop_are_those_of_the_surface():
    lidar = forward_lidar()
    seen = look(scene(wall(10, intensity=0.7, logit=1.2)), lidar)
    np.testing.assert_allclose(seen.intensities, 0.7, rtol=1e-5)
    kept = 1 / (1 + np.exp(1.2))
    np.testing.assert_allclose(seen.drops, 1 - np.asarray(seen.alpha) * kept, rtol=1e-5)
    assert np.all(np.asarray(seen.drops) > 0.76)
    assert np.all(np.asarray(look(scene(wall(10)), lidar).drops) < 0.1)


def test_where_nothing_is_beams_are_dropped():
    lidar = forward_lidar()
    seen = look(scene(wall(10, width=(0.5, 4))), lidar)
    empty = np.asarray(seen.alpha) == 0
    assert empty[:, :8].all() and not empty[:, 14:].any()
    for field in (seen.ranges, seen.intensities, surface(scene(wall(10, width=(0.5, 4))), lidar)):
        assert not np.any(np.asarray(field)[empty]) and np.all(np.isfinite(field))
    np.testing.assert_array_equal(np.asarray(seen.drops)[empty], 1)


def test_an_edge_has_one_distance():
    # A plate at 5 m before a wall at 10 m; some beams see both.
    spheres, lidar = scene(wall(5, width=(0, 3)), wall(10)), forward_lidar(columns=301)
    expected, first = look(spheres, lidar).ranges, surface(spheres, lidar)
    plate, back = to_plane(lidar, 5), to_plane(lidar, 10)

    def between(ranges):
        return np.sum((ranges > plate + 0.1) & (ranges < back - 0.1))

    assert between(expected) >= 10
    assert between(first) == 0
    on_plate = np.abs(first - plate) < 0.1
    assert 500 < on_plate.sum() < 900


def test_the_second_return_is_the_next_surface():
    spheres, lidar = scene(wall(5, width=(0, 4)), wall(10, intensity=0.2)), forward_lidar()
    first = look(spheres, lidar)
    second = behind(spheres, lidar, surface(spheres, lidar))
    right = np.asarray(lidar.rays().directions)[..., 1] > 0.05
    np.testing.assert_allclose(np.asarray(first.ranges)[right], to_plane(lidar, 5)[right], atol=0.1)
    np.testing.assert_allclose(
        np.asarray(second.ranges)[right], to_plane(lidar, 10)[right], atol=0.062
    )
    np.testing.assert_allclose(np.asarray(second.intensities)[right], 0.2, rtol=1e-5)
    # Behind the wall is nothing, and nothing is the next surface there.
    left = np.asarray(lidar.rays().directions)[..., 1] < -0.05
    assert not np.any(np.asarray(second.alpha)[left]) and not np.any(second.ranges[left])
    np.testing.assert_array_equal(np.asarray(second.drops)[left], 1)


def test_a_ray_without_a_first_return_has_no_second():
    spheres, lidar = scene(wall(5), wall(10)), forward_lidar()
    first = jnp.asarray(to_plane(lidar, 5), jnp.float32).at[0].set(0).at[1].set(jnp.nan)
    second = behind(spheres, lidar, first)
    assert not np.any(second.alpha[:2]) and np.all(np.asarray(second.alpha[2:]) > 0.97)
    assert all(np.all(np.isfinite(leaf)) for leaf in second)


def test_surfaces_closer_than_the_lidar_tells_apart_are_one():
    spheres, lidar = scene(wall(5), wall(5.3), wall(10)), forward_lidar()
    second = behind(spheres, lidar, jnp.asarray(to_plane(lidar, 5), jnp.float32))
    np.testing.assert_allclose(second.ranges, to_plane(lidar, 10), atol=0.062)


def test_a_wider_beam_finds_what_a_narrow_one_misses():
    # A wire 2 cm wide at 10 m, between two rays 3 cm apart.
    wire = Spheres.create(
        np.stack([np.full(40, 10.0), np.zeros(40), np.linspace(-1, 1, 40)], axis=-1),
        np.full(40, 0.01),
        np.full(40, 0.95),
        np.tile([0.5, -3.0], (40, 1)),
    )
    lidar = forward_lidar(columns=200)
    narrow, wide = (
        look(wire, dataclasses.replace(lidar, beam=jnp.asarray(beam)))
        for beam in ([0.0, 1e-5], [0.0, 3e-3])
    )
    assert np.max(narrow.alpha) == 0 and np.max(wide.alpha) > 0


def test_a_moving_lidar_sees_a_straight_wall():
    # 2 m sideways in one turn: with its rays' own origins the wall stays in one place.
    poses = np.tile(I4, (2, 1, 1))
    poses[1, 1, 3] = 2
    azimuths = np.linspace(-0.2, 0.2, 41)
    drive = Trajectory(poses, np.array([0.0, 0.1]), edge="hold")
    lidar = SpinningLidar(I4, drive, [0.02, -0.02], azimuths, start=0.0, end=0.1)
    seen, rays = look(scene(wall(10)), lidar), lidar.rays()
    points = rays.origins + seen.ranges[..., None] * rays.directions
    assert np.median(np.abs(points[..., 0] - 10)) < 0.02


def test_a_stack_is_a_loop():
    spheres, lidar = scene(wall(8), capacity=900), forward_lidar()
    moved = dataclasses.replace(lidar, body_from_sensor=lidar.body_from_sensor.at[0, 3].set(1.5))
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), lidar, moved)
    both, first = look(spheres, stack), surface(spheres, stack)
    second = behind(scene(wall(8), wall(12)), stack, first)
    for view, alone in enumerate((lidar, moved)):
        for ours, theirs in zip(both, look(spheres, alone), strict=True):
            np.testing.assert_allclose(ours[view], theirs, atol=1e-4)
        np.testing.assert_allclose(first[view], surface(spheres, alone), atol=1e-4)
    np.testing.assert_allclose(second.ranges[0], to_plane(lidar, 12), atol=0.1)


def test_rays_without_a_pose_bring_nothing_and_no_gradient():
    poses = np.tile(I4, (2, 1, 1))
    lidar = SpinningLidar(
        I4, Trajectory(poses, np.array([0.0, 0.05])), [0.0], np.linspace(-0.2, 0.2, 9),
        start=0.0, end=0.1,
    )  # fmt: skip

    @jax.jit
    def loss(lidar):
        seen = look(scene(wall(10)), lidar)
        later = behind(scene(wall(10), wall(20)), lidar, seen.ranges)
        return jnp.sum(seen.ranges + seen.drops + seen.intensities + later.ranges + later.drops)

    missing = np.asarray(lidar.rays().times)[0] > 0.05
    np.testing.assert_array_equal(np.asarray(look(scene(wall(10)), lidar).drops)[0, missing], 1)
    gradient = jax.grad(loss)(lidar)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_renderings_have_exact_derivatives(x64):
    # A few large spheres, so that no ray crosses a rim within a step.
    draw = np.random.default_rng(4)
    near = np.stack([draw.uniform(5, 5.5, 6), *draw.uniform(-1, 1, (2, 6))], axis=-1)
    far = near + np.array([5, 0, 0])
    features = draw.normal(size=(12, 2))
    spheres = Spheres.create(
        np.concatenate([near, far]), np.full(12, 2.0), draw.uniform(0.2, 0.6, 12), features
    )
    lidar = forward_lidar(np.float64, rows=2, columns=3)
    first = np.full((2, 3), 6.0)
    twist = np.array([0.01, -0.02, 0.03, 0.1, -0.1, 0.05])

    def loss(centers, radii, opacities, features, shift, azimuth):
        changed = Spheres(centers, radii, opacities, features, spheres.alive)
        pose = lidar.body_from_sensor.at[:3, 3].add(shift)
        directions = lidar.directions + azimuth * jnp.asarray([[[0.0, 1.0, 0.5]]])
        moved = dataclasses.replace(lidar, body_from_sensor=pose, directions=directions)
        seen = render_lidar(changed, moved, near=NEAR, far=FAR)
        later = second_return(changed, moved, jnp.asarray(first), separation=0.5, far=FAR)
        weights = jnp.arange(1.0, 7.0).reshape(2, 3)
        return sum(jnp.sum(jnp.sin(leaf) * weights) for leaf in (*seen, *later))

    variables = (spheres.centers, spheres.radii, spheres.opacities, spheres.features)
    arguments = (*variables, jnp.asarray(twist[3:]), jnp.asarray(0.01))
    check_grads(jax.jit(loss), arguments, order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


LIDAR = forward_lidar()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda spheres: look(
                dataclasses.replace(spheres, features=spheres.features[:, :1]), LIDAR
            ),
            "spheres: got 1 features; give 2, the intensity and the logit",
        ),
        (
            lambda spheres: first_surface(spheres, LIDAR, near=1, far=9, separation=0.0),
            "first_surface: got separation=0.0, hits=16; give a distance above 0",
        ),
        (
            lambda spheres: second_return(spheres, LIDAR, jnp.zeros((2, 3)), separation=1, far=9),
            r"first: got shape \[2, 3\] for rays of \[5, 21\]; give one distance",
        ),
        (
            lambda spheres: second_return(spheres, LIDAR, jnp.zeros((5, 21)), separation=0, far=9),
            "separation: got 0; give a distance above 0",
        ),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call(scene(wall(10)))
