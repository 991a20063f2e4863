"""Blending of spheres along rays in plain JAX: the definition that every kernel is tested against.

Dense (every ray against every sphere, a row of rays at a time), for any platform and any float
dtype. `jaxrec.blend` documents the arguments. Symbols: a sphere of radius r at v from the ray's
origin lies a = v.n along the ray and p beside it; the beam's half-width is e0 + e1 x.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ._blend_settings import BlendSettings

UNIT_TOLERANCE = 1e-3  # a direction whose squared length is further from 1 is no direction
THIN_AREA = 6.75  # r^2 / (6.75 e^2): flat coverage over w < 1.5 e with the kernel's integral
PARALLEL_TOLERANCE = 1e-6  # directions of a view that differ by less are one direction


class Limits(NamedTuple):
    """Traced scalars of a blend: see `jaxrec.blend`."""

    near: Float[Array, ""]
    far: Float[Array, ""]
    gamma: Float[Array, ""]
    background_depth: Float[Array, ""]


class ViewOrder(NamedTuple):
    """Front-to-back order of all spheres for one view."""

    order: Int[Array, " n"]
    keys: Float[Array, " n"]  # x - r from the view's mean beam, ascending
    slack: Float[Array, ""]  # how far a ray's own x - r may lie below the key


class Motion(NamedTuple):
    """How spheres move while the rays of some views are measured."""

    velocities: Float[Array, "n 3"]
    times: Float[Array, "v h w"]  # since the centers hold
    interval: Float[Array, "v 2"]  # the middle of a view's times, and how far they go from it


class Chord(NamedTuple):
    """How one row of rays meets all spheres."""

    hit: Bool[Array, "w n"]
    thin: Bool[Array, "w n"]
    along: Float[Array, "w n"]  # a
    zeta: Float[Array, "w n"]  # depth of the front surface
    falloff: Float[Array, "w n"]  # d
    squared_offset: Float[Array, "w n"]  # p^2
    half_width: Float[Array, "w n"]  # e(x)


def blend_reference(
    settings: BlendSettings,
    centers: Float[Array, "n 3"],
    radii: Float[Array, " n"],
    opacities: Float[Array, " n"],
    features: Float[Array, "n c"],
    origins: Float[Array, "v h w 3"],
    directions: Float[Array, "v h w 3"],
    footprint: Float[Array, "v 2"],
    background: Float[Array, "bv bh bw c"],
    *limits: ArrayLike,
    motion: Motion | None = None,
) -> tuple[Array, Array, Array, Array, Array]:
    """Returns features, depth, alpha, nearest ids and hit counts; see `jaxrec.blend`."""
    v, h, w, _ = origins.shape
    background = jnp.broadcast_to(background, (v, h, w, background.shape[-1]))
    if v * h * w == 0 or centers.shape[0] == 0:
        return _nothing(settings, background)
    bound = Limits(*(jnp.asarray(x, centers.dtype) for x in limits))
    valid = valid_rays(origins, directions)
    visible = visible_spheres(centers, radii, opacities, features)
    if motion is not None:
        visible = visible & jnp.isfinite(motion.velocities).all(axis=-1)
        motion = motion._replace(velocities=jnp.where(visible[:, None], motion.velocities, 0))
    radii = jnp.where(visible, radii, -1)
    origins = jnp.where(valid[..., None], origins, 0)
    directions = jnp.where(valid[..., None], directions, 0)
    spheres = (
        jnp.where(visible[:, None], centers, 0),
        radii,
        jnp.where(visible, opacities, 0),
        jnp.where(visible[:, None], features, 0),
    )
    if motion is None:
        orders = jax.vmap(functools.partial(view_order, spheres[0], radii))(
            origins, directions, valid, footprint
        )
    else:
        orders = jax.vmap(functools.partial(_moving_order, spheres[0], radii, motion.velocities))(
            motion.interval, origins, directions, valid, footprint
        )
        spheres = (*spheres, motion.velocities)
    row = jax.checkpoint(functools.partial(_blend_row, settings, bound, spheres, orders, footprint))
    rows = (
        jnp.repeat(jnp.arange(v), h),
        origins.reshape(v * h, w, 3),
        directions.reshape(v * h, w, 3),
        valid.reshape(v * h, w),
        background.reshape(v * h, w, -1),
        None if motion is None else motion.times.reshape(v * h, w),
    )
    outputs = lax.map(row, rows)
    return tuple(x.reshape(v, h, *x.shape[1:]) for x in outputs)


def _nothing(settings, background):
    grid = background.shape[:-1]
    zero = jnp.zeros(grid, background.dtype)
    ids = jnp.full((*grid, settings.tracked), -1, jnp.int32)
    return background, zero, zero, ids, jnp.zeros(grid, jnp.int32)


def valid_rays(
    origins: Float[Array, "*g 3"], directions: Float[Array, "*g 3"]
) -> Bool[Array, "*g"]:
    """Marks the rays that are finite and have a unit direction; others show the background."""
    square = jnp.sum(directions * directions, axis=-1)
    return jnp.isfinite(origins).all(axis=-1) & (jnp.abs(square - 1) <= UNIT_TOLERANCE)


def visible_spheres(centers, radii, opacities, features) -> Bool[Array, " n"]:
    """Marks the spheres that are finite and have a radius that is not negative."""
    finite = jnp.isfinite(centers).all(axis=-1) & jnp.isfinite(radii) & jnp.isfinite(opacities)
    return finite & jnp.isfinite(features).all(axis=-1) & (radii >= 0)


def interval_of(times: Float[Array, "v h w"], valid: Bool[Array, "v h w"]) -> Float[Array, "v 2"]:
    """The middle of the times of each view's valid rays, and how far they go from it."""
    first = jnp.min(jnp.where(valid, times, jnp.inf), axis=(1, 2), initial=jnp.inf)
    last = jnp.max(jnp.where(valid, times, -jnp.inf), axis=(1, 2), initial=-jnp.inf)
    some = first <= last
    first, last = jnp.where(some, first, 0), jnp.where(some, last, 0)
    middle = first + (last - first) / 2
    return jnp.stack([middle, jnp.maximum(last - middle, middle - first)], axis=-1)


