"""Checkpoints: any pytree of arrays with a JSON record, written atomically."""

import contextlib
import hashlib
import json
import logging
import pathlib
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_ARRAYS, _RECORD = "arrays", "record"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read. The message is one line that says what to do."""


class Restored(NamedTuple):
    """What `Checkpoints.restore` found."""

    step: int
    tree: Any
    record: dict[str, Any]
    messages: list[str]
    """One line for each newer checkpoint that was passed over because it is damaged."""


class Checkpoints:
    """A folder of checkpoints, one for each saved step.

    Orbax writes each of them under a temporary name and then renames it: a process killed at any
    moment leaves the earlier ones usable. A digest of all values, kept with the record, tells
    damage that the file format does not notice.
    """

    def __init__(self, folder: str | pathlib.Path, *, keep: int = 3):
        """Names the folder, which is created by the first save.

        Args:
            folder: Where checkpoints lie.
            keep: How many of the newest to keep, >= 1. At least 2 survive damage to one of them.

        Raises:
            ValueError: If `keep` is not positive.
        """
        if keep < 1:
            raise ValueError(f"keep: got {keep}, want >= 1")
        self.folder = pathlib.Path(folder).absolute()
        self._keep = keep

    def steps(self) -> list[int]:
        """Lists the steps of all complete checkpoints, damaged or not, in order."""
        import orbax.checkpoint as ocp

        if not self.folder.is_dir():
            return []
        return sorted(ocp.utils.checkpoint_steps(self.folder))

    def save(self, step: int, tree: Any, record: Mapping[str, Any]) -> None:
        """Writes a checkpoint and removes what is no longer kept; returns when it is on disk.

        Checkpoints of this step or later ones, which an abandoned run has left, are replaced.

        Args:
            step: Number of the checkpoint, >= 0.
            tree: Arrays, PRNG keys among them, in any pytree.
            record: Anything JSON can hold; floats come back exactly.

        Raises:
            CheckpointError: If it cannot be written, for want of space for instance. Earlier
                checkpoints are still there.
        """
        import orbax.checkpoint as ocp

        arrays = _flatten(tree)
        text = json.dumps(record, allow_nan=False, sort_keys=True)
        items = ocp.args.Composite(
            arrays=ocp.args.StandardSave(arrays),
            record=ocp.args.JsonSave(
                {"record": text, "names": sorted(arrays), "digest": _digest(arrays, text)}
            ),
        )
        try:
            with _quiet(), self._manager() as manager:
                later = [other for other in manager.all_steps() if other >= step]
                for other in later:
                    manager.delete(other)
                manager.save(step, args=items, force=True)
        except Exception as error:  # Orbax and its storage raise many kinds
            for half_written in self.folder.glob(f"{step}.*tmp*"):
                shutil.rmtree(half_written, ignore_errors=True)
            raise CheckpointError(
                f"{self.folder}: cannot write the checkpoint of step {step} ({_first_line(error)});"
                " check free space and permissions"
            ) from error

    def restore(self, template: Any | Callable[[dict[str, Any]], Any]) -> Restored:
        """Reads the newest checkpoint that is whole.

        Args:
            template: A pytree with the structure, shapes and dtypes of what was saved
                (`jax.eval_shape` makes one), or a function that makes it from the record.

        Returns:
            The step, a tree of arrays on the default device, the record, and messages about
            damaged checkpoints that were passed over.

        Raises:
            CheckpointError: If there is none, or if none is whole.
            ValueError: If the newest whole one does not match the template.
        """
        messages = []
        for step in reversed(self.steps()):
            try:
                with _quiet():
                    arrays, record = self._read(step)
            except Exception as error:  # damage shows as almost any kind
                messages.append(
                    f"{self.folder / str(step)}: checkpoint is damaged ({_first_line(error)}); "
                    "using the one before"
                )
                continue
            wanted = template(record) if callable(template) else template
            return Restored(step, _unflatten(arrays, wanted, step), record, messages)
        if messages:
            raise CheckpointError(
                f"{self.folder}: all {len(messages)} checkpoints are damaged; "
                "delete the folder to start again"
            )
        raise CheckpointError(f"{self.folder}: there is no checkpoint; run the fit first")

    def _read(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        import orbax.checkpoint as ocp

        folder = self.folder / str(step)
        # Not a CheckpointManager, which would remove what another process is just writing.
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            items = ocp.args.Composite(record=ocp.args.JsonRestore())
            found = reader.restore(folder, args=items)[_RECORD]
        arrays = {}
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            # One by one: Orbax abandons parallel reads when one fails, with noise on stderr.
            for name in found["names"]:
                part = ocp.args.PyTreeRestore(
                    item={name: 0},
                    restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray)},
                    partial_restore=True,
                )
                arrays[name] = reader.restore(folder / _ARRAYS, args=part)[name]
        if _digest(arrays, found["record"]) != found["digest"]:
            raise CheckpointError("the values are not those that were saved")
        return arrays, json.loads(found["record"])

    def _manager(self):
        import orbax.checkpoint as ocp

        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=True,  # of processes that were killed while they saved
        )
        return ocp.CheckpointManager(self.folder, options=options)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax from logging tracebacks of errors that are raised and reported anyway."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _flatten(tree: Any) -> dict[str, np.ndarray]:
    """Copies every leaf to the host, by its path; but for empty ones, which Orbax refuses."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): _to_host(leaf) for path, leaf in leaves if leaf.size}


def _to_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    # A copy, because the buffer may be donated while its successor is computed.
    return np.array(leaf, copy=True)


def _unflatten(arrays: dict[str, np.ndarray], template: Any, step: int) -> Any:
    wanted, structure = jax.tree_util.tree_flatten_with_path(template)
    names = {jax.tree_util.keystr(path) for path, leaf in wanted if leaf.size}
    if names != set(arrays):
        odd = ", ".join(sorted(names ^ set(arrays))[:3])
        raise ValueError(
            f"checkpoint of step {step}: its parts are not those of this fit ({odd}, ...); "
            "was it written with other settings or by another version?"
        )
    leaves = []
    for path, leaf in wanted:
        name = jax.tree_util.keystr(path)
        saved = arrays[name] if leaf.size else np.zeros(leaf.shape, leaf.dtype)
        array = jnp.array(saved, copy=True)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            array = jax.random.wrap_key_data(array)
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise ValueError(
                f"checkpoint of step {step}: {name} is {array.dtype}{list(array.shape)}, want "
                f"{leaf.dtype}{list(leaf.shape)}; was it written with other settings?"
            )
        leaves.append(array)
    return jax.tree_util.tree_unflatten(structure, leaves)


def _digest(arrays: Mapping[str, np.ndarray], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        leaf = np.ascontiguousarray(arrays[name])
        checksum = zlib.crc32(leaf.tobytes())
        total.update(f"{name} {leaf.dtype} {leaf.shape} {checksum}".encode())
    return total.hexdigest()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:80] if text else type(error).__name__
