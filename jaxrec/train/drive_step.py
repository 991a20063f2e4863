"""One step of a fit of a drive: the only place that differentiates."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from .. import losses
from .density import agitate, grow_spheres
from .drive_data import Photo, Scan
from .drive_settings import DriveSettings
from .drive_state import DRIVE_LEAVES, DriveState, make_drive_optimizer
from .optimizer import decayed

Metrics = dict[str, Float[Array, ""]]
DriveStep = Callable[[DriveState, Photo | None, Scan], tuple[DriveState, Metrics]]

# What is covered by less than this has no depth to compare.
_LEAST_ALPHA = 0.05


def make_drive_step(settings: DriveSettings) -> DriveStep:
    """Builds the compiled step of a fit of a drive.

    Args:
        settings: Of the fit; `steps` has no influence.

    Returns:
        `step(state, photo, scan) -> (state, metrics)`. The state that goes in is donated and dead
        afterwards. Metrics stay on the device: `loss`, its terms, `psnr` of the image,
        `range_mean_abs_m` and `spheres`. Growth is a call of its own (see `grow_drive`).
    """
    # Settings that do not reach the step, so that fits which differ in them share one program.
    shared = dataclasses.replace(settings, steps=1, progress_every=1, save_every=1)
    return functools.partial(_step, shared)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _step(
    settings: DriveSettings, state: DriveState, photo: Photo | None, scan: Scan
) -> tuple[DriveState, Metrics]:
    def objective(params):
        terms, metrics = _terms(state.with_params(params), photo, scan, settings)
        loss = sum(terms.values(), start=jnp.float32(0))
        return loss, {"loss": loss, **terms, **metrics}

    params = state.params(settings)
    gradient, metrics = jax.grad(objective, has_aux=True)(params)
    # Optax counts on implicit promotion, which the caller may have forbidden.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer = make_drive_optimizer(settings).update(
            gradient, state.optimizer, params
        )
        params = optax.apply_updates(params, updates)
        left = decayed(settings.rates.final, settings.horizon)(state.step)
    params = agitate(params, settings.growth, left, _key(settings, state.step, 0))
    after = state.with_params(params)
    after = dataclasses.replace(after, optimizer=optimizer, step=state.step + 1)
    alive = after.scene.spheres.alive.sum().astype(jnp.float32)
    return after, {**metrics, "spheres": alive}


def _terms(
    state: DriveState, photo: Photo | None, scan: Scan, settings: DriveSettings
) -> tuple[Metrics, Metrics]:
    """Weighted terms of the objective, and what else is told of the step."""
    weights, scene, rig = settings.weights, state.scene, state.calibration
    moves = settings.rig.mounts > 0 or settings.rig.path > 0
    lidar = rig.moved(scan.lidar, scan.sensor, scan.time) if moves else scan.lidar
    swept = scene.sweep(lidar, scan.time)
    measured = (swept.ranges, scan.ranges, scan.returned)
    shade = losses.intensity_mse(swept.intensities, scan.intensities, scan.shown)
    terms = {
        "range": weights.range * losses.range_huber(*measured, width=settings.range_width),
        "intensity": weights.intensity * shade,
        "drop": weights.drop * losses.drop_bce(swept.drops, scan.returned, scan.fired),
    }
    metrics = {"range_mean_abs_m": losses.range_l1(*measured)}
    if photo is None:
        return terms, metrics
    camera = rig.moved(photo.camera, photo.sensor, photo.time) if moves else photo.camera
    seen = scene.photograph(camera, photo.time)
    color = rig.exposed(seen.color, photo.number)
    compared = (color, photo.image, photo.mask)
    terms["l1"] = (1 - weights.d_ssim) * losses.l1(*compared)
    terms["d_ssim"] = weights.d_ssim * losses.d_ssim(*compared)
    if photo.depths is not None:
        known = (photo.depths > 0) & photo.mask & (seen.alpha >= _LEAST_ALPHA)
        apart = losses.range_huber(seen.depth, photo.depths, known, width=settings.range_width)
        terms["depth"] = weights.depth * apart
    error = losses.mse(*compared)
    metrics["psnr"] = -10 * jnp.log10(jnp.maximum(error, 1e-10))
    return terms, metrics


def grow_drive(state: DriveState, settings: DriveSettings) -> DriveState:
    """Moves, copies and removes spheres by the rule `settings.growth`; copies stay with actors.

    Args:
        state: After a step; donated and dead afterwards.
        settings: `growth` says what to do.
    """
    return _grow(dataclasses.replace(settings, steps=1, progress_every=1, save_every=1), state)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _grow(settings: DriveSettings, state: DriveState) -> DriveState:
    grown = grow_spheres(
        settings.growth,
        state.params(settings),
        state.scene.spheres.alive,
        state.optimizer,
        _key(settings, state.step - 1, 1),
        leaves=DRIVE_LEAVES,
    )
    after = state.with_params(grown.params)
    spheres = dataclasses.replace(after.scene.spheres, alive=grown.edit.alive)
    actor = state.scene.actor[grown.edit.source]
    scene = dataclasses.replace(after.scene, spheres=spheres, actor=actor)
    return dataclasses.replace(after, scene=scene, optimizer=grown.optimizer)


def _key(settings: DriveSettings, step: Int[Array, ""], use: int) -> Key[Array, ""]:
    """The randomness of one step: noise, growth."""
    return jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), step), 2)[use]
