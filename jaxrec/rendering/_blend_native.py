"""The XLA custom calls of `blend`: shapes and attributes as the C++ handlers bind them."""

import types
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .. import _ffi
from ._blend_settings import BlendSettings

_KINDS = {"softmax": 0, "alpha": 1}
_STOPS = {None: 0, "per_sphere": 1, "total": 2}


def _attributes(settings: BlendSettings) -> dict[str, np.generic]:
    # NumPy scalars of exactly the bound C++ types. Nowhere else are attributes made.
    return {
        "kind": np.int32(_KINDS[settings.kind]),
        "stop": np.int32(_STOPS[settings.stop]),
        "logit_stop": np.float32(settings.logit_stop),
        "min_transmittance": np.float32(settings.min_transmittance),
        "tile": np.int32(settings.tile),
    }


def kept_shape(settings: BlendSettings, operands: Sequence[jax.Array]) -> tuple[int, int]:
    """Shape of what the forward kernel keeps for the backward kernel: bytes for each view.

    It is the same on every platform, as the results of one program must be: the most that any
    library asks for. Never empty: the compiler of jax 0.11.2 cannot carry an empty array across
    the border of a shard_map.
    """
    views, height, width, _ = operands[4].shape
    spheres, channels = operands[3].shape
    wanted = [
        module.blend_kept_bytes(spheres, height, width, channels, settings.tracked)
        for module in _ffi.modules().values()
    ]
    return views, max([1, *wanted])


def _scratch(centers: jax.Array, size: int) -> Any:
    # Memory that XLA plans: a result that nobody reads.
    return _ffi.result(centers, (size,), np.uint8)


def blend_native(
    library: types.ModuleType, settings: BlendSettings, *operands: jax.Array
) -> Sequence[jax.Array]:
    """Runs the forward kernel.

    Args:
        library: The platform's kernels.
        settings: Static options.
        *operands: centers, radii, opacities, features, origins, directions, footprint,
            velocities, times and interval (without elements if nothing moves), background,
            limits [4] = (near, far, gamma, background_depth).

    Returns:
        features, depth, alpha, ids, counts and, for the backward kernel, the two normaliser
        values and the rank of the last drawn sphere of each ray, and what it keeps of each view.
    """
    centers, features, origins = operands[0], operands[3], operands[4]
    grid = origins.shape[:-1]
    results = [
        _ffi.result(centers, (*grid, features.shape[-1]), np.float32),
        _ffi.result(centers, grid, np.float32),
        _ffi.result(centers, grid, np.float32),
        _ffi.result(centers, (*grid, settings.tracked), np.int32),
        _ffi.result(centers, grid, np.int32),
        _ffi.result(centers, (*grid, 2), np.float32),
        _ffi.result(centers, grid, np.int32),
        _ffi.result(centers, kept_shape(settings, operands), np.uint8),
        _scratch(
            centers,
            library.blend_scratch_bytes(
                centers.shape[0], *grid, features.shape[-1], settings.tracked
            ),
        ),
    ]
    call = jax.ffi.ffi_call("jaxrec.blend.v3", results, vmap_method="expand_dims")
    return call(*operands, **_attributes(settings))[:-1]


def blend_vjp_native(
    library: types.ModuleType,
    settings: BlendSettings,
    need: tuple[bool, ...],
    *operands: jax.Array,
) -> Sequence[jax.Array]:
    """Runs the backward kernel.

    Args:
        library: The platform's kernels.
        settings: Static options.
        need: Which of centers, radii, opacities, features, origins, directions, velocities, times
            want a gradient.
        *operands: The forward's first ten operands and limits, then normaliser, last rank, ids,
            what it kept, d_features, d_depth, d_alpha and, against which each hit's value is
            weighed, d_output . output and d_output . background.

    Returns:
        Eight gradients; those that are not needed have shape (0,).
    """
    shapes = [
        operands[i].shape if needed else (0,)
        for i, needed in zip((0, 1, 2, 3, 4, 5, 7, 8), need, strict=True)
    ]
    results = [_ffi.result(operands[0], shape, np.float32) for shape in shapes]
    spheres, channels = operands[3].shape
    hits = np.int32(settings.gradient_hits or 0)
    moves = operands[9].shape[-1] > 0
    size = library.blend_vjp_scratch_bytes(spheres, channels, moves)
    results.append(_scratch(operands[0], size))
    call = jax.ffi.ffi_call("jaxrec.blend_vjp.v3", results, vmap_method="expand_dims")
    mask = np.int32(sum(1 << i for i, needed in enumerate(need) if needed))
    return call(*operands, need=mask, gradient_hits=hits, **_attributes(settings))[:-1]
