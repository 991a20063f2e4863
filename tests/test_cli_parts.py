"""The parts of the `jaxrec` command: run folder, progress, contact sheet, camera path, errors."""

import errno
import io
import json
import os

import jax
import numpy as np
import pytest
from rich.console import Console

from jaxrec.cli.camera_path import spiral
from jaxrec.cli.contact_sheet import LABEL_HEIGHT, Row, choose_rows, contact_sheet
from jaxrec.cli.errors import CommandError, describe
from jaxrec.cli.evaluation import MEASURES, _view, _worst, find_lpips, table
from jaxrec.cli.info import covers, gpu_problems
from jaxrec.cli.progress import Progress
from jaxrec.cli.run_folder import RunConfig, RunFolder, replace_file
from jaxrec.cli.sizes import parse_size
from jaxrec.data import CaptureError
from jaxrec.data.camera_file import read_cameras
from jaxrec.sensors import Frame, PinholeCamera, look_at
from jaxrec.train import ViewScore
from test_lpips import ALEX, save, weights


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path):
    file = tmp_path / "summary.json"
    file.write_text("old")

    def fill_up(temporary):
        temporary.write_text("ne")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError) as caught:
        replace_file(file, fill_up)
    assert describe(caught.value) == (
        f"{file}: no space left on the disk; free some and type the same command again"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert file.read_text() == "old"


def test_a_run_is_fitted_by_one_process_at_a_time(tmp_path):
    run = RunFolder(tmp_path / "run")
    config = RunConfig("/data", 1, "cpu", {"steps": 5}, "0")
    with run.claimed(config):
        with pytest.raises(CommandError, match="another process"), run.claimed(config):
            pass
    with run.claimed(config):
        pass


def test_describe_leaves_defects_alone():
    assert describe(TypeError("a defect")) is None
    assert (
        describe(CaptureError("a.json", "w", "found 1", "want 2")) == "a.json: w: found 1; want 2"
    )
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "a.png")
    assert (
        describe(missing) == "a.png: No such file or directory; check the path and its permissions"
    )
    wrapped = RuntimeError("failed: No space left on device [os_error_code='28']")
    assert "no space left on the disk" in str(describe(wrapped))


def test_progress_writes_whole_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    progress = Progress(100, 0, stream=stream, pause=3600.0)
    for step in (10, 20, 30, 100):
        progress.show(step, {"loss": 0.5, "psnr": 21.5, "spheres": 7.0})
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 10/100", "step 100/100"]
    for part in ("loss 0.5000", "PSNR 21.50 dB", "7 spheres", "it/s", "ETA 00:00"):
        assert part in lines[-1]
    assert "\r" not in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_progress_rewrites_one_line_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    progress = Progress(3, 0, stream=stream)
    for step in (1, 2, 3):
        progress.show(step, {"loss": 0.5, "psnr": 21.5, "spheres": 7.0})
    progress.close()
    assert stream.getvalue().count("\r") == 3
    assert stream.getvalue().count("\n") == 1 and stream.getvalue().endswith("\n")


def test_metrics_are_cut_to_the_restored_step(tmp_path):
    run = RunFolder(tmp_path)
    for step in (10, 20, 30):
        run.append_metrics({"step": step, "loss": 0.5})
    with run.metrics_file.open("a") as file:
        file.write('{"step": 1')
    run.truncate_metrics(20)
    assert [line["step"] for line in metrics(tmp_path)] == [10, 20]
    run.truncate_metrics(-1)
    assert run.metrics_file.read_text() == ""


def test_only_what_no_step_depends_on_may_change():
    settings = {"steps": 5, "save_every": 2, "progress_every": 1, "rates": {"centers": 0.1}}
    config = RunConfig("/data", 1, "cpu", settings, "0")
    raised = RunConfig("/data", 1, "demo", {**settings, "steps": 9, "save_every": 3}, "1")
    assert config.differences(raised) == []
    other = RunConfig("/data", 2, "cpu", {**settings, "rates": {"centers": 0.2}}, "0")
    assert config.differences(other) == ["downscale 1, not 2", "rates.centers 0.1, not 0.2"]


def test_the_contact_sheet_shows_truth_render_and_error():
    truth = np.full((12, 20, 3), 0.25, np.float32)
    render = truth.copy()
    render[:, 10:] = 1.0
    sheet = contact_sheet([Row("a very long name of a view", truth, render, 9.5)])
    top = 6 + LABEL_HEIGHT
    columns = [sheet[top : top + 12, left : left + 20] for left in (6, 32, 58)]
    np.testing.assert_array_equal(columns[0], 64)
    np.testing.assert_array_equal(columns[1][:, 10:], 255)
    np.testing.assert_array_equal(columns[2][:, :10], 0)
    np.testing.assert_array_equal(columns[2][:, 10:], 255)