def _masked_mean(values: Float[Array, "h w 3"], valid: Bool[Array, "h w"]) -> Float[Array, " 3"]:
    # Mean of the deviations from the first valid value: exact when all values are equal.
    flat, mask = values.reshape(-1, 3), valid.reshape(-1)
    first = flat[jnp.argmax(mask)]
    count = jnp.maximum(mask.sum(), 1).astype(values.dtype)
    return first + jnp.sum(jnp.where(mask[:, None], flat - first[None], 0), axis=0) / count


def _moving_order(centers, radii, velocities, interval, *rays) -> ViewOrder:
    # Where spheres are in the middle of the exposure.
    sweep = jnp.sqrt(jnp.sum(velocities * velocities, axis=-1)) * interval[1]
    return view_order(centers + velocities * interval[0], radii, *rays, sweep=sweep)


def view_order(centers, radii, origins, directions, valid, footprint, *, sweep=0.0) -> ViewOrder:
    """Sorts spheres by x - r seen along the view's mean beam, ties by index.

    `sweep` is how far spheres move from where they are sorted.
    """
    sweep = lax.stop_gradient(jnp.broadcast_to(jnp.asarray(sweep, radii.dtype), radii.shape))
    centers, radii, origins, directions, footprint = lax.stop_gradient(
        (centers, radii, origins, directions, footprint)
    )
    origin = _masked_mean(origins, valid)
    mean = _masked_mean(directions, valid)
    spread = jnp.where(valid[..., None], directions - mean[None, None], 0)
    parallel = (footprint[1] == 0) & (jnp.max(jnp.abs(spread)) <= PARALLEL_TOLERANCE)
    point = (footprint[0] == 0) & (footprint[1] > 0)

    v = centers - origin[None]
    distance = jnp.sqrt(jnp.sum(v * v, axis=-1))
    keys = jnp.where(parallel, jnp.sum(v * mean[None], axis=-1), distance) - radii
    keys = jnp.where(radii >= 0, keys, jnp.inf)
    order = jnp.argsort(keys, stable=True)

    offset = jnp.where(valid[..., None], origins - origin[None, None], 0)
    shift = jnp.where(
        parallel,
        jnp.max(jnp.abs(jnp.sum(offset * mean[None, None], axis=-1))),
        jnp.max(jnp.sqrt(jnp.sum(offset * offset, axis=-1))),
    )
    # Neither parallel nor a point camera: x of a hit lies below |v| by up to this much.
    half_width = footprint[0] + footprint[1] * (distance + shift + sweep)
    reach = jnp.where(radii < 2 * half_width, jnp.maximum(radii, 1.5 * half_width), radii)
    nearest = distance - sweep
    rest = jnp.sqrt(jnp.maximum(nearest * nearest - reach * reach, 0))
    drop = jnp.where((sweep > 0) & (nearest < reach), reach, nearest - rest)
    drop = jnp.where(parallel | point, 0, drop) + sweep
    shift = shift + jnp.max(jnp.where(radii >= 0, drop, 0), initial=0)
    return ViewOrder(order, keys[order], shift)


