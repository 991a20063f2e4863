"""Real captures: their known shape, and geometry that a mirrored or flipped axis would break."""

import numpy as np
import pytest

from capture_files import project
from jaxrec.data import open_capture


@pytest.fixture(scope="module")
def lego(shared):
    return open_capture(shared / "data" / "nerf_synthetic_lego_400", downscale=4)


@pytest.fixture(scope="module")
def fox(shared):
    return open_capture(shared / "data" / "ingp_fox" / "transforms.json", downscale=8)


def test_lego(lego):
    assert lego.format == "blender" and lego.has_alpha and not lego.has_distortion
    assert (len(lego.train), len(lego.test)) == (40, 8)
    assert [frame.name for frame in lego.test][-1] == "test/r_140.png"
    for view in lego.frames:
        assert view.image.shape == (100, 100, 3) and view.alpha.shape == (100, 100)
        assert 0.02 < view.alpha.mean() < 0.5 and view.alpha[0, 0] == 0
        assert view.image.max() <= 1 and view.image.min() >= 0
        # The published focal length: 1111.111 pixels at a width of 800.
        np.testing.assert_allclose(view.camera.focal, 1111.1111 / 8, rtol=1e-5)
        distance = np.linalg.norm(view.camera.world_from_camera[:3, 3])
        np.testing.assert_allclose(distance, 4.0311, atol=1e-3)


# The bulldozer, as its visual hull measures it.
LEGO_BOX = np.asarray([[-0.64, -1.13, -0.60], [0.64, 1.13, 0.97]], np.float32)


def grid(low, high, count):
    axes = (np.linspace(a, b, count, dtype=np.float32) for a, b in zip(low, high, strict=True))
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def test_the_box_of_lego_covers_its_outline_in_every_view(lego):
    # Three centimetres are what the hull was sampled with; half a pixel is the soft edge.
    box = grid(LEGO_BOX[0] - 0.03, LEGO_BOX[1] + 0.03, 2)
    for view in lego.frames:
        pixels, depth = project(view.camera, box)
        # Its corners are empty, so that the nearest may lie a little outside the image.
        assert (depth > 1).all() and (pixels > -15).all() and (pixels < 115).all()
        rows, columns = np.nonzero(view.alpha > 0.1)
        first = np.asarray([columns.min(), rows.min()])
        last = np.asarray([columns.max() + 1, rows.max() + 1])
        low, high = pixels.min(axis=0), pixels.max(axis=0)
        assert (low < first + 0.5).all() and (last < high + 0.5).all()
        assert (last - first > 0.5 * (high - low)).all()


def hull(frames, points, flip=lambda alpha: alpha):
    """Which points lie inside the outline in every view."""
    inside = np.ones(len(points), bool)
    for view in frames:
        pixels, _ = project(view.camera, points)
        column, row = np.floor(pixels).astype(int).T
        inside &= flip(view.alpha)[row.clip(0, 99), column.clip(0, 99)] > 0.02
    return inside


def test_the_visual_hull_of_lego_is_the_known_box(lego):
    points = grid((-1.4, -1.4, -1.4), (1.4, 1.4, 1.4), 36)
    kept = points[hull(lego.train, points)]
    step = 2.8 / 35
    np.testing.assert_allclose(kept.min(axis=0), LEGO_BOX[0], atol=1.5 * step)
    np.testing.assert_allclose(kept.max(axis=0), LEGO_BOX[1], atol=1.5 * step)


@pytest.mark.parametrize(
    "flip",
    [
        pytest.param(np.fliplr, id="mirrored"),
        pytest.param(np.flipud, id="upside-down"),
        pytest.param(np.transpose, id="transposed"),
        pytest.param(lambda alpha: np.rot90(alpha, 2), id="turned"),
    ],
)
def test_the_hull_notices_a_flipped_convention(lego, flip):
    points = grid(*LEGO_BOX, 20)
    sound, flipped = hull(lego.train, points).sum(), hull(lego.train, points, flip).sum()
    assert flipped < 0.75 * sound


def test_fox(fox):
    assert fox.format == "transforms" and fox.has_distortion and not fox.has_alpha
    assert [frame.name for frame in fox.test] == [
        f"images/{number:04d}.jpg" for number in (1, 12, 27, 42, 73, 89, 110)
    ]
    assert len(fox.train) == 43
    for view in fox.frames:
        assert view.image.shape == (100, 56, 3)
        ratio = np.asarray([56 / 450, 100 / 800])
        focal, principal = [573.13333, 572.70417], [231.06583, 402.195]
        np.testing.assert_allclose(view.camera.focal, ratio * focal, rtol=1e-6)
        np.testing.assert_allclose(view.camera.principal, ratio * principal, rtol=1e-6)
        lens = [0.0578421, -0.0805099, -0.000980296, 0.00015575, 0]
        np.testing.assert_allclose(view.camera.distortion, lens, rtol=1e-6)


def test_the_photographer_of_fox_stands_upright_and_looks_at_it(fox):
    poses = np.stack([view.camera.world_from_camera for view in fox.frames])
    down, forward, position = poses[:, :3, 1], poses[:, :3, 2], poses[:, :3, 3]
    assert (down[:, 2] < -0.8).all()
    # The point nearest to all lines of sight lies before every camera, inside its image.
    across = np.eye(3) - forward[:, :, None] * forward[:, None, :]
    middle = np.linalg.solve(across.sum(0), (across @ position[:, :, None]).sum(0))[:, 0]
    for view in fox.frames:
        pixel, depth = project(view.camera, middle)
        assert depth > 0 and (pixel > 0).all() and pixel[0] < 56 and pixel[1] < 100
