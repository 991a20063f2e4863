"""The one form of complaint about a setting."""

from typing import Any


def want(holds: bool, name: str, got: Any, wanted: str) -> None:
    """Raises a `ValueError` that names the setting unless a condition holds."""
    if not holds:
        raise ValueError(f"{name}: got {got}, want {wanted}")
