"""Where a spinning lidar sees points: the inverse of its rays."""

import jax
import jax.numpy as jnp
import numpy as np

from ._moving import turn_each

# Each step is as good as points turn slowly about the lidar, which turns itself: a hundredth as
# fast for what a car passes at 30 m. Even a third, as of a kerb beside the wheels, does no harm.
_STEPS = 8

# In columns: what misses itself by more has not been found.
_TOLERANCE = 0.05


@jax.jit
def project_spinning(lidar, points):
    """See `SpinningLidar.project`."""
    if lidar.start.ndim > 0:
        return jax.vmap(project_spinning, (0, None))(lidar, points)
    last = lidar.azimuths.shape[0] - 1
    path = lidar.trajectory.mounted(lidar.body_from_lidar)
    known = (lidar, path, points)
    frozen = jax.lax.stop_gradient(known)

    def refine(_, state):
        found, local = _column(*frozen, *state)
        return jnp.clip(found, -0.5, last + 0.5), _nearest_row(frozen[0], local)

    middle = jnp.full(points.shape[:-1], last / 2, points.dtype)
    start = middle, jnp.zeros(points.shape[:-1], jnp.int32)
    column, row = jax.lax.fori_loop(0, _STEPS, refine, start)

    # A step of Newton's method, with the derivatives of the implicit function: the column is on
    # both sides of its equation, for it decides from where the point is seen.
    def again(column):
        return _column(*known, column, row)[0]

    found, slope = jax.jvp(again, (column,), (jnp.ones_like(column),))
    found, slope = found - column, 1 - jax.lax.stop_gradient(slope)
    off = jnp.abs(jax.lax.stop_gradient(found))
    good = jnp.isfinite(off) & (off <= _TOLERANCE)
    column = column + jnp.where(good, found, 0) / jnp.where(good, slope, 1)
    local, times, valid = _local(*known, column, row)
    place = jnp.stack([_continuous_row(lidar, local, row), column], axis=-1)
    above = local[..., 2] - lidar.heights[row]
    ranges = jnp.sqrt(_positive(jnp.sum(local[..., :2] ** 2, axis=-1) + above**2))
    valid &= good
    return tuple(jnp.where(_like(valid, x), x, jnp.nan) for x in (place, times, ranges))


def _local(lidar, path, points, column, row):
    """Points in the lidar's frame at the time of a shot, and that time."""
    turned = column / max(lidar.azimuths.shape[0] - 1, 1)
    times = lidar.start + lidar.offset + (lidar.end - lidar.start) * turned + lidar.delays[row]
    poses, valid = path.sample(times)
    offsets = points - poses[..., :3, 3]
    return turn_each(jnp.swapaxes(poses[..., :3, :3], -1, -2), offsets), times, valid


def _column(lidar, path, points, column, row):
    """The column in which points appear from where the lidar is at that of another column."""
    local, _, _ = _local(lidar, path, points, column, row)
    azimuths = lidar.azimuths
    x, y = local[..., 0], local[..., 1]
    off_axis = x * x + y * y > 0
    azimuth = jnp.arctan2(jnp.where(off_axis, y, 0), jnp.where(off_axis, x, 1))
    angle = azimuth - lidar.azimuth_offsets[row] - azimuths[0]
    if azimuths.shape[0] == 1:
        return _wrapped(angle, np.pi), local
    # Turned from the first column on, in the sense of the lidar; half of what the turn leaves out
    # comes before it.
    sense = jax.lax.stop_gradient(jnp.sign(azimuths[1] - azimuths[0]))
    steps = sense * (azimuths - azimuths[0])
    gap = 2 * np.pi - jax.lax.stop_gradient(steps[-1])
    angle = _wrapped(sense * angle, gap / 2)
    frozen = jax.lax.stop_gradient(steps)
    index = jnp.searchsorted(frozen, angle, side="right", method="scan_unrolled") - 1
    index = jnp.clip(index, 0, azimuths.shape[0] - 2)
    part = (angle - steps[index]) / (steps[index + 1] - steps[index])
    return index.astype(part.dtype) + part, local


def _nearest_row(lidar, local):
    # By the sine of the angle: an arctangent for each point and row would be most of the work.
    across = jnp.sqrt(local[..., 0] ** 2 + local[..., 1] ** 2)[..., None]
    shape = (*across.shape[:-1], lidar.elevations.shape[0])
    heights, rows = (jnp.broadcast_to(x, shape) for x in (lidar.heights, lidar.elevations))
    up, across = local[..., 2:] - heights, jnp.broadcast_to(across, shape)
    level, rise = jnp.cos(rows), jnp.sin(rows)
    sine = jnp.abs(up * level - across * rise) * jax.lax.rsqrt(_positive(up * up + across * across))
    ahead = up * rise + across * level > 0
    return jnp.argmin(jnp.where(ahead, sine, 2 - sine), axis=-1).astype(jnp.int32)


def _miss(lidar, local, rows):
    """How much higher points appear than rows look, in radians."""
    across = jnp.sqrt(_positive(local[..., 0] ** 2 + local[..., 1] ** 2))
    return jnp.arctan2(local[..., 2] - lidar.heights[rows], across) - lidar.elevations[rows]


def _continuous_row(lidar, local, row):
    """The nearest row, and the way to the next one on the side of the point."""
    miss, count = _miss(lidar, local, row), lidar.elevations.shape[0]
    place = row.astype(miss.dtype)
    if count == 1:
        return place + miss
    order = jnp.argsort(jax.lax.stop_gradient(lidar.elevations)).astype(jnp.int32)
    rank = jnp.argsort(order).astype(jnp.int32)[row]
    side = jnp.where(jax.lax.stop_gradient(miss) > 0, 1, -1).astype(jnp.int32)
    inside = (rank + side >= 0) & (rank + side < count)
    other = order[jnp.where(inside, rank + side, rank - side)]
    part = miss / (lidar.elevations[other] - lidar.elevations[row])
    return place + part * jnp.sign(other - row).astype(part.dtype)


def _wrapped(angle, before):
    """The angle in [-before, 2 pi - before)."""
    turns = jnp.floor((jax.lax.stop_gradient(angle) + before) / (2 * np.pi))
    return angle - 2 * np.pi * turns


def _positive(squared):
    # On the axis itself a root has no derivative: a distance of nothing stands for none.
    return jnp.where(squared > 0, squared, jnp.finfo(squared.dtype).tiny)


def _like(valid, x):
    return valid.reshape(*valid.shape, *(1,) * (x.ndim - valid.ndim))
