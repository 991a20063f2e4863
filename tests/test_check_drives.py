"""`jaxrec check` of drives: a sound street passes, and what is put wrong in it is named."""

import dataclasses
import json
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from drive_files import write_sequence
from jaxrec.cli.alignment import align, edges_of, poses_at
from jaxrec.cli.diagnosis import exit_code
from jaxrec.cli.drive_diagnosis import diagnose_drive
from jaxrec.cli.drive_picture import draw_above, draw_sweeps
from jaxrec.cli.drive_survey import align_all, survey_drive
from jaxrec.cli.main import main
from jaxrec.data import Drive, Street, Track, is_drive, open_drive
from jaxrec.geometry import matrix_from_axis_angle
from jaxrec.sensors import Exposure, PinholeCamera, RollingShutterCamera
from jaxrec.trajectory import Trajectory

STREET = Street(width=160, height=104, rows=32, columns=512, samples=1, seconds=8.0, rate=0.75)
CAMERAS = ["wide", "side"]
MOUNTS = {
    "wide": STREET.mounts["wide"],
    "side": STREET.mounts["right"],
    "lidar": STREET.mounts["lidar"],
}


def camera_at(name, time):
    """A camera of the street, or a pinhole camera with a global shutter that looks sideways."""
    if name != "side":
        return STREET.camera(name, time)
    pose = poses_at(STREET.ego, time) @ MOUNTS[name]
    return PinholeCamera(pose, [120.0, 120.0], [80.0, 52.0], width=160, height=104)


def expose(name, time):
    camera = camera_at(name, time)
    image = STREET.image(camera, time=time)
    return Exposure(camera, image, name=f"{name}/{time:.2f}", sensor=name, time=time)


@pytest.fixture(scope="module")
def drive():
    """A street that is seen while the lidar looks there, too."""
    starts = [index / STREET.rate for index in range(6)]
    sweeps = [STREET.sweep(STREET.lidar(start)) for start in starts]
    return Drive(
        exposures=[expose(name, each.time) for each in sweeps for name in CAMERAS],
        sweeps=[dataclasses.replace(each, sensor="lidar", name=f"{each.time}") for each in sweeps],
        tracks=STREET.tracks,
        ego=STREET.ego,
        mounts=MOUNTS,
        epoch=0,
        format="street",
        path=pathlib.Path("street"),
    )


@pytest.fixture(scope="module")
def facts(drive):
    return survey_drive(drive, align_all(drive))


def late(exposure, seconds):
    """An image that was taken some seconds after its stamp."""
    time = exposure.time - seconds
    camera = camera_at(exposure.sensor, time)
    return dataclasses.replace(exposure, camera=camera, time=time)


def turned(exposure, axis, degrees):
    """An image of a camera whose mount is turned about an axis of its own (right, down, ahead)."""
    turn = np.eye(4, dtype=np.float32)
    turn[:3, :3] = matrix_from_axis_angle(jnp.deg2rad(degrees) * jnp.asarray(axis, jnp.float32))
    camera: Any = exposure.camera
    rolls = isinstance(camera, RollingShutterCamera)
    still: Any = camera.camera if rolls else camera
    still = dataclasses.replace(still, world_from_camera=still.world_from_camera @ turn)
    if rolls:
        still = RollingShutterCamera(
            still, camera.trajectory, camera.start, camera.end, direction=camera.direction
        )
    return dataclasses.replace(exposure, camera=still)


def alignment(drive, camera, change):
    own = [change(each) for each in drive.exposures if each.sensor == camera]
    sweeps = [min(drive.sweeps, key=lambda sweep: abs(sweep.time - each.time)) for each in own]
    pairs = [(each, edges_of(sweep)) for each, sweep in zip(own, sweeps, strict=True)]
    return align(camera, "lidar", pairs, drive.ego)


def with_alignment(facts, pair):
    """The findings of a street in which one pair is as given."""
    others = [each for each in facts.alignments if each.camera != pair.camera]
    return diagnose_drive(dataclasses.replace(facts, alignments=[*others, pair]))


def texts(findings, severity, topic):
    return [each.text for each in findings if (each.severity, each.topic) == (severity, topic)]


def quick(drive):
    """Findings of a drive without its edges, which take the time."""
    return diagnose_drive(survey_drive(drive, []))


# Alignment


def test_a_sound_street_is_not_objected_to(facts):
    findings = diagnose_drive(facts)
    assert exit_code(findings) == 0, findings
    assert {pair.camera: pair.verdict for pair in facts.alignments} == dict.fromkeys(
        CAMERAS, "aligned"
    )
    assert len(texts(findings, "note", "alignment")) == 2
    for pair in facts.alignments:
        assert abs(pair.seconds) < 3e-3 and pair.seconds_error < 5e-3, pair


