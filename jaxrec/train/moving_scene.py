"""A scene with actors, and what cameras and lidars see of it at any time."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._typing import Numbers, pytree
from ..rendering import LidarRendering, Sensor, render, render_lidar
from ..scene import Actors, Spheres, UnconstrainedSpheres
from ..shading import EnvironmentMap


class Sight(NamedTuple):
    """What a camera sees.

    Attributes:
        color: Not clipped.
        depth: Expected distance along the ray in metres, 0 where nothing is seen.
        alpha: Share of each pixel that spheres cover.
    """

    color: Float[Array, "height width 3"]
    depth: Float[Array, "height width"]
    alpha: Float[Array, "height width"]


@pytree("near", "far")
@dataclasses.dataclass(frozen=True, eq=False)
class MovingScene:
    """Spheres of the static world and of actors, with colour and what lidars see.

    Exposures and sweeps are rendered with all actors where they are at one time, its middle, and
    moving on from there on a line (`Actors.placed`): each ray sees them at its own time, as it is
    measured from where the sensor is then.

    Attributes:
        spheres: Centers in the boxes of their actors, or in the world. Features are red, green
            and blue, the intensity, and the logit of the probability that a ray is lost.
        actor: Which actor each sphere belongs to, `STATIC` for the static world.
        actors: Where these are.
        sky: A panorama at infinity, as of `EnvironmentMap`.
        near: Least distance in metres of a sphere's front.
        far: Largest distance in metres of a sphere's front.
    """

    spheres: UnconstrainedSpheres
    actor: Int[Array, " spheres"]
    actors: Actors
    sky: Float[Array, "rows columns 3"]
    near: float
    far: float

    def at(self, time: Float[Array, ""]) -> Spheres:
        """The spheres in the world at a time in seconds since the epoch, and how they move then.

        Differentiable.
        """
        spheres, velocities, _ = self.actors.placed(self.spheres.constrained(), self.actor, time)
        if not self.actors.ids:
            return spheres
        return dataclasses.replace(spheres, velocities=velocities, time=time)

    def photograph(self, camera: Sensor, time: Float[Array, ""]) -> Sight:
        """Renders what a camera sees.

        Args:
            camera: Any maker of a grid of rays, at its place in the world.
            time: Of the middle of the exposure, in seconds since the epoch.

        Returns:
            See `Sight`. Differentiable in the scene and the camera.
        """
        spheres = self.at(time)
        colored = dataclasses.replace(spheres, features=spheres.features[:, :3])
        background = _sky(self.sky, camera)
        seen = render(colored, camera, near=self.near, far=self.far, background=background)
        return Sight(seen.features, seen.depth, seen.alpha)

    def sweep(self, lidar: Sensor, time: Float[Array, ""]) -> LidarRendering:
        """Renders what a lidar brings back.

        Args:
            lidar: `SpinningLidar`, `RayBundle` or any maker of a grid of rays.
            time: Of the middle of the sweep, in seconds since the epoch.

        Returns:
            See `render_lidar`. Differentiable in the scene and the lidar.
        """
        return render_lidar(self.for_lidars(time), lidar, near=self.near, far=self.far)

    def for_lidars(self, time: Float[Array, ""]) -> Spheres:
        """The spheres in the world at a time, with the features that lidars see."""
        spheres = self.at(time)
        return dataclasses.replace(spheres, features=spheres.features[:, 3:])

    def without(self, ids: Iterable[str]) -> "MovingScene":
        """The scene without some of its actors; see `Actors.without`."""
        return dataclasses.replace(self, actors=self.actors.without(ids))

    def moved(self, id: str, box_from_box: Numbers) -> "MovingScene":
        """The scene with an actor elsewhere; see `Actors.moved`."""
        return dataclasses.replace(self, actors=self.actors.moved(id, box_from_box))


def _sky(picture, camera):
    directions = jax.lax.stop_gradient(camera.rays().directions)
    exists = jnp.all(jnp.isfinite(directions), axis=-1, keepdims=True)
    return EnvironmentMap(picture)(jnp.where(exists, directions, 0))
