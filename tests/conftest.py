"""Fixtures and settings shared by every test."""

import os
import pathlib

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)

# Programs that are optimised are what users run: golden files, limits and transforms of the op,
# fits of real captures, and what is compared with processes of their own. Elsewhere a program runs
# for a fraction of what it takes to optimise it: the suite would take twice as long.
_QUICK = "jax_disable_most_optimizations"

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="module", autouse=True)
def _compilation(request):
    """Compiles quickly but in modules marked `optimized`."""
    quick = not any(mark.name == "optimized" for mark in request.node.iter_markers())
    jax.config.update(_QUICK, quick)
    yield
    jax.config.update(_QUICK, False)


@pytest.fixture
def key(request) -> jax.Array:
    """A key that depends on the test's name only: reruns and reorderings agree."""
    return jax.random.key(sum(request.node.name.encode()))


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of golden files and real captures that lies beside the checkout."""
    if SHARED.is_dir():
        return SHARED
    reason = f"the folder of golden files and captures is missing: {SHARED}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def x64():
    """Runs the test with float64 enabled."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def own_errors():
    """Lets the library's own argument checks speak before jaxtyping's."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
