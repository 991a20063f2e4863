"""The bench of quality: its definitions, its arithmetic, and one small run from end to end."""

import importlib
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from capture_files import frame_entry
from jaxrec.data import Capture, PointCloud
from jaxrec.sensors import Frame, PinholeCamera

BENCH = pathlib.Path(__file__).parents[1] / "bench"
SIZE = 24


@pytest.fixture(scope="module")
def quality():
    # As long as the tests run: the processes that the bench starts import it too.
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        yield importlib.import_module("quality")


@pytest.fixture
def captures(tmp_path):
    """A folder of captures that holds a fox of nine small views of a coloured ramp."""
    folder = tmp_path / "captures" / "ingp_fox"
    (folder / "images").mkdir(parents=True)
    ramp = np.mgrid[0:SIZE, 0:SIZE].transpose(1, 2, 0).astype(np.uint8) * 10
    entries = [frame_entry(f"images/{index}.png", index) for index in range(9)]
    for entry in entries:
        image = np.concatenate([ramp, np.full((SIZE, SIZE, 1), 99, np.uint8)], axis=-1)
        Image.fromarray(image).save(folder / entry["file_path"])
    lens = {"fl_x": 20.0, "fl_y": 20.0, "cx": SIZE / 2, "cy": SIZE / 2, "w": SIZE, "h": SIZE}
    (folder / "transforms.json").write_text(json.dumps({**lens, "frames": entries}))
    return folder.parent


def test_a_small_run_writes_lines_and_a_table(quality, captures, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    small = ["--sets", "fox", "--seeds", "3", "--steps", "2", "--spheres", "50"]
    quality.main(["--out", str(out), "--data", str(captures), *small])
    (row,) = [json.loads(line) for line in (out / "quality.jsonl").read_text().splitlines()]
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[0]) == row
    table = (out / "quality.md").read_text()
    assert (
        printed.endswith(table) and table.startswith("| set |") and "| fox | 24 x 24 | 2" in table
    )
    assert (row["set"], row["seed"], row["steps"], row["spheres"]) == ("fox", 3, 2, 50)
    # Every eighth of nine.
    assert [view["name"] for view in row["views"]] == ["images/0.png", "images/8.png"]
    values = [view["psnr"] for view in row["views"]]
    assert row["psnr"] == pytest.approx(np.mean(values), abs=1e-3) and row["worst"] == min(values)
    assert 5 < row["psnr"] < row["psnr_corrected"] < 40 and 0 < row["flip"] < 1 and row["ssim"] < 1
    # Two steps take less than the program of a step needs to be compiled.
    assert 0 < row["seconds"] < row["compiling"] and row["preparing"] > 0
    assert row["memory_mb"] > 1 and row["device"] and row["commit"]


def test_a_failure_stays_in_its_row(quality, captures, tmp_path, capsys):
    (captures / "llff_fern").mkdir()
    sets = ["--sets", "fern", "--seeds", "0", "--steps", "1"]
    with pytest.raises(SystemExit, match="1 of 1 fits failed"):
        quality.main(["--out", str(tmp_path / "out"), "--data", str(captures), *sets])
    row = json.loads((tmp_path / "out" / "quality.jsonl").read_text())
    assert row["set"] == "fern" and row["failure"].startswith("CaptureError: ")


