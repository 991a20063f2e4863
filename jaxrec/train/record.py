"""What stands beside a fit's arrays in a checkpoint, as JSON."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .normalizer import SceneNormalizer
from .settings import FitSettings
from .state import FitState

FORMAT_VERSION = 1


def make_record(
    settings: FitSettings, normalizer: SceneNormalizer, images: int = 0
) -> dict[str, Any]:
    """Describes a fit so that `FitState.template` and its scene can be rebuilt.

    Args:
        settings: Of the fit.
        normalizer: Of the fit.
        images: How many it is fitted to.
    """
    return {
        "format": FORMAT_VERSION,
        "version": installed_version(),
        "settings": settings.to_dict(),
        "normalizer": normalizer.to_dict(),
        "images": images,
    }


def read_record(record: Mapping[str, Any]) -> tuple[FitSettings, SceneNormalizer]:
    """Rebuilds what `make_record` has described.

    Raises:
        ValueError: If the format is another one, or a part is missing or out of range.
    """
    check_format(record)
    return (
        FitSettings.from_dict(record["settings"]),
        SceneNormalizer.from_dict(record["normalizer"]),
    )


def check_format(record: Mapping[str, Any]) -> None:
    """Checks that a record is of this version's format.

    Raises:
        ValueError: If it is not.
    """
    found = record.get("format")
    if found != FORMAT_VERSION:
        raise ValueError(
            f"checkpoint: got format {found}, written by jaxrec {record.get('version')}; want "
            f"format {FORMAT_VERSION}; use that version or fit again"
        )


def state_template(record: Mapping[str, Any], settings: FitSettings | None = None) -> FitState:
    """Returns the shapes and dtypes of the state that lies beside a record.

    Args:
        record: What `make_record` has made.
        settings: Of the fit; those of the record if None.

    Raises:
        ValueError: If the record cannot be read.
    """
    return FitState.template(settings or read_record(record)[0], record.get("images", 0))


def installed_version() -> str:
    """The version of jaxrec that is installed."""
    try:
        return version("jaxrec")
    except PackageNotFoundError:
        return "unknown"
