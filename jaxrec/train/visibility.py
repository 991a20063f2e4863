"""Spheres that no training view sees go, for nothing tells what they should look like."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..rendering import render
from ..scene import Spheres, UnconstrainedSpheres
from ..sensors import PinholeCamera
from .edits import plan_prune
from .model import SPHERE_LEAVES
from .normalizer import SceneNormalizer
from .settings import FitSettings
from .state import FitState

# Mean of the kernel (1 - (p/r)^2)^2 over a sphere's disc.
_MEAN_KERNEL = 1 / 3
# Steps for each view that a round renders: pruning takes less than a tenth of a fit.
_STEPS_PER_VIEW = 5


def visibility(
    spheres: Spheres,
    cameras: PinholeCamera,
    *,
    near: ArrayLike,
    far: ArrayLike,
) -> Float[Array, " spheres"]:
    r"""Computes the largest share of each sphere that gets through to one of several views.

    The share is what the sphere weighs in the view, blended by `kind="alpha"`, over what it would
    weigh alone, which is $o\,\pi r^2 f^2 / (3 z^2)$ pixels, less by what lies outside the image. So
    it is the mean transmittance in front of the sphere, and does not depend on its size or
    opacity; where it is smaller than a pixel it may exceed 1.

    Args:
        spheres: A scene; features do not matter.
        cameras: A stack of cameras.
        near: Least distance of a drawn sphere's front.
        far: Largest distance.

    Returns:
        0 for a sphere that no view sees. Without gradient.
    """
    spheres, cameras = jax.lax.stop_gradient((spheres, cameras))

    def weigh(feature, camera):
        bare = dataclasses.replace(spheres, features=feature[:, None])
        seen = render(bare, camera, near=near, far=far)
        return seen.features.sum()

    def look(most, camera):
        # The blend is linear in the features: the gradient of the sum is the sum of the weights.
        weight = jax.grad(weigh)(jnp.zeros_like(spheres.radii), camera)
        pixels, depth = camera.project(spheres.centers)
        radius = spheres.radii * camera.focal.mean() / jnp.where(depth > 0, depth, 1)
        alone = _MEAN_KERNEL * np.pi * spheres.opacities * radius**2
        # Of a sphere that reaches beyond the image counts what is inside.
        size = jnp.asarray(np.array([[camera.width, camera.height]]), radius.dtype)
        first = jnp.maximum(pixels - radius[:, None], 0)
        last = jnp.minimum(pixels + radius[:, None], jnp.broadcast_to(size, pixels.shape))
        inside = jnp.maximum(last - first, 0).prod(axis=-1)
        alone = alone * inside / jnp.where(inside > 0, 4 * radius**2, 1)
        share = jnp.where((depth > 0) & (alone > 0), weight / jnp.where(alone > 0, alone, 1), 0)
        return jnp.maximum(most, share), None

    # View by view: all of them at once would take memory for all their lists.
    return jax.lax.scan(look, jnp.zeros_like(spheres.radii), cameras)[0]


def prune_due(settings: FitSettings, done: int, views: int) -> bool:
    """Says whether `prune_hidden` comes after step number `done`, counted from 1.

    Args:
        settings: `pruning`, `kind` and `horizon` are used.
        done: Number of the step.
        views: How many training views there are.
    """
    rule = settings.pruning
    if settings.kind != "alpha":
        return False
    first, last = (int(share * settings.horizon) for share in (rule.start, rule.stop))
    every = max(rule.every, _STEPS_PER_VIEW * views)
    return rule.share > 0 and done % every == 0 and first <= done <= last


def prune_hidden(
    state: FitState,
    cameras: Sequence[PinholeCamera],
    normalizer: SceneNormalizer,
    settings: FitSettings,
) -> FitState:
    """Removes the spheres of which less than a share reaches any training view.

    Args:
        state: After a step; donated and dead afterwards.
        cameras: Stacks of the training views, in scene coordinates.
        normalizer: Gives the range of drawn distances.
        settings: `pruning.share` is used.
    """
    limits = tuple(jnp.float32(v) for v in (normalizer.near, normalizer.far))
    return _prune(settings.pruning.share, limits, state, list(cameras))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _prune(
    share: float, limits: tuple[Array, Array], state: FitState, cameras: list[PinholeCamera]
) -> FitState:
    near, far = limits
    known = {name: state.params[name] for name in SPHERE_LEAVES}
    spheres = UnconstrainedSpheres(**known, alive=state.alive).constrained()
    shares = [visibility(spheres, stack, near=near, far=far) for stack in cameras]
    edit = plan_prune(functools.reduce(jnp.maximum, shares) < share, state.alive)
    return dataclasses.replace(state, alive=edit.alive)
