"""The layout of COLMAP: a model in `sparse/0`, and the photographs in `images`."""

import dataclasses
import math
import os
import pathlib
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from ._colmap_files import check_files, is_model, model_files
from ._document import Fields, listed
from ._frames import Listing, frame_name
from ._hold_out import unsplit_capture
from ._image_folders import ImageFolder, choose_images, has_images, image_files
from ._images import find_image, image_size
from ._intrinsics import Intrinsics, resolve_intrinsics
from ._load import Points
from ._poses import FLIP, POSE, camera_to_world
from ._reading import Reading
from .capture import Capture
from .errors import CaptureError

if TYPE_CHECKING:
    import pycolmap

# The parameters of each camera model that ours is, in COLMAP's order and the names of ours.
_PARAMETERS: Mapping[str, str] = {
    "SIMPLE_PINHOLE": "fl_x cx cy",
    "PINHOLE": "fl_x fl_y cx cy",
    "SIMPLE_RADIAL": "fl_x cx cy k1",
    "RADIAL": "fl_x cx cy k1 k2",
    "OPENCV": "fl_x fl_y cx cy k1 k2 p1 p2",
    "FULL_OPENCV": "fl_x fl_y cx cy k1 k2 p1 p2 k3 k4 k5 k6",
}
_RATIONAL = ("k4", "k5", "k6")
_UNDISTORT = (
    "undistort the images with `colmap image_undistorter` and give its output folder, or give "
    "--ignore-distortion if they are undistorted already"
)
# Binary models hold quaternions as they were computed, text ones are normalised on the way in.
_TOLERANCE = 1e-3
# Images that must have seen a point, so that its place does not follow from a held-out one.
_VIEWS = 2


