"""The folder of one fit: what was asked for, how it went, and what came of it.

Every file but the growing `metrics.jsonl` is written under a temporary name and then renamed, so
that a process that dies leaves each file whole or absent.
"""

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .errors import CommandError

FORMAT = 1
READING = ("downscale", "mask_invert", "ignore_distortion")
# Settings that a restarted fit may change: they have no influence on any step.
CHANGEABLE = ("steps", "save_every", "progress_every")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What was asked of a run.

    Attributes:
        data: The capture, as an absolute path or relative to the run folder.
        downscale: How many times smaller its images are taken.
        preset: Name of the preset that the settings began with.
        settings: All settings of the fit, as plain values.
        version: Version of jaxrec that began the run.
        mask_invert: Whether its masks mark what is to be ignored.
        ignore_distortion: Whether its images are undistorted already, whatever it says.
        kind: "capture", or "drive" for the log of one.
    """

    data: str
    downscale: int
    preset: str
    settings: dict[str, Any]
    version: str
    mask_invert: bool = False
    ignore_distortion: bool = False
    kind: str = "capture"

    def reading(self) -> dict[str, Any]:
        """How the images are read, as options of `open_capture`."""
        return {name: getattr(self, name) for name in READING}

    def differences(self, other: "RunConfig") -> list[str]:
        """Lists what would make a fit with `other` another run, as `name: mine, not theirs`."""
        mine, theirs = _flat(self), _flat(other)
        return [
            f"{name} {mine.get(name)}, not {theirs.get(name)}"
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name) != theirs.get(name)
        ]


class RunFolder:
    """Paths and files of a run."""

    def __init__(self, path: pathlib.Path):
        """Names the folder without touching it."""
        self.path = path
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self.cameras_file = path / "cameras.json"
        self.contact_sheet_file = path / "contact_sheet.png"
        self.sweeps_file = path / "sweeps.png"
        self.rig_file = path / "rig.json"
        self.checkpoints = path / "checkpoints"
        self.renders = path / "renders"
        self.structure = path / "sfm"

    def read_config(self) -> RunConfig:
        """Reads what was asked of the run.

        Raises:
            CommandError: If the folder is not that of a run, or its config is damaged.
        """
        import yaml

        try:
            text = self.config_file.read_text()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CommandError(
                f"{self.path}: not a run (it has no config.yaml); give a folder that "
                "`jaxrec fit` or `jaxrec demo` has made"
            ) from error
        try:
            values = yaml.safe_load(text)
            if values.pop("format") != FORMAT:
                raise ValueError("of another format")
            return RunConfig(**values)
        except (
            yaml.YAMLError,
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:
            raise CommandError(
                f"{self.config_file}: damaged, or written by another version of jaxrec "
                f"({type(error).__name__}); start again with another --out"
            ) from error

    def check(self, config: RunConfig) -> RunConfig | None:
        """Checks that a run may be made here, or that the one here has the same data and settings.

        Returns:
            What was asked of the run before, or None for a new run.

        Raises:
            CommandError: If the folder holds something else.
        """
        if not self.config_file.exists():
            strange = self._strange_file()
            if strange is not None:
                raise CommandError(f"{strange}: in the way of a new run; choose another --out")
            return None
        existing = self.read_config()
        differences = existing.differences(config)
        if differences:
            raise CommandError(
                f"{self.path}: belongs to another run ({'; '.join(differences[:3])}); "
                "choose another --out, or repeat the options of that run to go on with it"
            )
        return existing

    @contextlib.contextmanager
    def claimed(self, config: RunConfig) -> Iterator[None]:
        """Makes the folder that of a run, after `check`, and keeps other processes from fitting.

        Raises:
            CommandError: If the folder holds something else, or another process fits into it.
        """
        import fcntl

        self.check(config)
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CommandError(
                    f"{self.path}: another process is working on this run; wait for it or stop it"
                ) from error
            existing = self.check(config)
            version = config.version if existing is None else existing.version
            self.write_config(dataclasses.replace(config, version=version))
            yield
        finally:
            os.close(descriptor)

    def write_config(self, config: RunConfig) -> None:
        """Writes what is asked of the run."""
        import yaml

        values = {"format": FORMAT, **dataclasses.asdict(config)}
        write_text(self.config_file, yaml.safe_dump(values, sort_keys=False))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes what came of the run."""
        write_text(self.summary_file, json.dumps(summary, indent=2) + "\n")

    def write_cameras(self, document: Mapping[str, Any]) -> None:
        """Writes the cameras as the fit has refined them."""
        write_text(self.cameras_file, json.dumps(document, indent=2) + "\n")

    def write_rig(self, document: Mapping[str, Any]) -> None:
        """Writes what a fit of a drive has learned about the rig."""
        write_text(self.rig_file, json.dumps(document, indent=2) + "\n")

    def append_metrics(self, values: Mapping[str, int | float]) -> None:
        """Adds a line to `metrics.jsonl`, whole or not at all."""
        line = json.dumps(dict(values)) + "\n"
        with self.metrics_file.open("ab", buffering=0) as file:
            size = file.tell()
            if file.write(line.encode()) < len(line):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.metrics_file))

    def truncate_metrics(self, step: int) -> None:
        """Forgets what `metrics.jsonl` says about later steps than the one restored."""
        if not self.metrics_file.exists():
            return
        kept = []
        for line in self.metrics_file.read_text().splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        write_text(self.metrics_file, "".join(kept))

    def _strange_file(self) -> pathlib.Path | None:
        if not self.path.exists():
            return None
        if not self.path.is_dir():
            return self.path
        # Hidden files: the unfinished ones of a process that was killed, or the desktop's.
        visible = (file for file in self.path.iterdir() if not file.name.startswith("."))
        return min(visible, default=None)


def write_text(file: pathlib.Path, text: str) -> None:
    """Replaces a text file in one step."""
    replace_file(file, lambda temporary: temporary.write_text(text))


def write_image(file: pathlib.Path, pixels: Any) -> None:
    """Replaces a PNG file in one step; `pixels` are 8-bit RGB."""
    from PIL import Image

    replace_file(file, lambda temporary: Image.fromarray(pixels).save(temporary, format="PNG"))


def replace_file(file: pathlib.Path, write: Callable[[pathlib.Path], Any]) -> None:
    """Writes a file or folder under a temporary name beside it and renames it when it is whole.

    Args:
        file: What to write; its folder is made if it does not exist.
        write: Writes what lies at the path it gets.

    Raises:
        OSError: If it cannot be written, with its name.
    """
    # The ending stays: writers of images and videos go by it.
    temporary = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, file)
    except OSError as error:
        error.filename = os.fspath(file)
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def check_space(folder: pathlib.Path, wanted: int) -> None:
    """Asks whether a number of bytes fits before writing starts.

    Raises:
        OSError: If it does not.
    """
    if shutil.disk_usage(folder).free < wanted:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(folder))


def _flat(config: RunConfig) -> dict[str, Any]:
    settings = dict(config.settings)
    for name in CHANGEABLE:
        settings.pop(name, None)
    values = {"data": config.data, "kind": config.kind, **config.reading()}
    for name, value in settings.items():
        if isinstance(value, dict):
            values |= {f"{name}.{part}": entry for part, entry in value.items()}
        else:
            values[name] = value
    return values
