"""Rays of what moves while it measures."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..geometry import rotate, unit
from ..trajectory import Path
from .rays import Rays


def moving_rays(
    path: Path,
    origins: Float[Array, "*grid 3"],
    directions: Float[Array, "*grid 3"],
    times: Float[Array, "*line"],
    footprint: Float[Array, "2"],
) -> Rays:
    """Takes rays from the sensor's frame to the world, each at its time.

    Args:
        path: Of the sensor itself.
        origins: In the sensor's frame, in metres.
        directions: In the sensor's frame; unit vectors, or NaN.
        times: Of the rays; axes of length 1 are shared, and cost one pose.
        footprint: As of `Rays`.

    Returns:
        Rays with their times; directions are NaN where the path has no pose.
    """
    poses, valid = path.sample(times)
    turned = unit(turn_each(poses[..., :3, :3], directions))
    return Rays(
        origins=turn_each(poses[..., :3, :3], origins) + poses[..., :3, 3],
        directions=jnp.where(valid[..., None], turned, jnp.nan),
        footprint=footprint,
        times=jnp.broadcast_to(times, directions.shape[:-1]),
    )


def turn_each(
    rotations: Float[Array, "*line 3 3"], vectors: Float[Array, "*grid 3"]
) -> Float[Array, "*grid 3"]:
    """`rotate`, with axes of length 1 repeated."""
    return rotate(jnp.broadcast_to(rotations, (*vectors.shape[:-1], 3, 3)), vectors)
