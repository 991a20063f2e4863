"""`jaxrec info`: what is installed, and what it runs on."""

import importlib.metadata
import json
import platform
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import tyro

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def info_command(
    *, as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
) -> Callable[[], None]:
    """Shows versions, devices, and which native libraries were built.

    Args:
        as_json: Print one JSON object instead of lines for people.
    """
    return lambda: show_json(collect()) if as_json else show(collect())


def show(facts: Mapping[str, Any]) -> None:
    """Prints facts in lines for people."""
    print(f"jaxrec {facts['jaxrec']}, Python {facts['python']} on {facts['platform']}")
    print(", ".join(f"{name} {version}" for name, version in facts["packages"].items()))
    print("devices: " + ", ".join(facts["devices"]))
    for name, library in facts["native"].items():
        print(
            f"native library for {name} ({library['built_for']}): {', '.join(library['targets'])}"
        )
    if not facts["native"]:
        print("native libraries: none was built; plain JAX definitions run instead, far slower")


def show_json(values: Mapping[str, Any]) -> None:
    """Prints one JSON object, indented."""
    print(json.dumps(values, indent=2))


def collect() -> dict[str, Any]:
    """Gathers what `jaxrec info` shows, as plain values."""
    import jax

    from .. import __version__, _ffi

    return {
        "jaxrec": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": [
            f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()
        ],
        "native": {
            name: {"built_for": module.built_for(), "targets": sorted(module.registrations())}
            for name, module in _ffi.modules().items()
        },
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
