"""Points as depths of pixels, and what they ask of a rendered camera."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec import losses
from jaxrec.rendering import render
from jaxrec.scene import Spheres
from jaxrec.sensors import (
    EquirectangularLens,
    LensCamera,
    OrthographicCamera,
    PinholeCamera,
    RollingShutterCamera,
    depth_image,
)
from jaxrec.trajectory import Trajectory

I4 = np.eye(4, dtype=np.float32)


def pinhole(width=16, height=12):
    return PinholeCamera(I4, [16.0, 16.0], [8.0, 6.0], width=width, height=height)


POINTS = np.array([[0.1, 0.1, 4], [0.11, 0.11, 4.1], [-3, 1, 8], [0.1, 0.1, -4], [90, 0, 8]])


def test_pixels_have_the_depth_of_their_nearest_point():
    depth = depth_image(pinhole(), POINTS)
    # Along the ray, not along the axis.
    wanted = np.zeros((12, 16), np.float32)
    wanted[6, 8], wanted[8, 2] = np.linalg.norm(POINTS[0]), np.linalg.norm(POINTS[2])
    np.testing.assert_allclose(depth, wanted, rtol=1e-6)


def test_hidden_points_are_left_out():
    near, far = np.array([0.05, 0.05, 2.0]), np.array([1.0, 0.05, 8.0])  # two pixels apart
    both = np.stack([near, far])
    assert np.count_nonzero(depth_image(pinhole(), both)) == 1
    assert np.count_nonzero(depth_image(pinhole(), both, window=3)) == 2
    assert np.count_nonzero(depth_image(pinhole(), both, margin=4.0)) == 2


def test_no_points_are_no_depths():
    assert not np.any(depth_image(pinhole(), np.zeros((0, 3))))
    assert not np.any(depth_image(pinhole(), -POINTS[:1]))


def test_cameras_of_all_kinds_measure_along_their_rays():
    around = LensCamera(I4, EquirectangularLens.full(16, 8), width=16, height=8)
    np.testing.assert_allclose(np.sort(depth_image(around, -POINTS[:1]).ravel())[-1],
                               np.linalg.norm(POINTS[0]), rtol=1e-6)  # fmt: skip
    flat = OrthographicCamera(I4, 0.5, width=16, height=12)
    np.testing.assert_allclose(depth_image(flat, POINTS[2:3]).max(), 8, rtol=1e-6)


def test_a_moving_camera_sees_points_from_where_it_is():
    # It comes 1 m closer from the first row to the last, and looks at the lowest.
    poses = np.tile(I4, (2, 1, 1))
    poses[1, 2, 3] = 1
    drive = Trajectory(poses, np.array([0.0, 0.1]), edge="hold")
    shutter = RollingShutterCamera(pinhole(), drive, 0.0, 0.1)
    depth = depth_image(shutter, np.array([[0.1, 1.35, 5.0]]))
    assert np.argwhere(depth).tolist() == [[11, 8]]
    np.testing.assert_allclose(depth[11, 8], np.linalg.norm([0.1, 1.35, 4]), rtol=1e-5)


def test_points_supervise_what_a_camera_renders():
    # A wall of spheres at 5 m, and points of it: the loss is how far off it is.
    x, y = np.meshgrid(np.arange(-4, 4, 0.2), np.arange(-3, 3, 0.2))
    centers = np.stack([x.ravel(), y.ravel(), np.full(x.size, 5.0)], axis=-1)
    spheres = Spheres.create(
        centers, np.full(x.size, 0.3), np.full(x.size, 0.95), np.ones((x.size, 1))
    )
    target = jnp.asarray(depth_image(pinhole(), centers + [0.05, 0.05, 0]))
    assert np.count_nonzero(target) == 16 * 12

    def loss(shift):
        moved = dataclasses.replace(spheres, centers=spheres.centers.at[:, 2].add(shift))
        depth = render(moved, pinhole(), near=0.1, far=50.0).depth
        return float(losses.range_l1(depth, target, target > 0))

    assert loss(0.0) < 0.1
    np.testing.assert_allclose(loss(0.7), 0.75, atol=0.08)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: depth_image(pinhole(), POINTS, window=4), "depth_image: got window=4, margin=0.1"),
        (lambda: depth_image(pinhole(), POINTS, window=0), "window: got 0; give a whole number"),
        (lambda: depth_image(pinhole(), np.full((1, 3), np.nan)), "points: got some that are not"),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call()
