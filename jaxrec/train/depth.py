"""What measured depths ask of a fit."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import losses
from ..sensors import PinholeCamera
from ._check import want

_LEAST_ALPHA = 0.05


@dataclasses.dataclass(frozen=True)
class DepthLoss:
    """How the difference from measured depths counts; frames without depth do not take part."""

    weight: float = 0.0
    """In the objective; 0 ignores depths."""
    kind: Literal["l1", "huber"] = "l1"
    """The absolute difference, or one that is squared where it is small."""
    space: Literal["metres", "disparity"] = "metres"
    """Compare depths, or their inverses, which are as precise near by as stereo is."""
    width: float = 0.05
    """Where the Huber difference goes from squared to absolute, in metres or 1 / metre."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        want(0 <= self.weight < np.inf, "depth.weight", self.weight, ">= 0")
        want(self.kind in ("l1", "huber"), "depth.kind", self.kind, "l1 or huber")
        spaces = ("metres", "disparity")
        want(self.space in spaces, "depth.space", self.space, "metres or disparity")
        want(0 < self.width < np.inf, "depth.width", self.width, "> 0")


def axial_depth(
    depth: Float[Array, "views height width"], cameras: PinholeCamera
) -> Float[Array, "views height width"]:
    """Turns distances along rays into depths along the optical axes of a stack of cameras."""
    directions = cameras.rays().directions
    # Pixels without a ray show nothing, at depth 0.
    directions = jnp.where(jnp.isfinite(directions), directions, jnp.zeros_like(directions))
    axes = cameras.world_from_camera[:, None, None, :3, 2]
    return depth * (directions * axes).sum(axis=-1)


def depth_cost(
    settings: DepthLoss,
    rendered: Float[Array, "views height width"],
    alpha: Float[Array, "views height width"],
    measured: Float[Array, "views height width"],
    mask: losses.Mask | None,
) -> Float[Array, ""]:
    """Computes the mean difference from measured depths.

    Args:
        settings: Which difference.
        rendered: Depths along the optical axis in metres.
        alpha: Where it is below 0.05, hardly anything was rendered, and nothing is compared.
        measured: Depths in metres; not compared where they are not finite or not positive.
        mask: Which pixels count, or how much; all if None.

    Returns:
        The mean over the pixels that count, differentiable in `rendered`; 0 if there are none.
    """
    valid = jnp.isfinite(measured) & (measured > 0) & (alpha >= _LEAST_ALPHA) & (rendered > 0)
    # Replaced before the arithmetic: the gradient of an unused branch must not be NaN.
    one = jnp.ones_like(rendered)
    rendered, measured = (jnp.where(valid, depth, one) for depth in (rendered, measured))
    if settings.space == "disparity":
        rendered, measured = 1 / rendered, 1 / measured
    counted = valid.astype(rendered.dtype)
    if mask is not None:
        counted = counted * mask.astype(rendered.dtype)
    if settings.kind == "huber":
        width = settings.width
        return losses.huber(rendered[..., None], measured[..., None], counted, width=width)
    return losses.l1(rendered[..., None], measured[..., None], counted)
