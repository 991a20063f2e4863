"""Everything that a step of a fit of a drive changes, and what stands beside it in a checkpoint."""

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from .._typing import pytree
from ..scene import Actors, UnconstrainedSpheres
from .drive_settings import DriveSettings
from .moving_scene import MovingScene
from .optimizer import decayed
from .record import FORMAT_VERSION, check_format, installed_version
from .rig_calibration import RigCalibration

DRIVE_LEAVES = ("centers", "log_radii", "logit_opacities", "colors", "intensities", "drops")
"""Parameters that have a row for each sphere."""

# Gradients of a mean over pixels are tiny; a larger epsilon would damp rarely seen spheres.
_EPSILON = 1e-15
_CHANNELS = 5


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class DriveState:
    """A fit of a drive at one step. The order of frames follows from seed and step.

    Attributes:
        scene: What is learned about the world.
        calibration: What is learned about the rig.
        optimizer: Optax's state.
        step: Number of steps done.
    """

    scene: MovingScene
    calibration: RigCalibration
    optimizer: Any
    step: Int[Array, ""]

    @classmethod
    def create(
        cls, scene: MovingScene, calibration: RigCalibration, settings: DriveSettings
    ) -> "DriveState":
        """Starts at step 0. Arrays are copied, so that those given stay usable.

        Args:
            scene: Where to start; see `start_drive`.
            calibration: Where to start with the rig.
            settings: Of the fit.
        """
        copy = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), (scene, calibration))
        state = cls(*copy, optimizer=None, step=jnp.zeros((), jnp.int32))
        optimizer = make_drive_optimizer(settings).init(state.params(settings))
        return dataclasses.replace(state, optimizer=optimizer)

    def params(self, settings: DriveSettings) -> dict[str, Array]:
        """What the optimiser changes, by name."""
        spheres = self.scene.spheres
        params = {
            "centers": spheres.centers,
            "log_radii": spheres.log_radii,
            "logit_opacities": spheres.logit_opacities,
            "colors": spheres.features[:, :3],
            "intensities": spheres.features[:, 3:4],
            "drops": spheres.features[:, 4:],
            "sky": self.scene.sky,
        }
        if settings.exposure.kind != "none":
            params["exposures"] = self.calibration.exposures
        if settings.rig.mounts > 0:
            params["mounts"] = self.calibration.mounts
        if settings.rig.path > 0:
            params["path"] = self.calibration.path
        if settings.rig.boxes > 0:
            params["boxes"] = self.scene.actors.twists
        return params

    def with_params(self, params: Mapping[str, Array]) -> "DriveState":
        """The state with other values of what `params` gives. Differentiable."""
        features = [params[name] for name in ("colors", "intensities", "drops")]
        spheres = dataclasses.replace(
            self.scene.spheres,
            centers=params["centers"],
            log_radii=params["log_radii"],
            logit_opacities=params["logit_opacities"],
            features=jnp.concatenate(features, axis=-1),
        )
        actors = self.scene.actors
        if "boxes" in params:
            actors = dataclasses.replace(actors, twists=params["boxes"])
        scene = dataclasses.replace(self.scene, spheres=spheres, sky=params["sky"], actors=actors)
        learned = {name: params[name] for name in ("exposures", "mounts", "path") if name in params}
        calibration = dataclasses.replace(self.calibration, **learned)
        return dataclasses.replace(self, scene=scene, calibration=calibration)


