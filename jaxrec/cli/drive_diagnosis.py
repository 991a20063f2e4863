"""What is suspicious about the log of a drive, before anything is fitted to it."""

from collections.abc import Callable, Iterator

import numpy as np

from .alignment import LIMITS, Alignment
from .diagnosis import SEVERITIES, Finding, Severity, listed
from .drive_survey import DriveSurvey, SensorFacts

# A pause this many times as long as the usual step is a gap.
_GAP = 1.8
# Stamps closer than this share of the usual step are one stamp written twice.
_TWICE = 0.02
# The sweep nearest to an image is at most half a step away, and a little.
_LATE = 0.6
# Metres and degrees between where a camera stands and where the path and its mount put it.
_OFF_METRES, _OFF_DEGREES = 0.2, 1.0
# Shifts below these are within what edges can tell, or do no harm.
_SECONDS, _DEGREES = 0.008, 0.2
# What is told of an aligned pair is known at least this well.
_KNOWN_SECONDS, _KNOWN_DEGREES = 0.01, 0.2
# Sides of a car rig and of boxes on a road, in metres.
_RIG, _SMALLEST, _LARGEST = 10.0, 0.1, 40.0
_RIGID = 1e-3
_HOLE = 5.0
_NOTHING, _SILENT = 0.002, 0.9


def diagnose_drive(survey: DriveSurvey) -> list[Finding]:
    """Judges a drive.

    Returns:
        Findings, the worst first.
    """
    found = [finding for check in _CHECKS for finding in check(survey)]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def _contents(survey: DriveSurvey) -> Iterator[Finding]:
    for message in survey.drive.messages:
        yield Finding("note", "reader", message)
    if not survey.sensors:
        yield Finding(
            "error", "sensors", "neither images nor sweeps", "check the path, or fetch the rest"
        )
    elif not survey.cameras:
        yield Finding("note", "sensors", "no images: only sweeps can be fitted")
    elif not survey.lidars:
        yield Finding("note", "sensors", "no sweeps: clocks and mounts of cameras are not compared")


def _mounts(survey: DriveSurvey) -> Iterator[Finding]:
    mounts = survey.drive.mounts
    missing = [name for name, facts in survey.sensors.items() if not facts.mounted]
    for name in missing:
        text = f"{name} has no mount: the calibration lacks the edge from the body to {name}"
        yield Finding("error", "mounts", text, f"add body_from_{name} to the calibration")
    idle = [name for name in mounts if name not in survey.sensors]
    if idle:
        yield Finding("note", "mounts", f"mounts of sensors without data: {listed(idle)}")
    for name in (name for name in mounts if name in survey.sensors):
        mount = np.asarray(mounts[name], np.float64)
        rotation = mount[:3, :3]
        off = np.abs(rotation @ rotation.T - np.eye(3)).max()
        if not (off < _RIGID and np.linalg.det(rotation) > 0):
            text = f"the mount of {name} is no rigid motion (off by {off:.2g})"
            yield Finding("error", "mounts", text, "give a rotation and a position in metres")
            continue
        away = float(np.linalg.norm(mount[:3, 3]))
        if away > _RIG:
            text = f"{name} is mounted {away:.3g} m from the body's origin"
            yield Finding("warning", "mounts", text, "check its unit, metres, and its direction")
        twins = [
            other
            for other in mounts
            if other in survey.sensors and other > name and np.abs(mounts[other] - mount).max() == 0
        ]
        if twins:
            text = f"{name} and {listed(twins)} have the same mount to the last digit"
            yield Finding("warning", "mounts", text, "check whether one stands for the other")
    for name, facts in survey.sensors.items():
        metres, degrees = facts.off_mount
        if metres > _OFF_METRES or degrees > _OFF_DEGREES:
            text = (
                f"{name} stands {metres:.2g} m and {degrees:.2g} degrees from where the rig's path "
                "and its mount put it"
            )
            advice = "check the mount's direction (body_from_sensor) and the clock of its poses"
            yield Finding("warning", "mounts", text, advice)