@pytest.mark.parametrize("count", [1, 8, 9, 200])
def test_the_worst_view_is_on_the_sheet(count):
    psnr = np.linspace(20, 30, count)
    psnr[count // 3] = 5.0
    rows = choose_rows(list(psnr))
    assert count // 3 in rows and min(count, 7) <= len(rows) <= 8
    assert rows == sorted(set(rows))


def camera(eye, target=(0.0, 0.0, 0.0), up=(0.0, 0.0, 1.0)):
    pose = look_at(*(np.asarray(vector, np.float32) for vector in (eye, target, up)))
    focal = np.full(2, 30, np.float32)
    return PinholeCamera(pose, focal, np.full(2, 16, np.float32), width=32, height=32)


def test_the_spiral_goes_round_what_all_cameras_look_at():
    angle = 2 * np.pi * np.arange(10) / 10
    around = [camera((3 * np.cos(a) + 1, 3 * np.sin(a), 1.0), target=(1, 0, 0)) for a in angle]
    poses = [np.asarray(c.world_from_camera) for c in spiral(around, 16)]
    for pose in poses:
        offset = pose[:3, 3] - [1, 0, 0]
        np.testing.assert_allclose(np.linalg.norm(offset), np.sqrt(10), rtol=1e-3)
        np.testing.assert_allclose(pose[:3, 2], -offset / np.sqrt(10), atol=1e-3)
        assert pose[2, 1] < 0  # y is down
    azimuth = np.unwrap([np.arctan2(p[1, 3], p[0, 3] - 1) for p in poses])
    np.testing.assert_allclose(np.abs(np.diff(azimuth)), 2 * np.pi / 16, rtol=1e-3)


def test_the_spiral_stays_near_cameras_that_look_one_way(key):
    eyes = np.asarray(jax.random.uniform(key, (9, 3), minval=-0.3, maxval=0.3)) + [0, -4, 0]
    parallel = [camera(eye, target=eye + [0, 1, 0]) for eye in eyes]
    converging = [camera(eye) for eye in eyes]
    for cameras in (parallel, converging, converging[:1]):
        for view in spiral(cameras, 5):
            pose = np.asarray(view.world_from_camera)
            assert np.all(np.abs(pose[:3, 3] - [0, -4, 0]) < 0.4)
            assert pose[1, 2] > 0.8


def test_given_poses_take_over_what_they_do_not_say(tmp_path):
    default = camera((0, -4, 0))
    matrix = np.eye(4).tolist()
    file = tmp_path / "poses.json"
    file.write_text(json.dumps({"frames": [{"transform_matrix": matrix}]}))
    (found,) = read_cameras(file, default)
    assert (found.width, found.height) == (32, 32)
    np.testing.assert_array_equal(found.focal, default.focal)
    np.testing.assert_array_equal(found.world_from_camera, np.diag([1.0, -1, -1, 1]))
    file.write_text(json.dumps({"w": 64, "h": 16, "frames": [{"transform_matrix": matrix}]}))
    (found,) = read_cameras(file, default)
    assert (found.width, found.height) == (64, 16)
    np.testing.assert_array_equal(found.focal, [60, 15])
    angle = {"camera_angle_x": 2 * np.arctan(1.0), "w": 8, "h": 8}
    file.write_text(json.dumps({"frames": [{"transform_matrix": matrix, **angle}]}))
    np.testing.assert_allclose(read_cameras(file, default)[0].focal, [4, 4], rtol=1e-6)


@pytest.mark.parametrize(
    "document, wanted",
    [
        ({"frames": []}, "found no frame"),
        ({"fl_x": 5, "frames": [{"transform_matrix": np.eye(4).tolist()}]}, "unknown size"),
        ({"w": 5, "frames": [{"transform_matrix": np.eye(4).tolist()}]}, "give both w and h"),
        ({"frames": [{"transform_matrix": np.zeros((4, 4)).tolist()}]}, "transform_matrix"),
    ],
)
def test_given_poses_that_say_too_little_are_refused(tmp_path, document, wanted):
    file = tmp_path / "poses.json"
    file.write_text(json.dumps(document))
    with pytest.raises(CaptureError, match=wanted):
        read_cameras(file, camera((0, -4, 0)))


@pytest.mark.parametrize(
    "architectures, capability, expected",
    [
        ("75-real;80-real;86-real;89-real;90-real;100-real;120", "9.0", True),
        ("sm 75-real,80-real,120", "8.6", True),  # machine code of 8.0 runs on 8.6
        ("sm 75-real,80-real,120", "9.0", False),
        ("75-real;80-real;120", "12.1", True),
        ("75-real;80-real;120", "13.0", True),  # by the PTX of the last
        ("75-real;80-real;120-real", "13.0", False),
        ("90", "8.6", False),
        ("90", "9.0", True),
        ("90", "10.0", True),
        ("86-real", "8.0", False),
        ("89-real", "8.6", False),
        ("90-real", "10.0", False),
        ("90-virtual", "9.0", True),
        ("90-virtual", "10.0", True),
        ("90-virtual", "8.9", False),
        ("90a-real", "9.0", True),
        ("90a-real", "10.0", False),
        ("90a", "10.0", False),  # the PTX of a special architecture runs nowhere else
        ("100f-real", "10.3", True),
        ("100f", "12.0", False),
        ("", "9.0", False),
    ],
)
def test_kernels_cover_the_gpus_that_they_run_on(architectures, capability, expected):
    assert covers(architectures, capability) is expected


def test_a_gpu_without_kernels_comes_with_the_command_that_builds_them():
    assert gpu_problems("sm 80-real,90", [("NVIDIA H200", "9.0")] * 2) == []
    assert gpu_problems(None, []) == gpu_problems("sm 90", []) == []
    (line,) = gpu_problems("sm 90-real", [("NVIDIA H200", "9.0")] + 2 * [("NVIDIA A10", "8.6")])
    assert "NVIDIA A10 has architecture sm_86" in line and "built for sm 90-real" in line
    assert line.endswith(
        "type: JAXREC_CUDA=ON JAXREC_CUDA_ARCHS='86;90' pip install --force-reinstall --no-deps ."
    )
    (line,) = gpu_problems(None, [("NVIDIA B200", "10.0")])
    assert "sm_100, but there are no CUDA kernels" in line
    assert "JAXREC_CUDA_ARCHS=100 pip" in line


def test_given_poses_stand_where_the_capture_was_moved(tmp_path):
    matrix = np.eye(4)
    matrix[:3, 3] = [512345.25, 4187654.5, 100.0]
    file = tmp_path / "path.json"
    file.write_text(json.dumps({"frames": [{"transform_matrix": matrix.tolist()}]}))
    default = PinholeCamera(np.eye(4, dtype=np.float32), (9.0, 9.0), (4.0, 4.0), width=8, height=8)
    (camera,) = read_cameras(file, default, (512345.0, 4187654.0, 99.0))
    np.testing.assert_array_equal(camera.world_from_camera[:3, 3], [0.25, 0.5, 1.0])


def test_the_table_of_scores_names_the_worst_of_each_measure():
    measures = {"ssim": 0.9, "lpips": None, "psnr_corrected": 31.0}
    views = [
        {"name": "a.png", "psnr": 30.0, "flip": 0.1, **measures},
        {"name": "b.png", "psnr": 20.0, "flip": 0.05, **measures},
        {"name": "c.png", "psnr": 25.0, "flip": 0.2, **measures},
    ]
    summary = {"psnr": 25.0, "flip": 0.1167, **measures, "views": views}
    summary["worst"] = {name: _worst(name, views) for name in MEASURES}
    assert summary["worst"]["psnr"] == {"name": "b.png", "value": 20.0}
    assert summary["worst"]["flip"] == {"name": "c.png", "value": 0.2}
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table(summary))
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in console.export_text().splitlines()
        if line.startswith("│")
    ]
    assert rows[0] == ["a.png", "30.00 dB", "0.9000", "0.1000", "31.00 dB"]
    assert rows[3] == ["mean", "25.00 dB", "0.9000", "0.1167", "31.00 dB"]
    assert rows[4] == ["worst", "20.00 dB", "0.9000", "0.2000", "31.00 dB"]
    assert rows[5][:2] == ["", "b.png"] and rows[5][3] == "c.png"


