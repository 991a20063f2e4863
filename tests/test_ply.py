"""Spheres as PLY files: nothing is lost, and other programs see the same colours."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import plyfile
import pytest

from jaxrec.io import read_ply, write_ply
from jaxrec.scene import Spheres
from jaxrec.shading import SphericalHarmonics


def some_spheres(key, degree, count=7):
    keys = jax.random.split(key, 4)
    spheres = Spheres(
        jax.random.normal(keys[0], (count, 3)),
        jax.random.uniform(keys[1], (count,), minval=0.01, maxval=2.0),
        jax.random.uniform(keys[2], (count,)),
        jax.random.normal(keys[3], (count, 3 * (degree + 1) ** 2)),
        jnp.ones(count, bool),
    )
    return dataclasses.replace(spheres, alive=spheres.alive.at[2].set(False))


@pytest.mark.parametrize("degree", range(4))
def test_spheres_come_back_to_the_bit(degree, key, tmp_path):
    spheres = some_spheres(key, degree)
    write_ply(tmp_path / "new" / "a.ply", spheres, comments=["one", "two"])
    found = read_ply(tmp_path / "new" / "a.ply")
    assert found.degree == degree and found.comments == ["one", "two"]
    alive = np.asarray(spheres.alive)
    for name in ("centers", "radii", "opacities", "features"):
        ours = np.asarray(getattr(spheres, name))[alive]
        np.testing.assert_array_equal(getattr(found.spheres, name), ours)
    assert found.spheres.alive.all()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.ply"]


def test_point_cloud_programs_see_plain_colors(tmp_path):
    colors = jnp.array([[0.0, 0.5, 1.0], [1.5, -0.5, 0.25]])
    spheres = Spheres.create(
        centers=np.zeros((2, 3), np.float32),
        radii=np.ones(2, np.float32),
        opacities=np.ones(2, np.float32),
        features=np.asarray(SphericalHarmonics(0).initial_features(colors, jax.random.key(0))),
    )
    write_ply(tmp_path / "a.ply", spheres)
    table = plyfile.PlyData.read(str(tmp_path / "a.ply"))["vertex"].data
    found = np.stack([table[name] for name in ("red", "green", "blue")], axis=-1)
    np.testing.assert_array_equal(found, [[0, 128, 255], [255, 0, 64]])


def splat_colors(table, direction):
    """Colours as programs for 3D Gaussian Splatting evaluate them: Kerbl et al., their basis."""
    x, y, z = direction
    basis = [
        0.28209479177387814,
        *(-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x),
        1.0925484305920792 * x * y,
        -1.0925484305920792 * y * z,
        0.31539156525252005 * (2 * z * z - x * x - y * y),
        -1.0925484305920792 * x * z,
        0.5462742152960396 * (x * x - y * y),
        -0.5900435899266435 * y * (3 * x * x - y * y),
        2.890611442640554 * x * y * z,
        -0.4570457994644658 * y * (4 * z * z - x * x - y * y),
        0.3731763325901154 * z * (2 * z * z - 3 * x * x - 3 * y * y),
        -0.4570457994644658 * x * (4 * z * z - x * x - y * y),
        1.445305721320277 * z * (x * x - y * y),
        -0.5900435899266435 * x * (x * x - 3 * y * y),
    ]
    rest = sum(name.startswith("f_rest_") for name in table.dtype.names) // 3
    color = []
    for c in range(3):
        values = [table[f"f_dc_{c}"], *(table[f"f_rest_{c * rest + i}"] for i in range(rest))]
        color.append(0.5 + sum(b * v for b, v in zip(basis, values, strict=False)))
    return np.stack(color, axis=-1)


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_splat_programs_see_the_same_colors(degree, key, tmp_path):
    spheres = some_spheres(key, degree)
    write_ply(tmp_path / "a.ply", spheres, layout="gaussians")
    table = plyfile.PlyData.read(str(tmp_path / "a.ply"))["vertex"].data
    alive = np.asarray(spheres.alive)
    for direction in np.random.default_rng(3).normal(size=(4, 3)):
        direction /= np.linalg.norm(direction)
        looks = jnp.asarray(np.tile(direction, (len(alive), 1)), jnp.float32)
        ours = SphericalHarmonics(degree).per_sphere(spheres.features, looks)
        ours = np.broadcast_to(np.asarray(ours), (len(alive), 3))[alive]
        np.testing.assert_allclose(splat_colors(table, direction), ours, atol=2e-5)


def test_gaussians_cover_as_much_as_spheres(key, tmp_path):
    spheres = some_spheres(key, 0)
    write_ply(tmp_path / "a.ply", spheres, layout="gaussians")
    table = plyfile.PlyData.read(str(tmp_path / "a.ply"))["vertex"].data
    alive = np.asarray(spheres.alive)
    opacity = 1 / (1 + np.exp(-table["opacity"].astype(np.float64)))
    np.testing.assert_allclose(opacity, np.asarray(spheres.opacities)[alive], rtol=1e-5)
    radii = np.asarray(spheres.radii, np.float64)[alive]
    place = (np.arange(4000) + 0.5) / 4000
    for scale, radius in zip(table["scale_0"], radii, strict=True):
        p = 6 * radius * place
        ring = 2 * np.pi * p * 6 * radius / 4000
        gaussian = (np.exp(-0.5 * (p / np.exp(np.float64(scale))) ** 2) * ring).sum()
        kernel = (np.clip(1 - (p / radius) ** 2, 0, None) ** 2 * ring).sum()
        assert gaussian == pytest.approx(kernel, rel=1e-3)
    for name in ("scale_1", "scale_2"):
        np.testing.assert_array_equal(table[name], table["scale_0"])
    assert (table["rot_0"] == 1).all() and not table["rot_1"].any()


def test_extreme_spheres_stay_finite(tmp_path):
    spheres = Spheres(
        jnp.zeros((3, 3)), jnp.array([0.0, 1e-30, 1e3]), jnp.array([0.0, 1.0, 0.5]),
        jnp.zeros((3, 3)), jnp.ones(3, bool),
    )  # fmt: skip
    write_ply(tmp_path / "a.ply", spheres, layout="gaussians")
    table = plyfile.PlyData.read(str(tmp_path / "a.ply"))["vertex"].data
    assert all(np.isfinite(table[name]).all() for name in table.dtype.names)


def test_wrong_files_and_features_are_named(key, tmp_path, own_errors):
    spheres = some_spheres(key, 0)
    odd = dataclasses.replace(spheres, features=jnp.zeros((7, 4)))
    with pytest.raises(ValueError, match="features: got 4 for each sphere; want 3, 12"):
        write_ply(tmp_path / "a.ply", odd)
    with pytest.raises(ValueError, match="layout: got 'cubes'; want spheres or gaussians"):
        write_ply(tmp_path / "a.ply", spheres, layout="cubes")  # pyright: ignore[reportArgumentType]
    assert not list(tmp_path.iterdir())
    (tmp_path / "b.ply").write_text("hello\n")
    with pytest.raises(ValueError, match=r"b\.ply: is no PLY file of spheres"):
        read_ply(tmp_path / "b.ply")
    write_ply(tmp_path / "c.ply", spheres, layout="gaussians")
    with pytest.raises(ValueError, match=r"c\.ply: has no radius; want the layout 'spheres'"):
        read_ply(tmp_path / "c.ply")
