"""The Flax model: spheres with a shader, seen by a camera."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key

from ..rendering import Rendering, Sensor, render
from ..scene import Spheres, UnconstrainedSpheres
from ..sensors import Rays
from ..shading import EnvironmentMap, PlainColor, SphericalHarmonics, UNet, ViewMLP
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
    view_part: Float[Array, "*views height width 3"] | None = None
    """What the view weight has added to the colour after the blend, and before it to what each
    sphere shows, below; costs nothing where `jit` finds it unused."""
    sphere_part: Float[Array, "*views spheres blended"] | None = None


class SphereModel(nnx.Module):
    """Spheres and the shader that gives them colour.

    Holds unconstrained parameters (logarithms of radii, logits of opacities), so that any
    gradient step leads to valid spheres.
    """

    def __init__(
        self, spheres: Spheres, shader: Any, *, image_shader: Any = None, backdrop: Any = None
    ):
        """Couples spheres with a shader.

        Args:
            spheres: Where optimisation starts. They need `shader.channels` features.
            shader: One of `jaxrec.shading`, or a module with the same protocol.
            image_shader: What changes the colours of a whole view at last, such as `UNet`.
            backdrop: What gives colours to directions, such as `EnvironmentMap`.

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
        self.image_shader = image_shader
        self.backdrop = backdrop

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
        camera: Sensor,
        background: Float[Array, "*views 3"] | None,
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
            background: Colour behind the spheres, one for each camera; None for the model's own
                backdrop.
            near: Least distance of a drawn sphere's front.
            far: Largest distance.
            gamma: Softness of `kind="softmax"`.
            kind: Blending rule, as in `jaxrec.blend`.
            view_weight: Strength in [0, 1] of what depends on the viewing direction.

        Returns:
            Colour over the background, expected depth, and alpha; differentiable in the
            parameters, the background and the camera. Moving the camera changes the direction in
            which a sphere is seen, moving the sphere does not: with that gradient lego at half
            size ends 0.14 dB lower.

        Raises:
            ValueError: If there is neither a background nor a backdrop.
        """
        if background is None and self.backdrop is None:
            raise ValueError("background: got none, and the model has no backdrop; give a colour")
        rays = camera.rays()
        spheres = self.spheres()
        towards = _directions_to(spheres.centers, rays)
        shown = self.shader.per_sphere(spheres.features, towards, view_weight)
        part = shown - self.shader.per_sphere(spheres.features, towards, 0.0)
        part = jnp.broadcast_to(part, (*towards.shape[:-1], part.shape[-1]))
        look = functools.partial(render, near=near, far=far, gamma=gamma, kind=kind)
        blended = _blend_shown(look, spheres, shown, camera)
        # Pixels without a ray show the background, whatever the shader makes of a NaN.
        directions = rays.directions
        directions = jnp.where(jnp.isfinite(directions), directions, jnp.zeros_like(directions))
        color = self.shader(blended.features, blended.alpha, directions, view_weight)
        base = self.shader(blended.features, blended.alpha, directions, 0.0)
        if self.image_shader is not None:
            color = color + self.image_shader(
                blended.features, blended.alpha, directions, view_weight
            )
        if background is not None:
            behind = background[..., None, None, :]
        else:
            behind = self.backdrop(directions)
        passed = 1 - blended.alpha[..., None]
        return Picture(color + passed * behind, blended.depth, blended.alpha, color - base, part)


def _blend_shown(
    look: Callable[[Spheres, Sensor], Rendering],
    spheres: Spheres,
    shown: Float[Array, "*views spheres blended"],
    camera: Sensor,
) -> Rendering:
    """Renders spheres that show the same to all views, or something else to each of them."""

    def one(camera, shown):
        return look(dataclasses.replace(spheres, features=shown), camera)

    if shown.ndim == 2:
        return one(camera, shown)
    if shown.shape[0] > 1:
        return jax.vmap(one)(camera, shown)
    # A stack of one view needs no batch of scenes.
    single = one(jax.tree.map(lambda leaf: leaf[0], camera), shown[0])
    return jax.tree.map(lambda leaf: leaf[None], single)


def _directions_to(
    centers: Float[Array, "spheres 3"], rays: Rays
) -> Float[Array, "*views spheres 3"]:
    """Unit vectors to the spheres from each view's sensor.

    A sensor that moves while it measures (a rolling shutter, a spinning lidar) or whose rays are
    parallel is taken to be at the mean of its rays' origins. Differentiable in the rays only.
    """
    first = rays.origins[..., :1, :1, :]
    # Differences: where all rays start at one place, this is that place and not nearly so.
    apart = jnp.where(jnp.isfinite(rays.origins), rays.origins - first, 0)
    origins = (first[..., 0, 0, :] + apart.mean(axis=(-3, -2)))[..., None, :]
    # A wrong colour is no reason to move a sphere to where it would be seen from elsewhere.
    centers = jax.lax.stop_gradient(centers)
    shape = (*origins.shape[:-2], *centers.shape)
    ahead = jnp.broadcast_to(centers, shape) - jnp.broadcast_to(origins, shape)
    x, y, z = ahead[..., 0], ahead[..., 1], ahead[..., 2]
    square = x * x + y * y + z * z
    # A sphere whose center is the sensor is never drawn: any direction will do.
    away = square > 0
    length = jnp.where(away, jnp.sqrt(jnp.where(away, square, 1)), 1)
    return ahead / length[..., None]


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


def build_image_shader(settings: FitSettings, channels: int, key: Key[Array, ""]) -> Any:
    """Builds what the settings name for whole views, or None.

    Args:
        settings: `image_shader` and `degree` are used.
        channels: How many are blended.
        key: Randomness of the weights.
    """
    if settings.image_shader == "none":
        return None
    return UNet(channels, degree=settings.degree, rngs=nnx.Rngs(key))


def build_backdrop(
    settings: FitSettings, picture: Float[Array, "rows columns 3"] | None = None
) -> Any:
    """Builds the backdrop that the settings name, or None for colours that steps choose.

    Args:
        settings: `backdrop` and `background` are used.
        picture: Where an environment starts; all of the colour `background` if None.

    Raises:
        ValueError: If the picture has another size than the settings name.
    """
    shape = settings.backdrop.shape
    if shape is None:
        return None
    color = jnp.asarray(settings.background, jnp.float32)
    if picture is None:
        return EnvironmentMap(jnp.tile(color[None, None], (*shape, 1)))
    if picture.shape[:2] != shape:
        rows, columns = picture.shape[:2]
        raise ValueError(
            f"picture: got {rows} rows of {columns}, want backdrop.rows = {shape[0]} of "
            f"backdrop.columns = {shape[1]}; resize it"
        )
    return EnvironmentMap(jnp.asarray(picture, jnp.float32))


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
        image_shader=build_image_shader(settings, shader.blended, jax.random.key(0)),
        backdrop=build_backdrop(settings),
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


def softness(settings: FitSettings, step: Int[Array, ""]) -> Float[Array, ""]:
    """Computes the gamma of the `softmax` rule at a step: from soft to hard, geometrically.

    A soft blend lets every sphere along a ray learn; a hard one looks like the surface.
    """
    done = jnp.clip(step.astype(jnp.float32) / settings.horizon, 0.0, 1.0)
    ratio = (settings.gamma_final or settings.gamma) / settings.gamma
    return jnp.float32(settings.gamma) * jnp.float32(ratio) ** done
