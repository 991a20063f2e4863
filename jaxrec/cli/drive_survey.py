"""What the log of a drive holds, as numbers that `jaxrec check` judges and draws."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from ..data import Drive
from ..scene import Actors
from ..sensors import Exposure, RayBundle, RollingShutterCamera, SpinningLidar, Sweep
from ..trajectory import Path, ScrewTrajectory, Still, Trajectory
from .alignment import Alignment, Edges, align, edges_of, pixels_of, pose_of, poses_at
from .pixels import spread_evenly

RANGES = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0, np.inf)
"""Bounds of the bins of the histogram of ranges, in metres."""

# Images and sweeps beyond these numbers change no verdict.
_MOST_IMAGES, _MOST_SWEEPS, _MOST_TIMES = 12, 12, 200
_MOST_POINTS = 20_000
# Images and sweeps farther apart than this, in seconds, are not compared: too much has moved.
_LATE = 0.15
# Boxes of logs are tight.
_MARGIN = 0.2
# What moves faster than this, in metres per second, is no edge to compare.
_MOVING = 0.3
_EDGES = ("nan", "hold", "extrapolate", "still")


@dataclasses.dataclass(frozen=True, eq=False)
class SensorFacts:
    """What one sensor of a drive recorded.

    Attributes:
        name: In the rig.
        kind: Camera or lidar.
        names: Of its images or sweeps, in the order of time.
        times: Of their middles, in seconds since the epoch.
        posed: Which of them the rig's path covers from their beginning to their end.
        mounted: Whether the drive has its mount.
        off_mount: Metres and degrees between where it stands in the log and where the rig's path
            and its mount put it, in the median; NaN where one is missing.
    """

    name: str
    kind: Literal["camera", "lidar"]
    names: list[str]
    times: Float64[np.ndarray, " n"]
    posed: Bool[np.ndarray, " n"]
    mounted: bool
    off_mount: tuple[float, float]

    @property
    def step(self) -> float:
        """Median of the seconds from one to the next; NaN for a single one."""
        steps = np.diff(self.times)
        return float(np.median(steps)) if len(steps) else float("nan")


@dataclasses.dataclass(frozen=True, eq=False)
class Coverage:
    """What a sensor sees, as shares of some of its images or sweeps.

    Attributes:
        seen: Of a lidar's points, those in an image of any camera; of a camera's pixels, those
            with a point.
        silent: Of a lidar's rays, those without a return; 0 for a camera.
        unknown: Of a lidar's rays, those of which the log says nothing; of a camera's pixels,
            those that are masked.
        ranges: Of a lidar's returns, in the bins of `RANGES`; empty for a camera.
    """

    seen: float
    silent: float
    unknown: float
    ranges: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class TrackFacts:
    """What is known of a track.

    Attributes:
        id: Its name.
        label: What it is.
        size: Length, width and height in metres.
        known: Share of the times of images and sweeps at which it has a pose.
        points: Points in its box, of some of the sweeps.
    """

    id: str
    label: str
    size: tuple[float, float, float]
    known: float
    points: int


@dataclasses.dataclass(frozen=True, eq=False)
class DriveSurvey:
    """A drive in numbers.

    Attributes:
        drive: What was surveyed.
        sensors: Cameras and lidars by name.
        lags: Seconds from each exposure to the sweep that is nearest in time.
        coverage: By the sensor's name.
        alignments: Of each camera with each lidar.
        tracks: What moves.
    """

    drive: Drive
    sensors: dict[str, SensorFacts]
    lags: Float64[np.ndarray, " exposures"]
    coverage: dict[str, Coverage]
    alignments: list[Alignment]
    tracks: list[TrackFacts]

    @property
    def cameras(self) -> list[str]:
        """Names of the cameras."""
        return [name for name, facts in self.sensors.items() if facts.kind == "camera"]

    @property
    def lidars(self) -> list[str]:
        """Names of the lidars."""
        return [name for name, facts in self.sensors.items() if facts.kind == "lidar"]


def survey_drive(drive: Drive, alignments: Sequence[Alignment]) -> DriveSurvey:
    """Looks at all clocks, poses, mounts and tracks of a drive, and at some images and sweeps.

    Args:
        drive: What to look at.
        alignments: What `align_all` found in it.
    """
    sensors = {facts.name: facts for facts in _sensors(drive)}
    stamps = np.sort([sweep.time for sweep in drive.sweeps])
    lags = [np.abs(stamps - e.time).min() if len(stamps) else np.inf for e in drive.exposures]
    movers = Movers(drive)
    images, sweeps = (
        {name: some_of(name, recorded, most) for name in names}
        for names, recorded, most in (
            (_names(drive.exposures), drive.exposures, _MOST_IMAGES),
            (_names(drive.sweeps), drive.sweeps, _MOST_SWEEPS),
        )
    )
    return DriveSurvey(
        drive=drive,
        sensors=sensors,
        lags=np.asarray(lags, np.float64),
        coverage=_coverage(drive, images, sweeps),
        alignments=list(alignments),
        tracks=_tracks(drive, sweeps, movers),
    )


def align_all(drive: Drive) -> list[Alignment]:
    """Compares edges in some images of each camera with those in the sweeps of each lidar."""
    movers = Movers(drive)
    images = {
        name: some_of(name, drive.exposures, _MOST_IMAGES) for name in _names(drive.exposures)
    }

    @functools.cache
    def still_edges(index: int) -> Edges:
        sweep = drive.sweeps[index]
        edges = edges_of(sweep)
        still = movers.inside(edges.points, sweep.time, moving=True) < 0
        return Edges(*(values[still] for values in edges))

    result = []
    for lidar in _names(drive.sweeps):
        own = [index for index, sweep in enumerate(drive.sweeps) if sweep.sensor == lidar]
        times = np.asarray([drive.sweeps[index].time for index in own])
        for camera, exposures in images.items():
            pairs = []
            for exposure in exposures:
                apart = np.abs(times - exposure.time)
                if apart.min() <= _LATE:
                    pairs.append((exposure, still_edges(own[int(apart.argmin())])))
            result.append(align(camera, lidar, pairs, drive.ego))
    return result


def some_of(name: str, recorded: Sequence, most: int) -> list:
    """At most so many of a sensor's images or sweeps, spread over the drive."""
    own = [each for each in recorded if each.sensor == name]
    return [own[place] for place in spread_evenly(len(own), most)]


