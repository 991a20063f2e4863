"""The pieces that logs consist of: numbers in documents, arrays and lines in files."""

import contextlib
import pathlib
import zipfile
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float64

from ._document import Fields, finite_number, quote
from .errors import CaptureError

T = TypeVar("T")

COPY_AGAIN = "copy it again"


@contextlib.contextmanager
def damaged(file: pathlib.Path, place: str) -> Iterator[None]:
    """Whatever values of the wrong kind lead to inside becomes an error about a place in a file.

    For documents that machines write: they are whole, or are to be written again.
    """
    try:
        yield
    except CaptureError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        found = f"damaged ({type(error).__name__}: {error})"
        raise CaptureError(file, place, found, "export it again") from error


def need(fields: Fields, key: str, value: T | None, wanted: str) -> T:
    """A value that has to be there.

    Raises:
        CaptureError: It is None.
    """
    if value is None:
        raise fields.error(key, "found nothing", f"wanted {wanted}")
    return value


def numbers(fields: Fields, key: str, count: int, meaning: str) -> Float64[np.ndarray, " count"]:
    """The list of numbers in a field.

    Args:
        fields: Holds the field.
        key: Its name.
        count: How many there must be.
        meaning: What they are, for the message.

    Raises:
        CaptureError: The field holds something else.
    """
    value = fields.values.get(key)
    found = [finite_number(entry) for entry in value] if isinstance(value, list) else []
    if len(found) != count or any(entry is None for entry in found):
        raise fields.error(key, f"found {quote(value)}", f"wanted {count} numbers: {meaning}")
    return np.array(found, np.float64)


def inner(fields: Fields, key: str) -> Fields:
    """The object in a field.

    Raises:
        CaptureError: The field holds something else.
    """
    value = fields.values.get(key)
    if not isinstance(value, dict):
        raise fields.error(key, f"found {quote(value)}", "wanted an object, in braces")
    return Fields(fields.file, fields.name(key), value)


def intrinsics_of(fields: Fields, key: str) -> tuple[list[float], list[float]]:
    """The focal lengths and the principal point of a K that counts from the first pixel's centre.

    Returns:
        (fx, fy), and (cx, cy) from the image's corner, half a pixel more.

    Raises:
        CaptureError: The field holds something else, or has skew.
    """
    rows = fields.values.get(key)
    wanted = "wanted K without skew: three rows of three numbers, fx 0 cx / 0 fy cy / 0 0 1"
    if not isinstance(rows, list) or len(rows) != 3:
        raise fields.error(key, "found no three rows", wanted)
    lines = Fields(fields.file, fields.place, {f"{key}[{row}]": rows[row] for row in range(3)})
    matrix = np.stack([numbers(lines, f"{key}[{row}]", 3, "a row of K") for row in range(3)])
    (fx, skew, cx), (below, fy, cy), last = matrix.tolist()
    if skew or below or last != [0, 0, 1] or fx <= 0 or fy <= 0:
        raise fields.error(key, f"found {matrix.tolist()}", wanted)
    return [fx, fy], [cx + 0.5, cy + 0.5]


def file_in(folder: pathlib.Path, fields: Fields, key: str) -> pathlib.Path:
    """The file that a field names, relative to a folder.

    Raises:
        CaptureError: The field holds no text, or there is no such file.
    """
    name = need(fields, key, fields.text(key), "the name of a file")
    file = folder / name
    if not file.is_file():
        raise fields.error(key, f"no such file: {name}", f"copy it into {folder}")
    return file


def load_arrays(file: pathlib.Path, names: Sequence[str]) -> list[np.ndarray]:
    """Arrays of an npz file.

    Raises:
        CaptureError: It cannot be read, or an array is missing.
    """
    try:
        with np.load(file) as stored:
            missing = [name for name in names if name not in stored]
            if missing:
                found = f"no array {missing[0]!r} among {', '.join(stored.files)}"
                raise CaptureError(file, "", found, f"wanted {', '.join(names)}")
            return [stored[name] for name in names]
    except CaptureError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CaptureError(file, "", f"cannot be read ({error})", COPY_AGAIN) from error


def text_lines(file: pathlib.Path) -> list[str]:
    """The lines of a text file without those that are blank.

    Raises:
        CaptureError: It cannot be read, or holds none.
    """
    try:
        text = file.read_text(errors="backslashreplace")
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
        raise CaptureError(file, "", found, "check the path and its permissions") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise CaptureError(file, "", "the file is empty", COPY_AGAIN)
    return lines


def points_message(sensor: str, count: int, total: int) -> list[str]:
    """What to say of points that no ray can go through."""
    if not count:
        return []
    return [f"{count} of {total} points of {sensor} are at its origin or not finite: not used"]
