"""`blend` under every transformation of JAX, and what it refuses."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec as P

from jaxrec import Rays, blend, export_checks
from problems import FAR, NEAR, gradients, loss, problem, run

pytestmark = pytest.mark.optimized

KINDS = ("softmax", "alpha")
GAMMA = jnp.float32(0.1)
SPHERES = 30


def arrays(seed=0, grid=(2, 6, 7)):
    return problem(seed=seed, spheres=SPHERES, grid=grid).arrays(np.float32)


def image(kind, *values, gamma=GAMMA):
    return run(values, gamma, (("kind", kind),))


def assert_trees_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_trees_close(a, b, tolerance=1e-5):
    def close(x, y):
        scale = max(float(np.abs(y).max(initial=0)), 1.0)
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)

    jax.tree.map(close, a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_over_scenes_equals_a_loop(kind):
    cases = [arrays(seed) for seed in range(3)]
    stacked = [jnp.stack(x) for x in zip(*cases, strict=True)]
    out = jax.vmap(functools.partial(image, kind))(*stacked)
    for i, case in enumerate(cases):
        assert_trees_equal(jax.tree.map(lambda x, i=i: x[i], out), image(kind, *case))


def test_nested_vmap_with_mixed_axes():
    # Axis A: centers and gamma; axis B: rays; radii belong to both; all else is shared.
    values = list(arrays())
    centers = jnp.stack([values[0], values[0] + 0.1, values[0] - 0.1])
    origins = jnp.stack([values[4], values[4] + 0.2])
    radii = jnp.stack([jnp.stack([values[1] * f for f in (1.0, 1.1)]) for _ in range(3)])
    gammas = jnp.float32([0.05, 0.1, 0.2])

    def one(center, radius, origin, gamma):
        full = (center, radius, *values[2:4], origin, *values[5:])
        return image("softmax", *full, gamma=gamma)

    inner = jax.vmap(one, in_axes=(None, 0, 0, None))
    out = jax.vmap(inner, in_axes=(0, 0, None, 0))(centers, radii, origins, gammas)
    for a in range(3):
        for b in range(2):
            alone = one(centers[a], radii[a, b], origins[b], gammas[a])
            assert_trees_equal(jax.tree.map(lambda x, a=a, b=b: x[a, b], out), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_vmap_sums_shared_operands(kind):
    values = arrays()
    many = jnp.stack([values[4], values[4] + 0.1, values[4] - 0.2])

    def total(centers, background):
        def one(origins):
            full = (centers, *values[1:4], origins, *values[5:7], background)
            return loss(image(kind, *full))

        return jax.vmap(one)(many).sum()

    def looped(centers, background):
        rays = [(centers, *values[1:4], o, *values[5:7], background) for o in many]
        return sum(loss(image(kind, *full)) for full in rays)

    wanted = (values[0], values[7])
    assert_trees_close(
        jax.grad(total, argnums=(0, 1))(*wanted), jax.grad(looped, argnums=(0, 1))(*wanted)
    )


def test_vmap_of_gradient_equals_a_loop():
    cases = [arrays(seed) for seed in range(2)]
    stacked = [jnp.stack(x) for x in zip(*cases, strict=True)]

    def gradient(*values):
        return gradients(values, GAMMA, (("kind", "alpha"),))

    out = jax.vmap(gradient)(*stacked)
    for i, case in enumerate(cases):
        assert_trees_close(jax.tree.map(lambda x, i=i: x[i], out), gradient(*case), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_views_are_independent(kind):
    values = arrays(grid=(3, 6, 7))
    out = image(kind, *values)
    for v in range(3):
        rays = [x[v : v + 1] for x in values[4:7]]
        alone = image(kind, *values[:4], *rays, values[7])
        assert_trees_equal(jax.tree.map(lambda x, v=v: x[v : v + 1], out), alone)


def value(centers, kind="alpha"):
    _, *rest = arrays()
    return loss(image(kind, centers, *rest))


def test_jit_checkpoint_and_scan_keep_the_gradient():
    centers = arrays()[0]
    expected = jax.grad(value)(centers)
    assert_trees_close(jax.jit(jax.grad(value))(centers), expected, 1e-6)
    assert_trees_close(jax.grad(jax.jit(value))(centers), expected, 1e-6)
    assert_trees_close(jax.grad(jax.checkpoint(value))(centers), expected, 1e-6)

    def descend(x, _):
        return x - 1e-3 * jax.grad(value)(x), value(x)

    scanned, _ = jax.lax.scan(descend, centers, None, length=3)
    looped = centers
    for _ in range(3):
        looped, _ = descend(looped, None)
    assert_trees_close(scanned, looped, 1e-5)


def test_donated_operands():
    centers = arrays()[0]
    expected = centers - jax.grad(value)(centers)
    step = jax.jit(lambda x: x - jax.grad(value)(x), donate_argnums=0)
    assert_trees_close(step(centers + 0), expected, 1e-6)


def test_what_is_not_asked_for_is_not_computed():
    values = arrays()

    def of(centers):
        return loss(image("softmax", centers, *values[1:]))

    text = jax.jit(jax.grad(of)).lower(values[0]).as_text()
    call = next(line for line in text.splitlines() if "@jaxrec.blend_vjp.v3" in line)
    assert "need = 1 : i32" in call  # centers alone


def sharded(mesh, function, in_specs, out_specs):
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True
    )


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_shard_map_over_views(axis_type):
    devices = jax.devices("cpu")
    assert len(devices) == 2
    mesh = Mesh(np.array(devices), ("views",), axis_types=(axis_type,))
    values = arrays(grid=(4, 6, 7))
    spheres, rays, background = values[:4], values[4:7], values[7]
    phases = jnp.sin(1.3 * jnp.arange(4 * 6 * 7 * 3, dtype=jnp.float32)).reshape(4, 6, 7, 3)

    def local(spheres, rays, phases, background):
        return jnp.sum(phases * image("alpha", *spheres, *rays, background).features)

    def summed(spheres, rays, phases, background):
        return jax.lax.psum(local(spheres, rays, phases, background), "views")

    over = P("views")
    wanted = jax.grad(local, argnums=(0, 1, 3))(spheres, rays, phases, background)

    # The gradient of a sharded sum ...
    outside = jax.grad(sharded(mesh, summed, (P(), over, over, P()), P()), argnums=(0, 1, 3))
    placed = jax.device_put(rays, jax.NamedSharding(mesh, over))
    split = jax.device_put(phases, jax.NamedSharding(mesh, over))
    with jax.set_mesh(mesh):
        assert_trees_close(jax.jit(outside)(spheres, placed, split, background), wanted)

    # ... and the gradient taken inside, of replicated spheres: its sum over the mesh is implied.
    inside = sharded(mesh, jax.grad(local, argnums=(0, 3)), (P(), over, over, P()), (P(), P()))
    with jax.set_mesh(mesh):
        found = jax.jit(inside)(spheres, placed, split, background)
    assert_trees_close(found, (wanted[0], wanted[2]))


def test_export_round_trip():
    from jax import export

    values = arrays()
    function = jax.jit(lambda *x: image("alpha", *x).features)
    exported = export.export(function, disabled_checks=export_checks())(*values)
    again = export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(*values), function(*values))
    with pytest.raises(ValueError, match="custom call"):
        export.export(function)(*values)


@pytest.mark.parametrize("name", ["near", "far", "gamma", "background_depth"])
def test_limits_have_no_gradient_and_say_so(name):
    values = arrays()
    limits = {"near": NEAR, "far": FAR, "gamma": 0.1, "background_depth": 1e-6}

    def of(x, transform=lambda x: x):
        rays = Rays(*values[4:7])
        full = limits | {name: transform(x)}
        out = blend(*values[:4], rays, values[7], kind="softmax", **full)
        return out.features.sum()

    x = jnp.float32(limits[name])
    with pytest.raises(ValueError, match=f"{name} has no gradient.*stop_gradient"):
        jax.grad(of)(x)
    assert jax.grad(lambda x: of(x, jax.lax.stop_gradient))(x) == 0


def test_annealing_does_not_recompile():
    values = arrays()
    compiled = jax.jit(lambda gamma, near: run(values, gamma, (("kind", "softmax"),)).alpha)
    for gamma in (0.1, 0.01, 0.001):
        compiled(jnp.float32(gamma), jnp.float32(NEAR))
    assert compiled._cache_size() == 1


def test_without_native_library_the_definition_runs():
    # A process in which the extension cannot be imported still renders, and agrees.
    code = """
import sys
sys.modules["jaxrec._cpu"] = sys.modules["jaxrec._cuda"] = None
import jax, numpy as np
sys.path.insert(0, sys.argv[1])
from problems import problem, run
from jaxrec import _ffi
assert not _ffi.modules()
arrays = problem(spheres=9, grid=(1, 3, 4)).arrays(np.float32)
out = run(arrays, np.float32(0.1), (("kind", "alpha"),))
print(float(out.alpha.sum()))
"""
    here = __file__.rsplit("/", 1)[0]
    found = subprocess.run(
        [sys.executable, "-P", "-c", code, here], capture_output=True, text=True, check=True
    )
    case = problem(spheres=9, grid=(1, 3, 4)).arrays(np.float32)
    expected = float(run(case, GAMMA, (("kind", "alpha"),)).alpha.sum())
    assert abs(float(found.stdout) - expected) < 1e-4