def find_models(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folders of the COLMAP models of a capture, or of a model that is given itself."""
    for parent in (folder / "sparse", folder / "colmap" / "sparse", folder):
        inside = [path for path in parent.glob("*") if path.name.isdigit() and is_model(path)]
        if inside:
            return sorted(inside, key=lambda path: int(path.name))
        if is_model(parent):
            return [parent]
    return []


def read_colmap(folder: pathlib.Path, reading: Reading) -> Capture:
    """Reads a COLMAP model, binary or text, and its photographs.

    Of several models the one with the most images is taken. Every 8th image by name is held out.

    Args:
        folder: holds the model in `sparse/0`, `sparse` or itself, and the images in `images`;
            where it is a model in a capture, the images are found in the folders above.
        reading: how to read the images. Images of `images_4` are used as they are for a
            `downscale` of 4, and so on.

    Returns:
        The capture, with the points that at least two of the images to fit have seen: held-out
        images tell nothing. Points of a model that does not say who saw them are all there.

    Raises:
        CaptureError: a file of the model or an image cannot be used, or a camera is one that
            jaxrec cannot represent exactly.
    """
    models = [(path, _read_model(path)) for path in find_models(folder)]
    # The first of equals: `max` keeps it.
    place, model = max(models, key=lambda entry: _registered(entry[1]))
    messages = []
    if len(models) > 1:
        counts = ", ".join(f"{path.name} with {_registered(entry)}" for path, entry in models)
        messages.append(
            f"{len(models)} COLMAP models, which share no world frame: {place.name} is used, the "
            f"one with the most images ({counts})"
        )
    file = model_files(place)["images"]
    images = [image for image in model.images.values() if image.has_pose]
    if not images:
        advice = "give a model with at least two registered images"
        raise CaptureError(file, "", "found no image with a pose", advice)
    root = _image_root(folder)
    choice = choose_images(
        root, reading.downscale, lambda path: _lacks(path, [image.name for image in images])
    )
    listings = _listings(file, model, images, choice, reading.ignore_distortion)
    numbers = {id(listing): number for number, listing in listings.items()}
    elsewhere = {
        image.name: path.name
        for path, other in models
        for image in other.images.values()
        if other is not model and image.has_pose
    }
    return unsplit_capture(
        list(listings.values()),
        file,
        format="colmap",
        path=folder,
        root=root,
        messages=[
            *messages,
            *choice.messages,
            *_left_out(listings.values(), choice.path, elsewhere),
        ],
        reading=dataclasses.replace(reading, downscale=choice.downscale),
        points=lambda train: _points(model, {numbers[id(listing)] for listing in train}),
    )


def _read_model(folder: pathlib.Path) -> "pycolmap.Reconstruction":
    pycolmap = import_pycolmap(folder)
    files = model_files(folder)
    ids = [number for number in pycolmap.CameraModelId.__members__.values() if int(number) >= 0]
    cameras = [pycolmap.Camera.create_from_model_id(1, number, 1.0, 1, 1) for number in ids]
    check_files(
        files, {camera.model_name: (int(camera.model), len(camera.params)) for camera in cameras}
    )
    model = pycolmap.Reconstruction()
    try:
        if files["cameras"].suffix == ".bin":
            model.read_binary(folder)
        else:
            model.read_text(folder)
    # pybind11 translates C++ exceptions to whatever is nearest.
    except Exception as error:
        found = f"pycolmap cannot read the model ({error})"
        advice = "write it again with `colmap model_converter`"
        raise CaptureError(folder, "", found, advice) from error
    return model


def import_pycolmap(folder: pathlib.Path):
    """Imports pycolmap, for the model in `folder`, without the handler of SIGTERM it installs."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        import pycolmap
    except ModuleNotFoundError as error:
        found = "pycolmap, which reads such a model, is not installed"
        advice = "install pycolmap, or convert the capture to a transforms.json"
        raise CaptureError(folder, "", found, advice) from error

    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return pycolmap


def _registered(model: "pycolmap.Reconstruction") -> int:
    return sum(image.has_pose for image in model.images.values())


def _image_root(folder: pathlib.Path) -> pathlib.Path:
    """The folder that holds `images`: the one given, or one above the model that was given."""
    above = [folder, folder.absolute().parent, folder.absolute().parent.parent]
    return next((root for root in above if has_images(root)), folder)


def _lacks(folder: pathlib.Path, names: Sequence[str]) -> str:
    absent = [name for name in names if find_image(folder, name) is None]
    return f"it lacks {listed(absent)}" if absent else ""


def _listings(
    file: pathlib.Path,
    model: "pycolmap.Reconstruction",
    images: "Sequence[pycolmap.Image]",
    choice: ImageFolder,
    ignore_distortion: bool,
) -> dict[int, Listing]:
    """The frames by the numbers of their images, sorted by name."""
    cameras = model_files(file.parent)["cameras"]
    intrinsics = {
        number: _intrinsics(cameras, model.cameras[number], ignore_distortion)
        for number in sorted({image.camera_id for image in images})
    }
    listings = {}
    for image in sorted(images, key=lambda image: image.name):
        fields = Fields(file, f"image {image.image_id}", {})
        found = find_image(choice.path, image.name)
        if found is None:
            advice = "copy the image there, or remove it with `colmap image_deleter`"
            raise fields.error("name", f"no image {image.name!r} in {choice.path}", advice)
        camera = Fields(cameras, f"camera {image.camera_id}", {})
        size = image_size(found)
        listings[image.image_id] = Listing(
            fields=fields,
            name=frame_name(image.name, found),
            image=found,
            mask=None,
            camera_to_world=_camera_to_world(fields, image),
            intrinsics=choice.fit(
                intrinsics[image.camera_id],
                found,
                size,
                lambda found, advice, camera=camera: camera.error("size", found, advice),
            ),
        )
    return listings


def _intrinsics(
    file: pathlib.Path, camera: "pycolmap.Camera", ignore_distortion: bool
) -> Intrinsics:
    """The intrinsics of a camera: COLMAP counts pixels from the image's corner, as we do."""
    place = f"camera {camera.camera_id}"
    if ignore_distortion:
        values = {
            "fl_x": camera.focal_length_x,
            "fl_y": camera.focal_length_y,
            "cx": camera.principal_point_x,
            "cy": camera.principal_point_y,
        }
        return _resolved(Fields(file, place, {**values, "w": camera.width, "h": camera.height}))
    if camera.model_name not in _PARAMETERS:
        found = f"the model {camera.model_name} cannot be represented exactly"
        raise CaptureError(file, place, found, _UNDISTORT)
    keys = _PARAMETERS[camera.model_name].split()
    values = dict(zip(keys, camera.params.tolist(), strict=True))
    rational = [key for key in _RATIONAL if values.get(key)]
    if rational:
        found = f"{rational[0]} of the model {camera.model_name} is {values[rational[0]]:g}, not 0"
        raise CaptureError(file, place, found, _UNDISTORT)
    return _resolved(Fields(file, place, {**values, "w": camera.width, "h": camera.height}))


def _resolved(fields: Fields) -> Intrinsics:
    width, height = fields.size("w"), fields.size("h")
    if width is None or height is None:
        raise fields.error("w", "found nothing", "wanted the image size in pixels")
    return resolve_intrinsics(fields, fields, width=width, height=height, image="it")


def _camera_to_world(fields: Fields, image: "pycolmap.Image") -> np.ndarray:
    """The pose with OpenGL axes."""
    camera_from_world = image.cam_from_world()
    length = math.hypot(*camera_from_world.rotation.quat.tolist())
    if not abs(length - 1) <= _TOLERANCE:
        found = f"found a quaternion of length {length:.4g}"
        advice = "wanted length 1: remove this image with `colmap image_deleter`"
        raise fields.error("pose", found, advice)
    pose = np.eye(4)
    pose[:3] = camera_from_world.inverse().matrix()
    return camera_to_world(dataclasses.replace(fields, values={POSE: (pose @ FLIP).tolist()}))


def _left_out(
    listings: Iterable[Listing], folder: pathlib.Path, elsewhere: Mapping[str, str]
) -> list[str]:
    """A line for each reason why images in the folder are not used."""
    used = {os.path.abspath(listing.image) for listing in listings}
    reasons: dict[str, list[str]] = {}
    for file in image_files(folder):
        if os.path.abspath(file) in used:
            continue
        name = file.relative_to(folder).as_posix()
        other = elsewhere.get(name)
        known = other is not None
        reason = f"they are in model {other} only" if known else "COLMAP found no pose for them"
        reasons.setdefault(reason, []).append(name)
    return [f"not used, as {reason}: {listed(names)}" for reason, names in reasons.items()]


def _points(model: "pycolmap.Reconstruction", train: Set[int]) -> Points | None:
    """The points of a model that at least two of some images have seen."""
    points = list(model.points3D.values())
    if any(point.track.length() for point in points):
        points = [
            point
            for point in points
            if len({element.image_id for element in point.track.elements} & train) >= _VIEWS
        ]
    if not points:
        return None
    positions = np.asarray([point.xyz for point in points])
    colors = np.asarray([point.color for point in points], np.float32) / np.float32(255)
    return Points(positions, colors)
