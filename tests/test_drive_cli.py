"""The `jaxrec` command on the log of a drive: what it writes, how it resumes, what it refuses."""

import json
import os
import pathlib
import shutil
import signal

import jax
import numpy as np
import pytest

from jaxrec.cli.main import main
from jaxrec.cli.run_folder import RunFolder
from jaxrec.data import write_ncore
from jaxrec.io import Checkpoints
from jaxrec.train import drive_template
from small_street import small_drive

OPTIONS = ("--spheres", "600", "--sky-rows", "4", "--progress-every", "10", "--save-every", "20")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """One camera and the lidar, as an NCore sequence."""
    folder = tmp_path_factory.mktemp("drive")
    write_ncore(
        small_drive(frames=4, cameras=("wide",), width=32, height=24, columns=64)[1], folder / "log"
    )
    return folder / "log"


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run of 40 steps in one piece."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["fit", str(data), "--out", str(run), "--steps", "40", *OPTIONS]) == 0
    return run


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run, to be changed."""
    return pathlib.Path(shutil.copytree(finished, tmp_path / "copied"))


def leaves(run):
    found = Checkpoints(run / "checkpoints").restore(drive_template)
    return found.step, jax.tree.leaves(found.tree)


def metrics(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


def assert_same_fit(run, other):
    (step, ours), (other_step, theirs) = leaves(run), leaves(other)
    assert step == other_step
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics(run) == metrics(other)


def one_error(capsys, arguments):
    assert main([str(argument) for argument in arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("jaxrec: ") and err.count("\n") == 1, err
    return err


@pytest.mark.slow
def test_a_fit_leaves_scores_with_units_and_pictures(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        *("config.yaml", "metrics.jsonl", "checkpoints", "renders", "summary.json"),
        *("contact_sheet.png", "sweeps.png"),
    }
    summary = json.loads((finished / "summary.json").read_text())
    assert [image["name"] for image in summary["images"]] == ["wide/150000", "wide/350000"]
    for name in ("range_median_abs_m", "range_median_sq_m2", "range_p90_abs_m", "chamfer_m2"):
        assert summary[name] >= 0
    for name in ("range_rel", "intensity_rmse", "drop_accuracy"):
        assert 0 <= summary[name] <= 1
    assert summary["psnr"] == pytest.approx(np.mean([image["psnr"] for image in summary["images"]]))
    assert summary["range_p90_abs_m"] > summary["range_median_abs_m"]
    held_out = finished / "renders" / "held_out"
    assert len(list(held_out.glob("*.png"))) == len(list(held_out.glob("*.json"))) == 4
    [first] = held_out.glob("sweep_0000_lidar_*.json")
    assert json.loads(first.read_text()) == summary["sweeps"][0]
    told = metrics(finished)
    assert [line["step"] for line in told] == [10, 20, 30, 40]
    assert told[-1]["loss"] < told[0]["loss"]


@pytest.mark.slow
def test_interrupted_it_goes_on_to_the_same_end(data, finished, tmp_path, monkeypatch, capsys):
    run = tmp_path / "stopped"
    command = ["fit", str(data), "--out", str(run), "--steps", "40", *OPTIONS]
    append = RunFolder.append_metrics

    def append_and_interrupt(self, values):
        append(self, values)
        if values["step"] == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", append_and_interrupt)
        assert main(command) == 128 + signal.SIGINT
    line = capsys.readouterr().err.splitlines()[-1]
    assert "SIGINT: saved step 10" in line and line.endswith("jaxrec " + " ".join(command))
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "wide: 4 images of 32 x 24 pixels" in out and "2 to fit, 2 held out" in out
    assert "going on at step 10" in out
    assert_same_fit(run, finished)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(copied, finished, data, capsys):
    for file in (copied / "checkpoints" / "40").rglob("*"):
        if file.is_file() and file.stat().st_size > 500:
            file.write_bytes(bytes(file.stat().st_size))
    command = ["fit", str(data), "--out", str(copied), "--steps", "40", *OPTIONS]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "damaged" in out and "going on at step 20" in out
    assert_same_fit(copied, finished)


@pytest.mark.slow
def test_eval_measures_anew(copied, capsys):
    before = json.loads((copied / "summary.json").read_text())
    (copied / "summary.json").unlink()
    assert main(["eval", str(copied), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before
    assert main(["eval", str(copied), "--farthest", "10"]) == 0
    assert "range_median_abs_m" in capsys.readouterr().out
    near = json.loads((copied / "summary.json").read_text())
    assert near["farthest_m"] == 10 and near["range_median_abs_m"] != before["range_median_abs_m"]
    assert near["drop_accuracy"] == before["drop_accuracy"]


@pytest.mark.slow
def test_another_drive_or_seed_is_another_run(data, copied, capsys):
    line = one_error(capsys, ["fit", data, "--out", copied, *OPTIONS, "--seed", "1"])
    assert "belongs to another run (seed 0, not 1)" in line


def pixels(file):
    from PIL import Image

    return np.asarray(Image.open(file)).astype(int)


@pytest.mark.slow
def test_own_sensors_are_replayed(copied, capsys):
    assert main(["render", str(copied)]) == 0
    assert "wide: 4 pictures" in capsys.readouterr().out
    own, held_out = copied / "renders" / "drive", copied / "renders" / "held_out"
    for number, name in ((1, "0000_wide_150000"), (3, "0001_wide_350000")):
        picture = pixels(own / "wide" / f"000{number}.png")
        assert np.abs(picture - pixels(held_out / f"{name}.png")).max() <= 1
    assert (own / "wide.mp4").stat().st_size > 0
    sweep = np.load(own / "lidar" / "0001.npz")
    assert sweep["ranges"].shape == (16, 64)
    assert len(sweep["points"]) == len(sweep["times"]) == (sweep["ranges"] > 0).sum() > 200


@pytest.mark.slow
def test_another_lane_moves_the_lidar_and_edits_move_cars(copied, tmp_path):
    def points(*options):
        out = tmp_path / "-".join(options)
        assert main(["render", str(copied), "--sensor", "lidar", "--out", str(out), *options]) == 0
        return np.load(out / "lidar" / "0002.npz")

    here, aside = points(), points("--lane", "1")
    # The rig drives along x: what it sees at its side is 1 m nearer on the left.
    columns = here["ranges"].shape[1]
    # Clockwise from backward, so that a quarter of a turn is to the left.
    left = slice(columns // 4 - 2, columns // 4 + 2)
    both = (here["ranges"][:, left] > 0) & (aside["ranges"][:, left] > 0)
    nearer = (here["ranges"] - aside["ranges"])[:, left][both]
    assert 0.6 < np.median(nearer) < 1.4
    gone = points("--without", "car-ahead", "--without", "car-oncoming", "--without", "car-turning")
    assert np.sum(gone["ranges"] != here["ranges"]) > 3
    away = points("--move", "car-ahead:0,0,500", "--move", "car-oncoming:0,0,500",
                  "--move", "car-turning:0,0,500")  # fmt: skip
    np.testing.assert_array_equal(away["ranges"], gone["ranges"])


@pytest.mark.slow
def test_wrong_replays_are_one_line(copied, tmp_path, capsys):
    sensor = tmp_path / "lidar.json"
    sensor.write_text('{"kind": "lidar", "columns": 8, "elevations_degrees": "low"}')
    for options, wanted in (
        (["--sensor", sensor], "lidar.json: body_from_sensor"),
        (["--sensor", "roof"], "roof is no file; give the json of a sensor, or one of"),
        (["--move", "car-ahead:1,2"], "--move: got car-ahead:1,2, want ID:dx,dy,dz"),
        (["--move", "bus:1,2,3"], "got 'bus'; give one of car-ahead"),
        (["--without", "bus"], "--without: id: got 'bus'"),
        (["--rate", "0"], "rate: got 0, want > 0"),
        (["--poses", "train"], "give --trajectory, not --poses"),
    ):
        assert wanted in one_error(capsys, ["render", copied, *options])


@pytest.mark.slow
def test_what_is_for_captures_says_so(copied, capsys):
    assert "is the run of a drive" in one_error(capsys, ["export", copied])


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--spheres", "0"], "spheres: got 0, want >= 1"),
        (["--downscale", "0"], "downscale: got 0, want >= 1"),
        (["--weights.depth", "-1"], "weights.depth: got -1.0, want >= 0"),
        (["--rig.mounts", "-1"], "rig.mounts: got -1.0, want >= 0"),
        (["--nearest", "5", "--farthest", "2"], "nearest: got 5 with --farthest 2"),
        (["--downscale", "100"], "they cannot become 100 times smaller"),
    ],
)
def test_bad_options_are_one_line(data, tmp_path, capsys, options, wanted):
    assert wanted in one_error(capsys, ["fit", data, "--out", tmp_path / "run", *options])
    assert not (tmp_path / "run").exists()


def test_help_of_a_drive_shows_its_settings(data, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(data), "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--weights.drop" in out and "--rig.mounts" in out and "(default: 20000)" in out
