"""A fitted scene in world coordinates, and how close it comes to frames."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float32

from .. import metrics
from ..scene import Spheres
from ..sensors import Frame, PinholeCamera
from .model import Picture, softness
from .normalizer import SceneNormalizer
from .settings import FitSettings
from .state import FitState, graph


@dataclasses.dataclass(frozen=True, eq=False)
class FittedScene:
    """What a fit has learned, to be looked at from cameras in the world.

    Attributes:
        state: Its parameters are used.
        settings: Of the fit.
        normalizer: Of the fit.
    """

    state: FitState
    settings: FitSettings
    normalizer: SceneNormalizer

    def spheres(self) -> Spheres:
        """Returns the spheres in world coordinates, with the features that the shader reads."""
        return self.normalizer.world_spheres(self.state.model(self.settings).spheres())

    def render(
        self,
        camera: PinholeCamera,
        background: tuple[float, float, float] | None = None,
    ) -> Picture:
        """Renders what one camera in the world sees.

        Args:
            camera: In world coordinates.
            background: Colour in [0, 1]; the scene's own backdrop, or else the settings' colour,
                if None.

        Returns:
            Colour, not clipped; expected depth in metres; alpha.
        """
        color = background
        if background is None and self.settings.backdrop.shape is None:
            color = self.settings.background
        picture = _render(
            graph(self.settings),
            self.settings.kind,
            self.state.params,
            self.state.alive,
            self.normalizer.scene_camera(camera),
            None if color is None else jnp.asarray(color, jnp.float32),
            tuple(map(np.float32, (self.normalizer.near, self.normalizer.far))),
            softness(self.settings, jnp.asarray(self.state.step)),
        )
        return picture._replace(depth=picture.depth / np.float32(self.normalizer.scale))

    @property
    def refined(self) -> bool:
        """Whether the fit has refined cameras."""
        learned = self.state.calibration
        return learned.poses is not None or learned.lenses is not None

    def cameras(self, frames: Sequence[Frame]) -> list[PinholeCamera]:
        """Returns the cameras of the frames that were fitted, as the fit has refined them.

        Args:
            frames: Those of the fit, in their order.

        Returns:
            Cameras in the world, of the frames' dtype.
        """
        refined = []
        for number, frame in enumerate(frames):
            images = jnp.asarray([number], jnp.int32)
            placed = self.normalizer.scene_camera(frame.camera)
            stack = jax.tree.map(lambda leaf: leaf[None], placed)
            learned = self.state.calibration
            stack = learned.cameras(self.settings, stack, images, learned.take(images))
            camera = jax.tree.map(lambda leaf: leaf[0], stack)
            refined.append(self.normalizer.world_camera(camera))
        return refined


@functools.partial(jax.jit, static_argnums=(0, 1))
def _render(
    graphdef: Any,
    kind: Any,
    params: Any,
    alive: Any,
    camera: PinholeCamera,
    background: jax.Array | None,
    limits: tuple[Any, Any],
    gamma: Any,
) -> Picture:
    model = nnx.merge(graphdef, params, {"alive": alive})
    near, far = limits
    picture = model(camera, background, near=near, far=far, gamma=gamma, kind=kind)
    return picture._replace(view_part=None, sphere_part=None)


@dataclasses.dataclass(frozen=True, eq=False)
class ViewScore:
    """How close a rendered view comes to its frame.

    Attributes:
        name: The frame's.
        psnr: Decibels over the pixels that the frame's mask selects.
        psnr_corrected: The same after the affine change of colours that suits the frame best (see
            `metrics.color_corrected`); of use for captures whose exposure varies.
        ssim: Over the whole image, masked pixels taken from the frame; NaN if it is smaller than
            SSIM's window of 11 pixels.
        flip: LDR-FLIP in [0, 1], lower is better, over the pixels that the mask selects, at FLIP's
            default of 67 pixels per degree.
        image: What was rendered, clipped to [0, 1].
        target: The frame over the same background.
    """

    name: str
    psnr: float
    psnr_corrected: float
    ssim: float
    flip: float
    image: Float32[np.ndarray, "height width 3"]
    target: Float32[np.ndarray, "height width 3"]


def evaluate(
    scene: FittedScene,
    frames: Sequence[Frame],
    background: tuple[float, float, float] | None = None,
) -> Iterator[ViewScore]:
    """Renders frames' views and compares, one after the other.

    What was learned about the exposure and the pose of images plays no part. What was learned
    about a lens does, where the frame was taken with the same one.

    Args:
        scene: What was fitted.
        frames: What to compare with, usually held out.
        background: Colour in [0, 1] behind scene and cut-out frames; the scene's own backdrop, or
            else the settings' colour, if None.

    Yields:
        A score for each frame.
    """
    color = scene.settings.background if background is None else background
    for frame in frames:
        camera = scene.state.calibration.lens_of(scene.settings, frame.camera)
        rendered = scene.render(camera, background).color
        image = np.clip(np.asarray(rendered), 0, 1)
        target = np.asarray(frame.over(color), np.float32)
        mask = None if frame.mask is None else jnp.asarray(frame.mask)
        decibels = metrics.psnr(jnp.asarray(image), jnp.asarray(target), mask)
        corrected = metrics.color_corrected(image, target, frame.mask)
        corrected = metrics.psnr(jnp.asarray(corrected), jnp.asarray(target), mask)
        compared = image if frame.mask is None else np.where(frame.mask[..., None], image, target)
        similarity = float("nan")
        if min(image.shape[:2]) >= 11:
            similarity = _ssim(jnp.asarray(compared), jnp.asarray(target))
        # A blend over the background may round to more than 1.
        difference = metrics.flip(image, np.clip(target, 0, 1), frame.mask)
        yield ViewScore(
            name=frame.name,
            psnr=float(decibels),
            psnr_corrected=float(corrected),
            ssim=float(similarity),
            flip=difference,
            image=image,
            target=target,
        )


_ssim = jax.jit(metrics.ssim)
