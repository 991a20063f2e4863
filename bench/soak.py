"""A long training run, watched for values that are not finite and for memory that grows.

`jaxrec.train.fit` runs as in a real fit, with D-SSIM and relocation, on synthetic views. Every 1000
steps a line of JSON tells loss, whether all parameters and optimiser moments are finite, and device
memory in use. The run ends with exit code 1 at the first check that finds a value which is not
finite, or more memory in use than at the second check; only the checks wait for the device.

    python bench/soak.py [--steps 30000] [--spheres 1000000] [--size 256] [--kind alpha]
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from _harness import commit, device, report
from _scenes import KINDS
from _training import synthetic_fit
from jaxrec.train import Backdrop, FitSettings, FitState, fit

VIEWS = 8
# Bytes by which memory in use may differ between checks. A leak of 256 bytes in each step, the
# least that XLA's allocator gives, exceeds it within 4100 steps.
SLACK = 2**20


class Watch:
    """Judges a run at its checks."""

    def __init__(self, every: int):
        self._every = every
        self._finite: jax.Array | None = None
        self._settled: int | None = None
        self._before = (0, time.perf_counter())
        self.failure = ""

    def on_step(self, step: int, state: FitState) -> None:
        # The state is dead after the next step, so the question is queued now and read later.
        if step % self._every == 0:
            self._finite = all_finite((state.params, state.optimizer))

    def on_progress(self, step: int, metrics: Mapping[str, float]) -> None:
        if step % self._every:
            return  # the last step, reported though no check is due
        finite = bool(self._finite) and math.isfinite(metrics["loss"])
        used = memory_in_use()
        now = time.perf_counter()
        ms = 1e3 * (now - self._before[1]) / (step - self._before[0])
        self._before = (step, now)
        if not finite:
            self.failure = f"step {step}: a value is not finite"
        elif used is not None and step >= 2 * self._every:
            if self._settled is None:
                self._settled = used
            elif used > self._settled + SLACK:
                self.failure = f"step {step}: {used} bytes in use, {self._settled} before"
        report(
            case="soak",
            step=step,
            loss=round(metrics["loss"], 5) if finite else None,
            psnr=round(metrics["psnr"], 2) if finite else None,
            finite=finite,
            memory_mb=None if used is None else round(used / 1e6, 3),
            ms_per_step=round(ms, 3),
            failure=self.failure,
            device=device(),
            commit=commit(),
        )


@jax.jit
def all_finite(tree: Any) -> jax.Array:
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in leaves]).all()


def memory_in_use() -> int | None:
    """Bytes in use on the device; None where it does not tell."""
    found = jax.local_devices()[0].memory_stats()
    return None if found is None else found["bytes_in_use"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains for long and watches.")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--every", type=int, default=1000, help="steps between checks")
    parser.add_argument("--spheres", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256, help="side of the views in pixels")
    parser.add_argument("--kind", choices=KINDS, default="alpha")
    options = parser.parse_args()
    settings = FitSettings(
        steps=options.steps,
        spheres=options.spheres,
        kind=options.kind,
        shader="plain",
        backdrop=Backdrop(kind="constant"),
        progress_every=options.every,
    )
    frames, state, normalizer = synthetic_fit(settings, VIEWS, options.size)
    watch = Watch(options.every)
    fit(
        frames,
        settings,
        state=state,
        normalizer=normalizer,
        on_step=watch.on_step,
        on_progress=watch.on_progress,
        should_stop=lambda: bool(watch.failure),
    )
    if watch.failure:
        sys.exit(f"soak: {watch.failure}")


if __name__ == "__main__":
    main()
