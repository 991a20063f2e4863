"""A smooth tour of the scene, made from the cameras of its capture."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from ..sensors import PinholeCamera, look_at
from ..train.rig import Rig

# Cameras that stand around the scene by at least this angle (radians) are followed all round.
SURROUNDING = 1.2 * np.pi
# Straight from above, which way is up would be open.
STEEPEST = 1.4
# Length of the mean of the cameras' upward directions below which it says nothing.
LEAST_AGREEMENT = 0.1
# Share of the spread of cameras on one side of a scene that is used.
SWAY = (0.5, 0.5, 0.2)


def spiral(cameras: Sequence[PinholeCamera], count: int) -> list[PinholeCamera]:
    """Leads a camera along a closed curve near the given ones, looking at what they look at.

    Cameras that surround the scene give one turn around it that rises and sinks between their
    lowest and highest; others a small spiral around the middle one.

    Args:
        cameras: Where the photographs were taken, at least one.
        count: Number of views to make, at least 1.

    Returns:
        Cameras with the image and the lens of the first one.

    Raises:
        ValueError: If there is no camera or no view to make.
    """
    if not cameras or count < 1:
        raise ValueError(f"got {len(cameras)} cameras and {count} views; give at least one of each")
    poses = np.stack([np.asarray(c.world_from_camera, np.float64) for c in cameras])
    rig = Rig.from_cameras(cameras)
    focus = rig.center if rig.inward else rig.center + rig.distance * _unit(rig.axes.mean(0))
    up = -poses[:, :3, 1].mean(0)
    if np.linalg.norm(up) < LEAST_AGREEMENT:
        up = -poses[0, :3, 1]
    up = _unit(up)
    phase = 2 * np.pi * np.arange(count) / count
    eyes = _orbit(poses, focus, up, phase)
    if eyes is None:
        eyes = _sway(poses, phase)
        if rig.inward:
            # The middle of cameras around something is nearer to it than any of them.
            eyes = focus + rig.distance * _unit(eyes - focus)
    return [
        dataclasses.replace(cameras[0], world_from_camera=look_at(eye, focus, up)) for eye in eyes
    ]


def _orbit(poses, focus, up, phase) -> Float64[np.ndarray, "count 3"] | None:
    """Positions on a turn around the focus, or None if the cameras do not surround it."""
    if len(poses) < 3:
        return None
    offsets = poses[:, :3, 3] - focus
    height = offsets @ up
    across = offsets - height[:, None] * up
    first = _unit(across[np.argmax(np.linalg.norm(across, axis=-1))])
    second = np.cross(up, first)
    azimuth = np.sort(np.arctan2(across @ second, across @ first))
    gap = np.diff(np.r_[azimuth, azimuth[0] + 2 * np.pi]).max()
    if 2 * np.pi - gap < SURROUNDING:
        return None
    distance = np.linalg.norm(offsets, axis=-1)
    low, high = np.quantile(np.arcsin(np.clip(height / distance, -1, 1)), (0.2, 0.8))
    elevation = 0.5 * (low + high) + 0.5 * (high - low) * np.sin(2 * phase)
    elevation = np.clip(elevation, -STEEPEST, STEEPEST)
    ring = np.cos(phase)[:, None] * first + np.sin(phase)[:, None] * second
    steps = np.cos(elevation)[:, None] * ring + np.sin(elevation)[:, None] * up
    return focus + np.median(distance) * steps


def _sway(poses, phase) -> Float64[np.ndarray, "count 3"]:
    """Positions on two loops around the mean camera, less wide than most cameras are spread."""
    middle = poses[:, :3, 3].mean(0)
    nearest = poses[np.argmin(np.linalg.norm(poses[:, :3, 3] - middle, axis=-1))]
    local = (poses[:, :3, 3] - middle) @ nearest[:3, :3]
    reach = SWAY * np.quantile(np.abs(local), 0.8, axis=0)
    loop = np.stack([np.cos(2 * phase), np.sin(2 * phase), np.sin(phase)], -1)
    return middle + (reach * loop) @ nearest[:3, :3].T


def _unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
