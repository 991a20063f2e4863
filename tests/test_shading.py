"""Shaders: one table of variants, one contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrec.shading import PlainColor, SphericalHarmonics, UNet, ViewMLP, harmonics_basis

SHADERS = {
    "plain": PlainColor,
    "harmonics-0": lambda: SphericalHarmonics(0),
    "harmonics-1": lambda: SphericalHarmonics(1),
    "harmonics-2": lambda: SphericalHarmonics(2),
    "harmonics-3": lambda: SphericalHarmonics(3),
    "mlp": lambda: ViewMLP(rngs=nnx.Rngs(0)),
    "mlp-no-extra": lambda: ViewMLP(extra=0, degree=0, rngs=nnx.Rngs(0)),
}
EPSILON = float(jnp.finfo(jnp.float32).eps)


@pytest.fixture(params=SHADERS)
def shader(request):
    return SHADERS[request.param]()


def unit_vectors(key, shape):
    vectors = jax.random.normal(key, (*shape, 3))
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def trained(shader):
    """The shader with weights that do something: the last layer starts at zero."""
    weights = nnx.state(shader, nnx.Param)
    leaves, tree = jax.tree.flatten(weights)
    keys = jax.random.split(jax.random.key(1), max(len(leaves), 1))
    drawn = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=False)]
    nnx.update(shader, jax.tree.unflatten(tree, drawn))
    return shader


def shade(shader, features, alpha, directions, view_weight=1.0):
    """Both stages, for pixels that show one sphere each with an alpha."""
    shown = shader.per_sphere(features, directions, view_weight)
    assert shown.shape == (*features.shape[:-1], shader.blended)
    return shader(alpha[..., None] * shown, alpha, directions, view_weight)


def test_starts_with_the_given_colors_from_everywhere(shader, key):
    keys = jax.random.split(key, 3)
    colors = jax.random.uniform(keys[0], (7, 3))
    features = shader.initial_features(colors, keys[1])
    assert features.shape == (7, shader.channels)
    shown = shade(shader, features, jnp.ones(7), unit_vectors(keys[2], (7,)))
    np.testing.assert_allclose(shown, colors, atol=8 * EPSILON)


def test_color_is_premultiplied(shader, key):
    keys = jax.random.split(key, 3)
    colors = jax.random.uniform(keys[0], (5, 3))
    features = shader.initial_features(colors, keys[1])
    alpha = jnp.linspace(0, 1, 5)
    shown = shade(shader, features, alpha, unit_vectors(keys[2], (5,)))
    np.testing.assert_allclose(shown, alpha[:, None] * colors, atol=8 * EPSILON)


def test_shows_nothing_where_nothing_is(shader, key):
    directions = unit_vectors(key, (2, 4))
    shown = trained(shader)(jnp.zeros((2, 4, shader.blended)), jnp.zeros((2, 4)), directions)
    np.testing.assert_array_equal(shown, np.zeros((2, 4, 3)))


def test_no_view_weight_no_view_dependence(shader, key):
    keys = jax.random.split(key, 2)
    features = jax.random.normal(keys[0], (1, shader.channels))
    features = jnp.broadcast_to(features, (6, shader.channels))
    shown = shade(trained(shader), features, jnp.ones(6), unit_vectors(keys[1], (6,)), 0.0)
    np.testing.assert_allclose(shown, np.broadcast_to(shown[:1], (6, 3)), atol=8 * EPSILON)


def test_gradients_are_finite_and_reach_every_weight(shader, key):
    keys = jax.random.split(key, 3)
    features = jax.random.normal(keys[0], (20, shader.channels))
    directions = unit_vectors(keys[1], (20,))
    graph, weights = nnx.split(trained(shader))

    def total(weights, features, directions):
        shader = nnx.merge(graph, weights)
        color = shade(shader, features, jnp.full(20, 0.5), directions)
        return (color * jax.random.normal(keys[2], color.shape)).sum()

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(weights, features, directions)
    for leaf in jax.tree.leaves(gradients):
        assert np.all(np.isfinite(leaf)) and np.any(leaf)


def test_views_share_what_does_not_depend_on_them(shader, key):
    keys = jax.random.split(key, 2)
    features = jax.random.normal(keys[0], (5, shader.channels))
    directions = unit_vectors(keys[1], (2, 5))
    shown = shader.per_sphere(features, directions)
    each = [shader.per_sphere(features, view) for view in directions]
    if shown.ndim == 2:
        np.testing.assert_array_equal(each[0], each[1])
    else:
        np.testing.assert_allclose(shown, jnp.stack(each), atol=8 * EPSILON)
        assert np.abs(each[0] - each[1]).max() > 0.1


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_harmonics_are_orthonormal(degree):
    # Gauss-Legendre in z times even spacing in azimuth is exact for these polynomials.
    nodes, weights = np.polynomial.legendre.leggauss(8)
    azimuth = np.arange(16) * 2 * np.pi / 16
    z = np.repeat(nodes, 16)
    radius = np.sqrt(1 - z * z)
    x, y = radius * np.tile(np.cos(azimuth), 8), radius * np.tile(np.sin(azimuth), 8)
    values = harmonics_basis(jnp.asarray(np.stack([x, y, z], -1), jnp.float32), degree)
    measure = np.repeat(weights, 16) * 2 * np.pi / 16
    gram = np.einsum("ni,nj,n->ij", values, values, measure)
    np.testing.assert_allclose(gram, np.eye((degree + 1) ** 2), atol=1e-6)


def test_harmonics_are_seen_from_the_direction_of_each_view(key):
    # One coefficient of degree 1 at a time: y, z, x in this order.
    shader = SphericalHarmonics(1)
    features = jnp.zeros((3, shader.channels)).at[jnp.arange(3), [3, 7, 11]].set(1.0)
    direction = unit_vectors(key, ())
    shown = shader.per_sphere(features, jnp.broadcast_to(direction, (3, 3)))
    first = np.sqrt(3 / (4 * np.pi)) * np.asarray(direction)[[1, 2, 0]]
    np.testing.assert_allclose(shown, 0.5 + np.diag(first), atol=8 * EPSILON)


def test_residual_is_bounded(key):
    shader = trained(ViewMLP(limit=0.25, rngs=nnx.Rngs(0)))
    features = 100 * jax.random.normal(key, (50, shader.channels))
    shown = shader(features, jnp.ones(50), unit_vectors(key, (50,)))
    assert np.max(np.abs(shown - features[:, :3])) <= 0.25 + 100 * EPSILON


def test_runs_in_float64(x64, key):
    for shader in (SphericalHarmonics(2), ViewMLP(dtype=jnp.float64, rngs=nnx.Rngs(0))):
        features = jnp.ones((2, shader.channels), jnp.float64)
        directions = jnp.asarray(np.eye(3)[:2])
        shown = shade(shader, features, jnp.ones(2, jnp.float64), directions)
        assert shown.dtype == jnp.float64


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="degree: got 4, want 0 to 3"):
        SphericalHarmonics(4)
    with pytest.raises(ValueError, match="hidden=0"):
        ViewMLP(hidden=0, rngs=nnx.Rngs(0))


# ---- whole views


def views(key, channels, shape=(2, 9, 7)):
    keys = jax.random.split(key, 3)
    alpha = jax.random.uniform(keys[0], shape)
    features = alpha[..., None] * jax.random.normal(keys[1], (*shape, channels))
    return features, alpha, unit_vectors(keys[2], shape)


def test_a_unet_starts_without_effect(key):
    unet = UNet(5, width=4, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(unet(*views(key, 5)), np.zeros((2, 9, 7, 3)))


def test_a_unet_is_bounded_and_fades_with_weight_and_alpha(key):
    unet = trained(UNet(5, width=4, limit=0.25, rngs=nnx.Rngs(0)))
    features, alpha, directions = views(key, 5)
    full = np.asarray(unet(100 * features, alpha, directions))
    assert full.any() and np.all(np.abs(full) <= 0.25 * alpha[..., None] + 1e-6)
    half = unet(100 * features, alpha, directions, 0.5)
    np.testing.assert_allclose(half, 0.5 * full, atol=1e-6)
    assert not np.any(unet(features, alpha, directions, 0.0))
    assert not np.any(unet(features, 0 * alpha, directions))


def test_a_unet_treats_views_one_by_one_and_sees_neighbours(key):
    unet = trained(UNet(5, width=4, rngs=nnx.Rngs(0)))
    # Small, so that the bound of the residual hides nothing.
    unet.last.kernel[...] = 1e-4 * unet.last.kernel[...]
    unet.last.bias[...] = jnp.zeros(3)
    features, alpha, directions = views(key, 5)
    both = unet(features, alpha, directions)
    single = unet(features[1], alpha[1], directions[1])
    np.testing.assert_allclose(single, both[1], atol=1e-5)
    changed = unet(features.at[1, 4, 3].add(1.0), alpha, directions)
    np.testing.assert_array_equal(changed[0], both[0])
    moved = np.abs(np.asarray(changed - both)[1]).max(axis=-1) > 0
    assert moved[4, 3] and moved[4, 2] and moved.sum() > 9


def test_a_unet_has_finite_gradients_to_every_weight(key):
    graph, weights = nnx.split(trained(UNet(5, width=4, rngs=nnx.Rngs(0))))
    features, alpha, directions = views(key, 5)

    def total(weights, features, directions):
        change = nnx.merge(graph, weights)(0.1 * features, alpha, directions)
        return (change * jax.random.normal(key, change.shape)).sum()

    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(weights, features, directions)
    for leaf in jax.tree.leaves(gradients):
        assert np.all(np.isfinite(leaf)) and np.any(leaf)


def test_wrong_sizes_of_a_unet_are_named():
    with pytest.raises(ValueError, match="width=0"):
        UNet(3, width=0, rngs=nnx.Rngs(0))
