"""Every sensor through one contract, then what each of them promises by itself."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derivatives import assert_exact_derivatives
from jaxrec.sensors import Frame, OrthographicCamera, PinholeCamera, PulsarCamera, Rays, look_at
from sensor_cases import (
    CAMERAS,
    FOX,
    SENSORS,
    VECTOR,
    origins_and_directions,
    orthographic,
    pinhole,
    pixel_centers,
    pose,
    pose_of,
    project,
    rays_of,
)


def stack(*cameras):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cameras)


@pytest.mark.parametrize("name", SENSORS)
def test_rays_form_a_grid_of_unit_directions(name):
    rays = rays_of(SENSORS[name]())
    assert rays.origins.shape == rays.directions.shape == (7, 9, 3)
    assert rays.footprint.shape == (2,) and rays.times is None
    lengths = np.linalg.norm(np.asarray(rays.directions, np.float64), axis=-1)
    np.testing.assert_allclose(lengths, 1, atol=5e-7)
    assert np.all(np.isfinite(rays.origins))


@pytest.mark.parametrize("name", SENSORS)
def test_a_stack_is_a_loop(name):
    # Products may fuse differently: equal within rounding of coordinates of size 4.
    camera = SENSORS[name]()
    moved = jax.tree.map(lambda leaf: leaf * 1.001, camera)
    stacked = stack(camera, moved, camera)
    rays = jax.jit(jax.vmap(lambda each: each.rays()))(stacked)
    assert rays.origins.shape == (3, 7, 9, 3) and rays.footprint.shape == (3, 2)
    for ours, direct in zip(jax.tree.leaves(rays), jax.tree.leaves(rays_of(stacked)), strict=True):
        np.testing.assert_array_equal(ours, direct)
    for view, single in enumerate((camera, moved, camera)):
        for ours, theirs in zip(
            jax.tree.leaves(rays), jax.tree.leaves(rays_of(single)), strict=True
        ):
            np.testing.assert_allclose(ours[view], theirs, atol=2e-6)


@pytest.mark.parametrize("name", SENSORS)
def test_sensors_are_pytrees(name):
    camera = SENSORS[name]()
    leaves, structure = jax.tree.flatten(camera)
    again = jax.tree.unflatten(structure, leaves)
    assert (again.width, again.height) == (9, 7) and type(again) is type(camera)
    # A value within a camera, such as a lens, names its own fields further on.
    paths = [jax.tree_util.keystr(path[:1]) for path, _ in jax.tree.leaves_with_path(camera)]
    assert set(paths) < {f".{field.name}" for field in dataclasses.fields(camera)}


@pytest.mark.parametrize("name", CAMERAS)
def test_rays_have_exact_derivatives(x64, name):
    camera = SENSORS[name](dtype=jnp.float64)
    assert_exact_derivatives(origins_and_directions, camera)


@pytest.mark.parametrize("name", SENSORS)
def test_footprint_has_no_gradient(name):
    camera = SENSORS[name]()
    gradient = jax.jit(jax.grad(lambda each: jnp.sum(each.rays().footprint)))(camera)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", CAMERAS)
def test_projection_inverts_rays(name):
    camera = SENSORS[name]()
    rays = rays_of(camera)
    distance = np.linspace(0.5, 20, 63, dtype=np.float32).reshape(7, 9, 1)
    pixels, depth = project(camera, rays.origins + distance * rays.directions)
    # Coordinates of size 20 with a relative error of a few eps, seen through 8 px per radian,
    # and stretched by the lens: up to 7-fold by "pincushion" here.
    np.testing.assert_allclose(pixels, pixel_centers(), atol=2e-4)
    cosine = rays.directions @ camera.world_from_camera[:3, 2]
    np.testing.assert_allclose(depth, distance[..., 0] * cosine, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CAMERAS)
def test_projection_inverts_rays_in_float64(x64, name):
    camera = SENSORS[name](dtype=jnp.float64)
    rays = rays_of(camera)
    assert rays.directions.dtype == rays.origins.dtype == rays.footprint.dtype == jnp.float64
    pixels, _ = project(camera, rays.origins + 3 * rays.directions)
    np.testing.assert_allclose(pixels, pixel_centers(), atol=1e-12)


def projection(camera, points):
    return camera.project(points)


@pytest.mark.parametrize("name", CAMERAS)
def test_projection_has_exact_derivatives(x64, name):
    camera = SENSORS[name](dtype=jnp.float64)
    rays = rays_of(camera)
    points = (rays.origins + 3 * rays.directions)[::3, ::4]
    assert_exact_derivatives(projection, camera, points, atol=1e-7)


@pytest.mark.parametrize("name", CAMERAS)
def test_chosen_pixels_are_those_of_the_grid(name):
    camera = SENSORS[name]()
    rays = rays_of(camera)
    chosen = camera.rays(jnp.asarray([[2.5, 4.5], [8.5, 0.5]], jnp.float32))
    np.testing.assert_allclose(chosen.directions[0], rays.directions[4, 2], atol=1e-6)
    np.testing.assert_allclose(chosen.origins[1], rays.origins[0, 8], atol=1e-6)


def test_constructors_agree_on_a_worked_example():
    # A camera 5 m south of the origin and 1 m up, looking north (+y) and level; z is up.
    # Its right is east (+x), its image's down is -z.
    eye = np.array([0.0, -5.0, 1.0], np.float32)
    right, down, forward = np.array([1, 0, 0]), np.array([0, 0, -1]), np.array([0, 1, 0])
    R = np.stack([right, down, forward]).astype(np.float32)
    K = np.array([[100, 0, 32], [0, 110, 24], [0, 0, 1]], np.float32)
    opengl = np.eye(4, dtype=np.float32)
    opengl[:3] = np.stack([right, -down, -forward, eye], axis=1)
    size = {"width": 64, "height": 48}
    focal, principal = (100.0, 110.0), (32.0, 24.0)
    cameras = [
        PinholeCamera.from_opencv(K, R, -R @ eye, **size),
        PinholeCamera.from_opengl(opengl, focal, principal, **size),
        PinholeCamera(look_at(eye, (0, 7, 1), (0, 0, 3)), focal, principal, **size),
    ]
    for camera in cameras:
        np.testing.assert_allclose(
            camera.world_from_camera, cameras[0].world_from_camera, atol=1e-6
        )
        np.testing.assert_array_equal(camera.focal, focal)
        np.testing.assert_array_equal(camera.principal, principal)
        # 5 m ahead, 1 m to the right and 2 m up: 20 px right and 44 px up of the middle.
        pixel, depth = camera.project(jnp.asarray([1.0, 0.0, 3.0]))
        np.testing.assert_allclose(pixel, [52, -20], atol=1e-4)
        np.testing.assert_allclose(depth, 5, atol=1e-6)


def test_opencv_projection_is_the_textbook_one():
    random = np.random.default_rng(0)
    R = np.asarray(pose(), np.float64)[:3, :3]
    t, K = np.array([0.1, -0.2, 4.0]), np.array([[500, 0, 320], [0, 480, 240], [0, 0, 1.0]])
    points = random.normal(size=(20, 3))
    camera = PinholeCamera.from_opencv(K, R, t, 640, 480, distortion=np.array(FOX))
    pixels, _ = project(camera, jnp.asarray(points, jnp.float32))
    x, y, z = R @ points.T + t[:, None]
    x, y = x / z, y / z
    k1, k2, p1, p2, k3 = FOX
    s = x * x + y * y
    radial = 1 + k1 * s + k2 * s**2 + k3 * s**3
    u = 500 * (x * radial + 2 * p1 * x * y + p2 * (s + 2 * x * x)) + 320
    v = 480 * (y * radial + p1 * (s + 2 * y * y) + 2 * p2 * x * y) + 240
    np.testing.assert_allclose(pixels, np.stack([u, v], axis=-1), atol=2e-3)


def test_resizing_keeps_each_ray_in_its_place():
    camera = pinhole(FOX, width=9, height=7)
    small = camera.scaled(4, 2)
    assert (small.width, small.height) == (4, 2)
    # The corners of the image and its middle are the same directions at every size.
    places = np.array([[0, 0], [1, 1], [0.5, 0.5], [0.25, 1]], np.float32)
    before = camera.rays(jnp.asarray(places * np.array([9, 7], np.float32))).directions
    after = small.rays(jnp.asarray(places * np.array([4, 2], np.float32))).directions
    np.testing.assert_allclose(before, after, atol=1e-6)


def fox_rays_of_pose(twist):
    fox = pinhole(FOX, jnp.float64)
    return origins_and_directions(dataclasses.replace(fox, world_from_camera=pose_of(twist)))


def test_pose_derivatives_pass_through_traced_constructors(x64):
    twist = jnp.asarray([0.2, -0.1, 0.3, 1.0, 2.0, 3.0], jnp.float64)
    assert_exact_derivatives(fox_rays_of_pose, twist)


def test_look_at_has_exact_derivatives(x64):
    args = tuple(jnp.asarray(v, jnp.float64) for v in ([1, 2, 3.0], [0, 0, 0.5], [0, 0.1, 1]))
    assert_exact_derivatives(look_at, *args)


def test_pinhole_footprint_is_half_a_pixel():
    camera = PinholeCamera(pose(), (20.0, 20.0), (4.5, 3.5), width=9, height=7)
    rays = camera.rays()
    # Neighbouring rays at the middle of the image, 3 m ahead, are two half-widths apart.
    points = rays.origins + 3 * rays.directions
    apart = np.linalg.norm(points[3, 5] - points[3, 4])
    e0, e1 = rays.footprint
    np.testing.assert_allclose(apart, 2 * (e0 + e1 * 3), rtol=2e-3)  # 1 - cos(1 px) = 1.2e-3


def test_orthographic_footprint_is_half_a_pixel():
    rays = rays_of(orthographic())
    np.testing.assert_array_equal(rays.footprint, [0.125, 0])
    apart = np.linalg.norm(rays.origins[2, 4] - rays.origins[2, 3])
    np.testing.assert_allclose(apart, 0.25, rtol=1e-6)


def test_orthographic_middle_is_the_optical_axis():
    rays = rays_of(orthographic())
    np.testing.assert_allclose(rays.origins[3, 4], pose()[:3, 3], atol=1e-6)
    np.testing.assert_allclose(rays.directions[0, 0], pose()[:3, 2], atol=1e-6)


def frame(**changes: Any):
    given: dict[str, Any] = {
        "image": np.full((7, 9, 3), 0.5, np.float32),
        "alpha": np.linspace(0, 1, 63, dtype=np.float32).reshape(7, 9),
        "mask": None,
        "name": "r_0",
    }
    return Frame(pinhole(), **{**given, **changes})


def test_frame_over_a_background():
    laid = frame().over((1.0, 0.0, 0.5))
    assert laid.dtype == np.float32
    np.testing.assert_allclose(laid[0, 0], [1, 0, 0.5])
    np.testing.assert_allclose(laid[-1, -1], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(laid[3, 4], [0.75, 0.25, 0.5])
    opaque = frame(alpha=None)
    np.testing.assert_array_equal(opaque.over((1.0, 1.0, 1.0)), opaque.image)


I4, I3, SIZE = np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), (9, 7)
K = np.array([[8, 0, 4], [0, 8, 3], [0, 0, 1]], np.float32)
SKEWED, TILTED = K + 0.1 * np.eye(3, k=1, dtype=np.float32), K + np.eye(3, k=-2, dtype=np.float32)


def make(world_from_camera: Any = I4, **changes: Any):
    given: dict[str, Any] = {"focal": (8.0, 8.0), "principal": (4.0, 3.0), "width": 9, "height": 7}
    return PinholeCamera(world_from_camera, **{**given, **changes})


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: make(np.eye(3)), r"world_from_camera: got shape \[3, 3\]; give \[\.\.\., 4, 4\]"),
        (lambda: make(I4 * np.array([1, 1, -1, 1])), "world_from_camera: got a reflection"),
        (lambda: make(I4.astype(np.float16)), "world_from_camera: got dtype float16; give float32"),
        (lambda: make(focal=(8.0, -8.0)), r"focal: got \[8.0, -8.0\]; give pixels greater than 0"),
        (lambda: make(focal=8.0), r"focal: got shape \[\]; give \[\.\.\., 2\]"),
        (lambda: make(principal=(np.nan, 1)), "principal: got 1 NaN or infinite"),
        (lambda: make(principal="mid"), "principal: got 'mid'; give an array of numbers"),
        (lambda: make(distortion=np.zeros(4)), r"distortion: got shape \[4\]; give \[\.\.\., 5\]"),
        (lambda: make(width=0), "width: got 0; give a whole number of at least 1"),
        (lambda: make(height=7.5), "height: got 7.5; give a whole number"),
        (lambda: make(np.stack([I4, I4])), r"focal: got leading axes \[\] for a stack of \[2\]"),
        (lambda: make().scaled(4, 0), "height: got 0; give a whole number"),
        (lambda: PinholeCamera.from_opencv(SKEWED, I3, np.zeros(3), *SIZE), "K: got the skew 0.1"),
        (lambda: PinholeCamera.from_opencv(TILTED, I3, np.zeros(3), *SIZE), "K: got the last row"),
        (lambda: PinholeCamera.from_opencv(K, 2 * I3, np.zeros(3), *SIZE), "R: got a rotation"),
        (lambda: PinholeCamera.from_opencv(K, I3, np.zeros(2), *SIZE), r"t: got shape \[2\]"),
        (
            lambda: PinholeCamera.from_opengl(2 * I4, (8.0, 8.0), (4.0, 3.0), *SIZE),
            r"camera_to_world: got the last row \[0.0, 0.0, 0.0, 2.0\]; give \[0, 0, 0, 1\]",
        ),
        (
            lambda: OrthographicCamera(I4, np.float32(0), *SIZE),
            "pixel_size: got 0.0; give metres greater than 0",
        ),
        (
            lambda: look_at((1, 2, 3), (1, 2, 3), (0, 0, 1)),
            r"target: got \[1.0, 2.0, 3.0\], the eye",
        ),
        (lambda: look_at((0, 0, 0), (0, 0, 2), (0, 0, 1)), "up: got .* parallel to the line"),
        (lambda: look_at((0, 0), (0, 0, 2), (0, 0, 1)), r"eye: got shape \[2\]; give \[3\]"),
        (
            lambda: PulsarCamera.from_vector(VECTOR[:8], *SIZE),
            r"vector: got shape \[8\]; give \[13\]",
        ),
        (lambda: PulsarCamera.from_vector(VECTOR, *SIZE, True), "vector: got the focal length 4"),
        (lambda: PulsarCamera.from_vector(-VECTOR, *SIZE), "vector: got the focal length -4"),
        (
            lambda: PulsarCamera.from_vector(VECTOR * (np.arange(13) != 10), *SIZE),
            "vector: got the sensor width 0",
        ),
        (
            lambda: PulsarCamera.from_vector(VECTOR * (np.arange(13) > 5), *SIZE),
            "vector: got parallel rotation vectors",
        ),
        (
            lambda: frame(image=np.zeros((7, 9, 3))),
            "frame 'r_0': image: got float64; give .*float32",
        ),
        (lambda: frame(image=None), "frame 'r_0': image: got NoneType; give a NumPy array"),
        (
            lambda: frame(alpha=np.zeros((9, 7), np.float32)),
            r"frame 'r_0': alpha: got shape \[9, 7\]; give \[7, 9\], the camera's",
        ),
        (lambda: frame(mask=np.ones((7, 9))), "frame 'r_0': mask: got float64; give .* of bool"),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rays_are_a_pytree():
    rays = Rays(jnp.ones((2, 3, 3)), jnp.ones((2, 3, 3)), jnp.zeros(2))
    doubled = jax.tree.map(lambda leaf: 2 * leaf, rays)
    np.testing.assert_array_equal(doubled.origins, 2 * rays.origins)
    assert doubled.times is None and len(jax.tree.leaves(doubled)) == 3
