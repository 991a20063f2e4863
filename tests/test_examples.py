"""The examples run as they stand and reach what they promise."""

import importlib
import pathlib
import re

import jax
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
SMALL = ("--spheres", "300", "--views", "12", "--size", "32", "--steps", "150")


@pytest.fixture(scope="module")
def silhouette():
    return load("silhouette")


@pytest.fixture(scope="module")
def illumination():
    return load("illumination")


@pytest.fixture(scope="module")
def street():
    return load("street")


def load(name):
    # Python puts the folder of a script that it runs in front of the path.
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        return importlib.import_module(name)


# ---- silhouette


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


# ---- illumination


def test_lights_and_paint_are_found(illumination, tmp_path, capsys):
    from PIL import Image

    small = ("--spheres", "500", "--views", "8", "--size", "32", "--steps", "250")
    # optax's schedules count on implicit promotion.
    with jax.numpy_dtype_promotion("standard"):
        scores = illumination.main(["--out", str(tmp_path / "new" / "folder"), *small])
    # 3.8 degrees, 14 %, 0.027 and 40.3 dB: harmonics of degree 2 are not quite a cosine.
    assert scores.degrees < 6 and scores.color < 0.2 and scores.albedo < 0.05
    assert scores.psnr > 36
    printed = capsys.readouterr().out
    first, *_, last = [float(loss) for loss in re.findall(r"loss (\S+)", printed)]
    assert last < first / 15
    found, grey = re.findall(r"light: (\S+) dB \(grey: (\S+)\)", printed)[0]
    assert float(found) == pytest.approx(scores.psnr, abs=0.1) and float(grey) < 25
    with Image.open(tmp_path / "new" / "folder" / "illumination.png") as sheet:
        # Grey, result, truth and difference, each in four views, at twice their size.
        assert sheet.size == (2 * 4 * 36, 2 * 4 * 36)
        assert np.asarray(sheet).max() > 150


def test_harmonics_shade_as_the_cosine_does_but_for_a_few_percent(illumination):
    normals, truth = illumination.directions(2000), illumination.suns(3)
    basis = illumination.harmonics_basis(jax.numpy.asarray(truth.towards), 2)
    light = np.pi * np.asarray(basis)[:, :, None] * truth.suns[:, None]
    light[:, 0] += illumination.CONSTANT * truth.skies
    guess = illumination.Appearance(jax.numpy.asarray(light), jax.numpy.zeros((2000, 3)))
    # 3/32 - x/2 + 15/32 x^2 for a cosine of x > 0: at most 3/32, with the sun on the horizon.
    difference = np.abs(guess.shade(normals) - truth.shade(normals)).max(axis=1)
    np.testing.assert_allclose(difference, 3 / 32 * truth.suns, rtol=0.03)
    np.testing.assert_allclose(guess.towards(), truth.towards, atol=1e-5)
    np.testing.assert_allclose(guess.suns(), truth.suns, rtol=1e-5)


# ---- street


def test_the_street_is_drawn(street, tmp_path, capsys):
    from PIL import Image

    small = ("--width", "48", "--columns", "128", "--decisecond", "55")
    shares = street.main(["--out", str(tmp_path / "new" / "folder"), *small])
    printed = re.findall(r"4096 rays: (\S+) % came back, (\S+) % twice", capsys.readouterr().out)
    assert [float(share) / 100 for share in printed[0]] == pytest.approx(shares, abs=6e-4)
    assert 0.7 < shares.returned < 0.95 and 0.02 < shares.twice < 0.2
    with Image.open(tmp_path / "new" / "folder" / "cameras.png") as sheet:
        assert sheet.size == (3 * 48, 4 * (32 + 2))
        recorded, empty, lane, frozen = np.asarray(sheet).reshape(4, 34, 144, 3)[:, :32]
    # Cars are in the middle picture; a global shutter changes those at the sides alone.
    for other, changed in ((empty, [1]), (lane, [0, 1, 2]), (frozen, [0, 2])):
        thirds = [np.any(recorded[:, i : i + 48] != other[:, i : i + 48]) for i in (0, 48, 96)]
        assert set(changed) <= set(np.flatnonzero(thirds))
    np.testing.assert_array_equal(recorded[:, 48:96], frozen[:, 48:96])
    with Image.open(tmp_path / "new" / "folder" / "sweep.png") as sheet:
        ranges, intensities, seconds = np.asarray(sheet)[::2, ::2].reshape(3, 34, 128, 3)[:, :32]
    np.testing.assert_allclose(ranges.any(-1).mean(), shares.returned, atol=1e-9)
    np.testing.assert_allclose(seconds.any(-1).mean(), shares.twice, atol=1e-9)
    assert not intensities[~ranges.any(-1)].any()
    with Image.open(tmp_path / "new" / "folder" / "above.png") as sheet:
        drawn = np.asarray(sheet)
    outlines = np.argwhere(np.all(drawn == (255, 160, 40), axis=-1))
    # Three cars with 12.4 m around each, at ten pixels in a metre.
    assert 300 < len(outlines) < 400
    # One is ahead, and the rig itself, in the left third, leaves no returns where it stands.
    assert outlines[:, 1].max() > 300 and not np.any(drawn[195:205, 195:205] > 100)
