"""KITTI's raw data, in the layout in which it is published."""

import datetime
import json

import jax.numpy as jnp
import numpy as np
import pytest

from drive_files import (
    assert_error,
    assert_same_points,
    in_world,
    pose_at,
    returns_of,
    turn_of_points,
    world_from_body,
    write_picture,
)
from jaxrec.data import open_drive
from jaxrec.data._clock import nanoseconds_of
from jaxrec.data._kitti_calibration import velo_from_camera

WIDTH, HEIGHT = 16, 12
LATITUDE, LONGITUDE = 49.011, 8.434
EARTH = 6378137.0
NOON = datetime.datetime(2011, 9, 26, 12)
# As in the set: velodyne from inertial unit, and camera from velodyne.
VELO_FROM_IMU = np.array([[1, 0, 0, -0.81], [0, 1, 0, 0.32], [0, 0, 1, -0.8], [0, 0, 0, 1.0]])
CAM_FROM_VELO = np.array([[0, -1, 0, -0.01], [0, 0, -1, -0.08], [1, 0, 0, -0.27], [0, 0, 0, 1.0]])
TILT = np.array([[0.9999, 0.0141, 0], [-0.0141, 0.9999, 0], [0, 0, 1.0]])
PROJECTION = np.array([[20, 0, 7.5, 1.2], [0, 20, 5.5, 0.3], [0, 0, 1, 0.002]])


def stamp(seconds):
    """A time as the set writes it, with nanoseconds."""
    whole = NOON + datetime.timedelta(seconds=int(np.floor(seconds)))
    return f"{whole:%Y-%m-%d %H:%M:%S}.{round((seconds % 1) * 1e9):09d}"


def words(*arrays):
    return " ".join(f"{value:.12e}" for array in arrays for value in np.ravel(array))


def write_calibration(folder):
    def rigid(matrix):
        text = f"calib_time: 25-May-2012 16:47:16\nR: {words(matrix[:3, :3])}\n"
        return text + f"T: {words(matrix[:3, 3])}\n"

    (folder / "calib_imu_to_velo.txt").write_text(rigid(VELO_FROM_IMU))
    (folder / "calib_velo_to_cam.txt").write_text(rigid(CAM_FROM_VELO) + "delta_f: 0 0\n")
    (folder / "calib_cam_to_cam.txt").write_text(
        f"calib_time: 09-Jan-2012 13:57:47\nR_rect_00: {words(TILT)}\n"
        f"S_rect_02: {words([WIDTH, HEIGHT])}\nP_rect_02: {words(PROJECTION)}\n"
    )


