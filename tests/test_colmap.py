"""COLMAP models: their files, cameras and images, and the pixels that points fall on."""

import shutil
import signal
import sys

import numpy as np
import pycolmap
import pytest
from PIL import Image

from capture_files import HEIGHT, WIDTH, assert_error, pose, project, write_capture, write_image
from jaxrec.data import CaptureError, open_capture

EPS = float(np.finfo(np.float32).eps)
FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
POINTS = np.random.default_rng(0).uniform(-0.5, 0.5, (6, 3))
COLORS = np.random.default_rng(1).integers(0, 256, (6, 3), dtype=np.uint8)
LENS = [10.0, 11.0, 6.5, 3.5, 0.05, -0.02, 0.01, -0.005]
NAMES = [f"{index:02d}.png" for index in range(10)]
SPLIT = "8 frames to fit, 2 held out (every 8th by file name)"


def write_model(
    folder, names=NAMES, camera=("OPENCV", LENS), size=(WIDTH, HEIGHT), points=POINTS, text=False
):
    """Writes a model whose images stand at the poses of `capture_files.pose`."""
    scene = pycolmap.Reconstruction()
    # Numbers with gaps: nothing says that they count from 1.
    scene.add_camera_with_trivial_rig(
        pycolmap.Camera(
            model=camera[0], params=camera[1], width=size[0], height=size[1], camera_id=7
        )
    )
    for index, name in enumerate(names):
        camera_from_world = np.linalg.inv(pose(index) @ FLIP)[:3]
        image = pycolmap.Image(
            name=name, keypoints=np.ones((len(POINTS), 2)), camera_id=7, image_id=3 + index
        )
        scene.add_image_with_trivial_frame(image, pycolmap.Rigid3d(camera_from_world))
    for point, color in zip(points, COLORS, strict=False):
        scene.add_point3D(point, pycolmap.Track(), color)
    folder.mkdir(parents=True, exist_ok=True)
    (scene.write_text if text else scene.write_binary)(folder)
    return scene


def write_images(folder, size=(WIDTH, HEIGHT), names=NAMES):
    for name in names:
        write_image(folder / name.replace("\\", "/"), size=size)


@pytest.fixture
def scene(tmp_path):
    """A sound capture; returns its model as pycolmap has it."""
    write_images(tmp_path / "images")
    return write_model(tmp_path / "sparse" / "0")


@pytest.fixture
def text_files(tmp_path):
    """A sound capture with a model as text; returns the folder of the model."""
    write_images(tmp_path / "images")
    write_model(tmp_path / "sparse", text=True)
    return tmp_path / "sparse"


# Layouts


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("place", ["sparse/0", "sparse", "colmap/sparse/0", "."])
def test_places_of_the_model(tmp_path, place, text):
    write_images(tmp_path / "images")
    write_model(tmp_path / place, text=text)
    capture = open_capture(tmp_path)
    assert capture.format == "colmap" and capture.path == tmp_path
    assert [view.name for view in capture.test] == ["00.png", "08.png"]
    assert capture.messages == [SPLIT]
    for view in capture.frames:
        expected = pose(int(view.name[:2])) @ FLIP
        np.testing.assert_allclose(view.camera.world_from_camera, expected, atol=16 * EPS)


@pytest.mark.parametrize("given", ["sparse", "sparse/0"])
def test_the_folder_of_the_model_stands_for_its_capture(tmp_path, scene, given):
    assert len(open_capture(tmp_path / given).frames) == 10


@pytest.mark.parametrize("text", [False, True])
def test_a_model_without_the_files_of_newer_versions(tmp_path, text):
    write_images(tmp_path / "images")
    write_model(tmp_path / "sparse", text=text)
    for file in [*tmp_path.glob("sparse/rigs.*"), *tmp_path.glob("sparse/frames.*")]:
        file.unlink()
    assert len(open_capture(tmp_path).frames) == 10


