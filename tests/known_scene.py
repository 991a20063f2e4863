"""A small scene that is known exactly, its photographs, and fits that start close to it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrec.rendering import render
from jaxrec.scene import Spheres
from jaxrec.sensors import Frame, PinholeCamera, look_at
from jaxrec.shading import PlainColor
from jaxrec.train import (
    Backdrop,
    Calibration,
    FitSettings,
    FitState,
    LossWeights,
    NoGrowth,
    SceneNormalizer,
    SphereModel,
)

SIZE, COUNT, IMAGES = 32, 40, 8
BACKGROUND = (0.1, 0.15, 0.2)
CENTER = np.float32([1.0, -2.0, 0.5])
# Fixed, so that neither a changed camera nor a changed lens changes the scene's coordinates.
NORMALIZER = SceneNormalizer((1.0, -2.0, 0.5), 1 / 3)
SETTINGS = FitSettings(
    steps=200,
    horizon=400,
    spheres=COUNT,
    shader="plain",
    background=BACKGROUND,
    backdrop=Backdrop(kind="constant"),
    losses=LossWeights(d_ssim=0.0),
    growth=NoGrowth(),
)


def world_spheres() -> Spheres:
    draw = np.random.default_rng(7)
    centers = draw.normal(size=(COUNT, 3))
    centers *= draw.uniform(0.3, 0.9, (COUNT, 1)) / np.linalg.norm(centers, axis=1, keepdims=True)
    return Spheres.create(
        CENTER + centers.astype(np.float32),
        draw.uniform(0.15, 0.4, COUNT).astype(np.float32),
        np.full(COUNT, 0.9, np.float32),
        draw.uniform(0.1, 0.7, (COUNT, 3)).astype(np.float32),
    )


def cameras(count: int = IMAGES, offset: float = 0.0) -> list[PinholeCamera]:
    made = []
    for i in range(count):
        angle = 2 * np.pi * (i + offset) / count
        away = np.array([np.cos(angle), np.sin(angle), 0.6 * np.sin(2.3 * i + offset)])
        eye = CENTER + 3 * (away / np.linalg.norm(away)).astype(np.float32)
        made.append(
            PinholeCamera(
                look_at(eye, CENTER, np.float32([0, 0, 1])),
                focal=jnp.full(2, 44.0),
                principal=jnp.full(2, SIZE / 2),
                width=SIZE,
                height=SIZE,
            )
        )
    return made


def photographs(some: list[PinholeCamera]) -> list[Frame]:
    spheres, behind = world_spheres(), np.float32(BACKGROUND)
    seen = (render(spheres, camera, near=0.06, far=3000.0, background=behind) for camera in some)
    return [
        Frame(camera, np.array(view.features), name=f"{i:02d}.png")
        for i, (camera, view) in enumerate(zip(some, seen, strict=True))
    ]


def begin(frames: list[Frame], settings: FitSettings, blur: float = 0.0) -> FitState:
    """A state whose spheres are the true ones, off by `blur` scene units and in colour."""
    spheres = world_spheres()
    draw = jax.random.split(jax.random.key(3))
    centers = (spheres.centers - jnp.broadcast_to(jnp.asarray(CENTER), (COUNT, 3))) / 3
    spheres = dataclasses.replace(
        spheres,
        centers=centers + blur * jax.random.normal(draw[0], centers.shape),
        radii=spheres.radii / 3,
        features=spheres.features + blur * jax.random.normal(draw[1], (COUNT, 3)),
    )
    placed = [NORMALIZER.scene_camera(frame.camera) for frame in frames]
    calibration = Calibration.create(placed, settings)
    return FitState.create(SphereModel(spheres, PlainColor()), settings, calibration)