def write_kitti(folder, frames=4, gap=2):
    """A recording with its calibration beside it; returns the points of each turn as measured."""
    drive = folder / "2011_09_26_drive_0001_sync"
    times = 0.1 * np.arange(frames)
    parts = {"oxts": times + 0.01, "image_02": times + 0.003, "velodyne_points": times}
    for name, stamps in parts.items():
        (drive / name / "data").mkdir(parents=True)
        text = "\n".join(stamp(time) for time in stamps) + "\n"
        (drive / name / "timestamps.txt").write_text(text)
    for edge, by in (("start", -0.052), ("end", 0.051)):
        text = "\n".join(stamp(1 + time + by) for time in times)
        (drive / "velodyne_points" / f"timestamps_{edge}.txt").write_text(text)
    clouds = {}
    for frame in range(frames):
        name = f"{frame:010d}"
        pose = world_from_body(times[frame] + 0.01)
        east, north, up = pose[:3, 3]
        yaw = np.arctan2(pose[1, 0], pose[0, 0])
        # Metres on the ground, without the projection that the reader uses.
        latitude = LATITUDE + np.rad2deg(north / EARTH)
        longitude = LONGITUDE + np.rad2deg(east / (EARTH * np.cos(np.deg2rad(LATITUDE))))
        values = [latitude, longitude, 116.5 + up, 0, 0, yaw, *np.zeros(24)]
        (drive / "oxts" / "data" / f"{name}.txt").write_text(words(values))
        write_picture(drive / "image_02" / "data" / f"{name}.png", WIDTH, HEIGHT)
        if frame != gap:
            points, _ = turn_of_points(frame)
            clouds[frame] = points.astype(np.float32)
            bright = np.full((len(points), 1), 0.25, np.float32)
            stored = np.concatenate([clouds[frame], bright], axis=-1)
            stored.tofile(drive / "velodyne_points" / "data" / f"{name}.bin")
    write_calibration(folder)
    poses = "".join(
        f"<item><tx>{10 + k}</tx><ty>2</ty><tz>-1.5</tz><rx>0</rx><ry>0</ry><rz>0.3</rz>"
        "<state>2</state></item>"
        for k in range(3)
    )
    (drive / "tracklet_labels.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?><boost_serialization version="9"><tracklets>'
        "<count>1</count><item_version>1</item_version><item><objectType>Van</objectType>"
        "<h>2</h><w>1.8</w><l>4.5</l><first_frame>1</first_frame><poses><count>3</count>"
        f"<item_version>2</item_version>{poses}</poses><finished>1</finished></item>"
        "</tracklets></boost_serialization>"
    )
    return drive, clouds


def to_drive(drive, points):
    """From the truth's world, which begins at the first pose, to that of the reader."""
    first = np.asarray(drive.ego.world_from_body[0], np.float64)
    return in_world(first @ np.linalg.inv(world_from_body(0.01)), points)


def test_kitti(tmp_path):
    folder, clouds = write_kitti(tmp_path)
    drive = open_drive(folder)
    assert drive.format == "kitti-raw" and drive.epoch == nanoseconds_of(stamp(0.01))
    assert len(drive.exposures) == 4 and len(drive.sweeps) == 3
    assert any(drive.origin)
    imu_from_velo = np.linalg.inv(VELO_FROM_IMU)
    for frame, sweep in zip(clouds, drive.sweeps, strict=True):
        middle = 0.1 * frame
        assert sweep.time == pytest.approx(middle - 0.01, abs=1e-6)
        points = clouds[frame].astype(np.float64)
        turned = np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi)
        poses = world_from_body(middle - 0.103 * turned) @ imu_from_velo
        found, _ = returns_of(sweep)
        # Half of it is the projection of a sphere, over 4 m.
        assert_same_points(found, to_drive(drive, in_world(poses, points)), atol=2e-3)
        np.testing.assert_allclose(sweep.intensities[sweep.returned], 0.25)
    said = "\n".join(drive.messages)
    assert "1 of 4 sweeps are not stored" in said and "8 rows" in said


def test_the_cameras_of_kitti(tmp_path):
    drive = open_drive(write_kitti(tmp_path)[0])
    exposure = drive.exposures[2]
    assert exposure.image.shape == (HEIGHT, WIDTH, 3)
    assert exposure.time == pytest.approx(0.193, abs=1e-6)
    # The set's formula, on points ahead of the lidar.
    ahead = np.random.default_rng(0).uniform([5, -3, -2], [30, 3, 2], (20, 3))
    left, _, right = np.linalg.svd(TILT)
    homogeneous = np.concatenate([ahead, np.ones((20, 1))], axis=-1)
    seen = homogeneous @ CAM_FROM_VELO.T
    seen[:, :3] = seen[:, :3] @ (left @ right).T
    pixels = seen @ PROJECTION.T
    expected = pixels[:, :2] / pixels[:, 2:] + 0.5
    pose = world_from_body(0.203) @ np.linalg.inv(VELO_FROM_IMU)
    found, depth = exposure.camera.project(
        jnp.asarray(to_drive(drive, in_world(pose, ahead)), jnp.float32)
    )
    np.testing.assert_allclose(found, expected, atol=5e-3)
    np.testing.assert_allclose(depth, pixels[:, 2], atol=3e-3)


