"""Finds the lights and the paint of a ball whose shape is known, from pictures under a few lights.

Small spheres cover a ball, each with the normal of the ball and an albedo of its own. Every camera
takes a picture under each of a few lights: a sun of unknown direction and colour, and a sky. A fit
that starts from grey paint under white skies refines the lights, as spherical harmonics of degree
2, and all albedos together, until the absolute difference of the pictures is small. Albedo and
light are known up to a common factor for each colour channel, which the mean albedo sets. Judges
are the directions and colours of the suns, and pictures from elsewhere under an unseen light.

Light from far away reaches a surface as a quadratic function of its normal, but for a few percent
(Ramamoorthi & Hanrahan, "An Efficient Representation for Irradiance Environment Maps", SIGGRAPH
2001). The suns of the pictures shine by the exact cosine, so those percents are in the results:
with the options as they are, suns are found within 5 degrees and 15 % of their colour.

    python examples/illumination.py --out illumination
"""

import argparse
import pathlib
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from PIL import Image
from silhouette import FAR, NEAR, cameras, directions, positive, read_options

import jaxrec
from jaxrec.shading import harmonics_basis

HELD_OUT = 4
LEARNING_RATE = 0.03
# What a cosine makes of each degree of the harmonics (equation 8), a factor for each function.
COSINE = np.array([np.pi] + 3 * [2 * np.pi / 3] + 5 * [np.pi / 4], np.float32)
CONSTANT = np.float32(np.sqrt(4 * np.pi))  # coefficient of a light that is 1 everywhere


class Lights(NamedTuple):
    """Suns and skies. Their units are such that a white surface turned to a sun of 1 shows 1."""

    towards: np.ndarray  # unit vectors to the suns, [lights, 3]
    suns: np.ndarray  # colours, [lights, 3]
    skies: np.ndarray  # colours, [lights, 3]

    def shade(self, normals: np.ndarray) -> np.ndarray:
        """What white spheres show under each light, [lights, spheres, 3]: Lambert's law."""
        cosines = np.maximum(self.towards @ normals.T, 0)
        return cosines[..., None] * self.suns[:, None] + self.skies[:, None]


class Appearance(NamedTuple):
    """What the fit may change."""

    light: jax.Array  # coefficients of the radiance of the surroundings, [lights, 9, 3]
    logit_albedo: jax.Array  # [spheres, 3]

    @classmethod
    def plain(cls, lights: int, spheres: int) -> "Appearance":
        """Grey paint under white skies."""
        light = jnp.zeros((lights, 9, 3)).at[:, 0].set(CONSTANT)
        return cls(light, jnp.zeros((spheres, 3)))

    def albedo(self) -> jax.Array:
        """The share of light that each sphere reflects, in [0, 1]."""
        return jax.nn.sigmoid(self.logit_albedo)

    def shade(self, normals: jax.typing.ArrayLike) -> jax.Array:
        """What white spheres show under each light, [lights, spheres, 3]."""
        basis = harmonics_basis(jnp.asarray(normals), 2)
        return jnp.einsum("nk,k,lkc->lnc", basis, COSINE / np.float32(np.pi), self.light)

    def show(self, normals: jax.typing.ArrayLike) -> jax.Array:
        """What the painted spheres show under each light, [lights, spheres, 3]."""
        return self.albedo()[None] * self.shade(normals)

    def towards(self) -> np.ndarray:
        """Where most light comes from: the direction of the terms that are linear in it."""
        y, z, x = np.asarray(self.light[:, 1:4].sum(-1)).T
        found = np.stack([x, y, z], axis=-1)
        return found / np.linalg.norm(found, axis=-1, keepdims=True)

    def suns(self) -> np.ndarray:
        """Colours of suns with the same linear terms."""
        return np.linalg.norm(self.light[:, 1:4], axis=1) * np.sqrt(4 / (3 * np.pi))


def suns(count: int, turn: float = 0.0) -> Lights:
    """Suns on all sides, from warm to cool, each with a faint sky of the opposite colour."""
    share = (np.arange(count, dtype=np.float32)[:, None] + 0.5) / count
    warm, cool = np.array([[1.0, 0.8, 0.6], [0.6, 0.8, 1.0]], np.float32)
    colors = (1 - share) * warm + share * cool
    return Lights(directions(count, turn), colors, 0.2 * colors[:, ::-1])


def paint(normals: np.ndarray) -> np.ndarray:
    """Albedo of the ball: coloured waves."""
    return 0.5 + 0.35 * np.sin(6 * normals + np.array([0, 2, 4], np.float32))


