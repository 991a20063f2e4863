"""LLFF's poses_bounds.npy: its axes, its images by name, and its errors."""

import numpy as np
import pytest
from PIL import Image

from capture_files import HEIGHT, WIDTH, assert_error, pose, project, write_capture, write_image
from jaxrec.data import open_capture

EPS = float(np.finfo(np.float32).eps)
FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
NAMES = [f"IMG_{index:02d}.png" for index in range(10)]


def rows(count=10, size=(WIDTH, HEIGHT), focal=11.0):
    """Rows that say the same as `capture_files.pose`."""
    result = []
    for index in range(count):
        right, up, back, position = pose(index)[:3].T
        matrix = np.stack([-up, right, back, position, [size[1], size[0], focal]], axis=1)
        result.append([*matrix.ravel(), 2.0, 6.0])
    return np.asarray(result)


def write_llff(folder, array=None, images="images", size=(WIDTH, HEIGHT), names=NAMES):
    np.save(folder / "poses_bounds.npy", rows() if array is None else array)
    for name in names:
        write_image(folder / images / name, size=size)
    return folder / "poses_bounds.npy"


def test_poses_and_images(tmp_path):
    file = write_llff(tmp_path)
    (tmp_path / "images" / ".DS_Store").write_bytes(b"stray")
    (tmp_path / "images" / "Thumbs.db").write_bytes(b"stray")
    capture = open_capture(tmp_path)
    assert capture.format == "llff" and capture.path == tmp_path and capture.points is None
    assert [view.name for view in capture.test] == ["IMG_00.png", "IMG_08.png"]
    assert capture.messages == ["8 frames to fit, 2 held out (every 8th by file name)"]
    for view in capture.frames:
        camera = view.camera
        expected = pose(int(view.name[4:6])) @ FLIP
        np.testing.assert_allclose(camera.world_from_camera, expected, atol=16 * EPS)
        np.testing.assert_array_equal(camera.focal, [11, 11])
        np.testing.assert_array_equal(camera.principal, [WIDTH / 2, HEIGHT / 2])
        assert camera.distortion is None
        pixels = np.asarray(Image.open(tmp_path / "images" / view.name), np.float32)
        np.testing.assert_array_equal(view.image, pixels / np.float32(255))
    assert len(open_capture(file).frames) == 10


def test_smaller_images_have_names_of_their_own(tmp_path):
    write_llff(tmp_path, rows(size=(48, 32), focal=44.0), size=(48, 32))
    smaller = [f"image{index:03d}.png" for index in range(10)]
    for name in smaller:
        write_image(tmp_path / "images_4" / name)
    capture = open_capture(tmp_path, downscale=4)
    assert capture.messages[0] == "images of images_4 are used as they are"
    assert sorted(view.name for view in capture.frames) == smaller
    np.testing.assert_allclose(capture.train[0].camera.focal, [11, 11], rtol=2 * EPS)
    # Pairs go by position: with one image too many they would all be wrong.
    write_image(tmp_path / "images_4" / "image000 (copy).png")
    capture = open_capture(tmp_path, downscale=4)
    assert capture.messages[0] == "images_4 is not used: it holds 11 images for 10 poses"
    assert capture.train[0].name == "IMG_01.png"


def test_only_smaller_images_are_there(tmp_path):
    write_llff(tmp_path, rows(size=(99, 61)), images="images_8")
    capture = open_capture(tmp_path)
    assert capture.messages[0] == "there is no folder images: images_8 is taken for it"
    ratio = np.asarray([WIDTH / 99, HEIGHT / 61])
    np.testing.assert_allclose(capture.train[0].camera.focal, 11 * ratio, rtol=2 * EPS)


def test_a_transforms_file_comes_first(tmp_path):
    write_llff(tmp_path)
    write_capture(tmp_path)
    capture = open_capture(tmp_path)
    assert capture.format == "transforms"
    assert capture.messages[0] == "poses_bounds.npy is not used: transforms.json comes first"


def changed(row, columns, values):
    array = rows()
    array[row, columns] = values
    return array


