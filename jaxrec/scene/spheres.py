"""Spheres, the one primitive of a scene, and the form in which they are optimised."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._typing import Numbers, concrete, float_array, pytree

SMALLEST_RADIUS = 1e-8
"""Metres; what a radius of 0 becomes in logarithms."""

OPACITY_MARGIN = 1e-6
"""How far opacities 0 and 1 move inward when they become logits of about 13.8."""


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Spheres:
    """Spheres in world coordinates, at a fixed capacity.

    `create` checks its arguments; this constructor, for use inside transformations, does not.

    Attributes:
        centers: Positions in metres.
        radii: Radii in metres, not negative. A sphere of radius 0 is still drawn, a pixel wide.
        opacities: In [0, 1].
        features: What each sphere carries: colour, or channels for a shader.
        alive: Which rows are spheres. The others are spare, never drawn, and get no gradient.
        velocities: Of the centers in metres per second, in world coordinates: sensors that measure
            each ray at its own time see the spheres move. None where all stand still, which
            renders faster.
        time: When moving spheres are at their centers, in seconds since the epoch from which the
            times of rays count (`Rays.times`); None for the epoch itself. Differences of a few
            milliseconds are exact as long as both are within hours of the epoch.
    """

    centers: Float[Array, "*batch spheres 3"]
    radii: Float[Array, "*batch spheres"]
    opacities: Float[Array, "*batch spheres"]
    features: Float[Array, "*batch spheres channels"]
    alive: Bool[Array, "*batch spheres"]
    velocities: Float[Array, "*batch spheres 3"] | None = None
    time: Float[Array, "*batch"] | None = None

    @classmethod
    def create(
        cls,
        centers: Numbers,
        radii: Numbers,
        opacities: Numbers,
        features: Numbers,
        *,
        capacity: int | None = None,
        velocities: Numbers | None = None,
        time: Numbers | None = None,
    ) -> "Spheres":
        """Makes a scene from arrays, padded with dead spheres up to `capacity`.

        Args:
            centers: Positions in metres.
            radii: Radii in metres, not negative.
            opacities: In [0, 1].
            features: Channels of each sphere.
            capacity: Number of rows, so that spheres can be added without recompiling;
                by default as many as there are spheres.
            velocities: Of the centers, in metres per second.
            time: When moving spheres are there, in seconds.

        Raises:
            ValueError: If an array has the wrong shape or dtype, a value is not finite or
                out of range, or there are more spheres than the capacity.
        """
        centers = float_array("centers", centers, (None, 3))
        radii = float_array("radii", radii, (None,), centers.dtype)
        opacities = float_array("opacities", opacities, (None,), centers.dtype)
        features = float_array("features", features, (None, None), centers.dtype)
        count = centers.shape[0]
        given = {"radii": radii, "opacities": opacities, "features": features}
        if velocities is not None:
            given["velocities"] = float_array("velocities", velocities, (None, 3), centers.dtype)
        for name, array in given.items():
            if array.shape[0] != count:
                raise ValueError(
                    f"{name}: got {array.shape[0]} rows for {count} centers; give one for each"
                )
        _check_range("radii", radii, 0.0, np.inf)
        _check_range("opacities", opacities, 0.0, 1.0)
        capacity = count if capacity is None else capacity
        if capacity < count:
            raise ValueError(f"capacity: got {capacity} for {count} spheres; give at least {count}")
        spare = capacity - count
        return cls(
            centers=jnp.pad(centers, ((0, spare), (0, 0))),
            radii=jnp.pad(radii, (0, spare)),
            opacities=jnp.pad(opacities, (0, spare)),
            features=jnp.pad(features, ((0, spare), (0, 0))),
            alive=jnp.arange(capacity) < count,
            velocities=(
                None if velocities is None else jnp.pad(given["velocities"], ((0, spare), (0, 0)))
            ),
            time=None if time is None else float_array("time", time, (), centers.dtype),
        )

    def unconstrained(self) -> "UnconstrainedSpheres":
        """Maps to parameters that any step of an optimiser leaves valid.

        Radii become logarithms, opacities logits. So that both stay finite, radii below
        1e-8 m are raised to that and opacities are kept 1e-6 away from 0 and 1: those, and
        only those, do not come back unchanged from `constrained`.
        """
        opacities = jnp.clip(self.opacities, OPACITY_MARGIN, 1 - OPACITY_MARGIN)
        return UnconstrainedSpheres(
            centers=self.centers,
            log_radii=jnp.log(jnp.maximum(self.radii, SMALLEST_RADIUS)),
            logit_opacities=jnp.log(opacities) - jnp.log1p(-opacities),
            features=self.features,
            alive=self.alive,
            velocities=self.velocities,
            time=self.time,
        )


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class UnconstrainedSpheres:
    """Spheres as real numbers without bounds, for an optimiser.

    Attributes:
        centers: Positions in metres.
        log_radii: Natural logarithms of radii in metres.
        logit_opacities: log(o / (1 - o)) of opacities.
        features: Channels of each sphere.
        alive: Which rows are spheres.
        velocities: Of the centers in metres per second; None where all stand still.
        time: When moving spheres are at their centers; without gradient, as velocities and
            centers say the same.
    """

    centers: Float[Array, "*batch spheres 3"]
    log_radii: Float[Array, "*batch spheres"]
    logit_opacities: Float[Array, "*batch spheres"]
    features: Float[Array, "*batch spheres channels"]
    alive: Bool[Array, "*batch spheres"]
    velocities: Float[Array, "*batch spheres 3"] | None = None
    time: Float[Array, "*batch"] | None = None

    def constrained(self) -> Spheres:
        """The spheres: exponentials and sigmoids. Differentiable."""
        return Spheres(
            centers=self.centers,
            radii=jnp.exp(self.log_radii),
            opacities=jax.nn.sigmoid(self.logit_opacities),
            features=self.features,
            alive=self.alive,
            velocities=self.velocities,
            time=None if self.time is None else jax.lax.stop_gradient(self.time),
        )


def _check_range(name: str, array: jax.Array, low: float, high: float) -> None:
    values = concrete(array)
    if values is None or not values.size:
        return
    if values.min() < low or values.max() > high:
        found = f"{values.min():g} to {values.max():g}"
        raise ValueError(f"{name}: got values from {found}; give values from {low:g} to {high:g}")
