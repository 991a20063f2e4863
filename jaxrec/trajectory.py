"""Trajectories: where a body is at any time, from poses at some times.

Clocks count nanoseconds since 1970, and float32 cannot tell a second from the next there.
So a trajectory counts seconds from an epoch of its own, subtracted exactly before anything
is rounded, and so must the times that it is asked for: `seconds_since` does both.
"""

import dataclasses
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._typing import Numbers, pytree
from .geometry import (
    axis_angle_from_matrix,
    check_rigid,
    compose,
    matrix_from_axis_angle,
    multiply,
    rigid,
    rigid_from_twist,
    rigid_inverse,
    twist_from_rigid,
)

Edge = Literal["nan", "hold", "extrapolate"]


def seconds_since(epoch: Any, times: Any) -> np.ndarray:
    """Seconds from an epoch to points in time, exact to the last digit.

    Args:
        epoch: A point in time: a float in seconds, or an integer in nanoseconds.
        times: Points in time in the same unit: float64 seconds or int64 nanoseconds.

    Returns:
        float64 seconds.

    Raises:
        ValueError: If the times are neither float64 nor int64, or the epoch is of the other
            kind.
    """
    array = np.asarray(times)
    whole = array.dtype == np.int64
    if not whole and array.dtype != np.float64:
        raise ValueError(
            f"times: got {array.dtype}; give float64 seconds or int64 nanoseconds, for others "
            "cannot count them"
        )
    start = np.asarray(epoch)
    if np.issubdtype(start.dtype, np.integer) != whole and start != 0:
        raise ValueError(
            f"epoch: got {start.dtype} for times of {array.dtype}; give both in the same unit"
        )
    return (array - np.int64(start)) / 1e9 if whole else array - np.float64(start)


def locate(
    known: Float[Array, " poses"],
    intervals: Float[Array, " spans"],
    times: Float[Array, "*batch"],
    *,
    edge: Edge,
    last: Int[Array, ""] | None = None,
) -> tuple[Int[Array, "*batch"], Float[Array, "*batch"], Bool[Array, "*batch"]]:
    """Finds between which poses points in time lie.

    Args:
        known: Times of the poses, increasing.
        intervals: From each of them to the next.
        times: What to find, in the same unit.
        edge: As of `Trajectory`.
        last: Number of the last pose, where arrays are padded behind it.

    Returns:
        The number of the pose before each time; how far it is from there to the next pose, in
        [0, 1] unless it extrapolates; and whether the path is known then. Differentiable in all
        three kinds of times. Times past an end by no more than rounding are known.
    """
    end = known.shape[0] - 1 if last is None else last
    # Unrolled, the search becomes a part of one kernel; as a loop it is several for each step.
    frozen = jax.lax.stop_gradient(known)
    index = jnp.searchsorted(frozen, times, side="right", method="scan_unrolled") - 1
    index = jnp.clip(index, 0, jnp.maximum(end - 1, 0))
    weight = (times - known[index]) / intervals[index]
    if edge == "extrapolate":
        return index, weight, jnp.ones_like(times, bool)
    # Not jnp.clip: its gradient is halved where a shutter starts, at weight 0 exactly.
    weight = jnp.where(weight < 0, jnp.zeros_like(weight), weight)
    weight = jnp.where(weight > 1, jnp.ones_like(weight), weight)
    # Sensors whose last line or column meets the last pose compute its time with an error.
    slack = 4 * jnp.finfo(times.dtype).eps * jnp.maximum(jnp.abs(frozen[0]), jnp.abs(frozen[end]))
    inside = (times >= frozen[0] - slack) & (times <= frozen[end] + slack)
    return index, weight, (edge == "hold") | inside


