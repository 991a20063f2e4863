"""The training loop: which step comes next, what is reported when. It owns no mathematics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..sensors import Frame
from .antialias import bound_due, bound_radii
from .batches import FrameOrder, reduce_stack, reduction, stack_frames
from .density import grow, growth_due
from .evaluate import FittedScene
from .initialize import Points, initial_spheres
from .model import SphereModel, build_shader
from .normalizer import SceneNormalizer
from .settings import FitSettings
from .state import FitState
from .step import make_step

OnStep = Callable[[int, FitState], None]
OnProgress = Callable[[int, Mapping[str, float]], None]


def start(
    frames: Sequence[Frame],
    settings: FitSettings,
    normalizer: SceneNormalizer | None = None,
    points: Points | None = None,
) -> tuple[FitState, SceneNormalizer]:
    """Prepares a fit: its scene and its state at step 0.

    Args:
        frames: Views to fit.
        settings: Of the fit.
        normalizer: The scene's coordinates; chosen from the cameras if None.
        points: What is known of the scene's shape, such as `Capture.points`.

    Raises:
        ValueError: If there is no frame, or no pixel to fit.
    """
    if not frames:
        raise ValueError("frames: got none, want at least one")
    if normalizer is None:
        normalizer = SceneNormalizer.from_cameras([frame.camera for frame in frames])
    # Steps fold their numbers into the same key, none of them as large as this.
    key = jax.random.fold_in(jax.random.key(settings.seed), 2**32 - 1)
    shader_key, feature_key = jax.random.split(key)
    shader = build_shader(settings, shader_key)
    spheres = initial_spheres(frames, normalizer, settings, shader, feature_key, points)
    return FitState.create(SphereModel(spheres, shader), settings), normalizer


def fit(
    frames: Sequence[Frame],
    settings: FitSettings,
    *,
    state: FitState | None = None,
    normalizer: SceneNormalizer | None = None,
    points: Points | None = None,
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
        state, normalizer = start(frames, settings, normalizer, points)
    stacks = stack_frames(frames, normalizer, compact=settings.compact_images)
    sizes = [stack.images.shape[0] for stack in stacks]
    order = FrameOrder(sizes, settings.views_per_step, settings.seed)
    step = make_step(settings, normalizer)
    metrics: dict[str, Any] = {}
    done = int(state.step)
    reported = done
    level, shown = 1, stacks
    while done < settings.steps and not (should_stop is not None and should_stop()):
        if reduction(settings, done) != level:
            level = reduction(settings, done)
            shown = [reduce_stack(stack, level) for stack in stacks]
        group, index = order.at(done)
        state, metrics = step(state, shown[group], index)
        done += 1
        if growth_due(settings, done):
            state = grow(state, settings)
        if bound_due(settings, done):
            state = bound_radii(state, [stack.cameras for stack in stacks], settings)
        if on_step is not None:
            on_step(done, state)
        if on_progress is not None and done % settings.progress_every == 0:
            on_progress(done, _on_host(metrics))
            reported = done
    if on_progress is not None and reported < done:
        on_progress(done, _on_host(metrics))
    return FittedScene(state, settings, normalizer)


def _on_host(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