def nearest_sweep(drive: Drive, lidar: str | None, time: float) -> Sweep | None:
    """The sweep nearest in time, of one lidar or of any."""
    own = [sweep for sweep in drive.sweeps if lidar is None or sweep.sensor == lidar]
    return min(own, key=lambda sweep: abs(sweep.time - time), default=None)


class Movers:
    """Where the boxes of a drive's tracks are.

    Attributes:
        tracks: Those with a path that can be asked for many times at once.
    """

    def __init__(self, drive: Drive):
        paths = [track for track in drive.tracks if isinstance(track.path, Trajectory | Still)]
        # Actors of one scene share what is beyond the ends of their paths.
        groups = {edge: [t for t in paths if _edge(t.path) == edge] for edge in _EDGES}
        self.tracks = [track for group in groups.values() for track in group]
        self._actors = [
            Actors.create({track.id: track.path for track in group})
            for group in groups.values()
            if group
        ]

    def at(self, times: Float[np.ndarray, " times"]) -> Float64[np.ndarray, "tracks times 4 4"]:
        """Poses of the boxes; NaN where there are none."""
        size = 1 << max(len(times) - 1, 255).bit_length()
        padded = jnp.asarray(np.resize(times, size), jnp.float32)
        found = [np.zeros((0, len(times), 4, 4))]
        for actors in self._actors:
            poses, valid = (np.asarray(x)[:, : len(times)] for x in actors.sample(padded))
            found.append(np.where(valid[..., None, None], poses, np.nan).astype(np.float64))
        return np.concatenate(found)

    def inside(
        self, points: Float[np.ndarray, "n 3"], time: float, *, moving: bool
    ) -> Int64[np.ndarray, " n"]:
        """The number of the box that each point is in at one time, or -1.

        Args:
            points: World coordinates.
            time: In seconds since the epoch.
            moving: Whether only boxes count that move then.
        """
        result = np.full(len(points), -1)
        if not self.tracks:
            return result
        before, now, after = np.moveaxis(self.at(np.array([time - 0.05, time, time + 0.05])), 1, 0)
        speed = np.linalg.norm(after[:, :3, 3] - before[:, :3, 3], axis=1) / 0.1
        for number, (track, pose) in enumerate(zip(self.tracks, now, strict=True)):
            # One that begins or ends just now may well move.
            if not np.isfinite(pose).all() or (moving and speed[number] <= _MOVING):
                continue
            local = np.abs((points - pose[:3, 3]) @ pose[:3, :3])
            result[(local <= track.size / 2 + _MARGIN).all(axis=1)] = number
        return result


