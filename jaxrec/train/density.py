"""Moves spheres that show little to where spheres are needed, at fixed capacity."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._typing import pytree
from .model import SPHERE_LEAVES
from .settings import FitSettings, Relocation
from .state import FitState

# A copy lands this many radii from its origin (per axis, normal), and all copies shrink.
_JITTER = 0.3
_SHRINK = 0.8


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Edit:
    """Where each row of the spheres comes from.

    Attributes:
        source: Row whose values it takes; its own number if nothing changes.
        fresh: Whether the row is new, so that its optimiser moments start from zero.
    """

    source: Int[Array, " spheres"]
    fresh: Bool[Array, " spheres"]


def apply_edit(edit: Edit, tree: Any, *, moments: bool) -> Any:
    """Moves the rows of every leaf that belongs to spheres.

    Args:
        edit: What to move.
        tree: Parameters, or an optimiser's state; other leaves stay as they are.
        moments: Whether fresh rows are set to zero instead of copied.
    """

    def move(path, leaf):
        name = path[-1].key if path and isinstance(path[-1], jax.tree_util.DictKey) else None
        if name not in SPHERE_LEAVES:
            return leaf
        moved = leaf[edit.source]
        if not moments:
            return moved
        fresh = edit.fresh.reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.where(fresh, jnp.zeros_like(moved), moved)

    return jax.tree_util.tree_map_with_path(move, tree)


def relocation_due(settings: FitSettings, done: int) -> bool:
    """Says whether `relocate` comes after step number `done`, counted from 1.

    The host decides: a condition inside the compiled step would be read back from a GPU at every
    step.
    """
    rule = settings.relocation
    first, last = (int(share * settings.horizon) for share in (rule.start, rule.stop))
    return rule.every > 0 and done % rule.every == 0 and first <= done < last


def relocate(state: FitState, settings: FitSettings) -> FitState:
    """Moves the most transparent spheres onto copies of visible ones.

    Which spheres are copied is random, in proportion to opacity. A sphere and its copies together
    let through as much light as it did alone.

    Args:
        state: After a step; donated and dead afterwards.
        settings: `relocation` says what to move.
    """
    return _relocate(settings.relocation, state)


def plan_relocation(
    opacities: Float[Array, " spheres"],
    alive: Bool[Array, " spheres"],
    settings: Relocation,
    key: Key[Array, ""],
) -> Edit:
    """Decides which spheres move onto which.

    Args:
        opacities: Opacities in [0, 1].
        alive: Which spheres exist; the others are moved first.
        settings: The threshold and the largest share moved.
        key: Randomness.
    """
    count = opacities.shape[0]
    rows = jnp.arange(count, dtype=jnp.int32)
    shown = jnp.where(alive, opacities, -1.0)
    vacant = shown < settings.opacity
    # The least visible first, if more are vacant than may move.
    rank = jnp.zeros_like(rows).at[jnp.argsort(shown)].set(rows)
    weights = jnp.where(vacant, 0.0, shown)
    total = jnp.cumsum(weights)
    fresh = vacant & (rank < max(1, int(settings.share * count))) & (total[-1] > 0)
    # Points in (0, total]: searchsorted then never picks a row of weight zero.
    points = total[-1] * (1 - jax.random.uniform(key, (count,), opacities.dtype))
    drawn = jnp.searchsorted(total, points).astype(jnp.int32)
    return Edit(jnp.where(fresh, jnp.minimum(drawn, count - 1), rows), fresh)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _relocate(settings: Relocation, state: FitState) -> FitState:
    # Of the step that was taken last.
    plan_key, jitter_key = jax.random.split(state.step_keys(state.step - 1)[2])
    opacities = jax.nn.sigmoid(state.params["logit_opacities"])
    edit = plan_relocation(opacities, state.alive, settings, plan_key)
    params = apply_edit(edit, state.params, moments=False)
    copies = jnp.zeros_like(opacities).at[edit.source].add(1.0)[edit.source]
    shared = copies > 1
    # n copies of opacity o' pass (1 - o')^n = 1 - o; in terms of log1p nothing cancels.
    passed = jnp.log1p(-jnp.clip(opacities[edit.source], 1e-6, 1 - 1e-6)) / copies
    logits = jnp.log(-jnp.expm1(passed)) - passed
    radii = jnp.exp(params["log_radii"])
    offsets = jax.random.normal(jitter_key, params["centers"].shape, radii.dtype)
    offsets = jnp.where(edit.fresh, _JITTER * radii, 0.0)[:, None] * offsets
    params = {
        **params,
        "centers": params["centers"] + offsets,
        "log_radii": params["log_radii"] + jnp.where(shared, jnp.log(_SHRINK), 0.0),
        "logit_opacities": jnp.where(shared, logits, params["logit_opacities"]),
    }
    return dataclasses.replace(
        state,
        params=params,
        alive=state.alive | edit.fresh,
        optimizer=apply_edit(edit, state.optimizer, moments=True),
    )
