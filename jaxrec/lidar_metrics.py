"""Metrics of lidars, each with its unit in its name: arrays in, a number out.

They run on the host in float64, over the rays or points that count; NaN where none does. What was
not measured is selected away, never multiplied: a masked ray may hold anything.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial import KDTree

Values = Float[np.ndarray, "*rays"]
Mask = Bool[np.ndarray, "*rays"]


def range_median_abs_m(prediction: Values, target: Values, mask: Mask) -> float:
    """Measures the median absolute error of ranges.

    Args:
        prediction: Ranges in metres; 0 where nothing was rendered, which is an error as large as
            the range.
        target: What was measured.
        mask: Rays that count: those that returned.

    Returns:
        Metres.

    Raises:
        ValueError: If shapes differ.
    """
    return _median(np.abs(_difference(prediction, target, mask)))


def range_median_sq_m2(prediction: Values, target: Values, mask: Mask) -> float:
    """Measures the median *squared* error of ranges.

    It is what NeuRAD and SplatAD call the L2 median depth error: 0.01 means 10 cm.

    Args:
        prediction: Ranges in metres, 0 where nothing was rendered.
        target: What was measured.
        mask: Rays that count: those that returned.

    Returns:
        Square metres.

    Raises:
        ValueError: If shapes differ.

    References:
        Tonderski et al., "NeuRAD: Neural Rendering for Autonomous Driving", CVPR 2024, table 5.
    """
    return _median(np.square(_difference(prediction, target, mask)))


def range_rel(prediction: Values, target: Values, mask: Mask) -> float:
    """Measures the mean absolute error of ranges as a share of the true range.

    The relative error of NeuRAD and SplatAD is the mean of the square of that share.

    Args:
        prediction: Ranges in metres, 0 where nothing was rendered.
        target: What was measured, > 0 where it counts.
        mask: Rays that count: those that returned.

    Returns:
        A number without unit.

    Raises:
        ValueError: If shapes differ, or a range that counts is not positive.
    """
    error = np.abs(_difference(prediction, target, mask))
    truth = np.asarray(target, np.float64)[mask]
    if np.any(truth <= 0):
        raise ValueError(f"target: got a range of {truth.min():g}; mask rays without a return")
    return _mean(error / truth)


def intensity_rmse(prediction: Values, target: Values, mask: Mask) -> float:
    """Measures the root of the mean squared error of intensities.

    Args:
        prediction: Intensities in [0, 1].
        target: What was measured, on the same scale.
        mask: Rays that count: those that returned.

    Returns:
        In the unit of the intensities.

    Raises:
        ValueError: If shapes differ.
    """
    return float(np.sqrt(_mean(np.square(_difference(prediction, target, mask)))))


def drop_accuracy(
    drops: Values, returned: Bool[np.ndarray, "*rays"], mask: Mask | None = None
) -> float:
    """Measures for which share of rays it was told rightly whether they return.

    Args:
        drops: Probability that a ray does not return; it is said not to above 1/2.
        returned: Whether it did.
        mask: Rays that count: those that were fired; all of them by default.

    Returns:
        A share in [0, 1]. Where few rays drop, saying that none does scores high, too.

    Raises:
        ValueError: If shapes differ.
    """
    counted = np.ones(returned.shape, bool) if mask is None else mask
    _check_shapes(drops, returned, counted, "returned")
    return _mean(((np.asarray(drops) > 0.5) != returned)[counted])


def chamfer_m2(prediction: Float[np.ndarray, "n 3"], target: Float[np.ndarray, "m 3"]) -> float:
    """Measures how far two clouds of points are apart, in both directions.

    The sum of squared distances from each predicted point to the nearest true one, and from each
    true one to the nearest predicted, over the number of true points: as NeuRAD and SplatAD
    compute it. Rays that were wrongly said to return far away dominate it.

    Args:
        prediction: Points in metres, of rays that were said to return.
        target: Measured points.

    Returns:
        Square metres; infinity if there is no predicted point, NaN if there is no true one.

    Raises:
        ValueError: If a coordinate is not finite.
    """
    for name, points in (("prediction", prediction), ("target", target)):
        if not np.all(np.isfinite(points)):
            raise ValueError(f"{name}: got points that are not finite; leave them out")
    if not len(target):
        return float("nan")
    if not len(prediction):
        return float("inf")
    ours, theirs = (np.asarray(points, np.float64) for points in (prediction, target))
    total = 0.0
    for points, others in ((ours, theirs), (theirs, ours)):
        total += float(np.square(np.asarray(KDTree(others).query(points)[0])).sum())
    return total / len(theirs)


def _difference(prediction: Any, target: Any, mask: np.ndarray) -> np.ndarray:
    _check_shapes(prediction, target, mask, "target")
    return np.asarray(prediction, np.float64)[mask] - np.asarray(target, np.float64)[mask]


def _check_shapes(prediction: Any, target: Any, mask: Any, name: str) -> None:
    if not prediction.shape == target.shape == mask.shape:
        raise ValueError(
            f"prediction: got shape {prediction.shape} for {name} of {target.shape} and a mask of "
            f"{mask.shape}; give arrays of one shape"
        )


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if values.size else float("nan")
