"""Fitting a scene with actors to the exposures and sweeps of a drive."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from .._typing import Numbers
from ..rendering import first_surface
from ..sensors import Exposure, Sweep
from ..trajectory import Path
from .density import growth_due
from .drive_data import Photo, Scan, crosses_boxes, lidar_depths, make_photo, make_scan
from .drive_settings import DriveSettings
from .drive_start import Moving, boxes_of, start_drive
from .drive_state import DriveState
from .drive_step import grow_drive, make_drive_step
from .moving_scene import MovingScene, Sight
from .rig_calibration import RigCalibration

OnDriveStep = Callable[[int, DriveState], None]
OnDriveProgress = Callable[[int, Mapping[str, float]], None]


# Returns that are nearer to each other than this are heard as one, in metres.
_SEPARATION = 0.5
# What is more likely lost than not does not come back.
_LOST = 0.5


class Beamed(NamedTuple):
    """What a lidar brings back.

    Attributes:
        ranges: In metres, of the surface that stops most of each beam; see `first_surface`.
        intensities: In [0, 1].
        drops: Probability that nothing comes back.
        returned: Whether something is said to come back.
    """

    ranges: Float[Array, "rows columns"]
    intensities: Float[Array, "rows columns"]
    drops: Float[Array, "rows columns"]
    returned: Bool[Array, "rows columns"]


@dataclasses.dataclass(frozen=True)
class FittedDrive:
    """What a fit of a drive has learned about the world and about the rig.

    Attributes:
        state: The fit.
        settings: Of the fit.
    """

    state: DriveState
    settings: DriveSettings

    @property
    def scene(self) -> MovingScene:
        """The world, without exposure."""
        return self.state.scene

    def moved_sensor(self, sensor: Any, name: str, time: float) -> Any:
        """A camera or lidar with what was learned about its mount and the rig's path.

        Args:
            sensor: At its place in the world, or on its path.
            name: In the rig. One that took no part keeps its mount.
            time: Of the middle of what it measures, in seconds since the epoch.
        """
        rig = self.settings.rig
        if rig.mounts == 0 and rig.path == 0:
            return sensor
        calibration = self.state.calibration
        known = name if name in calibration.sensors else calibration.reference
        return _moved(calibration, sensor, calibration.sensors.index(known), np.float32(time))

    def see(self, camera: Any, name: str, time: float) -> Sight:
        """What a camera sees, with the exposure of the one of its name. Not clipped.

        Args:
            camera: At its place in the world.
            name: In the rig. One that took no part has the mean exposure.
            time: Of the middle of its exposure, in seconds since the epoch.
        """
        calibration = self.state.calibration
        seen = _photograph(self.scene, camera, np.float32(time))
        if name not in calibration.cameras:
            return seen
        number = calibration.cameras.index(name)
        return seen._replace(color=_exposed(calibration, seen.color, number))

    def photograph(self, exposure: Exposure) -> Sight:
        """What the camera of an exposure sees; see `see`."""
        camera = self.moved_sensor(exposure.camera, exposure.sensor, exposure.time)
        return self.see(camera, exposure.sensor, exposure.time)

    def beam(self, lidar: Any, time: float) -> "Beamed":
        """What a lidar at its place in the world brings back.

        Args:
            lidar: See `MovingScene.sweep`.
            time: Of the middle of its sweep, in seconds since the epoch.
        """
        swept, first = _sweep(self.scene, lidar, np.float32(time))
        returned = (swept.drops < _LOST) & (first > 0)
        return Beamed(first, swept.intensities, swept.drops, returned)

    def without(self, ids: Iterable[str]) -> "FittedDrive":
        """The drive without some of its actors; see `Actors.without`."""
        return self._with_scene(self.scene.without(ids))

    def moved(self, id: str, box_from_box: Numbers) -> "FittedDrive":
        """The drive with an actor elsewhere; see `Actors.moved`."""
        return self._with_scene(self.scene.moved(id, box_from_box))

    def _with_scene(self, scene: MovingScene) -> "FittedDrive":
        return dataclasses.replace(self, state=dataclasses.replace(self.state, scene=scene))


def begin_drive(
    exposures: Sequence[Exposure],
    sweeps: Sequence[Sweep],
    tracks: Sequence[Moving],
    settings: DriveSettings,
    *,
    ego: Path | None = None,
) -> DriveState:
    """Prepares a fit of a drive: its state at step 0. See `fit_drive` for the arguments."""
    scene = start_drive(exposures, sweeps, tracks, settings)
    times = np.array([one.time for one in (*exposures, *sweeps)])
    names = _names(exposures), _names(sweeps)
    calibration = RigCalibration.create(*names, times, ego, settings)
    return DriveState.create(scene, calibration, settings)


def fit_drive(
    exposures: Sequence[Exposure],
    sweeps: Sequence[Sweep],
    tracks: Sequence[Moving],
    settings: DriveSettings,
    *,
    ego: Path | None = None,
    state: DriveState | None = None,
    on_step: OnDriveStep | None = None,
    on_progress: OnDriveProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FittedDrive:
    """Fits a scene to what cameras and lidars of a drive measured.

    Every step renders one exposure and one sweep, each ray from where its sensor was then, and
    descends along the gradient of both. The order is random, each once before any again. The same
    inputs give the same bits on the same kind of device, whether the fit runs in one piece or is
    stopped and resumed from any state.

    Args:
        exposures: To fit, of all cameras; none to fit to lidars alone.
        sweeps: To fit, of all lidars.
        tracks: What moves; its spheres ride in its boxes.
        settings: See there.
        ego: `world_from_body` of the rig, needed where `settings.rig.path` refines it.
        state: Where to resume; it is donated and dead afterwards. From the start if None.
        on_step: Called after every step with its number and the state, whose arrays are dead after
            the next step: copy what is to be kept. Reading them waits for the device.
        on_progress: Called every `settings.progress_every` steps and at the end with the number
            of steps done and the metrics of the last one (see `make_drive_step`).
        should_stop: Asked before every step; the fit ends early when it says so.

    Returns:
        The scene and what was learned about the rig.

    Raises:
        ValueError: If no beam returned, or the settings ask for what the drive has not.
    """
    if state is None:
        state = begin_drive(exposures, sweeps, tracks, settings, ego=ego)
    photos, scans = drive_data(exposures, sweeps, tracks, settings)
    step = make_drive_step(settings)
    done = int(state.step)
    random = np.random.default_rng([settings.seed, 3])
    frames = itertools.islice(_order(len(photos), len(scans), random), done, None)
    metrics: dict[str, Any] = {}
    reported = done
    while done < settings.steps and not (should_stop is not None and should_stop()):
        photo, scan = next(frames)
        state, metrics = step(state, photos[photo] if photos else None, scans[scan])
        done += 1
        if growth_due(settings, done):
            state = grow_drive(state, settings)
        if on_step is not None:
            on_step(done, state)
        if on_progress is not None and done % settings.progress_every == 0:
            on_progress(done, _on_host(metrics))
            reported = done
    if on_progress is not None and reported < done:
        on_progress(done, _on_host(metrics))
    return FittedDrive(state, settings)


def drive_data(
    exposures: Sequence[Exposure],
    sweeps: Sequence[Sweep],
    tracks: Sequence[Moving],
    settings: DriveSettings,
) -> tuple[list[Photo], list[Scan]]:
    """Puts what is fitted on the device, with what the settings want to know of it."""
    cameras, lidars = _names(exposures), _names(sweeps)
    sensors = list(dict.fromkeys([*lidars, *cameras]))
    actors, sizes = boxes_of(tracks)
    masked = settings.movers == "mask" and len(tracks) > 0

    def hidden(sensor, time):
        if not masked:
            return None
        return crosses_boxes(sensor.rays(), time, actors, sizes, settings.margin)

    depths: list[Any] = [None] * len(exposures)
    if settings.weights.depth > 0:
        depths = list(lidar_depths(exposures, sweeps, actors, sizes, settings.margin))
    photos = [
        make_photo(
            one,
            number=cameras.index(one.sensor),
            sensor=sensors.index(one.sensor),
            hidden=hidden(one.camera, one.time),
            depths=depth,
        )
        for one, depth in zip(exposures, depths, strict=True)
    ]
    scans = [
        make_scan(one, sensor=sensors.index(one.sensor), hidden=hidden(one.lidar, one.time))
        for one in sweeps
    ]
    return photos, scans


def _names(measured: Sequence[Exposure] | Sequence[Sweep]) -> list[str]:
    return list(dict.fromkeys(one.sensor for one in measured))


def _order(photos: int, scans: int, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Numbers of the exposure and the sweep of each step."""

    def shuffled(count):
        while True:
            yield from random.permutation(count) if count else [0]

    yield from zip(shuffled(photos), shuffled(scans), strict=False)


def _on_host(metrics: Mapping[str, Float[Array, ""]]) -> dict[str, float]:
    return {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}


@jax.jit
def _moved(calibration, sensor, number, time):
    return calibration.moved(sensor, number, time)


@jax.jit
def _exposed(calibration, color, number):
    return calibration.exposed(color, number)


@jax.jit
def _photograph(scene, camera, time):
    return scene.photograph(camera, time)


@jax.jit
def _sweep(scene, lidar, time):
    bare = scene.for_lidars(time)
    first = first_surface(bare, lidar, near=scene.near, far=scene.far, separation=_SEPARATION)
    return scene.sweep(lidar, time), first
