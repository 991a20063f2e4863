"""Speed of `jaxrec.blend` on the scene of Pulsar's own benchmark.

N spheres with centers in [-5, 5]^2 x [25, 35] m, radii up to `rmax`, three channels, seen by a
pinhole camera at the origin (focal length 5, sensor width 2), gamma 0.1. The backward pass is that
of the sum of the image, to centers, colours, radii and rays (the camera), alone.

    python bench/blend.py [--kind softmax|alpha] [--scaling]
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from _harness import commit, device, queued_ms, report
from jaxrec import Rays, blend

NEAR, FAR, GAMMA, STOP = 5.000002, 45.0, 0.1, 0.01
CASES = {"E": (10_000, 256, 0.5), "E5k": (5_000, 256, 0.3)}
# Rows of the published comparison that need a GPU; F's image is square here, of as many pixels.
GPU_CASES = {
    "A": (1_000_000, 1000, 1.0),
    "B": (1_000_000, 1000, 0.05),
    "C": (1_000_000, 1000, 0.01),
    "D": (100_000, 1000, 0.1),
    "E": (10_000, 256, 0.5),
    "F": (4_400_000, 2880, 0.05),
}


def scene(spheres: int, width: int, rmax: float):
    """Spheres, rays and background of the benchmark."""
    draw = np.random.default_rng(1)
    low, high = np.array([-5.0, -5.0, 25.0]), np.array([5.0, 5.0, 35.0])
    centers = draw.uniform(low, high, (spheres, 3))
    colors = draw.uniform(0, 1, (spheres, 3))
    radii = draw.uniform(0, rmax, spheres)
    pixel = 2.0 / width
    x, y = np.meshgrid(*2 * [(np.arange(width) - (width - 1) / 2) * pixel])
    rays = np.stack([x, y, np.full_like(x, 5.0)], axis=-1)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)

    def array(x):
        return jnp.asarray(x, jnp.float32)

    return (
        array(centers),
        array(radii),
        jnp.ones(spheres),
        array(colors),
        jnp.zeros((1, width, width, 3)),
        array(rays[None]),
        array([[0.0, pixel / 2 / 5.0]]),
        jnp.ones(3),
    )


def image(arrays, kind, hits):
    """The image of the benchmark."""
    centers, radii, opacities, colors, origins, directions, footprint, background = arrays
    return blend(
        centers,
        radii,
        opacities,
        colors,
        Rays(origins, directions, footprint),
        background,
        near=NEAR,
        far=FAR,
        gamma=GAMMA,
        kind=kind,
        stop="per_sphere",
        stop_p=STOP,
        gradient_hits=hits,
    ).features


def forward_ms(arrays, kind) -> float:
    """Time of the forward pass with ready rays."""
    forward = jax.jit(lambda arrays: image(arrays, kind, None))
    return queued_ms(lambda: forward(arrays))


def backward_ms(arrays, kind, hits) -> float:
    """Time of the pullback alone."""
    variables = (arrays[0], arrays[1], arrays[3], arrays[4], arrays[5])

    def of(centers, radii, colors, origins, directions):
        full = (centers, radii, arrays[2], colors, origins, directions, *arrays[6:])
        return image(full, kind, hits)

    result, pullback = jax.vjp(of, *variables)
    backward = jax.jit(lambda pullback, d: pullback(d))
    ones = jnp.ones_like(result)
    return queued_ms(lambda: backward(pullback, ones))


def run(kind: str, cases: dict[str, tuple[int, int, float]]) -> None:
    """Prints the passes of each case."""
    where = {"kind": kind, "device": device(), "commit": commit()}
    for name, sizes in cases.items():
        arrays = scene(*sizes)
        config = dict(zip(("spheres", "width", "rmax"), sizes, strict=True))
        for step, ms in (
            ("forward", forward_ms(arrays, kind)),
            ("backward_k5", backward_ms(arrays, kind, 5)),
            ("backward_exact", backward_ms(arrays, kind, None)),
        ):
            report(case=name, **{"pass": step}, ms=round(ms, 3), **config, **where)


def scaling(kind: str) -> None:
    """Prints how cost grows: the exponents of the number of spheres and of pixels."""
    sweeps = {
        "spheres": [(n, 256, 0.3) for n in (5_000, 10_000, 20_000, 40_000)],
        "pixels": [(10_000, w, 0.3) for w in (128, 256, 512, 1024)],
    }
    for axis, sizes in sweeps.items():
        passes = {"forward": [], "backward_exact": []}
        for size in sizes:
            arrays = scene(*size)
            passes["forward"].append(forward_ms(arrays, kind))
            passes["backward_exact"].append(backward_ms(arrays, kind, None))
        steps = [n for n, *_ in sizes] if axis == "spheres" else [w * w for _, w, _ in sizes]
        for step, times in passes.items():
            pairs = itertools.pairwise(zip(steps, times, strict=True))
            local = [float(np.log(t1 / t0) / np.log(s1 / s0)) for (s0, t0), (s1, t1) in pairs]
            slope = float(np.polyfit(np.log(steps), np.log(times), 1)[0])
            report(
                case=f"scaling/{axis}",
                **{"pass": step},
                exponent=round(slope, 2),
                between=[round(x, 2) for x in local],
                ms=[round(t, 2) for t in times],
                kind=kind,
                device=device(),
                commit=commit(),
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("softmax", "alpha"), default="softmax")
    parser.add_argument("--scaling", action="store_true", help="also print growth exponents")
    parser.add_argument("--gpu", action="store_true", help="the cases for a GPU")
    options = parser.parse_args()
    run(options.kind, GPU_CASES if options.gpu else CASES)
    if options.scaling:
        scaling(options.kind)
