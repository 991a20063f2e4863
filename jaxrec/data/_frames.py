"""Frames before and after their images are decoded, and those that a transforms file lists."""

import concurrent.futures
import dataclasses
import os
import pathlib
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ..sensors import Frame, PinholeCamera
from ._document import Fields, load_document
from ._images import (
    EXTENSIONS,
    find_image,
    image_size,
    read_image,
    read_mask,
    shrink_color,
    shrink_mask,
)
from ._intrinsics import Intrinsics, resolve_intrinsics, shared_pixel_fields
from ._poses import camera_to_world
from .errors import CaptureError

# Decoders release the interpreter lock; more threads than this only cost memory.
_MOST_THREADS = 8


@dataclasses.dataclass(frozen=True)
class Listing:
    """One frame of a capture, checked, with its files found but not decoded."""

    fields: Fields  # Where the capture lists it.
    name: str  # Relative and without `..`, whatever the file says.
    image: pathlib.Path
    mask: pathlib.Path | None
    camera_to_world: Float[np.ndarray, "4 4"]  # OpenGL axes: x right, y up, z back.
    intrinsics: Intrinsics


def list_frames(file: pathlib.Path) -> list[Listing]:
    """Reads and checks what a transforms file lists, in its order, decoding no image.

    Args:
        file: the json; names in it are relative to its folder.

    Returns:
        One entry for each frame; none for an empty list of frames.

    Raises:
        CaptureError: the file contradicts itself or the images, or an image is missing.
    """
    document = load_document(file)
    listings = [_listing(entry, document) for entry in document.objects("frames")]
    _check_shared_intrinsics(listings, document)
    return listings


def load_frames(listings: Sequence[Listing], *, downscale: int = 1) -> list[Frame]:
    """Decodes the images of listed frames and gives them their cameras.

    Poses leave here as `world_from_camera` with OpenCV axes.

    Args:
        listings: frames of one capture.
        downscale: whole number; images become this many times smaller by area average, rounded
            down, and intrinsics follow by the exact ratio.

    Raises:
        CaptureError: an image or a mask cannot be used, or is too small for `downscale`.
    """
    for listing in listings:
        width, height = listing.intrinsics.width, listing.intrinsics.height
        if downscale > min(width, height):
            found = f"{width} x {height} pixels cannot be made {downscale} times smaller"
            advice = f"downscale by {min(width, height)} at most"
            raise CaptureError(listing.image, "", found, advice)
    # A lens for all or for none, so that the cameras of a capture can be stacked.
    distorted = any(any(listing.intrinsics.distortion) for listing in listings)
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        pixels = pool.map(lambda listing: _read_pixels(listing, downscale), listings)
        return [
            Frame(_camera(listing, image, distorted), image, alpha, mask, listing.name)
            for listing, (image, alpha, mask) in zip(listings, pixels, strict=True)
        ]


def frame_name(name: str, image: pathlib.Path) -> str:
    """The name that a capture gives an image, as a plain relative path.

    Args:
        name: as it stands in the capture: with `/` or Windows' backslashes, perhaps absolute.
        image: the file that was found for it, whose extension is the right one.
    """
    path = pathlib.PureWindowsPath(name)  # Reads `/` and `\\` alike.
    folders = [part for part in path.relative_to(path.anchor).parts[:-1] if part != ".."]
    return "/".join([*folders, image.name])


def _listing(entry: Fields, document: Fields) -> Listing:
    name = entry.text("file_path")
    if name is None:
        raise entry.error("file_path", "found nothing", "name the image of this frame")
    pose = camera_to_world(entry)
    image = _find(entry, "file_path", name)
    mask_name = entry.text("mask_path")
    width, height = image_size(image)
    return Listing(
        fields=entry,
        name=frame_name(name, image),
        image=image,
        mask=None if mask_name is None else _find(entry, "mask_path", mask_name),
        camera_to_world=pose,
        intrinsics=resolve_intrinsics(
            entry, document, width=width, height=height, image=frame_name(name, image)
        ),
    )


def _find(entry: Fields, key: str, name: str) -> pathlib.Path:
    file = find_image(entry.file.parent, name)
    if file is None:
        endings = ", ".join(EXTENSIONS)
        found = f"no image {name!r} in {entry.file.parent} (nor with {endings} added)"
        raise entry.error(key, found, "copy the image there, or remove this frame")
    return file


def _check_shared_intrinsics(listings: list[Listing], document: Fields) -> None:
    """Intrinsics in pixels cannot be those of images of several sizes."""
    first: dict[str, Listing] = {}
    for listing in listings:
        for key in shared_pixel_fields(listing.fields, document):
            other = first.setdefault(key, listing)
            size, other_size = (
                f"{part.intrinsics.width} x {part.intrinsics.height}" for part in (listing, other)
            )
            if size != other_size:
                raise document.error(
                    key,
                    f"shared by {other.name} ({other_size}) and {listing.name} ({size})",
                    "give each frame its own w, h, fl_x, fl_y, cx and cy, or images of one size",
                )


def _read_pixels(listing: Listing, downscale: int):
    """Colour, alpha and mask of a frame at their final size."""
    size = listing.intrinsics.width, listing.intrinsics.height
    color, alpha = read_image(listing.image)
    mask = None if listing.mask is None else _mask(listing, listing.mask, size)
    if downscale > 1:
        width, height = size[0] // downscale, size[1] // downscale
        color, alpha = shrink_color(color, alpha, width=width, height=height)
        mask = None if mask is None else shrink_mask(mask, width=width, height=height)
    return color, alpha, mask


def _mask(
    listing: Listing, file: pathlib.Path, size: tuple[int, int]
) -> Bool[np.ndarray, "height width"]:
    mask = read_mask(file)
    if mask.shape != (size[1], size[0]):
        raise listing.fields.error(
            "mask_path",
            f"the mask has {mask.shape[1]} x {mask.shape[0]} pixels but {listing.name} has "
            f"{size[0]} x {size[1]}",
            "give a mask of the size of its image",
        )
    return mask


def _camera(
    listing: Listing, image: Float[np.ndarray, "height width 3"], distorted: bool
) -> PinholeCamera:
    """The camera of the image at its final size."""
    full = listing.intrinsics
    camera = PinholeCamera.from_opengl(
        jnp.asarray(listing.camera_to_world, jnp.float32),
        jnp.asarray(full.focal, jnp.float32),
        jnp.asarray(full.principal, jnp.float32),
        full.width,
        full.height,
        distortion=jnp.asarray(full.distortion, jnp.float32) if distorted else None,
    )
    height, width, _ = image.shape
    if (width, height) == (full.width, full.height):
        return camera
    return camera.scaled(width, height)
