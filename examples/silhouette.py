"""Deforms a ball into a torus that it has only seen as silhouettes.

A thousand small spheres cover a ball. Twenty cameras around it know where a torus is in front of
the background, and nothing else: no colour, no depth. Adam moves and resizes the spheres until the
absolute difference of the silhouettes is small, first softly, then sharply; spheres that shrink
away are removed, which is how the hole opens. Views that the fit has not seen are the judges.

    python examples/silhouette.py --out silhouette
"""

import argparse
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from PIL import Image

import jaxrec

DISTANCE = 4.0  # of the cameras from the middle, in metres
NEAR, FAR = 2.0, 6.0
HELD_OUT = 8
# Pulsar's blend is soft where gamma is large: spheres behind others, and those in the middle of
# what is covered already, feel the loss too. A silhouette is sharp where gamma is small.
SOFTEST, SOFT, SHARP = 1.0, 0.1, 1e-3
LEARNING_RATE = 0.02


class Deformed(NamedTuple):
    """What the fit may change of each sphere, and which are left."""

    centers: jax.Array
    log_radii: jax.Array
    alive: jax.Array

    def spheres(self) -> jaxrec.Spheres:
        """White, opaque spheres."""
        count = len(self.log_radii)
        return jaxrec.Spheres(
            centers=self.centers,
            radii=jnp.exp(self.log_radii),
            opacities=jnp.ones(count),
            features=jnp.ones((count, 1)),
            alive=self.alive,
        )


def directions(count: int, turn: float = 0.0) -> np.ndarray:
    """Unit vectors spread evenly, on a spiral from pole to pole that starts at an angle."""
    rank = np.arange(count) + 0.5
    height = 1 - 2 * rank / count
    angle = turn + np.pi * (1 + np.sqrt(5)) * rank
    radius = np.sqrt(1 - height**2)
    around = [radius * np.cos(angle), height, radius * np.sin(angle)]
    return np.stack(around, axis=-1).astype(np.float32)


def cameras(count: int, size: int, turn: float = 0.0) -> jaxrec.PinholeCamera:
    """A stack of square views from all sides."""
    views = [
        jaxrec.PinholeCamera(
            jaxrec.look_at(DISTANCE * direction, target=(0.0, 0.0, 0.0), up=(0.0, 1.0, 0.0)),
            focal=(1.4 * size, 1.4 * size),
            principal=(size / 2, size / 2),
            width=size,
            height=size,
        )
        for direction in directions(count, turn)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *views)


def torus(count: int = 256) -> jaxrec.Spheres:
    """Spheres strung closely on a ring."""
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    ring = [0.8 * np.cos(angle), 0.8 * np.sin(angle), 0 * angle]
    return jaxrec.Spheres.create(
        centers=np.stack(ring, axis=-1).astype(np.float32),
        radii=np.full(count, 0.3, np.float32),
        opacities=np.ones(count, np.float32),
        features=np.ones((count, 1), np.float32),
    )


def ball(count: int) -> Deformed:
    """Spheres on the unit sphere, large enough to overlap."""
    radius = np.float32(3.2 / np.sqrt(count))
    return Deformed(
        jnp.asarray(directions(count)),
        jnp.full(count, np.log(radius)),
        jnp.ones(count, bool),
    )


@jax.jit
def silhouettes(
    spheres: jaxrec.Spheres, views: jaxrec.PinholeCamera, gamma: jax.typing.ArrayLike = SHARP
) -> jax.Array:
    """How much of each pixel the spheres cover, in each view."""
    return jaxrec.render(
        spheres, views, near=NEAR, far=FAR, gamma=gamma, background=0.0, kind="softmax"
    ).alpha


def intersection_over_union(a: jax.Array, b: jax.Array) -> jax.Array:
    """The share, in each view, of what either shows that both show; 1 for equal silhouettes."""
    a, b = a > 0.5, b > 0.5
    return (a & b).sum((-2, -1)) / (a | b).sum((-2, -1))


