"""The training loop: which step comes next, what is reported when. It owns no mathematics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array, Float

from ..sensors import Frame
from .antialias import bound_due, bound_radii
from .calibration import Calibration
from .density import grow, growth_due
from .evaluate import FittedScene
from .feed import make_feed
from .initialize import Points, initial_spheres
from .model import SphereModel, build_backdrop, build_image_shader, build_shader
from .normalizer import SceneNormalizer
from .settings import FitSettings
from .state import FitState
from .step import make_step
from .visibility import prune_due, prune_hidden

OnStep = Callable[[int, FitState], None]
OnProgress = Callable[[int, Mapping[str, float]], None]


def start(
    frames: Sequence[Frame],
    settings: FitSettings,
    normalizer: SceneNormalizer | None = None,
    *,
    points: Points | None = None,
    picture: Float[Array, "rows columns 3"] | None = None,
) -> tuple[FitState, SceneNormalizer]:
    """Prepares a fit: its scene and its state at step 0.

    Args:
        frames: Views to fit.
        settings: Of the fit.
        normalizer: The scene's coordinates; chosen from the cameras if None.
        points: What is known of the scene's shape, such as `Capture.points`.
        picture: What the backdrop starts from, or keeps.

    Raises:
        ValueError: If there is no frame, or no pixel to fit; if a learned backdrop meets cut-out
            images, or a given one has no picture.
    """
    if not frames:
        raise ValueError("frames: got none, want at least one")
    _check_backdrop(frames, settings, picture)
    _check_levels(frames, settings)
    if normalizer is None:
        known = None if points is None else points.positions
        cameras = [frame.camera for frame in frames]
        normalizer = SceneNormalizer.from_cameras(cameras, points=known)
    # Steps fold their numbers into the same key, none of them as large as this.
    key = jax.random.fold_in(jax.random.key(settings.seed), 2**32 - 1)
    shader_key, feature_key = jax.random.split(key)
    image_key = jax.random.fold_in(shader_key, 1)
    shader = build_shader(settings, shader_key)
    spheres = initial_spheres(frames, normalizer, settings, shader, feature_key, points)
    cameras = [normalizer.scene_camera(frame.camera) for frame in frames]
    calibration = Calibration.create(cameras, settings)
    model = SphereModel(
        spheres,
        shader,
        image_shader=build_image_shader(settings, shader.blended, image_key),
        backdrop=build_backdrop(settings, picture),
    )
    return FitState.create(model, settings, calibration), normalizer


def fit(
    frames: Sequence[Frame],
    settings: FitSettings,
    *,
    state: FitState | None = None,
    normalizer: SceneNormalizer | None = None,
    points: Points | None = None,
    picture: Float[Array, "rows columns 3"] | None = None,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FittedScene:
    """Fits spheres and a shader to frames.

    The same frames, settings and start give the same bits on the same machine, whether the fit
    runs in one piece or is stopped and resumed from any state.

    Args:
        frames: Views to fit, in world coordinates.
        settings: Of the fit. It ends when the state has seen `steps` steps.
        state: Where to resume; it is donated and dead afterwards. From the start if None.
        normalizer: The scene's coordinates, needed with `state`; chosen from the cameras if None.
        points: What is known of the scene's shape, used at the start.
        picture: What the backdrop starts from, or keeps; used at the start.
        on_step: Called after every step with its number and the state, whose arrays are dead after
            the next step: copy what is to be kept. Reading them waits for the device.
        on_progress: Called every `settings.progress_every` steps and at the end with the number
            of steps done and the metrics of the last one (see `make_step`).
        should_stop: Asked before every step; the fit ends early when it says so.

    Returns:
        The scene with its last state.

    Raises:
        ValueError: If there is nothing to fit, or `state` comes without `normalizer`.
    """
    if state is not None and normalizer is None:
        raise ValueError("normalizer: got none with a state; give the one that the state came with")
    if state is None or normalizer is None:
        state, normalizer = start(frames, settings, normalizer, points=points, picture=picture)
    step = make_step(settings, normalizer)
    metrics: dict[str, Any] = {}
    done = int(state.step)
    reported = done
    feed = make_feed(frames, normalizer, settings, done)
    while done < settings.steps and not (should_stop is not None and should_stop()):
        state, metrics = step(state, *feed.at(done))
        done += 1
        if prune_due(settings, done, len(frames)):
            state = prune_hidden(state, feed.cameras, normalizer, settings)
        if growth_due(settings, done):
            state = grow(state, settings)
        if bound_due(settings, done):
            state = bound_radii(state, feed.cameras, settings)
        if on_step is not None:
            on_step(done, state)
        if on_progress is not None and done % settings.progress_every == 0:
            on_progress(done, _on_host(metrics))
            reported = done
    if on_progress is not None and reported < done:
        on_progress(done, _on_host(metrics))
    return FittedScene(state, settings, normalizer)


def _check_backdrop(frames: Sequence[Frame], settings: FitSettings, picture: Any) -> None:
    kind = settings.backdrop.kind
    if settings.backdrop.shape is not None and any(frame.alpha is not None for frame in frames):
        raise ValueError(
            f"backdrop.kind: got {kind} for images with alpha, which show nothing of what is "
            "behind; want constant or random"
        )
    if kind == "picture" and picture is None:
        raise ValueError("picture: got none for backdrop.kind picture; give its texels")


def _check_levels(frames: Sequence[Frame], settings: FitSettings) -> None:
    side = min(min(frame.camera.width, frame.camera.height) for frame in frames)
    # The window of D-SSIM.
    least = 11 if settings.losses.d_ssim > 0 else 1
    if settings.coarse_levels > 0 and side >> settings.coarse_levels < least:
        raise ValueError(
            f"coarse_levels: got {settings.coarse_levels} for images of {side} pixels, which leave "
            f"{side >> settings.coarse_levels}; want at least {least}"
        )


def _on_host(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
