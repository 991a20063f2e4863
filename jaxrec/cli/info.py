"""`jaxrec info`: what is installed, and what it runs on."""

import importlib.metadata
import json
import platform
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import tyro

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def info_command(
    *, as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
) -> Callable[[], None]:
    """Shows versions, devices, which native libraries were built and whether they fit the GPUs.

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
    for problem in facts["problems"]:
        print(f"problem: {problem}")


def show_json(values: Mapping[str, Any]) -> None:
    """Prints one JSON object, indented."""
    print(json.dumps(values, indent=2))


def collect() -> dict[str, Any]:
    """Gathers what `jaxrec info` shows, as plain values."""
    import jax

    from .. import __version__, _ffi

    modules = _ffi.modules()
    devices = jax.devices()
    gpus = [(d.device_kind, d.compute_capability) for d in devices if _is_cuda(d)]
    built_for = modules["CUDA"].built_for() if "CUDA" in modules else None
    return {
        "jaxrec": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": [f"{device.platform}:{device.id} ({device.device_kind})" for device in devices],
        "native": {
            name: {"built_for": module.built_for(), "targets": sorted(module.registrations())}
            for name, module in modules.items()
        },
        "problems": gpu_problems(built_for, gpus),
    }


def gpu_problems(built_for: str | None, gpus: Sequence[tuple[str, str]]) -> list[str]:
    """Says which GPUs the kernels do not run on, and how to build some that do.

    Args:
        built_for: The architectures of the CUDA library, None if there is no such library.
        gpus: Name and compute capability, such as "9.0", of each NVIDIA GPU.

    Returns:
        One line for each kind of GPU without kernels.
    """
    wanted = sorted({_architecture(capability) for _, capability in gpus}, key=int)
    command = (
        f"JAXREC_CUDA=ON JAXREC_CUDA_ARCHS={shlex.quote(';'.join(wanted))} "
        "pip install --force-reinstall --no-deps ."
    )
    lines = []
    for name, capability in dict.fromkeys(gpus):
        if built_for is not None and covers(built_for, capability):
            continue
        if built_for is None:
            state = "there are no CUDA kernels; plain JAX definitions run instead, far slower"
        else:
            state = f"the CUDA kernels were built for {built_for} and do not run on it"
        lines.append(
            f"{name} has architecture sm_{_architecture(capability)}, but {state}; "
            f"in the sources of jaxrec type: {command}"
        )
    return lines


def covers(architectures: str, capability: str) -> bool:
    """Tells whether code built for some architectures runs on a GPU.

    Machine code runs on its own and on later minor versions of the same major one, PTX on all
    later ones; either of an architecture with suffix `a` only there, with `f` in its family.

    Args:
        architectures: As CMake writes them, separated by anything: "80-real;90a-real;120".
        capability: The compute capability of the GPU: "8.6".
    """
    gpu = _numbers(capability)
    for digits, suffix, form in re.findall(r"(\d{2,})([af]?)(-real|-virtual)?", architectures):
        built = int(digits[:-1]), int(digits[-1])
        if suffix == "a":
            runs = gpu == built
        elif suffix == "f" or form == "-real":
            runs = gpu[0] == built[0] and gpu >= built
        else:
            runs = gpu >= built
        if runs:
            return True
    return False


def _numbers(capability: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", capability)[:2]
    return int(major), int(minor)


def _architecture(capability: str) -> str:
    return "".join(str(number) for number in _numbers(capability))


def _is_cuda(device: Any) -> bool:
    # GPUs of other makers number their capabilities differently ("gfx90a").
    found = str(getattr(device, "compute_capability", ""))
    return device.platform in ("gpu", "cuda") and re.match(r"\d+\.\d+", found) is not None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
