"""Masks: where they are looked for, and what their values mean."""

import shutil

import numpy as np
import pytest
from PIL import Image

from capture_files import (
    ANGLE,
    HEIGHT,
    WIDTH,
    assert_error,
    edited,
    frame_entry,
    write_capture,
    write_image,
)
from jaxrec.data import open_capture
from jaxrec.data._images import read_mask

USE = np.zeros((HEIGHT, WIDTH), bool)
USE[2:, 3:] = True


def write_mask(file, use=USE, bright=255):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((use * bright).astype(np.uint8)).save(file)


def mask_of(folder, name, **options):
    capture = open_capture(folder, **options)
    return next(view for view in capture.frames if view.name == name).mask, capture.messages


@pytest.mark.parametrize(
    "place",
    [
        "images/00_mask.png",
        "masks/00.png",
        "masks/00.png.png",
        "masks/00_mask.png",
        "mask/00.PNG",
        "masks/images/00.png",
        "masks/00.jpg",
    ],
)
def test_places_of_masks(tmp_path, place):
    write_capture(tmp_path)
    write_mask(tmp_path / place)
    mask, messages = mask_of(tmp_path, "images/00.png")
    np.testing.assert_array_equal(mask, USE)
    assert "1 of 10 images have a mask (0 = ignore, anything else = use)" in messages
    assert not any("no frame names" in message for message in messages)
    assert mask_of(tmp_path, "images/01.png")[0] is None


def test_jpeg_names_with_png_added(tmp_path):
    write_capture(tmp_path, [frame_entry(f"images/{index}.jpg", index) for index in range(3)])
    write_mask(tmp_path / "masks" / "1.jpg.png")
    np.testing.assert_array_equal(mask_of(tmp_path, "images/1.jpg")[0], USE)


def test_what_a_frame_names_comes_first(tmp_path):
    edited(tmp_path, first={"mask_path": "other/00.png"})
    write_mask(tmp_path / "other" / "00.png", ~USE)
    write_mask(tmp_path / "masks" / "00.png", USE)
    np.testing.assert_array_equal(mask_of(tmp_path, "images/00.png")[0], ~USE)


def test_names_of_two_splits_do_not_share_a_mask(tmp_path):
    for split in ("train", "test"):
        frames = [frame_entry(f"./{split}/r_{index}", index) for index in range(2)]
        write_capture(tmp_path, frames, ANGLE, f"transforms_{split}.json")
    write_mask(tmp_path / "masks" / "train" / "r_0.png")
    np.testing.assert_array_equal(mask_of(tmp_path, "train/r_0.png")[0], USE)
    assert mask_of(tmp_path, "test/r_0.png")[0] is None


def test_masks_of_smaller_copies(tmp_path):
    pose_rows = np.load(_llff(tmp_path))
    assert len(pose_rows) == 3
    write_mask(tmp_path / "masks" / "0.png", USE)
    small, _ = mask_of(tmp_path, "0.png", downscale=2)
    # A mask of the photograph: a small pixel is used if all that it covers is.
    expected = USE.reshape(HEIGHT // 2, 2, WIDTH // 2, 2).all(axis=(1, 3))
    np.testing.assert_array_equal(small, expected)
    write_mask(tmp_path / "masks_2" / "0.png", ~expected)
    np.testing.assert_array_equal(mask_of(tmp_path, "0.png", downscale=2)[0], ~expected)


def _llff(folder):
    """Photographs, their halves and poses."""
    row = np.concatenate([np.eye(3, 5).ravel(), [1.0, 10.0]])
    rows = np.stack([row] * 3)
    rows[:, 4:15:5] = HEIGHT, WIDTH, 10.0
    rows[:, 3] = range(3)
    np.save(folder / "poses_bounds.npy", rows)
    for index in range(3):
        write_image(folder / "images" / f"{index}.png")
        write_image(folder / "images_2" / f"{index}.png", size=(WIDTH // 2, HEIGHT // 2))
    return folder / "poses_bounds.npy"


def test_masks_may_be_inverted(tmp_path):
    write_capture(tmp_path)
    write_mask(tmp_path / "masks" / "00.png")
    mask, messages = mask_of(tmp_path, "images/00.png", mask_invert=True)
    np.testing.assert_array_equal(mask, ~USE)
    assert "1 of 10 images have a mask (0 = use, anything else = ignore)" in messages
    small, _ = mask_of(tmp_path, "images/00.png", mask_invert=True, downscale=2)
    # Inverted first: a small pixel that a marked one touches is not used.
    marked = USE.reshape(HEIGHT // 2, 2, WIDTH // 2, 2).any(axis=(1, 3))
    np.testing.assert_array_equal(small, ~marked)


def test_what_was_tried_is_told(tmp_path):
    write_capture(tmp_path)
    write_mask(tmp_path / "masks" / "another.png")
    tried = "NAME_mask.png, masks/NAME.png, masks/NAME.jpg.png, masks/NAME_mask.png"
    _, messages = mask_of(tmp_path, "images/00.png")
    assert f"no mask in {tmp_path / 'masks'} fits an image: tried {tried}" in messages
    shutil.rmtree(tmp_path / "masks")
    _, messages = mask_of(tmp_path, "images/00.png", mask_invert=True)
    assert f"there is no mask to invert: tried mask_path, {tried}" in messages


@pytest.mark.parametrize("bright", [1, 7, 255])
def test_anything_but_zero_is_used(tmp_path, bright):
    write_mask(tmp_path / "mask.png", USE, bright)
    np.testing.assert_array_equal(read_mask(tmp_path / "mask.png"), USE)


def test_values_of_one_mask_may_differ(tmp_path):
    labels = np.asarray([[0, 1], [2, 200]], np.uint8)
    Image.fromarray(labels).save(tmp_path / "labels.png")
    assert read_mask(tmp_path / "labels.png").tolist() == [[False, True], [True, True]]
    # A class may be of any colour, also a dark blue that is black as gray.
    colors = np.zeros((1, 2, 3), np.uint8)
    colors[0, 1, 2] = 1
    Image.fromarray(colors).save(tmp_path / "colors.png")
    assert read_mask(tmp_path / "colors.png").tolist() == [[False, True]]


def test_what_jpeg_adds_to_black_is_not_used(tmp_path):
    use = np.zeros((64, 64), bool)
    use[20:44, 20:44] = True
    Image.fromarray((use * 255).astype(np.uint8)).save(tmp_path / "mask.jpg", quality=60)
    assert np.asarray(Image.open(tmp_path / "mask.jpg"))[~use].max() > 0
    np.testing.assert_array_equal(read_mask(tmp_path / "mask.jpg"), use)


def test_a_mask_of_another_shape(tmp_path):
    write_capture(tmp_path)
    write_mask(tmp_path / "masks" / "00.png", USE.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(mask_of(tmp_path, "images/00.png")[0], USE)
    for wrong in (USE.T, USE[::2, ::2]):
        write_mask(tmp_path / "masks" / "00.png", wrong)
        found = f"the mask has {wrong.shape[1]} x {wrong.shape[0]} pixels but images/00.png has 12"
        assert_error(tmp_path, f"{tmp_path / 'masks' / '00.png'}: {found}", "give a mask of the")