@pytest.mark.parametrize("camera, seconds", [("wide", 0.03), ("side", -0.03)])
def test_a_late_clock_is_measured(drive, facts, camera, seconds):
    pair = alignment(drive, camera, lambda each: late(each, seconds))
    assert pair.verdict == "time"
    assert abs(pair.seconds - seconds) < 5e-3 and pair.seconds_error < 5e-3
    (text,) = texts(with_alignment(facts, pair), "warning", "alignment")
    when = "later" if seconds > 0 else "earlier"
    assert text.startswith(f"{camera} and lidar: ") and f" ms {when} (±" in text


@pytest.mark.parametrize(
    "camera, axis, yaw, pitch, words",
    [
        # To the right about the axis that points down: the image was taken farther to the left.
        ("side", (0, 1, 0), 1.0, 0.0, "to the left"),
        ("wide", (0, -1, 0), -1.0, 0.0, "to the right"),
        ("side", (1, 0, 0), 0.0, -1.0, "down"),
    ],
)
def test_a_turned_mount_is_measured(drive, facts, camera, axis, yaw, pitch, words):
    pair = alignment(drive, camera, lambda each: turned(each, axis, 1.0))
    assert pair.verdict == "rotation"
    # A beam of this lidar is 0.7 degrees wide, and from one row to the next are 1.3.
    assert abs(pair.yaw - yaw) < 0.1 and abs(pair.pitch - pitch) < 0.25
    (text,) = texts(with_alignment(facts, pair), "warning", "alignment")
    assert text.startswith(f"{camera} and lidar: ") and words in text


def test_a_shift_at_the_end_of_those_tried_may_be_larger(drive, facts):
    pair = alignment(drive, "side", lambda each: turned(each, (0, 1, 0), 2.2))
    assert pair.verdict == "rotation" and pair.yaw == 2
    (text,) = texts(with_alignment(facts, pair), "warning", "alignment")
    assert "2.00 degrees to the left" in text and text.endswith("or more")


@pytest.mark.slow
@pytest.mark.parametrize("camera", ["left", "right"])
def test_rolling_shutters_are_measured(drive, camera):
    given = dataclasses.replace(
        drive, exposures=[expose(camera, each.time) for each in drive.sweeps]
    )
    sound = alignment(given, camera, lambda each: each)
    assert sound.verdict == "aligned" and abs(sound.seconds) < 5e-3
    pair = alignment(given, camera, lambda each: late(each, 0.03))
    assert pair.verdict == "time" and abs(pair.seconds - 0.03) < 5e-3
    pair = alignment(given, camera, lambda each: turned(each, (0, 1, 0), 1.0))
    assert pair.verdict == "rotation" and abs(pair.yaw - 1) < 0.1


@pytest.mark.slow
def test_a_turned_mount_of_a_real_drive_is_measured(shared):
    given = open_drive(shared / "data" / "kitti_sfnd_drive")
    own = [turned(each, (0, 1, 0), 0.5) for each in given.exposures]
    (pair,) = align_all(dataclasses.replace(given, exposures=own))
    # As its files say, best with 0.03 degrees to the right.
    assert pair.verdict == "rotation"
    assert abs(pair.yaw - 0.5) < 0.1 and abs(pair.pitch) < 0.1 and abs(pair.seconds) < 0.01
    assert diagnose_drive(survey_drive(given, align_all(given)))[0].severity == "note"


def test_images_that_show_nothing_tell_nothing(drive, facts):
    random = np.random.default_rng(0)

    def noise(exposure):
        image = random.uniform(0, 1, exposure.image.shape).astype(np.float32)
        return dataclasses.replace(exposure, image=image)

    pair = alignment(drive, "wide", noise)
    assert pair.verdict == "flat" and pair.seconds_error == np.inf
    findings = with_alignment(facts, pair)
    assert exit_code(findings) == 0
    assert any("wide and lidar: clocks and mount cannot" in each.text for each in findings)


# What else is looked at


def test_a_missing_mount_is_named(drive):
    mounts = {name: mount for name, mount in drive.mounts.items() if name != "side"}
    findings = quick(dataclasses.replace(drive, mounts=mounts))
    (text,) = texts(findings, "error", "mounts")
    assert "side has no mount" in text and exit_code(findings) == 2
    assert "body_from_side" in findings[0].advice


