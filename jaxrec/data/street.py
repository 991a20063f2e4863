"""A synthetic street, driven along by a rig of cameras and a lidar, with known truth.

Ground truth for what logs cannot prove: rolling shutters, the motion within a sweep, lost and
second returns, and views that nobody drove: other lanes, other sensors, scenes without an actor.
Every image and range is a closed form of the rays, each at its own time.
"""

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32

from .._typing import float_array
from ..geometry import check_rigid
from ..sensors import (
    Exposure,
    FThetaLens,
    LensCamera,
    PinholeCamera,
    RayBundle,
    Rays,
    RollingShutterCamera,
    SpinningLidar,
    Sweep,
    spin,
)
from ..trajectory import Trajectory
from . import _street_caster as caster, _street_world as world
from ._street_grid import Grid, edges, within_pixels
from .drive import Drive, Track

EPOCH = 1_700_000_000_000_000_000
"""Of the drive's clock, in nanoseconds."""

LAYERS = 6
"""Surfaces behind each other that `Hits` tells of."""

REACH = 40.0
"""Range in metres from which the lidar hears a surface across its beam that scatters a tenth."""

SEPARATION = 0.5
"""Returns of one beam that are nearer to each other than this, in metres, are heard as one."""

ROLLING_SECONDS = 0.08
"""From the first line of a rolling shutter to the last."""

_POSES_PER_SECOND = 50
_LOWEST, _HIGHEST = np.deg2rad(-24.0), np.deg2rad(15.0)
_BEAM = (0.0, 1.5e-3)
# Light that one ray on the rim of a beam stands for.
_RIM = 1 / 8
# Middles of exposures, in shares of a turn of the lidar: about when it looks there, too.
_TRIGGERS = {"left": 0.4, "wide": 0.5, "right": 0.6}
# A turn takes this many seconds, or less where sweeps follow faster.
_TURN = 0.1
# More threads than this wait for the interpreter.
_THREADS = 8


_pose_at = jax.jit(lambda path, mount, time: path.mounted(mount).at(time))


@dataclasses.dataclass(frozen=True, eq=False)
class Hits:
    """What rays meet.

    Attributes:
        colors: What a camera sees, in [0, 1]; 0 where a ray does not exist.
        ranges: Of the surfaces behind each other, in metres from the ray's origin. All but the
            last are porous: they stop a share of the beam. Infinite where there are no more.
        covers: Share of the whole beam that each stops.
        reflectances: Share of the lidar's light that each surface would scatter back if it lay
            across the beam, in [0, 1].
        cosines: Of the angles between beam and normals.
        surfaces: Numbers of the things, -1 where there is none; 0 is the ground.
        actors: Numbers of the tracks that the things follow, or -1.
    """

    colors: Float32[np.ndarray, "*grid 3"]
    ranges: Float32[np.ndarray, "*grid layers"]
    covers: Float32[np.ndarray, "*grid layers"]
    reflectances: Float32[np.ndarray, "*grid layers"]
    cosines: Float32[np.ndarray, "*grid layers"]
    surfaces: Int32[np.ndarray, "*grid layers"]
    actors: Int32[np.ndarray, "*grid layers"]


