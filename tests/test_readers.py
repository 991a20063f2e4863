"""Captures on a disk become frames: layouts, names, intrinsics, poses, alpha and masks."""

import math

import numpy as np
import pytest
from PIL import Image

from capture_files import (
    ANGLE,
    HEIGHT,
    SHARED,
    WIDTH,
    assert_error,
    edited,
    frame_entry,
    pose,
    project,
    write_capture,
    write_image,
    write_splits,
)
from jaxrec.data import open_capture

# From OpenGL camera axes (y up, z back) to those of OpenCV (y down, z forward).
FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
EPS = float(np.finfo(np.float32).eps)

# Layouts and splits


def test_transforms(tmp_path):
    write_capture(tmp_path)
    capture = open_capture(tmp_path)
    assert capture.format == "transforms"
    assert [view.name for view in capture.test] == ["images/00.png", "images/08.png"]
    assert [view.name for view in capture.train] == [
        f"images/{index:02d}.png" for index in (1, 2, 3, 4, 5, 6, 7, 9)
    ]
    assert capture.messages == ["8 frames to fit, 2 held out (every 8th by file name)"]
    assert not capture.has_alpha and not capture.has_distortion
    for view in capture.frames:
        camera = view.camera
        assert (camera.width, camera.height) == (WIDTH, HEIGHT)
        assert view.image.shape == (HEIGHT, WIDTH, 3) and view.image.dtype == np.float32
        assert view.alpha is None and view.mask is None
        np.testing.assert_array_equal(camera.focal, np.float32([10, 11]))
        np.testing.assert_array_equal(camera.principal, np.float32([6.5, 3.5]))
        index = int(view.name[-6:-4])
        expected = pose(index) @ FLIP
        np.testing.assert_allclose(camera.world_from_camera, expected, atol=8 * EPS)


def test_images_belong_to_their_frames(tmp_path):
    frames = [frame_entry(f"images/{index:02d}.png", index) for index in (5, 3, 9, 1)]
    write_capture(tmp_path, frames)
    for found in open_capture(tmp_path).frames:
        expected = np.asarray(Image.open(tmp_path / found.name), np.float32) / np.float32(255)
        np.testing.assert_array_equal(found.image, expected)


def test_the_camera_looks_along_positive_z_at_the_origin(tmp_path):
    write_capture(tmp_path)
    for view in open_capture(tmp_path).frames:
        pixel, depth = project(view.camera, np.zeros(3))
        np.testing.assert_allclose(pixel, [6.5, 3.5], atol=1e-4)
        np.testing.assert_allclose(depth, 4, rtol=1e-5)
        above, _ = project(view.camera, [0, 0, 0.5])
        assert above[1] < pixel[1]


def test_splits_of_blender(tmp_path):
    write_splits(tmp_path, mode="RGBA")
    (tmp_path / "transforms_val.json").write_text("{}")
    capture = open_capture(tmp_path)
    assert capture.format == "blender"
    assert [view.name for view in capture.train] == [f"train/r_{i}.png" for i in range(3)]
    assert [view.name for view in capture.test] == [f"test/r_{i}.png" for i in range(2)]
    assert capture.messages == [
        "transforms_val.json is not used",
        "3 frames to fit, 2 held out (transforms_test.json)",
    ]
    for view in capture.frames:
        focal = 0.5 * WIDTH / math.tan(0.4)
        np.testing.assert_allclose(view.camera.focal, [focal, focal], rtol=2 * EPS)
        np.testing.assert_array_equal(view.camera.principal, [WIDTH / 2, HEIGHT / 2])


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_json_of_a_split_stands_for_its_folder(tmp_path, split):
    write_splits(tmp_path)
    capture = open_capture(tmp_path / f"transforms_{split}.json")
    assert (capture.format, len(capture.train), len(capture.test)) == ("blender", 3, 2)


def test_the_path_of_the_json_itself(tmp_path):
    write_capture(tmp_path, name="of my own.json")
    assert len(open_capture(tmp_path / "of my own.json").train) == 8
    assert_error(tmp_path, "found neither transforms.json nor transforms_train.json", "my own.json")


