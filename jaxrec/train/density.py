"""Rules of growth at work: what copies look like, and when what happens."""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key

from .drive_settings import DriveSettings
from .edits import (
    Edit,
    apply_edit,
    copies_of,
    plan_clone,
    plan_mcmc,
    plan_prune,
    plan_relocation,
    plan_split,
)
from .growth import MCMC, Densification, Growth, NoGrowth, Relocation
from .model import SPHERE_LEAVES
from .optimizer import second_moments
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


def agitate(params: Any, rule: Growth, left: ArrayLike, key: Key[Array, ""]) -> Any:
    """Adds the noise of `MCMC` to the centers of spheres that are almost transparent.

    Args:
        params: The model's parameters.
        rule: Of growth; another one adds nothing.
        left: Share of the centers' rate that is left at this step.
        key: Randomness.

    References:
        Kheradmand et al., equation 10.
    """
    if not isinstance(rule, MCMC) or rule.noise == 0:
        return params
    transparent = jax.nn.sigmoid(
        _STEEPNESS * (rule.opacity - jax.nn.sigmoid(params["logit_opacities"]))
    )
    size = rule.noise * left * transparent * jnp.exp(params["log_radii"])
    noise = size[:, None] * jax.random.normal(key, params["centers"].shape, size.dtype)
    return {**params, "centers": params["centers"] + noise}


def growth_due(settings: FitSettings | DriveSettings, done: int) -> bool:
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
    key = state.step_keys(state.step - 1)[2]
    grown = grow_spheres(rule, state.params, state.alive, state.optimizer, key)
    return dataclasses.replace(
        state, params=grown.params, alive=grown.edit.alive, optimizer=grown.optimizer
    )


class Grown(NamedTuple):
    """Spheres and an optimiser after a round of growth, and where each row came from."""

    params: dict[str, Any]
    optimizer: Any
    edit: Edit


def grow_spheres(
    rule: Growth,
    params: dict[str, Any],
    alive: Bool[Array, " spheres"],
    optimizer: Any,
    key: Key[Array, ""],
    *,
    leaves: Collection[str] = SPHERE_LEAVES,
) -> Grown:
    """Moves, copies and removes spheres by a rule, whatever they show.

    Args:
        rule: What to do.
        params: `centers`, `log_radii`, `logit_opacities` and others.
        alive: Which spheres exist.
        optimizer: Its state, with a group for each parameter of spheres.
        key: Randomness.
        leaves: Names of the parameters that have a row for each sphere.
    """
    plan_key, jitter_key = jax.random.split(key)
    opacities = jax.nn.sigmoid(params["logit_opacities"])
    jitter: float | Array = 0.0
    if isinstance(rule, Relocation):
        scores = jnp.sqrt(_pull(optimizer)) if rule.draw == "gradient" else None
        edit = plan_relocation(opacities, alive, rule, plan_key, scores)
        shrink, jitter = jnp.full_like(opacities, _SHRINK), _JITTER
    elif isinstance(rule, MCMC):
        edit = plan_mcmc(opacities, alive, rule, plan_key)
        shrink = share_radius(opacities[edit.source], copies_of(edit))
    elif isinstance(rule, Densification):
        radii = jnp.exp(params["log_radii"])
        edit, split = _plan_densification(rule, alive, opacities, radii, _pull(optimizer))
        shrink = jnp.where(
            split, _SPLIT_SHRINK, share_radius(opacities[edit.source], copies_of(edit))
        )
        jitter = jnp.where(split, _SPLIT_JITTER, 0.0)
    else:
        return Grown(params, optimizer, plan_prune(~alive, alive))
    params = apply_edit(edit, params, moments=False, leaves=leaves)
    shared = copies_of(edit) > 1
    logits = share_opacity(opacities[edit.source], copies_of(edit))
    radii = jnp.exp(params["log_radii"])
    offsets = jax.random.normal(jitter_key, params["centers"].shape, radii.dtype)
    offsets = jnp.where(edit.fresh, jitter * radii, 0.0)[:, None] * offsets
    params = {
        **params,
        "centers": params["centers"] + offsets,
        "log_radii": params["log_radii"] + jnp.where(shared, jnp.log(shrink), 0.0),
        "logit_opacities": jnp.where(shared, logits, params["logit_opacities"]),
    }
    return Grown(params, apply_edit(edit, optimizer, moments=True, leaves=leaves), edit)


def _pull(optimizer: Any) -> Float[Array, " spheres"]:
    """Running mean of the squared gradient of each center."""
    return second_moments(optimizer, "centers").sum(axis=-1)


def _plan_densification(
    rule: Densification, alive: Array, opacities: Array, radii: Array, scores: Array
) -> tuple[Edit, Bool[Array, " spheres"]]:
    """The edit, and which of its rows are halves of a sphere."""
    alive = plan_prune(opacities < rule.opacity, alive).alive
    rows = jnp.arange(alive.shape[0], dtype=jnp.int32)
    order = jnp.argsort(jnp.where(alive, -scores, jnp.inf))
    rank = jnp.zeros_like(rows).at[order].set(rows).astype(scores.dtype)
    wanted = alive & (rank < jnp.ceil(rule.share * alive.sum().astype(scores.dtype)))
    large = radii > rule.radius
    clones, halves = plan_clone(wanted, scores, alive), plan_split(wanted, scores, alive)
    split = large[clones.source] & (copies_of(clones) > 1)
    edit = dataclasses.replace(clones, fresh=jnp.where(split, halves.fresh, clones.fresh))
    return edit, split
