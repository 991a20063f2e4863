"""What the poses of a capture's cameras say about where the scene is."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..sensors import PinholeCamera

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
    """

    positions: np.ndarray
    axes: np.ndarray
    inward: bool
    center: np.ndarray
    distance: float

    @classmethod
    def from_cameras(cls, cameras: Sequence[PinholeCamera]) -> "Rig":
        """Analyses the poses.

        Raises:
            ValueError: If there is no camera.
        """
        if not cameras:
            raise ValueError("cameras: got none, want at least one")
        poses = np.stack([np.asarray(c.world_from_camera, np.float64) for c in cameras])
        positions, axes = poses[:, :3, 3], poses[:, :3, 2]
        mean = positions.mean(axis=0)
        spread = float(np.sqrt(np.square(positions - mean).sum(axis=1).mean()))
        focus = _closest_to_axes(positions, axes)
        if focus is not None:
            ahead = np.einsum("ij,ij->i", focus - positions, axes)
            if np.mean(ahead > 0) > 0.8:
                distance = float(np.median(np.linalg.norm(focus - positions, axis=1)))
                if distance > 1e-3 * spread:
                    return cls(positions, axes, True, focus, distance)
        # Nothing tells the depth of the scene: photographers move by a fraction of it.
        return cls(positions, axes, False, mean, 4 * spread if spread > 0 else 1.0)


def _closest_to_axes(positions: np.ndarray, axes: np.ndarray) -> np.ndarray | None:
    """Point with the least sum of squared distances to the optical axes, if they tell it."""
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    system = across.mean(axis=0)
    if np.linalg.eigvalsh(system)[0] < _CONVERGENCE:
        return None
    return np.linalg.solve(system, np.einsum("nij,nj->i", across, positions) / len(positions))
