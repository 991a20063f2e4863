"""What is suspicious about a capture, before anything is fitted to it."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from .survey import Survey

Severity = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")

_FEW = 10
_NAMES = 4
# Fields of view, in degrees, of lenses that people own; beyond the second pair it is a mistake.
_USUAL_FIELD, _POSSIBLE_FIELD = (10, 120), (2, 170)
# Distance of the principal point from the middle, in image sides.
_OFF_CENTER = 0.1
_SQUARE = 1.2
# Two cameras are one if they are closer than this part of the capture's extent, and turned by
# less than this angle in degrees.
_SAME_PLACE, _SAME_ANGLE = 1e-3, 0.1
_FAR_AWAY = 20
_LARGE, _SMALL = 1000, 1e-3
_LITTLE_PARALLAX = 5
_DEPTH_FACTOR = 1.05
# Stops between an image and its neighbours, or the median.
_EXPOSURE = 0.7
_BLURRED = 0.2
_BLACK, _WHITE, _MASKED = 0.01, 0.25, 0.02


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a person should know.

    Attributes:
        severity: `error` makes a fit useless or impossible, `warning` may spoil it.
        topic: A word for the table.
        text: What was found.
        advice: What to do about it; empty for a note.
    """

    severity: Severity
    topic: str
    text: str
    advice: str = ""


