"""A drive: what the sensors of a moving rig recorded, and what moved around it."""

import dataclasses
import pathlib

import numpy as np
from jaxtyping import Float64

from ..sensors import Exposure, Sweep
from ..trajectory import Path


@dataclasses.dataclass(frozen=True, eq=False)
class Track:
    """A box that follows something that moves.

    Attributes:
        id: Its name in the log, the same in all of it.
        label: What it is, in the log's words: "car".
        size: Of the box in metres along its x (length), y (width) and z (height).
        path: `world_from_box` at any time; the origin is the middle of the box, x is forward
            and z is up. Where it is NaN there is no box.
    """

    id: str
    label: str
    size: Float64[np.ndarray, "3"]
    path: Path


@dataclasses.dataclass(frozen=True, eq=False)
class Drive:
    """A log of cameras and lidars on one rig.

    All sensors share the world frame (metres, z up) and the epoch of their trajectories.

    Attributes:
        exposures: Images of all cameras, in the order of time. `Exposure.sensor` is the camera.
        sweeps: Of all lidars, in the order of time. `Sweep.sensor` is the lidar.
        tracks: What moves.
        ego: `world_from_body` of the rig at any time.
        mounts: `body_from_sensor` of each sensor, by name.
        epoch: What all times are counted from, in nanoseconds on the log's clock.
        origin: What was subtracted from all positions of the log, in whole metres, so that
            float32 holds them.
        format: Name of the layout, such as `ncore`.
        path: The file or folder it was read from.
        messages: One line each for the person who asked: what was passed over or put right.
    """

    exposures: list[Exposure]
    sweeps: list[Sweep]
    tracks: list[Track]
    ego: Path
    mounts: dict[str, Float64[np.ndarray, "4 4"]]
    epoch: int
    format: str
    path: pathlib.Path
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
    messages: list[str] = dataclasses.field(default_factory=list)