def test_a_wrong_mount_is_named(drive):
    mounts = dict(drive.mounts, wide=drive.mounts["side"])
    found = texts(quick(dataclasses.replace(drive, mounts=mounts)), "warning", "mounts")
    assert any(text.startswith("side and wide have the same mount") for text in found)
    assert any(text.startswith("wide stands 0.6") and "66 degrees" in text for text in found)
    mounts = dict(drive.mounts, lidar=2 * np.asarray(drive.mounts["lidar"]))
    (text,) = texts(quick(dataclasses.replace(drive, mounts=mounts)), "error", "mounts")
    assert text.startswith("the mount of lidar is no rigid motion")


@pytest.mark.parametrize("edge", ["nan", "hold"])
def test_a_path_that_ends_early_is_named(drive, edge):
    last = drive.exposures[-1]
    times = np.asarray(drive.ego.times, np.float64)
    kept = times < last.time - 0.1
    short = Trajectory(drive.ego.world_from_body[kept], times[kept], edge=edge)
    found = texts(quick(dataclasses.replace(drive, ego=short)), "warning", "poses")
    assert any(text.startswith(f"{last.sensor}: ") and last.name in text for text in found)
    assert all("1 of 6" in text for text in found)


def test_gaps_and_copies_are_named(drive):
    first, second = (each for each in drive.exposures[::2][2:4])
    left = [each for each in drive.exposures if each is not second]
    found = texts(quick(dataclasses.replace(drive, exposures=left)), "warning", "clocks")
    (text,) = found
    assert text.startswith(f"{first.sensor}: 1 gaps between images") and first.name in text
    copy = dataclasses.replace(second, time=first.time, name="copy.png")
    found = quick(dataclasses.replace(drive, exposures=[*left, copy]))
    assert any("copy.png" in text for text in texts(found, "warning", "clocks"))


def test_clocks_with_two_epochs_are_named(drive):
    moved = [dataclasses.replace(each, time=each.time + 1000) for each in drive.sweeps]
    found = quick(dataclasses.replace(drive, sweeps=moved))
    assert len(texts(found, "error", "clocks")) == 2


def test_tracks_are_looked_at(drive):
    path = Trajectory(np.tile(np.eye(4), (2, 1, 1)), np.array([900.0, 901.0]))
    tiny = Track("tiny", "car", np.array([4e-3, 2e-3, 1e-3]), path)
    found = texts(quick(dataclasses.replace(drive, tracks=[tiny])), "warning", "tracks")
    assert len(found) == 2 and all("tiny" in text for text in found)


def test_coverage_is_counted(drive, facts):
    lidar = facts.coverage["lidar"]
    silent = np.mean([~sweep.returned for sweep in drive.sweeps])
    assert abs(lidar.silent - silent) < 1e-6 and lidar.unknown == 0
    near = np.mean(np.concatenate([s.ranges[s.returned] for s in drive.sweeps]) < 5)
    assert abs(lidar.ranges[0] - near) < 1e-6 and abs(sum(lidar.ranges) - 1) < 1e-6
    # Two cameras look over about half of the circle, and not at the ground below them.
    assert 0.2 < lidar.seen < 0.9
    assert all(0.01 < facts.coverage[name].seen < 0.5 for name in CAMERAS)


# Pictures and the command


def test_pictures_show_points_and_boxes(facts):
    sweeps, above = draw_sweeps(facts), draw_above(facts)
    assert sweeps is not None and sweeps.shape[1] > 3 * 600
    for color in ((20, 20, 20), (20, 60, 170), (200, 30, 120), (225, 120, 20)):
        assert (above == color).all(axis=-1).sum() > 20, color
    blind = dataclasses.replace(facts, sensors={})
    assert draw_sweeps(blind) is None


def test_the_command_checks_a_drive(tmp_path, capsys):
    log = tmp_path / "log"
    write_sequence(log)
    assert is_drive(log) and not is_drive(tmp_path / "none")
    out = tmp_path / "report"
    code = main(["check", str(log), "--out", str(out)])
    printed = capsys.readouterr().out
    report = json.loads((out / "check.json").read_text())
    assert code == report["exit_code"] < 2
    assert {"sweeps.png", "above.png", "check.json"} == {each.name for each in out.iterdir()}
    with Image.open(out / "above.png") as picture:
        assert picture.width == 960
    assert {each["name"] for each in report["sensors"]} == {"image_02", "velodyne"}
    assert "image_02 coverage" in printed and report["alignments"][0]["verdict"] == "flat"
    assert main(["check", str(log), "--out", str(out), "--downscale", "2"]) == 2
    assert "leave out --downscale" in capsys.readouterr().err
