"""Pulsar's golden scenes as arguments of `blend`."""

import dataclasses
import functools
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrec import Blended, PulsarCamera, Rays, blend

LARGEST = (48, 64)  # rows and columns of the pictures, save one
PADDED = 64  # rows of all scenes but the largest, so that they share compiled code

# Files in which Pulsar's own code equals the formulas, gradients included.
AS_IS = ("01", "02", "03", "07", "08", "11", "13", "14", "16", "17")


@dataclasses.dataclass(frozen=True)
class Golden:
    """One file: its fields, and how to render it."""

    name: str
    fields: dict[str, np.ndarray]

    def __getitem__(self, field: str) -> np.ndarray:
        return self.fields[field]

    def flags(self) -> dict:
        return {
            "width": int(self["width"]),
            "height": int(self["height"]),
            "orthographic": bool(self["orthographic"]),
            "right_handed": bool(self["right_handed"]),
        }

    def stored_camera(self, dtype) -> PulsarCamera:
        eye, p00, dx, dy = (
            jnp.asarray(self[f"cam_{k}"], dtype) for k in ("eye", "p00", "dx", "dy")
        )
        offset = jnp.asarray(self["pp_offset"], dtype)
        return PulsarCamera(eye, p00, dx, dy, offset, **self.flags())

    def camera(self, dtype, vector=None) -> PulsarCamera:
        vector = jnp.asarray(self["cam13"], dtype) if vector is None else vector
        return PulsarCamera.from_vector(vector, **self.flags())

    def spheres(self, dtype) -> tuple:
        """Centers, radii, opacities, colours; hidden spheres make scenes of a size agree."""
        fields = [np.asarray(self[k], dtype) for k in ("pos", "rad", "opa", "col")]
        spare = max(PADDED - len(fields[0]), 0)
        values = (0, -1, 0, 0)  # a negative radius hides
        return tuple(
            jnp.asarray(np.pad(x, [(0, spare)] + [(0, 0)] * (x.ndim - 1), constant_values=value))
            for x, value in zip(fields, values, strict=True)
        )

    def run(self, dtype, camera, **options) -> "Result":
        """Renders the file's scene and pulls its loss back to spheres and rays."""
        rays = camera.rays()
        limits = [jnp.asarray(x, dtype) for x in self.limits()]
        background, upstream = (jnp.asarray(self[k], dtype) for k in ("bg_col", "upstream"))
        out, gradients = _run(
            self.spheres(dtype),
            # Rays without direction show background: so that pictures of all sizes share code.
            Rays(_pad(rays.origins), _pad(rays.directions, jnp.nan), rays.footprint[None]),
            background,
            _pad(upstream),
            limits,
            tuple(options.items()),
        )
        height, width, _ = upstream.shape
        out, d_rays = jax.tree.map(lambda x: x[:, :height, :width], (out, gradients[4:]))
        n = len(self["pos"])
        spheres = dict(zip(("pos", "rad", "opa", "col"), gradients[:4], strict=True))
        return Result(out, {k: v[:n] for k, v in spheres.items()}, d_rays)

    def limits(self) -> list[float]:
        names = ("min_depth", "max_depth", "gamma", "background_normalized_depth")
        return [float(self[name]) for name in names]


def _pad(image, value=0.0):
    height, width = (max(a - b, 0) for a, b in zip(LARGEST, image.shape, strict=False))
    return jnp.pad(image, ((0, height), (0, width), (0, 0)), constant_values=value)[None]


@functools.partial(jax.jit, static_argnames="options")
def _run(spheres, rays, background, upstream, limits, options):
    def loss(centers, radii, opacities, colors, origins, directions):
        near, far, gamma, background_depth = limits
        out = blend(
            centers,
            radii,
            opacities,
            colors,
            Rays(origins, directions, rays.footprint),
            background,
            near=near,
            far=far,
            gamma=gamma,
            background_depth=background_depth,
            kind="softmax",
            **dict(options),
        )
        return jnp.sum(out.features * upstream), out

    variables = (*spheres, rays.origins, rays.directions)
    gradients, out = jax.grad(loss, argnums=tuple(range(6)), has_aux=True)(*variables)
    return out, gradients


class Result(NamedTuple):
    """Images, sphere gradients by field, and the gradients of ray origins and directions."""

    out: Blended
    spheres: dict[str, np.ndarray]
    rays: tuple[jax.Array, jax.Array]


def load(folder: pathlib.Path) -> dict[str, Golden]:
    """All golden files by their two-digit number."""
    goldens = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            goldens[path.name[:2]] = Golden(path.stem, {k: file[k] for k in file.files})
    return goldens