def _clocks(survey: DriveSurvey) -> Iterator[Finding]:
    for facts in survey.sensors.values():
        steps, usual = np.diff(facts.times), facts.step
        what = "images" if facts.kind == "camera" else "sweeps"
        twice = np.flatnonzero(steps <= _TWICE * usual) if len(steps) else steps
        if len(twice):
            named = listed([facts.names[int(i) + 1] for i in twice])
            text = f"{facts.name}: {len(twice)} {what} have the time of the one before: {named}"
            yield Finding("warning", "clocks", text, "correct the stamps, or remove the copies")
        gaps = np.flatnonzero(steps > _GAP * usual) if len(steps) > 1 else steps[:0]
        if len(gaps):
            longest = int(gaps[np.argmax(steps[gaps])])
            text = (
                f"{facts.name}: {len(gaps)} gaps between {what}, the longest {steps[longest]:.3g} s"
                f" after {facts.names[longest]} (as a rule {usual:.3g} s)"
            )
            advice = "were some lost? what nobody saw is not reconstructed"
            yield Finding("warning", "clocks", text, advice)
    if not survey.lidars or not survey.cameras:
        return
    usual = min(survey.sensors[name].step for name in survey.lidars)
    limit = _LATE * usual + 0.01 if np.isfinite(usual) else 0.1
    for name in survey.cameras:
        own = [i for i, e in enumerate(survey.drive.exposures) if e.sensor == name]
        alone = [i for i in own if survey.lags[i] > limit]
        if alone:
            named = listed([survey.drive.exposures[i].name for i in alone])
            text = (
                f"{name}: {len(alone)} of {len(own)} images have no sweep within {limit:.3g} s, "
                f"the worst {survey.lags[alone].max():.3g} s: {named}"
            )
            advice = "check that both clocks have one epoch and unit"
            severity: Severity = "error" if len(alone) == len(own) else "warning"
            yield Finding(severity, "clocks", text, advice)


def _poses(survey: DriveSurvey) -> Iterator[Finding]:
    for facts in survey.sensors.values():
        without = np.flatnonzero(~facts.posed)
        if not len(without):
            continue
        what = "images" if facts.kind == "camera" else "sweeps"
        named = listed([facts.names[int(index)] for index in without])
        times = facts.times[without]
        text = (
            f"{facts.name}: the rig's path has no poses for {len(without)} of {len(facts.times)} "
            f"{what}, from {times.min():.3f} to {times.max():.3f} s: {named}"
        )
        severity = "error" if len(without) > len(facts.times) / 2 else "warning"
        yield Finding(severity, "poses", text, "give the missing poses, or remove these")
    times = getattr(survey.drive.ego, "times", None)
    if times is not None and len(times) > 2:
        steps = np.diff(np.asarray(times, np.float64))
        worst = int(np.argmax(steps))
        if steps[worst] > max(_HOLE * np.median(steps), 0.5):
            text = (
                f"the rig's path has a hole of {steps[worst]:.3g} s at {float(times[worst]):.3f} s "
                f"(as a rule poses follow after {np.median(steps):.2g} s)"
            )
            yield Finding("warning", "poses", text, "give the poses in between")


def _alignment(survey: DriveSurvey) -> Iterator[Finding]:
    for pair in survey.alignments:
        names = f"{pair.camera} and {pair.lidar}"
        if pair.verdict == "flat":
            text = (
                f"{names}: clocks and mount cannot be compared, {pair.edges} edges of sweeps in "
                f"{pair.exposures} images are too few, or stand out nowhere"
            )
            yield Finding("note", "alignment", text)
            continue
        late, turned = _late(pair), _turned(pair)
        late_enough = pair.verdict in ("time", "both", "either") and abs(pair.seconds) > _SECONDS
        turned_enough = (
            pair.verdict in ("rotation", "both", "either")
            and max(abs(pair.yaw), abs(pair.pitch)) > _DEGREES
        )
        if not (late_enough or turned_enough):
            known = [late] if pair.seconds_error < _KNOWN_SECONDS else []
            known += [turned] if pair.degrees_error < _KNOWN_DEGREES else []
            text = f"{names}: edges fit; best with {' and '.join(known)}"
            if not known:
                text = f"{names}: no shift makes edges fit better"
            yield Finding("note", "alignment", text)
            continue
        joint = " or, as well, " if pair.verdict == "either" else " and "
        parts = [late] * late_enough + [turned] * turned_enough
        text = f"{names}: edges fit better by {pair.pixels:.2g} pixels with {joint.join(parts)}"
        mend = f"calibrate the mount of {pair.camera} again, or refine poses and mounts in the fit"
        clock = (
            f"add {1e3 * pair.seconds:.0f} ms to the times of {pair.camera} (if all cameras say "
            f"so, take them from those of {pair.lidar})"
        )
        advice = [clock] * late_enough + [mend] * turned_enough
        yield Finding("warning", "alignment", text, "; ".join(advice))


