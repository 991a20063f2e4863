"""The layout of TRI's Dataset Governance Policy (DGP): a scene in JSON files."""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ..sensors import Exposure, FisheyeLens, LensCamera, PinholeCamera, RationalLens
from ..sensors.rolling_shutter import Camera
from ._clock import nanoseconds_of
from ._document import Fields, listed, load_document, quote
from ._log_files import COPY_AGAIN, file_in, inner, load_arrays, need
from ._rig import Anchor, Poses, Sighting, inverse_of, rigid_of_quaternion, tracks_of
from ._stored_exposures import StoredExposure, image_reader
from ._vehicle_clouds import Cloud, apart_message, middle_of, vehicle_sweeps
from .drive import Drive
from .errors import CaptureError

# What the files call annotations of boxes in space.
_BOXES = "1"
_DISTORTION = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")


def scene_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The scenes in a folder."""
    files = sorted(folder.glob("scene_*.json"))
    # A data set's list of scenes is called alike.
    return [file for file in files if not file.name.startswith("scene_dataset")]


class _Datum(NamedTuple):
    """What one sensor measured at one time.

    Attributes:
        sensor: The sensor's name.
        time: In nanoseconds since the first datum of the scene.
        fields: Of the image or the point cloud.
        world_from_sensor: Where the sensor was.
        calibration: The name of the file that has its calibration.
    """

    sensor: str
    time: int
    fields: Fields
    world_from_sensor: Float64[np.ndarray, "4 4"]
    calibration: str


class _Sensor(NamedTuple):
    """A sensor's place on the vehicle, and its intrinsics."""

    mount: Float64[np.ndarray, "4 4"]
    intrinsics: Fields


def read_dgp(file: pathlib.Path) -> Drive:
    """Reads a scene of a DGP data set.

    The body is the vehicle. Where a lidar's frame is the vehicle's, nothing says where the
    lidar sits; its rays then start in the middle of the cameras. Rings, firing times and shots
    without a return are unknown in any case. Principal points count from the first pixel's
    centre, as OpenCV's do.

    Args:
        file: The scene's JSON; everything else is named in it, relative to its folder.

    Raises:
        CaptureError: A file cannot be used.
    """
    document, folder = load_document(file), file.parent
    images, clouds, base, unread = _data(document)
    sensors = _sensors(folder, [*images, *clouds])
    poses = _vehicle_poses(file, clouds or images, sensors)
    anchor = Anchor.of(poses)
    ego = anchor.path(poses, edge="extrapolate")
    mounts = {name: sensor.mount for name, sensor in sensors.items()}
    exposures, apart = _exposures(folder, images, sensors, poses, anchor)
    messages = apart_message(apart)
    middle = middle_of({name: mounts[name] for name in {image.sensor for image in images}})
    sweeps = []
    for name in sorted({cloud.sensor for cloud in clouds}):
        of_lidar = [_cloud(folder, cloud, anchor) for cloud in clouds if cloud.sensor == name]
        on_vehicle = np.abs(mounts[name] - np.eye(4)).max() < 1e-6
        found, told = vehicle_sweeps(
            of_lidar, middle if on_vehicle else (0.0, 0.0, 0.0), ego, name, mounts[name]
        )
        sweeps += found
        messages += told
    tracks, about_tracks = tracks_of(_sightings(folder, document, clouds), anchor)
    if unread:
        messages.append(f"not read: {listed(sorted(unread))}")
    return Drive(
        exposures=exposures,
        sweeps=sorted(sweeps, key=lambda sweep: sweep.time),
        tracks=tracks,
        ego=ego,
        mounts=mounts,
        epoch=base + anchor.epoch,
        format="dgp",
        path=file,
        origin=anchor.origin,
        messages=[*messages, *about_tracks, *anchor.message()],
    )


