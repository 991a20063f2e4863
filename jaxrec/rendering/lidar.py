"""Rendering for lidars: what each beam brings back from a scene of spheres.

A sphere shows a lidar two features: its intensity and the logit of the probability that what hits
it is lost. All is blended along the rays by `blend`, whose beams are as wide as the lidar's.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from ..scene import Spheres
from ..sensors import Rays
from ._blend_reference import Limits, _alpha_weights, intersect
from ._blend_settings import BlendSettings, Kind, Stop
from ._mean import mean_of
from ._motion import since_spheres
from .blend import Blended, blend
from .render import Sensor

LIDAR_CHANNELS = 2
"""Features of a sphere that lidars see: intensity, and the logit of being dropped."""


class LidarRendering(NamedTuple):
    """What a lidar, or a stack of them, brings back.

    Attributes:
        ranges: Expected distance in metres from the ray's origin, 0 where nothing is seen.
        intensities: Of what is seen, 0 where nothing is.
        drops: Probability in [0, 1] that no return comes back.
        alpha: Share of the beam in [0, 1] that is stopped.
    """

    ranges: Float[Array, "*views rows columns"]
    intensities: Float[Array, "*views rows columns"]
    drops: Float[Array, "*views rows columns"]
    alpha: Float[Array, "*views rows columns"]


def render_lidar(
    spheres: Spheres,
    lidar: Sensor,
    *,
    near: ArrayLike,
    far: ArrayLike,
    gamma: ArrayLike = 0.1,
    kind: Kind = "alpha",
    stop: Stop | None = None,
    stop_p: float = 0.01,
    gradient_hits: int | None = None,
) -> LidarRendering:
    r"""Renders the living spheres of a scene for a lidar.

    Ranges and intensities are means over what stops the beam. A beam is dropped if it passes or if
    what it hits loses it: $1 - \alpha\,(1 - \sigma(l))$, where l is the mean of the spheres'
    logits. On the edge of a surface the mean range lies between that and what is behind;
    `first_surface` tells them apart, without gradient. A surface seen at a slant t seems nearer, by
    a share of the radius times tan(t): small spheres have sharp ranges, and training moves the
    others to where they seem right.

    Args:
        spheres: The scene at the time of the sweep; with velocities, each beam sees it at its own
            time. Its features are the intensity of each sphere and the logit of its drop
            probability.
        lidar: `SpinningLidar`, `RayBundle` or any other maker of rays, or a stack of them.
        near: Least distance in metres of a sphere's front; below the range of the lidar.
        far: Largest distance in metres of a sphere's front.
        gamma: Softness of `kind="softmax"`, in [1e-5, 1].
        kind: How spheres are blended. See `blend`.
        stop: When a ray may end early. See `blend`.
        stop_p: The share at which it does.
        gradient_hits: None for exact gradients, K for those of the K nearest hits.

    Returns:
        See `LidarRendering`. Differentiable once, in reverse mode, with respect to the spheres and
        every parameter of the lidar but its beam. Rays without a direction see nothing.

    Raises:
        ValueError: If spheres have other than two features, or an argument has the wrong shape,
            dtype or range.

    References:
        Tonderski et al., "NeuRAD: Neural Rendering for Autonomous Driving", CVPR 2024, section
        3.4: intensity and ray drop as features of the scene.
    """
    _check_channels(spheres)
    rays, single = _stacked(since_spheres(lidar.rays(), spheres))
    options = {"kind": kind, "stop": stop, "stop_p": stop_p, "gradient_hits": gradient_hits}
    out = _returns(_blended(spheres, rays, near=near, far=far, gamma=gamma, **options))
    return jax.tree.map(lambda x: x[0], out) if single else out


def first_surface(
    spheres: Spheres,
    lidar: Sensor,
    *,
    near: ArrayLike,
    far: ArrayLike,
    separation: float,
    hits: int = 16,
    stop: Stop | None = None,
    stop_p: float = 0.01,
) -> Float[Array, "*views rows columns"]:
    """Finds the distance of the surface that stops most of each beam, for evaluation.

    Of the hits, in the order in which `kind="alpha"` blends them, the first at which half of what
    is stopped has been stopped is the median; the range is the mean over hits within `separation`
    of it. So it never lies between two surfaces, where the expected range does, and on one surface
    it is as smooth as that, where the median alone jumps from center to center.

    Args:
        spheres: The scene at the time of the sweep, with any features.
        lidar: See `render_lidar`.
        near: Least distance in metres of a sphere's front.
        far: Largest distance in metres of a sphere's front.
        separation: Least distance in metres of two surfaces that the lidar tells apart, > 0.
        hits: How many of the nearest hits of a ray to look at. Where they stop less than half,
            what they show is fainter than what follows, and the expected range is returned.
        stop: When a ray may end early. See `blend`.
        stop_p: The share at which it does.

    Returns:
        Metres from the ray's origin, 0 where nothing is seen. Without gradient.

    Raises:
        ValueError: If an argument has the wrong shape, dtype or range.
    """
    if not separation > 0 or hits < 1:
        raise ValueError(
            f"first_surface: got separation={separation}, hits={hits}; give a distance above 0 and "
            "at least 1 hit"
        )
    spheres, rays = lax.stop_gradient((spheres, since_spheres(lidar.rays(), spheres)))
    rays, single = _stacked(rays)
    # Features do not matter, and three channels are the fastest.
    bare = dataclasses.replace(spheres, features=spheres.features[:, :1])
    options = {"kind": "alpha", "stop": stop, "stop_p": stop_p, "nearest": hits}
    seen = _blended(bare, rays, near=near, far=far, gamma=0.1, **options)
    settings = BlendSettings("alpha", stop, stop_p)
    limits = Limits(*(jnp.asarray(x, spheres.centers.dtype) for x in (near, far, 0.1, 1e-6)))
    along, weights = _nearest_hits(settings, limits, spheres, rays, seen)
    passed = jnp.cumsum(weights, axis=-1)
    half = passed >= seen.alpha[..., None] / 2
    enough = jnp.any(half, axis=-1) & (seen.alpha > 0)
    at = jnp.argmax(half, axis=-1)[..., None]
    median = jnp.take_along_axis(along, at, axis=-1)
    weights = jnp.where(jnp.abs(along - median) <= separation, weights, 0)
    total = jnp.where(enough, weights.sum(axis=-1), 1)
    mean = (weights * along).sum(axis=-1) / total
    ranges = jnp.where(enough, mean, mean_of(seen.depth, seen.alpha))
    return ranges[0] if single else ranges


def second_return(
    spheres: Spheres,
    lidar: Sensor,
    first: Float[Array, "*views rows columns"],
    *,
    separation: float,
    far: ArrayLike,
    gamma: ArrayLike = 0.1,
    kind: Kind = "alpha",
    stop: Stop | None = None,
    stop_p: float = 0.01,
    gradient_hits: int | None = None,
) -> LidarRendering:
    """Renders the next surface along each ray behind the first.

    A second blend, along rays that start `separation` behind the first return. Spheres that reach
    in front of that place belong to the first surface and are not drawn.

    It says what is there, not whether a lidar has power left to see it: what the first surface
    stops does not reach the second. The share of the beam that does is 1 - alpha of the first
    rendering; a lidar reports the second return where that share, times the intensity, is above
    its noise. Two limits: behind the first return a beam counts as if it were everywhere as wide as
    from the mean of all first returns, for a view of rays has one footprint; and what is bent or
    mirrored by the first surface is not followed.

    Args:
        spheres: The scene, as for `render_lidar`.
        lidar: See `render_lidar`.
        first: Distances of first returns in metres: measured, or rendered. Where it is 0 or not
            finite there is no second. Without gradient, for it only says what is in front.
        separation: How far behind it the next surface begins, in metres: what the lidar can tell
            apart, > 0.
        far: Largest distance in metres of a sphere's front, from the first return.
        gamma: Softness of `kind="softmax"`, in [1e-5, 1].
        kind: How spheres are blended. See `blend`.
        stop: When a ray may end early. See `blend`.
        stop_p: The share at which it does.
        gradient_hits: None for exact gradients, K for those of the K nearest hits.

    Returns:
        See `LidarRendering`; ranges count from the lidar, and alpha is the share of what gets past
        the first surface. Differentiable as `render_lidar`.

    Raises:
        ValueError: If spheres have other than two features, `first` has another shape than the
            rays, or an argument has the wrong shape, dtype or range.
    """
    _check_channels(spheres)
    if not separation > 0:
        raise ValueError(f"separation: got {separation}; give a distance above 0 in metres")
    rays = since_spheres(lidar.rays(), spheres)
    if first.shape != rays.directions.shape[:-1]:
        raise ValueError(
            f"first: got shape {list(first.shape)} for rays of {list(rays.directions.shape[:-1])}; "
            "give one distance for each ray"
        )
    rays, single = _stacked(rays)
    first = lax.stop_gradient(first[None] if single else first)
    known = jnp.isfinite(first) & (first > 0)
    start = jnp.where(known, first + separation, 0)
    options = {"kind": kind, "stop": stop, "stop_p": stop_p, "gradient_hits": gradient_hits}
    later = _behind(rays, start, known)
    out = _returns(_blended(spheres, later, near=0.0, far=far, gamma=gamma, **options))
    out = out._replace(ranges=jnp.where(out.alpha > 0, start + out.ranges, 0))
    return jax.tree.map(lambda x: x[0], out) if single else out


def _blended(spheres: Spheres, rays: Rays, **options) -> Blended:
    """The one place where lidars meet the op."""
    channels = spheres.features.shape[-1]
    return blend(
        spheres.centers,
        jnp.where(spheres.alive, spheres.radii, -1),
        spheres.opacities,
        spheres.features,
        rays,
        jnp.zeros((channels,), spheres.centers.dtype),
        velocities=spheres.velocities,
        **options,
    )


def _stacked(rays: Rays) -> tuple[Rays, bool]:
    single = rays.origins.ndim == 3
    return (jax.tree.map(lambda x: x[None], rays) if single else rays), single


def _check_channels(spheres: Spheres) -> None:
    found = spheres.features.shape[-1]
    if found != LIDAR_CHANNELS:
        raise ValueError(
            f"spheres: got {found} features; give {LIDAR_CHANNELS}, the intensity and the logit of "
            "the drop probability (dataclasses.replace(spheres, features=...))"
        )


def _returns(blended: Blended) -> LidarRendering:
    alpha = blended.alpha
    intensity, logit = (mean_of(blended.features[..., i], alpha) for i in range(LIDAR_CHANNELS))
    return LidarRendering(
        ranges=mean_of(blended.depth, alpha),
        intensities=intensity,
        drops=1 - alpha * jax.nn.sigmoid(-logit),
        alpha=alpha,
    )


def _behind(rays: Rays, start: Array, known: Array) -> Rays:
    """The rays from further on, where they are known to get there."""
    count = jnp.maximum(known.sum(axis=(1, 2)), 1).astype(start.dtype)
    mean = jnp.where(known, start, 0).sum(axis=(1, 2)) / count
    width, spread = rays.footprint[..., 0], rays.footprint[..., 1]
    return dataclasses.replace(
        rays,
        origins=rays.origins + start[..., None] * rays.directions,
        directions=jnp.where(known[..., None], rays.directions, jnp.nan),
        footprint=jnp.stack([width + spread * mean, spread], axis=-1),
    )


def _nearest_hits(
    settings: BlendSettings, limits: Limits, spheres: Spheres, rays: Rays, seen: Blended
) -> tuple[Float[Array, "views rows columns hits"], Float[Array, "views rows columns hits"]]:
    """Distances of the nearest hits in the order in which they are blended, and their weights."""
    assert seen.ids is not None
    found = jnp.maximum(seen.ids, 0)
    centers, opacities = spheres.centers[found], spheres.opacities[found]
    radii = jnp.where(seen.ids >= 0, spheres.radii[found], -1)
    if spheres.velocities is not None and rays.times is not None:
        centers = centers + spheres.velocities[found] * rays.times[..., None, None]
    apart = centers - rays.origins[..., None, :]
    front = (apart * rays.directions[..., None, :]).sum(axis=-1) - radii
    order = jnp.argsort(jnp.where(seen.ids >= 0, front, jnp.inf), axis=-1)
    centers = jnp.take_along_axis(centers, order[..., None], axis=-2)
    radii, opacities = (jnp.take_along_axis(x, order, axis=-1) for x in (radii, opacities))

    def along_ray(centers, radii, opacities, origin, direction, footprint):
        chord = intersect(limits, centers, radii, origin[None], direction[None], footprint)
        weighed = _alpha_weights(
            settings, limits, chord, chord.hit, radii[None], opacities[None], None
        )
        return chord.along[0], weighed[1][0]

    row = jax.vmap(along_ray, (0, 0, 0, 0, 0, None))
    view = jax.vmap(row, (0, 0, 0, 0, 0, None))
    return jax.vmap(view)(centers, radii, opacities, rays.origins, rays.directions, rays.footprint)
