"""How any fit runs in its folder: saved now and then, reported on, stopped by signals."""

import contextlib
import dataclasses
import math
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from ..io import Checkpoints
from .errors import CommandError, Interrupted
from .progress import Progress
from .run_folder import RunConfig, RunFolder, check_space

State = TypeVar("State")


@dataclasses.dataclass(frozen=True)
class Hooks:
    """What a fit calls while it runs; see `jaxrec.train.fit`."""

    on_step: Callable[[int, Any], None]
    on_progress: Callable[[int, Mapping[str, float]], None]
    should_stop: Callable[[], bool]

    def as_arguments(self) -> dict[str, Any]:
        """The hooks by the names of the arguments that take them."""
        return {
            "on_step": self.on_step,
            "on_progress": self.on_progress,
            "should_stop": self.should_stop,
        }


@dataclasses.dataclass(frozen=True)
class Session:
    """A fit on its way from one step to another.

    Attributes:
        folder: Where everything is written; claimed by this process.
        steps: Step at which it ends.
        save_every: Steps between checkpoints.
        resume: What to type to go on, told when a signal interrupts.
    """

    folder: RunFolder
    steps: int
    save_every: int
    resume: str

    def run(
        self,
        state: State,
        saved: int | None,
        seconds: float,
        work: Callable[[State, Hooks], State],
        record: Callable[[State], dict[str, Any]],
    ) -> tuple[State, float]:
        """Fits from a state to the end, or until a signal comes.

        Args:
            state: Where to start, with its `step`; donated.
            saved: Step of the newest checkpoint, if there is one.
            seconds: How long it took to get there.
            work: Fits from a state with hooks, and returns the last state.
            record: What stands beside a state in a checkpoint.

        Returns:
            The last state, which is saved, and how long all of it took in seconds.

        Raises:
            CommandError: If the loss is not finite.
            Interrupted: If SIGINT or SIGTERM came; the state is saved.
        """
        folder, checkpoints = self.folder, Checkpoints(self.folder.checkpoints)
        began = time.monotonic() - seconds
        at: Any = state
        progress = Progress(self.steps, int(at.step))
        newest, spent = -1 if saved is None else saved, seconds

        def save(step: int, state: Any) -> None:
            nonlocal newest, spent
            spent = time.monotonic() - began
            # A save is not begun where it does not fit: the one before it stays the newest.
            check_space(folder.path, sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + 2**16)
            checkpoints.save(step, state, {**record(state), "seconds": spent})
            newest = step

        def on_step(step: int, state: Any) -> None:
            if step % self.save_every == 0:
                save(step, state)

        def on_progress(step: int, metrics: Mapping[str, float]) -> None:
            if not math.isfinite(metrics["loss"]):
                raise CommandError(
                    f"{folder.path}: the loss is not finite at step {step}; checkpoints up to step "
                    f"{max(newest, 0)} are kept: fit into another --out with lower --rates"
                )
            elapsed = round(time.monotonic() - began, 3)
            folder.append_metrics({"step": step, **metrics, "seconds": elapsed})
            progress.show(step, metrics)

        with contextlib.closing(progress), _signals() as received:
            hooks = Hooks(on_step, on_progress, lambda: bool(received))
            state = work(state, hooks)
            last: Any = state
            step = int(last.step)
            if step != newest:
                save(step, state)
        if received:
            raise Interrupted.at_step(received[0], step, self.resume)
        return state, spent


def begun_config(out: pathlib.Path, kind: str) -> RunConfig | None:
    """Reads what was asked of the run in a folder, or None if no fit of the kind has begun there.

    Raises:
        CommandError: If it cannot be read.
    """
    run = RunFolder(out)
    config = run.read_config() if run.config_file.exists() else None
    return config if config is not None and config.kind == kind else None


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM; the second one has its usual, immediate effect."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    usual = {number: signal.getsignal(number) for number in numbers}

    def receive(number: int, frame: object) -> None:
        received.append(number)
        for each, handler in usual.items():
            signal.signal(each, handler)

    for number in numbers:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def as_command_error(place: pathlib.Path | None = None) -> Iterator[None]:
    """Turns the library's complaint about a value into one line."""
    try:
        yield
    except ValueError as error:
        where = "" if place is None else f"{place}: "
        raise CommandError(f"{where}{error}") from error
