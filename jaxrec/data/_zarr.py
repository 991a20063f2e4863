"""Stores of zarr, version 2: groups and arrays in a folder, or in a tar with an index.

An indexed tar (`.itar`) is an ordinary tar whose last blocks say where its members start: an
index in CBOR, compressed with xz, and a header of its own in the very last block.
"""

import importlib
import itertools
import json
import lzma
import math
import pathlib
import struct
import tarfile
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ._log_files import COPY_AGAIN
from .errors import CaptureError

# What the last block starts with: magic, kind, offset and size of the index.
HEADER = struct.Struct("<4sIQI")
MAGIC, CBOR_XZ = b"itar", 1
_INSTALL = "install it: pip install 'jaxrec[ncore]'"


@runtime_checkable
class Store(Protocol):
    """Values by name, names separated by `/`."""

    path: pathlib.Path

    def get(self, key: str) -> bytes | None:
        """A value, or None if there is none."""
        ...

    def names(self, prefix: str) -> list[str]:
        """What comes after a prefix, up to the next `/`."""
        ...


class FolderStore:
    """A store whose values are files."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def get(self, key: str) -> bytes | None:
        """See `Store`."""
        try:
            return (self.path / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            found = f"cannot be read ({error.strerror})"
            raise CaptureError(self.path, key, found, "check its permissions") from error

    def names(self, prefix: str) -> list[str]:
        """See `Store`."""
        folder = self.path / prefix
        return sorted(part.name for part in folder.iterdir()) if folder.is_dir() else []


class TarStore:
    """A store whose values are members of an indexed tar. Safe to use from several threads.

    Raises:
        CaptureError: The file has no index, or it cannot be read.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._places = self._index()

    def get(self, key: str) -> bytes | None:
        """See `Store`."""
        place = self._places.get(key)
        return None if place is None else self._bytes(*place)

    def names(self, prefix: str) -> list[str]:
        """See `Store`."""
        start = f"{prefix}/" if prefix else ""
        after = (key[len(start) :] for key in self._places if key.startswith(start))
        return sorted({name.partition("/")[0] for name in after})

    def _bytes(self, offset: int, size: int) -> bytes:
        # Opened anew each time: a drive may live long, in several threads and processes.
        try:
            with open(self.path, "rb") as stream:
                stream.seek(offset)
                value = stream.read(size)
        except OSError as error:
            found = f"cannot be read ({error.strerror})"
            raise CaptureError(self.path, "", found, "check the path") from error
        if len(value) != size:
            found = f"ends at byte {offset + len(value)} of {offset + size}"
            raise CaptureError(self.path, "", found, COPY_AGAIN)
        return value

    def _index(self) -> dict[str, tuple[int, int]]:
        cbor2 = _optional("cbor2", self.path)
        size = self.path.stat().st_size
        if size < tarfile.BLOCKSIZE:
            raise CaptureError(self.path, "", f"has {size} bytes only", COPY_AGAIN)
        block = self._bytes(size - tarfile.BLOCKSIZE, HEADER.size)
        magic, kind, offset, length = HEADER.unpack(block)
        if magic != MAGIC or kind != CBOR_XZ:
            found = "the last block is no index of an indexed tar"
            raise CaptureError(self.path, "", found, COPY_AGAIN)
        try:
            table = cbor2.loads(lzma.decompress(self._bytes(offset, length)))
            columns = table["items"], table["offset_datas"], table["sizes"]
            return {key: (at, size) for key, at, size in zip(*columns, strict=True)}
        # What a decoder makes of a damaged index may be of any type.
        except (lzma.LZMAError, ValueError, KeyError, TypeError, EOFError) as error:
            raise CaptureError(self.path, "", f"the index is damaged ({error})", COPY_AGAIN) from (
                error
            )


