"""What stands beside a fit's arrays in a checkpoint, as JSON."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .normalizer import SceneNormalizer
from .settings import FitSettings

FORMAT_VERSION = 1


def make_record(settings: FitSettings, normalizer: SceneNormalizer) -> dict[str, Any]:
    """Describes a fit so that `FitState.template` and its scene can be rebuilt."""
    return {
        "format": FORMAT_VERSION,
        "version": _version(),
        "settings": settings.to_dict(),
        "normalizer": normalizer.to_dict(),
    }


def read_record(record: Mapping[str, Any]) -> tuple[FitSettings, SceneNormalizer]:
    """Rebuilds what `make_record` has described.

    Raises:
        ValueError: If the format is another one, or a part is missing or out of range.
    """
    found = record.get("format")
    if found != FORMAT_VERSION:
        raise ValueError(
            f"checkpoint: got format {found}, written by jaxrec {record.get('version')}; want "
            f"format {FORMAT_VERSION}; use that version or fit again"
        )
    return (
        FitSettings.from_dict(record["settings"]),
        SceneNormalizer.from_dict(record["normalizer"]),
    )


def _version() -> str:
    try:
        return version("jaxrec")
    except PackageNotFoundError:
        return "unknown"
