"""Prints JSON lines of the benchmarks as a table.

    python bench/table.py OUT/bench.jsonl

Columns: milliseconds, memory beyond arguments and results, hits of a ray, and the share of the time
that the least work of `blend.py` would take.
"""

import argparse
import json
import pathlib

COLUMNS = "{:8} {:13} {:15} {:>10} {:>9} {:>9} {:>6}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints JSON lines as a table.")
    parser.add_argument("file", type=pathlib.Path)
    rows = [json.loads(line) for line in parser.parse_args().file.read_text().splitlines()]
    timed = [row for row in rows if row["case"] not in ("soak", "scatter")]
    if timed:
        print(COLUMNS.format("kind", "case", "pass", "ms", "temp MB", "hits", "floor"))
    for row in timed:
        numbers = (
            number(row["ms"], 3),
            number(row.get("temp_mb"), 1),
            number(row.get("hits_per_pixel", row.get("hits_per_ray")), 1),
            number(row.get("floor_fraction"), 2),
        )
        print(COLUMNS.format(row.get("kind", ""), row["case"], row["pass"], *numbers))
    checks = [row for row in rows if row["case"] == "soak"]
    if checks:
        last = checks[-1]
        verdict = last["failure"] or "good"
        print(f"soak: {last['step']} steps, {last['ms_per_step']} ms each at last, {verdict}")

    ways: dict[tuple, dict[str, float]] = {}
    for row in rows:
        if row["case"] == "scatter":
            key = (row["kind"], row["spheres"], row["pixels"], row["channels"])
            ways.setdefault(key, {})[row["way"]] = row["ms"]
    for (kind, spheres, pixels, channels), times in ways.items():
        shown = "  ".join(f"{way} {ms:.3f}" for way, ms in times.items())
        print(f"{kind:8} {spheres:8} spheres {pixels:3g} px {channels:3} channels  {shown}")


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
