"""Pulsar's camera against that renderer's own geometry and its golden files."""

import dataclasses
import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derivatives import assert_exact_derivatives
from jaxrec.sensors import PulsarCamera
from sensor_cases import CAMERAS, SENSORS, VECTOR, origins_and_directions, rays_of, vector_camera


def pulsar_rays(camera, fields):
    return origins_and_directions(dataclasses.replace(camera, **fields))


@pytest.mark.parametrize("name", [name for name in SENSORS if name not in CAMERAS])
def test_pulsar_rays_have_exact_derivatives(x64, name):
    camera = SENSORS[name](dtype=jnp.float64)
    # All but the principal point's offset, a whole number.
    fields = {name: getattr(camera, name) for name in ("eye", "p00", "dx", "dy")}
    assert_exact_derivatives(jax.tree_util.Partial(pulsar_rays, camera), fields)


def golden_cameras(shared):
    for path in sorted((shared / "goldens").glob("*.npz")):
        with np.load(path) as golden:
            yield path.stem, {name: golden[name] for name in golden if golden[name].size < 20}


def from_golden(golden, dtype: Any = np.float32):
    return PulsarCamera.from_vector(
        golden["cam13"].astype(dtype),
        int(golden["width"]),
        int(golden["height"]),
        bool(golden["orthographic"]),
        bool(golden["right_handed"]),
    )


def test_pulsar_vector_gives_the_fields_of_every_golden(shared):
    names = []
    for name, golden in golden_cameras(shared):
        camera = from_golden(golden)
        for field in ("eye", "p00", "dx", "dy"):
            ours, theirs = getattr(camera, field), golden[f"cam_{field}"]
            # One rounding of each of ~6 operations on coordinates of size 5.
            np.testing.assert_allclose(ours, theirs, atol=2e-6, err_msg=f"{name} {field}")
        np.testing.assert_array_equal(camera.pp_offset, golden["pp_offset"])
        names.append(name)
    assert len(names) == 18


def test_pulsar_footprint_is_its_centre_pixel_rule(x64, shared):
    for name, golden in golden_cameras(shared):
        # The footprint does not depend on the number of pixels: one size, one program.
        camera = dataclasses.replace(from_golden(golden, np.float64), width=3, height=2)
        rays = rays_of(camera)
        half, focal = np.linalg.norm(golden["cam_dx"]) / 2, float(golden["focal"])
        expected = (half, 0) if golden["orthographic"] else (0, half / focal)
        np.testing.assert_allclose(rays.footprint, np.array(expected), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("offset", [(0, 0), (7, -4), (-3, 5)])
@pytest.mark.parametrize("right_handed", [False, True])
def test_pulsar_pinhole_rays_in_its_own_aperture_coordinates(x64, offset, right_handed):
    vector = VECTOR.copy()
    vector[11:] = offset
    camera = vector_camera(jnp.asarray(vector), 9, 7, False, right_handed)
    rays = rays_of(camera)
    ppx, ppy = offset
    eye, p00, dx, dy = (np.asarray(x) for x in (camera.eye, camera.p00, camera.dx, camera.dy))
    for i, j in ((0, 0), (8, 6), (3, 5)):
        u, v = i + max(0, 2 * ppx), j + max(0, 2 * ppy)
        q = p00 - eye - abs(ppx) * dx - abs(ppy) * dy + u * dx + v * dy
        np.testing.assert_allclose(rays.directions[j, i], q / np.linalg.norm(q), atol=1e-14)
    np.testing.assert_array_equal(rays.origins[2, 3], vector[:3])


@pytest.mark.parametrize("offset", [(0, 0), (7, -4)])
@pytest.mark.parametrize("right_handed", [False, True])
def test_pulsar_orthographic_rays_in_its_own_aperture_coordinates(x64, offset, right_handed):
    vector = VECTOR.copy()
    vector[9] = 0
    vector[11:] = offset
    camera = vector_camera(jnp.asarray(vector), 9, 7, True, right_handed)
    rays = rays_of(camera)
    pixel = vector[10] / 9
    eye, X, Y = np.asarray(camera.eye), np.asarray(camera.dx) / pixel, np.asarray(camera.dy) / pixel
    (ppx, ppy), point = offset, np.array([0.3, -0.2, 4.0])
    for i, j in ((0, 0), (8, 6), (3, 5)):
        # A sphere's distance from the ray, by Pulsar's formula and by geometry.
        u, v = i + max(0, 2 * ppx), j + max(0, 2 * ppy)
        aperture = 9 + 2 * abs(ppx), 7 + 2 * abs(ppy)
        offset_x = np.dot(point - eye, X) - (u - aperture[0] / 2) * pixel
        offset_y = np.dot(point - eye, Y) - (v - aperture[1] / 2) * pixel
        away = point - np.asarray(rays.origins[j, i])
        along = np.dot(away, rays.directions[j, i])
        across = np.linalg.norm(away - along * np.asarray(rays.directions[j, i]))
        np.testing.assert_allclose(across, np.hypot(offset_x, offset_y), atol=1e-13)
        sign = -1 if right_handed else 1
        forward = sign * np.cross(Y, X)
        np.testing.assert_allclose(along, np.dot(point - eye, forward), atol=1e-13)


def vector_rays(orthographic, right_handed, head):
    whole = jnp.concatenate([head, jnp.zeros_like(head[:2])])
    camera = PulsarCamera.from_vector(whole, 3, 2, orthographic, right_handed)
    return origins_and_directions(camera)


@pytest.mark.parametrize("orthographic", [False, True])
@pytest.mark.parametrize("right_handed", [False, True])
def test_pulsar_vector_has_exact_derivatives(x64, orthographic, right_handed):
    head = VECTOR[:11] * (1 - orthographic * (np.arange(11) == 9))
    function = ft.partial(vector_rays, orthographic, right_handed)
    assert_exact_derivatives(function, jnp.asarray(head))


def test_pulsar_principal_point_offset_is_cut_to_whole_pixels_without_gradient():
    vector = jnp.asarray(np.append(VECTOR[:11], [1.9, -1.9]), jnp.float32)
    np.testing.assert_array_equal(vector_camera(vector, 9, 7).pp_offset, [1, -1])

    def loss(vector):
        return jnp.sum(rays_of(vector_camera(vector, 9, 7)).directions[..., 0])

    gradient = jax.jit(jax.grad(loss))(vector)
    assert not np.any(gradient[11:]) and np.any(gradient[:11])
