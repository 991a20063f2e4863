"""One training step: the only place that differentiates."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from .. import losses
from .batches import FrameStack, Views, take_views
from .density import agitate
from .model import SphereModel, softness, view_weight
from .normalizer import SceneNormalizer
from .optimizer import make_optimizer
from .settings import FitSettings
from .state import FitState, graph

Metrics = dict[str, Float[Array, ""]]
Step = Callable[[FitState, FrameStack, Any], tuple[FitState, Metrics]]


def make_step(settings: FitSettings, normalizer: SceneNormalizer) -> Step:
    """Builds the compiled step of a fit.

    Args:
        settings: Of the fit; `steps` has no influence.
        normalizer: Gives the range of drawn distances.

    Returns:
        `step(state, stack, index) -> (state, metrics)`. The state that goes in is donated and dead
        afterwards. Metrics stay on the device: `loss`, its terms, `psnr` of the step's views and
        `spheres`, the number alive. Nothing is read back to the host. Growth is a call of its own
        (see `grow`).
    """
    # Settings that do not reach the step, so that fits which differ in them share one program.
    shared = dataclasses.replace(settings, steps=1, seed=0, progress_every=1, save_every=1)
    limits = (jnp.float32(normalizer.near), jnp.float32(normalizer.far))

    def step(state: FitState, stack: FrameStack, index: Any) -> tuple[FitState, Metrics]:
        return _step(shared, limits, state, stack, index)

    return step


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(
    settings: FitSettings,
    limits: tuple[Array, Array],
    state: FitState,
    stack: FrameStack,
    index: Int[Array, " views"],
) -> tuple[FitState, Metrics]:
    graphdef = graph(settings)
    optimizer = make_optimizer(settings.rates, settings.horizon)
    keys = state.step_keys(state.step)
    views = take_views(stack, index)
    backgrounds = _backgrounds(settings, keys[0], index.shape[0])
    weight = view_weight(settings, state.step, keys[1])
    drawn = (*limits, softness(settings, state.step))

    def objective(params):
        model = nnx.merge(graphdef, params, {"alive": state.alive})
        return _objective(settings, drawn, model, views, backgrounds, weight)

    (loss, metrics), gradients = jax.value_and_grad(objective, has_aux=True)(state.params)
    # Optax itself mixes dtypes (a float to an integer power) where JAX is told to be strict.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
    params = agitate(params, settings, state.step, keys[3])
    state = FitState(params, state.alive, optimizer_state, state.step + 1, state.key)
    alive = state.alive.sum().astype(jnp.float32)
    return state, {"loss": loss, **metrics, "spheres": alive}


def _objective(
    settings: FitSettings,
    drawn: tuple[Array, Array, Array],
    model: SphereModel,
    views: Views,
    backgrounds: Array,
    weight: Array,
) -> tuple[Array, Metrics]:
    picture = model(
        views.cameras,
        backgrounds,
        near=drawn[0],
        far=drawn[1],
        gamma=drawn[2],
        kind=settings.kind,
        view_weight=weight,
    )
    target = views.images
    if views.alphas is not None:
        alpha = views.alphas[..., None]
        target = alpha * target + (1 - alpha) * backgrounds[:, None, None, :]
    share = settings.losses.d_ssim
    terms = {"l1": losses.l1(picture.color, target, views.masks)}
    weights = {"l1": 1 - share}
    if share > 0:
        terms["d_ssim"] = losses.d_ssim(picture.color, target, views.masks)
        weights["d_ssim"] = share
    if settings.losses.opacity > 0 or settings.losses.radius > 0:
        spheres = model.spheres()
        terms["opacity"] = losses.opacity_cost(spheres.opacities, spheres.alive)
        terms["radius"] = losses.radius_cost(spheres.radii, spheres.alive)
        weights["opacity"] = settings.losses.opacity
        weights["radius"] = settings.losses.radius
    error = losses.mse(picture.color, target, views.masks)
    psnr = -10 * jnp.log10(jnp.maximum(error, 1e-10))
    return losses.weighted_sum(terms, weights), {**terms, "psnr": psnr}


def _backgrounds(settings: FitSettings, key: Array, views: int) -> Float[Array, "views 3"]:
    if settings.random_background:
        return jax.random.uniform(key, (views, 3))
    return jnp.tile(jnp.asarray(settings.background, jnp.float32)[None], (views, 1))
