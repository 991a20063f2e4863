"""What cameras share: pixel coordinates, the camera's frame, checks of their fields."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import concrete
from ..geometry import rotate


def pixel_centers(width: int, height: int, dtype: Any) -> Float[Array, "{height} {width} 2"]:
    """Pixel coordinates (x, y) of all pixels, in rows."""
    x = jnp.arange(width, dtype=dtype) + 0.5
    y = jnp.arange(height, dtype=dtype) + 0.5
    return jnp.stack(jnp.meshgrid(x, y, indexing="xy"), axis=-1)


def into_camera(
    world_from_camera: Float[Array, "4 4"], points: Float[Array, "*batch 3"]
) -> Float[Array, "*batch 3"]:
    """Points in the camera's frame."""
    offset = points - like(world_from_camera[:3, 3], points)
    return rotate(world_from_camera[:3, :3].T, offset)


def like(vector: Float[Array, " n"], target: Array) -> Array:
    """Repeats a vector over the leading axes of an array."""
    return jnp.broadcast_to(vector, target.shape)


def set_fields(camera: Any, fields: dict[str, Any]) -> None:
    """Fills a frozen camera; its arrays must agree on the leading axes of a stack."""
    views = fields["world_from_camera"].shape[:-2]
    for name, value in fields.items():
        object.__setattr__(camera, name, value)
        rank = {"world_from_camera": 2, "pixel_size": 0}.get(name, 1)
        leading = np.shape(value)[: np.ndim(value) - rank]
        if isinstance(value, jax.Array) and leading != views:
            raise ValueError(
                f"{name}: got leading axes {list(leading)} for a stack of {list(views)} poses; "
                "give every array of a stack the same ones"
            )


def check_positive(name: str, value: jax.Array, unit_name: str) -> None:
    """Checks that every value of an argument is above 0, where it is known."""
    values = concrete(value)
    if values is not None and not (values > 0).all():
        raise ValueError(f"{name}: got {values.tolist()}; give {unit_name} greater than 0")
