"""Rigid actors: sets of spheres that ride in boxes, and where the boxes are at any time.

A scene that moves is one flat set of spheres and a number for each: which actor's box its center
is measured in, or -1 for the world, which does not move. `Actors.placed` takes all of them to the
world at one time, with the velocities that they have then.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._gather import gather
from .._typing import Numbers, pytree
from ..geometry import check_rigid, rotate
from ..trajectory import Edge, Path, Still, Trajectory
from ._actor_poses import moved, owners, refined_poses, sample
from .spheres import Spheres

# Seconds before and after the epoch for which a path that stands still is known: 30 years.
_ALWAYS = 1e9


class Placed(NamedTuple):
    """The spheres of a scene at one time.

    Attributes:
        spheres: In world coordinates. Those of an actor that is nowhere then are not alive.
        velocities: Of their centers in metres per second, in world coordinates.
        world_from_actor: Rotation of the frame that each sphere is fixed to, the identity for
            the static world.
    """

    spheres: Spheres
    velocities: Float[Array, "spheres 3"]
    world_from_actor: Float[Array, "spheres 3 3"]

    def local(
        self, directions: Float[Array, "*views spheres 3"]
    ) -> Float[Array, "*views spheres 3"]:
        """Turns directions from the world into the frames of the spheres.

        What a sphere shows depends on the side from which it is seen: with these directions,
        highlights and paint turn with the actor. Differentiable.

        Args:
            directions: Vectors in world coordinates, such as from a sensor to each sphere.
        """
        inverse = jnp.swapaxes(self.world_from_actor, -1, -2)
        return rotate(jnp.broadcast_to(inverse, (*directions.shape, 3)), directions)


@pytree("ids", "edge")
@dataclasses.dataclass(frozen=True, eq=False)
class Actors:
    """Where the boxes of all actors are at any time, in arrays of one shape.

    `create` makes it from paths; this constructor, for use inside transformations, does not
    check. Actors with fewer poses than others have their last one repeated.

    Attributes:
        world_from_box: Rigid poses in metres; between two of them positions move on a line and
            rotations by slerp, as of `Trajectory`.
        times: Of the poses, in seconds since the epoch of the drive.
        intervals: Seconds from each pose to the next.
        twists: What refinement has learned: rotation vector in radians and translation in metres
            along the box's own axes, applied in the box; one for each pose, or one for each actor.
        counts: How many poses each actor has; 0 for actors that were taken out.
        ids: Their names.
        edge: What is before the first pose and after the last: "nan", nothing; "hold", that
            pose; "extrapolate", the motion next to it goes on.
    """

    world_from_box: Float[Array, "actors poses 4 4"]
    times: Float[Array, "actors poses"]
    intervals: Float[Array, "actors spans"]
    twists: Float[Array, "actors steps 6"]
    counts: Int[Array, " actors"]
    ids: tuple[str, ...]
    edge: Edge

    @classmethod
    def create(
        cls, paths: Mapping[str, Path], *, refined: Literal["actor", "pose"] = "actor"
    ) -> "Actors":
        """Makes actors from their paths.

        Args:
            paths: `world_from_box` of each actor by name: `Trajectory`, or `Still` for one that
                is always at the same place. All trajectories have the same edge.
            refined: Whether there is a twist for each actor, which corrects how its box lies on
                what it follows, or for each pose.

        Raises:
            ValueError: If a path is of another kind, or edges differ.
        """
        moving = {name: _trajectory(name, path) for name, path in paths.items()}
        edge = _common_edge(paths)
        most = max((path.times.shape[0] for path in moving.values()), default=2)
        rows = [_padded(path, most) for path in moving.values()]
        dtype = rows[0][0].dtype if rows else np.float32
        shapes = ((most, 4, 4), (most,), (most - 1,))
        poses, times, intervals = (
            np.stack([row[i] for row in rows]) if rows else np.zeros((0, *shape))
            for i, shape in enumerate(shapes)
        )
        return cls(
            world_from_box=jnp.asarray(poses, dtype),
            times=jnp.asarray(times, dtype),
            intervals=jnp.asarray(intervals, dtype),
            twists=jnp.zeros((len(rows), most if refined == "pose" else 1, 6), dtype),
            counts=jnp.asarray([path.times.shape[0] for path in moving.values()], jnp.int32),
            ids=tuple(moving),
            edge=edge,
        )

    def poses(self) -> Float[Array, "actors poses 4 4"]:
        """The poses with their refinement. Differentiable."""
        return refined_poses(self)

    def sample(
        self, times: Float[Array, "*batch"]
    ) -> tuple[Float[Array, "actors *batch 4 4"], Bool[Array, "actors *batch"]]:
        """Finds where all actors are.

        Args:
            times: In seconds since the epoch.

        Returns:
            `world_from_box` of each actor at each time, finite everywhere, and whether the actor
            is there then. Differentiable in the poses, twists and all times.
        """
        return sample(self, times)

    def placed(
        self, spheres: Spheres, actor: Int[Array, " spheres"], time: Float[Array, ""]
    ) -> Placed:
        """Takes a scene to the world at one time.

        Velocities are the derivative of the centers in time, linear motion and rotation
        together. Followed for dt seconds, they are off by half of w^2 r dt^2 for a sphere r metres
        from the middle of a box that turns at w radians per second: 0.1 mm for the corner of a car
        in a bend (0.5 rad/s, 2.5 m) after 20 ms. Motion past the next pose is off by more.

        Args:
            spheres: Centers in the boxes of the actors, or in the world.
            actor: Which actor each sphere belongs to, `STATIC` for none.
            time: In seconds since the epoch, such as the middle of an exposure.

        Returns:
            See `Placed`. Differentiable in the centers, poses, twists and all times.
        """
        return _placed(self, spheres, actor, time)

    def owners(
        self,
        points: Float[Array, "points 3"],
        times: Float[Array, " points"],
        sizes: Float[Array, "actors 3"],
        *,
        margin: ArrayLike = 0.0,
    ) -> tuple[Int[Array, " points"], Float[Array, "points 3"]]:
        """Finds in whose box points are, each at its time.

        Args:
            points: World coordinates in metres.
            times: When each was measured, in seconds since the epoch.
            sizes: Of the boxes along their x, y and z, in metres.
            margin: How far outside a box points still belong to it, in metres: boxes of logs are
                tight, and miss mirrors.

        Returns:
            The actor of each point, `STATIC` for those in no box, and the point in that
            actor's box or, for `STATIC`, in the world. Of boxes that overlap, the one in which it
            lies deepest. What spheres of a scene begin with, and masks of movers, are made so.
        """
        return owners(self, points, times, sizes, margin)

    def without(self, ids: Iterable[str]) -> "Actors":
        """Takes actors out of the scene: their spheres are not alive at any time.

        Args:
            ids: Names of the actors.

        Raises:
            ValueError: If there is no actor of a name.
        """
        gone = np.asarray([self.number(name) for name in ids], np.int32)
        return dataclasses.replace(self, counts=self.counts.at[gone].set(0))

    def moved(self, id: str, box_from_box: Numbers) -> "Actors":
        """Moves an actor along its own axes, x forward, y left and z up, at all times.

        Args:
            id: Name of the actor.
            box_from_box: Rigid motion in metres, in the frame of the box: by (0, 1, 0) a car
                drives 1 m to the left of its path, and follows its bends there.

        Raises:
            ValueError: If there is no actor of that name, or the motion is not rigid within 1e-4.
        """
        number = self.number(id)
        motion = check_rigid("box_from_box", box_from_box, self.world_from_box.dtype)
        return moved(self, number, motion)

    def number(self, id: str) -> int:
        """The number by which spheres name an actor.

        Raises:
            ValueError: If there is no actor of that name.
        """
        if id not in self.ids:
            known = ", ".join(self.ids) or "none, for nothing moves in this scene"
            raise ValueError(f"id: got {id!r}; give one of {known}")
        return self.ids.index(id)


def _trajectory(name: str, path: Path) -> Trajectory:
    if isinstance(path, Still) and path.world_from_body.ndim == 2:
        poses = jnp.broadcast_to(path.world_from_body, (2, 4, 4))
        return Trajectory(poses, np.array([-_ALWAYS, _ALWAYS]))
    if isinstance(path, Trajectory) and path.world_from_body.ndim == 3:
        return path
    raise ValueError(
        f"paths: got {type(path).__name__} for {name!r}; give a Trajectory or Still of one body"
    )


def _common_edge(paths: Mapping[str, Path]) -> Edge:
    edges: list[tuple[Edge, str]] = [
        (path.edge, name) for name, path in paths.items() if isinstance(path, Trajectory)
    ]
    for edge, name in edges[1:]:
        if edge != edges[0][0]:
            first, one = edges[0]
            raise ValueError(
                f"edge: got {first!r} of {one!r} and {edge!r} of {name!r}; give paths of one"
            )
    return edges[0][0] if edges else "nan"


def _padded(path: Trajectory, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    spare = most - path.times.shape[0]
    poses, times, intervals = map(np.asarray, (path.world_from_body, path.times, path.intervals))
    return (
        np.concatenate([poses, np.repeat(poses[-1:], spare, axis=0)]),
        np.concatenate([times, np.repeat(times[-1:], spare)]),
        np.concatenate([intervals, np.ones(spare, intervals.dtype)]),
    )


@jax.jit
def _placed(actors, spheres, actor, time):
    (poses, valid), (rates, _) = jax.jvp(actors.sample, (time,), (jnp.ones_like(time),))
    # One row for all that an actor's spheres need, and a last one for the world, which stands.
    table = jnp.concatenate([poses[:, :3], rates[:, :3]], axis=-1)
    world = jnp.eye(3, 8, dtype=table.dtype)[None]
    table = jnp.concatenate([table, world]).reshape(-1, 24)
    last = len(actors.ids)
    row = jnp.where(actor < 0, last + 1, actor)
    found = _rows(table, row).reshape(*row.shape, 3, 8)
    rotation, position, turning, motion = jnp.split(found, [3, 4, 7], axis=-1)
    there = dataclasses.replace(
        spheres,
        centers=rotate(rotation, spheres.centers) + position[..., 0],
        alive=spheres.alive & jnp.append(valid, True).at[row].get(mode="clip"),
    )
    velocities = rotate(turning, spheres.centers) + motion[..., 0]
    return Placed(there, velocities, rotation)


def _rows(table, index):
    # Forward mode is for the tests in float64, where sums are exact enough in any order.
    if table.dtype == jnp.float64:
        return table.at[index].get(mode="clip")
    return gather(table, index)
