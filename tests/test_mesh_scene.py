"""The demo's scene: its meshes are closed, its pictures are what rays see, its files read back."""

import jax
import numpy as np
import pytest

from jaxrec.data import open_capture
from jaxrec.data._mesh import box, lathe, torus
from jaxrec.data._rasterize import barycentric, rasterize
from jaxrec.data._textures import sample
from jaxrec.data.mesh_scene import SUPERSAMPLING, _Scene, mesh_scene, write_blender

WHITE = (1.0, 1.0, 1.0)
CONE = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.8)]
SOLIDS = {
    "box": (box((1.0, 2.0, 0.5), texture=0, repeats=1.0), 1.0, 1e-12),
    "cone": (lathe(CONE, texture=0, repeats=(1, 1.0)), np.pi * 0.25 * 0.8 / 3, 0.01),
    "pyramid": (lathe(CONE, texture=0, repeats=(1, 1.0), segments=4), 0.5 * 0.8 / 3, 1e-12),
    "torus": (torus(0.6, 0.2, texture=0, repeats=(1, 1)), 2 * np.pi**2 * 0.6 * 0.04, 0.02),
}


@pytest.fixture(scope="module")
def capture():
    return mesh_scene(size=24, train=6, test=2)


def nearest_hits(corners, origins, directions):
    """Moeller and Trumbore's test of all rays with all triangles: the nearest one, or -1."""
    first, second = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    nearest = np.full(len(origins), -1)
    for index, (origin, direction) in enumerate(zip(origins, directions, strict=True)):
        p = np.cross(direction, second)
        determinant = np.where(np.abs(volume := (first * p).sum(-1)) < 1e-15, np.nan, volume)
        t = origin - corners[:, 0]
        q = np.cross(t, first)
        u, v = (t * p).sum(-1) / determinant, (q @ direction) / determinant
        distance = (second * q).sum(-1) / determinant
        hit = (u >= -1e-9) & (v >= -1e-9) & (u + v <= 1 + 1e-9) & (distance > 0)
        if hit.any():
            nearest[index] = np.argmin(np.where(hit, distance, np.inf))
    return nearest


@pytest.mark.parametrize("name", SOLIDS)
def test_solids_are_closed_and_face_outwards(name):
    mesh, volume, tolerance = SOLIDS[name]
    corners = np.round(mesh.corners, 9) + 0.0
    edges = {}
    for triangle in corners:
        for begin, end in zip(triangle, np.roll(triangle, -1, axis=0), strict=True):
            key = (tuple(begin), tuple(end))
            edges[key] = edges.get(key, 0) + 1
    assert all(edges.get((end, begin)) == count for (begin, end), count in edges.items())
    signed = np.linalg.det(mesh.corners).sum() / 6
    np.testing.assert_allclose(signed, volume, rtol=tolerance)


def test_normals_of_a_torus_point_from_the_middle_of_its_tube():
    mesh, *_ = SOLIDS["torus"]
    around = mesh.corners[..., :2] / np.linalg.norm(mesh.corners[..., :2], axis=-1, keepdims=True)
    middle = np.concatenate([0.6 * around, np.full((*around.shape[:2], 1), 0.2)], -1)
    outward = (mesh.corners - middle) / 0.2
    # Corners of 24 x 48 facets: the mean of the neighbours' normals is off by less than a step.
    assert (mesh.normals() * outward).sum(-1).min() > np.cos(0.05)


def test_normals_of_a_box_keep_its_edges():
    mesh, *_ = SOLIDS["box"]
    normals = mesh.normals()
    assert set(np.abs(normals).max(-1).ravel()) == {1.0}
    np.testing.assert_array_equal(normals[:, 0], normals[:, 1])


def test_two_triangles_that_share_an_edge_leave_no_crack():
    square = np.array([[0.3, 9.6], [9.7, 9.9], [9.8, 0.2], [0.1, 0.4]])
    corners = square[np.array([[0, 1, 2], [0, 2, 3]])]
    seen = rasterize(corners, np.full((2, 3), 0.5), 10, 10)
    assert set(np.unique(seen)) == {0, 1}


def test_the_nearer_triangle_wins_and_the_back_is_not_drawn():
    front = np.array([[0.0, 8.0], [8.0, 8.0], [0.0, 0.0]])
    corners = np.stack([front, front, front[::-1]])
    order = np.array([[0.6] * 3, [0.4] * 3, [0.1] * 3])
    assert set(np.unique(rasterize(corners, order, 8, 8))) == {-1, 1}


def test_barycentric_weights_rebuild_the_point(key):
    corners = np.asarray(jax.random.uniform(key, (5, 3, 2)), np.float64)
    triangle = np.arange(5)
    points = np.asarray(jax.random.uniform(key, (2, 5)), np.float64)
    weights = barycentric(corners, triangle, *points)
    np.testing.assert_allclose(weights.sum(0), 1, atol=1e-9)
    rebuilt = np.einsum("kp,pkc->cp", weights, corners)
    np.testing.assert_allclose(rebuilt, points, atol=1e-9)