@dataclasses.dataclass(frozen=True)
class Street:
    """A street with facades, parked cars, trees and a fence, and three cars that drive.

    The rig (x forward, z up) drives 30 m in 10 s, slower and faster, and swerves. It carries

    * `wide`: an f-theta camera that looks ahead, 140 degrees wide, with a global shutter;
    * `left` and `right`: pinhole cameras that look sideways, read from top to bottom and
      from bottom to top within 0.08 s;
    * `lidar`: lasers that turn clockwise, within 0.1 s, around the time of each image.

    Colours are painted on: light comes from everywhere and nothing casts a shadow, so hiding or
    moving a car changes nothing else. All patterns are wider than a pixel or fade to their mean.

    **Returns.** Foliage and the fence are porous: a beam that crosses c metres of them goes on with
    exp(-density c) of its light, there and back through the same gaps. A surface that stops the
    share s of the light, with reflectance R and the angle a to its normal, sends back s R cos a:
    the intensity. It is heard if that is at least 0.1 (range / 40 m)^2. So dark, grazing and far
    surfaces are lost, and so are glass, which mirrors the beam away, and the sky. The middle of
    the beam says which surface is the first return; the second is the next that is heard at least
    0.5 m behind it, either through gaps or past an edge, where some of four rays on the rim of
    the beam, an eighth of its light each, miss the first surface.

    Attributes:
        seed: Of colours, patterns and the sizes of houses; roads, rig and cars are the same.
        seconds: How long the drive is, at most 10; a shorter one is the beginning of a longer one.
        rate: Images of each camera, and sweeps, in a second.
        width: Of all images in pixels.
        height: Of all images in pixels; fields of view are those of the width.
        rows: Lasers of the lidar.
        columns: Shots of each laser in one turn.
        samples: Rays along each side of a pixel, whose mean is its colour.

    Raises:
        ValueError: If a number is too small, or the drive too long.
    """

    seed: int = 0
    seconds: float = 10.0
    rate: float = 10.0
    width: int = 384
    height: int = 256
    rows: int = 32
    columns: int = 512
    samples: int = 3

    def __post_init__(self):
        for name, least in (("width", 8), ("height", 8), ("rows", 2), ("columns", 8),
                            ("samples", 1), ("seed", 0)):  # fmt: skip
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name}: got {value}; give at least {least}")
        if not (self.rate > 0 and self.seconds * self.rate >= 1 and self.seconds <= 10):
            raise ValueError(
                f"seconds: got {self.seconds:g} at a rate of {self.rate:g}; give at least the "
                "time of one image, and at most 10"
            )

    @functools.cached_property
    def ego(self) -> Trajectory:
        """`world_from_body` of the rig, in seconds since the epoch."""
        count = int(np.ceil((self.seconds + 2 * world.MARGIN) * _POSES_PER_SECOND)) + 1
        times = -world.MARGIN + np.arange(count) / _POSES_PER_SECOND
        return Trajectory(jnp.asarray(world.body(times)), times)

    @functools.cached_property
    def tracks(self) -> list[Track]:
        """The cars that drive."""
        return [
            Track(actor.id, "car", actor.size, _trajectory(actor.path))
            for actor in self._world.actors
        ]

    @functools.cached_property
    def mounts(self) -> dict[str, Float64[np.ndarray, "4 4"]]:
        """`body_from_sensor` by the sensor's name."""
        lidar = np.eye(4)
        lidar[:3, 3] = (0.9, 0.0, 1.95)
        return {
            "wide": _looking((1.5, 0.0, 1.6), 0.0, -0.06),
            "left": _looking((1.1, 0.5, 1.65), np.deg2rad(66.0), -0.03),
            "right": _looking((1.1, -0.5, 1.65), np.deg2rad(-66.0), -0.03),
            "lidar": lidar,
        }

    def drive(self) -> Drive:
        """Makes the log: all images and sweeps, with truth for tracks, poses and mounts.

        Returns:
            The drive; the same street gives the same one. Colours are multiples of 1/255, as if
            they came from PNG files.
        """
        count = int(np.floor(self.seconds * self.rate + 1e-6))
        cameras = [(name, index) for index in range(count) for name in _TRIGGERS]
        # First, so that all threads find them ready.
        _ = self._world, self.ego
        with concurrent.futures.ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            exposures = list(pool.map(lambda what: self._expose(*what), cameras))
            sweeps = list(pool.map(self._turn, range(count)))
        return Drive(
            exposures=exposures,
            sweeps=sweeps,
            tracks=self.tracks,
            ego=self.ego,
            mounts=dict(self.mounts),
            epoch=EPOCH,
            format="street",
            path=pathlib.Path("street"),
        )

    def camera(
        self, name: str, time: float, *, shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ) -> LensCamera | RollingShutterCamera:
        """A camera of the rig.

        Args:
            name: `wide`, `left` or `right`.
            time: Of the middle of its exposure, in seconds since the epoch.
            shift: Of the whole rig in metres along its own axes: (0, 1, 0) is another lane, 1 m
                to the left.

        Raises:
            ValueError: If there is no such camera.
        """
        if name not in _TRIGGERS:
            raise ValueError(f"name: got {name!r}; give one of {sorted(_TRIGGERS)}")
        mount = jnp.asarray(_shifted(self.mounts[name], shift))
        middle = jnp.asarray([self.width / 2, self.height / 2], mount.dtype)
        if name == "wide":
            # 70 degrees from the axis to the middle of an edge at the side.
            slope = self.width / 2 / np.deg2rad(70.0)
            coefficients = jnp.asarray([0.0, 1.04 * slope, 0.0, -0.0268 * slope], mount.dtype)
            lens = FThetaLens(middle, coefficients, jnp.asarray(np.deg2rad(110.0), mount.dtype))
            pose = _pose_at(self.ego, mount, jnp.asarray(time, mount.dtype))
            return LensCamera(pose, lens, width=self.width, height=self.height)
        focal = jnp.full(2, 0.75 * self.width, mount.dtype)
        return RollingShutterCamera(
            PinholeCamera(mount, focal, middle, width=self.width, height=self.height),
            self.ego,
            time - ROLLING_SECONDS / 2,
            time + ROLLING_SECONDS / 2,
            direction="top_to_bottom" if name == "left" else "bottom_to_top",
        )

    def lidar(
        self, start: float, *, shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ) -> SpinningLidar:
        """The lidar of the rig, for one turn.

        Args:
            start: When the first column is fired, in seconds since the epoch.
            shift: See `camera`.
        """
        return SpinningLidar(
            jnp.asarray(_shifted(self.mounts["lidar"], shift)),
            self.ego,
            jnp.linspace(_HIGHEST, _LOWEST, self.rows),
            jnp.asarray(spin(self.columns, "cw")),
            start=start,
            end=start + self._turn_seconds * (self.columns - 1) / self.columns,
            beam=_BEAM,
        )

    def image(
        self,
        camera: Any,
        *,
        time: float | None = None,
        hidden: Collection[str] = (),
        moved: Mapping[str, np.ndarray] | None = None,
    ) -> Float32[np.ndarray, "height width 3"]:
        """What any camera sees, anywhere.

        Args:
            camera: With `rays`, `width` and `height`.
            time: Of the exposure, in seconds since the epoch, if the camera's rays have none.
            hidden: Ids of cars that are not there.
            moved: Rigid transforms of the world, for the ids of the cars whose paths they move.

        Returns:
            Colours in [0, 1], multiples of 1/255; 0 where the lens sees nothing.

        Raises:
            ValueError: If there is no such car, a transform is not rigid, or the time is
                missing.
        """
        scene = self._scene(hidden, moved)
        grid = Grid.of(camera.rays(), time)
        colors, marks, thin = grid.measure(lambda beams: caster.survey(scene, beams))
        image = np.moveaxis(np.where(grid.valid, colors, 0), 0, -1)
        marks = np.where(grid.valid, marks, -1)
        # Patterns fade as their mean over a pixel does, so one ray is enough but at edges.
        doubtful = edges(marks) | thin
        if self.samples > 1 and doubtful.any():
            fine, rows, columns = within_pixels(
                camera, doubtful, self.samples, time, grid.origins.dtype
            )
            (colors,) = fine.measure(
                lambda beams: [caster.colors(scene, caster.cast(scene, beams), beams)]
            )
            colors = np.where(fine.valid, colors, 0).reshape(3, len(rows), -1).mean(-1)
            image[rows, columns] = colors.T
        return np.round(255 * np.ascontiguousarray(image)) / np.float32(255)

    def ranges(
        self,
        camera: Any,
        *,
        time: float | None = None,
        hidden: Collection[str] = (),
        moved: Mapping[str, np.ndarray] | None = None,
    ) -> Float32[np.ndarray, "height width"]:
        """How far away is what a camera sees in the middle of each pixel; see `image`.

        Returns:
            Metres along the ray to the surface with which at least half of the beam is stopped;
            infinite where that is the sky.
        """
        hits = self.cast(camera.rays(), time=time, hidden=hidden, moved=moved)
        return _visible(hits, hits.ranges, np.float32(np.inf))

    def actors(
        self,
        camera: Any,
        *,
        time: float | None = None,
        hidden: Collection[str] = (),
        moved: Mapping[str, np.ndarray] | None = None,
    ) -> Int32[np.ndarray, "height width"]:
        """Which car is seen in the middle of each pixel; see `image` and `ranges`.

        Returns:
            The number of its track, or -1 where there is none.
        """
        hits = self.cast(camera.rays(), time=time, hidden=hidden, moved=moved)
        return _visible(hits, hits.actors, np.int32(-1))

    def sweep(
        self,
        lidar: SpinningLidar | RayBundle,
        *,
        hidden: Collection[str] = (),
        moved: Mapping[str, np.ndarray] | None = None,
    ) -> Sweep:
        """What any lidar measures, anywhere.

        Args:
            lidar: One whose rays are a grid of rows and columns.
            hidden: Ids of cars that are not there.
            moved: Rigid transforms of the world, for the ids of the cars whose paths they move.

        Returns:
            Exact ranges and intensities of what is heard; see the class.

        Raises:
            ValueError: As `image`.
        """
        grid, scene = Grid.of(lidar.rays(), None), self._scene(hidden, moved)
        hits = _cast(scene, grid)
        heard = _heard(hits, 1.0)
        returned = np.asarray(heard.any(-1))
        chosen = heard.argmax(-1)[..., None]

        def first(values):
            return np.where(returned, np.take_along_axis(values, chosen, -1)[..., 0], 0)

        nearest = first(hits.ranges)
        beyond = nearest[..., None] + np.float32(SEPARATION)
        behind = np.where(heard & (hits.ranges >= beyond), hits.ranges, np.inf).min(-1)
        surface = np.take_along_axis(hits.surfaces, chosen, -1)
        for part in grid.rim():
            rim = _cast(scene, part)
            passed = ~(rim.surfaces == surface).any(-1, keepdims=True)
            second = passed & _heard(rim, _RIM) & (rim.ranges >= beyond)
            behind = np.minimum(behind, np.where(second, rim.ranges, np.inf).min(-1))
        return Sweep(
            lidar=lidar,
            ranges=nearest.astype(np.float32),
            returned=returned,
            intensities=first(hits.covers * hits.reflectances * hits.cosines).astype(np.float32),
            second_ranges=np.where(returned & np.isfinite(behind), behind, 0).astype(np.float32),
            mask=None if grid.valid.all() else grid.valid,
            time=(float(grid.times.min()) + float(grid.times.max())) / 2,
        )

    def cast(
        self,
        rays: Rays,
        *,
        time: float | None = None,
        hidden: Collection[str] = (),
        moved: Mapping[str, np.ndarray] | None = None,
    ) -> Hits:
        """Follows rays through the street.

        Args:
            rays: One sensor's. Their footprint is what patterns are averaged over.
            time: Of all rays, in seconds since the epoch, if they have no times.
            hidden: Ids of cars that are not there.
            moved: Rigid transforms of the world, for the ids of the cars whose paths they move.

        Returns:
            What they meet; nothing where a ray does not exist.

        Raises:
            ValueError: As `image`.
        """
        return _cast(self._scene(hidden, moved), Grid.of(rays, time))

    @property
    def _turn_seconds(self) -> float:
        return min(_TURN, 1 / self.rate)

    @functools.cached_property
    def _world(self) -> world.World:
        return world.build(self.seed, self.seconds)

    def _scene(self, hidden, moved) -> caster.Scene:
        """All things, without the hidden cars and with the moved ones elsewhere."""
        moved = {} if moved is None else moved
        names = [actor.id for actor in self._world.actors]
        for argument, given in (("hidden", hidden), ("moved", moved)):
            unknown = [name for name in given if name not in names]
            if unknown:
                raise ValueError(f"{argument}: got {unknown[0]!r}; give ids of {names}")
        shifts = {name: _rigid(name, matrix) for name, matrix in moved.items()}
        solids = list(self._world.still)
        for actor, mover in zip(self._world.actors, self._world.movers, strict=True):
            if actor.id in shifts:
                place = dataclasses.replace(actor.path, shift=shifts[actor.id])
                mover = dataclasses.replace(mover, place=place)
            if actor.id not in hidden:
                solids.append(mover)
        return caster.Scene(solids, self._world.sky)

    def _expose(self, name: str, index: int) -> Exposure:
        time = index / self.rate + _TRIGGERS[name] * self._turn_seconds
        camera = self.camera(name, time)
        return Exposure(
            camera=camera,
            image=self.image(camera, time=time),
            name=f"{name}/{index:06d}",
            sensor=name,
            time=time,
        )

    def _turn(self, index: int) -> Sweep:
        sweep = self.sweep(self.lidar(index / self.rate))
        return dataclasses.replace(sweep, name=f"lidar/{index:06d}", sensor="lidar")


