"""The frames of a capture that does not say which to hold out, and the rule for that."""

import pathlib
from collections.abc import Callable, Sequence

from ._frames import Listing
from ._load import Points, load_capture
from ._reading import Reading
from .capture import Capture
from .errors import CaptureError

HELD_OUT_EVERY = 8


def hold_out(
    listings: Sequence[Listing], file: pathlib.Path, field: str
) -> tuple[list[Listing], list[Listing]]:
    """Splits frames into those to fit and those held out: the 1st, 9th, 17th, ... by name.

    Args:
        listings: all frames of the capture, at least one.
        file: what lists them, for the error.
        field: the place in it, for the error.

    Raises:
        CaptureError: there is one frame only.
    """
    if len(listings) == 1:
        found = "found 1 frame, which is held out to measure with"
        raise CaptureError(file, field, found, "list at least two frames")
    ordered = sorted(listings, key=lambda listing: listing.name)
    train = [listing for index, listing in enumerate(ordered) if index % HELD_OUT_EVERY]
    return train, ordered[::HELD_OUT_EVERY]


def split_message(train: Sequence[Listing], test: Sequence[Listing], rule: str = "") -> str:
    """The line that says how the split was made; without a rule, by `hold_out`."""
    rule = rule or f"every {HELD_OUT_EVERY}th by file name"
    return f"{len(train)} frames to fit, {len(test)} held out ({rule})"


def unsplit_capture(
    listings: Sequence[Listing],
    file: pathlib.Path,
    *,
    format: str,
    path: pathlib.Path,
    root: pathlib.Path,
    messages: Sequence[str],
    reading: Reading,
    points: Callable[[Sequence[Listing]], Points | None] = lambda train: None,
) -> Capture:
    """Decodes the frames of a capture of which every 8th is held out.

    Args:
        listings: all frames, at least one.
        file: what lists them.
        format: name of the layout.
        path: what the capture is known by.
        root: the folder of the capture, where masks are looked for.
        messages: what there is to say already.
        reading: how to read the images.
        points: what the capture knows of the scene's shape from the frames to fit.

    Raises:
        CaptureError: there is one frame only, or an image cannot be used.
    """
    train, test = hold_out(listings, file, "")
    return load_capture(
        train,
        test,
        format=format,
        path=path,
        root=root,
        messages=[*messages, split_message(train, test)],
        reading=reading,
        points=points(train),
    )
