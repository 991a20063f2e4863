"""JSON documents whose every value remembers the file and the place it came from."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from .errors import CaptureError

_LONGEST_QUOTE = 60
_MOST_NAMES = 20
# Cameras are float32: what overflows there, or vanishes, is no number to them either.
_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True)
class Fields:
    """One JSON object of a document; a `null` counts as absent.

    Attributes:
        file: the document.
        place: where the object stands in it, such as `frames[3]`; empty for the outermost one.
        values: the object.
    """

    file: pathlib.Path
    place: str
    values: Mapping[str, object]

    def has(self, *keys: str) -> bool:
        """Whether at least one of the keys is present."""
        return any(self.values.get(key) is not None for key in keys)

    def name(self, key: str) -> str:
        """The full name of a field of this object."""
        return f"{self.place}.{key}" if self.place else key

    def error(self, key: str, found: str, advice: str) -> CaptureError:
        """The error about a field of this object."""
        return CaptureError(self.file, self.name(key), found, advice)

    def number(self, key: str) -> float | None:
        """The finite number in a field, or None where the field is absent.

        Raises:
            CaptureError: the field holds something else.
        """
        value = self.values.get(key)
        if value is None:
            return None
        number = finite_number(value)
        if number is None:
            raise self.error(key, f"found {quote(value)}", "wanted a finite number")
        return number

    def positive(self, key: str, meaning: str) -> float | None:
        """The number in a field, which must be above zero, or None where it is absent."""
        number = self.number(key)
        if number is not None and number < _SMALLEST:
            raise self.error(key, f"found {number:g}", f"wanted {meaning}, above zero")
        return number

    def size(self, key: str) -> int | None:
        """The whole number of pixels in a field (`800.0` will do), or None where it is absent."""
        number = self.positive(key, "an image size in pixels")
        if number is not None and number != int(number):
            raise self.error(key, f"found {number:g}", "wanted a whole number of pixels")
        return None if number is None else int(number)

    def text(self, key: str) -> str | None:
        """The text in a field, or None where the field is absent.

        Raises:
            CaptureError: the field holds something else, or an empty text.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"found {quote(value)}", "wanted a text")
        return value

    def objects(self, key: str) -> "list[Fields]":
        """The objects of the list in a field.

        Raises:
            CaptureError: the field holds no list, or the list something other than an object.
        """
        entries = self.values.get(key)
        if not isinstance(entries, list):
            raise self.error(key, f"found {quote(entries)}", f"wanted a list of {key}")
        objects = []
        for index, entry in enumerate(entries):
            place = f"{key}[{index}]"
            if not isinstance(entry, dict):
                raise self.error(place, f"found {quote(entry)}", "wanted an object, in braces")
            objects.append(Fields(self.file, self.name(place), entry))
        return objects


def finite_number(value: object) -> float | None:
    """The value as a float, or None if it is no number (`true`, `"1"`) or not finite in float32."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= _LARGEST else None


def quote(value: object) -> str:
    """The value as JSON writes it, on one line and shortened."""
    if value is None:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."


def listed(names: Sequence[str]) -> str:
    """Names on one line; how many more there are where they are too many."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def load_document(file: pathlib.Path) -> Fields:
    """Reads a JSON file that holds one object.

    Raises:
        CaptureError: the file cannot be read, is empty, is no JSON (with line and column), or
            holds something other than an object.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
        raise CaptureError(file, "", found, "check the path and its permissions") from error
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is not UTF-8 text"
        raise CaptureError(file, "", found, "save the file as UTF-8, or copy it again") from error
    if not text.strip():
        raise CaptureError(file, "", "the file is empty", "copy or export it again")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        found = f"not valid JSON ({error.msg})"
        raise CaptureError(
            file, place, found, "repair that line, or export the file again"
        ) from error
    except RecursionError as error:
        raise CaptureError(file, "", "nested too deeply", "export the file again") from error
    if not isinstance(values, dict):
        found = f"found {quote(values)}"
        raise CaptureError(file, "", found, 'wanted an object with "frames"')
    return Fields(file, "", values)
