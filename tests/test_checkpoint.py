"""Checkpoints: what comes back, what damage does, and what a kill leaves behind."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.io import CheckpointError, Checkpoints

pytestmark = pytest.mark.optimized


def tree_at(step):
    """A pytree with every kind of leaf, whose values tell the step."""
    values = jax.random.normal(jax.random.key(step), (500, 3))
    return {
        "params": [values, {"bias": jnp.float32(step)}],
        "empty": jnp.zeros((0, 3)),
        "alive": jnp.arange(4) % 2 == 0,
        "step": jnp.int32(step),
        "key": jax.random.key(step),
    }


TEMPLATE = jax.eval_shape(lambda: tree_at(0))


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints of steps 10 and 20."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(folder)
    for step in (10, 20):
        checkpoints.save(step, tree_at(step), {"step": step})
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    """A copy to damage."""
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


def largest_file(folder: pathlib.Path) -> pathlib.Path:
    return max((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def test_everything_comes_back(tmp_path):
    # 0.1 and 1e300 have no short exact decimal in float32: JSON keeps all 64 bits.
    record = {"center": [0.1, 1e300, -1 / 3], "settings": {"name": "ä", "flag": True}}
    checkpoints = Checkpoints(tmp_path / "new" / "folder")
    checkpoints.save(7, tree_at(7), record)
    found = Checkpoints(tmp_path / "new" / "folder").restore(TEMPLATE)
    assert (found.step, found.record, found.messages) == (7, record, [])
    assert_equal(found.tree, tree_at(7))


def test_arrays_that_change_after_saving_do_not_matter(tmp_path):
    values = np.zeros(3, np.float32)
    Checkpoints(tmp_path).save(1, {"values": values}, {})
    values[:] = 1
    found = Checkpoints(tmp_path).restore({"values": jax.ShapeDtypeStruct((3,), np.float32)})
    np.testing.assert_array_equal(found.tree["values"], np.zeros(3))


def test_the_newest_is_restored_and_the_template_may_depend_on_the_record(saved):
    seen = []
    found = Checkpoints(saved).restore(lambda record: seen.append(record) or TEMPLATE)
    assert found.step == 20 and seen == [{"step": 20}]


def test_only_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, tree_at(step), {})
    assert checkpoints.steps() == [2, 3]


def test_saving_replaces_what_an_abandoned_run_has_left(copy):
    checkpoints = Checkpoints(copy)
    checkpoints.save(10, tree_at(11), {"again": True})
    assert checkpoints.steps() == [10]
    assert_equal(checkpoints.restore(TEMPLATE).tree, tree_at(11))


DAMAGES = {
    "missing": lambda file: file.unlink(),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
    "overwritten": lambda file: file.write_bytes(b"x" * file.stat().st_size),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", ["arrays", "record"])
def test_damage_falls_back_to_the_one_before(copy, damage, part, capfd):
    DAMAGES[damage](largest_file(copy / "20" / part))
    found = Checkpoints(copy).restore(TEMPLATE)
    assert found.step == 10
    assert_equal(found.tree, tree_at(10))
    assert len(found.messages) == 1
    assert "20: checkpoint is damaged" in found.messages[0] and "\n" not in found.messages[0]
    assert "Traceback" not in capfd.readouterr().err


def test_values_that_are_not_those_saved_are_damage(copy):
    # The folder of another step in its place is a whole checkpoint to Orbax, but for its record.
    shutil.rmtree(copy / "20" / "arrays")
    shutil.copytree(copy / "10" / "arrays", copy / "20" / "arrays")
    found = Checkpoints(copy).restore(TEMPLATE)
    assert found.step == 10 and "not those that were saved" in found.messages[0]


def test_all_damaged_is_an_error(copy):
    for step in ("10", "20"):
        largest_file(copy / step / "arrays").unlink()
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged; delete"):
        Checkpoints(copy).restore(TEMPLATE)


def test_saving_goes_on_after_a_fall_back(copy):
    largest_file(copy / "20" / "arrays").unlink()
    checkpoints = Checkpoints(copy)
    checkpoints.save(20, tree_at(20), {})
    found = checkpoints.restore(TEMPLATE)
    assert found.step == 20 and found.messages == []


def test_nothing_there_is_an_error(tmp_path):
    assert Checkpoints(tmp_path / "none").steps() == []
    with pytest.raises(CheckpointError, match="there is no checkpoint; run the fit first"):
        Checkpoints(tmp_path / "none").restore(TEMPLATE)


def test_other_settings_are_not_damage(saved):
    smaller = jax.eval_shape(lambda: {**tree_at(0), "alive": jnp.zeros(3, bool)})
    with pytest.raises(ValueError, match=r"\['alive'\] is bool\[4\], want bool\[3\]"):
        Checkpoints(saved).restore(smaller)
    with pytest.raises(ValueError, match="parts are not those of this fit"):
        Checkpoints(saved).restore({"step": TEMPLATE["step"]})


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write the checkpoint of step 3") as caught:
        Checkpoints(tmp_path / "file" / "checkpoints").save(3, tree_at(3), {})
    assert "\n" not in str(caught.value)


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="keep: got 0"):
        Checkpoints(tmp_path, keep=0)


_FILL_THE_DISK = """
import os, resource, signal, sys, numpy as np
from jaxrec.io import CheckpointError, Checkpoints
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(1, {"values": np.zeros(30_000, np.float32)}, {})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    checkpoints.save(2, {"values": np.random.rand(30_000)}, {})
except CheckpointError as error:
    print(error)
print(checkpoints.steps(), sorted(os.listdir(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path):
    # No file may grow beyond 50 kB: to the process, the same as a disk with no more room.
    arguments = [sys.executable, "-P", "-c", _FILL_THE_DISK, str(tmp_path)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    message, steps = result.stdout.splitlines()
    assert "cannot write the checkpoint of step 2" in message and "free space" in message
    assert steps == "[1] ['1']"
    assert "Traceback" not in result.stderr


_SAVE_FOR_EVER = """
import sys, numpy as np
from jaxrec.io import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep=2)
step = 0
while True:
    step += 1
    tree = {str(i): np.full((50_000, 3), step, np.float32) for i in range(5)}
    checkpoints.save(step, tree, {"step": step})
    print(step, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_last_save_usable(tmp_path):
    template = {str(i): jax.ShapeDtypeStruct((50_000, 3), np.float32) for i in range(5)}
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        arguments = [sys.executable, "-P", "-c", _SAVE_FOR_EVER, str(folder)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.02 + 0.013 * attempt)
            process.send_signal(signal.SIGKILL)
            announced = [1, *map(int, process.stdout.read().split())]
        found = Checkpoints(folder).restore(template)
        assert found.step >= max(announced) and found.messages == []
        for leaf in found.tree.values():
            np.testing.assert_array_equal(leaf, np.full((50_000, 3), found.step))
        Checkpoints(folder, keep=2).save(found.step + 1, found.tree, {})
        assert max(Checkpoints(folder).steps()) == found.step + 1