def intersect(limits: Limits, centers, radii, origins, directions, footprint) -> Chord:
    """Meets W rays with N spheres; design of the rule: one for every kind of beam.

    Centers are those of all rays or, `[W, N, 3]`, of each.
    """
    e0, e1 = footprint[0], footprint[1]
    v = (centers if centers.ndim == 3 else centers[None]) - origins[:, None]
    n = directions[:, None]
    along = jnp.sum(v * n, axis=-1)
    beside = v - along[..., None] * n
    p2 = jnp.sum(beside * beside, axis=-1)
    apex = along + jnp.where(e1 > 0, e0 / jnp.where(e1 > 0, e1, 1), 0)
    hypotenuse = _safe_sqrt(apex * apex + p2)
    forward = apex + hypotenuse
    q = jnp.where(apex > 0, p2 / jnp.where(apex > 0, forward, 1), hypotenuse - apex)
    q = jnp.where(e1 > 0, q, 0)
    x = along + q
    p, w = _safe_sqrt(p2), _safe_sqrt(p2 + q * q)
    r = radii[None]
    half_width = e0 + e1 * x
    thin = (w < 1.5 * half_width) & (r < 2 * half_width)
    closest = x - r
    hit = ((w <= r) | thin) & (closest >= limits.near) & (closest <= limits.far) & (r >= 0)
    s = _safe_sqrt((r + p) * jnp.maximum(r - p, 0))
    falloff = jnp.where(thin, 1, 1 - w / jnp.where(r > 0, r, 1))
    return Chord(hit, thin, along, along - s, falloff, p2, half_width)


def _safe_sqrt(x):
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


def _blend_row(settings, limits, spheres, orders, footprint, row):
    view, origins, directions, valid, background, times = row
    order = jax.tree.map(lambda x: x[view], orders)
    centers, radii, opacities, features, *velocities = (x[order.order] for x in spheres)
    for velocity in velocities:  # one, if they move
        centers = centers[None] + velocity[None] * times[:, None, None]
    chord = intersect(limits, centers, radii, origins, directions, footprint[view])
    weigh = {"softmax": _softmax_weights, "alpha": _alpha_weights}[settings.kind]
    hit = chord.hit & valid[:, None]
    radii, opacities, features = radii[None], opacities[None], features[None]
    drawn, weights, rest, depth = weigh(settings, limits, chord, hit, radii, opacities, order)
    ids = _nearest(settings, drawn, chord.zeta, order.order)
    if settings.gradient_hits is not None:
        # The same result once more, of which only the nearest hits' own terms are variables.
        indices = order.order.astype(jnp.int32)[None, :, None]
        chosen = (ids[:, None, : settings.gradient_hits] == indices).any(axis=-1)
        chord, radii, opacities = jax.tree.map(
            lambda x: _only(chosen, x), (chord, radii, opacities)
        )
        features = _only(chosen[..., None], features)
        _, weights, rest, depth = weigh(settings, limits, chord, hit, radii, opacities, order)
    blended = jnp.concatenate(
        [features * weights[..., None], jnp.stack([weights * depth, weights], axis=-1)], axis=-1
    )
    blended = blended.sum(axis=1)
    if settings.kind == "softmax":  # weights and rest are relative to each other
        total = blended[:, -1] + rest
        blended, rest = blended / total[:, None], rest / total
    color = blended[:, :-2] + rest[:, None] * background
    return color, blended[:, -2], blended[:, -1], ids, drawn.sum(axis=1, dtype=jnp.int32)


