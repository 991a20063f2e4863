"""What the poses of a capture's cameras say about where the scene is."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from ..sensors import PinholeCamera

# Cameras this many times farther from the median than half of them are lost: they take no part.
_LOST = 20
# An optical axis is a stray if it passes the common place at this many times the median distance,
# and at this part of the distance to it.
_STRAY, _STRAY_SHARE = 10, 0.25
_ROUNDS = 20
# Distance to the scene at most, in steps from one camera to the nearest other: of a drive of
# kilometres only what is near a camera can be told apart.
_STEPS = 100
# Points beyond this number say nothing new about the depth.
_MOST_POINTS = 1000
# Mean squared sine between the optical axes and their mean above which they meet well enough to
# be intersected: about 6 degrees.
_CONVERGENCE = 0.01


@dataclasses.dataclass(frozen=True)
class Rig:
    """Cameras as a whole, in world coordinates and float64.

    Attributes:
        positions: Where the cameras are, in metres.
        axes: Unit optical axes.
        inward: Whether the cameras look at a common place.
        center: That place, or else the mean of the positions.
        distance: Typical distance in metres from a camera to the scene, > 0.
        step: Median distance in metres from a camera to the nearest other one; 0 if all cameras
            are at one place.
    """

    positions: np.ndarray
    axes: np.ndarray
    inward: bool
    center: np.ndarray
    distance: float
    step: float

    @classmethod
    def from_cameras(
        cls,
        cameras: Sequence[PinholeCamera],
        points: Float[np.ndarray, "points 3"] | None = None,
    ) -> "Rig":
        """Analyses the poses. A few lost cameras, or stray points, do not matter.

        Args:
            cameras: In world coordinates.
            points: Some of what the cameras show; they tell the distance where the cameras look
                at no common place.

        Raises:
            ValueError: If there is no camera.
        """
        if not cameras:
            raise ValueError("cameras: got none, want at least one")
        poses = np.stack([np.asarray(c.world_from_camera, np.float64) for c in cameras])
        # About a place among them: far from the origin, products of positions lose digits.
        middle = np.median(poses[:, :3, 3], axis=0)
        positions, axes = poses[:, :3, 3] - middle, poses[:, :3, 2]
        reach = np.linalg.norm(positions, axis=1)
        kept = reach <= _LOST * max(float(np.median(reach)), 1e-12)
        if not kept.any():
            kept[:] = True
        there, looking = positions[kept], axes[kept]
        mean = there.mean(axis=0)
        spread = float(np.sqrt(np.square(there - mean).sum(axis=1).mean()))
        step = _step(there)
        focus = _focus(there, looking)
        if focus is not None:
            ahead = np.einsum("ij,ij->i", focus - there, looking)
            if np.mean(ahead > 0) > 0.8:
                distance = float(np.median(np.linalg.norm(focus - there, axis=1)))
                if distance > 1e-3 * spread:
                    center = focus + middle
                    return cls(poses[:, :3, 3], axes, True, center, distance, step)
        # Nothing else tells the depth of the scene: photographers move by a fraction of it.
        distance = min(4 * spread, _STEPS * step) if step > 0 else 4 * spread
        if points is not None:
            distance = _depth(there, looking, points - middle) or distance
        return cls(poses[:, :3, 3], axes, False, mean + middle, distance or 1.0, step)


def _focus(positions: np.ndarray, axes: np.ndarray) -> np.ndarray | None:
    """Place that most of the optical axes pass near, if there is one."""
    even = np.ones(len(positions))
    focus = _closest_to_axes(positions, axes, even)
    if focus is None:
        return None
    beside, typical = _passing(focus, positions, axes)
    # Least distances instead of squares: a few axes that lead elsewhere do not pull.
    for _ in range(_ROUNDS):
        weights = 1 / np.maximum(beside, 1e-3 * typical + 1e-12)
        closer = _closest_to_axes(positions, axes, weights)
        # Axes that nearly agree leave the depth to those that do not.
        if closer is None:
            break
        beside, typical = _passing(closer, positions, axes)
    near = beside <= max(_STRAY * float(np.median(beside)), _STRAY_SHARE * typical)
    return focus if near.all() else _closest_to_axes(positions[near], axes[near], even[near])


def _passing(
    focus: np.ndarray, positions: np.ndarray, axes: np.ndarray
) -> tuple[np.ndarray, float]:
    """How far axes pass from a place, and the median distance to it."""
    offset = focus - positions
    along = np.einsum("ij,ij->i", offset, axes)
    beside = np.linalg.norm(offset - along[:, None] * axes, axis=1)
    return beside, float(np.median(np.linalg.norm(offset, axis=1)))


def _step(positions: np.ndarray) -> float:
    if len(positions) < 2:
        return 0.0
    distances, _ = KDTree(positions).query(positions, k=2)
    return float(np.median(np.asarray(distances)[:, 1]))


def _depth(positions: np.ndarray, axes: np.ndarray, points: np.ndarray) -> float | None:
    """Median over cameras of the median depth of the points before them."""
    some = points[:: -(-len(points) // _MOST_POINTS)] if len(points) else points
    depths = (some[None] - positions[:, None]) @ axes[:, :, None]
    medians = [np.median(depth[depth > 0]) for depth in depths[..., 0] if (depth > 0).any()]
    return float(np.median(medians)) if medians else None


def _closest_to_axes(
    positions: np.ndarray, axes: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    """Point with the least sum of squared distances to the optical axes, if they tell it."""
    weights = weights / weights.sum()
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    system = np.einsum("n,nij->ij", weights, across)
    if np.linalg.eigvalsh(system)[0] < _CONVERGENCE:
        return None
    return np.linalg.solve(system, np.einsum("n,nij,nj->i", weights, across, positions))