def fit(start: Deformed, views: jaxrec.PinholeCamera, target: jax.Array, steps: int) -> Deformed:
    """Deforms until the silhouettes are the target's, and prints the loss on the way."""
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, steps, alpha=0.1))
    smallest = start.log_radii.min() - np.float32(np.log(2))

    def loss_of(shape: tuple[jax.Array, jax.Array], alive: jax.Array, gamma: jax.Array):
        return jnp.abs(silhouettes(Deformed(*shape, alive).spheres(), views, gamma) - target).mean()

    @jax.jit
    def step(shape, alive, state, progress):
        gamma = SOFTEST * (SOFT / SOFTEST) ** progress
        loss, gradient = jax.value_and_grad(loss_of)(shape, alive, gamma)
        updates, state = optimizer.update(gradient, state)
        centers, log_radii = jax.tree.map(jnp.add, shape, updates)
        return (centers, log_radii), alive & (log_radii > smallest), state, loss

    shape, alive = (start.centers, start.log_radii), start.alive
    state = optimizer.init(shape)
    for i in range(steps):
        shape, alive, state, loss = step(shape, alive, state, np.float32(i / steps))
        if i % max(1, steps // 6) == 0 or i == steps - 1:
            print(f"step {i + 1:4d}: loss {loss:.4f}, {alive.sum()} spheres", flush=True)
    return Deformed(shape[0], shape[1], alive)


def contact_sheet(*rows: jax.Array) -> Image.Image:
    """Views side by side, one row below the other, white on dark grey."""
    tiles = [np.pad(np.asarray(row), ((0, 0), (2, 2), (2, 2)), constant_values=0.5) for row in rows]
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in tiles])
    picture = Image.fromarray(np.round(255 * sheet).astype(np.uint8))
    return picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)


def run(out: pathlib.Path, *, spheres: int, views: int, size: int, steps: int) -> float:
    """Fits, prints, draws, and returns the mean intersection over union of the held-out views.

    Args:
        out: Folder that exists.
        spheres: Number of spheres of the ball.
        views: Number of silhouettes to fit.
        size: Side of a view in pixels.
        steps: Number of steps of the optimiser.
    """
    train, held_out = cameras(views, size), cameras(HELD_OUT, size, turn=1.0)
    start = ball(spheres)
    began = time.perf_counter()
    fitted = fit(start, train, silhouettes(torus(), train), steps)
    seconds = time.perf_counter() - began
    truth = silhouettes(torus(), held_out)
    before, after = (silhouettes(shape.spheres(), held_out) for shape in (start, fitted))
    scores = intersection_over_union(after, truth)
    print(
        f"held-out intersection over union {scores.mean():.3f}, worst view {scores.min():.3f} "
        f"(the ball: {intersection_over_union(before, truth).mean():.3f}); {seconds:.1f} s"
    )
    file = out / "silhouettes.png"
    contact_sheet(before, after, truth, jnp.abs(after - truth)).save(file)
    print(f"{file}: held-out views of the ball, the result, the torus and the difference")
    return float(scores.mean())


def main(arguments: Sequence[str] | None = None) -> float:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--spheres", type=positive, default=1000, help="of the ball")
    parser.add_argument("--views", type=positive, default=20, help="silhouettes to fit")
    parser.add_argument("--size", type=positive, default=64, help="side of a view in pixels")
    parser.add_argument("--steps", type=positive, default=300, help="of the optimiser")
    return run(**read_options(parser, arguments))


def read_options(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> dict[str, Any]:
    """Reads the command line, and makes the folder `--out` that pictures are written to."""
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the picture")
    options = vars(parser.parse_args(arguments))
    try:
        options["out"].mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"got {options['out']} ({error.strerror})"
        parser.error(f"argument --out: {found}; name a folder to write to")
    return options


def positive(text: str) -> int:
    """Reads a whole number of at least 1 from the command line."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; give a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    main()
