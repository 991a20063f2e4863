"""The least work of a pass, to judge a time against the device and not only against yesterday."""

from typing import NamedTuple

import jax
import numpy as np

from _scenes import Limits, Scene
from jaxrec import PinholeCamera

# A radix sort of (uint32 key, int32 index): four passes that read and write both, and one reading
# of the keys for the histogram.
SORT_BYTES = 4 * 2 * 8 + 4
# Our count of one lane's instructions for a hit of `softmax`: offset, chord, depth, exponential,
# three channels. For `alpha` and for a backward pass it stands in as a lower bound.
HIT_INSTRUCTIONS = 40
# Widths, heights of the blocks of pixels that a warp takes.
BLOCK = (8, 4)


class Ceilings(NamedTuple):
    """What a device can do in a second."""

    bytes: float
    instructions: float  # of single lanes


# By `jax.Device.device_kind`. NVIDIA H200: 4.3 TB/s is what a copy on the device moved, reading
# and writing; 132 multiprocessors of 128 lanes are the data sheet's; 1.755 GHz is taken as the
# clock under load (the data sheet's 67 TFLOP/s need its boost of 1.98 GHz).
CEILINGS = {"NVIDIA H200": Ceilings(4.3e12, 132 * 128 * 1.755e9)}


class Reach(NamedTuple):
    """What spheres touch, before any ray stops."""

    visible: int  # pairs of a view and a sphere that it can show
    pairs: int  # pairs of a block of pixels and a sphere


def reach(scene: Scene, cameras: PinholeCamera, limits: Limits) -> Reach:
    """Counts on the host which blocks of pixels the spheres' bounding rectangles meet.

    Args:
        scene: Spheres, all of them ahead of every camera.
        cameras: A stack of ideal cameras.
        limits: Spheres outside of them are hidden.
    """
    visible = pairs = 0
    centers, radii = (np.asarray(x, np.float64) for x in (scene.centers, scene.radii))
    poses, focals, principals = (
        np.asarray(x, np.float64)
        for x in (cameras.world_from_camera, cameras.focal, cameras.principal)
    )
    sizes = (cameras.width, cameras.height)
    for pose, focal, principal in zip(poses, focals, principals, strict=True):
        local = (centers - pose[:3, 3]) @ pose[:3, :3]
        distance = np.linalg.norm(local, axis=-1)
        # Spheres thinner than a pixel are drawn by all rays within 1.5 beams.
        bound = np.maximum(radii, 1.5 * 0.5 / np.sqrt(focal.prod()) * distance)
        front = distance - radii
        blocks = ((limits.near <= front) & (front <= limits.far)).astype(np.int64)
        for axis in range(2):
            low, high = _extent(local[:, axis], local[:, 2], bound)
            first = np.ceil(focal[axis] * low + principal[axis] - 0.5)
            last = np.floor(focal[axis] * high + principal[axis] - 0.5)
            first, last = np.maximum(first, 0), np.minimum(last, sizes[axis] - 1)
            met = last // BLOCK[axis] - first // BLOCK[axis] + 1
            blocks *= np.where(last >= first, met, 0).astype(np.int64)
        visible += int(np.count_nonzero(blocks))
        pairs += int(blocks.sum())
    return Reach(visible, pairs)


def least_bytes(step: str, scene: Scene, visible: int) -> int:
    """Memory traffic of a perfect pass: inputs read once, results written once, one sort.

    Args:
        step: "forward", "backward" or "both". A backward pass also reads the image, its cotangent
            and two normaliser values of each ray, and needs no sort: the order is known.
        scene: What is rendered.
        visible: How many pairs of a view and a sphere are sorted.
    """
    count, channels = scene.colors.shape
    rays = scene.rays.directions.size // 3
    spheres_and_rays = 4 * (count * (5 + channels) + rays * 6)
    forward = spheres_and_rays + 4 * rays * (channels + 2) + SORT_BYTES * visible
    gradients = 4 * (count * (4 + channels) + rays * 6)
    backward = spheres_and_rays + 4 * rays * (2 * channels + 2) + gradients
    return {"forward": forward, "backward": backward, "both": forward + backward}[step]


def floor_ms(least_bytes: int, hits: int) -> float | None:
    """Time in milliseconds for memory traffic and then for hits; None on an unknown device."""
    ceilings = CEILINGS.get(jax.devices()[0].device_kind)
    if ceilings is None:
        return None
    seconds = least_bytes / ceilings.bytes + hits * HIT_INSTRUCTIONS / ceilings.instructions
    return 1e3 * seconds


def _extent(across: np.ndarray, ahead: np.ndarray, radius: np.ndarray):
    """Least and largest tangent, across / ahead, of the points of each sphere."""
    root = radius * np.sqrt(across**2 + ahead**2 - radius**2)
    scale = ahead**2 - radius**2
    return (across * ahead - root) / scale, (across * ahead + root) / scale