def test_fits_side_by_side_stay_in_order(quality, captures, tmp_path, capsys):
    (captures / "llff_fern").mkdir()
    several = ["--sets", "fern", "--seeds", "2,0,1", "--steps", "1", "--parallel", "3"]
    with pytest.raises(SystemExit, match="3 of 3 fits failed"):
        quality.main(["--out", str(tmp_path), "--data", str(captures), *several])
    lines = (tmp_path / "quality.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [2, 0, 1]
    assert capsys.readouterr().out.splitlines()[:3] == lines


def test_variants_differ_from_the_preset_in_settings(quality, tmp_path):
    ablation = importlib.import_module("ablation")
    settings = {
        variant: quality.Job("lego", 0, tmp_path, "gpu", 1, changes, variant).settings()
        for variant, changes in ablation.VARIANTS.items()
    }
    assert next(iter(settings)) == "preset"
    for variant in settings.keys() - {"preset"}:
        assert settings[variant] != settings["preset"], variant


def test_the_table_of_variants_shows_differences(quality):
    ablation = importlib.import_module("ablation")
    rows = [
        {"variant": "preset", "set": "lego", "psnr": 30.0, "worst": 28.0},
        {"variant": "mlp", "set": "lego", "psnr": 30.5, "worst": 26.0},
        {"variant": "mlp", "set": "fern", "psnr": 20.0, "worst": 19.0},
    ]
    assert ablation.table(rows).splitlines()[2:] == [
        "| preset | 30.00 | 28.00 |  |  |",
        "| mlp | 30.50 (+0.50) | 26.00 (-2.00) | 20.00 | 19.00 |",
    ]


def test_all_sets_can_be_read(quality, shared):
    for name, known in quality.SETS.items():
        assert (shared / "data" / known.folder).is_dir(), name
        for preset in quality.PRESETS:
            job = quality.Job(name, 5, shared / "data", preset, 3, {"steps": 7})
            settings = job.settings()
            assert (settings.seed, settings.steps, settings.background) == (5, 7, (1, 1, 1))
            assert job.downscale() == 3 * (known.cpu_downscale if preset == "cpu" else 1)


def test_each_inner_view_is_held_out_once(quality):
    camera = PinholeCamera(jnp.eye(4), focal=(1.0, 1.0), principal=(1.0, 1.0), width=2, height=2)
    frames = [Frame(camera, np.zeros((2, 2, 3), np.float32), name=f"{i:02d}") for i in range(11)]
    points = PointCloud(np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32))
    capture = Capture(frames[3:], frames[:3], "colmap", pathlib.Path(), points=points)
    (fold,) = quality.held_out(capture)
    assert (fold.train, fold.test, fold.points) == (capture.train, capture.test, points)
    folds = quality.leave_one_out(capture)
    assert [fold.test[0].name for fold in folds] == [f"{i:02d}" for i in range(1, 10)]
    for fold in folds:
        assert len(fold.test) == 1 and len(fold.train) == 10
        assert fold.test[0] not in fold.train and fold.points is None


@pytest.mark.parametrize(
    "spans, expected",
    [([], 0), ([(0, 9)], 2), ([(3, 4), (0, 2.5)], 1.5), ([(2.5, 3.5), (2.6, 2.7), (3, 3.2)], 1)],
    ids=["none", "around", "over an end", "nested"],
)
def test_overlapping_spans_count_once(quality, spans, expected):
    assert quality.covered(spans, 2, 4) == pytest.approx(expected)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--sets", "lego,foxes"], "--sets: no foxes; give some of lego,fox,fern"),
        (["--sets", "lego"], "argument --data: found no nerf_synthetic_lego_400 in"),
        (["--sets", "fox", "--seeds", "1,b"], "argument --seeds: got '1,b'; give whole numbers"),
        (["--sets", "fox", "--scale", "0"], "argument --scale: got 0; give a whole number"),
        (["--sets", "fox", "--steps", "0"], "steps: got 0, want >= 1"),
    ],
)
def test_the_command_line_says_what_it_wants(
    quality, captures, tmp_path, capsys, arguments, message
):
    with pytest.raises(SystemExit) as caught:
        quality.main(["--out", str(tmp_path), "--data", str(captures), *arguments])
    assert message in f"{caught.value} {capsys.readouterr().err}"


def test_discs_cover_what_is_behind_them(quality):
    shape = importlib.import_module("kernel_shape")
    discs = {
        "places": jnp.array([[5.5, 5.5], [5.5, 5.5]]),
        "radii": jnp.log(jnp.array([3.0, 5.0])),
        "opacities": jnp.array([0.0, 20.0]),
        "colors": jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
        "shapes": jnp.zeros(2),
    }
    for kernel in shape.KERNELS:
        painted = shape.paint(kernel, discs, 12, 12)
        # Half of the first, then the second, and white in the corner.
        np.testing.assert_allclose(painted[5, 5], [0.5, 0, 0.5], atol=2e-3)
        if kernel != "gaussian":
            np.testing.assert_allclose(painted[0, 0], 1, atol=1e-6)
    at_half, plain = jnp.full((1, 1), 0.25), jnp.zeros((1, 1))
    same = [shape.KERNELS[name](at_half, plain) for name in ("power 2", "learned power")]
    np.testing.assert_allclose(same[0], same[1], rtol=1e-5)
