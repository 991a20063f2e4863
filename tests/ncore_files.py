"""Drives as NCore sequences, for the tests: a small one with everything known, and edits."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np

from drive_files import cast, pose_at
from jaxrec.data import Drive, Track
from jaxrec.sensors import (
    Exposure,
    FisheyeLens,
    FThetaBackwardLens,
    FThetaLens,
    LensCamera,
    PinholeCamera,
    RationalLens,
    RollingShutterCamera,
    SpinningLidar,
    StoredWindshieldLens,
    Sweep,
    spin,
)
from jaxrec.trajectory import Still, Trajectory

EPOCH = 1_700_000_000_123_456_000
WIDTH, HEIGHT = 24, 16
FORWARD = [0.0, 9.0, 0.2, -0.3, 0.05, -0.01]
TIMES = np.linspace(0, 1, 11)


def ego_poses():
    poses = np.zeros((len(TIMES), 4, 4))
    angle = 0.4 * TIMES
    poses[:, 0, 0] = poses[:, 1, 1] = np.cos(angle)
    poses[:, 1, 0], poses[:, 0, 1] = np.sin(angle), -np.sin(angle)
    poses[:, 2, 2] = poses[:, 3, 3] = 1
    poses[:, :3, 3] = TIMES[:, None] * [6.0, 1, 0.1] + [2000.0, -3000, 40]
    return poses


def mount_at(*place):
    """Looks ahead with OpenCV axes."""
    pose = np.eye(4)
    pose[:3] = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0]])
    pose[:3, 3] = place
    return pose


MOUNTS = {
    "front": mount_at(1.5, 0.1, 1.4),
    "wide": mount_at(1.4, -0.2, 1.5),
    "still": mount_at(0.3, 0.2, 1.6),
    "top": np.array([[0, -1, 0, 0.5], [1, 0, 0, 0], [0, 0, 1, 1.9], [0, 0, 0, 1.0]]),
}


def lenses():
    shield = StoredWindshieldLens(
        RationalLens([20, 21], [12.2, 7.9], [0.1, -0.02, 0.01, 0.05, 0, 0], [1e-3, 0], [0.0] * 4),
        *([0.001, 1.01, 0.002], [0.0, 0.003, 0.99], [-0.001, 0.99, 0.0], [0.0, -0.003, 1.01]),
    )
    return {
        "ftheta": FThetaLens([12.5, 8.1], FORWARD, 1.2, [[1.01, 0.002], [-0.001, 1.0]]),
        "backward": FThetaBackwardLens([12.5, 8.1], [0.0, 0.11, 1e-3, 0, 0, 0], 1.3),
        "fisheye": FisheyeLens([9, 9.2], [12, 8], [0.01, -0.002, 0.0, 0.0], 1.4),
        "rational": shield.lens,
        "windshield": shield,
    }


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3))
    return pixels.astype(np.float32) / np.float32(255)


def a_drive(lens=None, direction="top_to_bottom"):
    """Three cameras, a lidar with second returns and shots that meet nothing, and two boxes."""
    origin = np.array([2000.0, -3000, 40])
    local = ego_poses()
    local[:, :3, 3] -= origin
    ego = Trajectory(local, TIMES)
    size = {"width": WIDTH, "height": HEIGHT}
    lens = lenses()["ftheta"] if lens is None else lens
    exposures, sweeps = [], []
    mask = np.ones((HEIGHT, WIDTH), np.bool_)
    mask[-3:] = False
    for frame in range(3):
        time = 0.1 + 0.3 * frame
        wide = LensCamera(MOUNTS["wide"], lens, **size)
        front = PinholeCamera(MOUNTS["front"], [20, 21], [11.7, 8.2], **size)
        for name, camera, way in (("wide", wide, direction), ("front", front, "left_to_right")):
            shutter = RollingShutterCamera(camera, ego, time, time + 0.03, direction=way)
            exposures.append(
                Exposure(
                    shutter,
                    picture(frame),
                    mask if name == "wide" else None,
                    f"{name}/{frame}",
                    name,
                    time + 0.015,
                )
            )
        pose = np.asarray(pose_at(ego, jnp.float32(time))) @ MOUNTS["still"]
        still = PinholeCamera(pose, [18, 18], [12, 8], [0.1, -0.05, 1e-3, 2e-3, 0.01], **size)
        exposures.append(Exposure(still, picture(7 + frame), None, "", "still", time))
        sweeps.append(a_sweep(ego, frame, 0.05 + 0.3 * frame))
    boxes = np.tile(np.eye(4), (3, 1, 1))
    boxes[:, :3, 3] = [[10, 2, 1], [11, 2.5, 1], [12, 3, 1.1]]
    boxes[:, :2, :2] = [[0.8, -0.6], [0.6, 0.8]]
    tracks = [
        Track("7", "car", np.array([4.2, 1.8, 1.5]), Trajectory(boxes, np.array([0.1, 0.5, 0.9]))),
        Track("8", "rider", np.array([1.8, 0.6, 1.7]), Still(boxes[0])),
    ]
    exposures.sort(key=lambda exposure: exposure.time)
    return Drive(
        exposures=exposures,
        sweeps=sweeps,
        tracks=tracks,
        ego=ego,
        mounts=dict(MOUNTS),
        epoch=EPOCH,
        format="made",
        path=pathlib.Path("made"),
        origin=tuple(origin.tolist()),
    )


def a_sweep(ego, seed, start):
    random = np.random.default_rng(seed)
    shape = (4, 32)
    lidar = SpinningLidar(
        MOUNTS["top"],
        ego,
        np.deg2rad([-8.0, 2, 9, -1]),  # in no order
        spin(32, "cw"),
        azimuth_offsets=[0.01, -0.02, 0.0, 0.03],
        start=start,
        end=start + 0.1,
    )
    returned = random.uniform(size=shape) < 0.7
    second = returned & (random.uniform(size=shape) < 0.3)
    ranges = np.where(returned, random.uniform(2, 50, shape), 0).astype(np.float32)
    return Sweep(
        lidar=lidar,
        ranges=ranges,
        returned=returned,
        intensities=np.where(returned, random.uniform(0, 1, shape), 0).astype(np.float32),
        second_ranges=np.where(second, ranges + 3, 0).astype(np.float32),
        mask=random.uniform(size=shape) < 0.9,
        name=f"top/{seed}",
        sensor="top",
        time=start + 0.05,
    )


def rays_of(sensor):
    rays = cast(sensor)
    return np.asarray(rays.origins), np.asarray(rays.directions), rays.times


def of_sensor(drive, name):
    return [item for item in (*drive.exposures, *drive.sweeps) if item.sensor == name]


def change(folder, key, edit):
    file = folder / "drive.ncore4.zarr" / key
    values = json.loads(file.read_text())
    edit(values)
    file.write_text(json.dumps(values))
