"""Training objectives: differences to a target, regularisers, and their weighted sum.

Images are `[..., H, W, C]`. A mask selects pixels: those where it is False or 0 do not count, and
a mask that selects nothing makes a difference 0.
"""

from ._mean import Mask as Mask
from .image import (
    d_ssim as d_ssim,
    energy as energy,
    huber as huber,
    l1 as l1,
    mse as mse,
    opacity_cost as opacity_cost,
    opacity_entropy as opacity_entropy,
    radius_cost as radius_cost,
    weighted_sum as weighted_sum,
)
from .lidar import (
    drop_bce as drop_bce,
    intensity_mse as intensity_mse,
    range_huber as range_huber,
    range_l1 as range_l1,
    sky_cost as sky_cost,
)
