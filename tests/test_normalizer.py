"""The scene's coordinates: far origins, lost cameras, kilometres, points."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrec.scene import Spheres
from jaxrec.sensors import PinholeCamera
from jaxrec.train import SceneNormalizer

UTM = np.asarray([512345.0, 4187654.0, 113.0])


def camera(eye, target, dtype=np.float64):
    forward = np.asarray(target, np.float64) - eye
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, [0.1, 0.0, 1.0])
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3] = np.stack([right, np.cross(forward, right), forward, eye], axis=1)
    pose = pose.astype(dtype)
    return PinholeCamera(pose, np.ones(2, dtype), np.ones(2, dtype), width=2, height=2)


def ring(count=20, radius=3.0, middle=(0.0, 0.0, 0.0), height=1.0):
    """Cameras about a place that look at it."""
    middle = np.asarray(middle)
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    return [
        camera(middle + [radius * np.cos(angle), radius * np.sin(angle), height], middle)
        for angle in angles
    ]


def drive(count=300, pace=1.0, start=(0.0, 0.0, 0.0)):
    """Cameras on a road that look along it, which bends a little."""
    places = np.asarray(start) + [
        [pace * index, 5 * np.sin(pace * index / 200), 1.5] for index in range(count)
    ]
    ahead = np.diff(places, axis=0, append=places[-1:] + (places[-1:] - places[-2:-1]))
    return [camera(place, place + way) for place, way in zip(places, ahead, strict=True)]


@pytest.mark.usefixtures("x64")
class TestFarOrigin:
    """UTM coordinates, in float64."""

    def test_a_shift_of_the_world_shifts_the_center_alone(self):
        near = SceneNormalizer.from_cameras(ring())
        far = SceneNormalizer.from_cameras(ring(middle=UTM))
        # float64 keeps 1e-9 of such a coordinate.
        np.testing.assert_allclose(np.asarray(far.center) - UTM, near.center, atol=1e-8)
        np.testing.assert_allclose(far.scale, near.scale, rtol=1e-9)

    def test_cameras_are_placed_to_a_micrometre(self):
        near, far = ring(), ring(middle=UTM)
        normalizer = SceneNormalizer.from_cameras(far)
        reference = SceneNormalizer.from_cameras(near)
        for ours, theirs in zip(far, near, strict=True):
            found = normalizer.scene_camera(ours).world_from_camera
            expected = reference.scene_camera(theirs).world_from_camera
            np.testing.assert_allclose(found, expected, atol=1e-8)

    def test_spheres_come_back(self):
        normalizer = SceneNormalizer.from_cameras(ring(middle=UTM))
        centers = np.random.default_rng(0).normal(size=(5, 3))
        spheres = Spheres.create(
            np.asarray((centers - normalizer.center) * normalizer.scale + 0),
            np.full(5, 0.1),
            np.full(5, 0.5),
            np.zeros((5, 3)),
            capacity=5,
        )
        back = normalizer.world_spheres(spheres)
        np.testing.assert_allclose(back.centers[:5], centers, atol=1e-8)


def test_what_float32_makes_of_utm_is_what_the_reader_avoids():
    """Why captures are moved to the origin before they become float32."""
    moved = [
        dataclasses.replace(view, world_from_camera=np.asarray(view.world_from_camera, np.float32))
        for view in ring(middle=UTM)
    ]
    with jax.enable_x64(False):
        radius = 1 / SceneNormalizer.from_cameras(moved).scale
    # A quarter of a metre is lost, no more: the scale survives.
    assert abs(radius - np.hypot(3, 1)) < 0.25


@pytest.mark.parametrize("lost", [1e2, 1e4, 1e7])
def test_lost_cameras_do_not_matter(lost):
    sound = SceneNormalizer.from_cameras(ring())
    strays = [camera(np.asarray([lost, 0.3 * lost, 5.0]), [lost, 0.0, 0.0])]
    strays.append(camera(np.asarray([-lost, lost, 5.0]), [0.0, lost, lost]))
    found = SceneNormalizer.from_cameras([*ring(), *strays])
    np.testing.assert_allclose(found.center, sound.center, atol=1e-3)
    np.testing.assert_allclose(found.scale, sound.scale, rtol=1e-3)


def test_cameras_that_look_elsewhere_do_not_matter():
    sound = SceneNormalizer.from_cameras(ring())
    away = [camera(np.asarray([0.0, 3.0, 1.0]), [9.0, 3.0, 2.0 + index]) for index in range(3)]
    found = SceneNormalizer.from_cameras([*ring(), *away])
    np.testing.assert_allclose(found.center, sound.center, atol=0.02)
    np.testing.assert_allclose(found.scale, sound.scale, rtol=0.05)


@pytest.mark.parametrize("radius", [1e-3, 1.0, 5e3])
def test_a_scene_of_any_size_becomes_one_of_size_one(radius):
    views = ring(radius=radius, height=0.2 * radius)
    normalizer = SceneNormalizer.from_cameras(views)
    for view in views:
        position = np.asarray(normalizer.scene_camera(view).world_from_camera)[:3, 3]
        np.testing.assert_allclose(np.linalg.norm(position), 1, rtol=1e-5)
    assert normalizer.near == SceneNormalizer.near


@pytest.mark.parametrize("count", [30, 300, 1000])
def test_on_a_drive_of_kilometres_near_things_are_kept(count):
    normalizer = SceneNormalizer.from_cameras(drive(count))
    # Whatever the length of the drive: what is a step away is drawn, and so is the horizon.
    assert normalizer.near / normalizer.scale <= 1.01
    assert normalizer.far / normalizer.scale > 5000
    assert 10 < 1 / normalizer.scale <= 101


def test_points_tell_the_depth_where_cameras_meet_nowhere():
    views = [
        camera(np.asarray([0.1 * index, 0.0, 0.0]), [0.1 * index, 9.0, 0.0]) for index in range(9)
    ]
    random = np.random.default_rng(0)
    points = random.uniform([-3, 8, -3], [4, 12, 3], (500, 3))
    stray = random.uniform(-1e6, 1e6, (5, 3))
    found = SceneNormalizer.from_cameras(views, np.concatenate([points, stray]))
    np.testing.assert_allclose(1 / found.scale, 10, rtol=0.05)
    blind = SceneNormalizer.from_cameras(views)
    assert 1 / blind.scale < 2
    # Points behind all cameras say nothing.
    behind = SceneNormalizer.from_cameras(views, points * np.asarray([1, -1, 1]))
    assert behind == blind


def test_one_camera_and_a_tripod():
    for views in (ring(1), [ring(4)[0]] * 3):
        normalizer = SceneNormalizer.from_cameras(views)
        assert normalizer.scale == 1 and normalizer.near == SceneNormalizer.near
    with pytest.raises(ValueError, match="cameras: got none, want at least one"):
        SceneNormalizer.from_cameras([])
