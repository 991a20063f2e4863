"""Frames before and after their images are decoded, and those that a transforms file lists."""

import dataclasses
import pathlib

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32

from ..sensors import Frame, PinholeCamera
from ._document import Fields, load_document
from ._images import (
    EXTENSIONS,
    find_image,
    image_size,
    read_depth,
    read_image,
    read_mask,
    shrink_color,
    shrink_depth,
    shrink_mask,
)
from ._intrinsics import Intrinsics, resolve_intrinsics, shared_pixel_fields
from ._poses import camera_to_world
from ._reading import Reading
from .errors import CaptureError


@dataclasses.dataclass(frozen=True)
class Listing:
    """One frame of a capture, checked, with its files found but not decoded."""

    fields: Fields  # Where the capture lists it.
    name: str  # Relative and without `..`, whatever the file says.
    image: pathlib.Path
    mask: pathlib.Path | None
    camera_to_world: Float[np.ndarray, "4 4"]  # OpenGL axes: x right, y up, z back.
    intrinsics: Intrinsics
    depth: pathlib.Path | None = None


def list_frames(file: pathlib.Path, *, ignore_distortion: bool = False) -> list[Listing]:
    """Reads and checks what a transforms file lists, in its order, decoding no image.

    Args:
        file: the json; names in it are relative to its folder.
        ignore_distortion: whether the images are undistorted already.

    Returns:
        One entry for each frame; none for an empty list of frames.

    Raises:
        CaptureError: the file contradicts itself or the images, or an image is missing.
    """
    document = load_document(file)
    listings = [
        _listing(entry, document, ignore_distortion) for entry in document.objects("frames")
    ]
    _check_shared_intrinsics(listings, document)
    return listings


def frame_name(name: str, image: pathlib.Path) -> str:
    """The name that a capture gives an image, as a plain relative path.

    Args:
        name: as it stands in the capture: with `/` or Windows' backslashes, perhaps absolute.
        image: the file that was found for it, whose extension is the right one.
    """
    path = pathlib.PureWindowsPath(name)  # Reads `/` and `\\` alike.
    folders = [part for part in path.relative_to(path.anchor).parts[:-1] if part != ".."]
    return "/".join([*folders, image.name])


def _listing(entry: Fields, document: Fields, ignore_distortion: bool) -> Listing:
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
            entry,
            document,
            width=width,
            height=height,
            image=frame_name(name, image),
            ignore_distortion=ignore_distortion,
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


@dataclasses.dataclass(frozen=True, eq=False)
class Pixels:
    """What the files of a frame hold, at its final size."""

    color: Float32[np.ndarray, "height width 3"]
    alpha: Float32[np.ndarray, "height width"] | None
    mask: Bool[np.ndarray, "height width"] | None
    depth: Float32[np.ndarray, "height width"] | None = None

    @property
    def transparent(self) -> bool:
        """Whether something is cut out."""
        return self.alpha is not None and bool((self.alpha < 1).any())

    def frame(self, camera: PinholeCamera, name: str, transparent: bool) -> Frame:
        """These pixels as a frame of a capture whose frames all have alpha, or none of them."""
        alpha = self.alpha_for(transparent)
        return Frame(camera, self.color, alpha, self.mask, name, self.depth)

    def alpha_for(self, transparent: bool) -> Float32[np.ndarray, "height width"] | None:
        """The alpha in a capture whose frames all have one, or none of them."""
        if not transparent:
            return None
        return np.ones(self.color.shape[:2], np.float32) if self.alpha is None else self.alpha


def final_size(listing: Listing, downscale: int) -> tuple[int, int]:
    """Width and height in pixels that the image of a frame ends with."""
    return listing.intrinsics.width // downscale, listing.intrinsics.height // downscale


def pixel_bytes(listing: Listing, downscale: int) -> int:
    """Bytes that a frame takes at most: colour, alpha and depth in float32, and a mask."""
    width, height = final_size(listing, downscale)
    return width * height * (16 + (listing.mask is not None) + 4 * (listing.depth is not None))


def read_pixels(listing: Listing, reading: Reading) -> Pixels:
    """Decodes the files of a frame.

    Raises:
        CaptureError: a file cannot be used.
    """
    size = listing.intrinsics.width, listing.intrinsics.height
    color, alpha = read_image(listing.image)
    if color.shape[:2] != size[::-1]:
        found = (
            f"the image has {color.shape[1]} x {color.shape[0]} pixels, not {size[0]} x {size[1]}"
        )
        raise CaptureError(listing.image, "", found, "it has changed: open the capture again")
    mask = None if listing.mask is None else _mask(listing, listing.mask, size)
    if mask is not None and reading.mask_invert:
        mask = ~mask
    depth = None if listing.depth is None else _depth(listing.depth, size)
    if reading.downscale > 1:
        width, height = final_size(listing, reading.downscale)
        color, alpha = shrink_color(color, alpha, width=width, height=height)
        mask = None if mask is None else shrink_mask(mask, width=width, height=height)
        depth = None if depth is None else shrink_depth(depth, width=width, height=height)
    return Pixels(color, alpha, mask, depth)


def _depth(file: pathlib.Path, size: tuple[int, int]) -> Float32[np.ndarray, "height width"]:
    depth = read_depth(file)
    height, width = depth.shape
    if (width, height) != size:
        found = f"the depth map has {width} x {height} pixels, its image {size[0]} x {size[1]}"
        raise CaptureError(file, "", found, "give depths of the pixels of the colour image")
    return depth


def _mask(
    listing: Listing, file: pathlib.Path, size: tuple[int, int]
) -> Bool[np.ndarray, "height width"]:
    mask = read_mask(file)
    height, width = mask.shape
    if (width, height) == size:
        return mask
    # A mask of the photograph does for its smaller copy.
    times = width / size[0]
    if times > 1 and abs(height / times - size[1]) < 1:
        return shrink_mask(mask, width=size[0], height=size[1])
    found = f"the mask has {width} x {height} pixels but {listing.name} has {size[0]} x {size[1]}"
    advice = "give a mask of the size of its image"
    if listing.fields.has("mask_path"):
        raise listing.fields.error("mask_path", found, advice)
    raise CaptureError(file, "", found, advice)


def frame_camera(listing: Listing, downscale: int, distorted: bool) -> PinholeCamera:
    """The camera of a frame for its image at the final size; `distorted` to have a lens."""
    full = listing.intrinsics
    camera = PinholeCamera.from_opengl(
        jnp.asarray(listing.camera_to_world, jnp.float32),
        jnp.asarray(full.focal, jnp.float32),
        jnp.asarray(full.principal, jnp.float32),
        full.width,
        full.height,
        distortion=jnp.asarray(full.distortion, jnp.float32) if distorted else None,
    )
    return camera if downscale == 1 else camera.scaled(*final_size(listing, downscale))
