"""The Flax model: spheres with a shader, seen by a camera."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from ..rendering import render
from ..scene import Spheres, UnconstrainedSpheres
from ..sensors import PinholeCamera
from ..shading import PlainColor, SphericalHarmonics, ViewMLP
from .settings import FitSettings

# Names of the parameters that have a row for each sphere.
SPHERE_LEAVES = ("centers", "log_radii", "logit_opacities", "features")


class Geometry(nnx.Param):
    """A parameter that says where spheres are, how large and how opaque."""


class Appearance(nnx.Param):
    """A parameter that says what spheres look like."""


class Alive(nnx.Variable):
    """Which spheres exist; not trained."""


class Picture(NamedTuple):
    """What a camera sees of a model, for each pixel."""

    color: Float[Array, "*views height width 3"]
    depth: Float[Array, "*views height width"]
    alpha: Float[Array, "*views height width"]


class SphereModel(nnx.Module):
    """Spheres and the shader that gives them colour.

    Holds unconstrained parameters (logarithms of radii, logits of opacities), so that any
    gradient step leads to valid spheres.
    """

    def __init__(self, spheres: Spheres, shader: Any):
        """Couples spheres with a shader.

        Args:
            spheres: Where optimisation starts. They need `shader.channels` features.
            shader: One of `jaxrec.shading`, or a module with the same protocol.

        Raises:
            ValueError: If the numbers of features differ.
        """
        channels = spheres.features.shape[-1]
        if channels != shader.channels:
            raise ValueError(
                f"SphereModel: spheres have {channels} features, the shader wants "
                f"{shader.channels}; use shader.initial_features"
            )
        free = spheres.unconstrained()
        self.centers = Geometry(free.centers)
        self.log_radii = Geometry(free.log_radii)
        self.logit_opacities = Geometry(free.logit_opacities)
        self.features = Appearance(free.features)
        self.alive = Alive(free.alive)
        self.shader = shader

    def spheres(self) -> Spheres:
        """Returns the spheres; differentiable in the parameters."""
        return UnconstrainedSpheres(
            centers=self.centers[...],
            log_radii=self.log_radii[...],
            logit_opacities=self.logit_opacities[...],
            features=self.features[...],
            alive=self.alive[...],
        ).constrained()

    def __call__(
        self,
        camera: PinholeCamera,
        background: Float[Array, "*views 3"],
        *,
        near: ArrayLike,
        far: ArrayLike,
        gamma: ArrayLike = 0.1,
        kind: Literal["alpha", "softmax"] = "alpha",
        view_weight: float | Float[Array, ""] = 1.0,
    ) -> Picture:
        """Renders what a camera, or a stack of cameras, sees.

        Args:
            camera: Any sensor with `rays`, in the spheres' frame.
            background: Colour behind the spheres, one for each camera.
            near: Least distance of a drawn sphere's front.
            far: Largest distance.
            gamma: Softness of `kind="softmax"`.
            kind: Blending rule, as in `jaxrec.blend`.
            view_weight: Strength in [0, 1] of what depends on the viewing direction.

        Returns:
            Colour over the background, expected depth, and alpha; differentiable in the
            parameters, the background and the camera.
        """
        blended = render(self.spheres(), camera, near=near, far=far, gamma=gamma, kind=kind)
        # Pixels without a ray show the background, whatever the shader makes of a NaN.
        directions = camera.rays().directions
        directions = jnp.where(jnp.isfinite(directions), directions, jnp.zeros_like(directions))
        color = self.shader(blended.features, blended.alpha, directions, view_weight)
        passed = 1 - blended.alpha[..., None]
        return Picture(
            color + passed * background[..., None, None, :], blended.depth, blended.alpha
        )


def build_shader(settings: FitSettings, key: Key[Array, ""]) -> Any:
    """Builds the shader that the settings name.

    Args:
        settings: `shader` and `degree` are used.
        key: Randomness of the weights.
    """
    if settings.shader == "plain":
        return PlainColor()
    if settings.shader == "harmonics":
        return SphericalHarmonics(settings.degree)
    return ViewMLP(degree=settings.degree, rngs=nnx.Rngs(key))


def blank_model(settings: FitSettings) -> SphereModel:
    """Builds a model of the settings' size whose values mean nothing: a template."""
    shader = build_shader(settings, jax.random.key(0))
    count = settings.spheres
    return SphereModel(
        Spheres(
            centers=jnp.zeros((count, 3), jnp.float32),
            radii=jnp.ones((count,), jnp.float32),
            opacities=jnp.full((count,), 0.5, jnp.float32),
            features=jnp.zeros((count, shader.channels), jnp.float32),
            alive=jnp.ones((count,), bool),
        ),
        shader,
    )


def view_weight(settings: FitSettings, step: Array, key: Key[Array, ""]) -> Float[Array, ""]:
    """Computes how much a training step lets the direction matter, in [0, 1].

    The influence fades in late, and now and then a step goes without: a shader that may always
    rely on the direction learns the viewpoints instead of the scene.
    """
    begin, full = settings.view_start * settings.horizon, settings.view_full * settings.horizon
    ramp = jnp.clip((step.astype(jnp.float32) - begin) / (full - begin), 0.0, 1.0)
    kept = jax.random.uniform(key) >= settings.view_dropout
    return jnp.where(kept, ramp, 0.0)
