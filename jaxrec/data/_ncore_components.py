"""The stores that an NCore sequence consists of, and the components in them."""

import json
import pathlib

import numpy as np

from ._document import Fields, listed
from ._log_files import damaged
from ._zarr import Group, is_store, open_store, stores_in
from .errors import CaptureError

_STORES = "component_stores"


def is_ncore(path: pathlib.Path) -> bool:
    """Whether a path is a store or the JSON of a sequence, or a folder that holds such."""
    if path.is_dir() and not is_store(path):
        return bool(stores_in(path.iterdir()) or _sequence_files(path))
    return is_store(path) or (path.suffix == ".json" and _is_sequence(path))


class Components:
    """The parts of a sequence, from all of its stores.

    Attributes:
        path: What the sequence was opened by.
        start: Of the sequence, in nanoseconds.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.start = 0
        self._groups: dict[str, dict[str, Group]] = {}
        sequence = None
        for file in _stores_of(path):
            root = Group(open_store(file))
            about = root.attributes()
            if about.get("version") != "v4":
                found = f"found version {about.get('version')!r}"
                raise CaptureError(file, "", found, "wanted an NCore sequence of version 'v4'")
            if sequence not in (None, about.get("sequence_id")):
                found = f"belongs to {about.get('sequence_id')!r}, another store to {sequence!r}"
                raise CaptureError(file, "", found, "give the JSON of one sequence")
            sequence = about.get("sequence_id")
            with damaged(file, "sequence_timestamp_interval_us"):
                start = int(root.attribute("sequence_timestamp_interval_us")["start"]) * 1000
                self.start = int(np.int64(start))
            for kind, components in root.groups().items():
                self._groups.setdefault(kind, {}).update(components.groups())

    def all(self, kind: str) -> dict[str, Group]:
        """The components of a kind, by name."""
        return self._groups.get(kind, {})

    def only(self, kind: str) -> Group:
        """The component of a kind that counts: `default`, or the only one.

        Raises:
            CaptureError: There is none, or there are several without a default.
        """
        found = self.all(kind)
        if "default" in found or len(found) == 1:
            return found.get("default") or next(iter(found.values()))
        name = f"found {listed(sorted(found))}" if found else "found none"
        raise CaptureError(self.path, kind, name, f"wanted one component of {kind}")

    def model(self, kind: str, sensor: str) -> Fields | None:
        """The stored model of a sensor."""
        group = self.only("intrinsics").find(kind, sensor)
        if group is None:
            return None
        return Fields(group.store.path, group.key, group.attributes())


def _is_sequence(file: pathlib.Path) -> bool:
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and isinstance(values.get(_STORES), list)


def _sequence_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(file for file in folder.glob("*.json") if _is_sequence(file))


def _stores_of(path: pathlib.Path) -> list[pathlib.Path]:
    """The stores of a sequence."""
    if is_store(path):
        return [path]
    if path.is_dir():
        sequences = _sequence_files(path)
        if len(sequences) > 1:
            names = listed([file.name for file in sequences])
            raise CaptureError(path, "", f"found several sequences: {names}", "give one of them")
        if not sequences:
            return stores_in(path.iterdir())
        path = sequences[0]
    with damaged(path, _STORES):
        names = [entry["path"] for entry in json.loads(path.read_bytes())[_STORES]]
    files = [path.parent / str(name) for name in names]
    missing = [str(name) for name, file in zip(names, files, strict=True) if not is_store(file)]
    if missing or not files:
        found = f"no such store: {listed(missing)}" if missing else "found no stores"
        raise CaptureError(path, _STORES, found, "copy all of them beside it")
    return files
