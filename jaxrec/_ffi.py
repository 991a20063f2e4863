"""Native kernels: loads what was built, registers it with XLA, picks per platform.

The only module that touches a shared library. Ops call `dispatch`; they neither import a
native module nor ask which device they will run on.
"""

import functools
import importlib
import pathlib
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

_MODULES = {"cpu": "jaxrec._cpu", "CUDA": "jaxrec._cuda"}


@functools.cache
def modules() -> dict[str, types.ModuleType]:
    """Native libraries of this build by XLA platform; registers their targets on first use.

    Returns:
        A dictionary from platform ("cpu", "CUDA") to module. Empty when jaxrec runs from its
        sources without a build; every op then runs its plain JAX definition.
    """
    found = {}
    for platform, name in _MODULES.items():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # not part of this build
        _check_api(module)
        for target, capsule in module.registrations().items():
            jax.ffi.register_ffi_target(target, capsule, platform=platform)
        found[platform] = module
    return found


def _check_api(module: types.ModuleType) -> None:
    # XLA would refuse a newer library only when the backend starts, and the backend with it.
    header = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    found = re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", header)
    runtime, built = tuple(int(number) for number in found), module.ffi_api()
    if len(runtime) == 2 and built > runtime:
        raise ImportError(
            f"{module.__name__} was built against jaxlib {module.jaxlib} (FFI API {built[0]}."
            f"{built[1]}), newer than the installed one ({runtime[0]}.{runtime[1]}); reinstall "
            "jaxrec with `pip install --force-reinstall --no-deps .` or upgrade jaxlib"
        )


@functools.cache
def targets() -> tuple[str, ...]:
    """Names of the XLA custom calls that the loaded libraries define."""
    return tuple(sorted({name for module in modules().values() for name in module.registrations()}))


def dispatch(native: Callable[..., Any], reference: Callable[..., Any], *args: Any) -> Any:
    """Calls `native` on the platforms that have kernels and `reference` elsewhere.

    The choice is made when the program is lowered, so one traced function may run on several
    platforms. `native` gets the platform's library before the arguments. All must return the same
    shapes and dtypes.
    """
    branches = {
        platform.lower(): functools.partial(native, module)
        for platform, module in modules().items()
    }
    if not branches:
        return reference(*args)
    return lax.platform_dependent(*args, default=reference, **branches)


def varying_axes(x: Any) -> frozenset[str]:
    """Mesh axes over which `x` differs between the devices of the enclosing `shard_map`."""
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)  # jax >= 0.10
    if manual is not None:
        return frozenset(manual.varying)
    return frozenset(getattr(aval, "vma", ()))


def vary_together(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Casts replicated arrays to vary over every mesh axis that any of `arrays` varies over.

    A custom call hides from JAX that its results differ between devices. Without this cast,
    which must stand outside the `custom_vjp`, the gradient of a replicated operand inside
    `shard_map` would silently miss its sum over the mesh: the cast's transpose is that sum.
    """
    union = frozenset().union(*(varying_axes(x) for x in arrays))
    return [_cast_varying(x, tuple(sorted(union - varying_axes(x)))) for x in arrays]


def _cast_varying(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    if not axes:
        return x
    if hasattr(lax, "pcast"):
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)  # pyright: ignore[reportAttributeAccessIssue]  # jax < 0.8.2


def result(like: jax.Array, shape: Sequence[int], dtype: Any) -> Any:
    """Describes a result of a custom call that varies over the same mesh axes as `like`."""
    return jax.typeof(like).update(shape=tuple(shape), dtype=jax.numpy.dtype(dtype))
