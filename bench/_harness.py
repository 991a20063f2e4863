"""Times functions and prints one JSON line for each case, readable by people and by jq."""

import json
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax


def measure(function: Any, *arguments: Any, **timing: int) -> dict[str, float]:
    """Times a function made by `jax.jit` and reads how much memory its program needs.

    Args:
        function: What to call.
        *arguments: With what.
        **timing: As in `queued_ms`.

    Returns:
        Milliseconds `ms`, and `temp_mb`: memory beyond arguments and results. Results of a kernel
        that the program does not return, its scratch among them, are part of that.
    """
    ms = queued_ms(lambda: function(*arguments), **timing)
    memory = function.lower(*arguments).compile().memory_analysis()
    return {"ms": round(ms, 3), "temp_mb": round(memory.temp_size_in_bytes / 1e6, 2)}


def queued_ms(function: Callable[[], Any], *, calls: int = 20, repeats: int = 5) -> float:
    """Device time of a call in milliseconds, after compilation and two warm-ups.

    The median over repeats of the wall time of queued calls, divided by how many they are:
    waiting for each call alone would measure dispatch. On a CPU every call is run by itself.
    """
    calls, repeats = (1, calls) if jax.default_backend() == "cpu" else (calls, repeats)
    for _ in range(2):
        jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        results = [function() for _ in range(calls)]
        jax.block_until_ready(results)
        times.append((time.perf_counter() - start) / calls)
    return 1e3 * statistics.median(times)


def device() -> str:
    """The device in words: kind of processor and how many of its cores there are."""
    found = jax.devices()[0]
    if found.platform != "cpu":
        return found.device_kind
    names = [
        line.split(":", 1)[1].strip()
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else 'CPU'}, {len(names)} cores"


def commit() -> str:
    """The commit that is measured, marked if files differ from it."""
    root = pathlib.Path(__file__).parents[1]
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def chosen(text: str | None, names: list[str], option: str) -> list[str]:
    """Names out of a list separated by commas, in their own order; all if there is no list.

    Raises:
        SystemExit: If a name is unknown.
    """
    wanted = names if text is None else text.split(",")
    if unknown := sorted(set(wanted) - set(names)):
        raise SystemExit(f"{option}: no {', '.join(unknown)}; give some of {','.join(names)}")
    return [name for name in names if name in wanted]


def report(**fields: Any) -> None:
    """Prints one line of JSON."""
    print(json.dumps(fields), flush=True)
