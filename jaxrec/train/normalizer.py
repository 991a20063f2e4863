"""The similarity between the world and the unit-sized scene in which spheres are fitted."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from ..scene import Spheres
from ..sensors import PinholeCamera
from .rig import Rig


@dataclasses.dataclass(frozen=True)
class SceneNormalizer:
    """Maps world to scene coordinates: `scene = (world - center) * scale`.

    Held in float64: a world may have its origin kilometres away. All lengths are positive.

    Attributes:
        center: The scene's origin in world coordinates, in metres.
        scale: Scene units for each metre.
        near: Least distance of a drawn sphere's front from its camera, in scene units.
        far: Largest distance, in scene units.
    """

    center: tuple[float, float, float]
    scale: float
    near: float = 0.02
    far: float = 1000.0

    def __post_init__(self):
        """Checks ranges; raises `ValueError`."""
        values = (*self.center, self.scale, self.near, self.far)
        if len(values) != 6 or not np.all(np.isfinite(values)):
            raise ValueError(f"SceneNormalizer: got {values}, want finite numbers")
        if not (self.scale > 0 and 0 <= self.near < self.far):
            raise ValueError(
                f"SceneNormalizer: got scale={self.scale}, near={self.near}, far={self.far}; "
                "want scale > 0 and 0 <= near < far"
            )

    @classmethod
    def from_cameras(
        cls,
        cameras: Sequence[PinholeCamera],
        points: Float[np.ndarray, "points 3"] | None = None,
    ) -> "SceneNormalizer":
        """Chooses a scene in which cameras are about 1 away from what they look at.

        Cameras that look at a common place put the origin there. Otherwise the origin is the mean
        of their positions, and the scale follows from the depth of the points, or else from the
        spread of the cameras and the steps between them. Lost cameras take no part.

        Args:
            cameras: In world coordinates, in metres.
            points: Some of what the cameras show, such as the points of a capture.

        Raises:
            ValueError: If there is no camera.
        """
        rig = Rig.from_cameras(cameras, points)
        x, y, z = (float(value) for value in rig.center)
        scale = 1.0 / rig.distance
        # Who passes things by comes nearer to them than a share of their distance.
        near = cls.near if rig.inward or not rig.step else min(cls.near, rig.step * scale)
        return cls(center=(x, y, z), scale=scale, near=near)

    def scene_camera(self, camera: PinholeCamera) -> PinholeCamera:
        """Returns the camera as it stands in the scene; its axes and pixels stay the same."""
        world_from_camera = np.asarray(camera.world_from_camera)
        pose = world_from_camera.astype(np.float64)
        pose[:3, 3] = (pose[:3, 3] - np.asarray(self.center)) * self.scale
        return dataclasses.replace(
            camera, world_from_camera=jnp.asarray(pose, np.asarray(camera.focal).dtype)
        )

    def world_camera(self, camera: PinholeCamera) -> PinholeCamera:
        """Returns a camera of the scene as it stands in the world: undoes `scene_camera`."""
        pose = np.asarray(camera.world_from_camera).astype(np.float64)
        pose[:3, 3] = pose[:3, 3] / self.scale + np.asarray(self.center)
        return dataclasses.replace(
            camera, world_from_camera=jnp.asarray(pose, np.asarray(camera.focal).dtype)
        )

    def scene_points(
        self, positions: Float[np.ndarray, "points 3"]
    ) -> Float32[np.ndarray, "points 3"]:
        """Returns positions in the world as they stand in the scene."""
        moved = (np.asarray(positions, np.float64) - np.asarray(self.center)) * self.scale
        return moved.astype(np.float32)

    def world_spheres(self, spheres: Spheres) -> Spheres:
        """Returns the scene's spheres in world coordinates, as float32 on the host's precision."""
        centers = np.asarray(spheres.centers, np.float64) / self.scale + np.asarray(self.center)
        radii = np.asarray(spheres.radii, np.float64) / self.scale
        dtype = spheres.centers.dtype
        return dataclasses.replace(
            spheres, centers=jnp.asarray(centers, dtype), radii=jnp.asarray(radii, dtype)
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns numbers and lists, fit for JSON; float64 survives the round trip exactly."""
        return {**dataclasses.asdict(self), "center": list(self.center)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SceneNormalizer":
        """Rebuilds a normalizer from `to_dict`'s result."""
        return cls(**{**values, "center": tuple(values["center"])})
