"""Lenses: what a camera does to directions, as values that it holds."""

from ._lens import Lens as Lens
from .equirectangular import EquirectangularLens as EquirectangularLens
from .fisheye import FisheyeLens as FisheyeLens
from .ftheta import FThetaBackwardLens as FThetaBackwardLens, FThetaLens as FThetaLens
from .rational import RationalLens as RationalLens
from .windshield import (
    StoredWindshieldLens as StoredWindshieldLens,
    WindshieldLens as WindshieldLens,
)