def interpolate(
    world_from_body: Float[Array, "poses 4 4"],
    index: Int[Array, "*batch"],
    weight: Float[Array, "*batch"],
) -> Float[Array, "*batch 4 4"]:
    """Finds poses between poses: positions on a line, rotations by slerp.

    Args:
        world_from_body: The poses.
        index: Number of the pose before.
        weight: How far it is from there to the next one; see `locate`.

    Returns:
        Poses. Differentiable in the poses and the weights.
    """
    rotations, positions = world_from_body[:, :3, :3], world_from_body[:, :3, 3]
    steps = multiply(jnp.swapaxes(rotations[:-1], -1, -2), rotations[1:])
    turns = axis_angle_from_matrix(steps)[index] * weight[..., None]
    rotation = multiply(rotations[index], matrix_from_axis_angle(turns))
    start, end = positions[index], positions[index + 1]
    position = (1 - weight)[..., None] * start + weight[..., None] * end
    return rigid(rotation, position)


@runtime_checkable
class Path(Protocol):
    """Where a body is at any time."""

    def at(self, times: Float[Array, "*batch"]) -> Float[Array, "*batch 4 4"]:
        """The poses at times in seconds since the epoch; NaN where there are none."""
        ...

    def sample(
        self, times: Float[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch 4 4"], Bool[Array, "*batch"]]:
        """Poses that are finite everywhere, and where they are those of the body."""
        ...

    def mounted(self, body_from_sensor: Float[Array, "4 4"]) -> "Path":
        """The path of a sensor that is fixed to the body."""
        ...


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Still:
    """The path of what does not move.

    Attributes:
        world_from_body: Rigid pose in metres, at all times.

    Raises:
        ValueError: If the pose is not rigid within 1e-4.
    """

    world_from_body: Float[Array, "*views 4 4"]

    def __init__(self, world_from_body: Numbers):
        pose = check_rigid("world_from_body", world_from_body)
        object.__setattr__(self, "world_from_body", pose)

    def at(self, times: Float[Array, "*batch"]) -> Float[Array, "*batch 4 4"]:
        """See `Path`."""
        return self.sample(times)[0]

    def sample(
        self, times: Float[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch 4 4"], Bool[Array, "*batch"]]:
        """See `Path`."""
        poses = jnp.broadcast_to(self.world_from_body, (*times.shape, 4, 4))
        return poses, jnp.ones_like(times, bool)

    def mounted(self, body_from_sensor: Float[Array, "4 4"]) -> "Still":
        """See `Path`."""
        return with_poses(self, compose(self.world_from_body, body_from_sensor))


@pytree("edge")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Trajectory:
    """Poses in time; between two of them, positions on a line and rotations by slerp.

    Both parts move at constant speed, each for itself: a body that turns still crosses
    straight over. `ScrewTrajectory` moves along the arc instead.

    Attributes:
        world_from_body: Rigid poses in metres.
        times: Of the poses, in seconds since the epoch.
        intervals: Seconds from each pose to the next; kept apart, for poses may follow within
            less than `times` can tell.
        edge: What is before the first pose and after the last: "nan", nothing; "hold",
            that pose; "extrapolate", the motion next to it goes on.

    Raises:
        ValueError: If there are fewer than two poses, one is not rigid within 1e-4, times do
            not increase or have another dtype or count, or the edge is none of the three.
    """

    world_from_body: Float[Array, "*views poses 4 4"]
    times: Float[Array, "*views poses"]
    intervals: Float[Array, "*views spans"]
    edge: Edge

    def __init__(self, world_from_body: Numbers, times: Any, *, epoch: Any = 0, edge: Edge = "nan"):
        """Makes a trajectory.

        Args:
            world_from_body: Shape [poses, 4, 4].
            times: When the body was there: NumPy float64 in seconds or int64 in nanoseconds.
            epoch: What `times` are counted from afterwards, in the unit of the times.
            edge: See above.
        """
        _set_fields(self, world_from_body, times, epoch, edge)

    def at(self, times: Float[Array, "*batch"]) -> Float[Array, "*batch 4 4"]:
        """Finds poses.

        Args:
            times: In seconds since the epoch.

        Returns:
            `world_from_body` at these times, NaN where there is none. Differentiable in the
            poses and the times; at a pose, in time, from one side.
        """
        return _or_nan(*self.sample(times))

    def sample(
        self, times: Float[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch 4 4"], Bool[Array, "*batch"]]:
        """See `Path`."""
        index, weight, valid = locate(self.times, self.intervals, times, edge=self.edge)
        return interpolate(self.world_from_body, index, weight), valid

    def mounted(self, body_from_sensor: Float[Array, "4 4"]) -> "Trajectory":
        """See `Path`: the sensor's own poses are interpolated, not the body's."""
        return with_poses(self, compose(self.world_from_body, body_from_sensor))


@pytree("edge")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class ScrewTrajectory:
    """Poses in time; between two of them, the body moves along a screw.

    Velocity and turning rate are constant in the body's own frame, as of a car in a bend:
    the interpolation is exponential in SE(3), and does not depend on which point of the body
    is looked at. The rest is as in `Trajectory`.

    Attributes:
        world_from_body: Rigid poses in metres.
        times: Of the poses, in seconds since the epoch.
        intervals: Seconds from each pose to the next.
        edge: "nan", "hold" or "extrapolate".

    Raises:
        ValueError: As `Trajectory`.
    """

    world_from_body: Float[Array, "*views poses 4 4"]
    times: Float[Array, "*views poses"]
    intervals: Float[Array, "*views spans"]
    edge: Edge

    def __init__(self, world_from_body: Numbers, times: Any, *, epoch: Any = 0, edge: Edge = "nan"):
        """Makes a trajectory; see `Trajectory`."""
        _set_fields(self, world_from_body, times, epoch, edge)

    def at(self, times: Float[Array, "*batch"]) -> Float[Array, "*batch 4 4"]:
        """Finds poses; see `Trajectory.at`."""
        return _or_nan(*self.sample(times))

    def sample(
        self, times: Float[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch 4 4"], Bool[Array, "*batch"]]:
        """See `Path`."""
        index, weight, valid = locate(self.times, self.intervals, times, edge=self.edge)
        steps = compose(rigid_inverse(self.world_from_body[:-1]), self.world_from_body[1:])
        twists = twist_from_rigid(steps)[index] * weight[..., None]
        return compose(self.world_from_body[index], rigid_from_twist(twists)), valid

    def mounted(self, body_from_sensor: Float[Array, "4 4"]) -> "ScrewTrajectory":
        """See `Path`."""
        return with_poses(self, compose(self.world_from_body, body_from_sensor))


def _set_fields(trajectory, world_from_body, times, epoch, edge):
    poses = check_rigid("world_from_body", world_from_body)
    if poses.ndim != 3 or poses.shape[0] < 2:
        raise ValueError(
            f"world_from_body: got shape {list(poses.shape)}; give [poses, 4, 4] with at least "
            "two poses"
        )
    seconds = seconds_since(epoch, times)
    if seconds.shape != poses.shape[:1]:
        raise ValueError(
            f"times: got shape {list(seconds.shape)} for {poses.shape[0]} poses; give one each"
        )
    clock = np.asarray(times)
    steps = np.diff(clock)
    if not np.all(steps > 0):
        at = int(np.argmin(steps > 0))
        raise ValueError(
            f"times: got {clock[at]} and then {clock[at + 1]}, numbers {at} and {at + 1}; "
            "give increasing times, in int64 nanoseconds if seconds are too coarse"
        )
    if edge not in ("nan", "hold", "extrapolate"):
        raise ValueError(f"edge: got {edge!r}; give 'nan', 'hold' or 'extrapolate'")
    scale = 1e-9 if clock.dtype == np.int64 else 1.0
    object.__setattr__(trajectory, "world_from_body", poses)
    object.__setattr__(trajectory, "times", jnp.asarray(seconds, poses.dtype))
    object.__setattr__(trajectory, "intervals", jnp.asarray(steps * scale, poses.dtype))
    object.__setattr__(trajectory, "edge", edge)


def _or_nan(poses, valid):
    return jnp.where(valid[..., None, None], poses, jnp.nan)


def with_poses(trajectory: Any, poses: Float[Array, "*shape 4 4"]) -> Any:
    """The same path, `Still` or with the same times, through other poses."""
    leaves, structure = jax.tree.flatten(trajectory)
    return jax.tree.unflatten(structure, [poses, *leaves[1:]])
