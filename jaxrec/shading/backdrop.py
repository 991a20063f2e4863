"""What lies behind a scene: colours at infinity, by direction."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from .._gather import gather


class EnvironmentMap(nnx.Module):
    """An equirectangular picture at infinity, seen along each ray.

    A panorama as photographed with z up: its middle lies at +x, +y a quarter of its width further
    left, and rows go from +z down to -z. Values are at the texels' centres and interpolated
    bilinearly, around the seam, too. A picture of one texel is a colour.

    Attributes:
        picture: The texels, trained.
    """

    def __init__(self, picture: Float[Array, "rows columns 3"]):
        """Starts from a picture in [0, 1]."""
        self.picture = nnx.Param(picture)

    def __call__(self, directions: Float[Array, "*pixels 3"]) -> Float[Array, "*pixels 3"]:
        """Looks colours up. Differentiable in the picture and, within texels, the directions.

        Args:
            directions: Unit vectors in the scene's frame; zero vectors are allowed and show some
                texel.
        """
        picture = self.picture[...]
        rows, columns = picture.shape[:2]
        if rows == columns == 1:
            return jnp.broadcast_to(picture[0, 0], directions.shape)
        row, column = _place(directions, rows, columns)
        texels = picture.reshape(-1, 3)
        total = jnp.zeros_like(directions)
        for down, row_weight in _corners(row):
            for right, column_weight in _corners(column):
                index = jnp.clip(down, 0, rows - 1) * columns + right % columns
                weight = row_weight * column_weight
                total = total + weight[..., None] * gather(texels, index)
        return total


def _place(directions: Array, rows: int, columns: int) -> tuple[Array, Array]:
    """Continuous row and column, with texel centres at whole numbers."""
    x, y, z = (directions[..., k] for k in range(3))
    across = x * x + y * y
    # Straight up, azimuth has no meaning and no derivative.
    off = across > 1e-12
    one = jnp.ones_like(x)
    azimuth = jnp.arctan2(jnp.where(off, y, 0 * one), jnp.where(off, x, one))
    elevation = jnp.arctan2(z, jnp.sqrt(jnp.where(off, across, 1e-12 * one)))
    column = (0.5 - azimuth / (2 * np.pi)) * columns - 0.5
    return (0.5 - elevation / np.pi) * rows - 0.5, column


def _corners(place: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    first = jnp.floor(jax.lax.stop_gradient(place))
    part = place - first
    whole = first.astype(jnp.int32)
    return (whole, 1 - part), (whole + 1, part)
