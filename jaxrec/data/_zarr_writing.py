"""Writes stores of zarr, version 2, with their metadata in one place as well."""

import io
import json
import lzma
import os
import pathlib
import shutil
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._zarr import CBOR_XZ, HEADER, MAGIC

_METADATA = ".zmetadata.cbor.xz"


class StoreWriter:
    """Collects values of a new store, and keeps track of its metadata.

    Args:
        put: Stores a value by name.
    """

    def __init__(self, put: Callable[[str, bytes], None]):
        self._put = put
        self._metadata: dict[str, Any] = {}

    def group(self, key: str, attributes: dict[str, Any] | None = None) -> None:
        """Makes a group, and those around it."""
        parts = key.split("/") if key else []
        for end in range(len(parts) + 1):
            self._note("/".join([*parts[:end], ".zgroup"]), {"zarr_format": 2})
        if attributes is not None:
            self._note("/".join([*parts, ".zattrs"]), attributes)

    def array(self, key: str, values: np.ndarray, chunks: Sequence[int] | None = None) -> None:
        """Stores an array, compressed by Blosc, in chunks along its first axis only."""
        import numcodecs

        codec = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
        sizes = tuple(max(size, 1) for size in (values.shape if chunks is None else chunks))
        self._describe(key, values.dtype, values.shape, sizes, codec.get_config())
        rest = ".".join("0" for _ in sizes[1:])
        for start in range(0, values.shape[0], sizes[0]) if values.size else ():
            chunk = np.zeros(sizes, values.dtype)
            chunk[: min(sizes[0], values.shape[0] - start)] = values[start : start + sizes[0]]
            name = f"{start // sizes[0]}.{rest}".rstrip(".")
            self._put(f"{key}/{name}", bytes(codec.encode(chunk)))

    def text(self, key: str, value: bytes, attributes: dict[str, Any]) -> None:
        """Stores a string of bytes as it is."""
        self._describe(key, np.dtype(f"S{len(value)}"), (), (), None)
        self._put(f"{key}/0", value)
        self._note(f"{key}/.zattrs", attributes)

    def attributes(self, key: str, attributes: dict[str, Any]) -> None:
        """Notes something at an array."""
        self._note(f"{key}/.zattrs", attributes)

    def finish(self) -> None:
        """Stores all metadata once more, in one value."""
        import cbor2

        table = {"zarr_consolidated_format": 1, "metadata": self._metadata}
        self._put(_METADATA, lzma.compress(cbor2.dumps(table)))

    def _describe(self, key, dtype, shape, chunks, compressor) -> None:
        self._note(
            f"{key}/.zarray",
            {
                "chunks": list(chunks),
                "compressor": compressor,
                "dtype": dtype.str,
                "fill_value": None,
                "filters": None,
                "order": "C",
                "shape": list(shape),
                "zarr_format": 2,
            },
        )

    def _note(self, key: str, value: dict[str, Any]) -> None:
        if self._metadata.get(key) == value:
            return
        self._metadata[key] = value
        self._put(key, json.dumps(value).encode())


def write_tar(file: pathlib.Path, fill: Callable[[StoreWriter], None]) -> None:
    """Writes an indexed tar; it appears under its name once it is whole.

    Args:
        file: To write; one that is there is replaced.
        fill: Stores the values.
    """
    import cbor2

    partial = file.with_name(file.name + ".part")
    places: list[tuple[str, int, int]] = []
    try:
        with open(partial, "wb+") as stream:
            with tarfile.TarFile(fileobj=stream, mode="w") as archive:

                def put(key: str, value: bytes) -> None:
                    member = tarfile.TarInfo(key)
                    member.size = len(value)
                    archive.addfile(member, io.BytesIO(value))
                    padded = -(-len(value) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                    places.append((key, stream.tell() - padded, len(value)))

                writer = StoreWriter(put)
                fill(writer)
                writer.finish()
            offset = stream.seek(0, os.SEEK_END)
            keys, offsets, sizes = map(list, zip(*places, strict=True))
            table = {"items": keys, "offset_datas": offsets, "sizes": sizes}
            index = lzma.compress(cbor2.dumps(table))
            stream.write(_blocks(index))
            stream.write(_blocks(HEADER.pack(MAGIC, CBOR_XZ, offset, len(index))))
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def write_folder(folder: pathlib.Path, fill: Callable[[StoreWriter], None]) -> None:
    """Writes a store as a folder; it appears under its name once it is whole.

    Args:
        folder: To write.
        fill: Stores the values.

    Raises:
        FileExistsError: There is one already.
    """
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already; remove it, or give another name")
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)

    def put(key: str, value: bytes) -> None:
        file = partial / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value)

    try:
        writer = StoreWriter(put)
        fill(writer)
        writer.finish()
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _blocks(value: bytes) -> bytes:
    return value + bytes(-len(value) % tarfile.BLOCKSIZE)
