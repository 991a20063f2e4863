"""Logs of drives: small ones written here, whose truth is known, and the real folders."""

import dataclasses
import importlib.util
import json

import jax.numpy as jnp
import numpy as np
import pytest

from drive_files import (
    ELEVATIONS,
    HEIGHTS,
    assert_same_points,
    edit_json,
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

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None,
    reason="pyarrow is not installed: pip install '.[argoverse]'",
)


def firing(points, middle):
    return middle - 0.1 * np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi)


def in_world(pose, points):
    return np.einsum("...ij,...j->...i", pose[..., :3, :3], points) + pose[..., :3, 3]


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


def test_points_in_no_order_are_kept(tmp_path):
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


# A converted KITTI drive


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


# A converted scene of the DGP


def write_scene(folder):
    random = np.random.default_rng(0)
    mount = np.eye(4)
    mount[:3] = [[0, 0, 1, 1.5], [-1, 0, 0, 0.2], [0, -1, 0, 1.6]]
    frames, clouds = [], []
    for frame in range(3):
        points = random.uniform([-60, -60, 0], [60, 60, 5], (300, 3)).astype(np.float32)
        clouds.append(points)
        (folder / "lidar").mkdir(parents=True, exist_ok=True)
        np.savez(
            folder / "lidar" / f"{frame}.npz",
            xyz=points,
            intensity=np.full(300, 0.5, np.float32),
        )
        write_picture(folder / "CAMERA_01" / f"{frame}.png", 16, 12)
        far = np.eye(4)
        far[:3, 3] = [5e6, -2e6, 100]
        box = np.eye(4)
        box[:3, 3] = [20, 1, 1]
        frames.append(
            {
                "timestamp": f"2464-11-12T01:04:1{frame}.027900Z",
                "lidar": f"lidar/{frame}.npz",
                "world_from_lidar": (far @ world_from_body(frame)).tolist(),
                "cameras": {
                    "CAMERA_01": {
                        "image": f"CAMERA_01/{frame}.png",
                        "timestamp": f"2464-11-12T01:04:1{frame}.000900Z",
                        "K": [[20, 0, 7.5], [0, 21, 5.5], [0, 0, 1]],
                        "world_from_camera": (
                            far @ world_from_body(frame - 0.027) @ mount
                        ).tolist(),
                        "vehicle_from_camera": mount.tolist(),
                    }
                },
                "boxes": [
                    {
                        "instance_id": 7,
                        "label": "Truck",
                        "size_lwh": [6, 2.5, 3],
                        "lidar_from_box": box.tolist(),
                    }
                ],
            }
        )
    document = {"width": 16, "height": 12, "frames": frames}
    (folder / "scene.json").write_text(json.dumps(document))
    return clouds


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


# A log of Argoverse 2

UP = np.array([1.35, 0, 1.64, 1, 0, 0, 0])
DOWN = np.array([1.34, 0.01, 1.5, 0, 1, 0, 0])  # turned over about x
EPOCH = 315966265259836000


def write_table(file, **columns):
    import pyarrow as pa
    from pyarrow import feather

    file.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(pa.table(columns), file)


def pose_columns(poses):
    from scipy.spatial.transform import Rotation

    wxyz = np.roll(Rotation.from_matrix(poses[:, :3, :3]).as_quat(), 1, axis=-1)
    values = np.concatenate([wxyz, poses[:, :3, 3]], axis=-1)
    return dict(zip(("qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m"), values.T, strict=True))