def test_a_blender_scene_in_one_file(tmp_path):
    write_capture(tmp_path, [frame_entry(f"r_{i}", i) for i in range(9)], ANGLE)
    capture = open_capture(tmp_path)
    assert (len(capture.train), len(capture.test)) == (7, 2)


def test_a_training_split_alone(tmp_path):
    write_splits(tmp_path)
    (tmp_path / "transforms_test.json").unlink()
    assert [view.name for view in open_capture(tmp_path).test] == ["train/r_0.png"]


def test_transforms_with_a_test_file(tmp_path):
    write_capture(tmp_path)
    write_capture(tmp_path, [frame_entry("other/1.png")], name="transforms_test.json")
    capture = open_capture(tmp_path)
    assert (len(capture.train), len(capture.test)) == (10, 1)


def test_misspelt_file_names(tmp_path):
    write_splits(tmp_path)
    for split in ("train", "test"):
        (tmp_path / f"transforms_{split}.json").rename(tmp_path / f"transform_{split}.json")
    capture = open_capture(tmp_path)
    assert len(capture.test) == 2
    assert "transform_train.json is taken for transforms_train.json" in capture.messages


def test_both_layouts_in_one_folder(tmp_path):
    write_splits(tmp_path)
    write_capture(tmp_path)
    capture = open_capture(tmp_path)
    assert capture.format == "blender"
    assert "transforms.json is not used: transforms_train.json comes first" in capture.messages


def test_of_all_layouts_in_one_folder_the_first_is_taken(tmp_path):
    write_splits(tmp_path)
    write_capture(tmp_path)
    (tmp_path / "sparse" / "0").mkdir(parents=True)
    for name in ("sparse/0/cameras.bin", "sparse/0/images.bin", "poses_bounds.npy", "a.pose.txt"):
        (tmp_path / name).touch()
    capture = open_capture(tmp_path)
    assert capture.format == "blender"
    assert capture.messages[:4] == [
        f"{other} is not used: transforms_train.json comes first"
        for other in ("the COLMAP model", "poses_bounds.npy", "*.pose.txt", "transforms.json")
    ]