def _data(document: Fields) -> tuple[list[_Datum], list[_Datum], int, set[str]]:
    """The images and the point clouds, the first time, and what else there is."""
    calibrations = {}
    for sample in document.objects("samples"):
        key = need(sample, "calibration_key", sample.text("calibration_key"), "a file's name")
        datums = sample.values.get("datum_keys")
        for datum in datums if isinstance(datums, list) else []:
            calibrations[str(datum)] = key
    images, clouds, unread = [], [], set()
    entries = document.objects("data")
    stamps = [_stamp(inner(entry, "id")) for entry in entries]
    if not entries:
        raise document.error("data", "found none", "wanted images or point clouds")
    # Dates of such sets are shifted by centuries: 64 bits would not hold them.
    base = min(stamps)
    for entry, stamp in zip(entries, stamps, strict=True):
        about, datum = inner(entry, "id"), inner(entry, "datum")
        sensor = need(about, "name", about.text("name"), "the sensor's name")
        kind = next((kind for kind in ("image", "point_cloud") if datum.has(kind)), None)
        key = calibrations.get(str(entry.values.get("key")))
        if kind is None:
            unread.add(sensor)
        elif key is None:
            raise entry.error("key", "is in no sample", "wanted one that has its calibration")
        else:
            fields = inner(datum, kind)
            found = _Datum(sensor, stamp - base, fields, _pose(inner(fields, "pose")), key)
            (images if kind == "image" else clouds).append(found)
    if not images and not clouds:
        raise document.error("data", "found none", "wanted images or point clouds")
    return images, clouds, base, unread


def _stamp(fields: Fields) -> int:
    text = need(fields, "timestamp", fields.text("timestamp"), "a date and a time")
    stamp = nanoseconds_of(text)
    if stamp is None:
        wanted = "wanted one such as 2019-05-07T01:02:03.456Z"
        raise fields.error("timestamp", f"found {quote(text)}", wanted)
    return stamp


def _pose(fields: Fields) -> Float64[np.ndarray, "4 4"]:
    """A rotation and a translation; numbers that are 0 may be left out."""
    rotation, translation = inner(fields, "rotation"), inner(fields, "translation")
    wxyz = np.array([rotation.number(key) or 0.0 for key in ("qw", "qx", "qy", "qz")])
    if not np.linalg.norm(wxyz) > 1e-6:
        raise rotation.error("qw", "the quaternion is 0", "wanted a rotation")
    shift = np.array([translation.number(key) or 0.0 for key in ("x", "y", "z")])
    return rigid_of_quaternion(wxyz, shift)


def _sensors(folder: pathlib.Path, data: list[_Datum]) -> dict[str, _Sensor]:
    """The calibration of each sensor, by name."""
    documents = {
        key: load_document(folder / "calibration" / f"{key}.json")
        for key in sorted({datum.calibration for datum in data})
    }
    sensors: dict[str, _Sensor] = {}
    for datum in data:
        document = documents[datum.calibration]
        names = document.values.get("names")
        if not isinstance(names, list) or datum.sensor not in names:
            raise document.error("names", f"{datum.sensor!r} is not in it", "wanted every sensor")
        at = names.index(datum.sensor)
        stored = [document.objects(part) for part in ("extrinsics", "intrinsics")]
        if min(map(len, stored)) <= at:
            found = f"{len(stored[0])} extrinsics and {len(stored[1])} intrinsics"
            raise document.error("names", f"{len(names)} for {found}", "wanted as many of each")
        mount = _pose(stored[0][at])
        known = sensors.setdefault(datum.sensor, _Sensor(mount, stored[1][at]))
        if np.abs(known.mount - mount).max() > 1e-6:
            found = f"{datum.sensor} sits elsewhere than in another calibration of the scene"
            raise document.error(f"extrinsics[{at}]", found, "wanted one place for each sensor")
    return sensors


def _vehicle_poses(file: pathlib.Path, data: list[_Datum], sensors: dict[str, _Sensor]) -> Poses:
    """Where the vehicle was, by one sensor."""
    first = data[0].sensor
    of_first = [datum for datum in data if datum.sensor == first]
    back = inverse_of(sensors[first].mount)
    poses, twice = Poses.sorted(
        [datum.time for datum in of_first], [datum.world_from_sensor @ back for datum in of_first]
    )
    if twice:
        raise CaptureError(file, "data", f"{twice} of {first} have the time of another", COPY_AGAIN)
    return poses


def _exposures(folder, images, sensors, poses, anchor) -> tuple[list[Exposure], float]:
    """The exposures, and how far a camera is at most from where the vehicle's path puts it."""
    exposures: list[Exposure] = []
    apart = 0.0
    for image in images:
        file = file_in(folder, image.fields, "filename")
        width = need(image.fields, "width", image.fields.size("width"), "a width in pixels")
        height = need(image.fields, "height", image.fields.size("height"), "a height in pixels")
        told = poses.at(np.array([image.time]))[0] @ sensors[image.sensor].mount
        apart = max(apart, float(np.linalg.norm(told[:3, 3] - image.world_from_sensor[:3, 3])))
        pose = anchor.local(image.world_from_sensor)
        exposures.append(
            StoredExposure.create(
                _camera(sensors[image.sensor].intrinsics, pose, width, height),
                image_reader(file, width, height),
                name=f"{image.sensor}/{file.name}",
                sensor=image.sensor,
                time=float(anchor.seconds(image.time)),
            )
        )
    return sorted(exposures, key=lambda exposure: exposure.time), apart