def test_the_calibration_of_the_real_set(shared):
    # Converted by other means: the same transform, from the same files.
    folder = shared / "data" / "kitti_sfnd_drive"
    document = json.loads((folder / "sequence.json").read_text())
    mount, focal, principal, size = velo_from_camera(folder / "calib", "02")
    np.testing.assert_allclose(np.linalg.inv(mount), document["cam_from_velo"], atol=1e-7)
    matrix = np.array(document["K"])
    np.testing.assert_allclose([*focal, *principal], [*matrix.diagonal()[:2], *matrix[:2, 2] + 0.5])
    assert size == (document["width"], document["height"])


def test_the_boxes_of_kitti(tmp_path):
    drive = open_drive(write_kitti(tmp_path)[0])
    (track,) = drive.tracks
    assert (track.id, track.label) == ("0", "Van")
    np.testing.assert_allclose(track.size, [4.5, 1.8, 2])
    # When the lidar looked at the box of frame 2, its middle a metre above its floor.
    time = 0.2 - 0.103 * np.arctan2(2, 11) / (2 * np.pi)
    place = np.eye(4)
    place[:3, 3] = [11, 2, -0.5]
    place[:2, :2] = [[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]]
    expected = world_from_body(time) @ np.linalg.inv(VELO_FROM_IMU) @ place
    found = np.asarray(pose_at(track.path, jnp.float32(time - 0.01)))
    np.testing.assert_allclose(found[:3, 3], to_drive(drive, expected[:3, 3]), atol=3e-3)
    np.testing.assert_allclose(found[:3, :3], expected[:3, :3], atol=1e-3)


def test_bad_kitti(tmp_path):
    folder, _ = write_kitti(tmp_path)
    cloud = folder / "velodyne_points" / "data" / "0000000001.bin"
    whole = cloud.read_bytes()
    cloud.write_bytes(whole[:-3])
    assert_error(folder, f"{cloud}: has {len(whole) - 3} bytes; wanted 16 for each point")
    cloud.write_bytes(whole)
    stamps = folder / "image_02" / "timestamps.txt"
    text = stamps.read_text()
    stamps.write_text("\n".join(text.splitlines()[:2]))
    assert_error(folder, "0000000002.png: frame 2, but there are 2 times")
    stamps.write_text("noon\n")
    assert_error(folder, f"{stamps}: line 1: found no time; wanted a time such as")
    stamps.write_text(text)
    camera = tmp_path / "calib_cam_to_cam.txt"
    kept = camera.read_text()
    camera.write_text(kept.replace("P_rect_02", "P_rect_03"))
    assert_error(folder, f"{camera}: P_rect_02: found nothing; wanted 12 numbers")
    camera.write_text(kept.replace("S_rect_02: 1.6", "S_rect_02: 1.7"))
    assert_error(folder, "the image has 16 x 12 pixels; wanted the camera's 17 x 12")
    camera.write_text(kept)
    labels = folder / "tracklet_labels.xml"
    labels.write_text(labels.read_text().replace("<l>4.5</l>", ""))
    assert_error(folder, f"{labels}: tracklets[0].l: found nothing; wanted a number")
    labels.write_text("<boost")
    assert_error(folder, f"{labels}: not valid XML")
    (tmp_path / "calib_velo_to_cam.txt").unlink()
    assert_error(folder, "calib_velo_to_cam.txt: no such file in it nor beside it; copy the cal")


def test_a_clock_that_stumbles(tmp_path):
    folder, _ = write_kitti(tmp_path)
    ends = folder / "velodyne_points" / "timestamps_end.txt"
    ends.write_text("\n".join([stamp(0.5)] * 4))
    assert "3 of 3 sweeps are taken to last 0.1 s" in "\n".join(open_drive(folder).messages)
