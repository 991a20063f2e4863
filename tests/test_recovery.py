"""Optimisation finds calibration and poses again that it starts wrong, in scenes that are known.

What is learned is the wrong value alone, from the difference of renderings: gradients go through
rays and blend to sensors, clocks and actors.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrec import losses
from jaxrec.geometry import compose, rigid_from_twist
from jaxrec.rendering import render, render_lidar
from jaxrec.scene import STATIC, Actors, Spheres
from jaxrec.sensors import PinholeCamera, RollingShutterCamera, SpinningLidar
from jaxrec.trajectory import Trajectory

pytestmark = pytest.mark.slow

NEAR, FAR = 0.3, 60.0
WIDTH, HEIGHT = 40, 30
# Camera axes (x right, y down, z forward) in a body whose x is forward, y left and z up.
FORWARD = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]], np.float32)
MOUNT = np.array([[1, 0, 0, 1.2], [0, 1, 0, 0.3], [0, 0, 1, 0.5], [0, 0, 0, 1]], np.float32)
# A tenth of a metre and a degree, each along a direction that no axis has to itself.
WRONG = np.concatenate(
    [np.deg2rad(1) * np.array([0.6, -0.48, 0.64]), 0.1 * np.array([0.36, 0.8, -0.48])]
).astype(np.float32)


def clutter(count=220, seed=0, channels=3, low=(4, -5, -2.5), high=(16, 5, 3.5)) -> Spheres:
    draw = np.random.default_rng(seed)
    features = draw.uniform(0, 1, (count, channels))
    return Spheres.create(
        draw.uniform(low, high, (count, 3)).astype(np.float32),
        draw.uniform(0.4, 0.9, count).astype(np.float32),
        np.full(count, 0.9, np.float32),
        features.astype(np.float32),
    )


def pinhole(pose=FORWARD, distortion=None) -> PinholeCamera:
    return PinholeCamera(
        pose, [36.0, 36.0], [WIDTH / 2, HEIGHT / 2], distortion, width=WIDTH, height=HEIGHT
    )


def bend() -> Trajectory:
    """Half a second at 8 m/s in a bend, and a bump."""
    times = np.linspace(0, 0.5, 6)
    twists = np.zeros((6, 6), np.float32)
    twists[:, 2], twists[:, 1] = 0.8 * times, 0.05 * np.sin(20 * times)
    twists[:, 3], twists[:, 4] = 8 * times, 1.5 * times**2
    return Trajectory(jax.vmap(rigid_from_twist)(jnp.asarray(twists)), times)


def image(spheres, camera):
    return render(spheres, camera, near=NEAR, far=FAR, background=0.5).features


def recover(loss, start, *, rate, steps=200):
    """Adam with a rate that falls to nothing; the loss, before and after, and what was found."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    @jax.jit
    def step(value, state):
        error, gradient = jax.value_and_grad(loss)(value)
        with jax.numpy_dtype_promotion("standard"):
            update, state = optimizer.update(gradient, state, value)
        return optax.apply_updates(value, update), state, error

    value, state, first = start, optimizer.init(start), None
    for _ in range(steps):
        value, state, error = step(value, state)
        first = error if first is None else first
    assert error < 0.05 * first
    return np.asarray(value, np.float64)


def angle_and_distance(twist, truth):
    """Degrees and metres between two rigid motions."""
    apart = np.linalg.inv(rigid_from_twist(jnp.asarray(truth, jnp.float32))) @ np.asarray(
        rigid_from_twist(jnp.asarray(twist, jnp.float32))
    )
    sine = np.linalg.norm(apart[:3, :3] - apart[:3, :3].T) / np.sqrt(8)
    return np.rad2deg(np.arcsin(sine)), np.linalg.norm(apart[:3, 3])


def test_a_focal_length_that_is_ten_percent_long():
    spheres, camera = clutter(), pinhole()
    target = jax.jit(image)(spheres, camera)

    def loss(logarithm):
        changed = dataclasses.replace(camera, focal=camera.focal * jnp.exp(logarithm))
        return losses.mse(image(spheres, changed), target)

    found = recover(loss, jnp.log(jnp.float32(1.1)), rate=0.01)
    assert abs(np.exp(found) - 1) < 1e-4


def test_a_radial_distortion_that_was_taken_for_none():
    spheres = clutter()
    lens = jnp.asarray([-0.15, 0, 0, 0, 0], jnp.float32)
    target = jax.jit(image)(spheres, pinhole(distortion=lens))

    def loss(k1):
        changed = pinhole(distortion=jnp.zeros(5).at[0].set(k1))
        return losses.mse(image(spheres, changed), target)

    assert abs(recover(loss, jnp.float32(0), rate=0.01) + 0.15) < 2e-4


def shutters(twist, offset=0.0):
    """Three exposures along the bend, from the bottom line up and down again."""
    pose = compose(jnp.asarray(MOUNT @ FORWARD), rigid_from_twist(twist))
    camera = dataclasses.replace(pinhole(), world_from_camera=pose)
    return [
        RollingShutterCamera(camera, bend(), start, start + 0.03, offset=offset)
        for start in (0.05, 0.2, 0.4)
    ]


def test_a_camera_mounted_elsewhere():
    spheres = clutter()
    targets = [jax.jit(image)(spheres, shutter) for shutter in shutters(jnp.asarray(WRONG))]

    def loss(twist):
        pairs = zip(shutters(twist), targets, strict=True)
        return sum(losses.mse(image(spheres, shutter), target) for shutter, target in pairs)

    degrees, metres = angle_and_distance(recover(loss, jnp.zeros(6), rate=0.01, steps=120), WRONG)
    assert degrees < 0.02 and metres < 0.002


