"""Poses of photos and videos that have none, by structure from motion."""

import json
import pathlib
import shutil
import subprocess

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from capture_files import write_capture, write_image
from jaxrec.cli.main import main
from jaxrec.data import CaptureError, needs_poses, open_capture, reconstruct
from jaxrec.data.sfm import is_reconstructed
from jaxrec.data.video import choose_sharpest, extract_frames, sharpness_of
from textured_room import FOCAL, HEIGHT, WIDTH, write_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos of a room and one of something else; returns the folder and the true poses."""
    folder = tmp_path_factory.mktemp("room") / "photos"
    truth = write_photos(folder)
    noise = np.random.default_rng(5).integers(0, 256, (HEIGHT // 6, WIDTH // 6, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((WIDTH, HEIGHT)).save(folder / "else.png")
    Image.new("RGB", (WIDTH, HEIGHT), "gray").save(folder / "plain.png")
    return folder, truth


@pytest.fixture(scope="module")
def placed(photos):
    lines = []
    structure = reconstruct(photos[0], photos[0].parent / "sfm", say=lines.append)
    return structure, lines


def aligned(found, truth):
    """Errors of positions in metres and of rotations in radians after the best similarity."""
    ours, theirs = found[:, :3, 3], truth[:, :3, 3]
    a, b = ours - ours.mean(axis=0), theirs - theirs.mean(axis=0)
    left, values, right = np.linalg.svd(b.T @ a)
    sign = np.diag([1, 1, np.linalg.det(left @ right)])
    rotation = left @ sign @ right
    scale = (values * np.diag(sign)).sum() / np.square(a).sum()
    distance = np.linalg.norm(scale * a @ rotation.T - b, axis=1)
    turned = np.linalg.norm(rotation @ found[:, :3, :3] - truth[:, :3, :3], axis=(1, 2))
    return distance, turned / np.sqrt(2)


def test_photos_are_placed_where_they_were_taken(photos, placed):
    structure, lines = placed
    assert structure.registered == [f"{index:02d}.png" for index in range(8)]
    capture = open_capture(structure.folder)
    views = sorted(capture.frames, key=lambda view: view.name)
    found = np.stack([np.asarray(view.camera.world_from_camera, np.float64) for view in views])
    distance, turned = aligned(found, np.stack(photos[1]))
    # A pixel is 5 mrad; a hundred features average it down.
    assert distance.max() < 0.02 and turned.max() < 0.005
    np.testing.assert_allclose(views[0].camera.focal, FOCAL, rtol=0.02)
    assert len(capture.points.positions) > 100
    assert [line.split()[0] for line in lines] == ["finding", "matching", "placing"]


def test_rejected_images_come_with_a_reason(placed):
    structure, _ = placed
    assert structure.rejected == {
        "else.png": "as they overlap with no other image",
        "plain.png": "with fewer than 100 features (plain or blurred)",
    }
    assert structure.messages[0].startswith("structure from motion: 8 of 10 images have a pose, ")
    assert "the scale is arbitrary" in structure.messages[0]
    assert "without pose, as they overlap with no other image: else.png" in structure.messages


def test_what_was_placed_is_not_placed_again(photos, placed):
    structure, _ = placed
    lines = []
    again = reconstruct(photos[0], structure.folder, say=lines.append)
    assert again == structure and lines == []
    assert is_reconstructed(structure.folder)
    assert not (structure.folder / "database.db").exists()
    with pytest.raises(CaptureError, match="the structure of other images, or by other options"):
        reconstruct(photos[0], structure.folder, seed=1)


@pytest.mark.slow
def test_the_same_photos_give_the_same_bits(photos, placed, tmp_path):
    again = reconstruct(photos[0], tmp_path / "again")
    for kind in ("cameras", "images", "points3D"):
        one, other = (
            (folder / "sparse" / "0" / f"{kind}.bin").read_bytes()
            for folder in (placed[0].folder, again.folder)
        )
        assert one == other


@pytest.mark.slow
def test_masks_and_names_of_the_photos_stay(placed, photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos[0], folder)
    use = np.zeros((HEIGHT, WIDTH), np.uint8)
    use[:, 100:] = 1
    (folder / "masks").mkdir()
    Image.fromarray(use).save(folder / "masks" / "03.png")
    structure = reconstruct(folder, tmp_path / "sfm")
    assert structure.registered == placed[0].registered
    masks = {view.name: view.mask for view in open_capture(structure.folder).frames}
    np.testing.assert_array_equal(masks.pop("03.png"), use > 0)
    assert all(mask is None for mask in masks.values())


def test_too_few_is_an_end(tmp_path):
    for index in range(5):
        write_image(tmp_path / "photos" / f"{index}.png", size=(64, 48))
    out = tmp_path / "sfm"
    with pytest.raises(CaptureError, match="only 0 of 5 images could be placed .* wanted 50 % and"):
        reconstruct(tmp_path / "photos", out)
    assert [file.name for file in tmp_path.iterdir()] == ["photos"]
    for file in list((tmp_path / "photos").iterdir())[2:]:
        file.unlink()
    with pytest.raises(CaptureError, match="found 2 photos; give at least 3"):
        reconstruct(tmp_path / "photos", out)
    with pytest.raises(CaptureError, match="found no photo; give a folder of images, or a video"):
        reconstruct(tmp_path / "nowhere", out)


def test_a_damaged_report_is_told(tmp_path):
    write_photos(tmp_path / "photos", 3)
    (tmp_path / "sfm").mkdir()
    (tmp_path / "sfm" / "sfm.json").write_text("{")
    with pytest.raises(CaptureError, match="damaged; remove .* to estimate the poses anew"):
        reconstruct(tmp_path / "photos", tmp_path / "sfm")


def test_what_needs_poses(tmp_path, photos):
    assert needs_poses(photos[0])
    write_image(tmp_path / "inside" / "images" / "a.png")
    assert needs_poses(tmp_path / "inside")
    write_capture(tmp_path / "posed")
    assert not needs_poses(tmp_path / "posed") and not needs_poses(tmp_path / "nothing")
    # The poses may be in a file of another name.
    write_capture(tmp_path / "renamed", name="mine.json")
    assert not needs_poses(tmp_path / "renamed")
    (tmp_path / "film.MP4").touch()
    assert needs_poses(tmp_path / "film.MP4")
    with pytest.raises(CaptureError, match="a video has no poses; `jaxrec fit` estimates them"):
        open_capture(tmp_path / "film.MP4")
    with pytest.raises(CaptureError, match="there are images: if they have no poses, `jaxrec fit`"):
        open_capture(photos[0])


# Videos


def test_the_sharpest_of_each_stretch_is_chosen():
    assert choose_sharpest(np.asarray([1.0, 5, 2, 7, 7, 0, 1, 1, 3]), 3) == [1, 3, 8]
    assert choose_sharpest([1.0, 2.0], 9) == [0, 1]


def test_sharpness_falls_with_blur():
    sharp = np.random.default_rng(0).integers(0, 256, (40, 60)).astype(np.uint8)
    blurred = sharp.astype(np.float32)
    for axis in (0, 1):
        blurred = (blurred + np.roll(blurred, 1, axis) + np.roll(blurred, -1, axis)) / 3
    assert sharpness_of(blurred) < 0.2 * sharpness_of(sharp)
    assert sharpness_of(np.full((9, 9), 7, np.uint8)) == 0


def write_video(file, pictures):
    """A video of PNG pictures, all its frames in their order."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y"]
    command += ["-framerate", "10", "-i", str(pictures), "-c:v", "libx264", "-crf", "8"]
    subprocess.run([*command, "-pix_fmt", "yuv420p", str(file)], check=True)