def test_textures_are_exact_at_texel_centres_and_wrap():
    texture = np.arange(2 * 4 * 4 * 3, dtype=float).reshape(2, 4, 4, 3)
    uv = np.array([[0.375, 0.625], [1.375, -0.375], [1.0, 0.125]])
    color = sample(texture, np.array([1, 1, 0]), uv)
    np.testing.assert_allclose(color[:2], np.stack([texture[1, 2, 1]] * 2))
    np.testing.assert_allclose(color[2], 0.5 * (texture[0, 0, 0] + texture[0, 0, 3]))


def test_alpha_is_the_share_of_the_cameras_own_rays_that_hit_the_meshes(capture):
    frame = capture.test[0]
    fine = 24 * SUPERSAMPLING
    rays = frame.camera.scaled(fine, fine).rays()
    # Every fifth row: an oracle in plain NumPy is slow.
    rows = np.arange(0, 24, 5)
    picked = (rows[:, None] * SUPERSAMPLING + np.arange(SUPERSAMPLING)).ravel()
    origins, directions = (
        np.asarray(values, np.float64)[picked].reshape(-1, 3)
        for values in (rays.origins, rays.directions)
    )
    hit = nearest_hits(_Scene.build().mesh.corners, origins, directions) >= 0
    share = hit.reshape(len(rows), SUPERSAMPLING, 24, SUPERSAMPLING).mean((1, 3))
    assert 0.1 < share.mean() < 0.9
    # Only a sample within float32 rounding of a silhouette may fall on its other side.
    difference = np.abs(share - frame.alpha[rows])
    assert difference.max() < 1.5 / SUPERSAMPLING**2
    assert (difference < 0.5 / 255 + 1e-6).mean() > 0.97


def test_colours_are_rounded_to_bytes_and_textured(capture):
    for frame in capture.frames:
        for values in (frame.image, frame.alpha):
            assert values.min() >= 0 and values.max() <= 1
            np.testing.assert_allclose(255 * values, np.round(255 * values), atol=1e-4)
        assert frame.image[frame.alpha == 1].std(0).min() > 0.05


def test_each_solid_is_seen_where_it_stands():
    # Each camera of the middle ring has another solid in front of it.
    views = mesh_scene(size=48, train=10, test=2).train[3:7]
    places = [(0.33, 0.30, 0.2), (-0.28, 0.33, 0.2), (-0.31, -0.27, 0.2), (0.34, -0.34, 0.15)]
    colors = []
    for frame, place in zip(views, places, strict=True):
        pixels, _ = frame.camera.project(jax.numpy.asarray(place, np.float32))
        column, row = np.floor(np.asarray(pixels)).astype(int)
        patch = frame.image[row - 2 : row + 3, column - 2 : column + 3]
        colors.append(patch.mean((0, 1)))
    cone, vase, house, ring = colors
    assert cone.min() > max(vase.max(), house.max())
    assert vase[2] > 1.2 * vase[0]
    assert house[0] > 1.5 * house[2]
    assert ring[1] > ring[0] and ring[1] > 1.2 * ring[2]


def test_held_out_cameras_stand_between_the_others():
    scene = mesh_scene(size=8)
    positions, held_out = (
        np.stack([np.asarray(f.camera.world_from_camera)[:3, 3] for f in frames])
        for frames in (scene.train, scene.test)
    )
    assert (len(positions), len(held_out)) == (32, 8)
    unit = [p / np.linalg.norm(p, axis=-1, keepdims=True) for p in (positions, held_out)]
    angle = np.rad2deg(np.arccos((unit[1] @ unit[0].T).max(-1)))
    assert angle.min() > 5 and angle.max() < 30
    assert positions[:, 2].min() < held_out[:, 2].min()
    assert held_out[:, 2].max() < positions[:, 2].max()


def test_the_written_capture_reads_back(capture, tmp_path):
    write_blender(capture, tmp_path / "scene")
    found = open_capture(tmp_path / "scene")
    assert (len(found.train), len(found.test)) == (6, 2)
    for ours, theirs in zip(capture.frames, found.frames, strict=True):
        assert theirs.name.startswith(ours.name)
        np.testing.assert_allclose(theirs.over(WHITE), ours.over(WHITE), atol=1e-6)
        assert ours.alpha is not None and theirs.alpha is not None
        np.testing.assert_allclose(theirs.alpha, ours.alpha, atol=1e-6)
        np.testing.assert_allclose(theirs.camera.focal, ours.camera.focal, rtol=1e-6)
        np.testing.assert_allclose(theirs.camera.principal, ours.camera.principal, rtol=1e-6)
        # The reader makes rotations exactly orthonormal.
        np.testing.assert_allclose(
            theirs.camera.world_from_camera, ours.camera.world_from_camera, atol=1e-6
        )


def test_the_same_scene_comes_again(capture):
    again = mesh_scene(size=24, train=6, test=2)
    for ours, theirs in zip(capture.frames, again.frames, strict=True):
        np.testing.assert_array_equal(ours.image, theirs.image)


@pytest.mark.parametrize("argument", [{"size": 4}, {"train": 2}, {"test": 1}])
def test_too_little_is_refused_by_name(argument):
    (name,) = argument
    with pytest.raises(ValueError, match=f"{name}: got .*, want at least"):
        mesh_scene(**argument)
