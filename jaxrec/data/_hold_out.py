"""The frames of a capture that does not say which to hold out, and the rule for that."""

import pathlib
from collections.abc import Sequence

from ._frames import Listing, load_frames
from .capture import Capture, PointCloud, make_capture
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
    messages: Sequence[str],
    downscale: int,
    points: PointCloud | None = None,
) -> Capture:
    """Decodes the frames of a capture of which every 8th is held out.

    Args:
        listings: all frames, at least one.
        file: what lists them.
        format: name of the layout.
        path: what the capture is known by.
        messages: what there is to say already.
        downscale: whole number; images become this many times smaller.
        points: what the capture knows of the scene's shape.

    Raises:
        CaptureError: there is one frame only, or an image cannot be used.
    """
    train, test = hold_out(listings, file, "")
    frames = load_frames([*train, *test], downscale=downscale)
    return make_capture(
        frames[: len(train)],
        frames[len(train) :],
        format=format,
        path=path,
        messages=[*messages, split_message(train, test)],
        points=points,
    )
