"""How each image renders the colours of the scene: exposure, white balance, vignetting."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._check import want

# Of red, green and blue in the luminance that picks a level (ITU-R BT.601).
_LUMINANCE = (0.299, 0.587, 0.114)


@dataclasses.dataclass(frozen=True)
class Exposure:
    """What may differ between the colours of images of the same scene.

    The mean over the images is always the identity, so that a scene has the colours of an average
    image; it is rendered, and held-out views are measured, without any exposure.
    """

    kind: Literal["none", "affine", "grid"] = "none"
    """Nothing; a matrix and an offset for each image; or a bilateral grid of those."""
    rate: float = 2e-3
    """Adam's step size, for each visit of an image."""
    columns: int = 16
    """Of the grid, over the width of the image; likewise rows and levels."""
    rows: int = 16
    levels: int = 8
    """Of the grid, from dark to bright."""
    total_variation: float = 10.0
    """Weight of the mean squared difference between neighbours in the grid."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        kinds = ("none", "affine", "grid")
        want(self.kind in kinds, "exposure.kind", self.kind, "none, affine or grid")
        want(0 < self.rate < np.inf, "exposure.rate", self.rate, "> 0")
        for name in ("columns", "rows", "levels"):
            want(getattr(self, name) >= 1, f"exposure.{name}", getattr(self, name), ">= 1")
        weight = self.total_variation
        want(0 <= weight < np.inf, "exposure.total_variation", weight, ">= 0")


def identity_exposures(settings: Exposure, images: int) -> Float[Array, "images ..."]:
    """Returns what is added to the identity of each image: zeros of the kind's shape."""
    shape = () if settings.kind == "affine" else (settings.levels, settings.rows, settings.columns)
    return jnp.zeros((images, *shape, 3, 4), jnp.float32)


def expose(
    color: Float[Array, "views height width 3"], exposure: Float[Array, "views ... 3 4"]
) -> Float[Array, "views height width 3"]:
    """Gives rendered colours the exposure of their images.

    Each pixel becomes `c + M [c, 1]`. M is the image's own, or, for a grid, it is interpolated
    linearly between the cells nearest to the pixel's place and luminance; cells at the border of
    the grid lie on the border of the image, black and white.

    Args:
        color: What was rendered, in [0, 1] but for overshoots.
        exposure: For each view one M, or a grid of them: levels, rows, columns, 3, 4.

    Returns:
        Colours, not clipped; `color` to the bit if `exposure` is 0. Differentiable in both; the
        choice of the level has its gradient, too.

    References:
        Wang et al., "Bilateral Guided Radiance Field Processing", SIGGRAPH 2024, section 4.
    """
    if exposure.ndim == 3:
        return color + _affine(exposure[:, None, None], color)
    return color + jax.vmap(_slice)(color, exposure)


def total_variation(grids: Float[Array, "views levels rows columns 3 4"]) -> Float[Array, ""]:
    """Computes how rough bilateral grids are.

    Args:
        grids: At least one.

    Returns:
        The sum over the three axes of the mean squared difference of neighbours; an axis of one
        cell adds nothing. Differentiable.
    """
    total = jnp.zeros((), grids.dtype)
    for axis in (1, 2, 3):
        if grids.shape[axis] > 1:
            total = total + jnp.square(jnp.diff(grids, axis=axis)).mean()
    return total


def _affine(matrices: Array, color: Array) -> Array:
    # Term by term: accelerators may round matrix products to fewer digits.
    terms = (matrices[..., k] * color[..., k : k + 1] for k in range(3))
    return sum(terms, start=matrices[..., 3])


def _slice(color: Array, grid: Array) -> Array:
    """The change of one image's colours.

    Sums of hat functions instead of gathered corners: their gradients are sums in a fixed order,
    where those of gathering are scattered by whichever thread comes first.
    """
    levels, rows, columns = grid.shape[:3]
    height, width = color.shape[:2]
    down, across = _hats(height, rows, color.dtype), _hats(width, columns, color.dtype)
    weights = jnp.asarray(_LUMINANCE, color.dtype)
    luminance = sum(weights[k] * color[..., k] for k in range(3))
    place = jnp.clip(luminance, 0, 1) * (levels - 1)

    # Kept for one level at a time, also on the way back: twelve images each.
    @jax.checkpoint
    def of_level(cells, level):
        exact = jax.lax.Precision.HIGHEST
        lines = jnp.einsum("rcij,wc->rwij", cells, across, precision=exact)
        matrices = jnp.einsum("rwij,hr->hwij", lines, down, precision=exact)
        weight = jnp.maximum(1 - jnp.abs(place - level), 0)
        return weight[..., None] * _affine(matrices, color)

    total = jnp.zeros_like(color)
    for level in range(levels):
        total = total + of_level(grid[level], jnp.asarray(level, color.dtype))
    return total


def _hats(pixels: int, cells: int, dtype) -> np.ndarray:
    """Weights of the cells of one axis at each pixel's centre."""
    place = (np.arange(pixels) + 0.5) / pixels * (cells - 1)
    return np.maximum(1 - np.abs(place[:, None] - np.arange(cells)), 0).astype(dtype)
