"""The lens model and its inverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies

from derivatives import assert_exact_derivatives
from jaxrec.sensors import PinholeCamera
from jaxrec.sensors.distortion import distort, is_monotonic, undistort
from sensor_cases import LENSES, pinhole, pixel_centers, rays_of

jitted_distort, jitted_undistort = jax.jit(distort), jax.jit(undistort)
jitted_is_monotonic = jax.jit(is_monotonic)
jacobians = jax.jit(jax.vmap(jax.jacfwd(distort), in_axes=(0, None)))


def test_without_coefficients_the_lens_is_ideal_to_the_bit():
    ideal, zero = pinhole(), pinhole((0.0,) * 5)
    rays = ideal.rays()
    for ours, theirs in zip(jax.tree.leaves(zero.rays()), jax.tree.leaves(rays), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    points = rays.origins + rays.directions
    np.testing.assert_array_equal(zero.project(points)[0], ideal.project(points)[0])


@given(
    coefficients=strategies.tuples(
        *(strategies.floats(-bound, bound) for bound in (0.6, 0.3, 0.02, 0.02, 0.1))
    ),
    angle=strategies.floats(0, 2 * np.pi),
)
@settings(max_examples=60, deadline=None)
def test_distortion_round_trip_over_all_lenses(coefficients, angle):
    # Out to 50 degrees off axis or 85 % of the way to the fold, whichever comes first.
    with jax.enable_x64(True):
        coefficients = jnp.asarray(coefficients)
        towards = np.array([np.cos(angle), np.sin(angle)])
        radii = np.linspace(0.0, 1.2, 25)
        inside = jitted_is_monotonic(jnp.asarray(np.outer(radii / 0.85, towards)), coefficients)
        inside = np.logical_and.accumulate(inside)
        points = jnp.asarray(np.outer(np.where(inside, radii, 0), towards))
        back, valid = jitted_undistort(jitted_distort(points, coefficients), coefficients)
        assert np.all(valid)
        np.testing.assert_allclose(back, points, atol=1e-10)


def test_undistortion_has_exact_second_derivatives(x64):
    def gradient(point, coefficients):
        return jax.grad(lambda *args: undistort(*args)[0][0], argnums=(0, 1))(point, coefficients)

    point, coefficients = jnp.asarray([0.5, -0.3]), jnp.asarray(LENSES["decentred"])
    # The third coefficient in p enters with its fifth derivative, about 1e6: h^4 of that.
    assert_exact_derivatives(gradient, point, coefficients, atol=2e-6)


@pytest.mark.parametrize("name", LENSES)
def test_is_monotonic_is_where_the_jacobian_is_positive(x64, name):
    # By definition, from samples: the radius grows along the ray and J is positive definite.
    coefficients = jnp.asarray(LENSES[name])
    for angle in np.linspace(0, 2 * np.pi, 7):
        towards = np.array([np.cos(angle), np.sin(angle)])
        points = jnp.asarray(np.outer(np.linspace(1e-3, 4.0, 4000), towards))
        positive = np.linalg.eigvalsh(jacobians(points, coefficients)).min(axis=-1) > 0
        first = np.argmin(positive) if not positive.all() else len(points)
        flags = np.asarray(jitted_is_monotonic(points, coefficients))
        # Tangential terms move the fold a little beyond the radial polynomial's own.
        assert flags[: int(0.9 * first)].all()
        assert not flags[first:].any()


def test_pixels_beyond_the_fold_have_no_ray_and_no_gradient():
    # k1 = -0.3 folds at r = sqrt(1 / 0.9): no pixel beyond r (1 - 0.3 r^2) = 0.7027.
    camera = PinholeCamera(
        jnp.eye(4), (20.0, 20.0), (20.0, 20.0), (-0.3, 0.0, 0.0, 0.0, 0.0), width=40, height=40
    )
    directions = rays_of(camera).directions
    radius = np.linalg.norm(pixel_centers(40, 40) / 20 - 1, axis=-1)
    np.testing.assert_array_equal(np.isnan(directions).any(axis=-1), radius > 0.7027)
    np.testing.assert_array_equal(np.isnan(directions).all(axis=-1), radius > 0.7027)

    def loss(camera):
        rays = camera.rays()
        return jnp.sum(jnp.where(jnp.isnan(rays.directions), 0.0, rays.directions))

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(camera)):
        assert np.all(np.isfinite(leaf))


def test_points_that_cannot_be_seen_have_no_pixel_and_no_gradient():
    camera = PinholeCamera(
        jnp.eye(4), (20.0, 20.0), (20.0, 20.0), (-0.3, 0.0, 0.0, 0.0, 0.0), width=40, height=40
    )
    points = jnp.asarray([[0.1, 0, 1], [0.1, 0, -1], [0.1, 0, 0], [1.2, 0, 1.0]])
    pixels, depth = camera.project(points)
    np.testing.assert_array_equal(np.isnan(pixels[:, 0]), [False, True, True, True])
    np.testing.assert_array_equal(depth, [1, -1, 0, 1])

    def loss(camera, points):
        pixels, _ = camera.project(points)
        return jnp.sum(jnp.where(jnp.isnan(pixels), 0.0, pixels))

    d_camera, d_points = jax.jit(jax.grad(loss, argnums=(0, 1)))(camera, points)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((d_camera, d_points)))
    assert not np.any(d_points[1:]) and np.any(d_points[0])
