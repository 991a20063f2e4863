"""Documents of logs with values of the wrong kind anywhere: read, or told in one line."""

import copy
import dataclasses
import json

import numpy as np
import pytest

from dgp_files import write_dgp, write_scene
from drive_files import write_sequence
from jaxrec.data import CaptureError, open_drive, write_ncore
from ncore_files import a_drive

WRONG = [None, "x", [], {}, -1, 0, 1e300, [[1, 2], [3]], True]
CASES = 150


def places(value, place=()):
    """All places of a document; of lists, the first two entries."""
    yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from places(inner, (*place, index))


def damaged(document, place, random):
    """The document with something else in a place, or nothing."""
    if not place:
        return WRONG[random.integers(len(WRONG))]
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    choice = random.integers(len(WRONG) + 1)
    if choice == len(WRONG):
        del inner[place[-1]]
    else:
        inner[place[-1]] = WRONG[choice]
    return changed


def assert_reads_or_tells(folder, files):
    random = np.random.default_rng(0)
    documents = {file: json.loads(file.read_text()) for file in files}
    cases = [(file, place) for file, document in documents.items() for place in places(document)]
    told = 0
    for number in random.permutation(len(cases))[:CASES]:
        file, place = cases[number]
        file.write_text(json.dumps(damaged(documents[file], place, random)))
        try:
            open_drive(folder)
        except CaptureError as error:
            assert "\n" not in str(error)
            told += 1
        file.write_text(json.dumps(documents[file]))
    assert told > CASES / 4
    open_drive(folder)


def test_sequence(tmp_path):
    write_sequence(tmp_path, frames=2)
    assert_reads_or_tells(tmp_path, [tmp_path / "sequence.json"])


def test_scene(tmp_path):
    write_scene(tmp_path)
    assert_reads_or_tells(tmp_path, [tmp_path / "scene.json"])


def test_dgp(tmp_path):
    write_dgp(tmp_path)
    names = ("scene_c0ffee.json", "calibration/c0.json", "ontology/o0.json")
    boxes = tmp_path / "bounding_box_3d" / "LIDAR" / "0.json"
    assert_reads_or_tells(tmp_path, [*(tmp_path / name for name in names), boxes])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # 1e300 is too much for float32
def test_ncore(tmp_path):
    for name in ("numcodecs", "cbor2"):
        pytest.importorskip(name, reason="not installed: pip install '.[ncore]'")
    drive = a_drive()
    short = dataclasses.replace(drive, exposures=drive.exposures[:3], sweeps=drive.sweeps[:1])
    write_ncore(short, tmp_path, store="directory")
    root = tmp_path / "drive.ncore4.zarr"
    files = [file for name in (".zattrs", ".zarray") for file in sorted(root.rglob(name))]
    assert_reads_or_tells(tmp_path, [tmp_path / "drive.json", *files])
