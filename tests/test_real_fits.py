"""Real captures end to end at a small size: far fewer steps and spheres than a user would take."""

import numpy as np
import pytest

from jaxrec.data import open_capture
from jaxrec.train import FitSettings, evaluate, fit

pytestmark = pytest.mark.optimized


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder, downscale, bar", [("ingp_fox", 8, 20.0), ("nerf_synthetic_lego_400", 4, 25.0)]
)
def test_held_out_views_are_predicted(shared, folder, downscale, bar):
    capture = open_capture(shared / "data" / folder, downscale=downscale)
    settings = FitSettings.preset("cpu", steps=300, spheres=5000)
    scores = list(evaluate(fit(capture.train, settings), capture.test))
    psnr = [score.psnr for score in scores]
    # Measured 21.2 and 27.3 dB; a mirrored, shifted or floating scene stays below 16.
    assert np.mean(psnr) > bar, psnr
    assert min(psnr) > 17, psnr
