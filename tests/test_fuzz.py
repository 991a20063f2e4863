"""Random settings on random and degenerate scenes: no value may cease to be finite.

`pytest -m long tests/test_fuzz.py` runs 100 fits of 300 steps each; `-k 'long and 17'` one of them.
"""

import dataclasses
import functools
import math
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.data import PointCloud
from jaxrec.sensors import Frame, PinholeCamera, look_at
from jaxrec.train import Backdrop, FitSettings, fit, start

SPHERES = 40
# D-SSIM has a window of 11 pixels, which one size is too small for.
SIZES = ((24, 22), (11, 20), (7, 5))
WINDOW = 11


# ---- settings


def around(value, factor=10.0):
    """Draws from a factor below a value to a factor above it."""
    return lambda random: float(value * factor ** random.uniform(-1, 1))


def sometimes(draw):
    """Draws 0, which switches things off, in half of all cases."""
    return lambda random: draw(random) if random.random() < 0.5 else 0.0


def between(low, high):
    return lambda random: float(random.uniform(low, high))


def one_of(*values):
    return lambda random: values[random.integers(len(values))]


def integer(low, high):
    return lambda random: int(random.integers(low, high, endpoint=True))


# How to draw settings: all but choices among names, truth values and types, which need no entry.
DRAWS = {
    "steps": lambda random: 1,  # the test's
    "horizon": integer(1, 400),
    "seed": integer(0, 2**32 - 1),
    "spheres": lambda random: SPHERES,
    "first_share": between(0.05, 1),
    "gamma": lambda random: float(10 ** random.uniform(-5, 0)),
    "gamma_final": sometimes(lambda random: float(10 ** random.uniform(-5, 0))),
    "degree": integer(0, 3),
    "view_start": between(0, 0.4),
    "view_full": between(0.4001, 1),
    "view_dropout": between(0, 1),
    "background": lambda random: tuple(map(float, random.uniform(size=3))),
    "opacity": between(1e-3, 1 - 1e-3),
    "smallest_radius": sometimes(between(0, 3)),
    "coarse_levels": integer(0, 2),
    "coarse_until": between(0, 1),
    "views_per_step": integer(1, 3),
    "progress_every": lambda random: 1,  # so that every loss is seen
    "save_every": integer(1, 100),
    "rates.centers": around(1e-3),
    "rates.centers_final": around(0.1),
    "rates.others_final": around(0.1),
    "rates.radii": around(1e-2),
    "rates.opacities": around(3e-2),
    "rates.features": around(5e-3),
    "rates.features_rest": around(5e-3),
    "rates.shader": around(1e-3),
    "rates.backdrop": around(5e-3),
    "losses.d_ssim": sometimes(between(0, 1)),
    "losses.mse": sometimes(between(0, 1)),
    "losses.opacity": sometimes(around(1e-2)),
    "losses.entropy": sometimes(around(1e-2)),
    "losses.radius": sometimes(around(1e-2)),
    "losses.view": sometimes(around(1e-2)),
    # Those for which nothing has to be given.
    "backdrop.kind": one_of("constant", "random", "learned", "environment"),
    "backdrop.rows": integer(1, 4),
    "backdrop.columns": integer(1, 4),
    "backdrop.file": lambda random: "",
    "growth.every": integer(0, 20),
    "growth.start": between(0, 0.5),
    "growth.stop": between(0, 1),
    "growth.opacity": between(0.001, 1),
    "growth.share": between(0.01, 1),
    "growth.growth": between(0, 1),
    "growth.noise": sometimes(between(0, 2)),
    "growth.radius": around(0.02),
    "pruning.share": sometimes(between(0, 1 - 1e-6)),
    "pruning.every": integer(1, 40),
    "pruning.start": between(0, 0.5),
    "pruning.stop": between(0, 1),
    "depth.weight": sometimes(around(0.1)),
    "depth.width": around(0.05),
    "exposure.rate": around(2e-3),
    "exposure.columns": integer(1, 4),
    "exposure.rows": integer(1, 4),
    "exposure.levels": integer(1, 4),
    "exposure.total_variation": sometimes(around(10.0)),
    "cameras.poses": sometimes(around(1e-3)),
    "cameras.focal": sometimes(around(1e-3)),
    "cameras.principal": sometimes(around(1e-3)),
    "cameras.distortion": sometimes(around(1e-3)),
    "cameras.start": between(0, 0.5),
}


