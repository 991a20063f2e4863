"""What a fit learns about the rig of a drive instead of about the scene."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import pytree
from ..geometry import compose, rigid, rigid_from_twist, rotate
from ..sensors import RayBundle, RollingShutterCamera, SpinningLidar
from ..trajectory import Path, Still, with_poses
from .drive_settings import DriveSettings
from .exposure import expose


@pytree("cameras", "sensors", "reference", "kind")
@dataclasses.dataclass(frozen=True, eq=False)
class RigCalibration:
    """Corrections of mounts, of the path and of the colours of cameras.

    Each is 0 where nothing is learned. What all of a kind have in common cannot be told from
    another scene, and is taken off: of mounts that of the reference, of the others the mean.

    Attributes:
        exposures: For each camera what is added to the identity (see `expose`), or for `gain` the
            logarithms of the factors in its last column.
        mounts: Twists of each sensor in its own frame.
        path: Twists of the rig about its own place, along the axes of the world, at knots.
        places: Where the rig is at the knots, in metres.
        first: Time of the first knot, in seconds since the epoch.
        step: Seconds from one knot to the next.
        cameras: Names of the cameras.
        sensors: Names of all sensors.
        reference: The sensor whose mount stays.
        kind: As of `CameraExposure`.
    """

    exposures: Float[Array, "cameras 3 4"]
    mounts: Float[Array, "sensors 6"]
    path: Float[Array, "knots 6"]
    places: Float[Array, "knots 3"]
    first: Float[Array, ""]
    step: Float[Array, ""]
    cameras: tuple[str, ...]
    sensors: tuple[str, ...]
    reference: str
    kind: str

    @classmethod
    def create(
        cls,
        cameras: Sequence[str],
        lidars: Sequence[str],
        times: Float[np.ndarray, " n"],
        ego: Path | None,
        settings: DriveSettings,
    ) -> "RigCalibration":
        """Starts from a rig as the log describes it.

        Args:
            cameras: Their names.
            lidars: Their names.
            times: When anything was measured.
            ego: `world_from_body` of the rig, where its path is refined.
            settings: Of the fit.

        Raises:
            ValueError: If the reference is none of the sensors, or the path is to be refined and
                not given.
        """
        rig = settings.rig
        sensors = tuple(dict.fromkeys([*lidars, *cameras]))
        reference = rig.reference or sensors[0]
        if reference not in sensors:
            raise ValueError(f"rig.reference: got {reference}, want one of {', '.join(sensors)}")
        knots = 1
        if rig.path > 0:
            if ego is None:
                raise ValueError("rig.path: got no path to refine; give the rig's, ego")
            span = float(np.max(times) - np.min(times))
            knots = max(2, int(np.ceil(span / rig.every - 1e-6)) + 1)
        at = np.min(times) + rig.every * np.arange(knots)
        places = np.zeros((knots, 3))
        if ego is not None and rig.path > 0:
            within = np.clip(at, np.min(times), np.max(times)).astype(np.float32)
            places = np.asarray(ego.sample(jnp.asarray(within))[0])[:, :3, 3]
        return cls(
            exposures=jnp.zeros((len(cameras), 3, 4), jnp.float32),
            mounts=jnp.zeros((len(sensors), 6), jnp.float32),
            path=jnp.zeros((knots, 6), jnp.float32),
            places=jnp.asarray(places, jnp.float32),
            first=jnp.float32(at[0]),
            step=jnp.float32(rig.every),
            cameras=tuple(cameras),
            sensors=sensors,
            reference=reference,
            kind=settings.exposure.kind,
        )

    def exposed(
        self, color: Float[Array, "height width 3"], camera: int | Array
    ) -> Float[Array, "height width 3"]:
        """Gives rendered colours the exposure of a camera. Differentiable.

        Args:
            color: What was rendered.
            camera: Number of the camera.
        """
        if self.kind == "none":
            return color
        mean = jax.lax.stop_gradient(self.exposures.mean(axis=0))
        own = self.exposures[camera] - mean
        if self.kind == "gain":
            return color * jnp.exp(own[:, 3])[None, None]
        return expose(color[None], own[None])[0]

    def moved(self, sensor: Any, number: int | Array, time: Float[Array, ""]) -> Any:
        """Puts a sensor where it is after all corrections. Differentiable.

        Args:
            sensor: A camera or a lidar at its place in the world, or on its path.
            number: Of the sensor.
            time: Of the middle of what it measures, for one that stands still within it.
        """
        stays = self.sensors.index(self.reference)
        own = jnp.where(number == stays, jnp.zeros(6), self.mounts[number])
        turn = rigid_from_twist(own)
        if isinstance(sensor, RollingShutterCamera):
            camera: Any = sensor.camera
            mounted = compose(camera.world_from_camera, turn)
            camera = dataclasses.replace(camera, world_from_camera=mounted)
            path = self._path(sensor.trajectory, time)
            return dataclasses.replace(sensor, camera=camera, trajectory=path)
        if isinstance(sensor, SpinningLidar | RayBundle):
            field = "body_from_lidar" if isinstance(sensor, SpinningLidar) else "body_from_sensor"
            mounted = compose(getattr(sensor, field), turn)
            path: Any = self._path(sensor.trajectory, time)
            fields = {field: mounted, "trajectory": path}
            return dataclasses.replace(sensor, **fields)
        pose = compose(self.motion(time), compose(sensor.world_from_camera, turn))
        return dataclasses.replace(sensor, world_from_camera=pose)

    def motion(self, times: Float[Array, "*batch"]) -> Float[Array, "*batch 4 4"]:
        """How the rig as a whole is moved in the world at times in seconds since the epoch."""
        knots = self.path.shape[0]
        place = jnp.clip((times - self.first) / self.step, 0, knots - 1)
        # Hat functions: their gradients are sums in a fixed order.
        twists = self.path - jax.lax.stop_gradient(self.path.mean(axis=0))[None]
        twist, center = jnp.zeros((*place.shape, 6)), jnp.zeros((*place.shape, 3))
        for knot in range(knots):
            hat = jnp.maximum(1 - jnp.abs(place - knot), 0)[..., None]
            twist += hat * jnp.broadcast_to(twists[knot], twist.shape)
            center += hat * jnp.broadcast_to(self.places[knot], center.shape)
        turn = rigid_from_twist(twist)
        shift = center + turn[..., :3, 3] - rotate(turn[..., :3, :3], center)
        return rigid(turn[..., :3, :3], shift)

    def _path(self, path: Any, time: Array) -> Any:
        times = time if isinstance(path, Still) else path.times
        return with_poses(path, compose(self.motion(times), path.world_from_body))

    def describe(self) -> dict[str, Any]:
        """What was learned, as plain values: corrections of mounts, and exposures by camera."""
        stays = self.sensors.index(self.reference)
        mounts = np.asarray(self.mounts, np.float64)
        mounts[stays] = 0
        exposures = np.asarray(self.exposures - self.exposures.mean(axis=0, keepdims=True))
        path = np.asarray(self.path - self.path.mean(axis=0, keepdims=True), np.float64)
        told: dict[str, Any] = {}
        if mounts.any():
            told["mounts"] = {
                name: {
                    "rotation_degrees": np.degrees(row[:3]).tolist(),
                    "shift_m": row[3:].tolist(),
                }
                for name, row in zip(self.sensors, mounts, strict=True)
            }
        if path.any():
            told["path"] = {
                "first_s": float(self.first),
                "step_s": float(self.step),
                "rotation_degrees": np.degrees(path[:, :3]).tolist(),
                "shift_m": path[:, 3:].tolist(),
            }
        if self.kind == "gain":
            gains = np.exp(exposures[:, :, 3])
            told["gains"] = dict(zip(self.cameras, gains.tolist(), strict=True))
        if self.kind == "affine":
            matrices = exposures + np.eye(3, 4)
            told["exposures"] = dict(zip(self.cameras, matrices.tolist(), strict=True))
        return told
