"""Fitting a scene with actors to the exposures and sweeps of a drive."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from .. import losses
from .._typing import pytree
from ..scene import UnconstrainedSpheres
from ..sensors import Exposure, Sweep
from .drive_settings import DriveRates, DriveSettings
from .drive_start import Moving, start_drive
from .moving_scene import MovingScene

# Gradients of a mean over pixels are tiny; a larger epsilon would damp rarely seen spheres.
_EPSILON = 1e-15


class DriveReport(NamedTuple):
    """What a step tells, on the device."""

    step: int
    terms: dict[str, Float[Array, ""]]


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class _Photo:
    camera: Any
    time: Float[Array, ""]
    image: Float[Array, "height width 3"]
    mask: Bool[Array, "height width"]


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class _Scan:
    lidar: Any
    time: Float[Array, ""]
    ranges: Float[Array, "rows columns"]
    intensities: Float[Array, "rows columns"]
    returned: Bool[Array, "rows columns"]
    fired: Bool[Array, "rows columns"]


def fit_drive(
    exposures: Sequence[Exposure],
    sweeps: Sequence[Sweep],
    tracks: Sequence[Moving],
    settings: DriveSettings,
    *,
    on_step: Callable[[DriveReport], None] | None = None,
) -> MovingScene:
    """Fits a scene to what cameras and lidars of a drive measured.

    Every step renders one exposure and one sweep, each ray from where its sensor was then, and
    descends along the gradient of both. The order is random, each once before any again.

    Args:
        exposures: To fit, of all cameras.
        sweeps: To fit, of all lidars.
        tracks: What moves; its spheres ride in its boxes.
        settings: See there.
        on_step: Called after each step. Reading what it is given waits for the device.

    Returns:
        The scene. The same inputs give the same scene, bit by bit, on the same kind of device.

    Raises:
        ValueError: If there is no exposure, or no beam returned.
    """
    scene = start_drive(exposures, sweeps, tracks, settings)
    photos, scans = [_photo(e) for e in exposures], [_scan(s) for s in sweeps]
    params = _params(scene)
    optimizer = _optimizer(settings.rates, settings.steps)
    state = optimizer.init(params)
    step = _make_step(scene, optimizer, settings)
    random = np.random.default_rng([settings.seed, 3])
    orders = [_order(len(photos), random), _order(len(scans), random)]
    for number in range(settings.steps):
        photo, scan = (next(order) for order in orders)
        params, state, terms = step(params, state, photos[photo], scans[scan])
        if on_step is not None:
            on_step(DriveReport(number + 1, terms))
    return _with_params(scene, params)


def _make_step(scene, optimizer, settings):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, photo, scan):
        def objective(params):
            terms = _terms(_with_params(scene, params), photo, scan, settings)
            return sum(terms.values(), start=jnp.float32(0)), terms

        gradient, terms = jax.grad(objective, has_aux=True)(params)
        # Optax counts on implicit promotion, which the caller may have forbidden.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, terms

    return step


def _terms(scene: MovingScene, photo: _Photo, scan: _Scan, settings: DriveSettings):
    weights = settings.weights
    color = scene.photograph(photo.camera, photo.time).color
    swept = scene.sweep(scan.lidar, scan.time)
    ranged = losses.range_huber(
        swept.ranges, scan.ranges, scan.returned, width=settings.range_width
    )
    shade = losses.intensity_mse(swept.intensities, scan.intensities, scan.returned)
    return {
        "l1": (1 - weights.d_ssim) * losses.l1(color, photo.image, photo.mask),
        "d_ssim": weights.d_ssim * losses.d_ssim(color, photo.image, photo.mask),
        "range": weights.range * ranged,
        "intensity": weights.intensity * shade,
        "drop": weights.drop * losses.drop_bce(swept.drops, scan.returned, scan.fired),
    }


def _params(scene: MovingScene) -> dict[str, Array]:
    spheres = scene.spheres
    return {
        "centers": spheres.centers,
        "radii": spheres.log_radii,
        "opacities": spheres.logit_opacities,
        "colors": spheres.features[:, :3],
        "intensities": spheres.features[:, 3:4],
        "drops": spheres.features[:, 4:],
        "sky": scene.sky,
    }


def _with_params(scene: MovingScene, params: dict[str, Array]) -> MovingScene:
    features = [params[name] for name in ("colors", "intensities", "drops")]
    spheres = UnconstrainedSpheres(
        centers=params["centers"],
        log_radii=params["radii"],
        logit_opacities=params["opacities"],
        features=jnp.concatenate(features, axis=-1),
        alive=scene.spheres.alive,
    )
    return dataclasses.replace(scene, spheres=spheres, sky=params["sky"])


def _optimizer(rates: DriveRates, steps: int) -> optax.GradientTransformation:
    def adam(rate):
        decay = optax.exponential_decay(rate, steps, rates.final, end_value=rate * rates.final)
        return optax.adam(decay, eps=_EPSILON)

    named = dataclasses.asdict(rates)
    groups: dict[Hashable, optax.GradientTransformation] = {
        name: adam(rate) for name, rate in named.items() if name != "final"
    }
    return optax.multi_transform(groups, lambda params: {name: name for name in params})


def _photo(exposure: Exposure) -> _Photo:
    time, pixels = jnp.float32(exposure.time), (exposure.image, exposure.usable())
    return _Photo(exposure.camera, time, *map(jnp.asarray, pixels))


def _scan(sweep: Sweep) -> _Scan:
    fired = sweep.fired()
    shown = np.zeros_like(sweep.ranges) if sweep.intensities is None else sweep.intensities
    arrays = (sweep.ranges, shown, sweep.returned & fired, fired)
    return _Scan(sweep.lidar, jnp.float32(sweep.time), *map(jnp.asarray, arrays))


def _order(count: int, random: np.random.Generator):
    while True:
        yield from random.permutation(count)
