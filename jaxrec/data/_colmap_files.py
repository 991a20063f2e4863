"""The files of a COLMAP model, checked before they are read.

pycolmap reads a file that ends too early as if it went on: it invents cameras, or never returns.
"""

import mmap
import pathlib
import struct
from collections.abc import Callable, Mapping, Sequence

from .errors import CaptureError

_KINDS = ("cameras", "images", "points3D")
_ADDED = ("rigs", "frames")
_EXPORT_AGAIN = "copy the model again, or write it again with `colmap model_converter`"
# What the lines of text files start with.
_COLUMNS: Mapping[str, tuple[str, Sequence[Callable[[str], object]]]] = {
    "cameras": ("CAMERA_ID MODEL WIDTH HEIGHT PARAMS", (int, str, int, int, float)),
    "images": (
        "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME",
        (int, *[float] * 7, int, str),
    ),
    "points3D": ("POINT3D_ID X Y Z R G B ERROR TRACK", (int, *[float] * 3, *[int] * 3, float)),
}


def is_model(folder: pathlib.Path) -> bool:
    """Whether a folder holds a COLMAP model, complete or not."""
    return any(
        (folder / f"cameras{end}").is_file() and (folder / f"images{end}").is_file()
        for end in (".bin", ".txt")
    )


def model_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The files of a model: binary where there are both kinds.

    Args:
        folder: holds a model.

    Returns:
        The files of `cameras`, `images` and `points3D`.

    Raises:
        CaptureError: one of them is missing.
    """
    choices = [{kind: folder / f"{kind}{end}" for kind in _KINDS} for end in (".bin", ".txt")]
    for files in choices:
        if all(file.is_file() for file in files.values()):
            return files
    files = choices[0] if choices[0]["cameras"].is_file() else choices[1]
    missing = next(file for file in files.values() if not file.is_file())
    raise CaptureError(missing, "", "no such file", _EXPORT_AGAIN)


def check_files(files: Mapping[str, pathlib.Path], models: Mapping[str, tuple[int, int]]) -> None:
    """Checks that the files of a model are whole.

    Args:
        files: of `model_files`.
        models: number and count of parameters of each camera model, by its name.

    Raises:
        CaptureError: a file is damaged, at a line, a record or a byte, or it names a camera model
            or a camera that does not exist.
    """
    binary = files["cameras"].suffix == ".bin"
    check = _check_binary if binary else _check_text
    cameras: set[int] = set()
    # Newer versions add these two; a damaged text of them is an error of pycolmap's own.
    added = [files["cameras"].with_name(f"{kind}.bin") for kind in _ADDED] if binary else []
    for file in (*(files[kind] for kind in _KINDS), *filter(pathlib.Path.is_file, added)):
        try:
            check(file.stem, file, models, cameras)
        except OSError as error:
            found = f"cannot be read ({error.strerror})"
            raise CaptureError(file, "", found, "check the file and its permissions") from error


def _check_image(file: pathlib.Path, place: str, camera: int, cameras: set[int], name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        found = f"the name {ascii(name)} is not UTF-8 text"
        advice = "rename the image, and write the model again"
        raise CaptureError(file, place, found, advice) from error
    if camera not in cameras:
        found = f"{name} was taken by camera {camera}, which is not in cameras{file.suffix}"
        raise CaptureError(file, place, found, _EXPORT_AGAIN)


def _check_binary(
    kind: str,
    file: pathlib.Path,
    models: Mapping[str, tuple[int, int]],
    cameras: set[int],
) -> None:
    size = file.stat().st_size
    if size == 0:
        raise CaptureError(file, "", "the file is empty (0 bytes)", _EXPORT_AGAIN)
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        record, count, offset = 0, 0, 8
        try:
            (count,) = struct.unpack_from("<Q", data)
            while record < count and offset <= size:
                record += 1
                if kind == "cameras":
                    offset = _camera_end(file, data, offset, models, cameras)
                elif kind == "images":
                    offset = _image_end(file, data, offset, cameras)
                else:
                    offset = _ENDS[kind](data, offset)
        except struct.error:
            offset = size + 1
    if offset > size:
        found = f"the file ends too early, after {size} bytes"
        raise CaptureError(file, f"record {record}", found, _EXPORT_AGAIN)
    if offset < size:
        found = f"found {size - offset} bytes after the last of {count} records"
        raise CaptureError(file, f"byte {offset}", found, _EXPORT_AGAIN)


def _camera_end(
    file: pathlib.Path,
    data: mmap.mmap,
    offset: int,
    models: Mapping[str, tuple[int, int]],
    cameras: set[int],
) -> int:
    camera, number = struct.unpack_from("<Ii", data, offset)
    parameters = dict(models.values()).get(number)
    if parameters is None:
        found = f"unknown camera model number {number}"
        raise CaptureError(file, f"camera {camera}", found, _EXPORT_AGAIN)
    cameras.add(camera)
    return offset + 24 + 8 * parameters


def _image_end(file: pathlib.Path, data: mmap.mmap, offset: int, cameras: set[int]) -> int:
    image, *_, camera = struct.unpack_from("<I7dI", data, offset)
    end = data.find(b"\0", offset + 64)
    if end < 0:
        raise struct.error
    name = data[offset + 64 : end].decode("utf-8", "surrogateescape")
    _check_image(file, f"image {image}", camera, cameras, name)
    (points,) = struct.unpack_from("<Q", data, end + 1)
    return end + 9 + 24 * points


def _point_end(data: mmap.mmap, offset: int) -> int:
    (track,) = struct.unpack_from("<Q", data, offset + 43)
    return offset + 51 + 8 * track


def _rig_end(data: mmap.mmap, offset: int) -> int:
    _, sensors = struct.unpack_from("<II", data, offset)
    offset += 16 if sensors else 8
    for _ in range(1, sensors):
        _, _, posed = struct.unpack_from("<iI?", data, offset)
        offset += 9 + 56 * posed
    return offset


def _frame_end(data: mmap.mmap, offset: int) -> int:
    (images,) = struct.unpack_from("<I", data, offset + 64)
    return offset + 68 + 16 * images


_ENDS: Mapping[str, Callable[[mmap.mmap, int], int]] = {
    "points3D": _point_end,
    "rigs": _rig_end,
    "frames": _frame_end,
}


def _check_text(
    kind: str,
    file: pathlib.Path,
    models: Mapping[str, tuple[int, int]],
    cameras: set[int],
) -> None:
    header, columns = _COLUMNS[kind]
    with open(file, encoding="utf-8", errors="surrogateescape") as stream:
        lines = enumerate(stream, 1)
        for number, line in lines:
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            place = f"line {number}"
            if not _matches(words, columns):
                shown = " ".join(words)[:60]
                raise CaptureError(file, place, f"found {shown!r}", f"wanted {header}")
            if kind == "cameras":
                _check_parameters(file, place, words, models)
                cameras.add(int(words[0]))
            elif kind == "images":
                _check_image(file, place, int(words[8]), cameras, " ".join(words[9:]))
                # The second line of an image holds its points, and may be empty.
                number, points = next(lines, (number, ""))
                if len(points.split()) % 3:
                    found = f"found {len(points.split())} values"
                    raise CaptureError(
                        file, f"line {number}", found, "wanted X Y POINT3D_ID of each point"
                    )


def _matches(words: Sequence[str], columns: Sequence[Callable[[str], object]]) -> bool:
    try:
        for word, kind in zip(words, columns, strict=False):
            kind(word)
    except ValueError:
        return False
    return len(words) >= len(columns)


def _check_parameters(
    file: pathlib.Path, place: str, words: Sequence[str], models: Mapping[str, tuple[int, int]]
) -> None:
    if words[1] not in models:
        found = f"camera {words[0]} has the unknown model {words[1]!r}"
        raise CaptureError(file, place, found, f"wanted one of {', '.join(models)}")
    wanted = models[words[1]][1]
    if not _matches(words[4:], [float] * wanted) or len(words) != 4 + wanted:
        found = f"found {' '.join(words[4:])[:60]!r}"
        raise CaptureError(file, place, found, f"wanted the {wanted} numbers of {words[1]}")