def write_argoverse(folder):
    """Returns the points in the world, and the origins of their rays."""
    # Poses 1 ns apart would collide in microseconds.
    times = np.sort(np.append(np.arange(-200, 201, 10) * 1_000_000, 1))
    write_table(
        folder / "city_SE3_egovehicle.feather",
        timestamp_ns=EPOCH + times,
        **pose_columns(world_from_body(times / 1e9)),
    )
    names = ("qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m")
    mounts = np.stack([UP, DOWN, [1.6, 0, 1.4, 0.5, -0.5, 0.5, -0.5]])
    mounts = np.concatenate([mounts[:, 3:], mounts[:, :3]], axis=-1)
    write_table(
        folder / "calibration" / "egovehicle_SE3_sensor.feather",
        sensor_name=["up_lidar", "down_lidar", "ring_front_center"],
        **dict(zip(names, mounts.T, strict=True)),
    )
    write_table(
        folder / "calibration" / "intrinsics.feather",
        sensor_name=["ring_front_center"],
        **{name: [20.0] for name in ("fx_px", "fy_px")},
        **{name: [-0.2] for name in ("k1", "k2", "k3")},
        cx_px=[8.0],
        cy_px=[6.0],
        height_px=[12],
        width_px=[16],
    )
    write_picture(folder / "sensors/cameras/ring_front_center" / f"{EPOCH + 10**8}.jpg", 16, 12)
    random = np.random.default_rng(0)
    lasers = np.repeat(np.arange(64), 20)
    offsets = 2_000_000 + 75_000 * random.permutation(len(lasers))
    elevation = np.deg2rad(np.linspace(-25, 15, 32))[lasers % 32]
    azimuth = random.uniform(-np.pi, np.pi, len(lasers))
    level = np.cos(elevation)
    rays = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)], -1)
    mounts = np.stack([np.eye(4), np.diag([1.0, -1, -1, 1])])
    mounts[:, :3, 3] = UP[:3], DOWN[:3]
    poses = world_from_body(offsets / 1e9) @ mounts[lasers // 32]
    world = in_world(poses, rays * random.uniform(3, 30, (len(lasers), 1)))
    # As stored: in the vehicle's frame at the time of the sweep, in 16 bits.
    stored = in_world(np.linalg.inv(world_from_body(0.0)), world).astype(np.float16)
    write_table(
        folder / "sensors" / "lidar" / f"{EPOCH}.feather",
        **dict(zip("xyz", stored.T, strict=True)),
        intensity=np.full(len(lasers), 51, np.uint8),
        laser_number=lasers.astype(np.uint8),
        offset_ns=offsets.astype(np.int32),
    )
    boxes = np.array([0, 100_000_000])
    local = np.tile(np.eye(4), (2, 1, 1))
    local[:, :3, 3] = [[10, 2, 1], [9, 2, 1]]
    write_table(
        folder / "annotations.feather",
        timestamp_ns=EPOCH + boxes,
        track_uuid=["a", "a"],
        category=["BUS", "BUS"],
        length_m=[9.0, 9],
        width_m=[2.0, 2],
        height_m=[3.0, 3],
        **pose_columns(local),
    )
    return in_world(world_from_body(0.0), stored.astype(np.float64)), poses, lasers


@needs_pyarrow
def test_argoverse(tmp_path):
    points, poses, lasers = write_argoverse(tmp_path / "log")
    drive = open_drive(tmp_path)
    assert drive.format == "argoverse2" and drive.epoch == EPOCH - 200_000_000
    assert sorted(sweep.sensor for sweep in drive.sweeps) == ["down_lidar", "up_lidar"]
    for sweep in drive.sweeps:
        of_lidar = lasers // 32 == (sweep.sensor == "down_lidar")
        found, rows = returns_of(sweep)
        assert_same_points(found, points[of_lidar], atol=2e-3)
        assert sweep.ranges.shape[0] == 32
        np.testing.assert_array_equal(np.bincount(rows), 20)
        # Each ray starts where its lidar was at that moment, 0.8 m on at the end.
        starts = np.asarray(sweep.lidar.rays().origins)[sweep.returned]
        assert_same_points(starts, poses[of_lidar, :3, 3], atol=1e-4)
        np.testing.assert_allclose(sweep.intensities[sweep.returned], 0.2)
    exposure = drive.exposures[0]
    assert exposure.camera.distortion is None and exposure.time == pytest.approx(0.3)
    seen, _ = exposure.camera.project(
        jnp.asarray(in_world(world_from_body(0.1), np.array([20.0, 0, 1.4])), jnp.float32)
    )
    np.testing.assert_allclose(seen, [8, 6], atol=1e-3)
    box = np.asarray(pose_at(drive.tracks[0].path, jnp.float32(0.3)))
    truth = in_world(world_from_body(0.1), np.array([9.0, 2, 1]))
    np.testing.assert_allclose(box[:3, 3], truth, atol=1e-4)


# Real folders


def points_inside(track, time, points):
    # Boxes are given at this time: nothing is left to interpolate.
    at = int(np.argmin(np.abs(np.asarray(track.path.times) - time)))
    assert abs(track.path.times[at] - time) < 0.06
    pose = np.asarray(track.path.world_from_body[at], np.float64)
    local = (points - pose[:3, 3]) @ pose[:3, :3]
    return int(np.sum(np.all(np.abs(local) <= track.size / 2, axis=-1)))


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


@needs_pyarrow
@pytest.mark.slow
def test_the_argoverse_folder(shared):
    from pyarrow import feather

    drive = open_drive(shared / "data" / "av2_log_7fab2350")
    assert len(drive.sweeps) == 4 and len(drive.tracks) == 114 and not drive.exposures
    log = drive.path
    annotations = feather.read_table(log / "annotations.feather").to_pylist()
    tracks = {track.id: track for track in drive.tracks}
    for stamp in (315966265259836000, 315966265360032000):
        sweeps = [sweep for sweep in drive.sweeps if str(stamp) in sweep.name]
        points = np.concatenate([returns_of(sweep)[0] for sweep in sweeps])
        stored = feather.read_table(log / "sensors" / "lidar" / f"{stamp}.feather")
        assert len(points) == stored.num_rows
        boxes = [box for box in annotations if box["timestamp_ns"] == stamp]
        assert len(boxes) == 81
        time = (stamp - drive.epoch) / 1e9
        for box in boxes:
            expected = box["num_interior_pts"]
            inside = points_inside(tracks[box["track_uuid"]], time, points)
            assert abs(inside - expected) <= 3 + 0.02 * expected
    # The rays of one laser have one elevation once the drive within the sweep is undone.
    assert "residual 0.00" in "\n".join(drive.messages)


# Bad logs


def assert_error(path, *fragments):
    with pytest.raises(CaptureError) as caught:
        open_drive(path)
    text = str(caught.value)
    assert "\n" not in text
    for fragment in fragments:
        assert fragment in text


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


def test_bad_scenes(tmp_path):
    write_scene(tmp_path)
    edit_json(tmp_path / "scene.json", lambda d: d["frames"][1].update(timestamp="noon"))
    assert_error(tmp_path, 'frames[1].timestamp: found "noon"; wanted one such as 2019')
    write_scene(tmp_path)
    edit_json(tmp_path / "scene.json", lambda d: d["frames"][1].pop("cameras"))
    assert_error(tmp_path, "frames[1].cameras: found nothing; wanted an object")


@needs_pyarrow
def test_bad_argoverse(tmp_path):
    write_argoverse(tmp_path)
    calibration = tmp_path / "calibration" / "egovehicle_SE3_sensor.feather"
    write_table(calibration, **{"sensor_name": ["up_lidar"]}, **pose_columns(np.eye(4)[None]))
    assert_error(tmp_path, f"{calibration}: down_lidar: no such sensor; wanted the pose of each")
    write_table(calibration, sensor_name=["up_lidar"])
    assert_error(tmp_path, f"{calibration}: qw: no such column among sensor_name")
    calibration.write_bytes(b"no table")
    assert_error(tmp_path, f"{calibration}: cannot be read")
    calibration.unlink()
    assert_error(tmp_path, f"{calibration}: no such file; copy the whole log")
