"""Scenes of the DGP: as they are published, converted ones, and a real one."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from dgp_files import write_dgp, write_scene
from drive_files import (
    assert_error,
    assert_same_points,
    edit_json,
    in_world,
    points_inside,
    pose_at,
    returns_of,
    world_from_body,
)
from jaxrec.data import open_drive
from jaxrec.data._clock import nanoseconds_of
from jaxrec.sensors import FisheyeLens, LensCamera, PinholeCamera

# As published


@pytest.mark.parametrize("own_frame", [False, True])
def test_dgp(tmp_path, own_frame):
    lidar = np.eye(4)
    if own_frame:
        lidar[:3, 3] = [0.9, 0, 1.9]
    clouds = write_dgp(tmp_path, lidar, structured=own_frame)
    drive = open_drive(tmp_path)
    assert drive.format == "dgp" and drive.path == tmp_path / "scene_c0ffee.json"
    assert drive.epoch == nanoseconds_of("2464-11-12T01:04:10.5Z")
    for frame, (sweep, points) in enumerate(zip(drive.sweeps, clouds, strict=True)):
        pose = world_from_body(float(frame)) @ lidar
        found, _ = returns_of(sweep)
        assert_same_points(found, in_world(pose, points), atol=1e-4)
        # From the lidar where it is known, else from the middle of the cameras.
        start = [0, 0, 0] if own_frame else [1.5, 0.2, 1.6]
        origin = in_world(pose, np.array(start, np.float64))
        np.testing.assert_allclose(sweep.lidar.rays().origins[3, 5], origin, atol=1e-4)
    exposure = drive.exposures[1]
    assert isinstance(exposure.camera, PinholeCamera) and exposure.camera.distortion is None
    np.testing.assert_allclose(exposure.camera.principal, [8, 6])
    place = in_world(world_from_body(1.0), np.array([1.5, 0.2, 1.6]))
    np.testing.assert_allclose(exposure.camera.world_from_camera[:3, 3], place, atol=1e-4)
    (track,) = drive.tracks
    assert (track.id, track.label) == ("77", "Car")
    box = in_world(world_from_body(1.0) @ lidar, np.array([12.0, 1, 1]))
    np.testing.assert_allclose(pose_at(track.path, jnp.float32(1))[:3, 3], box, atol=1e-4)
    said = "\n".join(drive.messages)
    assert "not read: RADAR" in said
    assert ("in the vehicle's frame" in said) == (not own_frame)


def test_the_lenses_of_dgp(tmp_path):
    write_dgp(tmp_path / "a", k1=0.1, p1=0.01, k3=0.02)
    camera = open_drive(tmp_path / "a").exposures[0].camera
    assert isinstance(camera, PinholeCamera)
    np.testing.assert_allclose(camera.distortion, [0.1, 0, 0.01, 0, 0.02])
    write_dgp(tmp_path / "b", fisheye=1, k1=0.1, k4=0.03)
    camera = open_drive(tmp_path / "b").exposures[0].camera
    assert isinstance(camera, LensCamera) and isinstance(camera.lens, FisheyeLens)
    np.testing.assert_allclose(camera.lens.coefficients, [0.1, 0, 0, 0.03])
    write_dgp(tmp_path / "c", k4=0.03)
    assert isinstance(open_drive(tmp_path / "c").exposures[0].camera, LensCamera)


@pytest.mark.parametrize(
    "file, change, fragments",
    [
        (
            "scene_c0ffee.json",
            lambda d: d.update(data=[]),
            ["data: found none; wanted images or point clouds"],
        ),
        (
            "scene_c0ffee.json",
            lambda d: d["samples"].pop(),
            ["data[3].key: is in no sample; wanted one that has its calibration"],
        ),
        (
            "scene_c0ffee.json",
            lambda d: d["data"][0]["datum"]["point_cloud"].update(point_format=["X", "Y"]),
            ["data: an array of shape [200, 4] for X, Y; wanted a column"],
        ),
        (
            "scene_c0ffee.json",
            lambda d: d["data"][1]["datum"]["image"]["pose"].update(rotation={}),
            ["pose.rotation.qw: the quaternion is 0; wanted a rotation"],
        ),
        (
            "calibration/c0.json",
            lambda d: d.update(names=["LIDAR", "CAMERA_02"]),
            ["names: 'CAMERA_01' is not in it; wanted every sensor"],
        ),
        (
            "calibration/c0.json",
            lambda d: d["intrinsics"][1].update(skew=1.0),
            ["intrinsics[1].skew: found 1.0; wanted 0"],
        ),
        (
            "bounding_box_3d/LIDAR/1.json",
            lambda d: d["annotations"][0]["box"].pop("length"),
            ["1.json: annotations[0].box.length: found nothing; wanted a size in metres"],
        ),
    ],
)
def test_bad_dgp(tmp_path, file, change, fragments):
    write_dgp(tmp_path)
    edit_json(tmp_path / file, change)
    assert_error(tmp_path, *fragments)


def test_several_scenes(tmp_path):
    write_dgp(tmp_path)
    (tmp_path / "scene_dataset_v1.json").write_text("{}")
    assert len(open_drive(tmp_path).sweeps) == 2
    assert len(open_drive(tmp_path / "scene_c0ffee.json").sweeps) == 2
    (tmp_path / "scene_other.json").write_text("{}")
    assert_error(tmp_path, "found several scenes: scene_c0ffee.json, scene_other.json; give one")


# Converted


def test_scene(tmp_path):
    clouds = write_scene(tmp_path)
    drive = open_drive(tmp_path)
    # Nanoseconds of this year do not fit into 64 bits.
    assert drive.epoch == nanoseconds_of("2464-11-12T01:04:10.027900Z")
    assert drive.origin[0] > 4.9e6 and drive.origin[1] < -1.9e6
    offset = np.array([5e6, -2e6, 100]) - drive.origin
    for frame, (sweep, points) in enumerate(zip(drive.sweeps, clouds, strict=True)):
        truth = in_world(world_from_body(frame), points.astype(np.float64)) + offset
        found, _ = returns_of(sweep)
        assert_same_points(found, truth, atol=1e-3)
        np.testing.assert_allclose(sweep.intensities[sweep.returned], 0.5)
        # Rays start in the middle of the cameras.
        start = in_world(world_from_body(frame), np.array([1.5, 0.2, 1.6])) + offset
        np.testing.assert_allclose(sweep.lidar.rays().origins[0, 0], start, atol=1e-3)
    first = drive.exposures[0]
    assert first.time == pytest.approx(-0.027)
    np.testing.assert_allclose(first.camera.principal, [8, 6])
    place = in_world(world_from_body(-0.027), np.array([1.5, 0.2, 1.6])) + offset
    np.testing.assert_allclose(first.camera.world_from_camera[:3, 3], place, atol=1e-3)
    box = np.asarray(pose_at(drive.tracks[0].path, jnp.float32(1)))
    truth = in_world(world_from_body(1), np.array([20.0, 1, 1])) + offset
    np.testing.assert_allclose(box[:3, 3], truth, atol=1e-3)
    said = "\n".join(drive.messages)
    for part in ("in the vehicle's frame", "64 rows are made by elevation", "is subtracted"):
        assert part in said


def test_the_dgp_folder(shared):
    folder = shared / "data" / "tri_dgp_scene02"
    document = json.loads((folder / "scene.json").read_text())
    drive = open_drive(folder)
    assert (len(drive.exposures), len(drive.sweeps)) == (18, 3)
    tracks = {track.id: track for track in drive.tracks}
    for frame, sweep in zip(document["frames"], drive.sweeps, strict=True):
        points, _ = returns_of(sweep)
        for box in frame["boxes"]:
            inside = points_inside(tracks[str(box["instance_id"])], sweep.time, points)
            assert abs(inside - box["points_inside"]) <= 2 + 0.03 * box["points_inside"]


def test_bad_scenes(tmp_path):
    write_scene(tmp_path)
    edit_json(tmp_path / "scene.json", lambda d: d["frames"][1].update(timestamp="noon"))
    assert_error(tmp_path, 'frames[1].timestamp: found "noon"; wanted one such as 2019')
    write_scene(tmp_path)
    edit_json(tmp_path / "scene.json", lambda d: d["frames"][1].pop("cameras"))
    assert_error(tmp_path, "frames[1].cameras: found nothing; wanted an object")
