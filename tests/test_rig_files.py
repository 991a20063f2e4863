"""Sensors and paths for rendering, as files and as those of a drive."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.data import CaptureError
from jaxrec.data.rig_files import read_path, read_sensors, sensor_of
from jaxrec.trajectory import Still
from small_street import small_drive

MOUNT = [[0, 0, 1, 1.5], [-1, 0, 0, 0], [0, -1, 0, 1.6], [0, 0, 0, 1]]
CAMERA = {"kind": "camera", "width": 12, "height": 8, "fl_x": 10, "body_from_sensor": MOUNT}
LIDAR = {
    **{"kind": "lidar", "elevations_degrees": [10, 0, -10], "columns": 8, "seconds": 0.1},
    "body_from_sensor": np.eye(4).tolist(),
}


@pytest.fixture(scope="module")
def drive():
    return small_drive(frames=2, cameras=("left", "wide"), width=16, height=12, columns=16)[1]


def written(tmp_path, document):
    file = tmp_path / "sensor.json"
    file.write_text(json.dumps(document))
    return file


def test_sensors_of_a_drive_stand_where_they_stood(drive):
    for one in (*drive.exposures, *drive.sweeps):
        sensor = sensor_of(drive, one.sensor)
        assert sensor is not None
        placed = sensor.place(drive.ego, one.time)
        true = (one.camera if sensor.kind == "camera" else one.lidar).rays()
        rays = placed.rays()
        np.testing.assert_allclose(rays.origins, true.origins, atol=2e-3)
        np.testing.assert_allclose(rays.directions, true.directions, atol=1e-4)
    assert sensor_of(drive, "roof") is None


@pytest.mark.parametrize(
    "lens",
    [
        {},
        {"model": "fisheye", "coefficients": [0, 0, 0, 0], "max_angle_degrees": 80},
        {"model": "ftheta", "polynomial": [0, 10], "max_angle_degrees": 80},
    ],
)
def test_a_camera_looks_along_the_rig(tmp_path, lens):
    [sensor] = read_sensors(written(tmp_path, CAMERA | lens))
    assert (sensor.name, sensor.kind, sensor.seconds) == ("sensor", "camera", 0)
    camera = sensor.place(Still(np.eye(4, dtype=np.float32)), 0.0)
    middle = camera.rays(jnp.asarray([[6.0, 4.0]]))
    np.testing.assert_allclose(middle.origins[0], [1.5, 0, 1.6], atol=1e-6)
    np.testing.assert_allclose(middle.directions[0], [1, 0, 0], atol=1e-6)
    right = camera.rays(jnp.asarray([[7.0, 4.0]])).directions[0]
    # A tenth of a focal length: to the right is -y.
    np.testing.assert_allclose(-right[1] / right[0], 0.1, rtol=0.01)


def test_a_shutter_rolls_around_its_time(tmp_path):
    change = {"seconds": 0.07, "direction": "bottom_to_top", "name": "back"}
    [sensor] = read_sensors(written(tmp_path, {"sensors": [CAMERA | change]}))
    camera = sensor.place(Still(np.eye(4, dtype=np.float32)), 2.0)
    times = camera.rays().times[:, 0]
    np.testing.assert_allclose(times, np.linspace(2.035, 1.965, 8), atol=1e-5)


def test_a_lidar_turns_clockwise_from_behind(tmp_path):
    [sensor] = read_sensors(written(tmp_path, LIDAR))
    rays = sensor.place(Still(np.eye(4, dtype=np.float32)), 1.0).rays()
    assert rays.directions.shape == (3, 8, 3)
    for column, axis in ((0, [-1, 0, 0]), (2, [0, 1, 0]), (4, [1, 0, 0])):
        np.testing.assert_allclose(rays.directions[1, column], axis, atol=1e-5)
    np.testing.assert_allclose(rays.times[0], np.linspace(0.95, 1.05, 8), atol=1e-5)


def test_a_path_is_counted_from_the_origin_of_the_drive(tmp_path):
    poses = [np.eye(4), np.eye(4)]
    poses[1][0, 3] = 101.0
    poses[0][0, 3] = 100.0
    frames = [
        {"time": t, "world_from_body": p.tolist()} for t, p in zip((1, 2), poses, strict=True)
    ]
    path = read_path(written(tmp_path, {"frames": frames}), (100.0, 0.0, 0.0))
    np.testing.assert_allclose(path.at(jnp.float32(1.5))[:3, 3], [0.5, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "radar"}, 'sensor.json: kind: found "radar"; wanted one of camera, lidar'),
        ({"width": None}, "sensor.json: width: found nothing; wanted an image size in pixels"),
        ({"fl_x": 0}, "sensor.json: fl_x: found 0; wanted a focal length in pixels, above zero"),
        ({"model": "fish"}, 'model: found "fish"; wanted one of pinhole, fisheye, ftheta'),
        ({"direction": "up"}, 'direction: found "up"; wanted one of top_to_bottom'),
        ({"seconds": -1}, "seconds: found -1; wanted a duration from 0"),
        ({"body_from_sensor": [[1]]}, "body_from_sensor: "),
        ({"model": "ftheta", "polynomial": [1, 2], "max_angle_degrees": 9}, "polynomial: found"),
        ({"name": "a/b"}, 'name: found "a/b"; wanted a name of its own, without folders'),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, message):
    with pytest.raises(CaptureError) as error:
        read_sensors(written(tmp_path, CAMERA | change))
    assert message in str(error.value)


def test_a_path_that_turns_back_in_time_is_named(tmp_path):
    frames = [{"time": time, "world_from_body": np.eye(4).tolist()} for time in (1, 0)]
    with pytest.raises(CaptureError, match=r"frames\[1\].time: found 0 after 1"):
        read_path(written(tmp_path, {"frames": frames}))
    with pytest.raises(CaptureError, match="frames: found 1; wanted at least two poses"):
        read_path(written(tmp_path, {"frames": frames[:1]}))