def test_exif_orientation_does_not_turn_a_photo(tmp_path):
    names = [f"images/{index}.jpg" for index in range(3)]
    file = write_capture(tmp_path, [frame_entry(name, index) for index, name in enumerate(names)])
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    exif = Image.Exif()
    found = []
    for orientation in (1, 6):
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(tmp_path / names[1], exif=exif)
        (view,) = (view for view in open_capture(file).train if view.name == names[1])
        found.append(view.image)
    assert found[1].shape == (HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(*found)


def test_held_out_frames_that_are_also_fitted_are_reported(tmp_path):
    write_splits(tmp_path)
    (tmp_path / "transforms_test.json").write_bytes(
        (tmp_path / "transforms_train.json").read_bytes()
    )
    messages = open_capture(tmp_path).messages
    assert any("3 of 3 held-out images are also trained on" in line for line in messages)


# Names of images


def test_windows_names_missing_extensions_and_stray_files(tmp_path):
    frames = [
        frame_entry("images\\a.png"),
        frame_entry(".\\images\\b", 1),
        frame_entry("images/c", 2),
    ]
    file = write_capture(tmp_path, frames)
    (tmp_path / "images" / "c.png").rename(tmp_path / "images" / "c.PNG")
    for name in (".DS_Store", "Thumbs.db", "a_depth.png", "a_normal.png", "b_depth.png"):
        (tmp_path / "images" / name).write_bytes(b"stray")
    names = [view.name for view in open_capture(file).frames]
    assert sorted(names) == ["images/a.png", "images/b.png", "images/c.PNG"]


def test_images_that_are_not_listed_are_ignored(tmp_path):
    file = write_capture(tmp_path)
    write_image(tmp_path / "images" / "99.png", size=(5, 5))
    capture = open_capture(file)
    assert len(capture.frames) == 10
    assert "not used, as no frame names them: 99.png" in capture.messages


def test_images_that_are_undistorted_already(tmp_path):
    file = edited(tmp_path, shared={"camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k4": 0.01})
    assert_error(file, "camera_model: OPENCV_FISHEYE is not", "--ignore-distortion if they are")
    assert not open_capture(file, ignore_distortion=True).has_distortion


def test_positions_far_from_the_origin_keep_their_precision(tmp_path):
    # Metres of a UTM zone: float32 steps by a quarter of a metre there.
    offset = np.asarray([512345.0, 4187654.0, 113.0])
    frames = [frame_entry(f"images/{index:02d}.png", index) for index in range(10)]
    for entry in frames:
        matrix = np.asarray(entry["transform_matrix"])
        matrix[:3, 3] += offset
        entry["transform_matrix"] = matrix.tolist()
    capture = open_capture(write_capture(tmp_path, frames))
    assert capture.origin != (0, 0, 0) and all(value.is_integer() for value in capture.origin)
    assert any("the cameras are far from the origin: (51234" in line for line in capture.messages)
    for view in capture.frames:
        expected = pose(int(view.name[7:9]))[:3, 3] + (offset - capture.origin)
        found = np.asarray(view.camera.world_from_camera)[:3, 3]
        # float64 keeps 5e-10 of the file's numbers.
        np.testing.assert_allclose(found, expected, atol=8 * 4 * EPS)
    assert open_capture(edited(tmp_path / "near")).origin == (0, 0, 0)


def test_images_outside_the_folder(tmp_path):
    write_image(tmp_path / "elsewhere" / "a.png")
    absolute = (tmp_path / "elsewhere" / "a.png").as_posix()
    (tmp_path / "poses").mkdir()
    write_capture(tmp_path / "poses", [frame_entry("../elsewhere/b.png"), frame_entry(absolute, 1)])
    views = open_capture(tmp_path / "poses").frames
    # A name must not lead out of a folder that someone writes renders to.
    inner = absolute.removeprefix("/")
    assert sorted(view.name for view in views) == sorted(["elsewhere/b.png", inner])


# Intrinsics


def only(folder, shared, **fields):
    """The camera of every frame of a capture with these fields."""
    frames = [frame_entry(f"{index}.png", index, **fields) for index in range(2)]
    write_capture(folder, frames, shared)
    return open_capture(folder).train[0].camera


@pytest.mark.parametrize(
    "shared, focal",
    [
        ({"fl_x": 9}, (9, 9)),
        ({"fl_y": 9}, (9, 9)),
        ({"fl_x": 9, "fl_y": None}, (9, 9)),
        (ANGLE, (6 / math.tan(0.4), 6 / math.tan(0.4))),
        ({"camera_angle_y": 0.8}, (4 / math.tan(0.4), 4 / math.tan(0.4))),
        ({**ANGLE, "camera_angle_y": 0.6}, (6 / math.tan(0.4), 4 / math.tan(0.3))),
        ({**ANGLE, "fl_y": 9}, (6 / math.tan(0.4), 9)),
        ({"x_fov": 90}, (6, 6)),
        ({"fl_x": 6.001, "camera_angle_x": math.pi / 2}, (6.001, 6.001)),
        ({"fl_x": 9, "w": 12.0, "h": 8.0}, (9, 9)),
    ],
)
def test_absent_fields_are_derived(tmp_path, shared, focal):
    camera = only(tmp_path, shared)
    np.testing.assert_allclose(camera.focal, focal, rtol=2 * EPS)
    np.testing.assert_array_equal(camera.principal, [WIDTH / 2, HEIGHT / 2])


def test_a_frame_has_intrinsics_of_its_own(tmp_path):
    own = {"fl_x": 20.0, "fl_y": 21.0, "cx": 2.0, "cy": 3.0, "k1": 0.125, "w": 5, "h": 6}
    frames = [frame_entry("a.png"), frame_entry("b.png", 1), frame_entry("c.png", 2, **own)]
    file = write_capture(tmp_path, frames)
    write_image(tmp_path / "c.png", size=(5, 6))
    a, b, c = sorted(open_capture(file).frames, key=lambda view: view.name)
    assert a.image.shape == b.image.shape == (HEIGHT, WIDTH, 3) and c.image.shape == (6, 5, 3)
    np.testing.assert_array_equal(b.camera.focal, [10, 11])
    np.testing.assert_array_equal(c.camera.focal, [20, 21])
    np.testing.assert_array_equal(c.camera.principal, [2, 3])
    np.testing.assert_array_equal(c.camera.distortion, [0.125, 0, 0, 0, 0])
    np.testing.assert_array_equal(a.camera.distortion, np.zeros(5))


def test_images_of_several_sizes_share_an_angle(tmp_path):
    file = write_capture(tmp_path, [frame_entry("a.png"), frame_entry("b.png", 1)], ANGLE)
    write_image(tmp_path / "b.png", size=(24, 10))
    small, large = sorted(open_capture(file).frames, key=lambda view: view.name)
    np.testing.assert_allclose(large.camera.focal, 2 * np.asarray(small.camera.focal), rtol=EPS)
    np.testing.assert_array_equal(large.camera.principal, [12, 5])


COEFFICIENTS = {"k1": 0.5, "k2": 0.25, "p1": 0.125, "p2": 0.0625, "k3": 2.0, "k4": 0.0}


@pytest.mark.parametrize(
    "model, keys",
    [
        (None, "k1 k2 p1 p2 k3 k4"),
        ("OPENCV", "k1 k2 p1 p2 k3 k4"),
        ("opencv", "k1 k2"),
        ("RADIAL", "k1 k2"),
        ("SIMPLE_RADIAL", "k1"),
        ("PINHOLE", ""),
        ("SIMPLE_PINHOLE", ""),
    ],
)
def test_camera_models(tmp_path, model, keys):
    given = {key: COEFFICIENTS[key] for key in keys.split()}
    # nerfstudio writes all coefficients, also those that are zero.
    zeros = dict.fromkeys(COEFFICIENTS, 0.0)
    camera = only(tmp_path, {**SHARED, "camera_model": model, **zeros, **given})
    expected = [given.get(key, 0) for key in ("k1", "k2", "p1", "p2", "k3")]
    if any(expected):
        np.testing.assert_array_equal(camera.distortion, expected)
    else:
        assert camera.distortion is None


@pytest.mark.parametrize("fields", [{"is_fisheye": False}, {"aabb_scale": 4, "sharpness": 1}])
def test_fields_without_effect(tmp_path, fields):
    assert len(open_capture(edited(tmp_path, shared=fields)).frames) == 3


# Poses


def test_a_pose_of_three_rows(tmp_path):
    rows = pose(0)[:3].tolist()
    capture = open_capture(edited(tmp_path, first={"transform_matrix": rows}))
    expected = pose(0) @ FLIP
    np.testing.assert_allclose(capture.test[0].camera.world_from_camera, expected, atol=8 * EPS)


def test_a_rounded_pose_becomes_a_rotation(tmp_path):
    rows = np.round(pose(0), 4).tolist()
    capture = open_capture(edited(tmp_path, first={"transform_matrix": rows}))
    rotation = np.asarray(capture.test[0].camera.world_from_camera)[:3, :3]
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(3), atol=8 * EPS)


