"""The folders `images`, `images_2`, `images_4`, ...: one set of photographs in several sizes."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable

from ._images import EXTENSIONS
from ._intrinsics import Intrinsics
from .errors import CaptureError

MASK_FOLDERS = ("masks", "mask")
_NAME = re.compile(r"images(?:_([1-9]\d*))?")


@dataclasses.dataclass(frozen=True)
class ImageFolder:
    """Where the images of a capture are taken from.

    Attributes:
        path: the folder.
        factor: how many times smaller than the photographs its images are, by its name.
        downscale: how many times smaller than these they have yet to become.
        messages: what there is to say about the choice.
    """

    path: pathlib.Path
    factor: int
    downscale: int
    messages: list[str]

    def fit(
        self,
        intrinsics: Intrinsics,
        image: pathlib.Path,
        size: tuple[int, int],
        error: Callable[[str, str], CaptureError],
    ) -> Intrinsics:
        """The camera of the photograph, for an image of this folder.

        Args:
            intrinsics: of the photograph, as the capture states them.
            image: the file.
            size: its width and height in pixels.
            error: makes the error about the stated size, from what was found and what to do.

        Raises:
            CaptureError: the image has neither the stated size nor, in a folder whose name says
                so, a whole fraction of it.
        """
        stated = intrinsics.width, intrinsics.height
        if size == stated:
            return intrinsics
        # The capture may state the size of the photographs or of any of their smaller copies.
        fractions = self.factor, round(max(stated) / max(size))
        if self.factor > 1 and any(_is_fraction(size, stated, times) for times in fractions):
            return intrinsics.scaled(*size)
        found = f"found {stated[0]} x {stated[1]} but {image.name} has {size[0]} x {size[1]} pixels"
        advice = f"put images of the stated size into {self.path}"
        if size == stated[::-1]:
            advice = "rotate the image for good: EXIF orientation is not applied"
        raise error(found, advice)


def has_images(root: pathlib.Path) -> bool:
    """Whether a folder holds one of these folders."""
    return bool(_folders(root))


def choose_images(
    root: pathlib.Path, downscale: int, complete: Callable[[pathlib.Path], str]
) -> ImageFolder:
    """Chooses the folder to take images from.

    It is `images`, or the largest that is there; `downscale` counts from that one. Where another
    folder holds just the size that is asked for, its images are used as they are.

    Args:
        root: the folder of the capture.
        downscale: how many times smaller the images shall become.
        complete: tells what a folder lacks to be used instead; empty if nothing.

    Raises:
        CaptureError: there is no such folder.
    """
    folders = _folders(root)
    if not folders:
        found = "found no folder images (nor images_2, images_4, ...)"
        raise CaptureError(root, "", found, "copy the photographs into a folder images there")
    first = min(folders)
    messages = []
    if first > 1:
        messages.append(f"there is no folder images: {folders[first].name} is taken for it")
    wanted = folders.get(first * downscale)
    if downscale > 1 and wanted is not None:
        lack = complete(wanted)
        if not lack:
            messages.append(f"images of {wanted.name} are used as they are")
            return ImageFolder(wanted, first * downscale, 1, messages)
        messages.append(f"{wanted.name} is not used: {lack}")
    return ImageFolder(folders[first], first, downscale, messages)


def image_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """All images in a folder and its sub-folders, sorted by path.

    Hidden ones are left out, and so are masks: `NAME_mask.png` of an image `NAME`, and what lies
    in folders `masks` or `mask`.
    """
    return without_masks(
        file
        for file in folder.rglob("*")
        if is_image(file)
        and not any(
            part.startswith(".") or part in MASK_FOLDERS
            for part in file.relative_to(folder).parts[:-1]
        )
    )


def is_image(file: pathlib.Path) -> bool:
    """Whether a file is an image by its name."""
    return file.suffix.lower() in EXTENSIONS and not file.name.startswith(".")


def without_masks(files: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """Images sorted by path, without those that are masks of others by their names."""
    files = list(files)
    stems = {file.with_suffix("") for file in files}
    return sorted(
        file
        for file in files
        if not file.stem.endswith("_mask")
        or file.with_name(file.stem.removesuffix("_mask")) not in stems
    )


def _folders(root: pathlib.Path) -> dict[int, pathlib.Path]:
    """The folders by how many times smaller their images are."""
    matches = {path: _NAME.fullmatch(path.name) for path in root.glob("images*") if path.is_dir()}
    return {int(match[1] or 1): path for path, match in sorted(matches.items()) if match}


def _is_fraction(size: tuple[int, int], whole: tuple[int, int], times: int) -> bool:
    """Whether an image is this many times smaller, either way of rounding."""
    return times > 1 and all(abs(a - b / times) < 1 for a, b in zip(size, whole, strict=True))
