"""Sensors against NVIDIA's `nvidia-ncore` in float64: `pip install '.[oracle]'`."""

import functools as ft
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.geometry import unit
from jaxrec.sensors import (
    FisheyeLens,
    FThetaBackwardLens,
    FThetaLens,
    LensCamera,
    RationalLens,
    RollingShutterCamera,
    SpinningLidar,
    StoredWindshieldLens,
    spin,
)
from jaxrec.trajectory import (
    Trajectory,
)
from sensor_cases import pose_of, project

pytestmark = pytest.mark.slow

# A twentieth of the pixels lie beyond the wide lenses' last angle; 10^4 are compared.
WIDTH, HEIGHT, COUNT = 1920, 1080, 10_700
FOCAL, PRINCIPAL = np.float32([1100, 1080]), np.float32([967.3, 548.9])
# Stored in float32, as NCore stores them: both sides read the same numbers.
FISHEYE = np.float32([0.06, -0.012, 0.003, -0.0004])
RADIAL = np.float32([0.25, -0.06, 0.01, 0.32, -0.02, 0.004])
TANGENTIAL, THIN_PRISM = np.float32([4e-4, -3e-4]), np.float32([6e-4, -2e-4, -5e-4, 1e-4])
FORWARD = np.float32([0, 545.0, 3.0, -18.0, 4.0, -0.6])
LINEAR = np.float32([1.002, 3e-4, -2e-4])
MAX_ANGLE = 1.9  # a field of view of 218 degrees
SHUTTERS = {
    "ROLLING_TOP_TO_BOTTOM": "top_to_bottom",
    "ROLLING_LEFT_TO_RIGHT": "left_to_right",
    "ROLLING_BOTTOM_TO_TOP": "bottom_to_top",
    "ROLLING_RIGHT_TO_LEFT": "right_to_left",
}