def test_a_camera_whose_clock_is_late():
    spheres, straight = clutter(), jnp.zeros(6)
    targets = [jax.jit(image)(spheres, shutter) for shutter in shutters(straight, 0.01)]

    def loss(hundredths):
        pairs = zip(shutters(straight, hundredths / 100), targets, strict=True)
        return sum(losses.mse(image(spheres, shutter), target) for shutter, target in pairs)

    found = recover(loss, jnp.float32(0), rate=0.1, steps=120)
    assert abs(found / 100 - 0.01) < 1e-4


def test_how_fast_a_car_drives_and_a_camera_whose_clock_is_late():
    # What is late and what moves is told apart by the bend, in which the camera moves too.
    still = clutter(count=120)
    spheres = dataclasses.replace(still, velocities=jnp.zeros((120, 3)), time=jnp.float32(0.2))

    def images(guess):
        velocities = jnp.where((jnp.arange(120) < 60)[:, None], guess[:3], 0)
        moving = dataclasses.replace(spheres, velocities=10 * velocities)
        shutter = RollingShutterCamera(pinhole(), bend(), 0.18, 0.24, offset=guess[3] / 100)
        return image(moving, shutter)

    truth = jnp.float32([1.0, -0.5, 0.1, 1.0])
    target = jax.jit(images)(truth)
    found = recover(lambda guess: losses.mse(images(guess), target), jnp.zeros(4), rate=0.1)
    # Within 0.3 m/s and 0.1 ms.
    np.testing.assert_allclose(found[:3], truth[:3], atol=0.03)
    assert abs(found[3] - 1) < 0.01


def lidar(twist=None, offset=0.0):
    pose = jnp.asarray(MOUNT)
    pose = pose if twist is None else compose(pose, rigid_from_twist(twist))
    return SpinningLidar(
        pose,
        bend(),
        np.linspace(0.25, -0.25, 16),
        np.linspace(0.8, -0.8, 120),
        start=0.15,
        end=0.25,
        offset=offset,
        beam=(0.002, 1e-3),
    )


def ranges(spheres, lidar):
    seen = render_lidar(spheres, lidar, near=NEAR, far=FAR)
    return seen.ranges, seen.alpha > 0.5


def lidar_loss(spheres, target):
    """Huber difference where both see something: edges that pass a ray pull no more than others."""
    measured, returned = target

    def loss(sensor):
        seen, there = ranges(spheres, sensor)
        return losses.range_huber(seen, measured, returned & there, width=0.2)

    return loss


def test_a_lidar_mounted_elsewhere():
    spheres = clutter(channels=2)
    compare = lidar_loss(spheres, jax.jit(ranges)(spheres, lidar(jnp.asarray(WRONG))))
    twist = recover(lambda twist: compare(lidar(twist)), jnp.zeros(6), rate=0.01)
    degrees, metres = angle_and_distance(twist, WRONG)
    assert degrees < 0.01 and metres < 0.001


def test_a_lidar_whose_clock_is_late():
    spheres = clutter(channels=2)
    compare = lidar_loss(spheres, jax.jit(ranges)(spheres, lidar(offset=0.01)))
    found = recover(lambda x: compare(lidar(offset=x / 100)), jnp.float32(0), rate=0.1, steps=120)
    assert abs(found / 100 - 0.01) < 5e-5


def test_an_actor_that_is_beside_its_track():
    # A van crosses in front of the clutter, and its box was labelled 0.3 m off.
    static = clutter(120, low=(10, -6, -2.5), high=(18, 6, 3.5))
    van = clutter(40, seed=1, low=(-1.5, -0.7, -0.7), high=(1.5, 0.7, 0.7))
    scene = jax.tree.map(lambda *parts: jnp.concatenate(parts), static, van)
    owner = jnp.asarray([STATIC] * 120 + [0] * 40, jnp.int32)
    times = np.linspace(0, 1, 5)
    twists = np.zeros((5, 6), np.float32)
    twists[:, 2], twists[:, 3], twists[:, 4] = 1.2 + 0.4 * times, 7, 3 * times - 2
    track = Trajectory(jax.vmap(rigid_from_twist)(jnp.asarray(twists)), times)
    actors = Actors.create({"van": track})
    shift = np.float32([0, 0, 0.03, 0.2, -0.2, 0.1])
    # A second camera 4 m to the left: from one place, distance and size are nearly the same.
    cosine, sine = np.cos(0.4), np.sin(0.4)
    beside = [[cosine, sine, 0, 0], [-sine, cosine, 0, 4], [0, 0, 1, 0], [0, 0, 0, 1]]
    cameras = [pinhole(), pinhole(np.float32(beside) @ FORWARD)]

    def images(twist):
        moved = dataclasses.replace(actors, twists=twist[None, None])
        spheres = [moved.placed(scene, owner, jnp.float32(time)).spheres for time in (0.3, 0.8)]
        return [image(one, camera) for one, camera in zip(spheres, cameras, strict=True)]

    targets = jax.jit(images)(jnp.asarray(shift))

    def loss(twist):
        pairs = zip(images(twist), targets, strict=True)
        return sum(losses.mse(seen, target) for seen, target in pairs)

    assert np.linalg.norm(shift[3:]) == pytest.approx(0.3)
    degrees, metres = angle_and_distance(recover(loss, jnp.zeros(6), rate=0.02, steps=150), shift)
    assert degrees < 0.05 and metres < 0.003