def fields(cls, prefix=""):
    """Names and types of the settings of a class: `rates.radii` for that of a group."""
    hints = typing.get_type_hints(cls)
    return {prefix + field.name: hints[field.name] for field in dataclasses.fields(cls)}


def groups(hint):
    """The dataclasses that a setting may be an instance of."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else [hint]
    return [option for option in options if dataclasses.is_dataclass(option)]


def names_of(cls, prefix=""):
    """Names of all settings, and whether their type says what there is to choose from."""
    names = {}
    for name, hint in fields(cls, prefix).items():
        literal = typing.get_origin(hint) is typing.Literal
        names[name] = hint is bool or literal or bool(groups(hint))
        for group in groups(hint):
            names |= names_of(group, f"{name}.")
    return names


def draw(cls, random, prefix=""):
    values = {}
    for name, hint in fields(cls, prefix).items():
        if name in DRAWS:
            value = DRAWS[name](random)
        elif hint is bool:
            value = bool(random.integers(2))
        elif options := groups(hint):
            value = draw(options[random.integers(len(options))], random, f"{name}.")
        else:
            options = typing.get_args(hint)
            value = options[random.integers(len(options))]
        values[name.removeprefix(prefix)] = value
    return cls(**values)


# ---- scenes


@dataclasses.dataclass(frozen=True)
class Problem:
    """A fit to be done. `edit` changes its start."""

    settings: FitSettings
    frames: list
    points: PointCloud
    picture: jax.Array | None = None
    edit: typing.Callable = lambda state: state


def photographs(random, size):
    """What a capture may hold: a round thing in front of colours that change slowly.

    Views need not agree, as what is asked is not whether a fit is close.
    """
    width, height = size
    cutout, masked, bent, ranged = random.integers(2, size=4)
    rows, columns = np.mgrid[0:height, 0:width] / max(size)
    inside = np.hypot(rows - height / 2 / max(size), columns - width / 2 / max(size)) < 0.3
    frames = []
    for _ in range(random.integers(1, 5)):
        eye = random.normal(size=3)
        eye = (3 * eye / np.linalg.norm(eye)).astype(np.float32)
        camera = PinholeCamera(
            look_at(eye, np.zeros(3, np.float32), random.normal(size=3).astype(np.float32)),
            focal=np.full(2, 1.2 * max(size), np.float32),
            principal=np.array([width / 2, height / 2], np.float32),
            width=width,
            height=height,
            distortion=random.normal(0, 0.05, 5).astype(np.float32) if bent else None,
        )
        phase = random.uniform(0, 6, (3, 1, 1)) + 4 * inside
        waves = 0.5 + 0.5 * np.sin(
            random.normal(0, 5) * rows + random.normal(0, 5) * columns + phase
        )
        image = np.moveaxis(waves, 0, -1).astype(np.float32)
        alpha = np.clip(inside + random.uniform(-0.3, 0.3, (height, width)), 0, 1)
        mask = random.random((height, width)) < 0.8
        # At least the pixel in the middle is there to be fitted.
        alpha[height // 2, width // 2] = mask[height // 2, width // 2] = 1
        # Without a measurement it is 0, and at some pixels NaN.
        depth = np.where(inside, random.uniform(1, 5, (height, width)), 0)
        depth[random.random((height, width)) < 0.1] = np.nan
        frames.append(
            Frame(
                camera,
                image,
                alpha=alpha.astype(np.float32) if cutout else None,
                mask=mask if masked else None,
                depth=depth.astype(np.float32) if ranged else None,
            )
        )
    return frames


def some_points(random):
    """Coloured points about the origin, and one far from it."""
    positions = random.normal(0, 0.5, (random.integers(2, 2 * SPHERES), 3)).astype(np.float32)
    positions[0] *= 1e4
    return PointCloud(positions, random.uniform(0, 1, positions.shape).astype(np.float32))


def with_images(problem, change):
    frames = [dataclasses.replace(f, image=change(f.image)) for f in problem.frames]
    return dataclasses.replace(problem, frames=frames)


def with_params(problem, **changes):
    """Changes parameters of the spheres at the start."""

    def edit(state):
        changed = {name: change(state.params[name]) for name, change in changes.items()}
        return dataclasses.replace(state, params={**state.params, **changed})

    return dataclasses.replace(problem, edit=edit)


def with_settings(problem, **changes):
    return dataclasses.replace(problem, settings=dataclasses.replace(problem.settings, **changes))


def filled(value):
    return lambda leaf: jnp.full_like(leaf, value)


def one_row(problem, random):
    """Images that are one pixel high."""
    del random

    def cut(frame):
        row = frame.camera.height // 2
        principal = np.asarray(frame.camera.principal) - np.array([0, row], np.float32)
        planes = {name: getattr(frame, name) for name in ("image", "alpha", "mask", "depth")}
        images = {k: None if plane is None else plane[row : row + 1] for k, plane in planes.items()}
        camera = dataclasses.replace(frame.camera, principal=principal, height=1)
        return dataclasses.replace(frame, camera=camera, **images)

    return dataclasses.replace(problem, frames=[cut(frame) for frame in problem.frames])


def masked_view(problem, random):
    """One more view, of which no pixel may be used."""
    del random
    first = problem.frames[0]
    empty = dataclasses.replace(first, mask=np.zeros(first.image.shape[:2], bool))
    return dataclasses.replace(problem, frames=[*problem.frames, empty])


def behind(problem, random):
    """One view, and all spheres behind it."""
    del random
    frame = problem.frames[0]
    pose = np.asarray(frame.camera.world_from_camera)

    def edit(state):
        # Of the world; with one view the scene differs from it by a shift and a scale alone.
        away = jnp.asarray(-20 * pose[None, :3, 2], jnp.float32)
        centers = 0.1 * state.params["centers"] + away
        return dataclasses.replace(state, params={**state.params, "centers": centers})

    return dataclasses.replace(problem, frames=[frame], edit=edit)


def dead(problem, random):
    """No sphere exists."""
    del random

    def edit(state):
        return dataclasses.replace(state, alive=jnp.zeros_like(state.alive))

    return dataclasses.replace(problem, edit=edit)


def far_away(problem, random):
    """A world whose origin is hundreds of kilometres off."""
    offset = random.uniform(-5e5, 5e5, 3).astype(np.float32)

    def move(frame):
        pose = np.array(frame.camera.world_from_camera)
        pose[:3, 3] += offset
        camera = dataclasses.replace(frame.camera, world_from_camera=pose)
        return dataclasses.replace(frame, camera=camera)

    points = dataclasses.replace(problem.points, positions=problem.points.positions + offset)
    frames = [move(frame) for frame in problem.frames]
    return dataclasses.replace(problem, frames=frames, points=points)


def coincident(problem, random):
    """All spheres in one place, of one size."""
    place = jnp.asarray(random.normal(0, 0.1, 3), jnp.float32)
    centers = lambda leaf: jnp.broadcast_to(place, leaf.shape)  # noqa: E731
    return with_params(problem, centers=centers, log_radii=filled(-2.0))


def exposed(problem, random):
    """Images a thousand times too bright or too dark."""
    factor = np.float32(10 ** random.uniform(-3, 3))
    return with_images(problem, lambda image: image * factor)


def constant(problem, random):
    color = np.float32(random.choice([0, 0.5, 1]))
    return with_images(problem, lambda image: np.full_like(image, color))


def huge(problem, random):
    return with_params(problem, log_radii=filled(random.uniform(3, 40)))


def tiny(problem, random):
    return with_params(problem, log_radii=filled(random.uniform(-40, -8)))


def certain(problem, random):
    """Opacities that are 0 or 1 in float32."""
    return with_params(problem, logit_opacities=filled(random.choice([-100.0, 100.0])))


def pictured(problem, random):
    """A given picture behind the scene."""
    backdrop = Backdrop("picture", rows=3, columns=5, file="given")
    picture = jnp.asarray(random.uniform(0, 1, (3, 5, 3)), jnp.float32)
    return dataclasses.replace(with_settings(problem, backdrop=backdrop), picture=picture)


SCENES = {
    "as captured": lambda problem, random: problem,
    "one sphere": lambda problem, random: with_settings(problem, spheres=1),
    "one row": one_row,
    "masked view": masked_view,
    "behind": behind,
    "dead": dead,
    "far away": far_away,
    "coincident": coincident,
    "huge": huge,
    "tiny": tiny,
    "certain": certain,
    "constant": constant,
    "exposed": exposed,
    "pictured": pictured,
}


def make_problem(seed, steps):
    """The name of a scene, and what to fit to it."""
    random = np.random.default_rng(seed)
    settings = dataclasses.replace(draw(FitSettings, random), steps=steps)
    frames = photographs(random, SIZES[random.integers(len(SIZES))])
    problem = Problem(settings, frames, some_points(random))
    # In turn, so that any few seeds that follow each other differ.
    name = list(SCENES)[seed % len(SCENES)]
    problem = SCENES[name](problem, random)
    return name, legal(problem)


def legal(problem):
    """Takes back what images are too small for, or what they say nothing of."""
    settings, frames = problem.settings, problem.frames
    side = min(min(frame.image.shape[:2]) for frame in frames)
    levels = min(settings.coarse_levels, side.bit_length() - 1)
    problem = with_settings(problem, coarse_levels=levels)
    if side >> levels < WINDOW:
        losses = dataclasses.replace(settings.losses, d_ssim=0.0)
        problem = with_settings(problem, losses=losses)
    if settings.backdrop.shape is not None:
        # Cut-out images show nothing of what is behind.
        whole = [dataclasses.replace(frame, alpha=None) for frame in frames]
        problem = dataclasses.replace(problem, frames=whole)
    return problem


# ---- the test


@jax.jit
def _finite(leaves):
    return [jnp.isfinite(leaf).all() for leaf in leaves]


def not_finite(tree):
    """Paths of the leaves that hold a value which is not finite."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    found = [(path, leaf) for path, leaf in found if jnp.issubdtype(leaf.dtype, jnp.floating)]
    good = _finite([leaf for _, leaf in found])
    pairs = zip(found, good, strict=True)
    return [jax.tree_util.keystr(path) for (path, _), finite in pairs if not finite]