def _cast(scene: caster.Scene, grid: Grid) -> Hits:
    owners = np.array([solid.actor for solid in scene.solids] + [-1], np.int32)

    def measure(beams):
        layers = caster.cast(scene, beams)
        colors = caster.colors(scene, layers, beams)
        return [colors, *caster.sorted_layers(layers, LAYERS)]

    colors, ranges, covers, reflectances, cosines, surfaces = (
        np.moveaxis(values, 0, -1) for values in grid.measure(measure)
    )
    valid = grid.valid[..., None]
    surfaces = np.where(valid, surfaces, np.int32(-1))
    return Hits(
        colors=np.where(valid, colors, 0),
        ranges=np.where(valid, ranges, np.float32(np.inf)),
        covers=np.where(valid, covers, 0),
        reflectances=np.where(valid, reflectances, 0),
        cosines=np.where(valid, cosines, 0),
        surfaces=surfaces,
        actors=owners[surfaces],
    )


def _visible(hits: Hits, values, nothing):
    """The value of the layer with which half of each beam is stopped."""
    half = np.cumsum(hits.covers, -1) >= 0.5
    found = np.take_along_axis(values, half.argmax(-1)[..., None], -1)[..., 0]
    return np.where(half.any(-1), found, nothing)


def _heard(hits: Hits, share: float) -> Bool[np.ndarray, "*grid layers"]:
    """Which layers a lidar hears of a share of its beam."""
    signal = share * hits.covers * hits.reflectances * hits.cosines
    return np.isfinite(hits.ranges) & (signal >= 0.1 * (hits.ranges / REACH) ** 2)


def _trajectory(path: caster.Moving) -> Trajectory:
    poses = np.tile(np.eye(4), (len(path.times), 1, 1))
    poses[:, 0, 0] = poses[:, 1, 1] = np.cos(path.yaws)
    poses[:, 1, 0], poses[:, 0, 1] = np.sin(path.yaws), -np.sin(path.yaws)
    poses[:, :3, 3] = path.positions
    return Trajectory(jnp.asarray(poses), path.times)


def _looking(position, yaw: float, pitch: float) -> Float64[np.ndarray, "4 4"]:
    """`body_from_camera` of a camera turned to the left by the yaw and up by the pitch."""
    ahead = np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)])
    right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(ahead, right), ahead], axis=-1)
    pose[:3, 3] = position
    return pose


def _shifted(mount, shift) -> Float64[np.ndarray, "4 4"]:
    pose = mount.copy()
    pose[:3, 3] += shift
    return pose


def _rigid(name: str, matrix) -> Float64[np.ndarray, "4 4"]:
    argument = f"moved[{name!r}]"
    return np.asarray(check_rigid(argument, float_array(argument, matrix, (4, 4))), np.float64)
