"""Tells what each choice of the preset is worth: fits that differ from it in one thing.

    python bench/ablation.py --out OUT [--sets lego,fern] [--only mcmc,mlp] [--preset gpu]

Each fit is one of `bench/quality.py`. Writes a line of JSON for each to OUT/ablation.jsonl and to
OUT/ablation.md a table of the mean PSNR and the worst view's of each set, and how much they differ
from the preset's in dB.
"""

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from _harness import chosen
from jaxrec.train import (
    MCMC,
    Densification,
    Exposure,
    LossWeights,
    NoGrowth,
    Pruning,
    Relocation,
)
from quality import SETS, Job, add_fit_options, fit_changes, measured

# MCMC wants to be told what is not needed.
_SPARING = LossWeights(opacity=0.01, radius=0.01)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "preset": {},
    "softmax": {"kind": "softmax", "gamma": 0.1, "gamma_final": 1e-3},
    "softmax-hard": {"kind": "softmax", "gamma": 1e-3},
    "plain": {"shader": "plain"},
    "degree-1": {"degree": 1},
    "degree-3": {"degree": 3},
    "mlp": {"shader": "mlp"},
    "unet": {"image_shader": "unet"},
    "view-at-once": {"view_start": 0.0, "view_full": 1e-3, "view_dropout": 0.0},
    "by-opacity": {"growth": Relocation()},
    "mcmc": {"growth": MCMC(), "first_share": 0.25, "losses": _SPARING},
    "densification": {"growth": Densification(), "first_share": 0.25},
    "no-growth": {"growth": NoGrowth()},
    "no-pruning": {"pruning": Pruning(share=0.0)},
    "pruning-0.2": {"pruning": Pruning(share=0.2)},
    "random-start": {"initialization": "random"},
    "100k": {"spheres": 100_000, "degree": 3},
    "200k": {"spheres": 200_000, "degree": 3},
    "500k": {"spheres": 500_000, "degree": 3},
    "1M": {"spheres": 1_000_000, "degree": 3},
    "no-d-ssim": {"losses": LossWeights(d_ssim=0.0)},
    "affine-exposure": {"exposure": Exposure(kind="affine")},
    "grid-exposure": {"exposure": Exposure(kind="grid")},
}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Variants as lines of markdown, with what differs from the preset in brackets."""
    names = list(dict.fromkeys(row["set"] for row in rows))
    found = {(row["variant"], row["set"]): row for row in rows}
    lines = ["| variant | " + " | ".join(f"{name} | worst view" for name in names) + " |"]
    lines += ["|---|" + "---|---|" * len(names)]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        cells = [variant]
        for name in names:
            for value in ("psnr", "worst"):
                cells.append(_cell(found, variant, name, value))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(found: Mapping[Any, Mapping[str, Any]], variant: str, name: str, value: str) -> str:
    if (variant, name) not in found:
        return ""
    shown = found[variant, name][value]
    if variant == "preset" or ("preset", name) not in found:
        return f"{shown:.2f}"
    return f"{shown:.2f} ({shown - found['preset', name][value]:+.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Tells what each choice of the preset is worth.")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for both files")
    parser.add_argument("--sets", default="lego,fern", help=f"some of {','.join(SETS)}")
    parser.add_argument("--only", help=f"some of {','.join(VARIANTS)}; all by default")
    parser.add_argument("--seed", type=int, default=0)
    add_fit_options(parser)
    options = parser.parse_args(arguments)
    names = chosen(options.sets, list(SETS), "--sets")
    variants = chosen(options.only, list(VARIANTS), "--only")
    own = fit_changes(parser, options, names)
    jobs = [
        Job(
            name, options.seed, options.data, options.preset, options.scale,
            {**own, **VARIANTS[variant]}, variant,
        )
        for variant in variants
        for name in names
    ]  # fmt: skip
    rows = []
    for row in measured(jobs, options.out / "ablation.jsonl", options.parallel):
        rows += [] if "failure" in row else [row]
        (options.out / "ablation.md").write_text(table(rows))
    print(table(rows), end="")


if __name__ == "__main__":
    main()
