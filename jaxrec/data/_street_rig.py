"""What drives along the street: the rig with the sensors that it carries, and cars."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from ..sensors import (
    FThetaLens,
    LensCamera,
    PinholeCamera,
    RollingShutterCamera,
    SpinningLidar,
    spin,
)
from ..trajectory import Trajectory
from . import _street_world as world
from ._street_solids import Moving
from .drive import Track

ROLLING_SECONDS = 0.08
"""From the first line of a rolling shutter to the last."""

TRIGGERS = {"left": 0.4, "wide": 0.5, "right": 0.6}
"""Middles of exposures, in shares of a turn of the lidar: about when it looks there, too."""

_POSES_PER_SECOND = 50
_LOWEST, _HIGHEST = np.deg2rad(-24.0), np.deg2rad(15.0)
_BEAM = (0.0, 1.5e-3)

_pose_at = jax.jit(lambda path, mount, time: path.mounted(mount).at(time))


def ego(seconds: float) -> Trajectory:
    """`world_from_body` of the rig, in seconds since the epoch."""
    count = int(np.ceil((seconds + 2 * world.MARGIN) * _POSES_PER_SECOND)) + 1
    times = -world.MARGIN + np.arange(count) / _POSES_PER_SECOND
    return Trajectory(jnp.asarray(world.body(times)), times)


def mounts() -> dict[str, Float64[np.ndarray, "4 4"]]:
    """`body_from_sensor` by the sensor's name."""
    lidar = np.eye(4)
    lidar[:3, 3] = (0.9, 0.0, 1.95)
    return {
        "wide": _looking((1.5, 0.0, 1.6), 0.0, -0.06),
        "left": _looking((1.1, 0.5, 1.65), np.deg2rad(66.0), -0.03),
        "right": _looking((1.1, -0.5, 1.65), np.deg2rad(-66.0), -0.03),
        "lidar": lidar,
    }


def camera(
    path: Trajectory,
    mount: Float64[np.ndarray, "4 4"],
    name: str,
    time: float,
    size: tuple[int, int],
) -> LensCamera | RollingShutterCamera:
    """A camera of the rig.

    Args:
        path: Of the rig.
        mount: `body_from_camera`.
        name: Which one.
        time: Of the middle of its exposure, in seconds since the epoch.
        size: Width and height in pixels.
    """
    width, height = size
    body_from_camera = jnp.asarray(mount)
    dtype = body_from_camera.dtype
    middle = jnp.asarray([width / 2, height / 2], dtype)
    if name == "wide":
        # 70 degrees from the axis to the middle of an edge at the side.
        slope = width / 2 / np.deg2rad(70.0)
        coefficients = jnp.asarray([0.0, 1.04 * slope, 0.0, -0.0268 * slope], dtype)
        lens = FThetaLens(middle, coefficients, jnp.asarray(np.deg2rad(110.0), dtype))
        pose = _pose_at(path, body_from_camera, jnp.asarray(time, dtype))
        return LensCamera(pose, lens, width=width, height=height)
    return RollingShutterCamera(
        PinholeCamera(
            body_from_camera, jnp.full(2, 0.75 * width, dtype), middle, width=width, height=height
        ),
        path,
        time - ROLLING_SECONDS / 2,
        time + ROLLING_SECONDS / 2,
        direction="top_to_bottom" if name == "left" else "bottom_to_top",
    )


def lidar(
    path: Trajectory,
    mount: Float64[np.ndarray, "4 4"],
    start: float,
    turn: float,
    size: tuple[int, int],
) -> SpinningLidar:
    """The lidar of the rig, for one turn.

    Args:
        path: Of the rig.
        mount: `body_from_lidar`.
        start: When the first column is fired, in seconds since the epoch.
        turn: How long it takes, in seconds.
        size: Rows and columns.
    """
    rows, columns = size
    return SpinningLidar(
        jnp.asarray(mount),
        path,
        jnp.linspace(_HIGHEST, _LOWEST, rows),
        jnp.asarray(spin(columns, "cw")),
        start=start,
        end=start + turn * (columns - 1) / columns,
        beam=_BEAM,
    )


def shifted(
    mount: Float64[np.ndarray, "4 4"], shift: tuple[float, float, float]
) -> Float64[np.ndarray, "4 4"]:
    """The mount of a sensor on a rig that is moved along its own axes."""
    pose = mount.copy()
    pose[:3, 3] += shift
    return pose


def tracks(actors: Sequence[world.Actor]) -> list[Track]:
    """Those of the cars that drive."""
    return [Track(actor.id, "car", actor.size, _path_of(actor.path)) for actor in actors]


def _looking(position, yaw: float, pitch: float) -> Float64[np.ndarray, "4 4"]:
    """`body_from_camera` of a camera turned to the left by the yaw and up by the pitch."""
    ahead = np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)])
    right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(ahead, right), ahead], axis=-1)
    pose[:3, 3] = position
    return pose


def _path_of(path: Moving) -> Trajectory:
    poses = np.tile(np.eye(4), (len(path.times), 1, 1))
    poses[:, 0, 0] = poses[:, 1, 1] = np.cos(path.yaws)
    poses[:, 1, 0], poses[:, 0, 1] = np.sin(path.yaws), -np.sin(path.yaws)
    poses[:, :3, 3] = path.positions
    return Trajectory(jnp.asarray(poses), path.times)