def _softmax_weights(settings, limits, chord, hit, radii, opacities, order):
    """Pulsar's blend: drawn hits, their weights and the background's over e^m, and depths."""
    del radii
    extent = limits.far - limits.near
    exponent = opacities * (1 - (chord.zeta - limits.near) / extent) / limits.gamma
    share = opacities * chord.falloff
    counted = hit & (share > 0)
    logs = jnp.where(counted, exponent + jnp.log(jnp.where(counted, share, 1)), -jnp.inf)
    logs = lax.stop_gradient(logs)
    start = limits.background_depth / limits.gamma
    drawn = hit
    if settings.logit_stop > -jnp.inf:
        before = jnp.pad(logs[:, :-1], ((0, 0), (1, 0)), constant_values=-jnp.inf)
        before = jnp.logaddexp(lax.cumlogsumexp(before, axis=1), start)
        if settings.stop == "total":
            omitted = lax.cumlogsumexp(logs, axis=1, reverse=True)
        else:
            omitted = ((1 - (order.keys - order.slack - limits.near) / extent) / limits.gamma)[None]
        drawn = hit & (omitted > before + settings.logit_stop)
    top = jnp.maximum(jnp.max(jnp.where(drawn, logs, -jnp.inf), axis=1), start)
    top = lax.stop_gradient(top)[:, None]
    # Not counted but drawn: weight 0 with a derivative, for an opacity of 0 may rise.
    power = jnp.where(counted, exponent - top, jnp.minimum(exponent - top, 0))
    weights = jnp.where(drawn, share * jnp.exp(jnp.where(drawn, power, 0)), 0)
    return drawn, weights, jnp.exp(start - top[:, 0]), chord.zeta


def _alpha_weights(settings, limits, chord, hit, radii, opacities, order):
    """Front-to-back compositing: drawn hits, their weights, what passes them all, and depths."""
    del limits, order
    hit = hit & (chord.along > 0)
    r2 = jnp.square(radii)
    inside = hit & ~chord.thin
    bump = 1 - jnp.where(inside, chord.squared_offset, 0) / jnp.where(inside, r2, 1)
    thin_area = THIN_AREA * jnp.square(chord.half_width)
    flat = r2 / jnp.where(chord.thin, thin_area, 1)
    alpha = opacities * jnp.where(chord.thin, flat, bump * bump)
    passed = jnp.cumprod(jnp.where(hit, 1 - alpha, 1), axis=1)
    before = jnp.pad(passed[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    drawn = hit & (before >= settings.min_transmittance)
    rest = jnp.prod(jnp.where(drawn, 1 - alpha, 1), axis=1)
    return drawn, jnp.where(drawn, before * alpha, 0), rest, chord.along


def _only(chosen, x):
    return jnp.where(chosen, x, lax.stop_gradient(x))


def _nearest(settings, drawn, zeta, indices) -> Int[Array, "w k"]:
    """Ids of the K drawn hits with least front depth, ties by id; -1 where there are fewer."""
    w, n = zeta.shape
    k = min(settings.tracked, n)
    if k == 0:
        return jnp.full((w, settings.tracked), -1, jnp.int32)
    ids = jnp.broadcast_to(indices[None].astype(jnp.int32), (w, n))
    depths = lax.stop_gradient(jnp.where(drawn, zeta, jnp.inf))
    depths, ids = lax.sort((depths, ids), num_keys=2)
    found = jnp.where(jnp.isfinite(depths[:, :k]), ids[:, :k], -1)
    return jnp.pad(found, ((0, 0), (0, settings.tracked - k)), constant_values=-1)
