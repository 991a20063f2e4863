"""Logs of Argoverse 2: one written here, whose truth is known, and a real one."""

import jax.numpy as jnp
import numpy as np
import pytest

from drive_files import (
    assert_error,
    assert_same_points,
    in_world,
    points_inside,
    pose_at,
    returns_of,
    world_from_body,
    write_picture,
)
from jaxrec.data import open_drive

pa = pytest.importorskip("pyarrow", reason="not installed: pip install '.[argoverse]'")
feather = pytest.importorskip("pyarrow.feather")

UP = np.array([1.35, 0, 1.64, 1, 0, 0, 0])
DOWN = np.array([1.34, 0.01, 1.5, 0, 1, 0, 0])  # turned over about x
EPOCH = 315966265259836000


def write_table(file, **columns):
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


@pytest.mark.slow
def test_the_argoverse_folder(shared):
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
