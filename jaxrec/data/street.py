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

import numpy as np
from jaxtyping import Float32, Float64, Int32

from ..sensors import (
    Exposure,
    LensCamera,
    RayBundle,
    Rays,
    RollingShutterCamera,
    SpinningLidar,
    Sweep,
)
from ..trajectory import Trajectory
from . import _street_rig as rig, _street_truth as truth, _street_world as world
from ._street_grid import Grid
from ._street_rig import ROLLING_SECONDS as ROLLING_SECONDS
from ._street_truth import LAYERS as LAYERS, REACH as REACH, SEPARATION as SEPARATION, Hits as Hits
from .drive import Drive, Track

EPOCH = 1_700_000_000_000_000_000
"""Of the drive's clock, in nanoseconds."""

# A turn takes this many seconds, or less where sweeps follow faster.
_TURN = 0.1
# More threads than this wait for the interpreter.
_THREADS = 8


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
        return rig.ego(self.seconds)

    @functools.cached_property
    def tracks(self) -> list[Track]:
        """The cars that drive."""
        return rig.tracks(self._world.actors)

    @functools.cached_property
    def mounts(self) -> dict[str, Float64[np.ndarray, "4 4"]]:
        """`body_from_sensor` by the sensor's name."""
        return rig.mounts()

    def drive(self) -> Drive:
        """Makes the log: all images and sweeps, with truth for tracks, poses and mounts.

        Returns:
            The drive; the same street gives the same one. Colours are multiples of 1/255, as if
            they came from PNG files.
        """
        count = int(np.floor(self.seconds * self.rate + 1e-6))
        cameras = [(name, index) for index in range(count) for name in rig.TRIGGERS]
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
        if name not in rig.TRIGGERS:
            raise ValueError(f"name: got {name!r}; give one of {sorted(rig.TRIGGERS)}")
        mount = rig.shifted(self.mounts[name], shift)
        return rig.camera(self.ego, mount, name, time, (self.width, self.height))

    def lidar(
        self, start: float, *, shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ) -> SpinningLidar:
        """The lidar of the rig, for one turn.

        Args:
            start: When the first column is fired, in seconds since the epoch.
            shift: See `camera`.
        """
        mount = rig.shifted(self.mounts["lidar"], shift)
        size = (self.rows, self.columns)
        return rig.lidar(self.ego, mount, start, self._turn_seconds, size)

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
        return truth.picture(self._world.scene(hidden, moved), camera, time, self.samples)

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
        return truth.visible(hits, hits.ranges, np.float32(np.inf))

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
        return truth.visible(hits, hits.actors, np.int32(-1))

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
        return truth.sweep(self._world.scene(hidden, moved), lidar)

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
        return truth.cast(self._world.scene(hidden, moved), Grid.of(rays, time))

    @property
    def _turn_seconds(self) -> float:
        return min(_TURN, 1 / self.rate)

    @functools.cached_property
    def _world(self) -> world.World:
        return world.build(self.seed, self.seconds)

    def _expose(self, name: str, index: int) -> Exposure:
        time = index / self.rate + rig.TRIGGERS[name] * self._turn_seconds
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
