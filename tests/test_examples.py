"""The examples run as they stand and reach what they promise."""

import importlib.util
import pathlib
import re

import jax
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
SMALL = ("--spheres", "300", "--views", "12", "--size", "32", "--steps", "150")


@pytest.fixture(scope="module")
def silhouette():
    spec = importlib.util.spec_from_file_location("silhouette", EXAMPLES / "silhouette.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_ball_becomes_a_torus(silhouette, tmp_path, capsys):
    from PIL import Image

    # optax's schedules count on implicit promotion.
    with jax.numpy_dtype_promotion("standard"):
        found = silhouette.main(["--out", str(tmp_path / "new" / "folder"), *SMALL])
    # 0.94; views of 32 pixels leave a rim of half a pixel around shapes that are 20 wide.
    assert found > 0.9
    printed = capsys.readouterr().out
    first, *_, last = [float(loss) for loss in re.findall(r"loss (\S+),", printed)]
    assert last < first / 20
    mean, ball = re.findall(r"union (\S+), .*ball: (\S+)\)", printed)[0]
    assert float(mean) == pytest.approx(found, abs=1e-3) and float(ball) < 0.6
    with Image.open(tmp_path / "new" / "folder" / "silhouettes.png") as sheet:
        # Ball, result, torus and difference, each in eight views, at twice their size.
        assert sheet.size == (2 * 8 * 36, 2 * 4 * 36)
        assert np.asarray(sheet).max() == 255


def test_silhouettes_compare_by_what_they_share(silhouette):
    a, b = np.zeros((2, 2, 4, 4), np.float32)
    a[0, :2], b[0, 1:3] = 1, 1
    a[1], b[1] = 1, 1
    np.testing.assert_allclose(silhouette.intersection_over_union(a, b), [1 / 3, 1])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--steps", "0"], "argument --steps: got '0'; give a whole number of at least 1"),
        (["--views", "a"], "argument --views: got 'a'; give a whole number of at least 1"),
        (["--out", __file__], f"argument --out: got {__file__} (File exists); name a folder"),
    ],
)
def test_the_command_line_says_what_it_wants(silhouette, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        silhouette.main(["--out", str(tmp_path), *arguments])
    assert message in capsys.readouterr().err