# Alpha, masks, and smaller images


def test_straight_alpha_is_kept(tmp_path):
    write_capture(tmp_path, mode="RGBA")
    capture = open_capture(tmp_path)
    assert capture.has_alpha
    found = capture.train[0]
    pixels = np.asarray(Image.open(tmp_path / found.name), np.float32) / np.float32(255)
    np.testing.assert_array_equal(found.image, pixels[..., :3])
    np.testing.assert_array_equal(found.alpha, pixels[..., 3])
    white = found.over(np.ones(3, np.float32))
    np.testing.assert_allclose(
        white, pixels[..., :3] * pixels[..., 3:] + (1 - pixels[..., 3:]), atol=4 * EPS
    )


def test_alpha_is_there_for_all_frames_or_none(tmp_path):
    file = write_capture(tmp_path)
    opaque = np.full((HEIGHT, WIDTH, 4), 255, np.uint8)
    Image.fromarray(opaque).save(tmp_path / "images" / "03.png")
    assert not open_capture(file).has_alpha
    opaque[0, 0, 3] = 0
    Image.fromarray(opaque).save(tmp_path / "images" / "03.png")
    frames = open_capture(file).frames
    assert sum(float((1 - view.alpha).sum()) for view in frames) == 1


def test_kinds_of_images_in_one_capture(tmp_path):
    file = write_capture(tmp_path, [frame_entry(f"{i}.png", i) for i in range(6)])
    gray = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH)
    deep = Image.fromarray(gray.astype(np.uint16) * 257)
    pictures = [
        Image.fromarray(gray),
        deep,
        Image.merge("LA", [Image.fromarray(gray), Image.fromarray(np.full_like(gray, 255))]),
        Image.fromarray(gray).convert("P"),
        Image.fromarray(gray).convert("RGBA"),
        Image.fromarray(gray).convert("RGB"),
    ]
    for index, picture in enumerate(pictures):
        picture.save(tmp_path / f"{index}.png")
    for found in open_capture(file).frames:
        expected = np.repeat(gray[..., None] / 255, 3, axis=2)
        np.testing.assert_allclose(found.image, expected, atol=4 * EPS)


