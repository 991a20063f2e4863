"""The model: shading in two stages around the blend, for one view and for several."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrec.geometry import matrix_from_axis_angle
from jaxrec.scene import Spheres
from jaxrec.sensors import PinholeCamera, look_at
from jaxrec.shading import PlainColor, SphericalHarmonics, ViewMLP, harmonics_basis
from jaxrec.train import SphereModel

LIMITS = {"near": 0.1, "far": 10.0}
SHADERS = {
    "plain": PlainColor,
    "harmonics": lambda: SphericalHarmonics(2),
    "mlp": lambda: ViewMLP(rngs=nnx.Rngs(0)),
}


def some_model(key, shader, count=40, dtype=jnp.float32):
    keys = jax.random.split(key, 4)
    spheres = Spheres.create(
        jax.random.uniform(keys[0], (count, 3), dtype, -0.5, 0.5),
        jax.random.uniform(keys[1], (count,), dtype, 0.1, 0.3),
        jax.random.uniform(keys[2], (count,), dtype, 0.2, 0.9),
        jax.random.normal(keys[3], (count, shader.channels), dtype),
    )
    return SphereModel(spheres, shader)


def camera_at(angle, size=24, dtype=np.float32):
    eye = np.asarray([2 * np.cos(angle), 2 * np.sin(angle), 0.7], dtype)
    pose = look_at(eye, np.zeros(3, dtype), np.asarray([0, 0, 1], dtype))
    focal, principal = np.full(2, 1.2 * size, dtype), np.full(2, size / 2, dtype)
    return PinholeCamera(pose, focal, principal, width=size, height=size)


def stack(cameras):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cameras)


@pytest.fixture(params=SHADERS)
def model(request, key):
    return some_model(key, SHADERS[request.param]())


def test_a_sphere_shows_its_harmonics_along_the_line_from_the_camera(key):
    model = some_model(key, SphericalHarmonics(2), count=1)
    model.logit_opacities[...] = jnp.full(1, 12.0)
    model.log_radii[...] = jnp.log(jnp.full(1, 1.0))
    camera = camera_at(1.0)
    picture = model(camera, jnp.zeros(3), **LIMITS)
    away = model.centers[0] - camera.world_from_camera[:3, 3]
    basis = harmonics_basis(away / jnp.linalg.norm(away), 2)
    color = 0.5 + basis @ model.features[0].reshape(-1, 3)
    # Over black, the colour of every pixel is the sphere's, faded by alpha.
    expected = np.asarray(picture.alpha)[..., None] * np.asarray(color)
    np.testing.assert_allclose(picture.color, expected, atol=1e-5)
    assert picture.alpha.max() > 0.9


def test_several_views_are_those_of_each_camera(model):
    cameras = [camera_at(angle) for angle in (0.0, 1.0, 2.5)]
    grounds = jnp.asarray([[0.0, 0, 0], [1, 1, 1], [0.2, 0.4, 0.6]])
    graph, state = nnx.split(model)

    def total(state, cameras, grounds):
        picture = nnx.merge(graph, state)(cameras, grounds, **LIMITS)
        return (jnp.square(picture.color).sum() + picture.depth.sum(), picture)

    differentiate = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True, allow_int=True))
    (_, together), of_all = differentiate(state, stack(cameras), grounds)
    singles = [differentiate(state, *view) for view in zip(cameras, grounds, strict=True)]
    alone = stack([picture for (_, picture), _ in singles])
    # Sums of 40 spheres, in another order at most.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), together, alone)
    for name in ("centers", "log_radii", "logit_opacities", "features"):
        summed = sum(gradients[0][name][...] for _, gradients in singles)
        found = of_all[0][name][...]
        np.testing.assert_allclose(found, summed, atol=1e-4 * np.abs(summed).max())
        assert np.any(found)
    poses = jnp.stack([gradients[1].world_from_camera for _, gradients in singles])
    scale = np.abs(poses).max()
    np.testing.assert_allclose(of_all[1].world_from_camera, poses, atol=1e-4 * scale)


def test_one_view_takes_no_detour(model):
    # A stack of one view blends as a single scene: the same program but for the stack's axis.
    graph, state = nnx.split(model)

    def look(state, cameras):
        return nnx.merge(graph, state)(cameras, jnp.zeros((1, 3)), **LIMITS)

    def batched(views):
        text = jax.jit(look).lower(state, stack([camera_at(0.0)] * views)).as_text()
        [call] = [line for line in text.splitlines() if "@jaxrec.blend" in line]
        # Rays have four axes: views, rows, columns, x y z.
        return "tensor<5xindex>" in call

    assert not batched(1)
    assert batched(2) == isinstance(model.shader, SphericalHarmonics)


def test_gradients_of_a_pose_include_the_direction(x64, key):
    shader = SphericalHarmonics(3)
    model = some_model(key, shader, count=3, dtype=jnp.float64)
    # Wide soft spheres: no edge of one comes and goes while the camera moves.
    model.log_radii[...] = jnp.log(jnp.full(3, 1.1))
    graph, state = nnx.split(model)
    camera = camera_at(0.3, size=2, dtype=np.float64)

    def colors(turn, shift, rest):
        pose = camera.world_from_camera
        turned = pose.at[:3, :3].set(matrix_from_axis_angle(turn) @ pose[:3, :3])
        moved = dataclasses.replace(camera, world_from_camera=turned.at[:3, 3].add(shift))
        features = state["features"].replace(rest * state["features"][...])
        model = nnx.merge(graph, nnx.State({**state, "features": features}))
        return model(moved, jnp.zeros(3), **LIMITS).color

    start = jnp.full(6, 1e-3)
    ones = jnp.ones((1, shader.channels))

    def moved_colors(x, rest):
        return colors(x[:3], x[3:], rest)

    # Central differences of fourth order err by h^4.
    steps, weights = 1e-3 * jnp.asarray([-2.0, -1, 1, 2]), jnp.asarray([1.0, -8, 8, -1]) / 12e-3
    places = start[None] + jnp.kron(steps[:, None], jnp.eye(6))
    seen = jax.jit(jax.vmap(moved_colors, (0, None)))(places, ones)
    numeric = jnp.tensordot(weights, seen.reshape(4, 6, -1), axes=1)
    derive = jax.jit(jax.jacrev(moved_colors))
    exact = derive(start, ones).reshape(-1, 6).T
    np.testing.assert_allclose(exact, numeric, atol=1e-7)
    # Without what depends on the direction the gradient is another one.
    still = derive(start, ones.at[:, 3:].set(0)).reshape(-1, 6).T
    assert np.abs(still - exact).max() > 1e-2


def test_the_colour_of_a_direction_does_not_move_spheres(key):
    shader = SphericalHarmonics(1)
    model = some_model(key, shader, count=3)
    graph, state = nnx.split(model)

    def shown(centers):
        moved = nnx.State({**state, "centers": state["centers"].replace(centers)})
        return nnx.merge(graph, moved)(camera_at(0.0), jnp.zeros(3), **LIMITS).color.sum()

    # Spheres of fixed colours that look the same from there have the same gradient.
    varying = state["features"].replace(jnp.zeros((3, shader.channels)).at[:, 3:].set(1.0))
    state = nnx.State({**state, "features": varying})
    centers = model.centers[...]
    found = jax.jit(jax.grad(shown))(centers)
    away = centers - camera_at(0.0).world_from_camera[None, :3, 3]
    basis = harmonics_basis(away / jnp.linalg.norm(away, axis=-1, keepdims=True), 1)
    fixed = jnp.tile(0.5 + basis[:, 1:].sum(axis=-1, keepdims=True), (1, 3))
    plain = SphereModel(dataclasses.replace(model.spheres(), features=fixed), PlainColor())
    graph_plain, state_plain = nnx.split(plain)

    def alike(centers):
        moved = nnx.State({**state_plain, "centers": state_plain["centers"].replace(centers)})
        picture = nnx.merge(graph_plain, moved)(camera_at(0.0), jnp.zeros(3), **LIMITS)
        return picture.color.sum()

    expected = jax.jit(jax.grad(alike))(centers)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_a_camera_inside_a_sphere_has_finite_gradients(key):
    model = some_model(key, SphericalHarmonics(2), count=5)
    camera = camera_at(0.0)
    model.centers[...] = model.centers[...].at[0].set(camera.world_from_camera[:3, 3])
    graph, state = nnx.split(model)

    def total(state, camera):
        return nnx.merge(graph, state)(camera, jnp.zeros(3), **LIMITS).color.sum()

    gradients = jax.jit(jax.grad(total, argnums=(0, 1), allow_int=True))(state, camera)
    for leaf in jax.tree.leaves(gradients):
        assert leaf.dtype == jax.dtypes.float0 or np.all(np.isfinite(leaf))


def test_a_moving_sensor_is_taken_to_be_at_the_mean_of_its_rays_origins(key):
    class Slider:
        """A camera that moves by a metre while it reads its rows."""

        def rays(self):
            rays = still.rays()
            shift = jnp.linspace(-0.5, 0.5, 24)[:, None, None] * jnp.asarray([[[1.0, 0, 0]]])
            return dataclasses.replace(rays, origins=rays.origins + shift)

    still = camera_at(0.0)
    model = some_model(key, SphericalHarmonics(1), count=1)
    first, second = (model(camera, jnp.zeros(3), **LIMITS) for camera in (still, Slider()))
    assert np.abs(first.alpha - second.alpha).max() > 0.1
    # Both show the one colour of the one sphere, faded by alpha.
    center, color = model.centers[0] - still.world_from_camera[:3, 3], model.features[0]
    basis = harmonics_basis(center / jnp.linalg.norm(center), 1)
    shown = 0.5 + np.asarray(basis) @ np.asarray(color).reshape(-1, 3)
    for picture in (first, second):
        expected = np.asarray(picture.alpha)[..., None] * shown
        np.testing.assert_allclose(picture.color, expected, atol=1e-5)
