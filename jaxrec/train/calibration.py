"""What a fit learns about its images instead of about the scene."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._typing import pytree
from ..sensors import PinholeCamera
from .exposure import identity_exposures
from .rows import Rows
from .settings import FitSettings

Taken = dict[str, Float[Array, "views ..."]]


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """What was learned about the images of a fit, with the optimiser's moments.

    Attributes:
        exposure: What is added to the identity (see `expose`), a row for each image; none if
            images are taken as they are.
    """

    exposure: Rows | None = None

    @classmethod
    def create(cls, cameras: Sequence[PinholeCamera], settings: FitSettings) -> "Calibration":
        """Starts from images as they are.

        Args:
            cameras: Of all images, in the order of the frames, in scene coordinates.
            settings: Of the fit.
        """
        return cls.blank(settings, len(cameras))

    @classmethod
    def blank(cls, settings: FitSettings, images: int) -> "Calibration":
        """Builds a calibration of this size whose constants mean nothing: a template."""
        exposure = None
        if settings.exposure.kind != "none":
            exposure = Rows.create(identity_exposures(settings.exposure, images))
        return cls(exposure)

    def take(self, images: Int[Array, " views"]) -> Taken:
        """Picks what the optimiser may change for these images, by name."""
        taken = {}
        if self.exposure is not None:
            taken["exposure"] = self.exposure.values[images]
        return taken

    def exposures(self, taken: Taken) -> Float[Array, "views ..."] | None:
        """Returns the exposures to use, whose mean over all images is the identity.

        Differentiable in `taken`; the mean counts as given.
        """
        if self.exposure is None:
            return None
        mean = jax.lax.stop_gradient(self.exposure.values.mean(axis=0))
        return taken["exposure"] - jnp.broadcast_to(mean, taken["exposure"].shape)

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
        exposure = self.exposure
        if exposure is not None:
            rate = settings.exposure.rate * _decay(settings, step)
            exposure = exposure.moved(images, gradients["exposure"], rate)
        return Calibration(exposure)


def _decay(settings: FitSettings, step: Any) -> Array:
    final = settings.rates.others_final
    schedule = optax.exponential_decay(1.0, settings.horizon, final, end_value=final)
    with jax.numpy_dtype_promotion("standard"):
        return jnp.asarray(schedule(step), jnp.float32)