def _edge(path: Path) -> str:
    return path.edge if isinstance(path, Trajectory) else "still"


def _names(recorded: Sequence[Exposure] | Sequence[Sweep]) -> list[str]:
    return list(dict.fromkeys(each.sensor for each in recorded))


def _sensors(drive: Drive):
    kinds: tuple[tuple[Literal["camera", "lidar"], Sequence], ...]
    kinds = (("camera", drive.exposures), ("lidar", drive.sweeps))
    for kind, recorded in kinds:
        for name in _names(recorded):
            own = sorted((each for each in recorded if each.sensor == name), key=lambda x: x.time)
            spans = np.asarray([_span(each) for each in own])
            mount = drive.mounts.get(name)
            yield SensorFacts(
                name=name,
                kind=kind,
                names=[each.name for each in own],
                times=np.asarray([each.time for each in own], np.float64),
                posed=np.all(covers(drive.ego, spans), axis=1),
                mounted=mount is not None,
                off_mount=_off_mount(drive, own, mount),
            )


def covers(path: Path, times: Float[np.ndarray, "*batch"]) -> Bool[np.ndarray, "*batch"]:
    """Whether a path has poses at times of its own, not just the motion at its end, which goes on.

    Half a step beyond an end is still known as well as what is between two poses.
    """
    known = np.asarray(np.isfinite(poses_at(path, times)).all(axis=(-1, -2)))
    if isinstance(path, Trajectory | ScrewTrajectory) and path.edge != "nan":
        own = np.asarray(path.times, np.float64)
        slack = 0.5 * float(np.median(np.diff(own)))
        known = known & (times >= own[0] - slack) & (times <= own[-1] + slack)
    return np.asarray(known)


def _span(recorded: Exposure | Sweep) -> tuple[float, float]:
    """First and last time at which it was measured."""
    own = recorded.camera if isinstance(recorded, Exposure) else recorded.lidar
    if isinstance(own, RollingShutterCamera | SpinningLidar):
        ends = np.sort([float(own.start), float(own.end)]) + float(own.offset)
    elif isinstance(own, RayBundle):
        used = np.asarray(own.times)
        if isinstance(recorded, Sweep) and recorded.mask is not None and recorded.mask.any():
            used = used[recorded.mask]
        ends = np.array([used.min(), used.max()]) + float(own.offset)
    else:
        ends = np.full(2, recorded.time)
    return float(ends[0]), float(ends[1])


def _off_mount(drive: Drive, own: Sequence, mount) -> tuple[float, float]:
    """How far sensors are from their mounts, in metres and degrees."""
    if mount is None:
        return float("nan"), float("nan")
    chosen = [own[place] for place in spread_evenly(len(own), _MOST_IMAGES)]
    stated = np.stack([_pose(each) for each in chosen])
    path = poses_at(drive.ego, np.asarray([each.time for each in chosen])) @ mount
    apart = np.linalg.norm(stated[:, :3, 3] - path[:, :3, 3], axis=1)
    chord = np.linalg.norm(stated[:, :3, :3] - path[:, :3, :3], axis=(1, 2)) / np.sqrt(8)
    turned = np.degrees(2 * np.arcsin(np.clip(chord, 0, 1)))
    known = np.isfinite(apart) & np.isfinite(turned)
    if not known.any():
        return float("nan"), float("nan")
    return float(np.median(apart[known])), float(np.median(turned[known]))


