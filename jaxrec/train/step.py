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
from .depth import axial_depth, depth_cost
from .exposure import expose, total_variation
from .model import SphereModel, softness, view_weight
from .normalizer import SceneNormalizer
from .optimizer import decayed, make_optimizer
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
    limits = tuple(jnp.float32(v) for v in (normalizer.near, normalizer.far, normalizer.scale))

    def step(state: FitState, stack: FrameStack, index: Any) -> tuple[FitState, Metrics]:
        return _step(shared, limits, state, stack, index)

    return step


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(
    settings: FitSettings,
    limits: tuple[Array, ...],
    state: FitState,
    stack: FrameStack,
    index: Int[Array, " views"],
) -> tuple[FitState, Metrics]:
    graphdef = graph(settings)
    optimizer = make_optimizer(settings.rates, settings.horizon)
    keys = state.step_keys(state.step)
    views = take_views(stack, index)
    backgrounds = None
    if settings.backdrop.shape is None:
        backgrounds = _backgrounds(settings, keys[0], index.shape[0])
    weight = view_weight(settings, state.step, keys[1])
    drawn = (*limits, softness(settings, state.step))

    def objective(params, taken):
        if settings.backdrop.kind == "picture":
            params = {**params, "backdrop": jax.lax.stop_gradient(params["backdrop"])}
        model = nnx.merge(graphdef, params, {"alive": state.alive})
        learned = state.calibration
        cameras = learned.cameras(settings, views.cameras, views.numbers, taken)
        refined = dataclasses.replace(views, cameras=cameras)
        exposures = learned.exposures(taken)
        return _objective(settings, drawn, model, refined, backgrounds, weight, exposures)

    taken = state.calibration.take(views.numbers)
    differentiated = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)
    (loss, metrics), (gradients, of_images) = differentiated(state.params, taken)
    # Optax itself mixes dtypes (a float to an integer power) where JAX is told to be strict.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
    left = decayed(settings.rates.centers_final, settings.horizon)(state.step)
    params = agitate(params, settings.growth, left, keys[3])
    calibration = state.calibration.moved(settings, state.step, views.numbers, of_images)
    state = FitState(params, state.alive, optimizer_state, state.step + 1, state.key, calibration)
    alive = state.alive.sum().astype(jnp.float32)
    return state, {"loss": loss, **metrics, "spheres": alive}


def _objective(
    settings: FitSettings,
    drawn: tuple[Array, ...],
    model: SphereModel,
    views: Views,
    backgrounds: Array | None,
    weight: Array,
    exposures: Array | None,
) -> tuple[Array, Metrics]:
    near, far, scale, gamma = drawn
    picture = model(
        views.cameras,
        backgrounds,
        near=near,
        far=far,
        gamma=gamma,
        kind=settings.kind,
        view_weight=weight,
    )
    color, target = picture.color, views.images
    if exposures is not None:
        color = expose(color, exposures)
    if views.alphas is not None:
        # A learned backdrop is refused for cut-out images: what is behind them is not in them.
        assert backgrounds is not None
        behind = jnp.broadcast_to(backgrounds[:, None, None, :], target.shape)
        if exposures is not None:
            # What is put behind a cut-out image has not been photographed with it.
            behind = expose(behind, jax.lax.stop_gradient(exposures))
        alpha = views.alphas[..., None]
        target = alpha * target + (1 - alpha) * behind
    share, squared = settings.losses.d_ssim, settings.losses.mse
    error = losses.mse(color, target, views.masks)
    terms = {"l1": losses.l1(color, target, views.masks)}
    weights = {"l1": (1 - share) * (1 - squared)}
    if squared > 0:
        terms["mse"] = error
        weights["mse"] = (1 - share) * squared
    if share > 0:
        terms["d_ssim"] = losses.d_ssim(color, target, views.masks)
        weights["d_ssim"] = share
    if settings.losses.opacity > 0 or settings.losses.radius > 0:
        spheres = model.spheres()
        terms["opacity"] = losses.opacity_cost(spheres.opacities, spheres.alive)
        terms["radius"] = losses.radius_cost(spheres.radii, spheres.alive)
        weights["opacity"] = settings.losses.opacity
        weights["radius"] = settings.losses.radius
    if settings.losses.entropy > 0:
        spheres = model.spheres()
        terms["entropy"] = losses.opacity_entropy(spheres.opacities, spheres.alive)
        weights["entropy"] = settings.losses.entropy
    if settings.depth.weight > 0 and views.depths is not None:
        metres = axial_depth(picture.depth, views.cameras) / scale
        terms["depth"] = depth_cost(
            settings.depth, metres, picture.alpha, views.depths, views.masks
        )
        weights["depth"] = settings.depth.weight
    if settings.losses.view > 0:
        assert picture.view_part is not None and picture.sphere_part is not None
        alive = jnp.broadcast_to(model.alive[...], picture.sphere_part.shape[:-1])
        terms["view"] = losses.energy(picture.view_part, views.masks)
        terms["view"] += losses.energy(picture.sphere_part, alive)
        weights["view"] = settings.losses.view
    if exposures is not None and settings.exposure.kind == "grid":
        terms["exposure"] = total_variation(exposures)
        weights["exposure"] = settings.exposure.total_variation
    psnr = -10 * jnp.log10(jnp.maximum(error, 1e-10))
    return losses.weighted_sum(terms, weights), {**terms, "psnr": psnr}


def _backgrounds(settings: FitSettings, key: Array, views: int) -> Float[Array, "views 3"]:
    if settings.backdrop.kind == "random":
        return jax.random.uniform(key, (views, 3))
    return jnp.tile(jnp.asarray(settings.background, jnp.float32)[None], (views, 1))