def _late(pair: Alignment) -> str:
    when = "later" if pair.seconds > 0 else "earlier"
    if abs(pair.seconds) >= LIMITS[0]:
        return f"images {1e3 * LIMITS[0]:.0f} ms {when} or more"
    error = 1e3 * pair.seconds_error
    return f"images {1e3 * abs(pair.seconds):.0f} ms {when} (± {max(error, 1):.0f})"


def _turned(pair: Alignment) -> str:
    side, height = "left" if pair.yaw > 0 else "right", "up" if pair.pitch > 0 else "down"
    end = abs(pair.yaw) >= LIMITS[1] or abs(pair.pitch) >= LIMITS[2]
    return (
        f"{pair.camera} turned {abs(pair.yaw):.2f} degrees to the {side} and {abs(pair.pitch):.2f} "
        f"{height} " + ("or more" if end else f"(± {pair.degrees_error:.2f})")
    )


def _tracks(survey: DriveSurvey) -> Iterator[Finding]:
    lost = [track.id for track in survey.tracks if track.known == 0]
    if lost:
        text = (
            f"{len(lost)} of {len(survey.tracks)} tracks have no pose at the time of any image or "
            f"sweep: {listed(lost)}"
        )
        # A part of a log comes with the tracks of all of it.
        if len(lost) > len(survey.tracks) / 2:
            advice = "check the clock of the labels, or remove them"
            yield Finding("warning", "tracks", text, advice)
        else:
            yield Finding("note", "tracks", text)
    odd = [
        track.id
        for track in survey.tracks
        if not (min(track.size) >= _SMALLEST and max(track.size) <= _LARGEST)
    ]
    if odd:
        text = f"{len(odd)} tracks have sides below {_SMALLEST} or above {_LARGEST:.0f} m"
        yield Finding("warning", "tracks", f"{text}: {listed(odd)}", "check their unit, metres")
    if not survey.lidars:
        return
    empty = [track.id for track in survey.tracks if track.known > 0 and track.points == 0]
    if empty and len(empty) > len(survey.tracks) / 2:
        text = f"{len(empty)} of {len(survey.tracks)} tracks hold no point: {listed(empty)}"
        advice = "check the frame of the boxes: world_from_box, z up, the origin in the middle"
        yield Finding("warning", "tracks", text, advice)
    elif empty:
        text = f"{len(empty)} of {len(survey.tracks)} tracks hold no point: {listed(empty)}"
        yield Finding("note", "tracks", text)


def _coverage(survey: DriveSurvey) -> Iterator[Finding]:
    for name in survey.lidars if survey.cameras else []:
        if survey.coverage[name].seen < _NOTHING:
            text = f"no camera sees the points of {name}"
            advice = "check its mount and its frame (x forward, y left, z up)"
            yield Finding("error", "coverage", text, advice)
    for name in survey.cameras if survey.lidars else []:
        if survey.coverage[name].seen == 0:
            text = f"no point of a sweep falls on the images of {name}"
            advice = "check its mount and its axes (x right, y down, z forward)"
            yield Finding("warning", "coverage", text, advice)
    for name in survey.lidars:
        facts = survey.coverage[name]
        if facts.unknown + facts.silent > _SILENT:
            share = 100 * (facts.unknown + facts.silent)
            text = f"{name}: {share:.0f} % of the rays bring nothing"
            yield Finding("warning", "coverage", text, "check how its points became a grid")
    for name in survey.cameras:
        if survey.coverage[name].unknown > 0.98:
            text = f"masks leave {100 * (1 - survey.coverage[name].unknown):.1f} % of {name}"
            yield Finding("warning", "masks", text, "check the masks of this camera")


_CHECKS: tuple[Callable[[DriveSurvey], Iterator[Finding]], ...] = (
    *(_contents, _mounts, _clocks, _poses),
    *(_alignment, _tracks, _coverage),
)


def span_of(facts: SensorFacts) -> str:
    """How many images or sweeps a sensor has, and when, for people."""
    what = "images" if facts.kind == "camera" else "sweeps"
    if len(facts.times) < 2:
        return f"{len(facts.times)} {what}"
    return (
        f"{len(facts.times)} {what}, {1 / max(facts.step, 1e-9):.3g} Hz, "
        f"{facts.times[0]:.2f} to {facts.times[-1]:.2f} s"
    )