def _camera(fields: Fields, pose, width: int, height: int) -> Camera:
    fx, fy = (
        need(fields, key, fields.positive(key, "a focal length"), "a focal length in pixels")
        for key in ("fx", "fy")
    )
    if fields.number("skew"):
        raise fields.error("skew", f"found {fields.number('skew')}", "wanted 0: resample the image")
    cx, cy = (need(fields, key, fields.number(key), "a principal point") for key in ("cx", "cy"))
    principal = [cx + 0.5, cy + 0.5]
    k1, k2, p1, p2, k3, *rest = (fields.number(key) or 0.0 for key in _DISTORTION)
    size = {"width": width, "height": height}
    if fields.number("fisheye"):
        lens = FisheyeLens([fx, fy], principal, [k1, k2, k3, rest[0]])
        return LensCamera(pose, lens, **size)
    if any(rest):
        lens = RationalLens([fx, fy], principal, [k1, k2, k3, *rest], [p1, p2], [0.0] * 4)
        return LensCamera(pose, lens, **size)
    distortion = [k1, k2, p1, p2, k3]
    return PinholeCamera(pose, [fx, fy], principal, distortion if any(distortion) else None, **size)


def _cloud(folder: pathlib.Path, cloud: _Datum, anchor: Anchor) -> Cloud:
    file = file_in(folder, cloud.fields, "filename")
    (values,) = load_arrays(file, ("data",))
    names = cloud.fields.values.get("point_format")
    names = [str(name) for name in names] if isinstance(names, list) else []
    if values.dtype.names is not None:
        names = list(values.dtype.names)
        values = np.stack([values[name] for name in names], axis=-1)
    if values.ndim != 2 or values.shape[1] != len(names):
        found = f"an array of shape {list(values.shape)} for {', '.join(names)}"
        raise CaptureError(file, "data", found, "wanted a column for each channel")
    missing = [name for name in ("X", "Y", "Z") if name not in names]
    if missing:
        raise cloud.fields.error("point_format", f"no {missing[0]}", "wanted X, Y and Z")
    points = np.stack([values[:, names.index(axis)] for axis in "XYZ"], axis=-1)
    bright = values[:, names.index("INTENSITY")] if "INTENSITY" in names else np.zeros(len(values))
    return Cloud(
        f"{cloud.sensor}/{file.name}",
        points.astype(np.float64),
        bright.astype(np.float64),
        float(anchor.seconds(cloud.time)),
    )


def _sightings(folder: pathlib.Path, document: Fields, clouds: list[_Datum]) -> list[Sighting]:
    """The boxes that the lidars' points were annotated with."""
    labels = _labels(folder, document)
    sightings = []
    for cloud in clouds:
        annotations = cloud.fields.values.get("annotations")
        named = Fields(
            document.file,
            cloud.fields.name("annotations"),
            annotations if isinstance(annotations, dict) else {},
        )
        if not named.has(_BOXES):
            continue
        for entry in load_document(file_in(folder, named, _BOXES)).objects("annotations"):
            box = inner(entry, "box")
            sizes = [
                need(box, key, box.positive(key, "a size"), "a size in metres")
                for key in ("length", "width", "height")
            ]
            kind = entry.values.get("class_id", 0)
            sightings.append(
                Sighting(
                    id=str(entry.values.get("instance_id")),
                    label=labels.get(str(kind), f"class {kind}"),
                    size=sizes,
                    time=cloud.time,
                    world_from_box=cloud.world_from_sensor @ _pose(inner(box, "pose")),
                )
            )
    return sightings


def _labels(folder: pathlib.Path, document: Fields) -> dict[str, str]:
    """Names of classes by number."""
    if not document.has("ontologies"):
        return {}
    key = inner(document, "ontologies").text(_BOXES)
    file = folder / "ontology" / f"{key}.json"
    if key is None or not file.is_file():
        return {}
    items = load_document(file).objects("items")
    return {str(item.values.get("id", 0)): str(item.values.get("name")) for item in items}
