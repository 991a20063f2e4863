"""Blending of spheres along rays: the one operation with native kernels."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from .. import _ffi
from ..sensors import Rays
from ._blend_native import blend_native, blend_vjp_native, kept_shape
from ._blend_reference import Motion, blend_reference, interval_of, valid_rays
from ._blend_settings import MAX_CHANNELS, BlendSettings, Kind, Stop
from ._check import check_operands

_LIMITS = ("near", "far", "gamma", "background_depth")


class Blended(NamedTuple):
    """What `blend` returns for each ray."""

    features: Float[Array, "v h w c"]
    depth: Float[Array, "v h w"]
    alpha: Float[Array, "v h w"]
    ids: Int[Array, "v h w k"] | None
    counts: Int[Array, "v h w"] | None


def blend(
    centers: Float[Array, "n 3"],
    radii: Float[Array, " n"],
    opacities: Float[Array, " n"],
    features: Float[Array, "n c"],
    rays: Rays,
    background: Float[Array, " c"] | Float[Array, "v h w c"],
    *,
    near: ArrayLike,
    far: ArrayLike,
    gamma: ArrayLike,
    background_depth: ArrayLike = 1e-6,
    kind: Kind,
    stop: Stop | None = None,
    stop_p: float = 0.01,
    gradient_hits: int | None = None,
    nearest: int = 0,
    hit_counts: bool = False,
    tile: int = 16,
    velocities: Float[Array, "n 3"] | None = None,
) -> Blended:
    r"""Blends the spheres that each ray meets, near ones over far ones.

    A ray with origin o and unit direction n meets a sphere (center c, radius r) at
    $a = (c - o) \cdot n$ along and $p$ beside it. The beam has half-width $e = e_0 + e_1 x$ at
    distance $x$. The sphere is hit if its chord $w \le r$, or if it is *thin*: $w < 1.5 e$ and
    $r < 2 e$, so that no sphere is lost between rays. It is drawn only as a whole: near <= x - r
    and x - r <= far. The front surface lies at $\zeta = a - \sqrt{r^2 - p^2}$.

    `kind="softmax"` is Pulsar's order-independent blend: weight
    $o\,d\,\exp(o\,z/\gamma)$ with $z = 1 - (\zeta - near)/(far - near)$ and the falloff
    $d = 1 - w/r$ (1 if thin), against a background of weight $\exp(background\_depth/\gamma)$.
    `kind="alpha"` composites front to back with $\alpha = o\,(1 - p^2/r^2)^2$ (thin spheres:
    o times the covered share of the beam) until the transmittance falls below 1e-4; spheres must
    lie ahead of the ray's origin.

    With `velocities` v, a ray that is measured at time t sees the center $c + v\,t$: `rays.times`
    count from when the centers hold. Radii, opacities and features do not change. The spheres of
    a view are drawn in one order, that in which they lie in the middle of its times. Rays without
    times, of a global shutter, are all measured when the centers hold, and see no motion.

    float32 runs on native kernels where they exist; float64 runs the plain JAX definition.

    Args:
        centers: Sphere centers in metres.
        radii: Radii in metres, >= 0. A negative radius hides its sphere, and so does any value of
            it that is not finite.
        opacities: Opacities in [0, 1].
        features: What is blended: colours or any other channels.
        rays: A stack of views, grids of rays `[V, H, W]`. Views share the spheres. A ray that is
            not finite or has no unit direction shows the background.
        background: What is behind all spheres, one value or one for each ray.
        near: Least distance in metres of a sphere's front, >= 0. Not differentiable.
        far: Largest distance in metres of a sphere's front, > near. Not differentiable.
        gamma: Softness of `softmax` in [1e-5, 1]: small is hard. Not differentiable.
        background_depth: Normalised depth of the background for `softmax`, in (0, 1), 0 being
            `far`. Not differentiable.
        kind: The blending rule.
        stop: None draws every hit. "per_sphere" ends a ray before the first sphere whose share of
            the result cannot exceed `stop_p`; "total" where all that is omitted cannot.
        stop_p: The share in [0, 1) at which to stop.
        gradient_hits: None gives exact gradients. K gives gradients to the K nearest hits of each
            ray only, as Pulsar does; the result does not change.
        nearest: How many ids of the nearest drawn hits to return.
        hit_counts: Whether to return how many hits each ray draws.
        tile: Side in rays of the squares that are culled together: 8, 16 or 32. A choice of
            speed that changes no result.
        velocities: Of the centers in metres per second, in the axes of the world; None where
            nothing moves, which is faster. One that is not finite hides its sphere, and so does
            a time its ray.

    Returns:
        Features; depth (the blend of $\zeta$ or, for `alpha`, of $a$, over a background of
        0, not divided by alpha); alpha, the spheres' share of the result; ids of the `nearest`
        hits by front depth (-1: none) and hit counts, or None where not asked for. The
        floating-point results are differentiable once, in reverse mode, with respect to
        centers, radii, opacities, features, background, velocities and the rays' origins,
        directions (the part across the ray) and times.

    Raises:
        ValueError: If a shape, dtype or option is not as described.

    References:
        Lassner and Zollhoefer, "Pulsar: Efficient Sphere-based Neural Rendering", CVPR 2021,
        section 3.
    """
    settings = BlendSettings(kind, stop, stop_p, gradient_hits, nearest, hit_counts, tile)
    check_operands(centers, radii, opacities, features, rays, background, velocities)
    dtype = centers.dtype
    if background.ndim == 1:
        background = background[None, None, None]
    limits = [jnp.asarray(x, dtype) for x in (near, far, gamma, background_depth)]
    rays, motion = _motion(velocities, rays)
    operands = _ffi.vary_together(
        [centers, radii, opacities, features, rays.origins, rays.directions]
        + [lax.stop_gradient(rays.footprint), background, *motion, *limits]
    )
    out = _blend_channels(settings, operands)
    return Blended(
        *out[:3],
        ids=out[3][..., :nearest] if nearest else None,
        counts=out[4] if hit_counts else None,
    )


def _motion(velocities: jax.Array | None, rays: Rays) -> tuple[Rays, tuple[jax.Array, ...]]:
    """The rays that are measured at a known time and, unless all is still, a `Motion`."""
    if velocities is None or rays.times is None:
        return rays, ()
    known = jnp.isfinite(rays.times)
    times = jnp.where(known, rays.times, 0)
    directions = jnp.where(known[..., None], rays.directions, jnp.nan)
    interval = interval_of(times, valid_rays(rays.origins, directions))
    rays = dataclasses.replace(rays, directions=directions, times=times)
    return rays, Motion(velocities, times, lax.stop_gradient(interval))


def _blend_channels(settings: BlendSettings, operands: list[jax.Array]) -> tuple:
    # More channels than one pass takes: as many passes, which agree in all else.
    channels = operands[3].shape[-1]
    op = _op(settings)
    if channels <= MAX_CHANNELS:
        return op(*operands)
    parts = []
    for start in range(0, channels, MAX_CHANNELS):
        chunk = list(operands)
        for i in (3, 7):
            chunk[i] = operands[i][..., start : start + MAX_CHANNELS]
        parts.append(op(*chunk))
    return (jnp.concatenate([part[0] for part in parts], axis=-1), *parts[0][1:])


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Flags:
    need: tuple[bool, ...]  # one for each operand but the limits


@functools.lru_cache(maxsize=256)
def _op(settings: BlendSettings):
    """The differentiable op for one set of options; equal options share one traced function."""

    @jax.custom_vjp
    def op(*operands):
        return tuple(_forward(settings, operands)[:5])

    def fwd(*primals):
        for name, primal in zip(_LIMITS, primals[-4:], strict=True):
            if primal.perturbed:
                raise ValueError(
                    f"blend: {name} has no gradient; pass jax.lax.stop_gradient({name})"
                )
        operands = tuple(primal.value for primal in primals)
        outputs = _forward(settings, operands)
        need = [bool(primal.perturbed) for primal in primals[:-4]]
        need[6] = False  # the footprint carries no gradient
        need[10:] = [False] * len(need[10:])  # nor does the interval
        flags = _Flags(tuple(need))
        # No empty array may cross the border of a shard_map: it crashes the compiler of jax 0.11.
        saved = [x if settings.tracked or i != 3 else None for i, x in enumerate(outputs)]
        if settings.kind == "softmax" and settings.gradient_hits is not None:
            saved[7] = None  # the nearest hits are known: nobody walks again
        return tuple(outputs[:5]), (flags, operands, saved)

    def bwd(residuals, cotangents):
        flags, operands, saved = residuals
        outputs = list(saved)
        if outputs[3] is None:
            outputs[3] = jnp.zeros((*outputs[4].shape, 0), jnp.int32)
        if outputs[7] is None:
            outputs[7] = jnp.zeros((outputs[4].shape[0], 1), jnp.uint8)
        return _backward(settings, flags.need, operands, outputs, cotangents[:3])

    op.defvjp(fwd, bwd, symbolic_zeros=True)
    return op


def _forward(settings: BlendSettings, operands) -> Sequence[jax.Array]:
    def native(library, *operands):
        limits = jnp.stack(operands[-4:])
        return blend_native(library, settings, *_scene(operands), operands[7], limits)

    def reference(*operands):
        out = _defined(settings, operands)
        rest = jnp.zeros((*out[1].shape, 2), out[1].dtype)
        kept = jnp.zeros(kept_shape(settings, operands), jnp.uint8)
        return _ffi.vary_together([operands[0], *out, rest, jnp.zeros_like(out[4]), kept])[1:]

    if operands[0].dtype != np.float32:
        return reference(*operands)
    return _ffi.dispatch(native, reference, *operands)


def _defined(settings: BlendSettings, operands) -> tuple:
    motion = Motion(*operands[8:-4]) if operands[8:-4] else None
    return blend_reference(settings, *operands[:8], *operands[-4:], motion=motion)


def _scene(operands) -> tuple:
    """What both kernels take first; arrays without elements say that nothing moves."""
    dtype = operands[0].dtype
    still = tuple(jnp.zeros(shape, dtype) for shape in ((0, 3), (0, 0, 0), (0, 0)))
    return (*operands[:7], *(operands[8:-4] or still))


def _backward(settings, need, operands, outputs, cotangents) -> tuple:
    zeros = tuple(isinstance(d, jax.custom_derivatives.SymbolicZero) for d in cotangents)
    like = operands[4]
    cotangents = [
        jnp.zeros((1,) * d.ndim, like.dtype) if zero else d
        for d, zero in zip(cotangents, zeros, strict=True)
    ]
    cotangents = _ffi.vary_together([like, *cotangents])[1:]

    def native(library, *args):
        gradients = _native_vjp(library, settings, need, args[:last], args[last:-3], args[-3:])
        return tuple(gradients)

    def reference(*args):
        return _reference_vjp(settings, need, args[:last], args[last:-3], args[-3:])

    last = len(operands)
    args = (*operands, *outputs, *cotangents)
    if not any(need):
        found = iter(())
    elif operands[0].dtype != np.float32:
        found = iter(reference(*args))
    else:
        found = iter(_ffi.dispatch(native, reference, *args))
    # Zeros that nobody reads rather than None: jax 0.8.0 wants the same structure at every call.
    gradients = [
        next(found) if needed else _ffi.vary_together([x, jnp.zeros(x.shape, x.dtype)])[1]
        for x, needed in zip(operands[:-4], need, strict=True)
    ]
    return (*gradients, None, None, None, None)


def _reference_vjp(settings, need, operands, outputs, cotangents) -> tuple[jax.Array, ...]:
    wanted = [i for i, needed in enumerate(need) if needed]

    def function(*values):
        full = list(operands)
        for i, value in zip(wanted, values, strict=True):
            full[i] = value
        return tuple(_defined(settings, full)[:3])

    _, pullback = jax.vjp(function, *(operands[i] for i in wanted))
    full = [jnp.broadcast_to(d, x.shape) for d, x in zip(cotangents, outputs, strict=False)]
    gradients = list(pullback(tuple(full)))
    if need[5]:  # a unit vector moves only across itself
        i, n = wanted.index(5), operands[5]
        ahead = jnp.sum(gradients[i] * n, axis=-1, keepdims=True)
        gradients[i] = jnp.where(jnp.isfinite(n), gradients[i] - ahead * n, 0)
    return tuple(gradients)


def _native_vjp(library, settings, need, operands, outputs, cotangents) -> list[jax.Array]:
    d_features, d_depth, d_alpha = cotangents
    background, limits = operands[7], operands[-4:]
    normalizer, last, kept = outputs[5:]
    own = _dot(d_features, outputs[0]) + d_depth * outputs[1] + d_alpha * outputs[2]
    behind = jnp.broadcast_to(_dot(d_features, background), own.shape)
    level = jnp.stack([own, behind], axis=-1)
    if settings.kind == "softmax":
        start = np.float32(np.log2(np.e)) * limits[3] / limits[2]
        rest = jnp.exp2(start - normalizer[..., 0]) / normalizer[..., 1]
    else:
        rest = normalizer[..., 0]
    gradients, of_motion = [], []
    wanted = (*need[:6], *(need[8:10] or (False, False)))
    if any(wanted):
        found = blend_vjp_native(
            library, settings, wanted, *_scene(operands), jnp.stack(limits),
            normalizer, last, outputs[3], kept, d_features, d_depth, d_alpha, level,
        )  # fmt: skip
        gradients = [d for d, needed in zip(found[:6], wanted[:6], strict=True) if needed]
        of_motion = [d for d, needed in zip(found[6:], wanted[6:], strict=True) if needed]
    if need[7]:
        d_background = rest[..., None] * jnp.broadcast_to(d_features, outputs[0].shape)
        axes = tuple(i for i in range(3) if background.shape[i] == 1 != d_background.shape[i])
        gradients.append(d_background.sum(axis=axes, keepdims=True))
    return gradients + of_motion


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    # Over the channels, term by term: XLA's own sum over a short last axis takes 4.3 ms for
    # 256 x 256 x 3 on a CPU where this takes 0.06.
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    a, b = jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)
    return sum((a[..., c] * b[..., c] for c in range(1, shape[-1])), start=a[..., 0] * b[..., 0])


def export_checks() -> list[Any]:
    """Safety checks that `jax.export.export` must skip for programs that call `blend`.

    Returns:
        A list for its argument `disabled_checks`. Whoever loads the exported program must import
        jaxrec first.
    """
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in _ffi.targets()]
