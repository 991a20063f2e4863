"""`jaxrec check`: what a capture holds and what is suspicious about it, before any fit."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import tyro

from .. import __version__
from ..data import Capture, open_capture
from .diagnosis import SEVERITIES, Finding, diagnose, exit_code
from .errors import CommandError
from .info import show_json
from .run_folder import write_image, write_text
from .sizes import IMAGE_MEMORY, parse_size
from .survey import Survey, survey

REPORT = "check.json"
_COLORS = {"note": "dim", "warning": "yellow", "error": "bold red"}


def check_command(
    data: tyro.conf.Positional[pathlib.Path],
    *,
    out: pathlib.Path | None = None,
    downscale: int = 1,
    mask_invert: bool = False,
    ignore_distortion: bool = False,
    image_memory: str = IMAGE_MEMORY,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> Callable[[], int]:
    """Looks at a capture before anything is fitted to it.

    Prints what was found and what is suspicious; draws the cameras and points (scene.png), the
    points on some photos (points.png) and from where the scene is seen (coverage.png). The exit
    code is 0 if there is no objection, 1 with warnings, 2 with errors.

    Args:
        data: Folder of a capture, or its json, as for `jaxrec fit`.
        out: Folder for pictures and check.json; by default check_NAME here. An earlier check in
            it is replaced.
        downscale: Take images this many times smaller.
        mask_invert: Masks mark what to ignore. Else 0 is ignored, anything else is used.
        ignore_distortion: Images are undistorted already, whatever the capture says.
        image_memory: How much memory images may take (4GB, 512MiB, or a part of the machine's).
        as_json: Print what check.json holds, and nothing else, to standard output.
    """
    memory = parse_size("image-memory", image_memory)
    if downscale < 1:
        raise ValueError(f"downscale: got {downscale}, want >= 1")

    def work() -> int:
        capture = open_capture(
            data,
            downscale=downscale,
            mask_invert=mask_invert,
            ignore_distortion=ignore_distortion,
            image_memory=memory,
        )
        folder = pathlib.Path(f"check_{_stem(data)}") if out is None else out
        return check_capture(capture, folder, as_json=as_json)

    return work


def check_capture(capture: Capture, out: pathlib.Path, *, as_json: bool) -> int:
    """Checks a capture, writes pictures and report, and prints the findings.

    Returns:
        The exit code: 0, 1 with warnings, 2 with errors.

    Raises:
        CommandError: If `out` holds something else.
    """
    from .scene_picture import draw_coverage, draw_points, draw_scene

    _check_free(out)
    facts = survey(capture)
    findings = diagnose(facts)
    report = _report(facts, findings)
    pictures = {
        "scene.png": draw_scene(facts),
        "points.png": draw_points(facts),
        "coverage.png": draw_coverage(facts),
    }
    with _replaced(out) as folder:
        for name, picture in pictures.items():
            if picture is not None:
                write_image(folder / name, picture)
        write_text(folder / REPORT, json.dumps(report, indent=2) + "\n")
    if as_json:
        show_json(report)
    else:
        show(report["facts"], findings)
        print(f"pictures and {REPORT}: {out}")
    return exit_code(findings)


def show(facts: dict[str, Any], findings: Sequence[Finding]) -> None:
    """Prints the facts and a table of the findings."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for name, value in facts.items():
        console.print(Text(f"{name:<11} {value}"))
    table = Table("", "topic", "found", "what to do", title=None, pad_edge=False)
    for finding in findings:
        style = _COLORS[finding.severity]
        table.add_row(
            Text(finding.severity, style), finding.topic, Text(finding.text), Text(finding.advice)
        )
    if findings:
        console.print(table)
    counts = [sum(finding.severity == each for finding in findings) for each in SEVERITIES]
    console.print(f"{counts[2]} errors, {counts[1]} warnings, {counts[0]} notes")


def _report(facts: Survey, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "facts": _facts(facts),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "images": [
            {
                "name": name,
                "held_out": index >= facts.train,
                "position": facts.positions[index].tolist(),
                "field_of_view_degrees": round(float(np.degrees(facts.fields[index])), 3),
                "points_in_image": int(facts.seen[index].sum()),
                **dataclasses.asdict(facts.photos[index]),
            }
            for index, name in enumerate(facts.names)
        ],
        "exit_code": exit_code(findings),
        "version": __version__,
    }


def _facts(facts: Survey) -> dict[str, str]:
    capture = facts.capture
    sizes = sorted({(frame.camera.width, frame.camera.height) for frame in capture.frames})
    fields = np.degrees(facts.fields)
    count = facts.seen[: facts.train].sum(axis=0)
    cloud = 0 if capture.points is None else len(capture.points.positions)
    masks = sum(photo.used < 1 for photo in facts.photos)
    return {
        "capture": f"{capture.path} ({capture.format})",
        "images": f"{facts.train} to fit, {len(facts.names) - facts.train} held out",
        "size": ", ".join(f"{width} x {height}" for width, height in sizes[:3])
        + (f" and {len(sizes) - 3} more" if len(sizes) > 3 else ""),
        "field": f"{fields.min():.1f} to {fields.max():.1f} degrees across",
        "lens": "with distortion" if capture.has_distortion else "ideal",
        "alpha": "cut out" if capture.has_alpha else "none",
        "masks": f"{masks} images are used in part" if masks else "all pixels are used",
        "cameras": f"{facts.extent:.3g} units from their middle, "
        + ("looking at one place" if facts.rig.inward else "looking at no common place")
        + f", {facts.rig.distance:.3g} from the scene",
        "points": f"{cloud}" if facts.colors is not None else "none",
        "coverage": f"{'a point' if facts.colors is not None else 'the middle of the scene'} is in "
        f"{np.median(count):.0f} images to fit (10 % in fewer than {np.quantile(count, 0.1):.0f})",
    }


def _stem(data: pathlib.Path) -> str:
    path = data.resolve()
    return path.name if path.is_dir() else f"{path.parent.name}_{path.stem}"


def _check_free(out: pathlib.Path) -> None:
    if out.is_dir():
        strange = [file for file in out.iterdir() if not file.name.startswith(".")]
        if not strange or (out / REPORT).is_file():
            return
        raise CommandError(f"{min(strange)}: in the way of a check; choose another --out")
    if out.exists():
        raise CommandError(f"{out}: is no folder; choose another --out")


@contextlib.contextmanager
def _replaced(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a folder that takes the place of `out` when it is whole."""
    new, old = (out.with_name(f".{os.getpid()}.{kind}.{out.name}") for kind in ("new", "old"))
    try:
        new.mkdir(parents=True)
        yield new
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
    finally:
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)