def make_drive_optimizer(settings: DriveSettings) -> optax.GradientTransformation:
    """Builds the optimiser of what `DriveState.params` gives: Adam with a rate for each."""
    rates, rig = settings.rates, settings.rig
    share = decayed(rates.final, settings.horizon)
    begun = int(rig.start * settings.horizon)

    def adam(rate: float, start: int = 0) -> optax.GradientTransformation:
        def schedule(count):
            late = jnp.asarray(count >= start, jnp.float32)
            return rate * share(count) * late

        return optax.adam(schedule, eps=_EPSILON)

    groups: dict[Hashable, optax.GradientTransformation] = {
        "centers": adam(rates.centers),
        "log_radii": adam(rates.radii),
        "logit_opacities": adam(rates.opacities),
        "colors": adam(rates.colors),
        "intensities": adam(rates.intensities),
        "drops": adam(rates.drops),
        "sky": adam(rates.sky),
        "exposures": adam(settings.exposure.rate),
        "mounts": adam(rig.mounts, begun),
        "path": adam(rig.path, begun),
        "boxes": adam(rig.boxes, begun),
    }
    return optax.multi_transform(groups, lambda params: {name: name for name in params})


def make_drive_record(state: DriveState, settings: DriveSettings) -> dict[str, Any]:
    """Describes a fit of a drive as JSON, so that `drive_template` can be rebuilt."""
    actors, calibration = state.scene.actors, state.calibration
    return {
        "format": FORMAT_VERSION,
        "version": installed_version(),
        "kind": "drive",
        "settings": settings.to_dict(),
        "actors": list(actors.ids),
        "edge": actors.edge,
        "poses": int(actors.times.shape[1]),
        "twists": int(actors.twists.shape[1]),
        "cameras": list(calibration.cameras),
        "sensors": list(calibration.sensors),
        "reference": calibration.reference,
        "knots": int(calibration.path.shape[0]),
    }


def read_drive_record(record: Mapping[str, Any]) -> DriveSettings:
    """The settings that `make_drive_record` has described.

    Raises:
        ValueError: If the format is another one, or a setting is missing or out of range.
    """
    check_format(record)
    if record.get("kind") != "drive":
        raise ValueError("checkpoint: got that of a capture, want that of a drive")
    return DriveSettings.from_dict(record["settings"])


def drive_template(record: Mapping[str, Any], settings: DriveSettings | None = None) -> DriveState:
    """Returns the shapes and dtypes of the state that lies beside a record.

    Args:
        record: What `make_drive_record` has made.
        settings: Of the fit; those of the record if None.

    Raises:
        ValueError: If the record cannot be read.
    """
    found = read_drive_record(record)
    settings = found if settings is None else settings
    return jax.eval_shape(lambda: _blank(record, settings))


def _blank(record: Mapping[str, Any], settings: DriveSettings) -> DriveState:
    count, poses, twists = len(record["actors"]), record["poses"], record["twists"]
    spheres, rows, knots = settings.spheres, settings.sky_rows, record["knots"]
    scene = MovingScene(
        spheres=UnconstrainedSpheres(
            centers=jnp.zeros((spheres, 3)),
            log_radii=jnp.zeros(spheres),
            logit_opacities=jnp.zeros(spheres),
            features=jnp.zeros((spheres, _CHANNELS)),
            alive=jnp.zeros(spheres, bool),
        ),
        actor=jnp.zeros(spheres, jnp.int32),
        actors=Actors(
            world_from_box=jnp.zeros((count, poses, 4, 4)),
            times=jnp.zeros((count, poses)),
            intervals=jnp.zeros((count, poses - 1)),
            twists=jnp.zeros((count, twists, 6)),
            counts=jnp.zeros(count, jnp.int32),
            ids=tuple(record["actors"]),
            edge=record["edge"],
        ),
        sky=jnp.zeros((rows, 2 * rows, 3)),
        near=settings.near,
        far=settings.far,
    )
    calibration = RigCalibration(
        exposures=jnp.zeros((len(record["cameras"]), 3, 4)),
        mounts=jnp.zeros((len(record["sensors"]), 6)),
        path=jnp.zeros((knots, 6)),
        places=jnp.zeros((knots, 3)),
        first=jnp.zeros(()),
        step=jnp.zeros(()),
        cameras=tuple(record["cameras"]),
        sensors=tuple(record["sensors"]),
        reference=record["reference"],
        kind=settings.exposure.kind,
    )
    return DriveState.create(scene, calibration, settings)