def test_of_several_models_the_largest_is_taken(tmp_path):
    write_images(tmp_path / "images", names=[*NAMES, "lost.png"])
    write_model(tmp_path / "sparse" / "0", names=["00.png", "09.png"])
    write_model(tmp_path / "sparse" / "1", names=NAMES[:9])
    write_model(tmp_path / "sparse" / "10", names=NAMES[:9])
    capture = open_capture(tmp_path)
    assert len(capture.frames) == 9
    assert capture.messages[:3] == [
        "3 COLMAP models, which share no world frame: 1 is used, the one with the most images "
        "(0 with 2, 1 with 9, 10 with 9)",
        "not used, as they are in model 0 only: 09.png",
        "not used, as COLMAP found no pose for them: lost.png",
    ]


def test_a_transforms_file_comes_first(tmp_path, scene):
    write_capture(tmp_path)
    capture = open_capture(tmp_path)
    assert capture.format == "transforms"
    assert capture.messages[0] == "the COLMAP model is not used: transforms.json comes first"


def test_the_signals_of_the_process_stay_its_own(tmp_path, scene):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        open_capture(tmp_path)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [1]


# Cameras


@pytest.mark.parametrize(
    "name, params",
    [
        ("SIMPLE_PINHOLE", [10.0, 6.5, 3.5]),
        ("PINHOLE", [10.0, 11.0, 6.5, 3.5]),
        ("SIMPLE_RADIAL", [10.0, 6.5, 3.5, 0.05]),
        ("RADIAL", [10.0, 6.5, 3.5, 0.05, -0.02]),
        ("OPENCV", LENS),
        ("FULL_OPENCV", [*LENS, 0.03, 0.0, 0.0, 0.0]),
    ],
)
def test_points_fall_on_the_pixels_that_colmap_says(tmp_path, name, params):
    write_images(tmp_path / "images")
    scene = write_model(tmp_path / "sparse", camera=(name, params))
    for view in open_capture(tmp_path).frames:
        image = scene.find_image_with_name(view.name)
        points = np.asarray([image.cam_from_world() * point for point in POINTS])
        pixels, depth = project(view.camera, POINTS)
        # Some ten roundings of numbers of about 10.
        np.testing.assert_allclose(pixels, scene.cameras[7].img_from_cam(points), atol=100 * EPS)
        np.testing.assert_allclose(depth, points[:, 2], rtol=16 * EPS)
        assert (view.camera.distortion is None) == name.endswith("PINHOLE")


def test_the_principal_point_counts_from_the_corner_of_the_image(tmp_path):
    write_images(tmp_path / "images")
    write_model(tmp_path / "sparse", camera=("PINHOLE", [10.0, 10.0, 0.5, 2.5]))
    camera = open_capture(tmp_path).train[0].camera
    # The optical axis is the ray of the first pixel of the third row, whose centre is (0.5, 2.5).
    rays = camera.rays()
    forward = np.asarray(camera.world_from_camera)[:3, 2]
    np.testing.assert_allclose(np.asarray(rays.directions)[2, 0], forward, atol=8 * EPS)


@pytest.mark.parametrize(
    "name, params, found",
    [
        ("SIMPLE_RADIAL_FISHEYE", [10.0, 6.5, 3.5, 0.05], "the model SIMPLE_RADIAL_FISHEYE cannot"),
        ("RADIAL_FISHEYE", [10.0, 6.5, 3.5, 0.05, 0], "the model RADIAL_FISHEYE cannot"),
        ("OPENCV_FISHEYE", LENS, "the model OPENCV_FISHEYE cannot be represented exactly"),
        ("FOV", [10.0, 10.0, 6.5, 3.5, 0.5], "the model FOV cannot be represented exactly"),
        ("THIN_PRISM_FISHEYE", [*LENS, 0, 0, 0, 0], "the model THIN_PRISM_FISHEYE cannot be"),
        ("FULL_OPENCV", [*LENS, 0, 0, 0.25, 0], "k5 of the model FULL_OPENCV is 0.25, not 0"),
        ("PINHOLE", [-10.0, 10.0, 6.5, 3.5], "fl_x: found -10; wanted a focal length"),
        ("PINHOLE", [10.0, 10.0, 13.0, 3.5], "cx: found 13, outside the 12 x 8 image"),
    ],
)
def test_cameras_that_cannot_be_used(tmp_path, name, params, found):
    write_images(tmp_path / "images")
    write_model(tmp_path / "sparse", camera=(name, params))
    text = assert_error(tmp_path, f"{tmp_path / 'sparse' / 'cameras.bin'}: camera 7", found)
    assert ("colmap image_undistorter" in text) == (name != "PINHOLE")


