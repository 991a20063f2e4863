"""One line of progress: rewritten in place on a terminal, now and then a new one elsewhere."""

import io
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from typing import TextIO


class Progress:
    """Reports a fit's step, loss, PSNR, number of spheres, speed and remaining time."""

    def __init__(
        self,
        steps: int,
        start: int,
        *,
        stream: TextIO | io.TextIOBase | None = None,
        pause: float = 5.0,
    ):
        """Starts the clock.

        Args:
            steps: Step at which the fit ends.
            start: Step at which it begins.
            stream: Where to write; standard output by default.
            pause: Least seconds between two lines where the stream is no terminal.
        """
        self._steps, self._pause = steps, pause
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty()
        self._last = (start, time.monotonic())
        self._speeds: list[float] = []
        self._written: float | None = None
        self._open = False

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows where the fit is.

        Args:
            step: Number of steps done.
            metrics: `loss`, `spheres`, and `psnr` in decibels and `range_mean_abs_m` where there
                are such.
        """
        now = time.monotonic()
        self._measure(step, now)
        last = step >= self._steps
        waited = self._written is None or now - self._written >= self._pause
        if not (self._terminal or waited or last):
            return
        self._written = now
        line = self._line(step, metrics)
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._stream.write("\r\x1b[K" + line[: width - 1])
            self._open = True
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Ends the line, so that what is printed next starts on one of its own."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False

    def _measure(self, step: int, now: float) -> None:
        """Notes the speed since the last call."""
        before, then = self._last
        self._last = (step, now)
        if step <= before:
            return
        self._speeds = [*self._speeds[-4:], (step - before) / max(now - then, 1e-9)]

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        rate = statistics.median(self._speeds) if self._speeds else 0.0
        # The first measurement is mostly that of the compiler.
        left = _clock((self._steps - step) / rate) if len(self._speeds) > 1 else "--:--"
        psnr = f"PSNR {metrics['psnr']:.2f} dB  " if "psnr" in metrics else ""
        ranges = metrics.get("range_mean_abs_m")
        ranged = "" if ranges is None else f"range {ranges:.3f} m  "
        return (
            f"step {step}/{self._steps}  loss {metrics['loss']:.4f}  "
            f"{psnr}{ranged}{metrics['spheres']:.0f} spheres  "
            f"{rate:.1f} it/s  ETA {left}"
        )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"
