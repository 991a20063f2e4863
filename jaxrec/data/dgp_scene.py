"""DGP scenes that were converted to one JSON file, with images and points beside it."""

import pathlib

import numpy as np

from ..sensors import Exposure, PinholeCamera
from ._clock import nanoseconds_of
from ._document import Fields, load_document, quote
from ._log_files import file_in, inner, intrinsics_of, load_arrays, need, numbers
from ._poses import rigid_matrix
from ._rig import Anchor, Poses, Sighting, tracks_of
from ._stored_exposures import StoredExposure, image_reader
from ._vehicle_clouds import Cloud, apart_message, middle_of, vehicle_sweeps
from .drive import Drive
from .errors import CaptureError

SCENE = "scene.json"

_LIDAR = "LIDAR"


def read_scene(file: pathlib.Path) -> Drive:
    """Reads a scene of the DGP that was converted to a `scene.json`.

    The lidar's frame is that of the vehicle, which is the body. Where the lidar sits, its
    rings, its firing times and the shots that met nothing are unknown.

    Args:
        file: The document; images and points are named in it, relative to its folder.

    Raises:
        CaptureError: A file cannot be used.
    """
    document, folder = load_document(file), file.parent
    frames = document.objects("frames")
    if not frames:
        raise document.error("frames", "found none", "wanted at least one frame")
    stamps = [_stamp(frame) for frame in frames]
    # Dates of this set are shifted by centuries: 64 bits would not hold them.
    base = min(stamps)
    times = [stamp - base for stamp in stamps]
    where = [rigid_matrix(frame, "world_from_lidar", "world-from-lidar") for frame in frames]
    poses, twice = Poses.sorted(times, where)
    if twice:
        raise document.error("frames", f"{twice} have the time of another", "wanted one each")
    anchor = Anchor.of(poses)
    ego = anchor.path(poses, edge="extrapolate")
    exposures, mounts, told = _scene_images(document, folder, frames, base, poses, anchor)
    clouds = []
    for frame, seconds in zip(frames, anchor.seconds(times).tolist(), strict=True):
        cloud = file_in(folder, frame, "lidar")
        points, intensities = load_arrays(cloud, ("xyz", "intensity"))
        if points.shape != (*intensities.shape, 3):
            found = f"arrays of the shapes {points.shape} and {intensities.shape}"
            raise CaptureError(cloud, "", found, "wanted (n, 3) and (n,)")
        clouds.append(Cloud(f"{_LIDAR}/{cloud.name}", points, intensities, seconds))
    sweeps, about_points = vehicle_sweeps(clouds, middle_of(mounts), ego, _LIDAR)
    tracks, about = tracks_of(_scene_boxes(frames, times, where), anchor)
    return Drive(
        exposures=exposures,
        sweeps=sweeps,
        tracks=tracks,
        ego=ego,
        mounts={_LIDAR: np.eye(4), **mounts},
        epoch=base + anchor.epoch,
        format="dgp-scene",
        path=file,
        origin=anchor.origin,
        messages=[*told, *about_points, *about, *anchor.message()],
    )


def _stamp(fields: Fields) -> int:
    text = need(fields, "timestamp", fields.text("timestamp"), "a date and a time")
    stamp = nanoseconds_of(text)
    if stamp is None:
        raise fields.error(
            "timestamp", f"found {quote(text)}", "wanted one such as 2019-05-07T01:02:03.456Z"
        )
    return stamp


def _scene_images(document, folder, frames, base, poses, anchor):
    """The exposures, the cameras' mounts, and what there is to say."""
    width = need(document, "width", document.size("width"), "the images' width in pixels")
    height = need(document, "height", document.size("height"), "the images' height in pixels")
    exposures: list[Exposure] = []
    mounts, apart = {}, 0.0
    for frame in frames:
        cameras = inner(frame, "cameras")
        for sensor in cameras.values:
            fields = inner(cameras, sensor)
            time = _stamp(fields) - base
            place = rigid_matrix(fields, "world_from_camera", "world-from-camera")
            mount = rigid_matrix(fields, "vehicle_from_camera", "vehicle-from-camera")
            mounts.setdefault(sensor, mount)
            told = poses.at(np.array([time]))[0] @ mount
            apart = max(apart, float(np.linalg.norm(told[:3, 3] - place[:3, 3])))
            focal, principal = intrinsics_of(fields, "K")
            image = file_in(folder, fields, "image")
            exposures.append(
                StoredExposure.create(
                    PinholeCamera(
                        anchor.local(place), focal, principal, width=width, height=height
                    ),
                    image_reader(image, width, height),
                    name=f"{sensor}/{image.name}",
                    sensor=sensor,
                    time=float(anchor.seconds(time)),
                )
            )
    exposures.sort(key=lambda exposure: exposure.time)
    return exposures, mounts, apart_message(apart)


def _scene_boxes(frames, times, where) -> list[Sighting]:
    sightings = []
    for frame, time, pose in zip(frames, times, where, strict=True):
        for box in frame.objects("boxes") if frame.has("boxes") else []:
            sightings.append(
                Sighting(
                    id=str(box.values.get("instance_id")),
                    label=need(box, "label", box.text("label"), "a text"),
                    size=numbers(box, "size_lwh", 3, "length, width and height").tolist(),
                    time=time,
                    world_from_box=pose @ rigid_matrix(box, "lidar_from_box", "lidar-from-box"),
                )
            )
    return sightings
