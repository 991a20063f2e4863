"""Lidars: what spins while it moves, and any list of rays.

Lidar axes are x forward, y left, z up. Azimuths grow from x to y, counter-clockwise seen
from above; elevations grow upward.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._typing import Numbers, concrete, float_array, positive_integer, pytree
from ..geometry import check_rigid, unit
from ..trajectory import Path
from ._lidar_projection import project_spinning
from ._moving import moving_rays
from .rays import Rays


def spin(
    columns: int, direction: Literal["cw", "ccw"], start: float = np.pi
) -> Float[np.ndarray, " columns"]:
    """Azimuths of the columns of a whole turn, in the order in which they are measured.

    Args:
        columns: How many.
        direction: "cw", clockwise seen from above, or "ccw".
        start: Azimuth of the first column in radians; by default it looks backward.

    Returns:
        float64 radians, not wrapped.

    Raises:
        ValueError: If the number of columns is not positive or the direction neither.
    """
    if direction not in ("cw", "ccw"):
        raise ValueError(f"direction: got {direction!r}; give 'cw' or 'ccw'")
    turn = 2 * np.pi * np.arange(positive_integer("columns", columns)) / columns
    return start + (turn if direction == "ccw" else -turn)


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class SpinningLidar:
    """A lidar whose lasers, one for each row, turn about z while their carrier moves.

    The ray of row i and column j has the elevation e_i and the azimuth a_j + o_i; in the
    lidar's frame it is (cos e cos a, cos e sin a, sin e), from the height h_i on the axis. It
    is fired at

        start + offset + (end - start) j / (columns - 1) + d_i.

    Attributes:
        body_from_lidar: Rigid pose in the frame whose path the trajectory is, in metres.
        trajectory: Where the body is at any time; `Still` if it stands.
        elevations: Of the rows, in radians.
        azimuths: Of the columns in the order of time, in radians and not wrapped: growing if
            it turns counter-clockwise, shrinking if clockwise, within one turn. See `spin`.
        azimuth_offsets: Of the rows, in radians.
        heights: Where the rows' rays leave the axis, in metres above the lidar's origin.
        delays: Of the rows within a column, in seconds.
        start: When the first column is fired, in seconds since the trajectory's epoch.
        end: When the last column is fired.
        offset: Seconds that the lidar's clock is behind that of the trajectory.
        beam: (radius of the beam at the lidar in metres, tangent of half its divergence);
            without gradient.

    Raises:
        ValueError: If an array has the wrong shape or dtype or is not finite, the pose is not
            rigid within 1e-4, or azimuths turn back or exceed a turn.

    References:
        The angles and the times of columns are those of
        `RowOffsetStructuredSpinningLidarModel` of NVIDIA NCore.
    """

    body_from_lidar: Float[Array, "*views 4 4"]
    trajectory: Path
    elevations: Float[Array, "*views rows"]
    azimuths: Float[Array, "*views columns"]
    azimuth_offsets: Float[Array, "*views rows"]
    heights: Float[Array, "*views rows"]
    delays: Float[Array, "*views rows"]
    start: Float[Array, "*views"]
    end: Float[Array, "*views"]
    offset: Float[Array, "*views"]
    beam: Float[Array, "*views 2"]

    def __init__(
        self,
        body_from_lidar: Numbers,
        trajectory: Path,
        elevations: Numbers,
        azimuths: Numbers,
        *,
        start: Numbers,
        end: Numbers,
        azimuth_offsets: Numbers | None = None,
        heights: Numbers | None = None,
        delays: Numbers | None = None,
        offset: Numbers = 0.0,
        beam: Numbers = (0.0, 1e-3),
    ):
        pose = check_rigid("body_from_lidar", body_from_lidar)
        if pose.ndim != 2:
            raise ValueError(f"body_from_lidar: got shape {list(pose.shape)}; give [4, 4]")
        dtype = pose.dtype
        rows = float_array("elevations", elevations, (None,), dtype)
        columns = float_array("azimuths", azimuths, (None,), dtype)
        none = jnp.zeros_like(rows)
        shifts = none if azimuth_offsets is None else azimuth_offsets
        raised = none if heights is None else heights
        late = none if delays is None else delays
        fields = {
            "body_from_lidar": pose,
            "trajectory": trajectory,
            "elevations": rows,
            "azimuths": columns,
            "azimuth_offsets": float_array("azimuth_offsets", shifts, rows.shape, dtype),
            "heights": float_array("heights", raised, rows.shape, dtype),
            "delays": float_array("delays", late, rows.shape, dtype),
            "start": float_array("start", start, (), dtype),
            "end": float_array("end", end, (), dtype),
            "offset": float_array("offset", offset, (), dtype),
            "beam": float_array("beam", beam, (2,), dtype),
        }
        _check_turn(columns)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def rays(self, elements: Int[Array, "*grid 2"] | None = None) -> Rays:
        """Makes the ray of each shot.

        Args:
            elements: (row, column) of shots; by default all, in rows.

        Returns:
            Rays with their times in seconds since the epoch, differentiable in all fields but
            the beam. Shots whose time the trajectory does not cover have NaN directions.
        """
        return _spinning_rays(self, elements)

    def project(
        self, points: Float[Array, "*batch 3"]
    ) -> tuple[Float[Array, "*found 2"], Float[Array, "*found"], Float[Array, "*found"]]:
        """Finds which shots meet points, each from where the lidar is when it is fired.

        Args:
            points: World coordinates in metres, of things that stand still.

        Returns:
            (row, column) of the shot, its time in seconds since the epoch, and the range in
            metres: the inverse of `rays`. Between shots both numbers are fractions: columns
            by azimuth, rows from the nearest one on to the next one up or down, in whichever
            order their elevations are; of a single row or column, in radians. Rows may lie outside
            the grid, and columns by half of one. Points that are passed over (outside the part of a
            turn that columns cover, at the seam of a turn, or where the trajectory has no pose)
            have NaN, without gradient. Of two shots that meet a point, at the seam, it is one.
            Differentiable in the points and all fields but the beam; the row that is nearest has
            no derivative.
        """
        return project_spinning(self, points)


@pytree()
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class RayBundle:
    """Any rays of a sensor that moves: a solid-state lidar, or the shots of a log.

    Attributes:
        body_from_sensor: Rigid pose in the frame whose path the trajectory is, in metres.
        trajectory: Where the body is at any time; `Still` if it stands.
        directions: In the sensor's frame, of any length but 0. To be rendered they must form
            a grid of rows and columns; neighbours in it should look alike.
        times: When each is measured, in seconds since the trajectory's epoch.
        origins: Where each starts in the sensor's frame, in metres.
        offset: Seconds that the sensor's clock is behind that of the trajectory.
        beam: (radius of the beam at its origin in metres, tangent of half its divergence);
            without gradient.

    Raises:
        ValueError: If an array has the wrong shape or dtype or is not finite, or the pose is
            not rigid within 1e-4.
    """

    body_from_sensor: Float[Array, "*views 4 4"]
    trajectory: Path
    directions: Float[Array, "*grid 3"]
    times: Float[Array, "*grid"]
    origins: Float[Array, "*grid 3"]
    offset: Float[Array, "*views"]
    beam: Float[Array, "*views 2"]

    def __init__(
        self,
        body_from_sensor: Numbers,
        trajectory: Path,
        directions: Numbers,
        times: Numbers,
        *,
        origins: Numbers | None = None,
        offset: Numbers = 0.0,
        beam: Numbers = (0.0, 1e-3),
    ):
        pose = check_rigid("body_from_sensor", body_from_sensor)
        if pose.ndim != 2:
            raise ValueError(f"body_from_sensor: got shape {list(pose.shape)}; give [4, 4]")
        vectors = float_array("directions", directions, (..., 3), pose.dtype)
        places = jnp.zeros_like(vectors) if origins is None else origins
        fields = {
            "body_from_sensor": pose,
            "trajectory": trajectory,
            "directions": vectors,
            "times": float_array("times", times, vectors.shape[:-1], pose.dtype),
            "origins": float_array("origins", places, vectors.shape, pose.dtype),
            "offset": float_array("offset", offset, (), pose.dtype),
            "beam": float_array("beam", beam, (2,), pose.dtype),
        }
        lengths = concrete(jnp.sum(vectors * vectors, axis=-1))
        if lengths is not None and not np.all(lengths > 0):
            count = int(np.sum(lengths == 0))
            raise ValueError(f"directions: got {count} of length 0; give vectors along the rays")
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def rays(self) -> Rays:
        """Makes the rays, differentiable in all fields but the beam.

        Rays whose time the trajectory does not cover have NaN directions.
        """
        return _bundle_rays(self)


@jax.jit
def _spinning_rays(lidar, elements):
    if lidar.start.ndim > 0:
        return jax.vmap(lambda lidar: lidar.rays(elements))(lidar)
    count = lidar.azimuths.shape[0]
    if elements is None:
        rows, columns = jnp.arange(lidar.elevations.shape[0])[:, None], jnp.arange(count)[None]
    else:
        rows, columns = elements[..., 0], elements[..., 1]
    elevation = lidar.elevations[rows]
    azimuth = lidar.azimuths[columns] + lidar.azimuth_offsets[rows]
    level = jnp.cos(elevation)
    up = jnp.broadcast_to(jnp.sin(elevation), azimuth.shape)
    parts = [level * jnp.cos(azimuth), level * jnp.sin(azimuth), up]
    directions = jnp.stack(parts, axis=-1)
    turned = columns.astype(azimuth.dtype) / max(count - 1, 1)
    times = lidar.start + lidar.offset + (lidar.end - lidar.start) * turned + lidar.delays[rows]
    path = lidar.trajectory.mounted(lidar.body_from_lidar)
    beam = jax.lax.stop_gradient(lidar.beam)
    height = jnp.broadcast_to(lidar.heights[rows], azimuth.shape)
    zero = jnp.zeros_like(height)
    return moving_rays(path, jnp.stack([zero, zero, height], axis=-1), directions, times, beam)


@jax.jit
def _bundle_rays(bundle):
    if bundle.offset.ndim > 0:
        return jax.vmap(lambda bundle: bundle.rays())(bundle)
    path = bundle.trajectory.mounted(bundle.body_from_sensor)
    times = bundle.times + bundle.offset
    beam = jax.lax.stop_gradient(bundle.beam)
    return moving_rays(path, bundle.origins, unit(bundle.directions), times, beam)


def _check_turn(azimuths: jax.Array) -> None:
    values = concrete(azimuths)
    if values is None or values.size < 2:
        return
    steps = np.diff(values)
    if not (np.all(steps > 0) or np.all(steps < 0)):
        at = int(np.argmin(steps * np.sign(steps[0]) > 0))
        raise ValueError(
            f"azimuths: got {values[at]:g} and then {values[at + 1]:g}, columns {at} and {at + 1}, "
            "against the turn; give them in the order of time, without wrapping"
        )
    span = abs(float(values[-1]) - float(values[0]))
    if span > 2 * np.pi * (1 + 1e-6):
        raise ValueError(f"azimuths: got a span of {span:g}; give one turn, at most 2 pi")
