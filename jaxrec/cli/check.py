"""`jaxrec check`: what a capture or a drive holds and what is suspicious about it."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import tyro

from .. import __version__
from ..data import Capture, Drive, is_drive, open_capture, open_drive
from .diagnosis import SEVERITIES, Finding, diagnose, exit_code
from .drive_diagnosis import diagnose_drive, span_of
from .drive_survey import RANGES, DriveSurvey, align_all, survey_drive
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
    """Looks at a capture or a drive before anything is fitted to it.

    Prints what was found and what is suspicious; draws the cameras and points (scene.png), the
    points on some photos (points.png) and from where the scene is seen (coverage.png); of a
    drive, sweeps on images (sweeps.png) and all of it from above (above.png). The exit code is 0
    if there is no objection, 1 with warnings, 2 with errors.

    Args:
        data: Folder of a capture, or its json, as for `jaxrec fit`; or the log of a drive.
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
        folder = pathlib.Path(f"check_{_stem(data)}") if out is None else out
        if is_drive(data):
            if downscale != 1 or mask_invert or ignore_distortion:
                raise CommandError(
                    f"{data}: is a drive, and taken as it is; leave out --downscale, "
                    "--mask-invert and --ignore-distortion"
                )
            return check_drive(open_drive(data), folder, as_json=as_json)
        capture = open_capture(
            data,
            downscale=downscale,
            mask_invert=mask_invert,
            ignore_distortion=ignore_distortion,
            image_memory=memory,
        )
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
    pictures = {
        "scene.png": draw_scene(facts),
        "points.png": draw_points(facts),
        "coverage.png": draw_coverage(facts),
    }
    return _finish(out, _report(facts, findings), findings, pictures, as_json)


def check_drive(drive: Drive, out: pathlib.Path, *, as_json: bool) -> int:
    """Checks the log of a drive; see `check_capture`.

    Returns:
        The exit code: 0, 1 with warnings, 2 with errors.

    Raises:
        CommandError: If `out` holds something else.
    """
    from .drive_picture import draw_above, draw_sweeps

    _check_free(out)
    facts = survey_drive(drive, align_all(drive))
    findings = diagnose_drive(facts)
    pictures = {"sweeps.png": draw_sweeps(facts), "above.png": draw_above(facts)}
    return _finish(out, _drive_report(facts, findings), findings, pictures, as_json)


def _finish(
    out: pathlib.Path,
    report: dict[str, Any],
    findings: Sequence[Finding],
    pictures: Mapping[str, np.ndarray | None],
    as_json: bool,
) -> int:
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
    width = max(11, *map(len, facts))
    for name, value in facts.items():
        console.print(Text(f"{name:<{width}} {value}"))
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


def _drive_report(facts: DriveSurvey, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "facts": _drive_facts(facts),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "sensors": [
            {
                "name": name,
                "kind": sensor.kind,
                "count": len(sensor.times),
                "first_s": float(sensor.times[0]),
                "last_s": float(sensor.times[-1]),
                "step_s": _number(sensor.step),
                "without_pose": int((~sensor.posed).sum()),
                "mounted": sensor.mounted,
                "off_mount_m": _number(sensor.off_mount[0]),
                "off_mount_degrees": _number(sensor.off_mount[1]),
                "coverage": dataclasses.asdict(facts.coverage[name]),
            }
            for name, sensor in facts.sensors.items()
        ],
        "range_bins_m": [_number(bound) for bound in RANGES],
        "alignments": [
            {
                key: _number(value) if isinstance(value, float) else value
                for key, value in dataclasses.asdict(pair).items()
            }
            for pair in facts.alignments
        ],
        "tracks": [dataclasses.asdict(track) for track in facts.tracks],
        "exit_code": exit_code(findings),
        "version": __version__,
    }


def _number(value: float) -> float | None:
    """A number for JSON, which knows neither NaN nor infinity."""
    return float(value) if np.isfinite(value) else None


def _drive_facts(facts: DriveSurvey) -> dict[str, str]:
    drive = facts.drive
    result = {"drive": f"{drive.path} ({drive.format})"}
    for name, sensor in facts.sensors.items():
        result[name] = span_of(sensor)
    moving = sum(track.known > 0 for track in facts.tracks)
    result["tracks"] = f"{len(facts.tracks)}, {moving} of them at times of images or sweeps"
    for name in facts.cameras:
        share = 100 * facts.coverage[name].seen
        result[f"{name} coverage"] = f"{share:.2g} % of the pixels hold a point of a sweep"
    for name in facts.lidars:
        seen = facts.coverage[name]
        result[f"{name} coverage"] = (
            f"{100 * seen.seen:.0f} % of the points are in an image; {100 * seen.silent:.0f} % of "
            f"the rays have no return, of {100 * seen.unknown:.0f} % nothing is known"
        )
        bins = zip(RANGES[:-1], RANGES[1:], seen.ranges, strict=True)
        result[f"{name} ranges"] = ", ".join(
            (f"{low:g}-{high:g} m" if np.isfinite(high) else f"beyond {low:g} m")
            + f" {100 * share:.0f} %"
            for low, high, share in bins
        )
    return result


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