def check_fit(seed, steps):
    """Fits what a seed draws and fails at the first value that is not finite."""
    scene_name, problem = make_problem(seed, steps)
    told = functools.partial("seed {}, {}: {}\n{}".format, seed, scene_name)

    def on_step(step, state):
        bad = not_finite(state)
        assert not bad, told(f"step {step}: {', '.join(bad)}", problem.settings)

    def on_progress(step, metrics):
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        assert not bad, told(f"step {step}: metrics {', '.join(bad)}", problem.settings)

    state, normalizer = start(
        problem.frames, problem.settings, points=problem.points, picture=problem.picture
    )
    fitted = fit(
        problem.frames,
        problem.settings,
        state=problem.edit(state),
        normalizer=normalizer,
        on_step=on_step,
        on_progress=on_progress,
    )
    assert int(fitted.state.step) == steps
    for frame in problem.frames:
        bad = not_finite(fitted.render(frame.camera)._asdict())
        assert not bad, told(f"rendered {', '.join(bad)}", problem.settings)


def test_every_setting_is_drawn():
    names = names_of(FitSettings)
    missing = {name for name, by_type in names.items() if not by_type} - set(DRAWS)
    assert not missing, f"add to DRAWS how to draw {', '.join(sorted(missing))}"
    gone = set(DRAWS) - set(names)
    assert not gone, f"take out of DRAWS, as no setting has these names: {', '.join(sorted(gone))}"


def test_a_seed_names_a_fit():
    name, problem = make_problem(7, 30)
    again, same = make_problem(7, 30)
    assert name == again == list(SCENES)[7] and problem.settings == same.settings
    for ours, theirs in zip(problem.frames, same.frames, strict=True):
        np.testing.assert_array_equal(ours.image, theirs.image)
    other, problem = make_problem(8, 30)
    assert other != name and problem.settings != same.settings


def test_what_is_not_finite_is_named():
    tree = {"a": jnp.asarray([1, jnp.nan]), "b": jnp.ones(2), "c": [jnp.asarray(-jnp.inf)]}
    assert not_finite({**tree, "d": jnp.arange(3), "e": jax.random.key(0)}) == ["['a']", "['c'][0]"]


@pytest.mark.parametrize("seed", range(2))
def test_short_fits_stay_finite(seed):
    check_fit(seed, 30)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_long_fits_stay_finite(seed):
    check_fit(seed, 300)
    # A hundred programs of their own are more than a process can map.
    jax.clear_caches()