class Group:
    """A group of a store, and the groups and arrays in it.

    Attributes:
        store: Where it is.
        key: Its name in the store; empty for the root.
    """

    def __init__(self, store: Store, key: str = ""):
        self.store = store
        self.key = key

    def name(self, *parts: str) -> str:
        """The name in the store of something in the group."""
        return "/".join(part for part in (self.key, *parts) if part)

    def error(self, name: str, found: str, advice: str) -> CaptureError:
        """The error about something in the group."""
        return CaptureError(self.store.path, self.name(name), found, advice)

    def group(self, *names: str) -> "Group":
        """A group in the group, one in that, and so on.

        Raises:
            CaptureError: There is none.
        """
        inner = self.find(*names)
        if inner is None:
            raise self.error("/".join(names), "no such group", COPY_AGAIN)
        return inner

    def find(self, *names: str) -> "Group | None":
        """As `group`, or None if there is none."""
        key = self.name(*names)
        known = self.store.get(f"{key}/.zgroup" if key else ".zgroup")
        return None if known is None else Group(self.store, key)

    def groups(self) -> "dict[str, Group]":
        """All groups in the group, by name."""
        found = {name: self.find(name) for name in self.store.names(self.key)}
        return {name: group for name, group in found.items() if group is not None}

    def attributes(self, *names: str) -> dict[str, Any]:
        """What is noted at the group, or at an array in it; nothing if there is nothing."""
        value = self._json(*names, ".zattrs")
        return {} if value is None else value

    def attribute(self, key: str) -> Any:
        """One of the group's attributes.

        Raises:
            CaptureError: There is none.
        """
        value = self.attributes().get(key)
        if value is None:
            raise self.error(".zattrs", f"no {key!r}", COPY_AGAIN)
        return value

    def has(self, name: str) -> bool:
        """Whether there is such an array in the group."""
        return self.store.get(self.name(name, ".zarray")) is not None

    def array(self, name: str) -> np.ndarray:
        """Reads an array.

        Raises:
            CaptureError: There is none, or it cannot be decoded.
        """
        described = self._json(name, ".zarray")
        if described is None:
            raise self.error(name, "no such array", COPY_AGAIN)
        try:
            return _read_array(self, name, described)
        except (ArithmeticError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise self.error(name, f"cannot be decoded ({error})", COPY_AGAIN) from error

    def text(self, name: str) -> bytes:
        """Reads an array of one string of bytes, such as an encoded image.

        Raises:
            CaptureError: There is none.
        """
        value = self.array(name)
        # Not `value.item()`, which cuts zeros off.
        return value.tobytes()

    def _json(self, *names: str) -> dict[str, Any] | None:
        key = self.name(*names)
        value = self.store.get(key)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except ValueError as error:
            found = f"not valid JSON ({error})"
            raise CaptureError(self.store.path, key, found, COPY_AGAIN) from error
        if not isinstance(found, dict):
            raise CaptureError(self.store.path, key, "no object", COPY_AGAIN)
        return found


def _read_array(group: Group, name: str, described: dict[str, Any]) -> np.ndarray:
    shape, chunks = tuple(described["shape"]), tuple(described["chunks"])
    dtype, order = np.dtype(described["dtype"]), described["order"]
    if described["zarr_format"] != 2:
        raise ValueError(f"zarr_format {described['zarr_format']}, not 2")
    if min(shape, default=0) < 0 or min(chunks, default=1) < 1:
        raise ValueError(f"shape {list(shape)} in chunks of {list(chunks)}")
    decode = _decoder(group, described)
    fill = described.get("fill_value")
    whole = np.zeros(shape, dtype) if fill is None else np.full(shape, fill, dtype)
    separator = described.get("dimension_separator", ".")
    counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
    for index in itertools.product(*map(range, counts)):
        key = separator.join(map(str, index)) or "0"
        stored = group.store.get(group.name(name, key))
        if stored is None:
            continue
        values = np.frombuffer(decode(stored), dtype, count=math.prod(chunks))
        chunk = values.reshape(chunks, order=order)
        # Chunks at the end are stored whole.
        at = tuple(
            slice(number * chunk_size, min((number + 1) * chunk_size, size))
            for number, chunk_size, size in zip(index, chunks, shape, strict=True)
        )
        whole[at] = chunk[tuple(slice(part.stop - part.start) for part in at)]
    return whole


def _decoder(group: Group, described: dict[str, Any]) -> Callable[[bytes], bytes]:
    """What undoes the filters and the compression of a chunk."""
    configurations = [*(described.get("filters") or []), described.get("compressor")]
    configurations = [each for each in configurations if each is not None]
    if not configurations:
        return lambda stored: stored
    numcodecs = _optional("numcodecs", group.store.path)
    codecs = [numcodecs.get_codec(dict(each)) for each in reversed(configurations)]

    def decode(stored: bytes) -> bytes:
        for codec in codecs:
            stored = codec.decode(stored)
        return bytes(stored)

    return decode


def _optional(name: str, file: pathlib.Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CaptureError(file, "", f"stores of this kind need {name}", _INSTALL) from error


def open_store(path: pathlib.Path) -> Store:
    """Opens a store of either kind."""
    return FolderStore(path) if path.is_dir() else TarStore(path)


def is_store(path: pathlib.Path) -> bool:
    """Whether a path is called like a store and may be one."""
    if path.name.endswith(".zarr.itar"):
        return path.is_file()
    return path.name.endswith(".zarr") and (path / ".zgroup").is_file()


def stores_in(paths: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """The stores among paths, by name."""
    return sorted(path for path in paths if is_store(path))
