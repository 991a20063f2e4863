"""A fitted scene with its shader replaced by harmonics, and what that costs."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .. import metrics
from ..scene import Spheres
from ..sensors import Frame, PinholeCamera
from ..shading import SphericalHarmonics
from ..shading.convert import to_harmonics
from .evaluate import FittedScene
from .model import SphereModel


class Conversion(NamedTuple):
    """Spheres in world coordinates that need no shader but harmonics.

    Attributes:
        spheres: With coefficients of `SphericalHarmonics(degree)` as features.
        degree: Of the harmonics; at 0 spheres have plain colours.
        loss: Decibels of PSNR that each frame loses against the scene's own shader; negative if it
            gains.
    """

    spheres: Spheres
    degree: int
    loss: list[float]

    def report(self) -> str:
        """Says in one line what the conversion costs."""
        what = "plain colours" if self.degree == 0 else f"harmonics of degree {self.degree}"
        if not self.loss:
            return f"converted to {what}; no view to measure the loss"
        return (
            f"converted to {what}: {np.mean(self.loss):.2f} dB lost over {len(self.loss)} views, "
            f"{max(self.loss):.2f} dB in the worst"
        )


def convert_shader(scene: FittedScene, degree: int, frames: Sequence[Frame] = ()) -> Conversion:
    """Replaces a scene's shader by harmonics of each sphere.

    Args:
        scene: What was fitted.
        degree: Of the harmonics, 0 to 3; 0 gives plain colours.
        frames: Views to measure the loss with.

    Raises:
        ValueError: If the degree is out of range.
    """
    model = scene.state.model(scene.settings)
    spheres = model.spheres()
    found = to_harmonics(model.shader, spheres.features, degree)
    spheres = dataclasses.replace(spheres, features=found.features)
    converted_model = SphereModel(spheres, SphericalHarmonics(degree))
    loss = []
    for frame in frames:
        camera = scene.state.calibration.lens_of(scene.settings, frame.camera)
        own = scene.render(camera)
        # What is behind shows as the scene itself shows it.
        dark = scene.render(camera, (0.0, 0.0, 0.0))
        behind = np.asarray(own.color) - np.asarray(dark.color)
        converted = _colors(scene, converted_model, camera) + behind
        target = np.asarray(frame.over(scene.settings.background), np.float32)
        loss.append(_psnr(np.asarray(own.color), target, frame) - _psnr(converted, target, frame))
    return Conversion(scene.normalizer.world_spheres(spheres), degree, loss)


def _colors(scene: FittedScene, model: SphereModel, camera: PinholeCamera) -> np.ndarray:
    """Premultiplied colours of one view."""
    seen = model(
        scene.normalizer.scene_camera(camera),
        jnp.zeros(3, jnp.float32),
        near=scene.normalizer.near,
        far=scene.normalizer.far,
        gamma=scene.settings.gamma,
        kind=scene.settings.kind,
    )
    return np.asarray(seen.color)


def _psnr(image: np.ndarray, target: np.ndarray, frame: Frame) -> float:
    mask = None if frame.mask is None else jnp.asarray(frame.mask)
    return float(metrics.psnr(jnp.asarray(np.clip(image, 0, 1)), jnp.asarray(target), mask))