def test_blurred_pictures_of_a_video_are_passed_over(tmp_path):
    write_photos(tmp_path / "all", 4)
    (tmp_path / "pictures").mkdir()
    for index in range(8):
        with Image.open(tmp_path / "all" / f"{index // 2:02d}.png") as picture:
            small = picture.resize((WIDTH // 8, HEIGHT // 8))
            kept = small.resize(picture.size) if index in (0, 2, 4, 7) else picture
            kept.save(tmp_path / "pictures" / f"{index:02d}.png")
    write_video(tmp_path / "film.mp4", tmp_path / "pictures" / "%02d.png")
    files = extract_frames(tmp_path / "film.mp4", tmp_path / "chosen", most=4)
    assert [file.name for file in files] == [f"frame_{index:06d}.jpg" for index in (1, 3, 5, 6)]
    for file, index in zip(files, range(4), strict=True):
        with Image.open(file) as found, Image.open(tmp_path / "all" / f"{index:02d}.png") as truth:
            assert found.size == (WIDTH, HEIGHT)
            error = np.asarray(found, np.float32) - np.asarray(truth, np.float32)
        assert np.abs(error).mean() < 12


def test_a_video_that_cannot_be_decoded_is_told(tmp_path):
    file = tmp_path / "film.mp4"
    file.write_bytes(b"no video at all")
    with pytest.raises(CaptureError, match="ffmpeg cannot decode the video .*; check that it play"):
        extract_frames(file, tmp_path / "chosen", most=4)


@pytest.mark.slow
def test_a_video_is_fitted_and_evaluated(tmp_path, capsys):
    write_photos(tmp_path / "pictures", 12)
    write_video(tmp_path / "film.mp4", tmp_path / "pictures" / "%02d.png")
    run = tmp_path / "run"
    command = ["fit", str(tmp_path / "film.mp4"), "--out", str(run), "--downscale", "4"]
    command += ["--spheres", "300", "--video-frames", "10", "--horizon", "40", "--steps"]
    assert main([*command, "20"]) == 0
    printed = capsys.readouterr().out
    assert "10 of 10 images have a pose" in printed and "finding features" in printed
    names = {file.name for file in (run / "sfm" / "images").iterdir()}
    assert len(names) == 10 and all(name.startswith("frame_") for name in names)
    # Going on does not place them again, nor does eval.
    assert main([*command, "40"]) == 0
    printed = capsys.readouterr().out
    assert "finding features" not in printed and "10 of 10 images have a pose" in printed
    (tmp_path / "film.mp4").unlink()
    assert main(["eval", str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["views"]) == 2


def test_fit_stops_where_photos_cannot_be_placed(tmp_path, capsys):
    for index in range(3):
        write_image(tmp_path / "photos" / f"{index}.png", size=(64, 48))
    command = ["fit", str(tmp_path / "photos"), "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "only 0 of 3 images could be placed" in capsys.readouterr().err
    assert main([*command, "--video-frames", "2"]) == 2
    assert "video-frames: got 2, want >= 3" in capsys.readouterr().err
    assert not pathlib.Path(tmp_path / "run" / "sfm").exists()
    (tmp_path / "photos" / "0.png").unlink()
    assert main(["fit", str(tmp_path / "photos"), "--out", str(tmp_path / "other")]) == 2
    assert "found 2 photos; give at least 3" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
