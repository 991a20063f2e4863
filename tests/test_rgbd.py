"""Folders of RGB-D frames with poses."""

import numpy as np
import pytest
from PIL import Image

from capture_files import HEIGHT, WIDTH, assert_error, pose, project, write_capture, write_image
from jaxrec.data import open_capture

EPS = float(np.finfo(np.float32).eps)
FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
K = np.asarray([[10, 0, 6.5], [0, 11, 3.5], [0, 0, 1]])


@pytest.fixture
def folder(tmp_path):
    np.savetxt(tmp_path / "camera-intrinsics.txt", K)
    for index in range(10):
        write_image(tmp_path / f"frame-{index:06d}.color.png")
        np.savetxt(tmp_path / f"frame-{index:06d}.pose.txt", pose(index) @ FLIP)
    return tmp_path


def test_frames(folder):
    capture = open_capture(folder)
    assert capture.format == "rgbd" and capture.path == folder and not capture.has_distortion
    assert [view.name for view in capture.test] == [
        "frame-000000.color.png",
        "frame-000008.color.png",
    ]
    assert capture.messages == ["8 frames to fit, 2 held out (every 8th by file name)"]
    for view in capture.frames:
        expected = pose(int(view.name[6:12])) @ FLIP
        np.testing.assert_allclose(view.camera.world_from_camera, expected, atol=16 * EPS)
        np.testing.assert_array_equal(view.camera.focal, [10, 11])
        np.testing.assert_array_equal(view.camera.principal, [6.5, 3.5])
        pixels = np.asarray(Image.open(folder / view.name), np.float32)
        np.testing.assert_array_equal(view.image, pixels / np.float32(255))
    assert open_capture(folder, downscale=2).train[0].image.shape == (HEIGHT // 2, WIDTH // 2, 3)


def test_what_is_not_used(folder):
    np.savetxt(folder / "frame-000003.pose.txt", np.full((4, 4), -np.inf))
    (folder / "frame-000005.pose.txt").unlink()
    capture = open_capture(folder)
    assert len(capture.frames) == 8
    assert capture.messages[:2] == [
        "not used, as their poses are not finite: frame-000003",
        "not used, as they have no pose: frame-000005",
    ]


def write_depth(folder, index, millimetres):
    Image.fromarray(millimetres.astype(np.uint16)).save(folder / f"frame-{index:06d}.depth.png")


@pytest.mark.parametrize("memory", [None, 1])
def test_depth_maps(folder, memory):
    millimetres = 1000 + np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
    millimetres[2, 3], millimetres[4, 5] = 0, 2**16 - 1
    write_depth(folder, 6, millimetres)
    capture = open_capture(folder, image_memory=memory)
    assert "1 of 10 frames have a depth map" in capture.messages
    measured = {view.name: view.depth for view in capture.frames if view.depth is not None}
    assert set(measured) == {"frame-000006.color.png"}
    [depth] = measured.values()
    assert depth.dtype == np.float32 and depth[2, 3] == depth[4, 5] == 0
    expected = np.where((millimetres == 0) | (millimetres == 2**16 - 1), 0, millimetres / 1000)
    np.testing.assert_allclose(depth, expected, rtol=1e-6)
    # Picked, never mixed.
    halves = open_capture(folder, downscale=2, image_memory=memory).frames
    [half] = [view.depth for view in halves if view.depth is not None]
    assert half.shape == (HEIGHT // 2, WIDTH // 2) and np.isin(half, depth).all()


def test_bad_depth_maps(folder):
    file = folder / "frame-000006.depth.png"
    write_image(file)
    assert_error(folder, f"{file}: the depth map holds RGB of 8 bits; wanted one channel")
    write_depth(folder, 6, np.ones((HEIGHT, WIDTH + 1)))
    assert_error(folder, f"{file}: the depth map has {WIDTH + 1} x {HEIGHT} pixels, its image")


def test_a_transforms_file_comes_first(folder):
    write_capture(folder)
    capture = open_capture(folder)
    assert capture.messages[0] == "*.pose.txt is not used: transforms.json comes first"


@pytest.mark.parametrize(
    "content, found",
    [
        (None, ": no such file; write K there: three lines of three numbers"),
        ("", ": found 0 lines of numbers; wanted 3 lines of 3 numbers"),
        ("10 0 6\n\n0 x 3\n0 0 1", ": line 3: found '0 x 3'; wanted 3 lines of 3 numbers"),
        ("10 0 6\n0 11\n0 0 1", ": line 2: found 2 numbers; wanted 3 lines of 3 numbers"),
        ("10 2 6\n0 11 3\n0 0 1", ": found 10 2 6 / 0 11 3 / 0 0 1; wanted K without skew"),
        ("-10 0 6\n0 11 3\n0 0 1", ": fl_x: found -10; wanted a focal length in pixels"),
        ("10 0 nan\n0 11 3\n0 0 1", ": cx: found NaN; wanted a finite number"),
        ("10 0 16\n0 11 3\n0 0 1", ": cx: found 16, outside the 12 x 8 image"),
    ],
)
def test_bad_intrinsics(folder, content, found):
    file = folder / "camera-intrinsics.txt"
    file.unlink() if content is None else file.write_text(content)
    assert_error(folder, f"{file}{found}")


@pytest.mark.parametrize(
    "matrix, found",
    [
        (np.eye(3), ": line 1: found 3 numbers; wanted 4 lines of 4 numbers"),
        (np.eye(4)[:3], ": found 3 lines of numbers; wanted 4 lines of 4 numbers"),
        (np.diag([2.0, 2, 2, 1]), ": transform_matrix: not rigid: scaled by 2; wanted scale 1"),
        (pose(0).T, ": transform_matrix: the last row is", ),
    ],
)  # fmt: skip
def test_bad_poses(folder, matrix, found):
    file = folder / "frame-000004.pose.txt"
    np.savetxt(file, matrix)
    assert_error(folder, f"{file}{found}")


def test_missing_images(folder):
    (folder / "frame-000004.color.png").unlink()
    file = folder / "frame-000004.pose.txt"
    found = "no image frame-000004.color.jpg (nor .png) beside it; copy the image there"
    assert_error(folder, f"{file}: {found}")
    for file in folder.glob("*.pose.txt"):
        np.savetxt(file, np.full((4, 4), np.nan))
    assert_error(folder, f"{folder}: found none among 10 frames; wanted at least two frames")


# A real capture


def test_a_real_capture(shared):
    folder = shared / "data" / "sevenscenes_rgbd"
    capture = open_capture(folder, downscale=2)
    assert (len(capture.train), len(capture.test)) == (28, 4)
    assert "32 of 32 frames have a depth map" in capture.messages
    frames = sorted(capture.frames, key=lambda view: view.name)
    for view in frames:
        assert view.image.shape == (240, 320, 3)
        np.testing.assert_array_equal(view.camera.focal, [292.5, 292.5])
        np.testing.assert_array_equal(view.camera.principal, [160, 120])
    # Points on the depth map of a frame have the same colour there and in the next frame.
    moved, unmoved = [], []
    row, column = np.mgrid[20:220:4, 20:300:4].reshape(2, -1)
    for view, following in zip(frames, frames[1:], strict=False):
        file = folder / view.name.replace(".color.jpg", ".depth.png")
        depth = np.asarray(Image.open(file))[2 * row, 2 * column] / 1000
        rays = np.stack([(column + 0.5 - 160) / 292.5, (row + 0.5 - 120) / 292.5, 1 + 0 * row], 1)
        pose = np.asarray(view.camera.world_from_camera)
        points = (depth[:, None] * rays) @ pose[:3, :3].T + pose[:3, 3]
        pixels, distance = project(following.camera, points)
        visible = (depth > 0) & (distance > 0.1)
        pixels = np.where(visible[:, None], pixels, -1)
        there_column, there_row = np.floor(pixels).astype(int).T
        seen = visible & (there_column >= 0) & (there_column < 320)
        seen &= (there_row >= 0) & (there_row < 240)
        here = view.image[row[seen], column[seen]].ravel()
        there = following.image[there_row[seen], there_column[seen]].ravel()
        still = following.image[row[seen], column[seen]].ravel()
        moved.append(np.corrcoef(here, there)[0, 1])
        unmoved.append(np.corrcoef(here, still)[0, 1])
    assert min(moved) > 0.8 and np.mean(moved) > 0.9 and np.mean(moved) > np.mean(unmoved) + 0.1
