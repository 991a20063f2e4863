"""Paths on their way into an NCore sequence: poses and boxes at whole microseconds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float64, Int64

from ..trajectory import Path, Trajectory
from ._ncore_poses import WORLD
from .drive import Track

# Of paths that are no list of poses, in seconds: NCore interpolates between these.
_STEP = 0.01
# Of boxes on such paths.
_BOX_STEP = 0.1

_sample = jax.jit(lambda path, times: path.sample(times))


class Clock(NamedTuple):
    """The log's clock, which NCore reads in microseconds.

    Attributes:
        epoch: Of the drive, in nanoseconds.
    """

    epoch: int

    def microseconds(self, seconds: Any) -> Int64[np.ndarray, "*n"]:
        """Times on the log's clock, of seconds since the epoch."""
        nanoseconds = np.round(np.asarray(seconds, np.float64) * 1e9).astype(np.int64)
        whole, rest = divmod(self.epoch, 1000)
        return np.asarray(whole + (nanoseconds + rest + 500) // 1000)

    def steps(self, first: int, last: int, step: float) -> Float64[np.ndarray, " n"]:
        """Seconds since the epoch, from one time on the log's clock to another."""
        start, end = self.seconds(first), self.seconds(last)
        return np.linspace(start, end, max(int(np.ceil((end - start) / step)) + 1, 2))

    def seconds(self, microseconds: int) -> float:
        """Since the epoch."""
        return (microseconds * 1000 - self.epoch) / 1e9


def poses_over(
    path: Path, clock: Clock, first: int, last: int
) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, "n 4 4"]]:
    """Poses of the rig that cover all frames, and when it has them in microseconds.

    Raises:
        ValueError: The path ends before they do.
    """
    known, poses = _known(path)
    if known is None:
        times = clock.steps(first, last, _STEP)
        poses, covered = sampled(path, times)
    else:
        ends = np.array([clock.seconds(first), clock.seconds(last)])
        outside = ends[(ends < known[0]) | (ends > known[-1])]
        more, covered = sampled(path, outside)
        # Outside by rounding alone is inside.
        covered |= (outside >= known[0] - 2e-6) & (outside <= known[-1] + 2e-6)
        covered = np.append(np.ones(len(known), np.bool_), covered)
        times = np.append(known, outside)
        order = np.argsort(times, kind="stable")
        times, covered = times[order], covered[order]
        poses = np.concatenate([poses, more])[order]
    if not covered.all():
        raise ValueError(
            f"ego: got no pose at {times[~covered][0]:g} s; give a path that covers all frames"
        )
    whole, kept = np.unique(clock.microseconds(times), return_index=True)
    return whole, _exact(poses[kept])


def observations_of(track: Track, clock: Clock, first: int, last: int) -> list[dict[str, Any]]:
    """The boxes of a track between two times in microseconds, as NCore lists them."""
    from scipy.spatial.transform import Rotation

    times, poses = _known(track.path)
    seen = np.ones(len(poses), np.bool_)
    if times is None:
        times = clock.steps(first, last, _BOX_STEP)
        poses, seen = sampled(track.path, times)
    whole = clock.microseconds(times)
    inside = seen & (whole >= first) & (whole <= last)
    return [
        {
            "track_id": track.id,
            "class_id": track.label,
            "timestamp_us": time,
            "reference_frame_id": WORLD,
            "reference_frame_timestamp_us": time,
            "bbox3": {
                "centroid": pose[:3, 3].tolist(),
                "dim": np.asarray(track.size, np.float64).tolist(),
                "rot": Rotation.from_matrix(pose[:3, :3]).as_euler("xyz").tolist(),
            },
            "source": "EXTERNAL",
            "source_version": None,
        }
        for time, pose in zip(whole[inside].tolist(), poses[inside], strict=True)
    ]


def sampled(
    path: Path, times: Float64[np.ndarray, " n"]
) -> tuple[Float64[np.ndarray, "n 4 4"], Bool[np.ndarray, " n"]]:
    """Poses at times, and where there are any."""
    stored: Any = getattr(path, "world_from_body", None)
    dtype = np.float32 if stored is None else stored.dtype
    poses, seen = _sample(path, jnp.asarray(times, dtype))
    return np.asarray(poses, np.float64), np.array(seen)


def stored_pose(matrix: Any) -> dict[str, Any]:
    """A pose as NCore stores it."""
    return {"pose": _exact(np.asarray(matrix, np.float64)).tolist(), "dtype": "float64"}


def _known(
    path: Path,
) -> tuple[Float64[np.ndarray, " n"] | None, Float64[np.ndarray, "m 4 4"]]:
    """The times and the poses that a path consists of, or None where it is no list of such."""
    if not isinstance(path, Trajectory):
        return None, np.zeros((0, 4, 4))
    return np.asarray(path.times, np.float64), np.asarray(path.world_from_body, np.float64)


def _exact(poses: Float64[np.ndarray, "*n 4 4"]) -> Float64[np.ndarray, "*n 4 4"]:
    """Poses whose rotations are exact in float64; they come in float32."""
    left, _, right = np.linalg.svd(poses[..., :3, :3])
    exact = poses.copy()
    exact[..., :3, :3] = left @ right
    return exact