@pytest.mark.parametrize(
    "name, params",
    [
        ("SIMPLE_RADIAL_FISHEYE", [10.0, 6.5, 3.5, 0.05]),
        ("RADIAL_FISHEYE", [10.0, 6.5, 3.5, 0.05, 0]),
        ("OPENCV_FISHEYE", LENS),
        ("FOV", [10.0, 11.0, 6.5, 3.5, 0.5]),
        ("THIN_PRISM_FISHEYE", [*LENS, 0, 0, 0, 0]),
        ("FULL_OPENCV", [*LENS, 0, 0, 0.25, 0]),
        ("OPENCV", LENS),
    ],
)
def test_images_that_are_undistorted_already(tmp_path, name, params):
    write_images(tmp_path / "images")
    write_model(tmp_path / "sparse", camera=(name, params))
    for view in open_capture(tmp_path, ignore_distortion=True).frames:
        assert view.camera.distortion is None
        focal = [10, 11] if params[1] == 11 else [10, 10]
        np.testing.assert_array_equal(view.camera.focal, focal)
        np.testing.assert_array_equal(view.camera.principal, [6.5, 3.5])


def test_a_rig_of_two_cameras(tmp_path):
    """Frames of a rig state the pose of the rig; the second camera stands beside it."""
    scene = pycolmap.Reconstruction()
    rig = pycolmap.Rig(rig_id=1)
    beside = pycolmap.Rigid3d(np.asarray([[1.0, 0, 0, 0.25], [0, 1, 0, 0], [0, 0, 1, 0]]))
    for number in (1, 2):
        scene.add_camera(
            pycolmap.Camera(
                model="PINHOLE", params=LENS[:4], width=WIDTH, height=HEIGHT, camera_id=number
            )
        )
    rig.add_ref_sensor(scene.cameras[1].sensor_id)
    rig.add_sensor(scene.cameras[2].sensor_id, beside)
    scene.add_rig(rig)
    names = []
    for index in range(4):
        frame = pycolmap.Frame(frame_id=index + 1, rig_id=1)
        frame.rig_from_world = pycolmap.Rigid3d(np.linalg.inv(pose(index) @ FLIP)[:3])
        images = []
        for number, side in ((1, "left"), (2, "right")):
            image = pycolmap.Image(
                name=f"{side}/{index}.png",
                keypoints=np.ones((2, 2)),
                camera_id=number,
                image_id=2 * index + number,
            )
            image.frame_id = index + 1
            frame.add_data_id(image.data_id)
            images.append(image)
        scene.add_frame(frame)
        for image in images:
            scene.add_image(image)
            names.append(image.name)
        scene.register_frame(index + 1)
    (tmp_path / "sparse").mkdir()
    scene.write_binary(tmp_path / "sparse")
    write_images(tmp_path / "images", names=names)
    capture = open_capture(tmp_path)
    assert len(capture.frames) == 8
    for view in capture.frames:
        side, index = view.name.removesuffix(".png").split("/")
        rig_from_world = np.linalg.inv(pose(int(index)) @ FLIP)
        if side == "right":
            rig_from_world[0, 3] += 0.25
        expected = np.linalg.inv(rig_from_world)
        np.testing.assert_allclose(view.camera.world_from_camera, expected, atol=32 * EPS)


# Images


def test_names_with_folders(tmp_path):
    names = ["left/a.png", "left\\b.png", "right/a.png"]
    write_images(tmp_path / "images", names=names)
    write_model(tmp_path / "sparse", names=names)
    (tmp_path / "images" / ".thumbs").mkdir()
    for stray in (".DS_Store", "Thumbs.db", ".thumbs/a.png"):
        (tmp_path / "images" / stray).write_bytes(b"stray")
    capture = open_capture(tmp_path)
    names = sorted(view.name for view in capture.frames)
    assert names == ["left/a.png", "left/b.png", "right/a.png"]
    assert capture.messages == ["2 frames to fit, 1 held out (every 8th by file name)"]


