"""The one error that a reader raises: a capture that cannot be used as it is."""

import os


class CaptureError(ValueError):
    """A file of a capture is missing, unreadable, or contradicts itself or another one.

    Its text is always a single line: the file, the field, what was found, and what to do.

    Attributes:
        file: the file or folder that has to change.
        field: the place in the file, such as `frames[3].fl_x`; empty for the whole file.
        found: what the file holds.
        advice: what was wanted, or what to do about it.
    """

    def __init__(self, file: str | os.PathLike[str], field: str, found: str, advice: str):
        super().__init__(file, field, found, advice)
        self.file = os.fspath(file)
        self.field = field
        self.found = found
        self.advice = advice

    def __str__(self) -> str:
        place = f"{self.file}: {self.field}" if self.field else self.file
        return " ".join(f"{place}: {self.found}; {self.advice}".split())
