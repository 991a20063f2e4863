"""Spheres as PLY files: as they are, or as the Gaussians that other programs show."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..scene import Spheres
from ..shading import SphericalHarmonics

Layout = Literal["spheres", "gaussians"]
# A Gaussian with this deviation, in radii, covers as much as the kernel (1 - (p/r)^2)^2 of
# `kind="alpha"`: 2 pi sigma^2 = pi r^2 / 3.
_DEVIATION = 6**-0.5
# Other programs' harmonics of odd order have the sign of Condon and Shortley, ours have not.
_SIGNS = [
    (-1) ** abs(order) for degree in range(4) for order in range(-degree, degree + 1)
]  # fmt: skip
_LARGEST_LOGIT = 15.0


class StoredSpheres(NamedTuple):
    """What a PLY file of the layout `spheres` holds.

    Attributes:
        spheres: In the file's coordinates; features are coefficients of `SphericalHarmonics`.
        degree: Of the harmonics.
        comments: The file's own.
    """

    spheres: Spheres
    degree: int
    comments: list[str]


def write_ply(
    path: str | pathlib.Path,
    spheres: Spheres,
    *,
    layout: Layout = "spheres",
    comments: Sequence[str] = (),
) -> None:
    r"""Writes the living spheres of a scene, whose features are harmonics.

    Both layouts are binary, with an element `vertex` of floats. `x`, `y`, `z` are metres in the
    scene's coordinates; `f_dc_0` to `f_dc_2` are the coefficients of the constant harmonic for red,
    green and blue (zero shows mid grey), `f_rest_*` those of the others, all of red, then green,
    then blue, with the signs of Condon and Shortley.

    * `spheres`: `radius` in metres, `opacity` in [0, 1], and `red`, `green`, `blue` in 8 bits for
      programs that show point clouds. Nothing is lost but the colour of what is dead.
    * `gaussians`: as 3D Gaussian Splatting stores them: logit of `opacity`, logarithms of three
      equal `scale_*`, no rotation. A sphere of radius r becomes a Gaussian of deviation
      $r/\sqrt{6}$, which covers the same area; its rim is softer, so pictures differ a little.

    Args:
        path: Replaced in one piece when all is written.
        spheres: With 3 (degree + 1)^2 features, as `jaxrec.train.convert_shader` gives them.
        layout: See above.
        comments: Lines of text for the file's head.

    Raises:
        ValueError: If features are no harmonics, or the layout is unknown.

    References:
        Kerbl et al., "3D Gaussian Splatting for Real-Time Radiance Field Rendering", SIGGRAPH 2023.
    """
    import plyfile

    if layout not in _LAYOUTS:
        raise ValueError(f"layout: got {layout!r}; want {' or '.join(_LAYOUTS)}")
    degree = _degree(spheres.features.shape[-1])
    alive = np.asarray(spheres.alive)
    kept = {
        name: np.asarray(getattr(spheres, name), np.float32)[alive]
        for name in ("centers", "radii", "opacities", "features")
    }
    columns = {name: kept["centers"][:, i] for i, name in enumerate("xyz")}
    columns |= _LAYOUTS[layout](kept) | _harmonics(kept["features"], degree)
    table = np.empty(len(kept["radii"]), [(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        table[name] = column
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    element = plyfile.PlyElement.describe(table, "vertex")
    try:
        plyfile.PlyData([element], byte_order="<", comments=list(comments)).write(str(temporary))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_ply(path: str | pathlib.Path) -> StoredSpheres:
    """Reads what `write_ply` has written in the layout `spheres`.

    Raises:
        ValueError: If the file is no PLY file, or has other properties. The line names the file.
        OSError: If it cannot be read.
    """
    import plyfile

    try:
        data = plyfile.PlyData.read(str(path))
        table = data["vertex"].data
    except (plyfile.PlyParseError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is no PLY file of spheres ({error}); write one anew") from error
    names = table.dtype.names
    count = sum(name.startswith(("f_dc_", "f_rest_")) for name in names)
    wanted = ["x", "y", "z", "radius", "opacity", "f_dc_0", "f_dc_1", "f_dc_2"]
    if missing := [name for name in wanted if name not in names]:
        raise ValueError(
            f"{path}: has no {', '.join(missing)}; want the layout 'spheres' of write_ply"
        )
    degree = _degree(count)
    functions = (degree + 1) ** 2
    rest = [[f"f_rest_{c * (functions - 1) + k}" for c in range(3)] for k in range(functions - 1)]
    order = ["f_dc_0", "f_dc_1", "f_dc_2", *(name for triple in rest for name in triple)]
    signs = np.repeat(_SIGNS[:functions], 3).astype(np.float32)
    spheres = Spheres.create(
        centers=np.stack([table[name] for name in "xyz"], axis=-1).astype(np.float32),
        radii=table["radius"].astype(np.float32),
        opacities=table["opacity"].astype(np.float32),
        features=np.stack([table[name] for name in order], axis=-1).astype(np.float32) * signs,
    )
    return StoredSpheres(spheres, degree, list(data.comments))


def _degree(features: int) -> int:
    for degree in range(4):
        if features == 3 * (degree + 1) ** 2:
            return degree
    raise ValueError(
        f"features: got {features} for each sphere; want 3, 12, 27 or 48, coefficients of "
        "harmonics (jaxrec.train.convert_shader makes them)"
    )


def _harmonics(
    features: Float[np.ndarray, "spheres channels"], degree: int
) -> dict[str, np.ndarray]:
    functions = (degree + 1) ** 2
    signed = features.reshape(-1, functions, 3) * np.array(_SIGNS[:functions], np.float32)[:, None]
    columns = {f"f_dc_{c}": signed[:, 0, c] for c in range(3)}
    rest = signed[:, 1:].transpose(0, 2, 1).reshape(len(features), -1)
    return columns | {f"f_rest_{i}": rest[:, i] for i in range(rest.shape[1])}


def _as_spheres(kept: Mapping[str, Any]) -> dict[str, np.ndarray]:
    constant = jnp.asarray(kept["features"][:, :3])
    plain = np.asarray(SphericalHarmonics(0).per_sphere(constant, jnp.zeros_like(constant)))
    plain = np.round(255 * np.clip(plain, 0, 1)).astype(np.uint8)
    colors = {name: plain[:, i] for i, name in enumerate(("red", "green", "blue"))}
    return {"radius": kept["radii"], "opacity": kept["opacities"]} | colors


def _as_gaussians(kept: Mapping[str, Any]) -> dict[str, np.ndarray]:
    opacities = kept["opacities"].astype(np.float64)
    with np.errstate(divide="ignore"):
        logits = np.log(opacities) - np.log1p(-opacities)
        scale = np.log(kept["radii"].astype(np.float64) * _DEVIATION)
    logits = np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT).astype(np.float32)
    scale = np.maximum(scale, np.log(np.finfo(np.float32).tiny)).astype(np.float32)
    turned = {f"rot_{i}": np.full_like(scale, float(i == 0)) for i in range(4)}
    return {"opacity": logits} | {f"scale_{i}": scale for i in range(3)} | turned


_LAYOUTS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, np.ndarray]]] = {
    "spheres": _as_spheres,
    "gaussians": _as_gaussians,
}
