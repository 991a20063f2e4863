"""`jaxrec check`: each kind of trouble has its finding, its severity and its exit code."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from PIL import Image

from capture_files import pose, write_capture
from jaxrec.cli.diagnosis import diagnose, exit_code
from jaxrec.cli.main import main
from jaxrec.cli.pixels import in_image
from jaxrec.cli.scene_picture import PANEL, draw_coverage, draw_points, draw_scene
from jaxrec.cli.survey import survey
from jaxrec.data import Capture, PointCloud
from jaxrec.sensors import Frame, PinholeCamera
from textured_room import FOCAL, HEIGHT, WIDTH, paint, photograph_depth, poses

FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
SIZE = 32


def camera(matrix, focal=(30.0, 30.0), principal=(16.0, 16.0), distortion=None):
    return PinholeCamera(
        np.asarray(matrix, np.float32), focal, principal, distortion, width=SIZE, height=SIZE
    )


def frame(index, matrix=None, brightness=0.5, **options):
    noise = np.random.default_rng(index).uniform(-0.2, 0.2, (SIZE, SIZE, 3))
    image = np.clip(brightness * (1 + noise), 0, 1).astype(np.float32)
    matrix = pose(0.5 * index) @ FLIP if matrix is None else matrix
    return Frame(camera(matrix, **options), image, name=f"{index:02d}.png")


def capture(train=None, test=None, points=True, **fields):
    """Cameras in a ring about the origin, where some points are."""
    train = [frame(index) for index in range(12)] if train is None else train
    test = [frame(90 + index, pose(0.5 * index + 0.2) @ FLIP) for index in range(2)]
    cloud = None
    if points:
        positions = np.random.default_rng(9).uniform(-0.4, 0.4, (300, 3)).astype(np.float32)
        cloud = PointCloud(positions, np.full((300, 3), 0.5, np.float32))
    return Capture(train, test, "transforms", pathlib.Path("/capture"), points=cloud, **fields)


def changed(view, **fields):
    return dataclasses.replace(view, **fields)


def findings(given):
    return diagnose(survey(given))


def assert_found(given, severity, topic, *words):
    found = findings(given)
    matching = [each for each in found if (each.severity, each.topic) == (severity, topic)]
    text = " | ".join(f"{each.text}; {each.advice}" for each in matching)
    for word in words:
        assert word in text, found
    if severity != "note":
        assert exit_code(found) >= {"warning": 1, "error": 2}[severity]
        assert all(each.advice for each in matching)


@pytest.mark.parametrize("points", [True, False])
def test_a_sound_capture_is_not_objected_to(points):
    found = findings(capture(points=points))
    assert exit_code(found) == 0, found
    assert all(each.severity == "note" for each in found)


def test_the_worst_comes_first():
    views = [frame(index, focal=(0.1, 0.1)) for index in range(4)]
    severities = [each.severity for each in findings(capture(views))]
    order = ["error", "warning", "note"]
    assert severities == sorted(severities, key=order.index) and severities[0] == "error"


# Images and intrinsics


def test_few_images():
    assert_found(capture([frame(0), frame(1)]), "warning", "images", "only 2 images to fit")
    assert_found(capture([frame(0)]), "error", "images", "1 image to fit")


@pytest.mark.parametrize(
    "options, severity, words",
    [
        ({"focal": (300.0, 300.0)}, "warning", "a field of view of 6.11 degrees"),
        ({"focal": (6.0, 6.0)}, "warning", "a field of view of 139 degrees"),
        ({"focal": (0.5, 0.5)}, "error", "a field of view of 176 degrees"),
        ({"focal": (3e4, 3e4)}, "error", "a field of view of 0.0611 degrees"),
        ({"focal": (30.0, 60.0)}, "warning", "pixels that are not square"),
        ({"principal": (26.0, 16.0)}, "warning", "principal point (26, 16) of 32 x 32 pixels"),
    ],
)
def test_intrinsics_out_of_range(options, severity, words):
    views = [frame(index, **options) for index in range(11)] + [frame(11)]
    assert_found(capture(views), severity, "intrinsics", words, "00.png, 01.png")


def test_a_lens_that_folds_over():
    lens = (-0.3, 0.0, 0.0, 0.0, 0.0)
    views = [frame(index, distortion=lens, focal=(20.0, 20.0)) for index in range(12)]
    assert_found(capture(views), "warning", "lens", "the lens model folds over", "have no ray")


def test_undistorted_images_with_a_lens():
    views = []
    for index in range(12):
        view = frame(index, distortion=(0.05, 0.0, 0.0, 0.0, 0.0))
        view.image[[0, 0, -1, -1], [0, -1, 0, -1]] = 0
        views.append(view)
    assert_found(capture(views), "warning", "lens", "black", "--ignore-distortion")


# Poses


def test_cameras_at_one_place():
    views = [frame(index, pose(0.0) @ FLIP) for index in range(12)]
    ours = dataclasses.replace(capture(views), test=[frame(12, pose(0.0) @ FLIP)])
    assert_found(ours, "error", "poses", "all cameras stand at one place")


def test_near_identical_cameras():
    views = [frame(index) for index in range(12)]
    views.append(frame(12, pose(0.5 * 3 + 1e-5) @ FLIP))
    assert_found(capture(views), "warning", "poses", "1 pairs", "03.png and 12.png")
    held_out = [frame(13, pose(0.5 * 4) @ FLIP)]
    ours = dataclasses.replace(capture(), test=held_out)
    assert_found(ours, "warning", "poses", "1 held-out images were taken where one to fit was")


def test_a_camera_that_got_lost():
    lost = pose(1.0) @ FLIP
    lost[:3, 3] += 500
    views = [frame(index) for index in range(12)] + [frame(12, lost)]
    assert_found(capture(views), "warning", "poses", "1 cameras far from all others: 12.png")


@pytest.mark.parametrize("points", [True, False])
def test_cameras_that_look_away(points):
    views = [frame(index) for index in range(12)]
    turned = pose(2.0) @ FLIP @ np.diag([-1.0, 1.0, -1.0, 1.0])
    views.append(frame(12, turned))
    assert_found(capture(views, points=points), "warning", "directions", "1 cameras see nothing")


def test_poses_that_are_inverted():
    views = [frame(index, np.linalg.inv(pose(0.5 * index) @ FLIP)) for index in range(12)]
    inverted = [frame(20 + index, np.linalg.inv(pose(index) @ FLIP)) for index in range(2)]
    ours = dataclasses.replace(capture(views), test=inverted)
    found = " ".join(f"{each.text} {each.advice}" for each in findings(ours))
    assert "world-to-camera" in found
    unaided = dataclasses.replace(ours, points=None)
    assert_found(unaided, "warning", "directions", "their inverses would", "invert them")


def test_little_parallax():
    views = [frame(index, pose(0.002 * index) @ FLIP) for index in range(12)]
    ours = dataclasses.replace(capture(views), test=[frame(12, pose(0.03) @ FLIP)])
    assert_found(ours, "warning", "directions", "see the scene within 1.")


# Scale


@pytest.mark.parametrize("scale, words", [(1e4, "kilometres"), (1e-4, "units apart")])
def test_suspicious_scale(scale, words):
    def scaled(view):
        matrix = np.array(view.camera.world_from_camera)
        matrix[:3, 3] *= scale
        return changed(view, camera=dataclasses.replace(view.camera, world_from_camera=matrix))

    ours = capture()
    cloud = PointCloud(ours.points.positions * np.float32(scale), ours.points.colors)
    ours = dataclasses.replace(
        ours, train=[*map(scaled, ours.train)], test=[*map(scaled, ours.test)], points=cloud
    )
    assert_found(ours, "warning", "scale", words)


@pytest.mark.parametrize("scale", [1.0, 0.9])
def test_depths_that_do_not_suit_the_images(scale):
    textures = [paint(seed) for seed in range(3)]
    train = []
    for index, matrix in enumerate(poses(12, spread=0.25)):
        image, depth = photograph_depth(matrix, textures)
        own = PinholeCamera(
            matrix.astype(np.float32), (FOCAL, FOCAL), (WIDTH / 2, HEIGHT / 2),
            width=WIDTH, height=HEIGHT,
        )  # fmt: skip
        shown = image.astype(np.float32) / 255
        depth = (scale * depth).astype(np.float32)
        train.append(Frame(own, shown, depth=depth, name=f"{index:02d}.png"))
    given = capture(train, points=False)
    assert survey(given).depth_factor == pytest.approx(1 / scale, rel=0.04)
    if scale != 1:
        assert_found(given, "warning", "depths", "multiplied by 1.1", "intrinsics")
    else:
        assert "depths" not in {each.topic for each in findings(given)}


def test_depths_of_few_images_say_nothing():
    views = [changed(frame(i), depth=np.ones((SIZE, SIZE), np.float32)) for i in range(3)]
    assert survey(capture(views)).depth_factor is None


def test_a_far_origin_is_told():
    ours = capture(origin=(512345.0, 4187654.0, 0.0))
    assert_found(ours, "note", "scale", "UTM", "512345, 4187654, 0")
    assert exit_code(findings(ours)) == 0


# Pixels


def test_exposure_jumps():
    views = [frame(index, brightness=0.2 if index == 5 else 0.6) for index in range(12)]
    assert_found(capture(views), "warning", "exposure", "exposure jumps", "05.png")
    views = [frame(index, brightness=0.001 if index == 5 else 0.6) for index in range(12)]
    assert_found(capture(views), "warning", "exposure", "1 images are black: 05.png")
    # A slow change is none.
    views = [frame(index, brightness=0.1 * 1.2**index) for index in range(12)]
    assert_found(capture(views), "note", "exposure", "brightness varies by")


def test_a_blurred_image():
    views = [frame(index) for index in range(12)]
    views[4] = changed(views[4], image=np.full_like(views[4].image, 0.5))
    assert_found(capture(views), "warning", "sharpness", "less sharp", "04.png")


def test_masks_that_leave_nothing():
    none = np.zeros((SIZE, SIZE), bool)
    views = [changed(frame(index), mask=none) for index in range(12)]
    assert_found(capture(views), "error", "masks", "no pixel to fit", "--mask-invert")
    views = [frame(index) for index in range(11)] + [changed(frame(11), mask=none)]
    assert_found(capture(views), "warning", "masks", "less than 2 %: 11.png")


def test_points_of_another_frame():
    ours = capture()
    moved = PointCloud(ours.points.positions + np.float32(50), ours.points.colors)
    ours = dataclasses.replace(ours, points=moved)
    assert_found(ours, "error", "directions", "no camera sees any of the points")
    assert_found(ours, "warning", "points", "100 % of the points are in fewer than two images")


# Pictures


def test_points_are_drawn_where_the_camera_sees_them():
    ours = capture()
    facts = survey(ours)
    view = ours.train[0]
    pixels, inside = in_image(view.camera, facts.points)
    relative = (facts.points - np.asarray(view.camera.world_from_camera)[:3, 3]) @ np.asarray(
        view.camera.world_from_camera
    )[:3, :3]
    expected = 30 * relative[:, :2] / relative[:, 2:] + 16
    np.testing.assert_allclose(pixels, expected, atol=1e-3)
    np.testing.assert_array_equal(inside, ((expected > 0) & (expected < SIZE)).all(axis=1))
    assert inside.any()


def test_pictures_show_cameras_and_points():
    facts = survey(capture())
    scene = draw_scene(facts)
    assert scene.shape[1] > 2 * PANEL
    for color in ((40, 90, 200), (225, 120, 20), (210, 40, 40), (128, 128, 128)):
        assert (scene == color).all(axis=-1).sum() > 20, color
    assert draw_points(facts) is not None and draw_points(survey(capture(points=False))) is None
    coverage = draw_coverage(facts)
    assert (coverage == (40, 90, 200)).all(axis=-1).sum() > 12 * 10


# The command


def test_the_command_writes_a_folder(tmp_path, capsys):
    file = write_capture(tmp_path / "scene")
    out = tmp_path / "report"
    code = main(["check", str(file), "--out", str(out)])
    printed = capsys.readouterr().out
    report = json.loads((out / "check.json").read_text())
    assert code == report["exit_code"]
    assert {"scene.png", "coverage.png", "check.json"} == {each.name for each in out.iterdir()}
    with Image.open(out / "scene.png") as picture:
        assert picture.width > 2 * PANEL
    assert len(report["images"]) == 10 and report["images"][-1]["held_out"]
    assert "8 to fit, 2 held out" in printed and "only 8 images to fit" in printed
    assert code == 1 and [each.name for each in tmp_path.iterdir() if each.name[0] == "."] == []
    # Again, into the same folder.
    assert main(["check", str(file), "--out", str(out), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == report


def test_the_command_leaves_other_folders_alone(tmp_path, capsys):
    file = write_capture(tmp_path / "scene")
    assert main(["check", str(file), "--out", str(tmp_path / "scene")]) == 2
    assert "in the way of a check; choose another --out" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none"), "--out", str(tmp_path / "report")]) == 2
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder, code",
    [
        ("ingp_fox", 0),
        ("nerf_synthetic_lego_400", 0),
        ("llff_fern", 0),
        # Its intrinsics are the depth camera's.
        ("sevenscenes_rgbd", 1),
        # Nine images to fit.
        ("sceaux_castle_colmap", 1),
    ],
)
def test_real_captures(shared, tmp_path, folder, code):
    data = shared / "data" / folder
    assert main(["check", str(data), "--out", str(tmp_path / "out"), "--downscale", "2"]) == code
