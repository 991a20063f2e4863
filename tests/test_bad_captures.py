"""A capture that cannot be used gets one line: the file, the field, what was found, what to do."""

import math
import pickle

import numpy as np
import pytest

from capture_files import (
    assert_error,
    edited,
    frame_entry,
    pose,
    write_capture,
    write_image,
    write_splits,
)
from jaxrec.data import CaptureError, open_capture

# Files


def test_nothing_there(tmp_path):
    assert_error(tmp_path / "absent", "no such file or folder; check the path")
    found = "found neither transforms.json nor transforms_train.json, nor a COLMAP model"
    assert_error(tmp_path, found, "; give the folder that holds one of them, or the json itself")
    (tmp_path / "poses.txt").touch()
    assert_error(tmp_path / "poses.txt", "not a json file; give a folder or its transforms.json")
    (tmp_path / "scene").mkdir()
    (tmp_path / "scene" / "transforms.json").touch()
    assert_error(tmp_path, f"give the capture in it: {tmp_path / 'scene'}")


@pytest.mark.parametrize(
    "content, fragments",
    [
        (b"", ["the file is empty; copy or export it again"]),
        (b'{\n "w": 3,\n "frames": [}\n', ["line 3, column 13: not valid JSON (Expecting value)"]),
        (b'{"frames": [\n', ["line 2, column 1: not valid JSON", "repair that line"]),
        (b'{"w": "\xff"}', ["byte 7 is not UTF-8 text"]),
        (b"[1, 2]", ['found [1, 2]; wanted an object with "frames"']),
        (b"{}", ["frames: found nothing; wanted a list of frames"]),
        (b'{"frames": {}}', ["frames: found {}; wanted a list of frames"]),
        (b'{"frames": []}', ["frames: found no frame; list at least two frames"]),
        (b'{"frames": [7]}', ["frames[0]: found 7; wanted an object"]),
        (b'{"frames": [{}]}', ["frames[0].file_path: found nothing; name the image"]),
        (b'{"frames": [{"file_path": 7}]}', ["frames[0].file_path: found 7; wanted a text"]),
        (b"[" * 100_000, ["nested too deeply"]),
    ],
)
def test_bad_documents(tmp_path, content, fragments):
    file = tmp_path / "transforms.json"
    file.write_bytes(content)
    assert_error(tmp_path, f"{file}: ", *fragments)


def test_a_byte_order_mark_does_no_harm(tmp_path):
    file = write_capture(tmp_path)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(open_capture(file).frames) == 10


def test_one_frame_cannot_be_both_fitted_and_held_out(tmp_path):
    file = write_capture(tmp_path, [frame_entry("a.png")])
    assert_error(file, "frames: found 1 frame, which is held out to measure with; list at least")


def test_an_empty_test_split(tmp_path):
    write_splits(tmp_path, test=0)
    file = tmp_path / "transforms_test.json"
    assert_error(tmp_path, f"{file}: frames: found no frame: the test split is empty; list at")


def test_a_missing_image(tmp_path):
    file = write_capture(tmp_path)
    (tmp_path / "images" / "04.png").unlink()
    found = f"frames[4].file_path: no image 'images/04.png' in {tmp_path} (nor with .png"
    assert_error(file, f"{file}: {found}", ".jpg", "copy the image there, or remove this frame")


def test_an_empty_image(tmp_path):
    file = write_capture(tmp_path)
    image = tmp_path / "images" / "04.png"
    image.write_bytes(b"")
    assert_error(file, f"{image}: the file is empty (0 bytes); copy or export it again")


def test_a_truncated_image(tmp_path):
    file = write_capture(tmp_path)
    image = tmp_path / "images" / "04.png"
    image.write_bytes(image.read_bytes()[:-60])
    assert_error(file, f"{image}: the image cannot be decoded (", "copy or export it again")


def test_errors_travel_between_processes():
    error = CaptureError("a.json", "w", "found\n3", "wanted 4")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "a.json: w: found 3; wanted 4"
    assert isinstance(copy, ValueError) and (copy.field, copy.advice) == ("w", "wanted 4")


# Intrinsics


@pytest.mark.parametrize(
    "shared, fragments",
    [
        ({"camera_model": "OPENCV_FISHEYE"}, ["camera_model: OPENCV_FISHEYE is not supported yet"]),
        ({"camera_model": "EQUIRECTANGULAR"}, ["EQUIRECTANGULAR is not supported yet"]),
        ({"camera_model": "WIDE"}, ["camera_model: unknown camera model 'WIDE'"]),
        ({"is_fisheye": True}, ["is_fisheye: this kind of lens is not supported yet"]),
        ({"k4": 0.1}, ["k4: found 0.1, which is not supported yet"]),
    ],
)
def test_other_camera_models(tmp_path, shared, fragments):
    reads = "jaxrec reads SIMPLE_PINHOLE, PINHOLE, SIMPLE_RADIAL, RADIAL, OPENCV"
    assert_error(edited(tmp_path, shared=shared), *fragments, reads)


