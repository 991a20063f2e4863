"""Converted KITTI drives, and the parts that readers of logs share."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from drive_files import (
    ELEVATIONS,
    HEIGHTS,
    assert_error,
    assert_same_points,
    edit_json,
    in_world,
    points_inside,
    pose_at,
    returns_of,
    turn_of_points,
    world_from_body,
    write_picture,
    write_sequence,
)
from jaxrec.data import CaptureError, open_drive
from jaxrec.data._clock import nanoseconds_of
from jaxrec.data._rig import Poses
from jaxrec.data._shots import columns_of
from jaxrec.data._velodyne import find_rows, ring_numbers
from jaxrec.sensors import PinholeCamera
from jaxrec.trajectory import Trajectory

# Parts


@pytest.mark.parametrize("count", [0, 1, 30, 63, 64])
def test_columns_are_near_azimuths_and_taken_once(count):
    azimuths = np.sort(np.random.default_rng(count).uniform(-np.pi, np.pi, count))
    columns = columns_of(azimuths, 64)
    assert np.all(np.diff(columns) > 0)
    assert count == 0 or (columns[0] >= 0 and columns[-1] < 64)
    if count == 30:
        wanted = np.floor((azimuths + np.pi) / (2 * np.pi) * 64)
        assert np.median(np.abs(columns - wanted)) <= 1


def test_points_that_have_a_column_each_stay_there():
    azimuths = (np.arange(48) + 0.5) / 48 * 2 * np.pi - np.pi
    np.testing.assert_array_equal(columns_of(azimuths, 48), np.arange(48))
    np.testing.assert_array_equal(columns_of(azimuths[5::9], 48), np.arange(48)[5::9])


def test_rings_from_the_order_of_points():
    points, rings = turn_of_points()
    np.testing.assert_array_equal(ring_numbers(points), rings)
    # A sweep that has lost a ring is put where it belongs.
    kept = rings != 3
    found, rows, messages = find_rows([points, points, points[kept]])
    np.testing.assert_array_equal(found[0], rings)
    np.testing.assert_array_equal(found[2], rings[kept])
    np.testing.assert_allclose(rows.elevations, ELEVATIONS, atol=1e-6)
    np.testing.assert_allclose(rows.origins[:, 2], HEIGHTS, atol=1e-5)
    assert "1 of 3 sweeps have [7] rings instead of 8" in messages[1]


def test_points_in_no_order_are_kept():
    points, _ = turn_of_points(columns=200)
    mixed = np.random.default_rng(0).permutation(points)
    found, rows, messages = find_rows([mixed])
    assert "not stored ring by ring" in messages[0]
    assert np.bincount(found[0], minlength=64).min() > 0 and len(rows.elevations) == 64


def test_stamps():
    assert nanoseconds_of("2011-09-26 13:02:25.964389445") == 1317042145964389445
    assert nanoseconds_of("1970-01-01T00:00:01Z") == 1_000_000_000
    # Beyond what 64 bits hold.
    assert nanoseconds_of("2464-11-12T01:04:10.027900Z") == 15616458250027900000
    assert nanoseconds_of("yesterday") is None


def test_poses_are_interpolated_as_by_trajectories(x64):
    times = np.array([0, 200, 201, 600], np.int64) * 1_000_000
    poses = Poses(times, world_from_body(times / 1e9))
    asked = np.array([-50, 0, 30, 200, 400, 650], np.int64) * 1_000_000
    trajectory = Trajectory(poses.world_from_body, times, edge="extrapolate")
    np.testing.assert_allclose(
        poses.at(asked), pose_at(trajectory, jnp.asarray(asked / 1e9)), atol=1e-9
    )


# A converted drive


def firing(points, middle):
    return middle - 0.1 * np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi)


def test_sequence(tmp_path):
    clouds = write_sequence(tmp_path)
    drive = open_drive(tmp_path)
    assert drive.format == "kitti-sequence" and drive.path == tmp_path / "sequence.json"
    assert len(drive.exposures) == len(drive.sweeps) == 3 and len(drive.tracks) == 1
    for frame, (sweep, points) in enumerate(zip(drive.sweeps, clouds, strict=True)):
        assert sweep.time == pytest.approx(frame / 5)
        # Where each point was when it was measured, while the lidar drove and turned.
        truth = in_world(world_from_body(firing(points, frame / 5)), points)
        found, _ = returns_of(sweep)
        assert_same_points(found, truth, atol=3e-4)
        # What is not a point is masked, yet has a ray.
        assert np.all(sweep.mask == sweep.returned) and not np.all(sweep.mask)
        rays = sweep.lidar.rays()
        assert np.all(np.isfinite(rays.directions))
    said = "\n".join(drive.messages)
    for part in ("estimated from all sweeps", "8 rows", "shots without a return are not stored"):
        assert part in said


def test_the_camera_of_a_sequence(tmp_path):
    write_sequence(tmp_path)
    drive = open_drive(tmp_path / "sequence.json")
    exposure = drive.exposures[1]
    camera = exposure.camera
    assert isinstance(camera, PinholeCamera) and exposure.sensor == "image_02"
    # The file counts from the middle of the first pixel.
    np.testing.assert_allclose(camera.principal, [8, 6])
    np.testing.assert_allclose(camera.focal, [20, 21])
    expected = world_from_body(0.2) @ drive.mounts["image_02"]
    np.testing.assert_allclose(camera.world_from_camera, expected, atol=1e-6)
    # A point ahead of the car is seen in front, by lidar and camera alike.
    ahead = in_world(world_from_body(0.2), np.array([10.0, 0, 0]))
    pixel, depth = camera.project(jnp.asarray(ahead, jnp.float32))
    np.testing.assert_allclose(depth, 10 - 0.3, atol=1e-4)
    np.testing.assert_allclose(pixel, [8 + 20 * 0.1 / depth, 6 - 21 * 0.2 / depth], atol=1e-3)


def test_images_are_read_when_asked_for(tmp_path):
    write_sequence(tmp_path)
    exposure = open_drive(tmp_path).exposures[0]
    pixels = write_picture(tmp_path / "image_02" / "0.png", 16, 12)
    np.testing.assert_array_equal(exposure.image, pixels.astype(np.float32) / 255)
    (tmp_path / "image_02" / "0.png").unlink()
    with pytest.raises(CaptureError, match="0.png"):
        _ = exposure.image
    changed = dataclasses.replace(exposure, image=np.zeros((12, 16, 3), np.float32))
    assert not changed.image.any() and changed.name == exposure.name
    with pytest.raises(AttributeError):
        _ = exposure.depth


def test_the_box_of_a_sequence(tmp_path):
    write_sequence(tmp_path)
    track = open_drive(tmp_path).tracks[0]
    assert (track.id, track.label) == ("0", "Car")
    np.testing.assert_allclose(track.size, [4, 2, 1.5])
    pose = np.asarray(pose_at(track.path, jnp.float32(0.3)))
    np.testing.assert_allclose(pose[:3, 3], [11.5, 2, 0.5], atol=1e-5)
    np.testing.assert_allclose(np.arctan2(pose[1, 0], pose[0, 0]), 0.15, atol=1e-5)
    assert np.all(np.isnan(pose_at(track.path, jnp.float32(1.0))))


def test_the_kitti_folder(shared):
    folder = shared / "data" / "kitti_sfnd_drive"
    document = json.loads((folder / "sequence.json").read_text())
    drive = open_drive(folder)
    assert (len(drive.exposures), len(drive.sweeps), len(drive.tracks)) == (12, 12, 1)
    assert all(sweep.ranges.shape[0] == 64 for sweep in drive.sweeps)
    counts = [int(sweep.returned.sum()) for sweep in drive.sweeps]
    assert counts == [frame["n_points"] for frame in document["frames"]]
    assert drive.exposures[3].image.shape == (375, 1242, 3)
    # The car ahead is where its box is: all that was counted of it, and some of the road.
    states = document["tracks_derived"][0]["states"]
    for state, sweep in zip(states[::5], drive.sweeps[::5], strict=True):
        points, _ = returns_of(sweep)
        inside = points_inside(drive.tracks[0], sweep.time, points)
        assert 0.9 * state["n_points"] < inside < 1.5 * state["n_points"]


# Bad logs


def test_no_drive(tmp_path):
    assert_error(tmp_path / "absent", "no such file or folder; check the path")
    assert_error(tmp_path, "found neither city_SE3_egovehicle.feather nor", "give the folder")
    write_sequence(tmp_path / "a")
    write_sequence(tmp_path / "b")
    assert_error(tmp_path, "found several drives: a, b; give one of them")


@pytest.mark.parametrize(
    "change, fragments",
    [
        (lambda d: d.update(frames=[]), ["frames: found none; wanted at least one frame"]),
        (lambda d: d.pop("K"), ["K: found no three rows; wanted K without skew"]),
        (lambda d: d["K"][0].__setitem__(1, 3.0), ["K: found [[20.0, 3.0", "without skew"]),
        (lambda d: d.update(width=17), ["0.png: the image has 16 x 12 pixels", "wanted the cam"]),
        (lambda d: d.pop("cam_from_velo"), ["cam_from_velo: found nothing; wanted a camera-from"]),
        (
            lambda d: d["frames"][1].update(image="x.png"),
            ["frames[1].image: no such file: x.png; copy it into"],
        ),
        (
            lambda d: d["frames"][2].update(timestamp_s=0.0),
            ["frames: 1 have the time of another; wanted one each"],
        ),
        (
            lambda d: d["frames"][0]["world_from_velo"][0].__setitem__(0, 2.0),
            ["frames[0].world_from_velo: not rigid"],
        ),
        (
            lambda d: d["tracks_derived"][0]["states"][1].update(frame=9),
            ["tracks_derived[0].states[1].frame: found 9", "wanted the frame of an image"],
        ),
    ],
)
def test_bad_sequences(tmp_path, change, fragments):
    write_sequence(tmp_path)
    edit_json(tmp_path / "sequence.json", change)
    assert_error(tmp_path, *fragments)


def test_bad_points(tmp_path):
    write_sequence(tmp_path)
    file = tmp_path / "velodyne" / "1.npz"
    np.savez(file, xyz_q=np.zeros((3, 4), np.int16), scale=1.0, intensity=np.zeros(5))
    assert_error(tmp_path, f"{file}: arrays of the shapes (3, 4), () and (5,); wanted (3, n)")
    np.savez(file, xyz_q=np.zeros((3, 0), np.int16), scale=1.0)
    assert_error(tmp_path, f"{file}: no array 'intensity' among xyz_q, scale; wanted")
    file.write_bytes(b"no archive")
    assert_error(tmp_path, f"{file}: cannot be read", "copy it again")


def test_points_at_the_lidar_are_told(tmp_path):
    write_sequence(tmp_path)
    file = tmp_path / "velodyne" / "1.npz"
    with np.load(file) as stored:
        arrays = dict(stored)
    arrays["xyz_q"][:, 5] = 0
    np.savez(file, **arrays)
    said = "\n".join(open_drive(tmp_path).messages)
    assert "1 of" in said and "points of velodyne are at its origin or not finite" in said