@pytest.mark.parametrize(
    "array, found",
    [
        (rows()[:, :15], ": found an array of 10 x 15; wanted a row of 17 numbers for each image"),
        (np.zeros((0, 17)), ": found an array of 0 x 17; wanted a row"),
        (np.float64(3), ": found an array of one number; wanted a row"),
        (np.full((10, 17), "a"), ": found values of type <U1; wanted a row"),
        (rows(9), ": found 9 poses for the 10 images in"),
        (changed(3, 8, np.nan), ": row 3.transform_matrix[1][3]: found NaN; wanted a finite"),
        (changed(3, [1, 6, 11], 0), ": row 3.transform_matrix: not rigid: the columns"),
        (changed(2, 14, -5), ": row 2.fl_x: found -5; wanted a focal length in pixels, above zero"),
        (changed(2, 9, 10.5), ": row 2.w: found 10.5; wanted a whole number of pixels"),
        (changed(2, 9, 24), ": row 2.w: found 24 x 8 but IMG_02.png has 12 x 8 pixels; put images"),
    ],
)
def test_bad_arrays(tmp_path, array, found):
    file = write_llff(tmp_path, array)
    assert_error(tmp_path, f"{file}{found}")


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs", b"\x93NUMPY\x01\x00"])
def test_bad_files(tmp_path, content):
    file = write_llff(tmp_path)
    file.write_bytes(content)
    assert_error(tmp_path, f"{file}: cannot be read as an array (", "; copy the file again")


def test_one_image_and_none(tmp_path):
    file = write_llff(tmp_path, rows(1), names=NAMES[:1])
    assert_error(tmp_path, f"{file}: found 1 frame, which is held out to measure with")
    (tmp_path / "images" / NAMES[0]).unlink()
    (tmp_path / "images").rmdir()
    assert_error(tmp_path, f"{tmp_path}: found no folder images (nor images_2, images_4, ...)")


# A real capture, with a COLMAP model beside it


@pytest.fixture(scope="module")
def fern(shared):
    folder = shared / "data" / "llff_fern"
    return open_capture(folder), open_capture(folder / "poses_bounds.npy")


def test_colmap_comes_first(fern):
    colmap, llff = fern
    assert (colmap.format, llff.format) == ("colmap", "llff")
    assert colmap.messages[0] == "poses_bounds.npy is not used: the COLMAP model comes first"
    for capture in fern:
        assert (len(capture.train), len(capture.test)) == (17, 3)
        assert all(view.image.shape == (378, 504, 3) for view in capture.frames)


def test_both_readers_agree_up_to_a_similarity(fern):
    colmap, llff = (
        {view.name: np.asarray(view.camera.world_from_camera, float) for view in capture.frames}
        for capture in fern
    )
    assert colmap.keys() == llff.keys()
    first = np.stack([colmap[name] for name in sorted(colmap)])
    second = np.stack([llff[name] for name in sorted(colmap)])
    # The similarity of Umeyama (1991) that takes the positions of one to those of the other.
    a, b = (poses[:, :3, 3] - poses[:, :3, 3].mean(axis=0) for poses in (first, second))
    left, sizes, right = np.linalg.svd(b.T @ a)
    sign = np.diag([1, 1, np.linalg.det(left @ right)])
    rotation = left @ sign @ right
    scale = (sizes @ np.diag(sign)) / (a * a).sum()
    np.testing.assert_allclose(scale * a @ rotation.T, b, atol=1e-4 * np.abs(b).max())
    np.testing.assert_allclose(rotation @ first[:, :3, :3], second[:, :3, :3], atol=1e-4)


def test_points_of_colmap_have_their_colours_in_images_of_llff(fern):
    colmap, llff = fern
    for view in llff.frames:
        pixels, depth = project(view.camera, colmap.points.positions)
        column, row = np.floor(pixels).astype(int).T
        seen = (depth > 0) & (column >= 0) & (column < 504) & (row >= 0) & (row < 378)
        assert seen.mean() > 0.3
        colors = colmap.points.colors[seen].ravel()
        found, *flipped = (
            np.corrcoef(image[row[seen], column[seen]].ravel(), colors)[0, 1]
            for image in (view.image, view.image[::-1], view.image[:, ::-1], view.image[::-1, ::-1])
        )
        # Points that something hides in this view agree with nothing.
        assert found > 0.5 and found > max(flipped) + 0.2
