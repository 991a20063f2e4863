"""Listed frames become a capture: masks found, positions made small, images decoded."""

import concurrent.futures
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from ..sensors import Frame
from ._frames import Listing, frame_camera, pixel_bytes, read_pixels
from ._images import has_alpha
from ._masks import with_masks
from ._reading import Reading
from .capture import Capture, PointCloud
from .errors import CaptureError
from .stored_frames import PixelStore, StoredFrame

# Decoders release the interpreter lock; more threads than this only cost memory.
_MOST_THREADS = 8
# Cameras this many times farther from the origin than from each other are moved there: float32
# would lose more than 1e-5 of their distances, a hundredth of a pixel.
_FAR = 100


class Points(NamedTuple):
    """Points as a capture states them, with its coordinates; colours in [0, 1]."""

    positions: Float[np.ndarray, "points 3"]
    colors: Float32[np.ndarray, "points 3"]


def load_capture(
    train: Sequence[Listing],
    test: Sequence[Listing],
    *,
    format: str,
    path: pathlib.Path,
    root: pathlib.Path,
    messages: Sequence[str],
    reading: Reading,
    points: Points | None = None,
) -> Capture:
    """Gives listed frames their pixels and cameras.

    Poses leave here as `world_from_camera` with OpenCV axes. An alpha that is opaque everywhere
    says nothing and is dropped; where some frames are cut out, the others become opaque ones.

    Args:
        train: frames to fit.
        test: frames held out.
        format: name of the layout.
        path: what the capture is known by.
        root: the folder of the capture, where masks are looked for.
        messages: what there is to say already.
        reading: how to read the images.
        points: what the capture knows of the scene's shape.

    Raises:
        CaptureError: an image or a mask cannot be used, or is too small to be made smaller.
    """
    listings, about_masks = with_masks([*train, *test], root, invert=reading.mask_invert)
    _check_downscale(listings, reading.downscale)
    origin = _origin([listing.camera_to_world[:3, 3] for listing in listings])
    messages = [*messages, *about_masks]
    if any(origin):
        place = ", ".join(f"{value:.0f}" for value in origin)
        messages.append(f"the cameras are far from the origin: ({place}) is subtracted from all")
    # A lens for all or for none, so that the cameras of a capture can be stacked.
    distorted = any(any(listing.intrinsics.distortion) for listing in listings)
    listings = [_moved(listing, origin) for listing in listings]
    cameras = [frame_camera(listing, reading.downscale, distorted) for listing in listings]
    needed = sum(pixel_bytes(listing, reading.downscale) for listing in listings)
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    if reading.image_memory is None or needed <= reading.image_memory:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            pixels = list(pool.map(lambda listing: read_pixels(listing, reading), listings))
        transparent = any(part.transparent for part in pixels)
        frames: list[Frame] = [
            part.frame(camera, listing.name, transparent)
            for camera, part, listing in zip(cameras, pixels, listings, strict=True)
        ]
    else:
        messages.append(
            f"{len(listings)} images take {size_text(needed)} of memory, more than "
            f"{size_text(reading.image_memory)}: they are read from their files as they are needed"
        )
        transparent = any(
            read_pixels(listing, reading).transparent
            for listing in listings
            if has_alpha(listing.image)
        )
        store = PixelStore(listings, reading, transparent, threads)
        frames = [
            StoredFrame.create(camera, listing.name, store, index)
            for index, (camera, listing) in enumerate(zip(cameras, listings, strict=True))
        ]
    return Capture(
        train=frames[: len(train)],
        test=frames[len(train) :],
        format=format,
        path=path,
        messages=messages,
        points=None if points is None else _point_cloud(points, origin),
        origin=origin,
    )


def size_text(count: int) -> str:
    """A number of bytes for people: `1.5 GB`."""
    size, units = float(count), ["bytes", "kB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def _check_downscale(listings: Sequence[Listing], downscale: int) -> None:
    for listing in listings:
        width, height = listing.intrinsics.width, listing.intrinsics.height
        if downscale > min(width, height):
            found = f"{width} x {height} pixels cannot be made {downscale} times smaller"
            advice = f"downscale by {min(width, height)} at most"
            raise CaptureError(listing.image, "", found, advice)


def _origin(positions: Sequence[Float[np.ndarray, "3"]]) -> tuple[float, float, float]:
    """What to subtract from all positions, in whole metres; zero where float32 will do."""
    stacked = np.stack(positions)
    middle = np.median(stacked, axis=0)
    # The median, so that a lost camera does not hide how close the others are.
    spread = float(np.median(np.linalg.norm(stacked - middle, axis=1)))
    if not 0 < _FAR * spread < np.abs(middle).max():
        return 0.0, 0.0, 0.0
    x, y, z = np.round(middle).tolist()
    return x, y, z


def _moved(listing: Listing, origin: tuple[float, float, float]) -> Listing:
    pose = listing.camera_to_world.copy()
    pose[:3, 3] -= origin
    return dataclasses.replace(listing, camera_to_world=pose)


def _point_cloud(points: Points, origin: tuple[float, float, float]) -> PointCloud:
    positions = points.positions - np.asarray(origin)
    known = (np.abs(positions) <= np.finfo(np.float32).max).all(axis=1)
    return PointCloud(positions[known].astype(np.float32), points.colors[known])
