"""Checks of what enters `blend`: shapes and dtypes always, values on request."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..sensors import Rays

_UNIT_TOLERANCE = 1e-4


def check_operands(centers, radii, opacities, features, rays, background, velocities=None) -> None:
    """Raises a ValueError that names the first argument of the wrong shape or dtype."""
    given = dict(centers=centers, radii=radii, opacities=opacities, features=features)
    given |= {"rays.origins": rays.origins, "rays.directions": rays.directions}
    given |= {"rays.footprint": rays.footprint, "background": background}
    moving = {"velocities": velocities, "rays.times": rays.times}
    given |= {name: x for name, x in moving.items() if velocities is not None and x is not None}
    dtype = getattr(centers, "dtype", None)
    for name, x in given.items():
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            raise ValueError(f"blend: {name} is a {type(x).__name__}; pass a JAX array")
        if x.dtype not in (np.float32, np.float64):
            raise ValueError(f"blend: {name} has dtype {x.dtype}; pass float32 or float64")
        if x.dtype != dtype:
            raise ValueError(
                f"blend: {name} has dtype {x.dtype} and centers {dtype}; pass one dtype for all"
            )
    n = centers.shape[0] if centers.ndim else 0
    _shape("centers", centers, (n, 3), "N, 3")
    _shape("radii", radii, (n,), f"N = {n}")
    _shape("opacities", opacities, (n,), f"N = {n}")
    channels = features.shape[-1] if features.ndim == 2 else 1
    _shape("features", features, (n, max(channels, 1)), f"N = {n}, C >= 1")
    grid = rays.origins.shape[:-1] if rays.origins.ndim == 4 else (1, 1, 1)
    _shape("rays.origins", rays.origins, (*grid, 3), "V, H, W, 3")
    _shape("rays.directions", rays.directions, (*grid, 3), f"{_list(grid)}, 3")
    _shape("rays.footprint", rays.footprint, (grid[0], 2), f"V = {grid[0]}, 2")
    if velocities is not None:
        _shape("velocities", velocities, (n, 3), f"N = {n}, 3")
        if rays.times is not None:
            _shape("rays.times", rays.times, grid, _list(grid))
    if background.shape not in ((channels,), (*grid, channels)):
        raise ValueError(
            f"blend: background has shape {background.shape}; "
            f"wanted ({channels},) or ({_list(grid)}, {channels})"
        )


def _shape(name: str, x: Any, wanted: tuple[int, ...], text: str) -> None:
    if x.shape != wanted:
        raise ValueError(f"blend: {name} has shape {x.shape}; wanted ({text})")


def _list(sizes: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in sizes)


def check(
    centers: Float[Array, "n 3"],
    radii: Float[Array, " n"],
    opacities: Float[Array, " n"],
    features: Float[Array, "n c"],
    rays: Rays,
    *,
    near: float = 0.0,
    far: float = float("inf"),
    gamma: float = 1.0,
    velocities: Float[Array, "n 3"] | None = None,
) -> None:
    """Checks the values that `blend` would silently hide, outside `jit`.

    `blend` never looks at values: it hides a sphere or a ray that is not finite. This reads the
    arrays back to the host, so call it once, where data enters.

    Args:
        centers: Sphere centers in metres.
        radii: Radii in metres, >= 0 (negative hides a sphere and is allowed here).
        opacities: Opacities in [0, 1].
        features: Channels of each sphere.
        rays: The rays to be rendered.
        near: As in `blend`.
        far: As in `blend`.
        gamma: As in `blend`.
        velocities: As in `blend`.

    Raises:
        ValueError: Naming the argument, the first offending index, what was found there and what
            is wanted.
    """
    background = jnp.zeros((features.shape[-1],), features.dtype)
    check_operands(centers, radii, opacities, features, rays, background, velocities)
    named = [("centers", centers), ("radii", radii), ("opacities", opacities)]
    named += [("features", features), ("rays.origins", rays.origins)]
    if velocities is not None:
        named += [("velocities", velocities)]
        named += [] if rays.times is None else [("rays.times", rays.times)]
    for name, x in [*named, ("rays.directions", rays.directions)]:
        _all(name, x, np.isfinite(np.asarray(x)), "a finite number")
    alpha = np.asarray(opacities)
    _all("opacities", opacities, (alpha >= 0) & (alpha <= 1), "a value in [0, 1]")
    norms = np.linalg.norm(np.asarray(rays.directions, np.float64), axis=-1)
    _all("rays.directions", norms, np.abs(norms - 1) <= _UNIT_TOLERANCE, "a length of 1")
    if not 0 <= near < far:
        raise ValueError(f"blend: near is {near} and far {far}; wanted 0 <= near < far, in metres")
    if not 1e-5 <= gamma <= 1:
        raise ValueError(f"blend: gamma is {gamma}; wanted a value in [1e-5, 1]")


def _all(name: str, x: jax.Array | np.ndarray, good: np.ndarray, wanted: str) -> None:
    if good.all():
        return
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    found = np.asarray(x)[index]
    raise ValueError(f"blend: {name}{list(index)} is {found:g}; wanted {wanted}")
