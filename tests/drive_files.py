"""Writes small drives of their own for the tests of the readers, with everything known."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from jaxrec.data import CaptureError, open_drive

pose_at = jax.jit(lambda path, time: path.at(time))
# Compiled to run a few times: without optimisation it takes half the time.
cast = jax.jit(lambda sensor: sensor.rays(), compiler_options={"xla_backend_optimization_level": 0})

# A lidar whose rays leave its axis at two heights, as those of an HDL-64E do.
ELEVATIONS = np.deg2rad([3.0, 1, -1, -3, -6, -9, -12, -15])
HEIGHTS = np.array([0.2, 0.2, 0.2, 0.2, 0.12, 0.12, 0.12, 0.12])
VELOCITY = np.array([8.0, 1.0, 0.2])
YAW_RATE = 0.3


def world_from_body(seconds):
    """Where the rig is: it drives straight on while it turns, at any time."""
    angle = YAW_RATE * np.asarray(seconds)
    pose = np.zeros((*np.shape(seconds), 4, 4))
    pose[..., 0, 0] = pose[..., 1, 1] = np.cos(angle)
    pose[..., 1, 0], pose[..., 0, 1] = np.sin(angle), -np.sin(angle)
    pose[..., 2, 2] = pose[..., 3, 3] = 1
    pose[..., :3, 3] = np.asarray(seconds)[..., None] * VELOCITY
    return pose


def in_world(pose, points):
    return np.einsum("...ij,...j->...i", pose[..., :3, :3], points) + pose[..., :3, 3]


def turn_of_points(seed=0, columns=90):
    """Points of one turn, ring by ring from straight ahead, with holes; and their rings."""
    random = np.random.default_rng(seed)
    points, rings = [], []
    for ring, (elevation, height) in enumerate(zip(ELEVATIONS, HEIGHTS, strict=True)):
        azimuth = 2 * np.pi * (np.arange(columns) + 0.3) / columns
        azimuth = azimuth[random.uniform(size=columns) > 0.2]
        distance = random.uniform(4, 40, len(azimuth))
        level = np.cos(elevation) * distance
        points.append(
            np.stack(
                [
                    level * np.cos(azimuth),
                    level * np.sin(azimuth),
                    height + np.sin(elevation) * distance,
                ],
                axis=-1,
            )
        )
        rings.append(np.full(len(azimuth), ring))
    return np.concatenate(points), np.concatenate(rings)


def write_picture(file, width, height):
    """An image of noise; returns what it holds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(str(file.name).encode())
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(file)
    return pixels


def write_sequence(folder, frames=3):
    """A converted KITTI drive; returns the points of each sweep as they were measured."""
    folder.mkdir(parents=True, exist_ok=True)
    entries, clouds = [], []
    for frame in range(frames):
        points, _ = turn_of_points(frame)
        # What the file can hold: whole half centimetres.
        quantised = np.round(points / 0.005).astype(np.int16)
        clouds.append(quantised * 0.005)
        (folder / "velodyne").mkdir(exist_ok=True)
        np.savez(
            folder / "velodyne" / f"{frame}.npz",
            xyz_q=quantised.T,
            scale=np.float32(0.005),
            intensity=np.arange(len(points)).astype(np.uint8),
        )
        write_picture(folder / "image_02" / f"{frame}.png", 16, 12)
        entries.append(
            {
                "frame": frame,
                "timestamp_s": frame / 5,
                "image": f"image_02/{frame}.png",
                "lidar": f"velodyne/{frame}.npz",
                "world_from_velo": world_from_body(frame / 5).tolist(),
            }
        )
    camera = [[0, -1, 0, 0.1], [0, 0, -1, -0.2], [1, 0, 0, -0.3], [0, 0, 0, 1]]
    states = [
        {
            "frame": frame,
            "center_world": [10.0 + frame, 2, 0.5],
            "size_lwh": [4, 2, 1.5],
            "yaw_world": 0.1 * frame,
        }
        for frame in range(frames)
    ]
    document = {
        "width": 16,
        "height": 12,
        "K": [[20, 0, 7.5], [0, 21, 5.5], [0, 0, 1]],
        "cam_from_velo": camera,
        "frames": entries,
        "tracks_derived": [{"id": 0, "label": "Car", "states": states}],
    }
    (folder / "sequence.json").write_text(json.dumps(document))
    return clouds


def edit_json(file, change):
    """Changes a document in place."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def returns_of(sweep):
    """What a sweep has met, in the world, and the rows that it is in."""
    rays = cast(sweep.lidar)
    points = np.asarray(rays.origins) + sweep.ranges[..., None] * np.asarray(rays.directions)
    return points[sweep.returned], np.nonzero(sweep.returned)[0]


def assert_same_points(found, expected, atol):
    """Each point found is one of those expected, and each of those is found once."""
    from scipy.spatial import cKDTree

    assert len(found) == len(expected)
    distance, index = cKDTree(expected).query(found)
    assert distance.max() < atol
    assert len(np.unique(index)) == len(expected)


def points_inside(track, time, points):
    """How many points are in the track's box."""
    # Boxes are given at this time: nothing is left to interpolate.
    times, poses = (np.asarray(v) for v in (track.path.times, track.path.world_from_body))
    at = int(np.argmin(np.abs(times - time)))
    assert abs(times[at] - time) < 0.06
    pose = np.asarray(poses[at], np.float64)
    local = (points - pose[:3, 3]) @ pose[:3, :3]
    return int(np.sum(np.all(np.abs(local) <= track.size / 2, axis=-1)))


def assert_error(path, *fragments):
    """The drive cannot be opened, and one line says why."""
    with pytest.raises(CaptureError) as caught:
        open_drive(path)
    text = str(caught.value)
    assert "\n" not in text
    for fragment in fragments:
        assert fragment in text
