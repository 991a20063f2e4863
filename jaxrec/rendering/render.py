"""Rendering: a scene of spheres, seen by a sensor."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..scene import Spheres
from ..sensors import Rays
from ._blend_settings import Kind, Stop
from ._mean import mean_of
from ._motion import since_spheres
from .blend import blend


@runtime_checkable
class Sensor(Protocol):
    """Anything that makes rays: a pure function of its parameters."""

    def rays(self) -> Rays:
        """Returns the grid of rays along which the sensor looks, in world coordinates."""
        ...


class Rendering(NamedTuple):
    """A rendered view, or a stack of views."""

    features: Float[Array, "*views h w c"]
    depth: Float[Array, "*views h w"]
    alpha: Float[Array, "*views h w"]


def render(
    spheres: Spheres,
    sensor: Sensor,
    *,
    near: ArrayLike,
    far: ArrayLike,
    gamma: ArrayLike = 0.1,
    background: ArrayLike = 0.0,
    kind: Kind = "alpha",
    stop: Stop | None = None,
    stop_p: float = 0.01,
    gradient_hits: int | None = None,
) -> Rendering:
    """Renders the living spheres of a scene.

    Args:
        spheres: The scene. If it has velocities, each ray of a sensor that tells times sees the
            spheres where they are then; others see them at `Spheres.time`.
        sensor: A camera or any other maker of rays; for several views of one size a stack of
            them (`jax.tree.map(lambda *x: jnp.stack(x), *cameras)`), which share the spheres
            without copies.
        near: Least distance in metres of a sphere's front. Nearer spheres are not drawn.
        far: Largest distance in metres of a sphere's front.
        gamma: Softness of `kind="softmax"`, in [1e-5, 1].
        background: Features behind the scene: one number, `[C]`, or one for each pixel.
        kind: "alpha" composites front to back; "softmax" is Pulsar's soft blend. See `blend`.
        stop: When a ray may end early. See `blend`.
        stop_p: The share at which it does.
        gradient_hits: None for exact gradients, K for those of the K nearest hits.

    Returns:
        Features, expected depth in metres (0 where nothing is seen) and alpha in [0, 1] of each
        pixel. Differentiable once, in reverse mode, with respect to the spheres, the background
        and every parameter of the sensor.

    Raises:
        ValueError: If an argument has the wrong shape, dtype or range.
    """
    rays = since_spheres(sensor.rays(), spheres)
    single = rays.origins.ndim == 3
    if single:
        rays = jax.tree.map(lambda x: x[None], rays)
    dtype, channels = spheres.centers.dtype, spheres.features.shape[-1]
    behind = jnp.asarray(background, dtype)
    if behind.ndim == 0:
        behind = jnp.full((channels,), behind)
    if single and behind.ndim == 3:
        behind = behind[None]
    blended = blend(
        spheres.centers,
        jnp.where(spheres.alive, spheres.radii, -1),
        spheres.opacities,
        spheres.features,
        rays,
        behind,
        near=near,
        far=far,
        gamma=gamma,
        kind=kind,
        stop=stop,
        stop_p=stop_p,
        gradient_hits=gradient_hits,
        velocities=spheres.velocities,
    )
    depth = mean_of(blended.depth, blended.alpha)
    out = Rendering(blended.features, depth, blended.alpha)
    return jax.tree.map(lambda x: x[0], out) if single else out
