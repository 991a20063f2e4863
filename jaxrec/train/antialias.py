"""No sphere smaller than what the training views resolve."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..sensors import PinholeCamera
from .settings import FitSettings
from .state import FitState

# Steps between corrections: few enough that radii do not shrink much in between.
_EVERY = 20
# A sphere whose center is just outside an image still shows in it.
_MARGIN = 0.15


def bound_due(settings: FitSettings, done: int) -> bool:
    """Says whether `bound_radii` comes after step number `done`, counted from 1."""
    return settings.smallest_radius > 0 and done % _EVERY == 0


def bound_radii(state: FitState, cameras: list[PinholeCamera], settings: FitSettings) -> FitState:
    """Enlarges spheres that are smaller than the sharpest pixels that see them.

    They become as much more transparent as they grow, so that they cover as much. A sphere that
    no training view resolves can then not turn into a speck when it is seen from nearby.

    Args:
        state: After a step; donated and dead afterwards.
        cameras: Stacks of the training views, in scene coordinates.
        settings: `smallest_radius` is used.

    References:
        Yu et al., "Mip-Splatting: Alias-free 3D Gaussian Splatting", CVPR 2024, section 5.1, whose
        filter is part of the model; here parameters are corrected, and the model stays plain.
    """
    return _bound(settings.smallest_radius, state, cameras)


def sharpest_pixels(
    centers: Float[Array, "spheres 3"], cameras: PinholeCamera
) -> Float[Array, " spheres"]:
    """Computes the least width that a pixel of a view has where it sees a sphere.

    Args:
        centers: Of the spheres.
        cameras: A stack.

    Returns:
        Widths in the unit of the centers; infinity for a sphere that no view sees.
    """
    size = jnp.asarray(np.array([cameras.width, cameras.height]), centers.dtype)

    def look(least, camera):
        pixels, depth = camera.project(centers)
        place = pixels / jnp.broadcast_to(size, pixels.shape)
        inside = ((place >= -_MARGIN) & (place <= 1 + _MARGIN)).all(axis=-1)
        width = jnp.where(inside & (depth > 0), depth / camera.focal.max(), jnp.inf)
        return jnp.minimum(least, width), None

    # View by view: all of them at once would take memory for spheres times views.
    start = jnp.full(centers.shape[:1], jnp.inf, centers.dtype)
    return jax.lax.scan(look, start, cameras)[0]


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _bound(smallest: float, state: FitState, cameras: list[PinholeCamera]) -> FitState:
    params = state.params
    widths = [sharpest_pixels(params["centers"], stack) for stack in cameras]
    width = functools.reduce(jnp.minimum, widths)
    least = jnp.where(jnp.isfinite(width) & (width > 0), jnp.log(smallest * width), -jnp.inf)
    grown = jnp.maximum(least - params["log_radii"], 0.0)
    # Opacity falls with the area: log o' = log o - 2 grown, in terms of logits.
    logits = params["logit_opacities"]
    log_opacity = jax.nn.log_sigmoid(logits) - 2 * grown
    faded = log_opacity - jnp.log(-jnp.expm1(jnp.minimum(log_opacity, -1e-7)))
    params = {
        **params,
        "log_radii": params["log_radii"] + grown,
        "logit_opacities": jnp.where(grown > 0, faded, logits),
    }
    return dataclasses.replace(state, params=params)
