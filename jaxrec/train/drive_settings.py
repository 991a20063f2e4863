"""What a fit of a drive can be told."""

import dataclasses

from ._check import want


@dataclasses.dataclass(frozen=True)
class DriveRates:
    """Adam's step sizes at the start of a fit of a drive, in metres where they have a length."""

    centers: float = 2e-3
    """Metres per step."""
    radii: float = 1e-2
    """Of the logarithm of the radii."""
    opacities: float = 3e-2
    """Of the logit of the opacities."""
    colors: float = 1e-2
    """Of colours in [0, 1]."""
    intensities: float = 1e-2
    """Of intensities in [0, 1]."""
    drops: float = 5e-2
    """Of the logit of the probability that a ray is lost."""
    sky: float = 1e-2
    """Of colours at infinity."""
    final: float = 0.05
    """Share of all rates that is left at the last step."""


@dataclasses.dataclass(frozen=True)
class DriveWeights:
    """Weights of the terms of a drive's objective."""

    d_ssim: float = 0.2
    """Share of the structural dissimilarity of images; differences of pixels take the rest."""
    range: float = 0.1
    """Of the mean difference of ranges, per metre."""
    intensity: float = 1.0
    """Of the mean squared difference of intensities."""
    drop: float = 0.05
    """Of the cross-entropy of lost rays, per nat."""


@dataclasses.dataclass(frozen=True)
class DriveSettings:
    """How a drive is fitted.

    Every step looks at one exposure and one sweep.
    """

    steps: int = 3000
    """Total number of steps."""
    seed: int = 0
    """Every random choice follows from it."""
    spheres: int = 300_000
    """How many there are."""
    scattered: float = 0.25
    """Share of them that begins at random depths along the cameras' rays: where no lidar looks."""
    near: float = 0.5
    """Least distance in metres of a sphere's front."""
    far: float = 200.0
    """Largest distance in metres of a sphere's front."""
    margin: float = 0.1
    """How far outside an actor's box its points still belong to it, in metres."""
    range_width: float = 0.1
    """Where the difference of ranges goes from squared to absolute, in metres."""
    opacity: float = 0.7
    """Of the first spheres, where beams returned."""
    sky_rows: int = 16
    """Of the panorama at infinity, over 180 degrees; twice as many columns."""
    rates: DriveRates = DriveRates()
    weights: DriveWeights = DriveWeights()

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        for name in ("steps", "spheres", "sky_rows"):
            want(getattr(self, name) >= 1, name, getattr(self, name), ">= 1")
        want(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2^32 - 1")
        want(0 <= self.scattered < 1, "scattered", self.scattered, "0 to below 1")
        want(0 < self.opacity < 1, "opacity", self.opacity, "between 0 and 1")
        want(0 <= self.near < self.far, "near", self.near, f">= 0 and below far, {self.far}")
        want(self.range_width > 0, "range_width", self.range_width, "> 0")
        want(self.margin >= 0, "margin", self.margin, ">= 0")
        for group in (self.rates, self.weights):
            for name, value in dataclasses.asdict(group).items():
                want(value >= 0, name, value, ">= 0")