def diagnose(survey: Survey) -> list[Finding]:
    """Judges a capture.

    Returns:
        Findings, the worst first.
    """
    found = [finding for check in _CHECKS for finding in check(survey)]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many there are more."""
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def exit_code(findings: Iterable[Finding]) -> int:
    """0 for a capture without objection, 1 with warnings, 2 with errors."""
    return max((SEVERITIES.index(finding.severity) for finding in findings), default=0)


def _images(survey: Survey) -> Iterator[Finding]:
    for message in survey.capture.messages:
        yield Finding("note", "reader", message)
    if survey.train < 2:
        yield Finding(
            "error", "images", f"{survey.train} image to fit", "give at least two, better twenty"
        )
    elif survey.train < _FEW:
        text = f"only {survey.train} images to fit"
        yield Finding("warning", "images", text, "take more: every part of the scene from three")
    sizes = {(frame.camera.width, frame.camera.height) for frame in survey.capture.frames}
    if len(sizes) > 1:
        shown = ", ".join(f"{width} x {height}" for width, height in sorted(sizes))
        yield Finding("note", "images", f"images of {len(sizes)} sizes: {shown}")


def _intrinsics(survey: Survey) -> Iterator[Finding]:
    degrees = np.degrees(survey.fields)
    advice = "check fl_x (pixels), camera_angle_x (radians) and the image size"
    limits: Sequence[tuple[tuple[float, float], Severity]]
    limits = ((_POSSIBLE_FIELD, "error"), (_USUAL_FIELD, "warning"))
    for (low, high), severity in limits:
        out = np.flatnonzero((degrees < low) | (degrees > high))
        if len(out):
            worst = degrees[out[np.argmax(np.abs(np.log(degrees[out] / 50)))]]
            text = f"a field of view of {worst:.3g} degrees: {_named(survey, out)}"
            yield Finding(severity, "intrinsics", text, advice)
            break
    off, skewed = [], []
    for index, frame in enumerate(survey.capture.frames):
        camera = frame.camera
        principal = np.asarray(camera.principal) / (camera.width, camera.height)
        if np.abs(principal - 0.5).max() > _OFF_CENTER:
            off.append(index)
        first, second = (float(value) for value in camera.focal)
        if max(first / second, second / first) > _SQUARE:
            skewed.append(index)
    if off:
        camera = survey.capture.frames[off[0]].camera
        x, y = (float(value) for value in camera.principal)
        text = f"principal point ({x:.0f}, {y:.0f}) of {camera.width} x {camera.height} pixels"
        advice = "check cx and cy, unless the images were cropped"
        yield Finding("warning", "intrinsics", f"{text}: {_named(survey, off)}", advice)
    if skewed:
        x, y = (float(value) for value in survey.capture.frames[skewed[0]].camera.focal)
        text = f"pixels that are not square, focal lengths {x:.4g} and {y:.4g}"
        advice = "check fl_x and fl_y: were the images resized without them?"
        yield Finding("warning", "intrinsics", f"{text}: {_named(survey, skewed)}", advice)


def _lens(survey: Survey) -> Iterator[Finding]:
    blind = np.flatnonzero(survey.blind > 0)
    if len(blind):
        text = (
            f"the lens model folds over: {100 * survey.blind.max():.0f} % of an image have no ray"
        )
        advice = "check the distortion, or calibrate with fewer coefficients"
        severity = "error" if survey.blind.max() > 0.5 else "warning"
        yield Finding(severity, "lens", f"{text}: {_named(survey, blind)}", advice)
    if not survey.capture.has_distortion:
        return
    dark = [index for index, photo in enumerate(survey.photos) if photo.dark_corners]
    if len(dark) > 0.8 * len(survey.photos):
        text = f"all corners of {len(dark)} images are black, as undistorting leaves them"
        advice = "if they are undistorted already, add --ignore-distortion"
        yield Finding("warning", "lens", text, advice)


def _poses(survey: Survey) -> Iterator[Finding]:
    positions = survey.positions
    distance = cdist(positions, positions)
    if distance.max() == 0:
        advice = "move the camera: depth follows from parallax alone"
        yield Finding("error", "poses", "all cameras stand at one place", advice)
        return
    turned = np.degrees(_angle_between(survey.poses))
    # Where half the cameras stand at one place, their extent says nothing.
    extent = survey.extent or float(distance.max())
    same = (distance < _SAME_PLACE * extent) & (turned < _SAME_ANGLE)
    first, second = np.nonzero(np.triu(same, 1))
    if len(first):
        pair = f"{survey.names[first[0]]} and {survey.names[second[0]]}"
        text = f"{len(first)} pairs of cameras stand and look alike, such as {pair}"
        yield Finding("warning", "poses", text, "remove one of each, unless it is a tripod")
        across = (first < survey.train) & (second >= survey.train)
        if across.any():
            text = f"{across.sum()} held-out images were taken where one to fit was"
            yield Finding("warning", "poses", text, "their scores mean little: hold out others")
    middle = np.median(positions, axis=0)
    far = np.flatnonzero(np.linalg.norm(positions - middle, axis=1) > _FAR_AWAY * extent)
    if len(far):
        text = f"{len(far)} cameras far from all others: {_named(survey, far)}"
        yield Finding("warning", "poses", text, "remove them, or estimate their poses again")


def _scale(survey: Survey) -> Iterator[Finding]:
    if any(survey.capture.origin):
        shift = ", ".join(f"{value:.0f}" for value in survey.capture.origin)
        text = f"global coordinates (UTM?): ({shift}) is subtracted from all positions"
        yield Finding("note", "scale", text)
    if survey.extent > _LARGE:
        text = f"cameras are {survey.extent:.0f} units apart: kilometres, or millimetres?"
        yield Finding("warning", "scale", text, "lengths are metres: divide by 1000 if need be")
    elif 0 < survey.extent < _SMALL:
        text = f"cameras are {survey.extent:.2g} units apart"
        yield Finding("warning", "scale", text, "lengths are metres: scale the poses if need be")


def _depths(survey: Survey) -> Iterator[Finding]:
    factor = survey.depth_factor
    if factor is not None and abs(math.log(factor)) > math.log(_DEPTH_FACTOR):
        text = f"images agree best when their depths are multiplied by {factor:.2f}"
        advice = (
            "check the unit of depths and poses, and that intrinsics are the colour camera's; "
            "until then fit without --depth.weight and --initialization auto"
        )
        yield Finding("warning", "depths", text, advice)


def _directions(survey: Survey) -> Iterator[Finding]:
    share = survey.seen.mean(axis=1)
    known = survey.colors is not None
    thing = "the points" if known else "the place that most cameras look at"
    blind = np.flatnonzero(share == 0)
    if len(blind) == len(share):
        text = f"no camera sees any of {thing}"
        advice = "are the poses world-to-camera? jaxrec wants camera-to-world"
        yield Finding("error", "directions", text, advice)
    elif len(blind):
        text = f"{len(blind)} cameras see nothing of {thing}: {_named(survey, blind)}"
        advice = "check their poses; world-to-camera in place of camera-to-world looks like this"
        yield Finding("warning", "directions", text, advice)
    if not known and not survey.rig.inward and _inverses_meet(survey):
        text = "the cameras look at no common place, but their inverses would"
        advice = "if the file holds world-to-camera matrices, invert them"
        yield Finding("warning", "directions", text, advice)
    parallax = _parallax(survey)
    if parallax < _LITTLE_PARALLAX:
        text = f"the cameras see the scene within {parallax:.1f} degrees"
        yield Finding("warning", "directions", text, "move farther between pictures")


def _points(survey: Survey) -> Iterator[Finding]:
    if survey.colors is None:
        yield Finding("note", "points", "the capture holds no points: only poses are checked")
        return
    count = survey.seen[: survey.train].sum(axis=0)
    lost = float(np.mean(count < 2))
    if lost > 0.2:
        text = f"{100 * lost:.0f} % of the points are in fewer than two images to fit"
        yield Finding("warning", "points", text, "check that poses and points have one frame")
    positions = survey.points.astype(np.float64)
    middle = np.median(positions, axis=0)
    away = np.linalg.norm(positions - middle, axis=1)
    stray = float(np.mean(away > 100 * np.median(away)))
    if stray > 0.001:
        text = (
            f"{100 * stray:.2g} % of the points lie a hundred times farther out than half of them"
        )
        yield Finding("warning", "points", text, "filter the points of the model")


def _exposure(survey: Survey) -> Iterator[Finding]:
    bright = np.asarray([photo.brightness for photo in survey.photos])
    usable = np.asarray([photo.used for photo in survey.photos]) > 0
    black = np.flatnonzero(usable & (bright < _BLACK))
    if len(black):
        text = f"{len(black)} images are black: {_named(survey, black)}"
        yield Finding("warning", "exposure", text, "remove them")
    order = [index for index in _by_name(survey) if usable[index] and bright[index] >= _BLACK]
    stops = np.log2(bright[order])
    jumps = [
        index
        for place, index in enumerate(order)
        if abs(stops[place] - np.median(stops[max(0, place - 2) : place + 3])) > _EXPOSURE
    ]
    # What is cut out is as bright as what of it is seen.
    if jumps and not survey.capture.has_alpha:
        text = f"exposure jumps by more than {_EXPOSURE} stops: {_named(survey, jumps)}"
        yield Finding("warning", "exposure", text, "fix the exposure, or remove these images")
    elif len(stops) and np.ptp(stops) > 2 * _EXPOSURE:
        text = f"brightness varies by {np.ptp(stops):.1f} stops from image to image"
        yield Finding("note", "exposure", text)
    white = [index for index, photo in enumerate(survey.photos) if photo.white > _WHITE]
    # What is cut out is often rendered over white.
    if white and not survey.capture.has_alpha:
        text = f"more than a quarter of the pixels are overexposed: {_named(survey, white)}"
        yield Finding("note", "exposure", text)


def _sharpness(survey: Survey) -> Iterator[Finding]:
    sharp = np.asarray([photo.sharpness for photo in survey.photos])
    blurred = np.flatnonzero(sharp < _BLURRED * np.median(sharp))
    if len(blurred):
        text = f"far less sharp than the others: {_named(survey, blurred)}"
        yield Finding("warning", "sharpness", text, "remove them if they are blurred")


def _masks(survey: Survey) -> Iterator[Finding]:
    used = np.asarray([photo.used for photo in survey.photos])
    empty = np.flatnonzero(used[: survey.train] == 0)
    advice = "check the masks: 0 is ignored, --mask-invert turns that round"
    if len(empty) == survey.train:
        yield Finding("error", "masks", "masks leave no pixel to fit", advice)
    elif (used < _MASKED).any():
        little = np.flatnonzero(used < _MASKED)
        text = f"masks and alpha leave less than 2 %: {_named(survey, little)}"
        yield Finding("warning", "masks", text, advice)


_CHECKS: tuple[Callable[[Survey], Iterator[Finding]], ...] = (
    *(_images, _intrinsics, _lens, _poses, _scale, _depths, _directions),
    *(_points, _exposure, _sharpness, _masks),
)


def _named(survey: Survey, indices: Sequence[int] | np.ndarray) -> str:
    names = [survey.names[int(index)] for index in indices]
    if len(names) == len(survey.names):
        return "all images"
    return listed(names)


def _by_name(survey: Survey) -> list[int]:
    """All images in the order of their names: as a rule that in which they were taken."""
    return sorted(range(len(survey.names)), key=lambda index: survey.names[index])


def _angle_between(poses: np.ndarray) -> np.ndarray:
    """Angle of the rotation between each two cameras."""
    rotations = poses[:, :3, :3].reshape(-1, 9)
    # Accurate near zero, where the arc cosine of a trace is not.
    chord = cdist(rotations, rotations) / math.sqrt(8)
    return 2 * np.arcsin(np.clip(chord, 0, 1))


def _inverses_meet(survey: Survey) -> bool:
    """Whether cameras with the inverse poses would look at a common place."""
    inverse = np.linalg.inv(survey.poses)
    positions, axes = inverse[:, :3, 3], inverse[:, :3, 2]
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    system = across.mean(axis=0)
    if np.linalg.eigvalsh(system)[0] < 0.01:
        return False
    focus = np.linalg.solve(system, np.einsum("nij,nj->i", across, positions) / len(positions))
    ahead = np.einsum("ij,ij->i", focus - positions, axes)
    return bool(np.mean(ahead > 0) > 0.9)


def _parallax(survey: Survey) -> float:
    """The largest angle, in degrees, between two cameras' lines of sight to the median point."""
    middle = np.median(survey.points.astype(np.float64), axis=0)
    lines = survey.positions - middle
    length = np.linalg.norm(lines, axis=1, keepdims=True)
    lines = lines / np.where(length > 0, length, 1)
    return float(np.degrees(np.arccos(np.clip((lines @ lines.T).min(), -1, 1))))
