"""Focal length, principal point and distortion of a frame, checked against its image."""

import dataclasses
import math
from collections.abc import Mapping

from ._document import Fields

# The coefficients that each supported camera model has, in the names of transforms.json.
_MODELS: Mapping[str, tuple[str, ...]] = {
    "SIMPLE_PINHOLE": (),
    "PINHOLE": (),
    "SIMPLE_RADIAL": ("k1",),
    "RADIAL": ("k1", "k2"),
    "OPENCV": ("k1", "k2", "p1", "p2", "k3"),
}
_MODELS_OF_OTHERS = (
    *("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "THIN_PRISM_FISHEYE"),
    *("RAD_TAN_THIN_PRISM_FISHEYE", "FISHEYE624", "FISHEYE", "FULL_OPENCV", "FOV"),
    *("EQUIRECTANGULAR", "OMNIDIRECTIONALSTEREO_L", "OMNIDIRECTIONALSTEREO_R"),
    *("VR180_L", "VR180_R", "ORTHOPHOTO"),
)
# What instant-ngp writes instead of a name when the lens is not a perspective one.
_LENS_FLAGS = ("is_fisheye", "ftheta_p0", "latlong", "equirectangular", "orthographic")
_ORDER = ("k1", "k2", "p1", "p2", "k3")
_COEFFICIENTS = (*_ORDER, "k4", "k5", "k6")
_ADVICE = (
    f"jaxrec reads {', '.join(_MODELS)}: undistort the images to one of them, or give "
    "--ignore-distortion if they are undistorted already"
)

_FOCAL_KEYS = ("fl_x", "fl_y", "camera_angle_x", "camera_angle_y", "x_fov", "y_fov")
# Two statements about one focal length must agree as well as rounding explains.
_FOCAL_TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class Intrinsics:
    """A perspective camera without its pose, for an image at full size.

    Attributes:
        width: pixels.
        height: pixels.
        focal: x and y, in pixels.
        principal: x and y, in pixels; the centre of the first pixel is (0.5, 0.5).
        distortion: k1, k2, p1, p2, k3 of OpenCV.
    """

    width: int
    height: int
    focal: tuple[float, float]
    principal: tuple[float, float]
    distortion: tuple[float, float, float, float, float]

    def scaled(self, width: int, height: int) -> "Intrinsics":
        """The same camera for an image of another size."""
        x, y = width / self.width, height / self.height
        focal, principal = self.focal, self.principal
        return Intrinsics(
            width,
            height,
            (x * focal[0], y * focal[1]),
            (x * principal[0], y * principal[1]),
            self.distortion,
        )


def resolve_intrinsics(
    frame: Fields,
    shared: Fields,
    *,
    width: int,
    height: int,
    image: str,
    ignore_distortion: bool = False,
) -> Intrinsics:
    """Derives the intrinsics of a frame, as instant-ngp does where fields are absent.

    A frame's own fields win over the shared ones, group by group (size, focal length, principal
    point, distortion). Without `fl_x` the focal length follows from `camera_angle_x` (radians)
    and the width; without `fl_y` pixels are square; the principal point is the image centre
    unless given.

    Args:
        frame: an entry of `frames`.
        shared: the outermost object of the same file.
        width: of the image as it is stored, in pixels.
        height: of the image as it is stored, in pixels.
        image: name of the image, for errors.
        ignore_distortion: whether the lens is ideal, whatever is said about it.

    Raises:
        CaptureError: a value is out of range, contradicts another one or the image, or the
            camera model is not supported.
    """
    _check_size(_owner(frame, shared, "w", "h"), width, height, image)
    return Intrinsics(
        width,
        height,
        _focal(_owner(frame, shared, *_FOCAL_KEYS), width, height),
        _principal(_owner(frame, shared, "cx", "cy"), width, height),
        (0.0, 0.0, 0.0, 0.0, 0.0) if ignore_distortion else _distortion(frame, shared),
    )


def shared_pixel_fields(frame: Fields, shared: Fields) -> list[str]:
    """The intrinsics in pixels that this frame takes over from the whole file."""
    focal = [] if frame.has(*_FOCAL_KEYS) else ["fl_x", "fl_y"]
    principal = [] if frame.has("cx", "cy") else ["cx", "cy"]
    return [key for key in (*focal, *principal) if shared.has(key)]


def _owner(frame: Fields, shared: Fields, *keys: str) -> Fields:
    return frame if frame.has(*keys) else shared


def _check_size(fields: Fields, width: int, height: int, image: str) -> None:
    stated = (fields.size("w") or width, fields.size("h") or height)
    if stated == (width, height):
        return
    advice = "correct w and h together with fl_x, fl_y, cx, cy, or give the images of that size"
    if stated == (height, width):
        advice = (
            "the intrinsics must belong to the pixels as they are stored (EXIF orientation is not "
            "applied): rotate the images for good, or correct w, h, fl_x, fl_y, cx, cy"
        )
    key = "w" if stated[0] != width else "h"
    found = f"found {stated[0]} x {stated[1]} but {image} has {width} x {height} pixels"
    raise fields.error(key, found, advice)


def _focal(fields: Fields, width: int, height: int) -> tuple[float, float]:
    x = _axis_focal(fields, "x", width)
    y = _axis_focal(fields, "y", height)
    if x is None and y is None:
        raise fields.error(
            "fl_x", "found nothing", "give fl_x in pixels, or camera_angle_x in radians"
        )
    first, second = (y if x is None else x), (x if y is None else y)
    assert first is not None and second is not None
    return first, second


def _axis_focal(fields: Fields, axis: str, size: int) -> float | None:
    """The focal length along one axis from any of its three fields, which must agree."""
    length_key, angle_key, degrees_key = f"fl_{axis}", f"camera_angle_{axis}", f"{axis}_fov"
    found = {length_key: fields.positive(length_key, "a focal length in pixels")}
    angle, degrees = fields.number(angle_key), fields.number(degrees_key)
    if angle is not None:
        if not 0 < angle < math.pi:
            advice = "wanted the field of view in radians, between 0 and pi"
            raise fields.error(angle_key, f"found {angle:g}", advice)
        found[angle_key] = 0.5 * size / math.tan(0.5 * angle)
    if degrees is not None:
        if not 0 < degrees < 180:
            advice = "wanted the field of view in degrees, between 0 and 180"
            raise fields.error(degrees_key, f"found {degrees:g}", advice)
        found[degrees_key] = 0.5 * size / math.tan(math.radians(0.5 * degrees))
    given = {key: value for key, value in found.items() if value is not None}
    if not given:
        return None
    (key, value), *others = given.items()
    for other, implied in others:
        if abs(implied - value) > _FOCAL_TOLERANCE * value:
            raise fields.error(
                key,
                f"{key} and {other} contradict each other at {size} pixels "
                f"(focal lengths {value:.6g} and {implied:.6g})",
                "correct one of them, or remove the wrong one",
            )
    return value


def _principal(fields: Fields, width: int, height: int) -> tuple[float, float]:
    point = []
    for key, size in (("cx", width), ("cy", height)):
        value = fields.number(key)
        if value is None:
            value = 0.5 * size
        elif not 0 < value < size:
            raise fields.error(
                key,
                f"found {value:g}, outside the {width} x {height} image",
                "wanted the principal point in pixels of this image",
            )
        point.append(value)
    return point[0], point[1]


def _distortion(frame: Fields, shared: Fields) -> tuple[float, float, float, float, float]:
    name = _model(frame, shared)
    fields = _owner(frame, shared, *_COEFFICIENTS)
    given = {key: fields.number(key) or 0.0 for key in _COEFFICIENTS}
    for key, value in given.items():
        if value and key not in _MODELS[name]:
            if key not in _ORDER:
                raise fields.error(key, f"found {value:g}, which is not supported yet", _ADVICE)
            advice = f"set {key} to 0 if the images are undistorted, or camera_model to OPENCV"
            raise fields.error(key, f"found {value:g}, which the model {name} has not", advice)
    k1, k2, p1, p2, k3 = (given[key] for key in _ORDER)
    return k1, k2, p1, p2, k3


def _model(frame: Fields, shared: Fields) -> str:
    for flag in _LENS_FLAGS:
        fields = _owner(frame, shared, flag)
        if fields.values.get(flag):
            raise fields.error(flag, "this kind of lens is not supported yet", _ADVICE)
    fields = _owner(frame, shared, "camera_model")
    given = fields.text("camera_model")
    name = "OPENCV" if given is None else given.strip().upper()
    if name in _MODELS_OF_OTHERS:
        raise fields.error("camera_model", f"{given} is not supported yet", _ADVICE)
    if name not in _MODELS:
        raise fields.error("camera_model", f"unknown camera model {given!r}", _ADVICE)
    return name
