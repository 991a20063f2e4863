"""The `jaxrec` command on a small scene: what it writes, how it resumes, what it says if stuck."""

import errno
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxrec.cli.main import main
from jaxrec.cli.run_folder import RunFolder
from jaxrec.data.mesh_scene import mesh_scene, write_blender
from jaxrec.io import Checkpoints, read_ply
from jaxrec.train import FitState, read_record

pytestmark = pytest.mark.optimized

OPTIONS = (
    *("--spheres", "200", "--horizon", "60"),
    *("--progress-every", "10", "--save-every", "20"),
)


@pytest.fixture(scope="module")
def scene():
    return mesh_scene(size=24, train=8, test=2)


@pytest.fixture(scope="module")
def data(scene, tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture") / "scene"
    write_blender(scene, folder)
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run of 60 steps in one piece."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["fit", str(data), "--out", str(run), "--steps", "60", *OPTIONS]) == 0
    return run


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run, to be changed."""
    import shutil

    return pathlib.Path(shutil.copytree(finished, tmp_path / "copied"))


def parameters(run):
    found = Checkpoints(run / "checkpoints").restore(
        lambda record: FitState.template(read_record(record)[0])
    )
    state = found.tree
    return found.step, jax.tree.leaves((state.params, state.alive, state.optimizer))


def assert_same_fit(run, other):
    step, ours = parameters(run)
    other_step, theirs = parameters(other)
    assert step == other_step
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [{**line, "seconds": 0} for line in metrics(run)] == [
        {**line, "seconds": 0} for line in metrics(other)
    ]


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def start_process(*arguments):
    """Starts the installed command as a shell would: -P keeps the checkout off its path."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "jaxrec.cli.main", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_metrics(run, lines, process):
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len(metrics(run)) < lines:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


# What a fit leaves.


@pytest.mark.slow
def test_export_writes_the_spheres_and_says_what_is_lost(finished, copied, tmp_path, capsys):
    out = tmp_path / "scene.ply"
    assert main(["export", str(finished), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    # These are the run's own harmonics, so nothing is lost.
    assert re.search(r"harmonics of degree 1: -?0\.00 dB lost over 2 views", printed)
    found = read_ply(out)
    count = len(found.spheres.radii)
    assert f"{count} spheres: {out}" in printed and 0 < count <= 200 and found.degree == 1
    assert main(["export", str(copied), "--layout", "gaussians", "--degree", "0"]) == 0
    printed = capsys.readouterr().out
    assert "converted to plain colours: " in printed and (copied / "gaussians.ply").is_file()
    assert main(["export", str(finished), "--out", str(tmp_path / "scene.obj")]) == 2
    assert "scene.obj, want a name that ends with .ply" in capsys.readouterr().err


def test_fit_leaves_a_whole_run_folder(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "config.yaml",
        "metrics.jsonl",
        "checkpoints",
        "renders",
        "summary.json",
        "contact_sheet.png",
    }
    summary = json.loads((finished / "summary.json").read_text())
    assert {"psnr", "ssim", "flip", "seconds", "steps", "spheres", "device", "version"} <= set(
        summary
    )
    assert (summary["steps"], summary["spheres"], len(summary["views"])) == (60, 200, 2)
    for name in ("psnr", "ssim", "flip"):
        assert summary[name] == np.mean([view[name] for view in summary["views"]])
    assert summary["worst_view"]["psnr"] == min(view["psnr"] for view in summary["views"])
    assert [line["step"] for line in metrics(finished)] == [10, 20, 30, 40, 50, 60]


@pytest.mark.slow
def test_the_summary_is_what_the_pictures_say(finished, scene):
    from PIL import Image

    summary = json.loads((finished / "summary.json").read_text())
    pictures = sorted((finished / "renders" / "held_out").glob("*.png"))
    for view, picture, frame in zip(summary["views"], pictures, scene.test, strict=True):
        rendered = np.asarray(Image.open(picture), np.float64) / 255
        error = np.mean((rendered - frame.over((1.0, 1.0, 1.0))) ** 2)
        # The pictures are rounded to 8 bits, the measurement is not.
        assert view["psnr"] == pytest.approx(-10 * np.log10(error), abs=0.05)
        assert json.loads(picture.with_suffix(".json").read_text()) == view
        # The best affine map is at least as good as none.
        assert view["psnr_corrected"] >= view["psnr"] - 1e-4
        assert view["lpips"] is None


@pytest.mark.slow
def test_eval_prints_the_summary_alone(copied, capsys):
    expected = json.loads((copied / "summary.json").read_text())
    (copied / "summary.json").unlink()
    capsys.readouterr()
    assert main(["eval", str(copied), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert json.loads((copied / "summary.json").read_text()) == expected


@pytest.mark.slow
def test_eval_tells_people_every_mean(copied, capsys):
    assert main(["eval", str(copied)]) == 0
    summary = json.loads((copied / "summary.json").read_text())
    means = "PSNR {psnr:.2f} dB, SSIM {ssim:.4f}, FLIP {flip:.4f} over 2 views"
    printed = capsys.readouterr().out
    assert means.format(**summary) in printed
    assert "held-out view" in printed and "LPIPS is not measured: no weights in ~" in printed
    for name, value in summary["worst"].items():
        scores = [view[name] for view in summary["views"]]
        assert value["value"] == (None if name == "lpips" else worst_of(name, scores))


def worst_of(name, scores):
    return max(scores) if name == "flip" else min(scores)


@pytest.mark.slow
def test_eval_measures_lpips_with_given_weights(copied, tmp_path, capsys):
    from test_lpips import ALEX, save, weights

    file = save(tmp_path / "lpips.npz", weights(ALEX))
    # The views of 24 pixels are too small for the network, and are left out.
    assert main(["eval", str(copied), "--json", "--lpips", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["lpips"] is None
    wanted = "no such file, wanted the weights of LPIPS"
    assert wanted in one_error(capsys, ["eval", copied, "--lpips", tmp_path / "none.npz"])


@pytest.mark.slow
def test_fitting_a_finished_run_again_says_so(copied, data, capsys):
    before = parameters(copied)
    assert main(["fit", str(data), "--out", str(copied), "--steps", "60", *OPTIONS]) == 0
    assert "finished already, at step 60" in capsys.readouterr().out
    for a, b in zip(before[1], parameters(copied)[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_render_makes_pictures_and_a_video(copied, tmp_path, capsys):
    from PIL import Image

    def read(file):
        return np.asarray(Image.open(file)).astype(int)

    for count in ("4", "3"):
        assert main(["render", str(copied), "--frames", count]) == 0
    pictures = sorted((copied / "renders" / "spiral").glob("*.png"))
    film = decode(copied / "renders" / "spiral.mp4", 24, 24)
    assert len(pictures) == len(film) == 3
    for picture, view in zip(pictures, film, strict=True):
        assert np.abs(view - read(picture)).mean() < 8
    given = json.loads(pathlib.Path(read_data_path(copied), "transforms_test.json").read_text())
    poses = tmp_path / "poses.json"
    poses.write_text(json.dumps({"frames": given["frames"]}))
    assert main(["render", str(copied), "--poses", str(poses), "--out", str(tmp_path / "o")]) == 0
    held_out = sorted((copied / "renders" / "held_out").glob("*.png"))
    for ours, theirs in zip(sorted((tmp_path / "o").glob("*.png")), held_out, strict=True):
        assert np.abs(read(ours) - read(theirs)).max() <= 1


def decode(video, width, height):
    from imageio_ffmpeg import get_ffmpeg_exe

    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    command = [get_ffmpeg_exe(), "-loglevel", "error", "-i", str(video), *raw]
    decoded = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(decoded, np.uint8).astype(int).reshape(-1, height, width, 3)


def read_data_path(run):
    return RunFolder(run).read_config().data


# How it goes on.


@pytest.mark.slow
def test_killed_at_any_step_it_ends_the_same(data, finished, tmp_path):
    run = tmp_path / "killed"
    command = ["fit", str(data), "--out", str(run), "--steps", "60", *OPTIONS]
    process = start_process(*command)
    wait_for_metrics(run, 3, process)
    process.kill()
    process.communicate()
    assert not (run / "summary.json").exists()
    # Half a line, as a lost machine may leave it.
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4')
    assert main(command) == 0
    assert_same_fit(run, finished)


@pytest.mark.slow
def test_terminated_it_saves_and_says_how_to_go_on(data, tmp_path):
    run = tmp_path / "stopped"
    command = ["fit", str(data), "--out", str(run), "--steps", "100000", *OPTIONS]
    process = start_process(*command)
    wait_for_metrics(run, 1, process)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors
    line = errors.splitlines()[-1]
    assert f"SIGTERM: saved step {parameters(run)[0]}" in line
    assert line.endswith("jaxrec " + " ".join(command))


@pytest.mark.slow
def test_interrupted_it_goes_on_to_the_same_end(data, finished, tmp_path, monkeypatch, capsys):
    run = tmp_path / "stopped"
    command = ["fit", str(data), "--out", str(run), "--steps", "60", *OPTIONS]
    append = RunFolder.append_metrics

    def append_and_interrupt(self, values):
        append(self, values)
        if values["step"] == 30:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", append_and_interrupt)
        assert main(command) == 128 + signal.SIGINT
    assert "SIGINT: saved step 30" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert main(command) == 0
    assert_same_fit(run, finished)


@pytest.mark.slow
def test_more_steps_continue_a_finished_run(data, finished, tmp_path):
    run = tmp_path / "raised"
    command = ["fit", str(data), "--out", str(run), *OPTIONS, "--steps"]
    assert main([*command, "30"]) == 0
    assert main([*command, "60"]) == 0
    assert_same_fit(run, finished)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(copied, finished, data, capsys):
    newest = copied / "checkpoints" / "60"
    for file in newest.rglob("*"):
        if file.is_file() and file.stat().st_size > 500:
            content = bytearray(file.read_bytes())
            content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
            file.write_bytes(content)
    assert main(["eval", str(copied), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"] == 40
    assert "checkpoints/60" in err and "damaged" in err
    assert main(["fit", str(data), "--out", str(copied), "--steps", "60", *OPTIONS]) == 0
    assert "going on at step 40" in capsys.readouterr().out
    assert_same_fit(copied, finished)


@pytest.mark.slow
def test_the_demo_leaves_its_capture(tmp_path, capsys):
    run = tmp_path / "demo"
    command = ["demo", "--out", str(run), "--size", "16", "--steps", "20"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "capture" in printed
    for name in ("contact_sheet.png", "checkpoints/20", "summary.json"):
        assert str(run / name) in printed and (run / name).exists()
    moved = run.rename(tmp_path / "moved")
    assert main(["eval", str(moved)]) == 0
    assert main(["demo", "--out", str(moved), "--size", "12", "--steps", "20"]) == 2
    assert "images of 16 pixels, not 12" in capsys.readouterr().err


# What it says when it cannot.


def one_error(capsys, arguments):
    """Runs a command that must fail with one line on stderr, and returns the line."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("jaxrec: ") and err.count("\n") == 1, err
    assert not out or "step" not in out
    return err


@pytest.mark.parametrize(
    "options, wanted",
    [
        (["--steps", "0"], "steps: got 0, want >= 1"),
        (["--downscale", "0"], "downscale: got 0, want >= 1"),
        (["--rates.centers", "-1"], "rates.centers: got -1"),
        (["--background", "1", "2", "0"], "background: got"),
        (["--downscale", "100"], "times smaller"),
        (["--image-memory", "lots"], "image-memory: got 'lots'; give a size such as 4GB, 512MiB"),
    ],
)
def test_bad_options_are_one_line(data, tmp_path, capsys, options, wanted):
    assert wanted in one_error(capsys, ["fit", data, "--out", tmp_path / "run", *options])
    assert not (tmp_path / "run").exists()


def test_bad_data_is_one_line_and_leaves_nothing(data, tmp_path, capsys):
    run = tmp_path / "run"
    missing = tmp_path / "missing"
    assert f"{missing}: no such file" in one_error(capsys, ["fit", missing, "--out", run])
    broken = tmp_path / "broken.json"
    broken.write_text('{"frames": [')
    assert "broken.json" in one_error(capsys, ["fit", broken, "--out", run])
    assert not run.exists()


def test_a_folder_with_other_things_is_left_alone(data, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("dear")
    assert "thesis.tex: in the way" in one_error(capsys, ["fit", data, "--out", tmp_path])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    file = tmp_path / "thesis.tex"
    assert "in the way" in one_error(capsys, ["fit", data, "--out", file])
    assert file.read_text() == "dear"


@pytest.mark.slow
def test_a_folder_of_another_run_is_left_alone(data, copied, tmp_path, scene, capsys):
    before = (copied / "config.yaml").read_text()
    line = one_error(capsys, ["fit", data, "--out", copied, *OPTIONS, "--seed", "1"])
    assert "belongs to another run (seed 0, not 1)" in line
    write_blender(scene, tmp_path / "other")
    line = one_error(capsys, ["fit", tmp_path / "other", "--out", copied, *OPTIONS])
    assert "belongs to another run (data " in line
    assert (copied / "config.yaml").read_text() == before


@pytest.mark.parametrize("command", ["eval", "render"])
def test_a_folder_without_run_is_one_line(tmp_path, capsys, command):
    assert "not a run" in one_error(capsys, [command, tmp_path])
    (tmp_path / "config.yaml").write_text("format: 99\n")
    assert "config.yaml: damaged, or written by another" in one_error(capsys, [command, tmp_path])


@pytest.mark.slow
def test_poses_that_cannot_be_used_are_one_line(copied, tmp_path, capsys):
    assert "is no file" in one_error(capsys, ["render", copied, "--poses", "spirale"])
    poses = tmp_path / "poses.json"
    poses.write_text('{"frames": []}')
    assert "poses.json" in one_error(capsys, ["render", copied, "--poses", poses])


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_fit_is_one_line(data, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"

    def full(self, values):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.metrics_file))

    command = ["fit", str(data), "--out", str(run), "--steps", "30", *OPTIONS]
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", full)
        assert "metrics.jsonl: no space left on the disk" in one_error(capsys, command)
    assert not (run / "summary.json").exists()


def test_help_shows_the_defaults_of_the_preset(capsys):
    for preset, spheres in (("cpu", "15000"), ("gpu", "200000")):
        with pytest.raises(SystemExit) as stop:
            main(["fit", "--preset", preset, "--help"])
        assert stop.value.code == 0
        assert f"(default: {spheres})" in capsys.readouterr().out


def test_info_names_the_devices(capsys):
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["devices"]) == len(jax.devices())
    assert facts["packages"]["jax"] == jax.__version__
    assert facts["problems"] == [] or jax.default_backend() == "gpu"
    assert main(["info"]) == 0
    assert f"jax {jax.__version__}" in capsys.readouterr().out


@pytest.mark.slow
def test_refined_cameras_are_written_and_can_be_rendered(data, tmp_path, capsys):
    run = tmp_path / "run"
    refine = ("--cameras.poses", "1e-3", "--cameras.focal", "1e-3", "--cameras.start", "0")
    exposure = ("--exposure.kind", "affine")
    assert (
        main(["fit", str(data), "--out", str(run), "--steps", "20", *OPTIONS, *refine, *exposure])
        == 0
    )
    assert f"refined cameras: {run / 'cameras.json'}" in capsys.readouterr().out
    document = json.loads((run / "cameras.json").read_text())
    given = json.loads((data / "transforms_train.json").read_text())
    assert len(document["frames"]) == len(given["frames"]) == 8
    for frame, before in zip(document["frames"], given["frames"], strict=True):
        moved = np.abs(np.subtract(frame["transform_matrix"], before["transform_matrix"])).max()
        assert 1e-5 < moved < 0.2
    for poses, folder in (("train", "train"), (str(run / "cameras.json"), "poses_cameras")):
        assert main(["render", str(run), "--poses", poses]) == 0
        assert len(list((run / "renders" / folder).glob("*.png"))) == 8
    first, second = (run / "renders" / name / "0003.png" for name in ("train", "poses_cameras"))
    assert first.read_bytes() == second.read_bytes()
