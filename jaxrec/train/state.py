"""Everything that a training step changes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Int, Key

from .._typing import pytree
from .calibration import Calibration
from .model import SphereModel, blank_model
from .optimizer import make_optimizer
from .settings import FitSettings


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class FitState:
    """A fit at one step, as a pytree of arrays. The frame order follows from seed and step.

    Attributes:
        params: The model's trained parameters, as nested dictionaries by attribute name.
        alive: Which spheres exist.
        optimizer: Optax's state.
        step: Number of steps done.
        key: Randomness; each step folds its number into it, so it never changes.
        calibration: What is learned about the images, not about the scene.
    """

    params: Any
    alive: Bool[Array, " spheres"]
    optimizer: Any
    step: Int[Array, ""]
    key: Key[Array, ""]
    calibration: Calibration

    @classmethod
    def create(
        cls, model: SphereModel, settings: FitSettings, calibration: Calibration | None = None
    ) -> "FitState":
        """Starts at step 0.

        Args:
            model: Where to start. Its arrays are copied, so it stays usable.
            settings: Of the fit.
            calibration: What to start from with the images; nothing is learned about them if None.
        """
        params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        return cls(
            params=params,
            alive=jnp.array(model.alive[...], copy=True),
            optimizer=make_optimizer(settings.rates, settings.horizon).init(params),
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key(settings.seed),
            calibration=Calibration() if calibration is None else calibration,
        )

    @classmethod
    def template(cls, settings: FitSettings, images: int = 0) -> "FitState":
        """Returns the shapes and dtypes of a fit's state, without its values.

        Args:
            settings: Of the fit.
            images: How many it is fitted to, where something is learned about each.
        """
        return jax.eval_shape(
            lambda: cls.create(blank_model(settings), settings, Calibration.blank(settings, images))
        )

    def step_keys(self, step: Int[Array, ""]) -> Key[Array, " uses"]:
        """Returns the randomness of one step: background, view weight, growth, noise."""
        return jax.random.split(jax.random.fold_in(self.key, step), 4)

    def model(self, settings: FitSettings) -> SphereModel:
        """Returns the model with the state's parameters, for inspection and rendering."""
        return nnx.merge(graph(settings), self.params, {"alive": self.alive})


def graph(settings: FitSettings) -> nnx.GraphDef:
    """Returns the static part of the model: hashable, and equal for equal settings."""
    return nnx.split(nnx.eval_shape(lambda: blank_model(settings)), nnx.Param, ...)[0]


def finite(state: FitState) -> bool:
    """Tells whether all parameters are finite. Reads them back to the host."""
    return all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(state.params))