def _pose(recorded: Exposure | Sweep) -> Float64[np.ndarray, "4 4"]:
    """Where a sensor stands by its own account."""
    if isinstance(recorded, Exposure):
        return pose_of(recorded)
    lidar = recorded.lidar
    spins = isinstance(lidar, SpinningLidar)
    mounted = np.asarray(lidar.body_from_lidar if spins else lidar.body_from_sensor)
    return poses_at(lidar.trajectory, recorded.time) @ mounted


def _coverage(drive: Drive, images: Mapping, sweeps: Mapping) -> dict[str, Coverage]:
    result = {}
    for name, some in images.items():
        shares, masked = [], []
        for exposure in some:
            camera = exposure.camera
            masked.append(0.0 if exposure.mask is None else 1 - float(exposure.mask.mean()))
            sweep = nearest_sweep(drive, None, exposure.time)
            if sweep is None:
                shares.append(0.0)
                continue
            pixels, _, inside = pixels_of(camera, sweep.points()[0])
            cells = pixels[inside].astype(np.int64) @ np.array([1, camera.width])
            shares.append(len(np.unique(cells)) / (camera.width * camera.height))
        result[name] = Coverage(float(np.mean(shares)), 0.0, float(np.mean(masked)))
    for name, some in sweeps.items():
        seen, silent, unknown, ranges = [], [], [], []
        for sweep in some:
            points = sweep.points()[0]
            points = points[:: 1 + len(points) // _MOST_POINTS]
            anywhere = np.zeros(len(points), bool)
            for exposure in _around(drive, sweep.time):
                anywhere |= pixels_of(exposure.camera, points)[2]
            used = np.ones(sweep.ranges.shape, bool) if sweep.mask is None else sweep.mask
            seen.append(float(anywhere.mean()) if len(points) else 0.0)
            silent.append(float((used & ~sweep.returned).mean()))
            unknown.append(1 - float(used.mean()))
            ranges.append(sweep.ranges[used & sweep.returned])
        count = np.histogram(np.concatenate(ranges), np.asarray(RANGES))[0]
        shares = count / max(int(count.sum()), 1)
        result[name] = Coverage(
            seen=float(np.mean(seen)),
            silent=float(np.mean(silent)),
            unknown=float(np.mean(unknown)),
            ranges=tuple(shares.tolist()),
        )
    return result


def _around(drive: Drive, time: float) -> list[Exposure]:
    """The exposure of each camera that is nearest in time."""
    nearest: dict[str, Exposure] = {}
    for exposure in drive.exposures:
        best = nearest.get(exposure.sensor)
        if best is None or abs(exposure.time - time) < abs(best.time - time):
            nearest[exposure.sensor] = exposure
    return list(nearest.values())


def _tracks(drive: Drive, sweeps: Mapping, movers: Movers) -> list[TrackFacts]:
    recorded = sorted({each.time for each in (*drive.exposures, *drive.sweeps)})
    times = np.asarray([recorded[place] for place in spread_evenly(len(recorded), _MOST_TIMES)])
    if not len(times):
        return []
    known = np.isfinite(movers.at(times)).all(axis=(-1, -2)).mean(axis=1)
    points = np.zeros(len(movers.tracks), np.int64)
    for sweep in (sweep for some in sweeps.values() for sweep in some):
        found = movers.inside(sweep.points()[0], sweep.time, moving=False)
        points += np.bincount(found[found >= 0], minlength=len(points))
    shares = {t.id: float(k) for t, k in zip(movers.tracks, known, strict=True)}
    counts = {t.id: int(n) for t, n in zip(movers.tracks, points, strict=True)}
    return [
        TrackFacts(
            track.id,
            track.label,
            tuple(float(side) for side in track.size),  # pyright: ignore
            # A path that is none of the usual ones is asked by itself.
            shares[track.id] if track.id in shares else _known(track.path, times),
            counts.get(track.id, 0),
        )
        for track in drive.tracks
    ]


def _known(path: Path, times) -> float:
    return float(np.isfinite(poses_at(path, times)).all(axis=(-1, -2)).mean())
