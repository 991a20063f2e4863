"""The layout of instant-ngp and nerfstudio: one `transforms.json` for the whole scene."""

import os
import pathlib
from collections.abc import Sequence

from ._document import listed
from ._frames import Listing, list_frames
from ._hold_out import HELD_OUT_EVERY, hold_out, split_message
from ._image_folders import is_image, without_masks
from ._load import load_capture
from ._reading import Reading
from .capture import Capture
from .errors import CaptureError

_SPELLINGS = ("transforms", "transform")


def whole_file(folder: pathlib.Path) -> pathlib.Path | None:
    """The file that lists a whole scene, in either of its spellings."""
    return _first_file(folder, "")


def split_file(folder: pathlib.Path, split: str) -> pathlib.Path | None:
    """The file of one split (`train`, `test` or `val`), in either of its spellings."""
    return _first_file(folder, f"_{split}")


def read_transforms(file: pathlib.Path, reading: Reading) -> Capture:
    """Reads a transforms file: `transforms.json`, or a file of another name given by the user.

    Held out are the frames of `transforms_test.json` beside it, or every 8th one by file name.

    Args:
        file: the json.
        reading: how to read the images.

    Raises:
        CaptureError: a file cannot be used, or a split is empty.
    """
    return read_splits(file, format="transforms", path=file, messages=[], reading=reading)


def read_splits(
    file: pathlib.Path,
    *,
    format: str,
    path: pathlib.Path,
    messages: Sequence[str],
    reading: Reading,
) -> Capture:
    """Reads the frames to fit from a file and those held out from where the rules say.

    Args:
        file: the json that lists the frames to fit, or all frames.
        format: name of the layout, for the capture.
        path: what the capture is known by.
        messages: what there is to say already.
        reading: how to read the images.

    Raises:
        CaptureError: a file cannot be used, or a split is empty.
    """
    messages = [*messages, *_passed_over(file)]
    listings = list_frames(file, ignore_distortion=reading.ignore_distortion)
    if not listings:
        raise CaptureError(file, "frames", "found no frame", "list at least two frames")
    test_file = split_file(file.parent, "test")
    if test_file is None or test_file.samefile(file):
        train, test = hold_out(listings, file, "frames")
        rule = ""
    else:
        train = listings
        test = list_frames(test_file, ignore_distortion=reading.ignore_distortion)
        rule = test_file.name
        if not test:
            found = "found no frame: the test split is empty"
            advice = f"list at least one, or remove the file to hold out every {HELD_OUT_EVERY}th"
            raise CaptureError(test_file, "frames", found, advice)
        messages += _overlap(train, test)
    messages += _not_listed([*train, *test])
    messages.append(split_message(train, test, rule))
    return load_capture(
        train,
        test,
        format=format,
        path=path,
        root=file.parent,
        messages=messages,
        reading=reading,
    )


def _not_listed(listings: Sequence[Listing]) -> list[str]:
    """A line about images that lie beside those listed."""
    used = {os.path.abspath(listing.image) for listing in listings}
    folders = {listing.image.parent for listing in listings}
    there = [file for folder in folders for file in folder.iterdir() if is_image(file)]
    masks = {os.path.abspath(listing.mask) for listing in listings if listing.mask is not None}
    rest = [file.name for file in without_masks(there) if os.path.abspath(file) not in used | masks]
    return [f"not used, as no frame names them: {listed(sorted(rest))}"] if rest else []


def _overlap(train: Sequence[Listing], test: Sequence[Listing]) -> list[str]:
    images = {listing.image.resolve() for listing in train}
    both = sum(listing.image.resolve() in images for listing in test)
    if not both:
        return []
    return [f"{both} of {len(test)} held-out images are also trained on: they measure nothing"]


def _passed_over(file: pathlib.Path) -> list[str]:
    validation = split_file(file.parent, "val")
    if validation is None or validation.samefile(file):
        return []
    return [f"{validation.name} is not used"]


def _first_file(folder: pathlib.Path, ending: str) -> pathlib.Path | None:
    candidates = [folder / f"{spelling}{ending}.json" for spelling in _SPELLINGS]
    return next((candidate for candidate in candidates if candidate.is_file()), None)
