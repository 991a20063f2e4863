"""Masks beside images: which file says what of an image is to be used."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Sequence

from ._frames import Listing
from ._image_folders import MASK_FOLDERS
from ._images import find_image

# Beside the image, and in the folders of masks; NAME is the image's without extension.
_STYLES = "NAME_mask.png, masks/NAME.png, masks/NAME.jpg.png, masks/NAME_mask.png"
_IMAGES = re.compile(r"images?(_\d+)?")


def with_masks(
    listings: Sequence[Listing], root: pathlib.Path, *, invert: bool
) -> tuple[list[Listing], list[str]]:
    """Finds the masks of images that the capture itself names none for.

    Tried in turn are `NAME_mask.png` beside the image, and in a folder `masks` or `mask` of the
    capture (`masks_4` before it for an image of `images_4`) `NAME.png`, `NAME.jpg.png` and
    `NAME_mask.png`, with the image's sub-folders; any kind of image will do.

    Args:
        listings: Frames of one capture.
        root: The folder of the capture.
        invert: Whether masks mark what is to be ignored, for the message.

    Returns:
        The frames, and lines that say what was found.
    """
    found = [
        listing
        if listing.mask is not None
        else dataclasses.replace(listing, mask=_mask_of(listing.image, root))
        for listing in listings
    ]
    count = sum(listing.mask is not None for listing in found)
    folder = next((root / name for name in MASK_FOLDERS if (root / name).is_dir()), None)
    messages = []
    if count:
        meaning = "0 = use, anything else = ignore" if invert else "0 = ignore, anything else = use"
        messages.append(f"{count} of {len(found)} images have a mask ({meaning})")
    elif folder is not None:
        messages.append(f"no mask in {folder} fits an image: tried {_STYLES}")
    if invert and not count:
        messages.append(f"there is no mask to invert: tried mask_path, {_STYLES}")
    return found, messages


def _mask_of(image: pathlib.Path, root: pathlib.Path) -> pathlib.Path | None:
    mask = find_image(image.parent, f"{image.stem}_mask")
    if mask is not None:
        return mask
    for folder, name in _places(image, root):
        if folder.is_dir():
            stem = name.with_suffix("").as_posix()
            for candidate in (stem, name.as_posix(), f"{stem}_mask"):
                mask = find_image(folder, candidate)
                if mask is not None:
                    return mask
    return None


def _places(image: pathlib.Path, root: pathlib.Path) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """Folders of masks with the name that the image would have in them."""
    if not image.is_relative_to(root):
        return
    name = image.relative_to(root)
    match = _IMAGES.fullmatch(name.parts[0]) if len(name.parts) > 1 else None
    for folder in MASK_FOLDERS:
        if match:
            inside = pathlib.Path(*name.parts[1:])
            if match[1]:
                yield root / (folder + match[1]), inside
            yield root / folder, inside
        yield root / folder, name
