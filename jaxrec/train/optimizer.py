"""Adam with a learning rate for each kind of parameter."""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from .model import SPHERE_LEAVES
from .settings import LearningRates

# Gradients of a mean over pixels are tiny; a larger epsilon would damp rarely seen spheres.
_EPSILON = 1e-15


def make_optimizer(rates: LearningRates, horizon: int) -> optax.GradientTransformation:
    """Builds the optimiser of a model's parameters.

    Args:
        rates: Step sizes.
        horizon: Steps over which each rate decays exponentially to its share; then it stays.

    Returns:
        A transformation of nested dictionaries of parameters (see `FitState.params`).
    """
    groups = {
        "centers": (rates.centers, rates.centers_final),
        "log_radii": (rates.radii, rates.others_final),
        "logit_opacities": (rates.opacities, rates.others_final),
        "features": (rates.features, rates.others_final),
        "shader": (rates.shader, rates.others_final),
        "backdrop": (rates.backdrop, rates.others_final),
    }
    adams: dict[Hashable, optax.GradientTransformation] = {
        name: optax.adam(_schedule(rate, final, horizon), eps=_EPSILON)
        for name, (rate, final) in groups.items()
    }
    adams["features"] = _slower_rest(adams["features"], rates.features_rest / rates.features)
    return optax.multi_transform(adams, _labels)


def decayed(final: float, horizon: int) -> optax.Schedule:
    """Returns the share of a rate that is left at a step: from 1 down to `final`."""
    return optax.exponential_decay(1.0, horizon, final, end_value=final)


def second_moments(state: Any, name: str) -> Float[Array, "spheres ..."]:
    """Finds Adam's running mean of the squared gradients of one of the spheres' parameters.

    Args:
        state: Of the optimiser.
        name: Of the parameter.
    """
    return optax.tree_utils.tree_get(state.inner_states[name], "nu")[name]


def _schedule(rate: float, final: float, steps: int) -> optax.Schedule:
    return optax.exponential_decay(rate, steps, final, end_value=rate * final)


def _slower_rest(inner: optax.GradientTransformation, share: float) -> optax.GradientTransformation:
    """Scales the updates of all but the first three features, which are the base colour."""
    if share == 1:
        return inner

    def update(updates, state, params=None):
        updates, state = inner.update(updates, state, params)

        def slower(leaf):
            scale = jnp.where(jnp.arange(leaf.shape[-1]) < 3, 1, share).astype(leaf.dtype)
            return leaf * jnp.broadcast_to(scale, leaf.shape)

        return jax.tree.map(slower, updates), state

    return optax.GradientTransformation(inner.init, update)


def _labels(params: Any) -> Any:
    def label(path, _):
        name = path[0].key
        return name if name in (*SPHERE_LEAVES, "backdrop") else "shader"

    return jax.tree_util.tree_map_with_path(label, params)
