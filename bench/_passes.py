"""The passes of a differentiable renderer, each timed alone.

A renderer is a function from a `Scene` to what `jaxrec.blend` returns. Gradients are those of the
sum of the image, to centers, radii, colours, rays (the camera) and velocities if there are any.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from _harness import measure
from _scenes import Scene
from jaxrec import Blended

Renderer = Callable[[Scene], Blended]


def forward(renderer: Renderer, scene: Scene, **timing: int) -> dict[str, float]:
    """Measures the forward pass with ready rays: image, depth and alpha."""
    return measure(jax.jit(lambda scene: renderer(scene)[:3]), scene, **timing)


def backward(renderer: Renderer, scene: Scene, **timing: int) -> dict[str, float]:
    """Measures the pullback alone."""
    image = _image_of(renderer, scene)
    result, pullback = jax.jit(lambda variables: jax.vjp(image, variables))(_variables(scene))
    ones = jnp.ones_like(result)
    return measure(jax.jit(lambda pullback, d: pullback(d)), pullback, ones, **timing)


def both(renderer: Renderer, scene: Scene, **timing: int) -> dict[str, float]:
    """Measures value and gradient in one program."""
    image = _image_of(renderer, scene)
    function = jax.jit(jax.value_and_grad(lambda variables: image(variables).sum()))
    return measure(function, _variables(scene), **timing)


def count_hits(renderer: Renderer, scene: Scene) -> np.ndarray:
    """Counts the drawn hits of each ray, given a renderer that returns them."""
    return np.asarray(jax.jit(lambda scene: renderer(scene).counts)(scene), np.int64)


def _variables(scene: Scene) -> tuple[jax.Array | None, ...]:
    rays = scene.rays
    spheres = scene.centers, scene.radii, scene.colors
    return *spheres, rays.origins, rays.directions, scene.velocities


def _image_of(renderer: Renderer, scene: Scene) -> Callable[[Any], jax.Array]:
    def image(variables):
        centers, radii, colors, origins, directions, velocities = variables
        rays = dataclasses.replace(scene.rays, origins=origins, directions=directions)
        spheres = {"centers": centers, "radii": radii, "colors": colors, "velocities": velocities}
        return renderer(scene._replace(rays=rays, **spheres)).features

    return image