@pytest.fixture(scope="module")
def ncore():
    """The package's modules of types, cameras and lidars."""
    missing = [name for name in ("torch", "ncore") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the oracle is not installed: no {missing[0]}; pip install '.[oracle]'")
    # Installed, it has to work: what fails from here on is no reason to skip.
    torch, types, sensors = map(importlib.import_module, ("torch", "ncore.data", "ncore.sensors"))
    make = {"device": "cpu", "dtype": torch.float64}
    return types, sensors, make


def backward_polynomial():
    """Angles from distances, fitted: the approximate inverse that NCore starts from."""
    angle = np.linspace(0, MAX_ANGLE, 4000)
    distance = np.polyval(FORWARD[::-1].astype(np.float64), angle)
    powers = distance[:, None] / 1000
    found = np.linalg.lstsq(powers ** np.arange(1, 6), angle, rcond=None)[0]
    return np.concatenate([[0], found / 1000.0 ** np.arange(1, 6)]).astype(np.float32)


BACKWARD = backward_polynomial()


def parameters(ncore, kind, shutter="GLOBAL", windshield=None):
    types = ncore[0]
    common: dict[str, Any] = {
        "resolution": np.array([WIDTH, HEIGHT], np.uint64),
        "shutter_type": types.ShutterType[shutter],
        "external_distortion_parameters": windshield,
    }
    if kind == "fisheye":
        return types.OpenCVFisheyeCameraModelParameters(
            **common, principal_point=PRINCIPAL, focal_length=FOCAL * np.float32(0.5),
            radial_coeffs=FISHEYE, max_angle=MAX_ANGLE,
        )  # fmt: skip
    if kind == "rational":
        return types.OpenCVPinholeCameraModelParameters(
            **common, principal_point=PRINCIPAL, focal_length=FOCAL,
            radial_coeffs=RADIAL, tangential_coeffs=TANGENTIAL, thin_prism_coeffs=THIN_PRISM,
        )  # fmt: skip
    poly = types.FThetaCameraModelParameters.PolynomialType
    forward = kind == "ftheta"
    return types.FThetaCameraModelParameters(
        **common, principal_point=PRINCIPAL - np.float32(0.5),
        reference_poly=poly.ANGLE_TO_PIXELDIST if forward else poly.PIXELDIST_TO_ANGLE,
        pixeldist_to_angle_poly=BACKWARD, angle_to_pixeldist_poly=FORWARD,
        max_angle=MAX_ANGLE, linear_cde=LINEAR,
    )  # fmt: skip


def oracle(ncore, *args, **kwargs):
    _, sensors, make = ncore
    return sensors.camera_model_from_parameters(parameters(ncore, *args, **kwargs), **make)


def lens_of(kind):
    double = ft.partial(jnp.asarray, dtype=jnp.float64)
    c, d, e = LINEAR
    linear = double(np.array([[c, d], [e, 1]]))
    if kind == "fisheye":
        focal = double(FOCAL * np.float32(0.5))
        return FisheyeLens(focal, double(PRINCIPAL), double(FISHEYE), MAX_ANGLE)
    if kind == "rational":
        values = FOCAL, PRINCIPAL, RADIAL, TANGENTIAL, THIN_PRISM
        return RationalLens(*(double(value) for value in values))
    if kind == "ftheta":
        return FThetaLens(double(PRINCIPAL), double(FORWARD), MAX_ANGLE, linear)
    return FThetaBackwardLens(double(PRINCIPAL), double(BACKWARD), MAX_ANGLE, linear)


def some_pixels(count=COUNT):
    return np.random.default_rng(0).uniform([0, 0], [WIDTH, HEIGHT], (count, 2))


poses_at = jax.jit(lambda trajectory, times: trajectory.at(times))
rays_at = jax.jit(lambda camera, pixels: camera.rays(pixels))


@jax.jit
def directions(lens, pixels):
    found, valid = lens.directions(pixels)
    return jnp.where(valid[..., None], unit(found), jnp.nan)


@jax.jit
def pixels_of(lens, points):
    found, valid = lens.pixels(points)
    return jnp.where(valid[..., None], found, jnp.nan)


@pytest.mark.parametrize("kind", ["fisheye", "ftheta", "ftheta-backward"])
def test_radial_lenses_both_ways(x64, ncore, kind):
    model, lens, pixels = oracle(ncore, kind), lens_of(kind), some_pixels()
    ours = directions(lens, jnp.asarray(pixels))
    seen = np.all(np.isfinite(ours), axis=-1)
    assert seen.sum() >= 10_000
    # Pixel to ray, compared in the image: through our way back, whose own error is rounding.
    theirs = model.image_points_to_camera_rays(pixels).numpy()
    again = pixels_of(lens, jnp.asarray(theirs))
    compared = seen & np.all(np.isfinite(again), axis=-1)
    assert compared.sum() >= 10_000
    np.testing.assert_allclose(again[compared], pixels[compared], atol=1e-3)
    np.testing.assert_allclose(pixels_of(lens, ours)[seen], pixels[seen], atol=1e-9)
    # Ray to pixel.
    theirs = model.camera_rays_to_image_points(np.asarray(ours)[seen])
    found = pixels_of(lens, ours)[seen]
    valid = theirs.valid_flag.numpy()
    assert valid.mean() > 0.99
    np.testing.assert_allclose(found[valid], theirs.image_points.numpy()[valid], atol=1e-3)


def test_rational_lens(x64, ncore):
    model, lens, pixels = oracle(ncore, "rational"), lens_of("rational"), some_pixels()
    ours = directions(lens, jnp.asarray(pixels))
    assert np.all(np.isfinite(ours))
    # Through their closed form: their own inverse stops after ten iterations.
    theirs = model.camera_rays_to_image_points(np.array(ours))
    valid = theirs.valid_flag.numpy()
    assert valid.sum() >= 10_000
    np.testing.assert_allclose(theirs.image_points.numpy()[valid], pixels[valid], atol=1e-8)
    np.testing.assert_allclose(
        pixels_of(lens, ours)[valid], theirs.image_points.numpy()[valid], atol=1e-8
    )


@pytest.mark.parametrize("kind", ["rational", "ftheta"])
def test_windshield_with_the_stored_coefficients(x64, ncore, kind):
    random = np.random.default_rng(1)
    count = {2: 6, 3: 10}

    def near_identity(degree, place):
        values = random.normal(0, 3e-3, count[degree])
        values[place] += 1
        return values.astype(np.float32)

    # phi is the second coefficient; theta comes first in its row: after the powers of phi.
    stored = [near_identity(3, 1), near_identity(3, 4), near_identity(3, 1), near_identity(3, 4)]
    types = ncore[0]
    shield = types.BivariateWindshieldModelParameters(types.ReferencePolynomial.FORWARD, *stored)
    model, pixels = oracle(ncore, kind, windshield=shield), some_pixels(60_000)
    lens = StoredWindshieldLens(lens_of(kind), *(jnp.asarray(v, jnp.float64) for v in stored))
    ours = directions(lens, jnp.asarray(pixels))
    # Inside 40 degrees: a ray that is bent by asin(1) has no derivative.
    inside = np.asarray(ours)[:, 2] > 0.77
    assert inside.sum() >= 10_000
    theirs = model.image_points_to_camera_rays(pixels).numpy()
    # 1e-3 px over 545 px/rad. Their inverse of the rational lens is 9e-3 px off.
    atol = 1e-3 / 545 if kind == "ftheta" else 9e-3 / 1100
    np.testing.assert_allclose(ours[inside], theirs[inside], atol=atol)
    theirs = model.camera_rays_to_image_points(np.asarray(ours)[inside])
    valid = theirs.valid_flag.numpy()
    assert valid.mean() > 0.9
    found = np.asarray(pixels_of(lens, ours))[inside]
    np.testing.assert_allclose(found[valid], theirs.image_points.numpy()[valid], atol=1e-3)


CLOCK = np.array([0, 30_000_000])


def start_and_end(turn=1.0, shift=1.0):
    start = np.array([0.3, -0.5, 0.2, 100.0, -20, 3])
    # 1.5 degrees in 30 ms. Below 5 degrees they interpolate quaternions linearly, off by the
    # third power of the turn: 6e-8 here, and half of the 1e-3 px at 3.5 degrees.
    turn = 0.4 * turn
    step = np.array([0.02 * turn, 0.05 * turn, -0.03 * turn, 0.9 * shift, 0.2 * shift, 0.1 * shift])
    return [np.array(pose_of(jnp.asarray(twist))) for twist in (start, start + step)]


def rolling(kind, direction, poses):
    camera = LensCamera(jnp.eye(4, dtype=jnp.float64), lens_of(kind), width=WIDTH, height=HEIGHT)
    trajectory = Trajectory(np.stack(poses), CLOCK, edge="extrapolate")
    return RollingShutterCamera(camera, trajectory, 0.0, 0.03, direction=direction)


@pytest.mark.parametrize("kind", ["fisheye", "ftheta", "ftheta-backward", "rational"])
@pytest.mark.parametrize("shutter", SHUTTERS)
def test_world_rays_under_every_shutter(x64, ncore, kind, shutter):
    poses, pixels = start_and_end(), some_pixels()
    ours = rays_at(rolling(kind, SHUTTERS[shutter], poses), jnp.asarray(pixels))
    model = oracle(ncore, kind, shutter)
    # For the rational lens their inverse is not exact: the camera's rays are given to them.
    local = np.array(directions(lens_of(kind), jnp.asarray(pixels)))
    given = local if kind == "rational" else None
    theirs = model.image_points_to_world_rays_shutter_pose(pixels, *poses, camera_rays=given)
    theirs = theirs.world_rays.numpy()
    seen = np.all(np.isfinite(ours.directions), axis=-1)
    assert seen.sum() >= 10_000
    np.testing.assert_allclose(ours.origins[seen], theirs[seen, :3], atol=1e-9)
    # Their directions, taken back to the image by our poses.
    turned = poses_at(Trajectory(np.stack(poses), CLOCK, edge="extrapolate"), ours.times)
    local = np.einsum("nji,nj->ni", turned[:, :3, :3], theirs[:, 3:])
    again = pixels_of(lens_of(kind), jnp.asarray(local))
    np.testing.assert_allclose(again[seen], pixels[seen], atol=1e-3)


@pytest.mark.parametrize("moves", [(0.0, 1.0), (1.0, 0.0)], ids=["translation", "rotation"])
@pytest.mark.parametrize("shutter", SHUTTERS)
def test_pixels_under_every_shutter(x64, ncore, shutter, moves):
    # They interpolate the inverse pose: the same for motions of one kind only.
    poses = start_and_end(*moves)
    if moves[1] == 0:
        for pose in poses:
            pose[:3, 3] = 0
    camera = rolling("ftheta", SHUTTERS[shutter], poses)
    rays = rays_at(camera, jnp.asarray(some_pixels()))
    seen = np.all(np.isfinite(rays.directions), axis=-1)
    points = np.asarray(rays.origins + 12 * rays.directions)[seen]
    ours, _ = project(camera, jnp.asarray(points))
    model = oracle(ncore, "ftheta", shutter)
    found = model.world_points_to_image_points_shutter_pose(
        points, *(np.linalg.inv(pose) for pose in poses), max_iterations=50, stop_t_delta=0.0,
        return_valid_indices=True,
    )  # fmt: skip
    index = found.valid_indices.numpy()
    apart = np.abs(np.asarray(ours)[index] - found.image_points.numpy()).max(axis=-1)
    assert len(index) >= 10_000
    # Where a point slips between two lines either line may see it: a shift of the image of at
    # most 0.1 px.
    assert np.mean(apart > 1e-3) < 0.12
    assert np.max(apart) < 0.2


@pytest.mark.parametrize("direction", ["cw", "ccw"])
def test_spinning_lidar(x64, ncore, direction):
    types, sensors, make = ncore
    random = np.random.default_rng(2)
    elevations = np.sort(random.uniform(-0.4, 0.2, 32))[::-1].astype(np.float32)
    offsets = random.uniform(-0.05, 0.05, 32).astype(np.float32)
    azimuths = spin(400, direction).astype(np.float32)
    model = sensors.RowOffsetStructuredSpinningLidarModel(
        types.RowOffsetStructuredSpinningLidarModelParameters(
            spinning_frequency_hz=10.0, spinning_direction=direction, n_rows=32, n_columns=400,
            row_elevations_rad=elevations, column_azimuths_rad=azimuths,
            row_azimuth_offsets_rad=offsets,
        ),
        **make,
    )  # fmt: skip
    poses = start_and_end()
    lidar = SpinningLidar(
        np.eye(4),
        Trajectory(np.stack(poses), CLOCK),
        elevations,
        azimuths,
        azimuth_offsets=offsets,
        start=0.0,
        end=0.03,
    )
    elements = random.integers([0, 0], [32, 400], (10_000, 2))
    ours = jax.jit(lambda lidar, elements: lidar.rays(elements))(lidar, jnp.asarray(elements))
    theirs = model.elements_to_world_rays_shutter_pose(elements, *poses).world_rays.numpy()
    np.testing.assert_allclose(ours.origins, theirs[:, :3], atol=1e-10)
    # Their linear interpolation of quaternions, as above.
    np.testing.assert_allclose(ours.directions, theirs[:, 3:], atol=1e-7)