def test_pixels_belong_to_their_poses(tmp_path, scene):
    for view in open_capture(tmp_path).frames:
        expected = np.asarray(Image.open(tmp_path / "images" / view.name), np.float32)
        np.testing.assert_array_equal(view.image, expected / np.float32(255))


def test_downscale(tmp_path, scene):
    view = open_capture(tmp_path, downscale=2).train[0]
    assert view.image.shape == (HEIGHT // 2, WIDTH // 2, 3)
    np.testing.assert_allclose(view.camera.principal, [3.25, 1.75], rtol=2 * EPS)


def test_a_folder_of_smaller_images_is_used(tmp_path):
    # 13 x 9 pixels by four, rounded up by one tool and down by another.
    write_model(tmp_path / "sparse", size=(13, 9))
    write_images(tmp_path / "images", (13, 9))
    write_images(tmp_path / "images_4", (4, 2))
    write_image(tmp_path / "images_4" / "000.png", (4, 2))
    capture = open_capture(tmp_path, downscale=4)
    assert capture.messages[0] == "images of images_4 are used as they are"
    for view in capture.frames:
        expected = np.asarray(Image.open(tmp_path / "images_4" / view.name), np.float32)
        np.testing.assert_array_equal(view.image, expected / np.float32(255))
        ratio = np.asarray([4 / 13, 2 / 9])
        np.testing.assert_allclose(view.camera.focal, ratio * [10, 11], rtol=2 * EPS)
        np.testing.assert_allclose(view.camera.principal, ratio * [6.5, 3.5], rtol=2 * EPS)
    (tmp_path / "images_4" / "03.png").unlink()
    capture = open_capture(tmp_path, downscale=4)
    assert capture.messages[0] == "images_4 is not used: it lacks 03.png"
    assert capture.train[0].image.shape == (2, 3, 3)


@pytest.mark.parametrize("stated", [(48, 32), (12, 8)])
def test_only_smaller_images_are_there(tmp_path, stated):
    write_model(tmp_path / "sparse", size=stated)
    write_images(tmp_path / "images_4")
    write_images(tmp_path / "images_8", (6, 4))
    capture = open_capture(tmp_path)
    assert capture.messages[0] == "there is no folder images: images_4 is taken for it"
    camera = capture.train[0].camera
    np.testing.assert_allclose(camera.focal, [120 / stated[0], 11 * 12 / stated[0]], rtol=2 * EPS)
    smaller = open_capture(tmp_path, downscale=2)
    assert "images of images_8 are used as they are" in smaller.messages
    np.testing.assert_allclose(2 * smaller.train[0].camera.focal, camera.focal, rtol=2 * EPS)


def test_images_that_cannot_be_used(tmp_path, scene):
    file, cameras = (tmp_path / "sparse" / "0" / f"{kind}.bin" for kind in ("images", "cameras"))
    image = tmp_path / "images" / "04.png"
    write_image(image, (8, 12))
    found = "camera 7.size: found 12 x 8 but 04.png has 8 x 12 pixels; rotate the image for good"
    assert_error(tmp_path, f"{cameras}: {found}")
    write_image(image, (6, 4))
    found = "camera 7.size: found 12 x 8 but 04.png has 6 x 4 pixels; put images of the stated size"
    assert_error(tmp_path, f"{cameras}: {found}")
    image.unlink()
    folder = tmp_path / "images"
    assert_error(tmp_path, f"{file}: image 7.name: no image '04.png' in {folder}; copy the image")
    shutil.rmtree(folder)
    assert_error(tmp_path, f"{tmp_path}: found no folder images (nor images_2, images_4, ...)")


def test_one_image_cannot_be_both_fitted_and_held_out(tmp_path):
    write_images(tmp_path / "images")
    write_model(tmp_path / "sparse", names=["00.png"])
    assert_error(tmp_path, "images.bin: found 1 frame, which is held out to measure with")
    write_model(tmp_path / "sparse", names=[])
    assert_error(tmp_path, "images.bin: found no image with a pose; give a model with at least")


# Points


def test_points(tmp_path, scene):
    points = open_capture(tmp_path).points
    order = np.argsort(points.positions[:, 0])
    expected = np.argsort(POINTS[:, 0])
    np.testing.assert_array_equal(points.positions[order], POINTS[expected].astype(np.float32))
    np.testing.assert_allclose(points.colors[order] * 255, COLORS[expected], atol=1e-4)


@pytest.mark.parametrize("points", [[], [[np.nan, 0, 0], [1e300, 0, 0]]])
def test_no_points(tmp_path, points):
    write_images(tmp_path / "images")
    write_model(tmp_path / "sparse", points=np.asarray(points))
    found = open_capture(tmp_path).points
    assert found is None or len(found.positions) == 0


def test_points_that_only_held_out_images_place_are_left_out(tmp_path):
    write_images(tmp_path / "images")
    scene = write_model(tmp_path / "sparse", points=[])
    numbers = {image.name: number for number, image in scene.images.items()}
    # 00 and 08 are held out.
    seen_by = [("00", "08"), ("00", "01"), ("01", "02"), ("00", "01", "02"), ("03",), ()]
    for index, names in enumerate(seen_by):
        track = pycolmap.Track()
        for name in names:
            track.add_element(numbers[f"{name}.png"], index)
        scene.add_point3D(POINTS[index], track, COLORS[index])
    scene.write_binary(tmp_path / "sparse")
    found = open_capture(tmp_path).points.positions
    order = np.argsort(found[:, 0])
    expected = POINTS[2:4].astype(np.float32)
    np.testing.assert_array_equal(found[order], expected[np.argsort(expected[:, 0])])


# Damaged files


@pytest.mark.parametrize("kind", ["cameras", "images", "points3D", "rigs", "frames"])
def test_binary_files_that_end_too_early(tmp_path, scene, kind):
    # pycolmap itself reads some of these without an end.
    file = tmp_path / "sparse" / "0" / f"{kind}.bin"
    whole = file.read_bytes()
    for size in (4, 8, 20, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert_error(tmp_path, f"{file}: record ", f"ends too early, after {size} bytes; copy the")
    file.write_bytes(b"")
    assert_error(tmp_path, f"{file}: the file is empty (0 bytes); copy the model again")
    file.write_bytes(whole + b"abc")
    assert_error(tmp_path, f"{file}: byte {len(whole)}: found 3 bytes after the last of")


def test_a_missing_file(tmp_path, scene):
    file = tmp_path / "sparse" / "0" / "points3D.bin"
    file.unlink()
    assert_error(tmp_path, f"{file}: no such file; copy the model again")


def edit(file, offset, value):
    content = bytearray(file.read_bytes())
    content[offset : offset + len(value)] = value
    file.write_bytes(content)


def test_binary_values_that_make_no_sense(tmp_path, scene):
    cameras, images = (tmp_path / "sparse" / "0" / f"{kind}.bin" for kind in ("cameras", "images"))
    # Newer versions take poses from frames.bin.
    for kind in ("rigs", "frames"):
        cameras.with_name(f"{kind}.bin").unlink()
    edit(images, 8 + 4, np.full(4, np.nan).tobytes())
    assert_error(tmp_path, f"{images}: image 3.pose: found a quaternion of length nan; wanted")
    edit(images, 8 + 4, np.asarray([3.0, 0, 0, 0]).tobytes())
    assert_error(tmp_path, f"{images}: image 3.pose: found a quaternion of length 3; wanted")
    edit(images, 8 + 4, np.full(4, 1e300).tobytes())
    assert_error(tmp_path, f"{images}: image 3.pose: found a quaternion of length 2e+300; wanted")
    edit(images, 8 + 4, np.asarray([1, 0, 0, 0, 1e300, 0, 0]).tobytes())
    assert_error(tmp_path, f"{images}: image 3.transform_matrix[0][3]: found -1e+300; wanted a")
    edit(images, 8 + 64, b"\xff")
    assert_error(tmp_path, f"{images}: image 3: the name '\\udcff0.png' is not UTF-8 text; rename")
    edit(images, 8 + 64, b"0")
    edit(images, 8 + 60, b"\x09")
    assert_error(tmp_path, f"{images}: image 3: 00.png was taken by camera 9, which is not in cam")
    edit(images, 8 + 60, b"\x07")
    points = cameras.with_name("points3D.bin")
    edit(points, 8 + 43, b"\xff" * 8)
    assert_error(tmp_path, f"{points}: record 1: the file ends too early")
    edit(cameras, 8 + 4, b"\x63")
    assert_error(tmp_path, f"{cameras}: camera 7: unknown camera model number 99; copy the model")


def edit_line(file, begins, line):
    lines = file.read_text().splitlines()
    index = next(i for i, found in enumerate(lines) if found.startswith(begins))
    lines[index] = line
    file.write_text("\n".join(lines) + "\n")
    return f"{file}: line {index + 1}: "


@pytest.mark.parametrize(
    "kind, begins, line, found",
    [
        ("cameras", "7", "7 PINHOLE 12", "found '7 PINHOLE 12'; wanted CAMERA_ID MODEL WIDTH"),
        ("cameras", "7", "7 WIDE 12 8 10", "camera 7 has the unknown model 'WIDE'; wanted one of"),
        ("cameras", "7", "7 FOV 12 8 10 10", "found '10 10'; wanted the 5 numbers of FOV"),
        ("cameras", "7", "7 FOV 12 8 1 2 3 4 x", "found '1 2 3 4 x'; wanted the 5 numbers of FOV"),
        ("images", "5", "5 1 0 0 0 0 0 0", "found '5 1 0 0 0 0 0 0'; wanted IMAGE_ID QW QX"),
        ("images", "5", "5 1 0 0 0 0 0 0 8 a b.png", "a b.png was taken by camera 8, which is not"),
        ("images", "1 1", "1 1", "found 2 values; wanted X Y POINT3D_ID of each point"),
        ("points3D", "2", "2 0 0 0 1.5 2 3 0", "found '2 0 0 0 1.5 2 3 0'; wanted POINT3D_ID X Y"),
    ],
)
def test_lines_that_make_no_sense(tmp_path, text_files, kind, begins, line, found):
    place = edit_line(text_files / f"{kind}.txt", begins, line)
    assert_error(tmp_path, place + found)


def test_what_pycolmap_alone_notices(tmp_path, text_files):
    edit_line(text_files / "rigs.txt", "7", "8 x")
    assert_error(tmp_path, f"{text_files}: pycolmap cannot read the model (", "; write it again")


# A real model


def test_keypoints_of_a_real_capture(shared):
    folder = shared / "data" / "sceaux_castle_colmap"
    capture = open_capture(folder)
    model = pycolmap.Reconstruction(folder / "sparse" / "0")
    held_out = {model.find_image_with_name(view.name).image_id for view in capture.test}
    views = [
        len({element.image_id for element in point.track.elements} - held_out)
        for point in model.points3D.values()
    ]
    assert len(views) == 3858 and min(views) == 0
    assert (len(capture.train), len(capture.test)) == (9, 2)
    assert len(capture.points.positions) == sum(count >= 2 for count in views)
    known = {number: index for index, number in enumerate(model.points3D)}
    points = np.asarray([point.xyz for point in model.points3D.values()])
    colors = np.asarray([point.color for point in model.points3D.values()])
    for view in capture.frames:
        assert view.image.shape == (601, 800, 3)
        image = model.find_image_with_name(view.name)
        keypoints = [point for point in image.points2D if point.has_point3D()]
        seen = [known[point.point3D_id] for point in keypoints]
        pixels = project(view.camera, points)[0][seen]
        error = pixels - np.asarray([point.xy for point in keypoints])
        # The model states a mean of 0.31 pixels; half a pixel of offset would show in the mean.
        assert np.linalg.norm(error, axis=1).mean() < 0.5
        assert np.abs(error.mean(axis=0)).max() < 0.1
        # The points have the colours of the pixels that they fall on.
        column, row = np.floor(pixels).astype(int).T
        found = view.image[row.clip(0, 600), column.clip(0, 799)]
        assert np.corrcoef(found.ravel(), colors[seen].ravel())[0, 1] > 0.8


@pytest.mark.usefixtures("scene")
def test_without_pycolmap_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(CaptureError, match="install pycolmap"):
        open_capture(tmp_path)