def test_a_view_is_measured_where_its_mask_allows(tmp_path):
    random = np.random.default_rng(0)
    target = random.uniform(0.2, 0.8, (40, 44, 3)).astype(np.float32)
    image = (0.8 * target + 0.1).astype(np.float32)
    mask = np.ones((40, 44), bool)
    mask[:, :22] = False
    spoilt = image.copy()
    spoilt[:, :22] = 0
    lpips = find_lpips(save(tmp_path / "weights.npz", weights(ALEX)))
    camera = PinholeCamera(np.eye(4, dtype=np.float32), (9.0, 9.0), (4.0, 4.0), width=44, height=40)
    frame = Frame(camera, target, mask=mask)
    ours, theirs = (
        _view(ViewScore("a.png", 1.0, 2.0, float("nan"), 0.5, each, target), frame, lpips)
        for each in (image, spoilt)
    )
    assert ours == theirs
    assert ours["psnr_corrected"] == 2 and ours["lpips"] > 0 and ours["ssim"] is None
    without = _view(ViewScore("a.png", 1.0, 2.0, 1.0, 0.5, image, target), frame, None)
    assert without["lpips"] is None


# Sizes of memory.


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0", 0),
        ("123", 123),
        ("4GB", 4 * 10**9),
        ("1.5g", 15 * 10**8),
        (" 512 MiB ", 512 * 2**20),
        ("2kib", 2048),
        ("10KB", 10_000),
        ("7b", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text, expected):
    assert parse_size("image-memory", text) == expected


def test_a_size_may_be_a_part_of_the_memory():
    whole = parse_size("image-memory", "100%")
    assert whole > 2**26
    assert abs(parse_size("image-memory", "25%") - whole / 4) < 1


@pytest.mark.parametrize("text", ["", "GB", "-1", "4 gigs", "1e9", "5%%"])
def test_sizes_that_make_no_sense_are_refused(text):
    with pytest.raises(ValueError, match="image-memory: got .*; give a size such as 4GB, 512MiB"):
        parse_size("image-memory", text)
