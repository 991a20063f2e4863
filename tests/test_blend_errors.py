"""Wrong arguments of `blend`: each names the argument, what was given and what is wanted."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec import Rays, blend, check
from problems import problem

NAMES = ("centers", "radii", "opacities", "features", "origins", "directions", "footprint")


def arguments(**changes):
    values = problem(spheres=5, grid=(1, 3, 4)).arrays(np.float32)
    named = dict(zip((*NAMES, "background"), values, strict=True)) | changes
    rays = Rays(*(named.pop(name) for name in NAMES[4:]), named.pop("times", None))
    return {**named, "rays": rays}


def call(**changes):
    options = {"near": 0.1, "far": 9.0, "gamma": 0.1, "kind": "alpha"}
    operands = {k: v for k, v in changes.items() if k not in EXTRA}
    options |= {k: v for k, v in changes.items() if k in EXTRA}
    named = arguments(**operands)
    order = ("centers", "radii", "opacities", "features", "rays", "background")
    return blend(*(named[name] for name in order), **options)


EXTRA = ("kind", "stop", "stop_p", "gradient_hits", "nearest", "tile", "velocities")


@pytest.mark.usefixtures("own_errors")
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"centers": jnp.zeros((5, 2))}, r"centers has shape \(5, 2\); wanted \(N, 3\)"),
        ({"radii": jnp.zeros(4)}, r"radii has shape \(4,\); wanted \(N = 5\)"),
        ({"opacities": jnp.zeros((5, 1))}, r"opacities has shape \(5, 1\); wanted \(N = 5\)"),
        ({"features": jnp.zeros(5)}, r"features has shape \(5,\); wanted \(N = 5, C >= 1\)"),
        ({"features": jnp.zeros((5, 0))}, r"features has shape \(5, 0\); wanted .*C >= 1"),
        ({"origins": jnp.zeros((3, 4, 3))}, r"rays.origins has shape .*wanted \(V, H, W, 3\)"),
        ({"directions": jnp.zeros((1, 3, 5, 3))}, r"rays.directions .*wanted \(1, 3, 4, 3\)"),
        ({"footprint": jnp.zeros((2, 2))}, r"rays.footprint has .*wanted \(V = 1, 2\)"),
        ({"background": jnp.zeros(4)}, r"background has shape \(4,\); wanted \(3,\) or \(1, 3, 4"),
        ({"centers": jnp.zeros((5, 3), jnp.int32)}, "centers has dtype int32; pass float32"),
        ({"radii": jnp.zeros(5, jnp.bfloat16)}, "radii has dtype bfloat16; pass float32"),
        ({"radii": [1.0] * 5}, "radii is a list; pass a JAX array"),
        ({"velocities": jnp.zeros((4, 3))}, r"velocities has shape \(4, 3\); wanted \(N = 5, 3\)"),
        (
            {"velocities": jnp.zeros((5, 3)), "times": jnp.zeros((3, 4))},
            r"rays.times has shape \(3, 4\); wanted \(1, 3, 4\)",
        ),
        ({"velocities": jnp.zeros((5, 3), jnp.int32)}, "velocities has dtype int32; pass float32"),
        ({"kind": "gaussian"}, "kind is 'gaussian'; give 'softmax' or 'alpha'"),
        ({"stop": "early"}, "stop is 'early'; give None, 'per_sphere' or 'total'"),
        ({"stop": "total", "stop_p": 1.0}, r"stop_p is 1.0; give a share in \[0, 1\)"),
        ({"gradient_hits": 0}, "gradient_hits is 0; give None for all hits or a count >= 1"),
        ({"nearest": -1}, "nearest is -1; give a count >= 0"),
        ({"tile": 12}, r"tile is 12; give one of \(8, 16, 32\)"),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        call(**changes)


def with_entry(name, index, value):
    x = np.array(problem(spheres=5, grid=(1, 3, 4)).arrays(np.float32)[NAMES.index(name)])
    x[index] = value
    return {name: jnp.asarray(x)}


@pytest.mark.parametrize(
    "changes, message",
    [
        (with_entry("centers", (2, 1), np.nan), r"centers\[2, 1\] is nan; wanted a finite number"),
        (with_entry("radii", 3, np.inf), r"radii\[3\] is inf; wanted a finite number"),
        (with_entry("opacities", 1, 1.5), r"opacities\[1\] is 1.5; wanted a value in \[0, 1\]"),
        (
            with_entry("directions", (0, 1, 2), (0.0, 0.0, 2.0)),
            r"rays.directions\[0, 1, 2\] is 2; wanted a length of 1",
        ),
        (
            {"velocities": jnp.zeros((5, 3)).at[2, 1].set(jnp.nan)},
            r"velocities\[2, 1\] is nan; wanted a finite number",
        ),
        ({"near": 2.0, "far": 1.0}, "near is 2.0 and far 1.0; wanted 0 <= near < far"),
        ({"near": -1.0}, "near is -1.0"),
        ({"gamma": 0.0}, r"gamma is 0.0; wanted a value in \[1e-5, 1\]"),
    ],
)
def test_check_names_values(changes, message):
    limits = {k: v for k, v in changes.items() if k in ("near", "far", "gamma")}
    named = arguments(**{k: v for k, v in changes.items() if k not in limits})
    named.pop("background")
    with pytest.raises(ValueError, match=message):
        check(**named, **limits)


def test_check_accepts_what_is_good():
    named = arguments()
    named.pop("background")
    check(**named, near=0.1, far=9.0, gamma=0.1)
