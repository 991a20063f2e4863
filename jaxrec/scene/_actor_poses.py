"""Poses of all actors at once, for arrays that `Actors` holds."""

import dataclasses

import jax
import jax.numpy as jnp

from ..geometry import compose, rigid_from_twist, rotate
from ..trajectory import interpolate, locate

STATIC = -1
"""The number of spheres that belong to no actor."""


@jax.jit
def refined_poses(actors):
    """See `Actors.poses`."""
    return compose(actors.world_from_box, rigid_from_twist(actors.twists))


@jax.jit
def moved(actors, number, motion):
    """See `Actors.moved`."""
    poses = compose(refined_poses(actors)[number], motion)
    return dataclasses.replace(
        actors,
        world_from_box=actors.world_from_box.at[number].set(poses),
        twists=actors.twists.at[number].set(0),
    )


@jax.jit
def sample(actors, times):
    """See `Actors.sample`."""
    fields, of_one = _by_actor(actors)
    poses, valid = jax.vmap(lambda fields: of_one(fields, times.reshape(-1)))(fields)
    shape = (len(actors.ids), *times.shape)
    return poses.reshape(*shape, 4, 4), valid.reshape(shape)


def _by_actor(actors):
    """What an actor's poses depend on, and the function of that and a list of times."""

    def of_one(fields, times):
        poses, twists, known, intervals, count = fields

        def at(time):
            last = count - 1
            index, weight, valid = locate(known, intervals, time, edge=actors.edge, last=last)
            # Only two poses are refined and compared, not all.
            pair = jnp.stack([index, index + 1])
            motion = rigid_from_twist(twists[jnp.minimum(pair, twists.shape[0] - 1)])
            refined = compose(poses[pair], motion)
            return interpolate(refined, jnp.zeros_like(index), weight), valid & (count > 0)

        return jax.vmap(at)(times)

    fields = (actors.world_from_box, actors.twists, actors.times, actors.intervals, actors.counts)
    return fields, of_one


@jax.jit
def owners(actors, points, times, sizes, margin):
    """See `Actors.owners`."""
    fields, of_one = _by_actor(actors)

    def look(found, one):
        number, size, fields = one
        poses, valid = of_one(fields, times)
        apart = points - poses[..., :3, 3]
        local = rotate(jnp.swapaxes(poses[..., :3, :3], -1, -2), apart)
        outside = jnp.max(jnp.abs(local) - size[None] / 2, axis=-1)
        owner, place, least = found
        closer = valid & (outside <= margin) & (outside < least)
        return (
            jnp.where(closer, number, owner),
            jnp.where(closer[:, None], local, place),
            jnp.where(closer, outside, least),
        ), None

    nobody = jnp.full(times.shape, STATIC, jnp.int32)
    start = nobody, points, jnp.full(times.shape, jnp.inf, points.dtype)
    numbers = jnp.arange(len(actors.ids), dtype=jnp.int32)
    # One actor after the other: all at once would hold a pose for each pair.
    (owner, place, _), _ = jax.lax.scan(look, start, (numbers, sizes, fields))
    return owner, place
