"""Camera models as NVIDIA NCore stores them, and ours."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..sensors import (
    FisheyeLens,
    FThetaBackwardLens,
    FThetaLens,
    Lens,
    LensCamera,
    PinholeCamera,
    RationalLens,
    RollingShutterCamera,
    StoredWindshieldLens,
)
from ..sensors.rolling_shutter import Camera, Direction
from ._document import Fields
from ._log_files import damaged, need, numbers

GLOBAL = "GLOBAL"
_SHUTTERS: dict[str, Direction] = {
    "ROLLING_TOP_TO_BOTTOM": "top_to_bottom",
    "ROLLING_LEFT_TO_RIGHT": "left_to_right",
    "ROLLING_BOTTOM_TO_TOP": "bottom_to_top",
    "ROLLING_RIGHT_TO_LEFT": "right_to_left",
}
# Names that older files have.
_OLDER = {"pinhole": "opencv-pinhole"}
_FORWARD, _BACKWARD = "ANGLE_TO_PIXELDIST", "PIXELDIST_TO_ANGLE"
# Coefficients of each polynomial of an f-theta lens.
_TERMS = 6


@dataclasses.dataclass(frozen=True, eq=False)
class Pinhole:
    """What makes a `PinholeCamera`, but for its pose and size.

    Attributes:
        focal: (fx, fy) in pixels.
        principal: (cx, cy) in pixels from the image's corner.
        distortion: (k1, k2, p1, p2, k3), or none.
    """

    focal: Float64[np.ndarray, "2"]
    principal: Float64[np.ndarray, "2"]
    distortion: Float64[np.ndarray, "5"] | None

    def lens(self) -> RationalLens:
        """The same as a lens, to stand behind a windshield."""
        k1, k2, p1, p2, k3 = np.zeros(5) if self.distortion is None else self.distortion
        radial = [k1, k2, k3, 0.0, 0.0, 0.0]
        return RationalLens(self.focal, self.principal, radial, [p1, p2], [0.0] * 4)


@dataclasses.dataclass(frozen=True, eq=False)
class StoredCamera:
    """A camera without its pose.

    Attributes:
        lens: How directions and pixels correspond.
        width: Image width in pixels.
        height: Image height in pixels.
        direction: Of the rolling shutter, or None for a global one.
    """

    lens: Lens | Pinhole
    width: int
    height: int
    direction: Direction | None

    def at(self, pose: Float64[np.ndarray, "4 4"]) -> Camera:
        """The camera at a pose."""
        size = {"width": self.width, "height": self.height}
        lens = self.lens
        if isinstance(lens, Pinhole):
            return PinholeCamera(pose, lens.focal, lens.principal, lens.distortion, **size)
        return LensCamera(pose, lens, **size)


def decode_camera(fields: Fields) -> StoredCamera:
    """Reads the model of a camera.

    Args:
        fields: With `camera_model_type` and `camera_model_parameters`.

    Raises:
        CaptureError: A field is missing, or the model is not known.
    """
    kind = need(fields, "camera_model_type", fields.text("camera_model_type"), "the model's name")
    values = fields.values.get("camera_model_parameters")
    if not isinstance(values, dict):
        raise fields.error("camera_model_parameters", "found nothing", "wanted an object")
    stored = Fields(fields.file, fields.name("camera_model_parameters"), values)
    width, height = numbers(stored, "resolution", 2, "width and height in pixels").tolist()
    if not (1 <= width < 1e6 and 1 <= height < 1e6):
        raise stored.error("resolution", f"found {width:g} x {height:g}", "wanted pixels")
    shutter = need(stored, "shutter_type", stored.text("shutter_type"), "a shutter's name")
    if shutter != GLOBAL and shutter not in _SHUTTERS:
        wanted = f"wanted {', '.join([GLOBAL, *_SHUTTERS])}"
        raise stored.error("shutter_type", f"found {shutter!r}", wanted)
    with damaged(stored.file, stored.place):
        return _decode(fields, kind, stored, int(width), int(height), shutter)


def _decode(
    fields: Fields, kind: str, stored: Fields, width: int, height: int, shutter: str
) -> StoredCamera:
    lens = _decode_lens(fields, _OLDER.get(kind, kind), stored)
    if stored.has("external_distortion_parameters"):
        behind = lens.lens() if isinstance(lens, Pinhole) else lens
        lens = _decode_windshield(fields, stored, behind)
    return StoredCamera(lens, width, height, _SHUTTERS.get(shutter))


def _decode_lens(fields: Fields, kind: str, stored: Fields) -> Lens | Pinhole:
    principal = numbers(stored, "principal_point", 2, "(cx, cy) in pixels")
    if kind == "ftheta":
        return _decode_ftheta(stored, principal)
    if kind not in ("ideal-pinhole", "opencv-pinhole", "opencv-fisheye"):
        wanted = "wanted ftheta, ideal-pinhole, opencv-pinhole or opencv-fisheye"
        raise fields.error("camera_model_type", f"found {kind!r}", wanted)
    focal = numbers(stored, "focal_length", 2, "(fx, fy) in pixels")
    if not (focal > 0).all():
        raise stored.error("focal_length", f"found {focal.tolist()}", "wanted pixels above zero")
    if kind == "ideal-pinhole":
        return Pinhole(focal, principal, None)
    if kind == "opencv-fisheye":
        radial = numbers(stored, "radial_coeffs", 4, "k1 to k4")
        return FisheyeLens(focal, principal, radial, _max_angle(stored))
    radial = numbers(stored, "radial_coeffs", 6, "k1 to k6")
    tangential = numbers(stored, "tangential_coeffs", 2, "p1 and p2")
    prism = numbers(stored, "thin_prism_coeffs", 4, "s1 to s4")
    if radial[3:].any() or prism.any():
        return RationalLens(focal, principal, radial, tangential, prism)
    distortion = np.array([*radial[:2], *tangential, radial[2]])
    return Pinhole(focal, principal, distortion if distortion.any() else None)


def _max_angle(stored: Fields) -> float:
    angle = need(stored, "max_angle", stored.positive("max_angle", "an angle"), "radians")
    return min(angle, np.pi)


def _decode_ftheta(stored: Fields, principal) -> Lens:
    linear = np.array([1.0, 0.0, 0.0])
    if stored.has("linear_cde"):
        linear = numbers(stored, "linear_cde", 3, "c, d and e")
    c, d, e = linear
    matrix = np.array([[c, d], [e, 1.0]])
    # It counts from the first pixel's centre, unlike those of the other models.
    principal = principal + 0.5
    reference = stored.text("reference_poly")
    key, lens = {
        _FORWARD: ("angle_to_pixeldist_poly", FThetaLens),
        _BACKWARD: ("pixeldist_to_angle_poly", FThetaBackwardLens),
    }.get(reference or "", ("", FThetaLens))
    if not key:
        wanted = f"wanted {_FORWARD} or {_BACKWARD}"
        raise stored.error("reference_poly", f"found {reference!r}", wanted)
    return lens(principal, _all_numbers(stored, key), _max_angle(stored), matrix)


def _all_numbers(stored: Fields, key: str) -> Float64[np.ndarray, " n"]:
    value = stored.values.get(key)
    count = len(value) if isinstance(value, list) else 0
    return numbers(stored, key, max(count, 1), "the coefficients of a polynomial")


def _decode_windshield(fields: Fields, stored: Fields, lens: Lens) -> Lens:
    external = stored.values["external_distortion_parameters"]
    place = stored.name("external_distortion_parameters")
    shield = Fields(stored.file, place, external if isinstance(external, dict) else {})
    kind = shield.text("external_distortion_type") or fields.text("external_distortion_type")
    if kind not in (None, "bivariate-windshield"):
        raise shield.error(
            "external_distortion_type", f"found {kind!r}", "wanted bivariate-windshield"
        )
    return StoredWindshieldLens(
        lens,
        *(
            _all_numbers(shield, key)
            for key in (
                "horizontal_poly",
                "vertical_poly",
                "horizontal_poly_inverse",
                "vertical_poly_inverse",
            )
        ),
    )


def encode_camera(name: str, camera: Camera | RollingShutterCamera) -> dict[str, Any]:
    """The model of a camera as NCore stores it, without its pose.

    Args:
        name: What to call it, for the message.
        camera: The camera.

    Raises:
        ValueError: NCore has no such model.
    """
    shutter, inner = GLOBAL, camera
    if isinstance(camera, RollingShutterCamera):
        shutter = next(key for key, value in _SHUTTERS.items() if value == camera.direction)
        inner = camera.camera
    if isinstance(inner, PinholeCamera):
        kind, values = _encode_pinhole(inner)
    elif isinstance(inner, LensCamera):
        kind, values = _encode_lens(name, inner.lens)
    else:
        raise ValueError(f"{name}: got {type(inner).__name__}; NCore has no such camera")
    values["resolution"] = [camera.width, camera.height]
    values["shutter_type"] = shutter
    values.setdefault("external_distortion_parameters", None)
    encoded: dict[str, Any] = {"camera_model_type": kind, "camera_model_parameters": values}
    if values["external_distortion_parameters"] is not None:
        encoded["external_distortion_type"] = "bivariate-windshield"
    return encoded


def _floats(array: Any) -> list[float]:
    return np.asarray(array, np.float64).tolist()


def _encode_pinhole(camera: PinholeCamera):
    values: dict[str, Any] = {
        "principal_point": _floats(camera.principal),
        "focal_length": _floats(camera.focal),
    }
    if camera.distortion is None:
        return "ideal-pinhole", values
    k1, k2, p1, p2, k3 = _floats(camera.distortion)
    values["radial_coeffs"] = [k1, k2, k3, 0.0, 0.0, 0.0]
    values["tangential_coeffs"] = [p1, p2]
    values["thin_prism_coeffs"] = [0.0] * 4
    return "opencv-pinhole", values


def _encode_lens(name: str, lens: Lens) -> tuple[str, dict[str, Any]]:
    if isinstance(lens, StoredWindshieldLens):
        kind, values = _encode_lens(name, lens.lens)
        values["external_distortion_parameters"] = {
            "reference_poly": "FORWARD",
            "horizontal_poly": _floats(lens.horizontal),
            "vertical_poly": _floats(lens.vertical),
            "horizontal_poly_inverse": _floats(lens.horizontal_inverse),
            "vertical_poly_inverse": _floats(lens.vertical_inverse),
            "external_distortion_type": "bivariate-windshield",
        }
        return kind, values
    if isinstance(lens, FThetaLens | FThetaBackwardLens):
        return "ftheta", _encode_ftheta(name, lens)
    values = {"principal_point": _floats(lens.principal)}
    if isinstance(lens, FisheyeLens):
        values["focal_length"] = _floats(lens.focal)
        values["radial_coeffs"] = _floats(lens.coefficients)
        return "opencv-fisheye", {**values, "max_angle": float(lens.max_angle)}
    if isinstance(lens, RationalLens):
        values["focal_length"] = _floats(lens.focal)
        values["radial_coeffs"] = _floats(lens.radial)
        values["tangential_coeffs"] = _floats(lens.tangential)
        return "opencv-pinhole", {**values, "thin_prism_coeffs": _floats(lens.thin_prism)}
    raise ValueError(f"{name}: got {type(lens).__name__}; NCore has no such lens")


def _encode_ftheta(name: str, lens: FThetaLens | FThetaBackwardLens) -> dict[str, Any]:
    coefficients = np.asarray(lens.coefficients, np.float64)
    if len(coefficients) > _TERMS:
        raise ValueError(
            f"{name}: got a polynomial of degree {len(coefficients) - 1}; NCore has up to 5"
        )
    matrix = np.asarray(lens.linear, np.float64)
    # NCore's last entry is 1: a scale moves into the polynomial.
    scale, powers = matrix[1, 1], np.arange(len(coefficients))
    forward = isinstance(lens, FThetaLens)
    coefficients = coefficients * scale if forward else coefficients / scale**powers
    coefficients = np.pad(coefficients, (0, _TERMS - len(coefficients)))
    limit = float(lens.max_angle)
    inverse = _inverse_polynomial(coefficients, limit, forward)
    return {
        "principal_point": _floats(np.asarray(lens.principal) - 0.5),
        "reference_poly": _FORWARD if forward else _BACKWARD,
        "angle_to_pixeldist_poly": _floats(coefficients if forward else inverse),
        "pixeldist_to_angle_poly": _floats(inverse if forward else coefficients),
        "max_angle": limit,
        "linear_cde": _floats([matrix[0, 0] / scale, matrix[0, 1] / scale, matrix[1, 0] / scale]),
    }


def _inverse_polynomial(coefficients, max_angle, forward):
    """The approximate way back, of degree 5, by least squares: NCore wants both."""
    end = max_angle if forward else 4 * max_angle / coefficients[1]
    place = np.linspace(0, end, 4001)
    value = np.polynomial.polynomial.polyval(place, coefficients)
    falls = np.flatnonzero((np.diff(value) <= 0) | (value[1:] > (np.inf if forward else max_angle)))
    last = int(falls[0]) + 1 if len(falls) else len(place)
    place, value = place[:last], value[:last]
    unit = max(float(value[-1]), 1e-12)
    terms = (value[:, None] / unit) ** np.arange(1, _TERMS)
    found = np.linalg.lstsq(terms, place, rcond=None)[0]
    return np.concatenate([[0.0], found / unit ** np.arange(1, _TERMS)])
