"""What the library's values are made of: pytree dataclasses and argument checks.

Checks of values run only on concrete arrays: inside `jax.jit`, `jax.grad` and
`jax.vmap` they are skipped, and only shape and dtype are looked at.
"""

import dataclasses
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

T = TypeVar("T")

Numbers = ArrayLike | Sequence[Any]
"""What a constructor turns into an array: an array, a number, or nested lists.

Constructors check shape, dtype and values themselves, so that one message names the
argument, whoever calls; the shapes stand in the annotations of the attributes.
"""


def pytree(*static: str) -> Callable[[type[T]], type[T]]:
    """Registers a dataclass as a pytree whose fields are leaves, save the `static` ones.

    Rebuilding a value from leaves skips `__init__`: JAX unflattens with tracers,
    axis numbers and placeholders, none of which is an argument to check.
    """

    def register(cls: type[T]) -> type[T]:
        names = [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
        leaves = [name for name in names if name not in static]

        def flatten_with_keys(value):
            children = [(jax.tree_util.GetAttrKey(name), getattr(value, name)) for name in leaves]
            return children, tuple(getattr(value, name) for name in static)

        def flatten(value):
            children = [getattr(value, name) for name in leaves]
            return children, tuple(getattr(value, name) for name in static)

        def unflatten(metadata, children):
            value = object.__new__(cls)
            for name, child in zip(leaves, children, strict=True):
                object.__setattr__(value, name, child)
            for name, child in zip(static, metadata, strict=True):
                object.__setattr__(value, name, child)
            return value

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register


def concrete(value: Any) -> np.ndarray | None:
    """The array's values in NumPy, or nothing while they are being traced."""
    return None if isinstance(value, Tracer) else np.asarray(value)


def float_array(
    name: str, value: Any, shape: tuple[int | None | EllipsisType, ...], dtype: Any = None
) -> jax.Array:
    """Checks one argument and returns it as a float32 or float64 array.

    Args:
        name: The argument's name, for the message.
        value: Anything that `jnp.asarray` takes.
        shape: The wanted axes; `None` is any length, `...` in front any leading axes.
        dtype: The dtype to return; by default the value's own, float32 for integers.

    Raises:
        ValueError: If the value is not a real array of this shape, or not finite.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: got {value!r}; give an array of numbers") from error
    kind = array.dtype
    if not (kind in (jnp.float32, jnp.float64) or jnp.issubdtype(kind, jnp.integer)):
        raise ValueError(f"{name}: got dtype {kind}; give float32 (or float64 under enable_x64)")
    if not _has_shape(array.shape, shape):
        wanted = ", ".join({None: "any", ...: "..."}.get(axis, str(axis)) for axis in shape)
        raise ValueError(f"{name}: got shape {list(array.shape)}; give [{wanted}]")
    values = concrete(array)
    if values is not None and not np.isfinite(values).all():
        count = int(np.sum(~np.isfinite(values)))
        raise ValueError(f"{name}: got {count} NaN or infinite; give finite numbers only")
    if dtype is None:
        dtype = kind if jnp.issubdtype(kind, jnp.floating) else jnp.float32
    return array.astype(dtype)


def _has_shape(found: tuple[int, ...], wanted: tuple[int | None | EllipsisType, ...]) -> bool:
    if wanted and wanted[0] is ...:
        wanted = wanted[1:]
        found = found[max(len(found) - len(wanted), 0) :]
    return len(found) == len(wanted) and all(
        want is None or want == have for want, have in zip(wanted, found, strict=True)
    )


def positive_integer(name: str, value: Any) -> int:
    """Checks that a static argument, such as an image side, is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: got {value!r}; give a whole number of at least 1")
    return int(value)
