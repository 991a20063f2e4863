"""Tells what the shape of a sphere's kernel is worth: one image, painted with discs.

    python bench/kernel_shape.py --out OUT [--sets lego,fern] [--counts 250,1000] [--steps 600]

Discs lie one over the other in a fixed order, as `kind="alpha"` composites spheres, and differ in
their kernel alone: (1 - t)^b with t = (p / r)^2, of which b = 2 is that of `blend`, a Gaussian of
deviation r / 3, and the same power learned for each disc (Liu et al., "Deformable Beta Splatting",
SIGGRAPH 2025). Places, radii, opacities and colours are learned with the same steps. So what is
compared is how well a shape paints, not how well it generalises.

The image is the first of those held out, at about --size pixels across. Prints a line of JSON for
each kernel and count, and writes OUT/kernel_shape.jsonl and a table, OUT/kernel_shape.md.
"""

import argparse
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from _harness import chosen, commit, device
from jaxrec.data import open_capture
from quality import SETS, WHITE

# Each takes (p / r)^2 and what a disc has learned of its shape.
KERNELS: Mapping[str, Callable[[Array, Array], Array]] = {
    "power 1": lambda t, _: jnp.maximum(1 - t, 0),
    "power 2": lambda t, _: jnp.maximum(1 - t, 0) ** 2,
    "power 4": lambda t, _: jnp.maximum(1 - t, 0) ** 4,
    "gaussian": lambda t, _: jnp.exp(-4.5 * t),
    "learned power": lambda t, shape: jnp.where(
        t < 1, jnp.exp(2 * jnp.exp(shape) * jnp.log1p(-jnp.minimum(t, 0.999))), 0
    ),
}
_RATES = {"places": 0.2, "radii": 2e-2, "opacities": 5e-2, "colors": 1e-2, "shapes": 2e-2}


def paint(
    kernel: str, discs: Mapping[str, Array], height: int, width: int
) -> Float[Array, "h w 3"]:
    """Composites discs over white, the first in front."""
    rows, columns = jnp.mgrid[0:height, 0:width].astype(jnp.float32) + 0.5
    pixels = jnp.stack([columns, rows], axis=-1).reshape(-1, 1, 2)
    away = jnp.square(pixels - discs["places"][None]).sum(axis=-1)
    t = away / jnp.exp(2 * discs["radii"])[None]
    alphas = jax.nn.sigmoid(discs["opacities"])[None] * KERNELS[kernel](t, discs["shapes"][None])
    passed = jnp.cumsum(jnp.log1p(-jnp.minimum(alphas, 0.999)), axis=-1)
    before = jnp.exp(jnp.pad(passed[:, :-1], ((0, 0), (1, 0))))
    color = (alphas * before) @ discs["colors"] + jnp.exp(passed[:, -1:])
    return color.reshape(height, width, 3)


def scatter(image: np.ndarray, count: int, seed: int) -> dict[str, Array]:
    """Discs at random places, in the image's colours there, which cover it a few times."""
    height, width = image.shape[:2]
    random = np.random.default_rng(seed)
    places = random.uniform(0, 1, (count, 2)) * [width, height]
    column, row = places.astype(int).T
    radius = 2 * np.sqrt(height * width / (np.pi * count))
    values = {
        "places": places,
        "radii": np.full(count, np.log(radius)),
        "opacities": np.full(count, 0.4),
        "colors": image[row, column],
        "shapes": np.zeros(count),
    }
    return {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}


@functools.partial(jax.jit, static_argnums=(0, 2))
def fit(kernel: str, discs: dict[str, Array], steps: int, image: Array) -> Float[Array, ""]:
    """Descends along the gradient of the squared error, and returns the PSNR at last."""
    height, width = image.shape[:2]
    decay = functools.partial(optax.cosine_decay_schedule, decay_steps=steps)
    transforms = {name: optax.adam(decay(rate)) for name, rate in _RATES.items()}
    optimizer = optax.multi_transform(transforms, {name: name for name in discs})

    def error(discs):
        return jnp.square(paint(kernel, discs, height, width) - image).mean()

    def step(carry, _):
        discs, state = carry
        updates, state = optimizer.update(jax.grad(error)(discs), state, discs)
        return (optax.apply_updates(discs, updates), state), None

    (discs, _), _ = jax.lax.scan(step, (discs, optimizer.init(discs)), length=steps)
    shown = jnp.clip(paint(kernel, discs, height, width), 0, 1)
    return -10 * jnp.log10(jnp.square(shown - image).mean())


def load(data: pathlib.Path, name: str, size: int) -> np.ndarray:
    """The first held-out image of a set, about `size` pixels wide, over white."""
    known = SETS[name]
    capture = open_capture(data / known.folder)
    factor = max(1, round(capture.test[0].camera.width / size))
    frame = open_capture(data / known.folder, downscale=factor).test[0].load()
    return np.asarray(frame.over(WHITE), np.float32)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Kernels as lines of markdown, images and counts as columns."""
    columns = list(dict.fromkeys((row["set"], row["count"]) for row in rows))
    found = {(row["kernel"], row["set"], row["count"]): row["psnr"] for row in rows}
    head = " | ".join(f"{name}, {count} discs" for name, count in columns)
    lines = [f"| kernel | {head} |", "|---|" + "---|" * len(columns)]
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        cells = (f"{found[kernel, *column]:.2f}" for column in columns)
        lines.append(f"| {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Tells what the shape of a kernel is worth.")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for both files")
    parser.add_argument("--sets", default="lego,fern", help=f"some of {','.join(SETS)}")
    parser.add_argument("--counts", default="250,1000", help="of discs, separated by commas")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--size", type=int, default=100, help="pixels across")
    parser.add_argument("--seed", type=int, default=0)
    shared = pathlib.Path(__file__).resolve().parents[1] / "../shared/data"
    parser.add_argument("--data", type=pathlib.Path, default=shared, help="folder of the captures")
    options = parser.parse_args(arguments)
    images = {
        name: load(options.data, name, options.size)
        for name in chosen(options.sets, list(SETS), "--sets")
    }
    rows = []
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "kernel_shape.jsonl").open("w") as file:
        for name, image in images.items():
            for count in map(int, options.counts.split(",")):
                discs = scatter(image, count, options.seed)
                for kernel in KERNELS:
                    psnr = float(fit(kernel, discs, options.steps, jnp.asarray(image)))
                    known = {"width": image.shape[1], "height": image.shape[0]}
                    rows.append(
                        {"case": "kernel_shape", "kernel": kernel, "set": name, "count": count,
                         "steps": options.steps, "psnr": round(psnr, 3), **known,
                         "device": device(), "commit": commit()}
                    )  # fmt: skip
                    print(json.dumps(rows[-1]), file=file, flush=True)
                    print(json.dumps(rows[-1]), flush=True)
    (options.out / "kernel_shape.md").write_text(table(rows))
    print(table(rows), end="")


if __name__ == "__main__":
    main()
