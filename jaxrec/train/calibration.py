"""What a fit learns about its images instead of about the scene."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from .._typing import pytree
from ..sensors import PinholeCamera
from .exposure import identity_exposures
from .refinement import (
    GAUGE,
    LENS,
    changed_lens,
    common_motion,
    gauge,
    lens_key,
    lens_rows,
    moved_camera,
)
from .rows import Rows
from .settings import FitSettings

Taken = dict[str, Float[Array, "views ..."]]


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Poses:
    """Corrections of poses.

    Attributes:
        twists: For each image; see `moved_camera`.
        gauge: Motions of all images together, which are taken off: rotation, translation and size
            of the rig as a whole stay as the capture says, to first order.
    """

    twists: Rows
    gauge: Float[Array, "images 6 7"]


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Lenses:
    """Corrections of intrinsics.

    Attributes:
        changes: See `changed_lens`. The row of an image is that of the first one with its lens.
        rows: The row of each image.
        given: Intrinsics and sizes that the capture states, to know a lens again.
    """

    changes: Rows
    rows: Int[Array, " images"]
    given: Float[Array, "images 11"]


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """What was learned about the images of a fit, with the optimiser's moments.

    Attributes:
        exposure: What is added to the identity (see `expose`), a row for each image; none if
            images are taken as they are.
        poses: None if poses are taken as they are.
        lenses: None if intrinsics are taken as they are.
    """

    exposure: Rows | None = None
    poses: Poses | None = None
    lenses: Lenses | None = None

    @classmethod
    def create(cls, cameras: Sequence[PinholeCamera], settings: FitSettings) -> "Calibration":
        """Starts from images as they are.

        Args:
            cameras: Of all images, in the order of the frames, in scene coordinates.
            settings: Of the fit.
        """
        blank = cls.blank(settings, len(cameras))
        poses, lenses = blank.poses, blank.lenses
        if poses is not None:
            poses = dataclasses.replace(poses, gauge=jnp.asarray(gauge(cameras)))
        if lenses is not None:
            given = np.asarray([lens_key(camera) for camera in cameras], np.float32)
            rows = lens_rows(cameras, settings.cameras)
            lenses = dataclasses.replace(lenses, rows=jnp.asarray(rows), given=jnp.asarray(given))
        return cls(blank.exposure, poses, lenses)

    @classmethod
    def blank(cls, settings: FitSettings, images: int) -> "Calibration":
        """Builds a calibration of this size whose constants mean nothing: a template."""
        exposure = poses = lenses = None
        if settings.exposure.kind != "none":
            exposure = Rows.create(identity_exposures(settings.exposure, images))
        if settings.cameras.poses > 0:
            twists = Rows.create(jnp.zeros((images, 6), jnp.float32))
            poses = Poses(twists, jnp.zeros((images, 6, GAUGE), jnp.float32))
        if any(rate > 0 for rate in settings.cameras.lens_rates):
            changes = Rows.create(jnp.zeros((images, LENS), jnp.float32))
            given = jnp.zeros((images, LENS + 3), jnp.float32)
            lenses = Lenses(changes, jnp.zeros(images, jnp.int32), given)
        return cls(exposure, poses, lenses)

    def take(self, images: Int[Array, " views"]) -> Taken:
        """Picks what the optimiser may change for these images, by name."""
        taken = {}
        if self.exposure is not None:
            taken["exposure"] = self.exposure.values[images]
        if self.poses is not None:
            taken["poses"] = self.poses.twists.values[images]
        if self.lenses is not None:
            taken["lenses"] = self.lenses.changes.values[self.lenses.rows[images]]
        return taken

    def exposures(self, taken: Taken) -> Float[Array, "views ..."] | None:
        """Returns the exposures to use, whose mean over all images is the identity.

        Differentiable in `taken`; the mean counts as given.
        """
        if self.exposure is None:
            return None
        mean = jax.lax.stop_gradient(self.exposure.values.mean(axis=0))
        return taken["exposure"] - jnp.broadcast_to(mean, taken["exposure"].shape)

    def cameras(
        self,
        settings: FitSettings,
        cameras: PinholeCamera,
        images: Int[Array, " views"],
        taken: Taken,
    ) -> PinholeCamera:
        """Returns the refined cameras of images.

        Args:
            settings: Of the fit.
            cameras: As the capture states them, a stack in scene coordinates.
            images: Which they are.
            taken: What `take` gave. Differentiable; what all images have in common counts as given.
        """
        if self.poses is not None:
            common = common_motion(self.poses.twists.values, self.poses.gauge)
            common = jax.lax.stop_gradient(common)[images]
            cameras = moved_camera(cameras, taken["poses"] - common)
        if self.lenses is not None:
            distorted = settings.cameras.distortion > 0
            cameras = changed_lens(cameras, taken["lenses"], distorted=distorted)
        return cameras

    def lens_of(self, settings: FitSettings, camera: PinholeCamera) -> PinholeCamera:
        """Gives a camera that took no part the refined lens, if its own is one that was refined.

        Args:
            settings: Of the fit.
            camera: One camera, in the world or in the scene.

        Returns:
            The camera with what was learned about its lens. The same one if lenses stay as they
            are or belong to single images, or if no image of the fit had its lens.
        """
        if self.lenses is None or settings.cameras.lenses == "each":
            return camera
        same = np.all(
            np.asarray(self.lenses.given) == np.asarray(lens_key(camera), np.float32), axis=1
        )
        if not same.any():
            return camera
        row = np.asarray(self.lenses.rows)[np.argmax(same)]
        change = self.lenses.changes.values[row].astype(camera.focal.dtype)
        return changed_lens(camera, change, distorted=settings.cameras.distortion > 0)

    def moved(
        self,
        settings: FitSettings,
        step: Int[Array, ""],
        images: Int[Array, " views"],
        gradients: Taken,
    ) -> "Calibration":
        """Takes one step of the optimiser with the images that were seen.

        Args:
            settings: Of the fit.
            step: Number of steps done before.
            images: Which were seen.
            gradients: With respect to what `take` gave.
        """
        exposure, poses, lenses = self.exposure, self.poses, self.lenses
        decay = _decay(settings, step)
        if exposure is not None:
            rate = settings.exposure.rate * decay
            exposure = exposure.moved(images, gradients["exposure"], rate)
        begun = step >= int(settings.cameras.start * settings.horizon)
        if poses is not None:
            rate = settings.cameras.poses * decay
            twists = poses.twists.moved(images, gradients["poses"], rate)
            poses = dataclasses.replace(poses, twists=_choose(begun, twists, poses.twists))
        if lenses is not None:
            rates = jnp.asarray(settings.cameras.lens_rates, jnp.float32) * decay
            rows = lenses.rows[images]
            changes = lenses.changes.moved(rows, gradients["lenses"], rates[None])
            lenses = dataclasses.replace(lenses, changes=_choose(begun, changes, lenses.changes))
        return Calibration(exposure, poses, lenses)


def _decay(settings: FitSettings, step: Int[Array, ""]) -> Float[Array, ""]:
    final = settings.rates.others_final
    schedule = optax.exponential_decay(1.0, settings.horizon, final, end_value=final)
    with jax.numpy_dtype_promotion("standard"):
        return jnp.asarray(schedule(step), jnp.float32)


def _choose(condition: Array, new: Rows, old: Rows) -> Rows:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
