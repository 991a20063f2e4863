"""Metrics of lidars against values that can be computed by hand."""

from typing import Any

import numpy as np
import pytest

from jaxrec.lidar_metrics import (
    chamfer_m2,
    drop_accuracy,
    intensity_rmse,
    range_median_abs_m,
    range_median_sq_m2,
    range_rel,
)

TARGET = np.float32([[10, 20, 30], [40, 0, 50]])
RETURNED = TARGET > 0
# Errors of 0.5, 0.1, 3, 0.2 and 50 m, and a ray that did not return.
PREDICTION = np.float32([[10.5, 19.9, 33], [40.2, 7, 0]])
MEASURES = [range_median_abs_m, range_median_sq_m2, range_rel, intensity_rmse]


def test_range_errors_are_those_of_five_rays():
    assert range_median_abs_m(PREDICTION, TARGET, RETURNED) == pytest.approx(0.5, rel=1e-5)
    assert range_median_sq_m2(PREDICTION, TARGET, RETURNED) == pytest.approx(0.25, rel=1e-5)
    shares = (0.05 + 0.005 + 0.1 + 0.005 + 1) / 5
    assert range_rel(PREDICTION, TARGET, RETURNED) == pytest.approx(shares, rel=1e-5)


def test_intensity_error_is_a_root_of_a_mean():
    error = intensity_rmse(np.float32([0.1, 0.5, 9]), np.float32([0.4, 0.1, 0]), np.arange(3) < 2)
    assert error == pytest.approx(np.sqrt((0.09 + 0.16) / 2), rel=1e-6)


@pytest.mark.parametrize("measure", MEASURES)
def test_masked_rays_may_hold_anything(measure):
    spoiled = np.where(RETURNED, PREDICTION, np.nan).astype(np.float32)
    assert measure(spoiled, TARGET, RETURNED) == measure(PREDICTION, TARGET, RETURNED)
    assert np.isnan(measure(PREDICTION, TARGET, np.zeros((2, 3), bool)))
    assert measure(TARGET, TARGET, RETURNED) == 0


def test_errors_far_away_keep_their_digits():
    # 1 mm at 4 km: float32 cannot hold it, float64 can.
    far = np.full(3, 4096.0)
    assert range_median_abs_m(far + 1e-3, far, np.ones(3, bool)) == pytest.approx(1e-3, rel=1e-6)


def test_drops_are_told_above_a_half():
    drops = np.float32([0.9, 0.2, 0.5, 0.51])
    returned = np.array([False, True, False, True])
    # Right: the first two. A half is not above a half.
    assert drop_accuracy(drops, returned) == 0.5
    assert drop_accuracy(drops, returned, np.array([1, 1, 0, 1], bool)) == pytest.approx(2 / 3)
    assert np.isnan(drop_accuracy(drops, returned, np.zeros(4, bool)))


def test_chamfer_is_over_true_points():
    # Two true points, 3 m and 1 m from the only predicted one.
    target = np.float32([[0, 0, 3], [0, 1, 0]])
    one = np.zeros((1, 3), np.float32)
    assert chamfer_m2(one, target) == pytest.approx((1 + 9 + 1) / 2)
    assert chamfer_m2(target, one) == pytest.approx(9 + 1 + 1)
    assert chamfer_m2(target, target[::-1]) == 0


def test_chamfer_is_that_of_all_pairs():
    draw = np.random.default_rng(0)
    ours, theirs = draw.normal(size=(300, 3)), draw.normal(size=(200, 3))
    pairs = np.square(ours[:, None] - theirs[None]).sum(axis=-1)
    wanted = (pairs.min(axis=1).sum() + pairs.min(axis=0).sum()) / 200
    assert chamfer_m2(ours, theirs) == pytest.approx(wanted, rel=1e-12)


def test_chamfer_without_points():
    some, none = np.ones((2, 3), np.float32), np.zeros((0, 3), np.float32)
    assert chamfer_m2(none, some) == np.inf and np.isnan(chamfer_m2(some, none))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: range_median_abs_m(PREDICTION[:1], TARGET, RETURNED),
            r"prediction: got shape \(1, 3\) for target of \(2, 3\)",
        ),
        (
            lambda: drop_accuracy(PREDICTION, RETURNED[:1]),
            r"prediction: got shape \(2, 3\) for returned of \(1, 3\)",
        ),
        (
            lambda: range_rel(PREDICTION, TARGET, np.ones((2, 3), bool)),
            "target: got a range of 0; mask rays without a return",
        ),
        (
            lambda: chamfer_m2(np.full((1, 3), np.nan), np.ones((1, 3))),
            "prediction: got points that are not finite; leave them out",
        ),
    ],
)
def test_errors_name_the_argument_what_was_given_and_what_is_wanted(own_errors, call: Any, message):
    with pytest.raises(ValueError, match=message):
        call()
