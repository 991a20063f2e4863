"""Image files as float arrays: decoding, alpha, masks, and resizing by area."""

import contextlib
import io
import math
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Float32

from .errors import CaptureError

if TYPE_CHECKING:
    from PIL import Image

# Tried in this order where a file is named without its extension.
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")

_GIT_LFS_HEADER = b"version https://git-lfs"
_COPY_AGAIN = "copy or export it again, or remove its frame"


def find_image(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """The file that a capture names, or None if there is none.

    Args:
        folder: what relative names are relative to.
        name: path with `/` or Windows' backslashes, with or without an extension; the extension
            that is given may differ in case from the one on the disk.
    """
    file = os.path.join(folder, name.replace("\\", "/"))
    stem, extension = os.path.splitext(file)
    swapped = [stem + extension.lower(), stem + extension.upper()]
    appended = [file + end for known in EXTENSIONS for end in (known, known.upper())]
    # Not pathlib's is_file, which raises for a name too long and for a folder without permission.
    candidates = filter(os.path.isfile, (file, *swapped, *appended))
    return next(map(pathlib.Path, candidates), None)


def image_size(file: pathlib.Path) -> tuple[int, int]:
    """Width and height in pixels as stored, from the header of the file alone.

    Raises:
        CaptureError: the file is no image.
    """
    with _opened(file) as picture:
        return picture.size


def read_image(
    file: pathlib.Path,
) -> tuple[Float[np.ndarray, "height width 3"], Float[np.ndarray, "height width"] | None]:
    """Decodes an image to straight (not premultiplied) colour in [0, 1], and alpha if it has any.

    Gray, gray with alpha, palette, CMYK and 16-bit images become RGB; a transparent palette entry
    or colour becomes alpha. Values stay in the encoding of the file (sRGB as a rule). The EXIF
    orientation is not applied, since poses and intrinsics describe the pixels as stored.

    Raises:
        CaptureError: the file is no image, is truncated, or holds values without a known range.
    """
    return decode_image(file)


def decode_image(
    file: pathlib.Path, encoded: bytes | None = None
) -> tuple[Float[np.ndarray, "height width 3"], Float[np.ndarray, "height width"] | None]:
    """As `read_image`, from wherever the encoded image is.

    Args:
        file: What to call it in errors.
        encoded: What to decode, or none for what is in the file.

    Raises:
        CaptureError: as `read_image`.
    """
    with _opened(file, encoded) as picture:
        if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PNG"):
            gray = np.asarray(picture).astype(np.float32) / np.float32(65535)
            return np.repeat(gray[..., None], 3, axis=2), None
        if picture.mode in ("I", "F"):
            found = f"pixels of type {picture.mode} (32 bits), whose range is not known"
            raise CaptureError(file, "", found, "save the image with 8 or 16 bits per channel")
        transparent = _transparent(picture)
        pixels = np.asarray(picture.convert("RGBA" if transparent else "RGB"))
    values = pixels.astype(np.float32) / np.float32(255)
    if not transparent:
        return values, None
    return np.ascontiguousarray(values[..., :3]), np.ascontiguousarray(values[..., 3])


def has_alpha(file: pathlib.Path) -> bool:
    """Whether an image may be transparent, from the header of the file alone.

    Raises:
        CaptureError: the file is no image.
    """
    with _opened(file) as picture:
        return _transparent(picture)


def read_mask(file: pathlib.Path) -> Bool[np.ndarray, "height width"]:
    """Decodes a mask: True (use the pixel) where any colour of it is not 0.

    So a mask of 0 and 1 means the same as one of 0 and 255. What JPEG and WebP keep of a 0 is
    not exact: there a pixel counts if it is brighter than half the brightest.

    Raises:
        CaptureError: the file is no image, or is truncated.
    """
    with _opened(file) as picture:
        wide = picture.mode.startswith("I") or picture.mode == "F"
        values = np.asarray(picture if wide else picture.convert("RGB")).astype(np.float32)
        inexact = picture.format in ("JPEG", "MPO", "WEBP")
    if not wide:
        values = values.max(axis=-1)
    return values > (0.5 * values.max(initial=0) if inexact else 0)


def read_depth(file: pathlib.Path) -> Float32[np.ndarray, "height width"]:
    """Decodes a depth map in whole millimetres to metres, 0 where nothing was measured.

    Cameras write 0 there, or the largest number of 16 bits.

    Raises:
        CaptureError: the file is no image, is truncated, or is no image of integers.
    """
    with _opened(file) as picture:
        if not picture.mode.startswith("I"):
            found = f"the depth map holds {picture.mode} of 8 bits"
            raise CaptureError(file, "", found, "wanted one channel of 16 bits, in millimetres")
        values = np.asarray(picture).astype(np.float32)
    return np.where(values == 2**16 - 1, np.float32(0), values / np.float32(1000))


def shrink_depth(
    depth: Float32[np.ndarray, "height width"], *, width: int, height: int
) -> Float32[np.ndarray, "h w"]:
    """Resizes a depth map by picking: a mean over an edge is the depth of nothing."""
    rows = ((np.arange(height) + 0.5) * depth.shape[0] / height).astype(np.int64)
    columns = ((np.arange(width) + 0.5) * depth.shape[1] / width).astype(np.int64)
    return np.ascontiguousarray(depth[rows[:, None], columns])


def shrink_color(
    color: Float[np.ndarray, "height width 3"],
    alpha: Float[np.ndarray, "height width"] | None,
    *,
    width: int,
    height: int,
) -> tuple[Float[np.ndarray, "h w 3"], Float[np.ndarray, "h w"] | None]:
    """Resizes by area average, of premultiplied colour: what is transparent lends no colour.

    Args:
        color: straight colour.
        alpha: opacity, or None.
        width: new width, at most the old one.
        height: new height, at most the old one.

    Returns:
        Straight colour (black where alpha is 0) and alpha.
    """
    if alpha is None:
        return np.clip(area_average(color, width=width, height=height), 0, 1), None
    premultiplied = np.concatenate([color * alpha[..., None], alpha[..., None]], axis=2)
    mean = np.clip(area_average(premultiplied, width=width, height=height), 0, 1)
    color, alpha = mean[..., :3], np.ascontiguousarray(mean[..., 3])
    straight = color / np.where(alpha > 0, alpha, np.float32(1))[..., None]
    return np.clip(straight, 0, 1), alpha


def shrink_mask(
    mask: Bool[np.ndarray, "height width"], *, width: int, height: int
) -> Bool[np.ndarray, "h w"]:
    """Resizes a mask; a pixel is used only if all that it covers is used."""
    share = area_average(mask.astype(np.float32)[..., None], width=width, height=height)
    return share[..., 0] > 1 - 1e-4


def area_average(
    image: Float[np.ndarray, "height width channels"], *, width: int, height: int
) -> Float[np.ndarray, "h w channels"]:
    """Mean of the image over the rectangle of each new pixel, whole or fractional."""
    rows = _average_rows(image, height)
    return np.ascontiguousarray(_average_rows(rows.swapaxes(0, 1), width).swapaxes(0, 1))


def _average_rows(image: np.ndarray, count: int) -> np.ndarray:
    size = image.shape[0]
    if count == size:
        return image
    # The divisions are exact where an edge falls on a pixel border.
    edges = np.arange(count + 1) * size / count
    first = np.floor(edges[:-1]).astype(np.int64)
    total = np.zeros((count, *image.shape[1:]), image.dtype)
    for offset in range(math.ceil(size / count) + 1):
        row = first + offset
        overlap = np.minimum(row + 1, edges[1:]) - np.maximum(row, edges[:-1])
        weight = (np.clip(overlap, 0, None) * count / size).astype(image.dtype)
        if weight.any():
            total += weight[:, None, None] * image[np.minimum(row, size - 1)]
    return total


@contextlib.contextmanager
def _opened(file: pathlib.Path, encoded: bytes | None = None) -> "Iterator[Image.Image]":
    """Opens an image; whatever goes wrong while it is decoded inside becomes a CaptureError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file if encoded is None else io.BytesIO(encoded)) as picture:
            yield picture
    except CaptureError:
        raise
    except UnidentifiedImageError as error:
        inside = "an image in it is of no known format"
        found = _not_an_image(file) if encoded is None else inside
        raise CaptureError(file, "", found, _COPY_AGAIN) from error
    # Pillow's plugins let struct, zlib, index and syntax errors of a damaged file through.
    except Exception as error:
        found = f"the image cannot be decoded ({error})"
        raise CaptureError(file, "", found, _COPY_AGAIN) from error


def _transparent(picture: "Image.Image") -> bool:
    bands = picture.getbands()
    return "A" in bands or "a" in bands or "transparency" in picture.info


def _not_an_image(file: pathlib.Path) -> str:
    with open(file, "rb") as stream:
        start = stream.read(len(_GIT_LFS_HEADER))
    if not start:
        return "the file is empty (0 bytes)"
    if start == _GIT_LFS_HEADER:
        return "the file is a Git LFS pointer, not the image itself"
    return "not an image of a known format (PNG, JPEG, WebP, BMP, TIFF)"
