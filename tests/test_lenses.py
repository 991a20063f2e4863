"""Lenses against their textbook formulas, at their ends, and where they see behind the camera."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derivatives import assert_exact_derivatives
from jaxrec.geometry import unit
from jaxrec.sensors import (
    EquirectangularLens,
    FisheyeLens,
    FThetaBackwardLens,
    FThetaLens,
    LensCamera,
    RationalLens,
    StoredWindshieldLens,
    WindshieldLens,
)
from jaxrec.sensors._inverse import invert_polynomial, polynomial
from jaxrec.sensors.lenses._radial import Outward
from sensor_cases import FOCAL, LENS_VALUES, PRINCIPAL, arrays, pinhole, pose, project, rays_of

K1, K2, P1, P2, K3 = -0.2, 0.05, 0.02, -0.015, 0.01
PLAIN = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])


@jax.jit
def directions(lens, pixels):
    found, valid = lens.directions(pixels)
    return jnp.where(valid[..., None], unit(found), jnp.nan)


@jax.jit
def pixels_of(lens, points):
    found, valid = lens.pixels(points)
    return jnp.where(valid[..., None], found, jnp.nan)


def around(angles, turns=7):
    """Unit vectors at these angles from the axis, in all directions."""
    angle, turn = np.meshgrid(angles, np.linspace(0, 2 * np.pi, turns), indexing="ij")
    sine = np.sin(angle)
    return np.stack([sine * np.cos(turn), sine * np.sin(turn), np.cos(angle)], axis=-1)


def test_a_rational_lens_without_coefficients_is_the_pinhole():
    ideal = pinhole()
    lens = RationalLens(*arrays(jnp.float32, FOCAL, PRINCIPAL, [0] * 6, [0, 0], [0] * 4))
    camera = LensCamera(pose(), lens, width=9, height=7)
    for ours, theirs in zip(
        jax.tree.leaves(rays_of(camera)), jax.tree.leaves(rays_of(ideal)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    points = rays_of(ideal).origins + 3 * rays_of(ideal).directions
    # Products fuse differently on the way into the camera: roundings of coordinates of size 9.
    for ours, theirs in zip(project(camera, points), project(ideal, points), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)


def test_a_rational_lens_with_five_coefficients_is_the_pinhole_with_a_lens(x64):
    camera = pinhole((K1, K2, P1, P2, K3), jnp.float64)
    radial, tangential = (K1, K2, K3, 0, 0, 0), (P1, P2)
    lens = RationalLens(*arrays(jnp.float64, FOCAL, PRINCIPAL, radial, tangential, [0] * 4))
    ours = rays_of(LensCamera(pose(jnp.float64), lens, width=9, height=7))
    np.testing.assert_allclose(ours.directions, rays_of(camera).directions, atol=1e-13)


def test_rational_lens_is_the_textbook_one(x64):
    lens = LENS_VALUES["rational"](jnp.float64)
    x, y = np.meshgrid(np.linspace(-0.6, 0.6, 5), np.linspace(-0.5, 0.5, 5))
    k1, k2, k3, k4, k5, k6 = np.asarray(lens.radial)
    (p1, p2), (s1, s2, s3, s4) = np.asarray(lens.tangential), np.asarray(lens.thin_prism)
    s = x**2 + y**2
    radial = (1 + k1 * s + k2 * s**2 + k3 * s**3) / (1 + k4 * s + k5 * s**2 + k6 * s**3)
    u = x * radial + 2 * p1 * x * y + p2 * (s + 2 * x * x) + s1 * s + s2 * s**2
    v = y * radial + p1 * (s + 2 * y * y) + 2 * p2 * x * y + s3 * s + s4 * s**2
    wanted = np.stack([u, v], axis=-1) * FOCAL + PRINCIPAL
    points = 2.5 * np.stack([x, y, np.ones_like(x)], axis=-1)
    np.testing.assert_allclose(pixels_of(lens, jnp.asarray(points)), wanted, atol=1e-13)


def test_radial_lenses_are_the_textbook_ones(x64):
    angle = np.linspace(0, 1.4, 8)
    rays = around(angle)
    across = rays[..., :2] / np.maximum(np.linalg.norm(rays[..., :2], axis=-1), 1e-9)[..., None]
    k = np.array([0.05, -0.01, 0.002, -0.0003])
    growth = 1 + k[0] * angle**2 + k[1] * angle**4 + k[2] * angle**6 + k[3] * angle**8
    lens = FisheyeLens(*arrays(jnp.float64, FOCAL, PRINCIPAL, k, 2.0))
    wanted = (angle * growth)[:, None, None] * across * FOCAL + PRINCIPAL
    np.testing.assert_allclose(pixels_of(lens, jnp.asarray(rays)), wanted, atol=1e-12)

    c, d, e = 1.1, 0.02, -0.03
    linear = np.array([[c, d], [e, 1]])
    poly = np.array([0, 5.0, 0.1, -0.2, 0.05, 0.01])
    lens = FThetaLens(*arrays(jnp.float64, PRINCIPAL, poly, 2.0, linear))
    distance = np.polyval(poly[::-1], angle)[:, None, None]
    wanted = (distance * across) @ linear.T + PRINCIPAL
    np.testing.assert_allclose(pixels_of(lens, jnp.asarray(rays)), wanted, atol=1e-12)

    # Backward: the pixel at distance r along an axis shows the angle of the polynomial.
    poly = np.array([0, 0.2, 0.001, -0.0002, 1e-5, 1e-6])
    lens = FThetaBackwardLens(*arrays(jnp.float64, PRINCIPAL, poly, 3.0))
    for r in (0.0, 1.5, 6.0):
        angle = np.polyval(poly[::-1], r)
        found = directions(lens, jnp.asarray(PRINCIPAL + np.array([0, r])))
        np.testing.assert_allclose(found, [0, np.sin(angle), np.cos(angle)], atol=1e-14)


def test_equirectangular_is_its_closed_form(x64):
    lens = EquirectangularLens.full(360, 180, jnp.float64)
    # One pixel is one degree; the middle looks forward, right is +x, down is +y.
    pixels = np.array([[180, 90], [270, 90], [180, 180], [90, 90], [0, 90], [360, 90], [225, 45.0]])
    half = np.sqrt(0.5)
    wanted = [
        [0, 0, 1], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, 0, -1], [0, 0, -1], [0.5, -half, 0.5],
    ]  # fmt: skip
    np.testing.assert_allclose(directions(lens, jnp.asarray(pixels)), wanted, atol=1e-15)
    assert np.all(np.isnan(directions(lens, jnp.asarray([[361.0, 90], [180, -1]]))))
    assert np.all(np.isnan(pixels_of(lens, jnp.asarray([0.0, 2, 0]))))


def wide(kind, scales):
    """A lens of 2.4 rad to each side, with its coefficients as factors of plausible ones."""
    focal, principal, coefficients, linear, top = scales
    center = principal * jnp.asarray([100.0, 90.0])
    matrix = linear * jnp.asarray([[1.01, 0.02], [-0.01, 1.0]])
    angle = 2.6 * top
    if kind is FisheyeLens:
        base = jnp.asarray([0.02, -0.004, 0.0007, -3e-5])
        return kind(focal * jnp.asarray([40.0, 42.0]), center, base * coefficients[2:], angle)
    if kind is FThetaLens:
        base = jnp.asarray([1e-3, 40.0, 1.0, -1.2, 0.2, 0.02])
    else:
        base = jnp.asarray([1e-5, 0.025, 1e-6, 1e-6, -1e-8, 1e-11])
    return kind(center, base * coefficients, angle, matrix)


def both_ways(kind, pixels, scales):
    lens = wide(kind, scales)
    found, valid = lens.directions(pixels)
    seen, again = lens.pixels(found[1:] * 1.5)
    return found, seen, jnp.where(valid & jnp.all(again), 0.0, jnp.nan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FisheyeLens, FThetaLens, FThetaBackwardLens])
def test_lenses_that_see_behind_the_camera_have_exact_derivatives(x64, kind):
    ones = jnp.ones
    scales = ones(2), ones(2), ones(6), ones((2, 2)), ones(())
    # On the axis' height and out to 2.3 rad, where the camera sees back.
    pixels = jnp.asarray([[103.0, 91], [120, 60], [192, 90], [100, 172]])
    found, seen, _ = both_ways(kind, pixels, scales)
    assert found[2, 2] < -0.5 and found[3, 2] < -0.2
    np.testing.assert_allclose(seen, pixels[1:], atol=1e-11)
    # Relative steps of 2e-3 in polynomials of degree 9, and pixels of size 100.
    assert_exact_derivatives(jax.tree_util.Partial(both_ways, kind), pixels, scales, atol=3e-6)


@pytest.mark.parametrize("kind", [FisheyeLens, FThetaLens, FThetaBackwardLens])
def test_derivatives_on_the_axis_are_those_of_the_slope(x64, kind):
    coefficients = jnp.asarray([0, 1.0, 1, 1, 1, 1])
    lens = wide(kind, (jnp.ones(2), jnp.ones(2), coefficients, jnp.ones((2, 2)), jnp.ones(())))
    middle = jnp.asarray([100.0, 90.0])
    inward = jax.jit(jax.jacobian(lambda pixel: lens.directions(pixel)[0]))(middle)
    outward = jax.jit(jax.jacobian(lambda point: lens.pixels(point)[0]))(jnp.asarray([0.0, 0, 2]))
    np.testing.assert_allclose(inward[2], 0, atol=1e-12)
    np.testing.assert_allclose(inward[:2] @ (2 * outward[:, :2]), np.eye(2), atol=1e-12)


def test_lenses_end_at_their_largest_angle_and_at_their_fold(x64):
    # k1 = -0.2: t - 0.2 t^3 is largest at sqrt(1 / 0.6) = 1.291 and 0.8607 there.
    free = FisheyeLens(*arrays(jnp.float64, [100, 100], [0, 0], (-0.2, 0, 0, 0)))
    short = dataclasses.replace(free, max_angle=jnp.asarray(1.0))
    offsets = jnp.asarray([[79.9, 0], [80.1, 0], [86.0, 0], [86.1, 0]])
    for lens, wanted in ((free, [0, 0, 0, 1]), (short, [0, 1, 1, 1])):
        np.testing.assert_array_equal(np.isnan(directions(lens, offsets)[:, 2]), wanted)
    rays = jnp.asarray(around([0.99, 1.01, 1.29, 1.3])[:, 1])
    for lens, wanted in ((free, [0, 0, 0, 1]), (short, [0, 1, 1, 1])):
        np.testing.assert_array_equal(np.isnan(pixels_of(lens, rays)[:, 0]), wanted)
    # f-theta to 200 degrees: a pixel beyond has no ray, whichever polynomial is the model.
    forward = FThetaLens(*arrays(jnp.float64, [0, 0], 50 * PLAIN, np.deg2rad(100)))
    backward = FThetaBackwardLens(*arrays(jnp.float64, [0, 0], PLAIN / 50, np.deg2rad(100)))
    end = 50 * np.deg2rad(100)
    for lens in (forward, backward):
        found = directions(lens, jnp.asarray([[end - 0.01, 0], [end + 0.01, 0]]))
        np.testing.assert_array_equal(np.isnan(found[:, 0]), [False, True])
        assert found[0, 2] < 0
    # A denominator with a root: 1 - s is 0 at |x| = 1.
    pole = RationalLens(*arrays(jnp.float64, [1, 1], [0, 0], (0, 0, 0, -1, 0, 0), [0] * 2, [0] * 4))
    seen = pixels_of(pole, jnp.asarray([[0.9, 0, 1], [1.1, 0, 1]]))
    np.testing.assert_allclose(seen[:, 0], [0.9 / (1 - 0.81), np.nan], rtol=1e-12)


@pytest.mark.parametrize("name", LENS_VALUES)
def test_what_a_lens_cannot_see_is_without_gradient(name):
    lens = LENS_VALUES[name]()

    def loss(lens, pixels, points):
        found = jnp.concatenate([directions(lens, pixels).ravel(), pixels_of(lens, points).ravel()])
        return jnp.sum(jnp.where(jnp.isnan(found), 0.0, found))

    pixels = jnp.asarray([[4.0, 3.5], [1e4, -1e4], [3e5, 1.0]], jnp.float32)
    points = jnp.asarray([[0.2, 0.1, 1], [0, 0, 0], [0, 0, -1], [1, 0, 0], [0, 1, 0]], jnp.float32)
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(lens, pixels, points)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))
    assert np.any(gradients[1][0]) and not np.any(gradients[1][1:])
    assert np.any(gradients[2][0])


def test_inverse_reaches_rounding_for_steep_and_flat_polynomials(x64):
    # 500 random odd polynomials, up to 99.9 % of the way to where they end.
    random = np.random.default_rng(0)
    bounds = [0.2, 0.1, 0.05, 0.01]
    k = random.uniform(-1, 1, (500, 4)) * bounds
    terms = np.zeros((500, 10))
    terms[:, 1], terms[:, 3::2] = 1, k

    @jax.jit
    @jax.vmap
    def errors(coefficients):
        limit = Outward(coefficients, jnp.asarray(2.5))._limit()
        x = limit * jnp.linspace(0, 0.999, 50)
        values = polynomial(coefficients, x)
        again = polynomial(coefficients, invert_polynomial(coefficients, values, limit))
        return jnp.max(jnp.abs(again - values)) / (1 + values[-1])

    assert np.max(errors(jnp.asarray(terms))) < 1e-14


def test_a_windshield_without_deflection_is_not_there(x64):
    inner = LENS_VALUES["rational"](jnp.float64)
    horizontal, vertical = np.array([0.0, 1, 0]), np.array([0, 0, 0, 1.0, 0, 0])
    rays = jnp.asarray(around(np.linspace(0, 0.6, 5)))
    for lens in (
        WindshieldLens(inner, horizontal, vertical),
        StoredWindshieldLens(inner, horizontal, vertical, horizontal, vertical),
    ):
        np.testing.assert_allclose(pixels_of(lens, rays), pixels_of(inner, rays), atol=1e-13)
        pixels = pixels_of(inner, rays)
        np.testing.assert_allclose(directions(lens, pixels), rays, atol=1e-13)


def stored_both_ways(inner, polynomials, pixels):
    lens = StoredWindshieldLens(inner, *polynomials)
    found, _ = lens.directions(pixels)
    return found, lens.pixels(found)[0]


def test_a_stored_windshield_has_exact_derivatives(x64):
    shield, inner = LENS_VALUES["windshield"](jnp.float64), LENS_VALUES["fisheye"](jnp.float64)
    outward = (-0.004, 0.99, -0.02, 0.03, -0.006, -0.01), (0.003, -0.005, -0.01, 1.01, 0.02, -0.03)
    polynomials = [shield.horizontal, shield.vertical, *arrays(jnp.float64, *outward)]
    both = jax.tree_util.Partial(stored_both_ways, inner)
    assert_exact_derivatives(both, polynomials, jnp.asarray([[2.0, 3.0], [6.5, 5.0]]), atol=1e-7)


@pytest.mark.parametrize("name", LENS_VALUES)
def test_resizing_keeps_each_ray_in_its_place(name):
    camera = LensCamera(pose(), LENS_VALUES[name](), width=9, height=7)
    small = camera.scaled(4, 2)
    assert (small.width, small.height) == (4, 2)
    places = np.array([[0.1, 0.1], [0.9, 0.8], [0.5, 0.5], [0.25, 0.9]], np.float32)
    before = camera.rays(jnp.asarray(places * np.array([9, 7], np.float32))).directions
    after = small.rays(jnp.asarray(places * np.array([4, 2], np.float32))).directions
    np.testing.assert_allclose(before, after, atol=2e-6)


@pytest.mark.parametrize("name", LENS_VALUES)
def test_footprint_is_half_a_pixel_in_the_middle(name):
    camera = LensCamera(pose(), LENS_VALUES[name](), width=9, height=7)
    lens = camera.lens.scaled(jnp.asarray([100.0, 100.0]))
    square = 0.5 * np.array([[-1, -1], [1, -1], [-1, 1]], np.float32)
    found = np.asarray(directions(lens, jnp.asarray(np.asarray(lens.principal) + square)))
    area = np.linalg.norm(np.cross(found[1] - found[0], found[2] - found[0]))
    # The glass of the test magnifies by 1 %, and the axis lies beside its middle.
    np.testing.assert_allclose(2 * lens.half_pixel(), np.sqrt(area), rtol=0.03)


I4 = np.eye(4, dtype=np.float32)
PLANE = {"focal": (8.0, 8.0), "principal": (4.0, 3.0)}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: FisheyeLens((8.0, 0.0), (4.0, 3.0)), "focal: got .* give pixels greater than 0"),
        (lambda: FisheyeLens(**PLANE, coefficients=[0.1]), r"coefficients: got shape \[1\]; give"),
        (lambda: FisheyeLens(**PLANE, max_angle=0.0), "max_angle: got 0.0; give radians greater"),
        (lambda: FisheyeLens(**PLANE, coefficients=np.zeros((2, 4))), "coefficients: got leading"),
        (lambda: FThetaLens((4.0, 3.0), [0.0], 1.0), "coefficients: got fewer than 2; give"),
        (lambda: FThetaLens((4.0, 3.0), [0.0, -1], 1.0), r"coefficients\[1\]: got -1.0; give"),
        (lambda: FThetaLens((4.0, 3.0), PLAIN, 1.0, -np.eye(2)[::-1]), "linear: got .* determinan"),
        (lambda: RationalLens(**PLANE, radial=[0] * 3, tangential=[0, 0], thin_prism=[0] * 4),
         r"radial: got shape \[3\]; give \[\.\.\., 6\]"),
        (lambda: EquirectangularLens.full(0, 4), "width: got 0; give a whole number"),
        (lambda: WindshieldLens(FisheyeLens(**PLANE), [0.0, 1, 0, 0], [0.0, 0, 1]),
         "horizontal: got 4 coefficients; give 1, 3, 6, 10"),
        (lambda: WindshieldLens(FisheyeLens(**PLANE), [0.0, 1, 0], np.zeros((2, 3))),
         r"vertical: got leading axes \[2\] for a stack of \[\]"),
        (lambda: LensCamera(np.stack([I4, I4]), FisheyeLens(**PLANE), width=9, height=7),
         r"lens: got float32 and leading axes \[\] for a pose of float32 and \[2\]"),
        (lambda: LensCamera(I4, FisheyeLens(**PLANE), width=9, height=0), "height: got 0; give"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call()
