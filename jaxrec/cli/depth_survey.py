"""By how much measured depths should be multiplied for images to agree with each other."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32
from scipy.ndimage import map_coordinates

from ..sensors import Frame
from .pixels import LUMINANCE, in_image, ray_directions, spread_evenly

# Neighbours: near enough that much is seen by both, far enough that depth matters.
_PAIRS, _APART = 12, 4
_PIXELS = 3000
_FACTORS = np.geomspace(0.8, 1.25, 31)
# Images that show each other's pixels no better than this are no evidence.
_LEAST_CORRELATION = 0.3


def depth_factor(frames: Sequence[Frame]) -> float | None:
    """Finds the factor of measured depths with which images agree best with their neighbours.

    Pixels are carried by their depth into another image and compared there. Far from 1, the poses'
    unit is not the depths', or the intrinsics are those of another camera.

    Args:
        frames: Of a capture, with depths along the optical axis, in the order they were taken.

    Returns:
        The median over pairs of images; None where too little is known.
    """
    measured = [frame for frame in frames if frame.depth is not None]
    last = len(measured) - _APART
    if last < 1:
        return None
    best = []
    for i in spread_evenly(last, _PAIRS):
        match = _correlations(measured[i].load(), measured[i + _APART].load())
        peak = int(np.argmax(match))
        if 0 < peak < len(match) - 1 and match[peak] > _LEAST_CORRELATION:
            best.append(_FACTORS[peak])
    return float(np.median(best)) if len(best) > 2 else None


def _correlations(frame: Frame, other: Frame) -> Float[np.ndarray, " factors"]:
    """Correlation of the luminance of pixels with what they fall on, for each factor."""
    assert frame.depth is not None
    known = np.argwhere(np.isfinite(frame.depth) & (frame.depth > 0))
    if not len(known):
        return np.zeros(len(_FACTORS))
    known = known[spread_evenly(len(known), _PIXELS)]
    pose = np.asarray(frame.camera.world_from_camera, np.float64)
    pixels = jnp.asarray(known[:, ::-1] + 0.5, jnp.float32)
    directions = np.asarray(ray_directions(frame.camera, pixels), np.float64)
    depth = frame.depth[known[:, 0], known[:, 1]].astype(np.float64)
    along = directions * (depth / (directions @ pose[:3, 2]))[:, None]
    mine, theirs = frame.image @ LUMINANCE, other.image @ LUMINANCE
    mine = mine[known[:, 0], known[:, 1]]
    return np.asarray([_agree(pose[:3, 3] + f * along, mine, other, theirs) for f in _FACTORS])


def _agree(
    points: Float[np.ndarray, "points 3"],
    shown: Float32[np.ndarray, " points"],
    other: Frame,
    luminance: Float32[np.ndarray, "height width"],
) -> float:
    pixels, inside = in_image(other.camera, points.astype(np.float32))
    if inside.sum() < _PIXELS // 10:
        return 0.0
    found = map_coordinates(luminance, pixels[inside].T[::-1] - 0.5, order=1, mode="nearest")
    if not (np.ptp(found) > 0 and np.ptp(shown[inside]) > 0):
        return 0.0
    return float(np.corrcoef(shown[inside], found)[0, 1])
