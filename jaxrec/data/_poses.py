"""The `transform_matrix` of a frame: a rigid camera-to-world transform, or a clear error."""

import numpy as np
from jaxtyping import Float

from ._document import Fields, finite_number, quote

# Files that keep four decimals are 1e-4 off; a wrong scale or a mirrored axis is far more.
_TOLERANCE = 1e-3
POSE = "transform_matrix"
# Turns camera axes of OpenCV (y down, z forward) to those of OpenGL (y up, z back), and back.
FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


def camera_to_world(frame: Fields) -> Float[np.ndarray, "4 4"]:
    """Reads the pose of a frame, in the axes of the file (OpenGL: x right, y up, z back).

    Args:
        frame: an entry of `frames`; its `transform_matrix` has 4 rows, or 3 without the last.

    Returns:
        The transform in float64.

    Raises:
        CaptureError: as `rigid_matrix`.
    """
    return rigid_matrix(frame, POSE, "camera-to-world")


def rigid_matrix(frame: Fields, key: str, meaning: str) -> Float[np.ndarray, "4 4"]:
    """Reads a rigid transform of a document.

    Rounding in the file is removed: the rotation is replaced by the nearest exact one.

    Args:
        frame: holds the field.
        key: of 4 rows, or 3 without the last.
        meaning: what kind of transform it is, for the message.

    Returns:
        The transform in float64.

    Raises:
        CaptureError: the matrix is absent, has another shape, is not finite, or is not rigid.
    """
    matrix = _matrix(frame, key, meaning)
    if np.abs(matrix[3] - (0, 0, 0, 1)).max() > _TOLERANCE:
        transposed = np.abs(matrix[:, 3] - (0, 0, 0, 1)).max() <= _TOLERANCE
        raise frame.error(
            key,
            f"the last row is {_numbers(matrix[3])}",
            "the matrix looks transposed: write the position into the last column"
            if transposed
            else "wanted the last row 0, 0, 0, 1",
        )
    _check_rotation(frame, key, matrix[:3, :3])
    left, _, right = np.linalg.svd(matrix[:3, :3])
    rigid = np.eye(4)
    rigid[:3, :3] = left @ right
    rigid[:3, 3] = matrix[:3, 3]
    return rigid


def _matrix(frame: Fields, key: str, meaning: str) -> Float[np.ndarray, "4 4"]:
    rows = frame.values.get(key)
    wanted = f"wanted a {meaning} transform of 4 rows of 4 numbers (or 3 rows of 4)"
    if not isinstance(rows, list):
        raise frame.error(key, f"found {quote(rows)}", wanted)
    if len(rows) not in (3, 4) or not all(isinstance(row, list) and len(row) == 4 for row in rows):
        shape = " + ".join(str(len(row)) if isinstance(row, list) else quote(row) for row in rows)
        raise frame.error(key, f"found {len(rows)} rows of {shape or 'no'} numbers", wanted)
    matrix = np.eye(4)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            number = finite_number(value)
            if number is None:
                place = f"{key}[{i}][{j}]"
                advice = "wanted a finite number: remove this frame or estimate its pose again"
                raise frame.error(place, f"found {quote(value)}", advice)
            matrix[i, j] = number
    return matrix


def _check_rotation(frame: Fields, key: str, rotation: Float[np.ndarray, "3 3"]) -> None:
    determinant = float(np.linalg.det(rotation))
    scale = float(np.cbrt(abs(determinant)))
    if scale > 0:
        unit = rotation / scale
        skew = float(np.abs(unit.T @ unit - np.eye(3)).max())
    else:
        skew = np.inf
    if not skew <= _TOLERANCE:
        found = f"not rigid: the columns {_columns(rotation)} are not orthogonal and of length 1"
        raise frame.error(key, found, "wanted a rotation and a position: export the pose again")
    if determinant < 0:
        found = f"not rigid: mirrored (determinant {determinant:.4g})"
        raise frame.error(key, found, "wanted a right-handed rotation: undo the flip of one axis")
    if abs(scale - 1) > _TOLERANCE:
        found = f"not rigid: scaled by {scale:.6g}"
        advice = (
            "wanted scale 1: apply the scale of the camera object, or divide the rotation by it"
        )
        raise frame.error(key, found, advice)


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _columns(rotation: np.ndarray) -> str:
    return ", ".join(f"({_numbers(column)})" for column in rotation.T)
