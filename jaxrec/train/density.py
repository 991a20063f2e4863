"""Moves, copies and removes spheres while a scene is fitted, at fixed capacity."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._typing import pytree
from .growth import MCMC, Densification, Growth, NoGrowth, Relocation
from .model import SPHERE_LEAVES
from .optimizer import decayed, second_moments
from .settings import FitSettings
from .state import FitState

# A relocated copy lands this many radii from its origin (per axis, normal), and all copies shrink.
_JITTER = 0.3
_SHRINK = 0.8
# Halves of a split sphere, as in 3D Gaussian Splatting, whose scales are about a third of a radius.
_SPLIT_JITTER = 0.3
_SPLIT_SHRINK = 1 / 1.6
# How sharply the noise of MCMC ends at its opacity, as in the paper.
_STEEPNESS = 100.0


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
    return dataclasses.replace(edit, fresh=edit.fresh | (_copies(edit) > 1))


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


def _copies(edit: Edit) -> Int[Array, " spheres"]:
    """How many rows come from the same row as each."""
    return jnp.zeros_like(edit.source).at[edit.source].add(1)[edit.source]


# ---- what copies look like


def share_opacity(
    opacities: Float[Array, " spheres"], copies: Int[Array, " spheres"]
) -> Float[Array, " spheres"]:
    """Computes the logit of the opacity with which copies at one place pass as much as one sphere.

    Args:
        opacities: Opacities in [0, 1].
        copies: How many spheres share the light of each, itself among them, >= 1.

    References:
        Kheradmand et al., equation 9: n copies of opacity o' pass (1 - o')^n = 1 - o.
    """
    # In terms of log1p nothing cancels.
    passed = jnp.log1p(-jnp.clip(opacities, 1e-6, 1 - 1e-6)) / copies.astype(opacities.dtype)
    return jnp.log(-jnp.expm1(passed)) - passed


def share_radius(
    opacities: Float[Array, " spheres"], copies: Int[Array, " spheres"]
) -> Float[Array, " spheres"]:
    r"""Computes the factor of the radius with which copies cover as much as one sphere.

    Copies that share opacity are as opaque as the one sphere in their middle, but more opaque
    towards their rim, so they must be smaller. With the kernel $k = (1 - t)^2$, $t = (p/r)^2$, of
    `kind="alpha"`, the area-weighted sum of alpha is $\pi r^2 \int_0^1 o\,k\,dt = \pi r^2 o / 3$
    for one sphere, and $\pi r'^2 \int_0^1 1 - (1 - o' k)^n\,dt$ for n copies of opacity o'.

    Args:
        opacities: Opacities of the one sphere, in [0, 1].
        copies: How many spheres share its light, itself among them, >= 1.

    Returns:
        Factors of the radii, in (0, 1].

    References:
        Kheradmand et al., equation 9, which does the same for Gaussians.
    """
    # Exact for the polynomials of up to 15 copies, and smooth enough for more.
    nodes, weights = np.polynomial.legendre.leggauss(16)
    opacities = jnp.clip(opacities, 1e-6, 1 - 1e-6)
    n = copies.astype(opacities.dtype)
    shared = -jnp.expm1(jnp.log1p(-opacities) / n)
    covered = jnp.zeros_like(opacities)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        covered = covered - weight * jnp.expm1(n * jnp.log1p(-shared * (1 - node) ** 2))
    return jnp.where(copies > 1, jnp.sqrt(opacities / 3 / covered), 1.0)


def agitate(params: Any, settings: FitSettings, step: Int[Array, ""], key: Key[Array, ""]) -> Any:
    """Adds the noise of `MCMC` to the centers of spheres that are almost transparent.

    Args:
        params: The model's parameters.
        settings: Of the fit; another growth rule adds nothing.
        step: Number of the step, from 0.
        key: Randomness.

    References:
        Kheradmand et al., equation 10.
    """
    rule = settings.growth
    if not isinstance(rule, MCMC) or rule.noise == 0:
        return params
    left = decayed(settings.rates.centers_final, settings.horizon)(step)
    transparent = jax.nn.sigmoid(
        _STEEPNESS * (rule.opacity - jax.nn.sigmoid(params["logit_opacities"]))
    )
    size = rule.noise * left * transparent * jnp.exp(params["log_radii"])
    noise = size[:, None] * jax.random.normal(key, params["centers"].shape, size.dtype)
    return {**params, "centers": params["centers"] + noise}


# ---- rules at work


def growth_due(settings: FitSettings, done: int) -> bool:
    """Says whether `grow` comes after step number `done`, counted from 1.

    The host decides: a condition inside the compiled step would be read back from a GPU at every
    step.
    """
    rule = settings.growth
    if isinstance(rule, NoGrowth):
        return False
    first, last = (int(share * settings.horizon) for share in (rule.start, rule.stop))
    return rule.every > 0 and done % rule.every == 0 and first <= done < last


def grow(state: FitState, settings: FitSettings) -> FitState:
    """Moves, copies and removes spheres by the rule `settings.growth`.

    Args:
        state: After a step; donated and dead afterwards.
        settings: `growth` says what to do.
    """
    return _grow(settings.growth, state)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _grow(rule: Growth, state: FitState) -> FitState:
    # Of the step that was taken last.
    plan_key, jitter_key = jax.random.split(state.step_keys(state.step - 1)[2])
    opacities = jax.nn.sigmoid(state.params["logit_opacities"])
    jitter: float | Array = 0.0
    if isinstance(rule, Relocation):
        scores = jnp.sqrt(_pull(state)) if rule.draw == "gradient" else None
        edit = plan_relocation(opacities, state.alive, rule, plan_key, scores)
        shrink, jitter = jnp.full_like(opacities, _SHRINK), _JITTER
    elif isinstance(rule, MCMC):
        edit = plan_mcmc(opacities, state.alive, rule, plan_key)
        shrink = share_radius(opacities[edit.source], _copies(edit))
    elif isinstance(rule, Densification):
        edit, split = _plan_densification(rule, state, opacities)
        shrink = jnp.where(
            split, _SPLIT_SHRINK, share_radius(opacities[edit.source], _copies(edit))
        )
        jitter = jnp.where(split, _SPLIT_JITTER, 0.0)
    else:
        return state
    params = apply_edit(edit, state.params, moments=False)
    shared = _copies(edit) > 1
    logits = share_opacity(opacities[edit.source], _copies(edit))
    radii = jnp.exp(params["log_radii"])
    offsets = jax.random.normal(jitter_key, params["centers"].shape, radii.dtype)
    offsets = jnp.where(edit.fresh, jitter * radii, 0.0)[:, None] * offsets
    params = {
        **params,
        "centers": params["centers"] + offsets,
        "log_radii": params["log_radii"] + jnp.where(shared, jnp.log(shrink), 0.0),
        "logit_opacities": jnp.where(shared, logits, params["logit_opacities"]),
    }
    return dataclasses.replace(
        state,
        params=params,
        alive=edit.alive,
        optimizer=apply_edit(edit, state.optimizer, moments=True),
    )


def _pull(state: FitState) -> Float[Array, " spheres"]:
    """Running mean of the squared gradient of each center."""
    return second_moments(state.optimizer, "centers").sum(axis=-1)


def _plan_densification(
    rule: Densification, state: FitState, opacities: Array
) -> tuple[Edit, Bool[Array, " spheres"]]:
    """The edit, and which of its rows are halves of a sphere."""
    alive = plan_prune(opacities < rule.opacity, state.alive).alive
    scores = _pull(state)
    rows = jnp.arange(alive.shape[0], dtype=jnp.int32)
    order = jnp.argsort(jnp.where(alive, -scores, jnp.inf))
    rank = jnp.zeros_like(rows).at[order].set(rows).astype(scores.dtype)
    wanted = alive & (rank < jnp.ceil(rule.share * alive.sum().astype(scores.dtype)))
    large = jnp.exp(state.params["log_radii"]) > rule.radius
    clones, halves = plan_clone(wanted, scores, alive), plan_split(wanted, scores, alive)
    split = large[clones.source] & (_copies(clones) > 1)
    edit = dataclasses.replace(clones, fresh=jnp.where(split, halves.fresh, clones.fresh))
    return edit, split
