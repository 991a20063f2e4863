"""KITTI drives that were converted to one JSON file, with images and points beside it."""

import pathlib

import numpy as np
from jaxtyping import Float64

from ..sensors import Exposure, PinholeCamera, Sweep
from ._document import Fields, load_document
from ._log_files import file_in, intrinsics_of, load_arrays, need, numbers, points_message
from ._poses import rigid_matrix
from ._rig import Anchor, Poses, Sighting, inverse_of, rigid_of, tracks_of
from ._shots import Shots, away, grid_width, sweep_of
from ._stored_exposures import StoredExposure, image_reader
from ._velodyne import find_rows, firing_times
from .drive import Drive
from .errors import CaptureError

SEQUENCE = "sequence.json"

_VELODYNE, _CAMERA = "velodyne", "image_02"
# Of the lidar's turn, in seconds: the file has none.
_TURN = 0.1


def read_sequence(file: pathlib.Path) -> Drive:
    """Reads a KITTI drive that was converted to a `sequence.json`.

    The body is the lidar, a Velodyne HDL-64E, whose rings and firing times are recovered from
    the order of the points. The file's principal point counts from the first pixel's centre.

    Args:
        file: The document; images and points are named in it, relative to its folder.

    Raises:
        CaptureError: A file cannot be used.
    """
    document, folder = load_document(file), file.parent
    frames = document.objects("frames")
    if not frames:
        raise document.error("frames", "found none", "wanted at least one frame")
    messages = [
        "world_from_velo was estimated from all sweeps, held out or not",
        f"firing times are those of a clockwise turn of {_TURN:g} s that looks ahead at the "
        "frame's time",
    ]
    times = [_seconds(frame, "timestamp_s") for frame in frames]
    where = [rigid_matrix(frame, "world_from_velo", "world-from-lidar") for frame in frames]
    poses, twice = Poses.sorted(times, where)
    if twice:
        raise document.error("frames", f"{twice} have the time of another", "wanted one each")
    anchor = Anchor.of(poses)
    ego = anchor.path(poses, edge="extrapolate")
    mounts = {_VELODYNE: np.eye(4), _CAMERA: inverse_of(_camera_from_lidar(document))}
    sweeps, told = _turns(folder, frames, anchor.seconds(times), ego)
    tracks, about = tracks_of(_sequence_boxes(document, times, poses), anchor)
    if tracks:
        about.append("boxes were measured in the points, not labelled by people")
    return Drive(
        exposures=_sequence_images(document, folder, frames, times, poses, anchor, mounts),
        sweeps=sweeps,
        tracks=tracks,
        ego=ego,
        mounts=mounts,
        epoch=anchor.epoch,
        format="kitti-sequence",
        path=file,
        origin=anchor.origin,
        messages=[*messages, *told, *about, *anchor.message()],
    )


def _seconds(frame: Fields, key: str) -> int:
    """A time in seconds, as nanoseconds."""
    return round(need(frame, key, frame.number(key), "a time in seconds") * 1e9)


def _camera_from_lidar(document: Fields) -> Float64[np.ndarray, "4 4"]:
    return rigid_matrix(document, "cam_from_velo", "camera-from-lidar")


def _sequence_images(document, folder, frames, times, poses, anchor, mounts) -> list[Exposure]:
    width = need(document, "width", document.size("width"), "the images' width in pixels")
    height = need(document, "height", document.size("height"), "the images' height in pixels")
    focal, principal = intrinsics_of(document, "K")
    exposures = []
    places = anchor.local(poses.at(np.array(times)) @ mounts[_CAMERA])
    for frame, time, place in zip(frames, times, places, strict=True):
        image = file_in(folder, frame, "image")
        camera = PinholeCamera(place, focal, principal, width=width, height=height)
        exposure = StoredExposure.create(
            camera,
            image_reader(image, width, height),
            name=f"{image.parent.name}/{image.name}",
            sensor=_CAMERA,
            time=float(anchor.seconds(time)),
        )
        exposures.append(exposure)
    return sorted(exposures, key=lambda exposure: exposure.time)


def _turns(folder, frames, middles, ego) -> tuple[list[Sweep], list[str]]:
    """The sweeps of the Velodyne."""
    files = [file_in(folder, frame, "lidar") for frame in frames]
    clouds, intensities, lost, total = [], [], 0, 0
    for file in files:
        quantised, scale, reflectance = load_arrays(file, ("xyz_q", "scale", "intensity"))
        if quantised.shape != (3, *reflectance.shape) or scale.shape != ():
            found = f"arrays of the shapes {quantised.shape}, {scale.shape} and {reflectance.shape}"
            raise CaptureError(file, "", found, "wanted (3, n), () and (n,)")
        points = quantised.T.astype(np.float64) * float(scale)
        kept = away(points)
        lost, total = lost + int(np.sum(~kept)), total + len(kept)
        clouds.append(points[kept])
        intensities.append(reflectance[kept].astype(np.float32) / np.float32(255))
    rings, rows, messages = find_rows(clouds)
    shots = [
        Shots(points, of, firing_times(points, middle, _TURN), intensity)
        for points, of, middle, intensity in zip(clouds, rings, middles, intensities, strict=True)
    ]
    width = grid_width(shots, len(rows.elevations))
    sweeps = [
        sweep_of(
            each,
            rows,
            width,
            mount=np.eye(4),
            path=ego,
            name=f"{_VELODYNE}/{file.name}",
            sensor=_VELODYNE,
            time=float(middle),
        )
        for each, file, middle in zip(shots, files, middles, strict=True)
    ]
    unknown = "shots without a return are not stored: they are masked, their rays are guesses"
    told = [*messages, unknown, *points_message(_VELODYNE, lost, total)]
    return sorted(sweeps, key=lambda sweep: sweep.time), told


def _sequence_boxes(document: Fields, times: list[int], poses: Poses) -> list[Sighting]:
    if not document.has("tracks_derived"):
        return []
    frames = [frame.number("frame") for frame in document.objects("frames")]
    when = dict(zip(frames, times, strict=True))
    sightings = []
    for track in document.objects("tracks_derived"):
        for state in track.objects("states"):
            frame = state.number("frame")
            if frame not in when:
                raise state.error("frame", f"found {frame}", "wanted the frame of an image")
            yaw = need(state, "yaw_world", state.number("yaw_world"), "an angle in radians")
            sightings.append(
                Sighting(
                    id=str(track.values.get("id")),
                    label=need(track, "label", track.text("label"), "a text"),
                    size=numbers(state, "size_lwh", 3, "length, width and height").tolist(),
                    time=when[frame],
                    world_from_box=rigid_of(
                        _turned(yaw), numbers(state, "center_world", 3, "x, y and z")
                    ),
                )
            )
    return sightings


def _turned(yaw: float) -> Float64[np.ndarray, "3 3"]:
    cosine, sine = np.cos(yaw), np.sin(yaw)
    return np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1.0]])