def pictures(colors: jax.typing.ArrayLike, views: jaxrec.PinholeCamera) -> jax.Array:
    """Pictures of the ball under each light, [views, lights, height, width, 3].

    Args:
        colors: What each sphere shows under each light, [lights, spheres, 3].
        views: A stack of cameras.
    """
    colors = jnp.asarray(colors)
    lights, count, _ = colors.shape
    ball = jaxrec.Spheres(
        centers=jnp.asarray(directions(count)),
        radii=jnp.full(count, np.float32(5 / np.sqrt(count))),
        opacities=jnp.ones(count),
        # Rendering is linear in the features: one pass serves all lights.
        features=jnp.moveaxis(colors, 0, 1).reshape(count, 3 * lights),
        alive=jnp.ones(count, bool),
    )
    seen = jaxrec.render(ball, views, near=NEAR, far=FAR).features
    return jnp.moveaxis(seen.reshape(*seen.shape[:-1], lights, 3), -2, 1)


def fit(
    start: Appearance,
    normals: np.ndarray,
    views: jaxrec.PinholeCamera,
    target: jax.Array,
    steps: int,
) -> Appearance:
    """Refines until the pictures are the target's, and prints the loss on the way."""
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, steps, alpha=0.01))

    def loss_of(guess: Appearance) -> jax.Array:
        return jnp.abs(pictures(guess.show(normals), views) - target).mean()

    @jax.jit
    def step(guess, state):
        loss, gradient = jax.value_and_grad(loss_of)(guess)
        updates, state = optimizer.update(gradient, state)
        return jax.tree.map(jnp.add, guess, updates), state, loss

    guess, state = start, optimizer.init(start)
    for i in range(steps):
        guess, state, loss = step(guess, state)
        if i % max(1, steps // 6) == 0 or i == steps - 1:
            print(f"step {i + 1:4d}: loss {loss:.4f}", flush=True)
    return guess


class Scores(NamedTuple):
    """How close a fit comes to the truth."""

    degrees: float  # largest angle between a sun and what was found
    color: float  # largest error of a sun's colour, as a share of the sun's
    albedo: float  # mean error of the albedo
    psnr: float  # of views that were held out, under a light that was held out


def contact_sheet(*rows: np.ndarray) -> Image.Image:
    """Pictures side by side, one row below the other, at twice their size."""
    tiles = [np.pad(row, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=0.5) for row in rows]
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in tiles])
    picture = Image.fromarray(np.round(255 * np.clip(sheet, 0, 1)).astype(np.uint8))
    return picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)


def run(
    out: pathlib.Path, *, spheres: int, lights: int, views: int, size: int, steps: int
) -> Scores:
    """Fits, prints, draws, and returns the scores.

    Args:
        out: Folder that exists.
        spheres: Number of spheres of the ball.
        lights: Number of lights.
        views: Number of cameras; each takes a picture under each light.
        size: Side of a picture in pixels.
        steps: Number of steps of the optimiser.
    """
    train, held_out = cameras(views, size), cameras(HELD_OUT, size, turn=1.0)
    normals = directions(spheres)
    albedo, truth = paint(normals), suns(lights)
    start = Appearance.plain(lights, spheres)
    began = time.perf_counter()
    fitted = fit(start, normals, train, pictures(albedo * truth.shade(normals), train), steps)
    seconds = time.perf_counter() - began
    # The factor that albedo and light share.
    found = np.asarray(fitted.albedo())
    factor = albedo.mean(axis=0) / found.mean(axis=0)
    found = found * factor
    angles = np.degrees(np.arccos(np.clip((fitted.towards() * truth.towards).sum(-1), -1, 1)))
    colors = np.abs(fitted.suns() / factor / truth.suns - 1)
    unseen = suns(1, turn=2.0).shade(normals)
    relit, target = (np.asarray(pictures(a * unseen, held_out))[:, 0] for a in (found, albedo))
    before = np.asarray(pictures(start.albedo()[None] * unseen, held_out))[:, 0]
    scores = Scores(
        float(angles.max()),
        float(colors.max()),
        float(np.abs(found - albedo).mean()),
        float(jaxrec.psnr(jnp.asarray(relit), jnp.asarray(target))),
    )
    plain = jaxrec.psnr(jnp.asarray(before), jnp.asarray(target))
    print(
        f"suns: at most {scores.degrees:.1f} degrees and {100 * scores.color:.0f} % of their "
        f"colour off; albedo: {scores.albedo:.3f} off in the mean\n"
        f"held-out views under a new light: {scores.psnr:.1f} dB "
        f"(grey: {plain:.1f}); {seconds:.1f} s"
    )
    file = out / "illumination.png"
    contact_sheet(before, relit, target, np.abs(relit - target)).save(file)
    print(f"{file}: held-out views under a new light: grey, the result, the truth, the difference")
    return scores


def main(arguments: Sequence[str] | None = None) -> Scores:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--spheres", type=positive, default=2000, help="of the ball")
    parser.add_argument("--lights", type=positive, default=6, help="suns, each with a sky")
    parser.add_argument("--views", type=positive, default=12, help="pictures under each light")
    parser.add_argument("--size", type=positive, default=64, help="side of a picture in pixels")
    parser.add_argument("--steps", type=positive, default=300, help="of the optimiser")
    return run(**read_options(parser, arguments))


if __name__ == "__main__":
    main()
