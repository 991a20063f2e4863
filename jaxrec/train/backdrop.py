"""Which of the ways to fill the space behind a scene a fit uses."""

import dataclasses
from typing import Literal

from ._check import want


@dataclasses.dataclass(frozen=True)
class Backdrop:
    """What is behind the spheres."""

    kind: Literal["constant", "random", "learned", "environment", "picture"] = "random"
    """The colour `background`; in training a new colour for each view, so that opacity is learned;
    one learned colour; a learned equirectangular picture; or a given one, which stays."""
    rows: int = 64
    """Of the equirectangular picture, over 180 degrees."""
    columns: int = 128
    """Of the equirectangular picture, over 360 degrees."""
    file: str = ""
    """Image to start from, or to keep; resized to rows and columns."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        kinds = ("constant", "random", "learned", "environment", "picture")
        want(self.kind in kinds, "backdrop.kind", self.kind, "one of " + ", ".join(kinds))
        want(self.rows >= 1, "backdrop.rows", self.rows, ">= 1")
        want(self.columns >= 1, "backdrop.columns", self.columns, ">= 1")
        if self.kind == "picture":
            want(bool(self.file), "backdrop.file", "none", "an image for the kind picture")
        if self.file:
            kinds = ("environment", "picture")
            want(
                self.kind in kinds,
                "backdrop.kind",
                self.kind,
                "environment or picture, to use a file",
            )

    @property
    def shape(self) -> tuple[int, int] | None:
        """Rows and columns of what a model holds; None if it holds nothing."""
        if self.kind in ("constant", "random"):
            return None
        return (1, 1) if self.kind == "learned" else (self.rows, self.columns)
