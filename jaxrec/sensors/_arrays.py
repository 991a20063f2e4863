"""Checks of the NumPy arrays that measurements consist of."""

from typing import Any

import numpy as np


def check_array(where: str, array: Any, dtype: Any, shape: tuple[int, ...], whose: str) -> None:
    """Raises unless an array has this dtype and this shape.

    Args:
        where: What to call the array.
        array: What was given.
        dtype: What it should hold.
        shape: What it should measure.
        whose: Where the shape is from, in words.
    """
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        found = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"{where}: got {found}; give a NumPy array of {np.dtype(dtype)}")
    if array.shape != shape:
        raise ValueError(f"{where}: got shape {list(array.shape)}; give {list(shape)}, {whose}")