@pytest.mark.parametrize(
    "shared, fragments",
    [
        ({"fl_x": -5}, ["fl_x: found -5; wanted a focal length in pixels, above zero"]),
        ({"fl_y": 0}, ["fl_y: found 0; wanted a focal length in pixels, above zero"]),
        ({"fl_x": "10"}, ['fl_x: found "10"; wanted a finite number']),
        ({"fl_x": math.nan}, ["fl_x: found NaN; wanted a finite number"]),
        ({"fl_x": 1e300}, ["fl_x: found 1e+300; wanted a finite number"]),
        ({"fl_x": 1e-300}, ["fl_x: found 1e-300; wanted a focal length"]),
        ({"fl_x": True}, ["fl_x: found true; wanted a finite number"]),
        ({"fl_x": None, "fl_y": None}, ["fl_x: found nothing; give fl_x in pixels, or camera_ang"]),
        ({"camera_angle_x": 45}, ["camera_angle_x: found 45; wanted the field of view in radians"]),
        ({"camera_angle_x": 1.5}, ["fl_x and camera_angle_x contradict each other at 12 pixels"]),
        ({"camera_angle_y": 1.5}, ["fl_y and camera_angle_y contradict each other at 8 pixels"]),
        ({"y_fov": 190}, ["y_fov: found 190; wanted the field of view in degrees"]),
        ({"cx": 12.5}, ["cx: found 12.5, outside the 12 x 8 image; wanted the principal point"]),
        ({"cy": -1}, ["cy: found -1, outside the 12 x 8 image; wanted the principal point"]),
        ({"w": 24}, ["w: found 24 x 8 but images/00.png has 12 x 8 pixels; correct w and h"]),
        ({"w": 8, "h": 12}, ["w: found 8 x 12 but", "EXIF orientation is not applied"]),
        ({"w": 12.5}, ["w: found 12.5; wanted a whole number of pixels"]),
        ({"k1": math.inf}, ["k1: found Infinity; wanted a finite number"]),
        (
            {"camera_model": "PINHOLE", "k1": 0.1},
            ["k1: found 0.1, which the model PINHOLE has not; set k1 to 0 if"],
        ),
        ({"camera_model": 5}, ["camera_model: found 5; wanted a text"]),
    ],
)
def test_bad_intrinsics(tmp_path, shared, fragments):
    file = edited(tmp_path, shared=shared)
    assert_error(file, f"{file}: ", *fragments)


def test_bad_intrinsics_of_a_frame_are_placed_there(tmp_path):
    file = edited(tmp_path, first={"fl_x": -5})
    assert_error(file, f"{file}: frames[0].fl_x: found -5; ")


def test_images_of_several_sizes_cannot_share_pixels(tmp_path):
    file = write_capture(tmp_path, [frame_entry("a.png"), frame_entry("b.png", 1)], {"fl_x": 10})
    write_image(tmp_path / "b.png", size=(24, 16))
    assert_error(file, "fl_x: shared by a.png (12 x 8) and b.png (24 x 16); give each frame")


# Poses


def scaled(factors):
    return (pose(0) @ np.diag([*factors, 1.0])).tolist()


def with_entry(row, column, value):
    matrix = pose(0).tolist()
    matrix[row][column] = value
    return matrix


@pytest.mark.parametrize(
    "matrix, fragment",
    [
        (scaled([2, 2, 2]), "not rigid: scaled by 2; wanted scale 1"),
        (scaled([1, 1, -1]), "not rigid: mirrored (determinant -1); wanted a right-handed"),
        (scaled([1, 1, 1.5]), "are not orthogonal and of length 1; wanted a rotation"),
        (scaled([0, 0, 0]), "are not orthogonal and of length 1; wanted a rotation"),
        (pose(0).T.tolist(), "the matrix looks transposed"),
        (with_entry(3, 3, 2), "the last row is 0, 0, 0, 2; wanted the last row 0, 0, 0, 1"),
        (None, "found nothing; wanted a camera-to-world transform"),
        ([], "found 0 rows of no numbers"),
        (pose(0)[:, :3].tolist(), "found 4 rows of 3 + 3 + 3 + 3 numbers"),
        ("identity", 'found "identity"; wanted a camera-to-world transform'),
    ],
)
def test_bad_poses(tmp_path, matrix, fragment):
    file = edited(tmp_path, first={"transform_matrix": matrix})
    assert_error(file, f"{file}: frames[0].transform_matrix: ", fragment)


@pytest.mark.parametrize("value, text", [(math.nan, "NaN"), (math.inf, "Infinity"), ("1", '"1"')])
def test_poses_that_are_not_finite(tmp_path, value, text):
    file = edited(tmp_path, first={"transform_matrix": with_entry(1, 3, value)})
    assert_error(file, f"frames[0].transform_matrix[1][3]: found {text}; wanted a finite number")
