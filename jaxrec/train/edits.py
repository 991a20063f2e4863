"""Edits: where each sphere comes from when spheres move, are copied or go, at fixed capacity."""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._typing import pytree
from .growth import MCMC, Relocation
from .model import SPHERE_LEAVES


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Edit:
    """Where each row of the spheres comes from.

    Attributes:
        source: Row whose values it takes; its own number if nothing changes.
        fresh: Whether the row is new, so that its optimiser moments start from zero.
        alive: Whether it is a sphere afterwards.
    """

    source: Int[Array, " spheres"]
    fresh: Bool[Array, " spheres"]
    alive: Bool[Array, " spheres"]


def apply_edit(
    edit: Edit, tree: Any, *, moments: bool, leaves: Collection[str] = SPHERE_LEAVES
) -> Any:
    """Moves the rows of every leaf that belongs to spheres.

    Args:
        edit: What to move.
        tree: Parameters, or an optimiser's state; other leaves stay as they are.
        moments: Whether fresh rows are set to zero instead of copied.
        leaves: Names of the leaves that have a row for each sphere.
    """

    def move(path, leaf):
        name = path[-1].key if path and isinstance(path[-1], jax.tree_util.DictKey) else None
        if name not in leaves:
            return leaf
        moved = leaf[edit.source]
        if not moments:
            return moved
        fresh = edit.fresh.reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.where(fresh, jnp.zeros_like(moved), moved)

    return jax.tree_util.tree_map_with_path(move, tree)


# ---- plans: pure functions of what the spheres are like


def plan_relocation(
    opacities: Float[Array, " spheres"],
    alive: Bool[Array, " spheres"],
    settings: Relocation,
    key: Key[Array, ""],
    scores: Float[Array, " spheres"] | None = None,
) -> Edit:
    """Decides which spheres move onto which.

    Args:
        opacities: Opacities in [0, 1].
        alive: Which spheres exist; the others are moved first.
        settings: The threshold and the largest share moved.
        key: Randomness.
        scores: What the chance of a visible sphere to be copied is in proportion to; its opacity
            if None.
    """
    count = opacities.shape[0]
    rows = jnp.arange(count, dtype=jnp.int32)
    shown = jnp.where(alive, opacities, -1.0)
    vacant = shown < settings.opacity
    # The least visible first, if more are vacant than may move.
    rank = jnp.zeros_like(rows).at[jnp.argsort(shown)].set(rows)
    fresh = vacant & (rank < max(1, int(settings.share * count)))
    weights = opacities if scores is None else scores
    return _onto_drawn(fresh, jnp.where(vacant, 0.0, weights), alive, key)


def plan_mcmc(
    opacities: Float[Array, " spheres"],
    alive: Bool[Array, " spheres"],
    settings: MCMC,
    key: Key[Array, ""],
) -> Edit:
    """Decides which transparent spheres move onto which visible ones, and which rows come alive.

    Args:
        opacities: Opacities in [0, 1].
        alive: Which spheres exist.
        settings: The threshold, and the share by which the number alive grows.
        key: Randomness.

    Returns:
        An edit that changes nothing where no sphere is visible, and only moves where no row is
        free.
    """
    visible = alive & (opacities >= settings.opacity)
    added = jnp.ceil(settings.growth * alive.sum().astype(opacities.dtype))
    rank = jnp.cumsum(~alive).astype(opacities.dtype)
    fresh = (alive & ~visible) | (~alive & (rank <= added))
    return _onto_drawn(fresh, jnp.where(visible, opacities, 0.0), alive, key)


def plan_clone(
    wanted: Bool[Array, " spheres"],
    scores: Float[Array, " spheres"],
    alive: Bool[Array, " spheres"],
) -> Edit:
    """Copies spheres into rows that are free: those of the highest score, if too few are.

    Args:
        wanted: Which spheres to copy. Dead ones never are.
        scores: How much each of them matters.
        alive: Which spheres exist.
    """
    wanted = wanted & alive
    rows = jnp.arange(alive.shape[0], dtype=jnp.int32)
    order = jnp.argsort(jnp.where(wanted, -scores, jnp.inf)).astype(jnp.int32)
    rank = jnp.cumsum(~alive) - 1
    fresh = ~alive & (rank < wanted.sum())
    source = jnp.where(fresh, order[jnp.maximum(rank, 0)], rows)
    return Edit(source, fresh, alive | fresh)


def plan_split(
    wanted: Bool[Array, " spheres"],
    scores: Float[Array, " spheres"],
    alive: Bool[Array, " spheres"],
) -> Edit:
    """Replaces spheres by two: as `plan_clone`, but the first of each two is fresh as well."""
    edit = plan_clone(wanted, scores, alive)
    return dataclasses.replace(edit, fresh=edit.fresh | (copies_of(edit) > 1))


def plan_prune(unwanted: Bool[Array, " spheres"], alive: Bool[Array, " spheres"]) -> Edit:
    """Makes spheres dead, whose rows are free then."""
    rows = jnp.arange(alive.shape[0], dtype=jnp.int32)
    return Edit(rows, jnp.zeros_like(alive), alive & ~unwanted)


def _onto_drawn(fresh: Array, weights: Array, alive: Array, key: Array) -> Edit:
    """Makes rows copies of others, drawn in proportion to weights; none where all weigh nothing."""
    count = weights.shape[0]
    total = jnp.cumsum(weights)
    fresh = fresh & (total[-1] > 0)
    # Points in (0, total]: searchsorted then never picks a row of weight zero.
    points = total[-1] * (1 - jax.random.uniform(key, (count,), weights.dtype))
    drawn = jnp.searchsorted(total, points).astype(jnp.int32)
    rows = jnp.arange(count, dtype=jnp.int32)
    return Edit(jnp.where(fresh, jnp.minimum(drawn, count - 1), rows), fresh, alive | fresh)


def copies_of(edit: Edit) -> Int[Array, " spheres"]:
    """How many rows come from the same row as each."""
    return jnp.zeros_like(edit.source).at[edit.source].add(1)[edit.source]
