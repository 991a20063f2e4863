"""What a command tells the person who typed it when it cannot go on."""

import errno
import os
import signal


class CommandError(Exception):
    """A command cannot do what was asked. The text is one line that says what to do."""


class Interrupted(Exception):
    """A signal ended a fit after its state was saved.

    Attributes:
        exit_code: What a shell reports for this signal, 128 + its number.
    """

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + number

    @classmethod
    def at_step(cls, number: int, step: int, command: str) -> "Interrupted":
        """Describes a fit that was saved at a step and goes on with `command`."""
        name = signal.Signals(number).name
        return cls(number, f"{name}: saved step {step}; to go on: {command}")


def describe(error: BaseException) -> str | None:
    """Returns the one line that explains an error, or None if it is a defect of jaxrec."""
    from ..data import CaptureError
    from ..io import CheckpointError

    if out_of_space(error):
        place = getattr(error, "filename", None) or _one_line(error).split(" (")[0]
        return f"{place}: no space left on the disk; free some and type the same command again"
    if isinstance(error, CommandError | CaptureError | CheckpointError):
        return _one_line(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or _one_line(error)
        return f"{place}{reason}; check the path and its permissions"
    return None


def out_of_space(error: BaseException | None) -> bool:
    """Tells whether a full disk or an exhausted quota is the root of an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # Storage libraries wrap the system's own words in errors of other types.
        if os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