def test_downscale(tmp_path):
    shared = {**SHARED, "w": 13, "h": 9, "k1": 0.125}
    file = write_capture(tmp_path, shared=shared)
    for index in range(10):
        write_image(tmp_path / "images" / f"{index:02d}.png", size=(13, 9))
    full, small = open_capture(file).train[0], open_capture(file, downscale=2).train[0]
    assert small.image.shape == (4, 6, 3) and small.name == full.name
    camera = small.camera
    assert (camera.width, camera.height) == (6, 4)
    ratio = np.asarray([6 / 13, 4 / 9])
    np.testing.assert_allclose(camera.focal, ratio * [10, 11], rtol=2 * EPS)
    np.testing.assert_allclose(camera.principal, ratio * [6.5, 3.5], rtol=2 * EPS)
    np.testing.assert_array_equal(camera.distortion, full.camera.distortion)
    np.testing.assert_allclose(small.image.mean((0, 1)), full.image.mean((0, 1)), atol=1e-6)
    # A point keeps its place in the image, measured in image widths and heights.
    there, here = (project(view.camera, [0.1, 0.2, 0.3])[0] for view in (full, small))
    np.testing.assert_allclose(here / [6, 4], there / [13, 9], atol=16 * EPS)


def test_downscale_has_limits(tmp_path):
    file = write_capture(tmp_path)
    text = assert_error(file, "12 x 8 pixels cannot be made 9 times smaller", downscale=9)
    assert "downscale by 8 at most" in text
    for wrong in (0, -1, True):
        with pytest.raises(ValueError, match="downscale: got .*; give a whole number"):
            open_capture(file, downscale=wrong)


def test_masks(tmp_path):
    file = edited(tmp_path, first={"mask_path": "masks\\00"})
    use = np.zeros((HEIGHT, WIDTH), np.uint8)
    use[2:, :] = 255
    (tmp_path / "masks").mkdir()
    Image.fromarray(use).save(tmp_path / "masks" / "00.png")
    found, other, _ = sorted(open_capture(file).frames, key=lambda view: view.name)
    np.testing.assert_array_equal(found.mask, use > 0)
    assert found.mask.dtype == np.bool_ and other.mask is None
    assert open_capture(file, downscale=4).test[0].mask.tolist() == [[False] * 3, [True] * 3]
    Image.fromarray(use[1:]).save(tmp_path / "masks" / "00.png")
    assert_error(file, "frames[0].mask_path: the mask has 12 x 7 pixels but images/00.png has 12")
    (tmp_path / "masks" / "00.png").unlink()
    assert_error(file, "frames[0].mask_path: no image 'masks\\\\00' in ")
