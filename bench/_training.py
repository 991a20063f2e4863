"""A fit of synthetic views, ready for its first step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrec import Frame, PinholeCamera, Spheres, look_at, render
from jaxrec.train import FitSettings, FitState, SceneNormalizer, SphereModel, build_shader

NORMALIZER = SceneNormalizer(center=(0.0, 0.0, 0.0), scale=1.0, near=0.5, far=4.0)
TRUTH = 20_000  # spheres that the views show


class Fit(NamedTuple):
    """What `jaxrec.train.fit` starts from."""

    frames: list[Frame]
    state: FitState
    normalizer: SceneNormalizer


def synthetic_fit(settings: FitSettings, views: int, size: int) -> Fit:
    """Makes a fit of `views` images, `size` x `size`, of coloured spheres on white.

    The state starts from as many spheres as the settings say, anywhere in the same ball.
    """
    shader = build_shader(settings, jax.random.key(0))
    points = _ball(settings.spheres, seed=1)
    spacing = float(4 / 3 * np.pi * 0.5**3 / settings.spheres) ** (1 / 3)
    spheres = Spheres.create(
        points,
        np.full(len(points), spacing, np.float32),
        np.full(len(points), settings.opacity, np.float32),
        shader.initial_features(jnp.full(points.shape, 0.5), jax.random.key(1)),
    )
    state = FitState.create(SphereModel(spheres, shader), settings)
    return Fit(_frames(views, size), state, NORMALIZER)


def _frames(views: int, size: int) -> list[Frame]:
    points = _ball(TRUTH, seed=2)
    colors = 0.5 + 0.5 * np.sin(9 * points)
    truth = Spheres.create(
        points, np.full(TRUTH, 0.03, np.float32), np.full(TRUTH, 0.9, np.float32), colors
    )
    frames = []
    for turn in 2 * np.pi * np.arange(views) / views:
        eye = np.array([2 * np.cos(turn), 2 * np.sin(turn), 0.7 * np.sin(3 * turn)], np.float32)
        pose = look_at(eye, np.zeros(3, np.float32), np.array([0, 0, 1], np.float32))
        camera = PinholeCamera(pose, [1.6 * size] * 2, [size / 2] * 2, width=size, height=size)
        seen = render(truth, camera, near=NORMALIZER.near, far=NORMALIZER.far)
        image = np.asarray(seen.features + (1 - seen.alpha)[..., None])
        frames.append(Frame(camera, image))
    return frames


def _ball(count: int, seed: int) -> np.ndarray:
    """Points spread evenly in a ball of radius 0.5 about the origin."""
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(count, 3))
    points *= (
        0.5 * draw.uniform(0, 1, (count, 1)) ** (1 / 3) / np.linalg.norm(points, axis=1)[:, None]
    )
    return points.astype(np.float32)
