"""What a fit of a drive can be told."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ._check import want
from .growth import Growth, NoGrowth, growth_to_dict, growth_type
from .settings import Preset, build


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
    depth: float = 0.0
    """Of the mean difference between depths of cameras and the sweeps nearest in time, per
    metre; 0 leaves depths to the lidars' own rays."""


@dataclasses.dataclass(frozen=True)
class CameraExposure:
    """What may differ between the colours that the cameras of a rig give to the same scene.

    The mean over the cameras is always the identity, so that the scene has the colours of an
    average camera. What is held out is compared with the exposure of its camera.
    """

    kind: Literal["none", "gain", "affine"] = "none"
    """Nothing; a factor for each colour; or a matrix and an offset."""
    rate: float = 2e-3
    """Adam's step size."""


@dataclasses.dataclass(frozen=True)
class RigRefinement:
    """What is corrected about a rig, and about boxes, while the scene is fitted.

    A rate of 0 keeps what it belongs to as the log says.
    """

    mounts: float = 0.0
    """Adam's step size for mounts of sensors, in radians and metres."""
    reference: str = ""
    """The sensor whose mount stays; the first lidar if none is named."""
    path: float = 0.0
    """Of the path of the rig, in radians and metres."""
    every: float = 0.5
    """Seconds between corrections of the path; between two of them it is interpolated."""
    boxes: float = 0.0
    """Of how the boxes of actors lie on their tracks, in radians and metres."""
    start: float = 0.1
    """Share of the horizon after which they move: the scene must say something first."""


@dataclasses.dataclass(frozen=True)
class DriveSettings:
    """How a drive is fitted.

    Every step looks at one exposure and one sweep.
    """

    steps: int = 3000
    """Total number of steps."""
    horizon: int = 0
    """Step at which rates have decayed; `steps` if 0. A fit that is prolonged keeps the first."""
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
    movers: Literal["fit", "mask"] = "fit"
    """Whether actors are fitted, or rays that cross their boxes are left out: where tracks are
    poor, and only what stands still is wanted."""
    range_width: float = 0.1
    """Where the difference of ranges goes from squared to absolute, in metres."""
    opacity: float = 0.7
    """Of the first spheres, where beams returned."""
    sky_rows: int = 16
    """Of the panorama at infinity, over 180 degrees; twice as many columns."""
    progress_every: int = 50
    """Steps between reports of progress."""
    save_every: int = 500
    """Steps between checkpoints."""
    rates: DriveRates = DriveRates()
    weights: DriveWeights = DriveWeights()
    growth: Growth = NoGrowth()
    """How spheres come, go and move."""
    exposure: CameraExposure = CameraExposure()
    rig: RigRefinement = RigRefinement()

    def __post_init__(self):
        """Resolves the horizon and checks ranges; raises `ValueError` naming the setting."""
        if self.horizon == 0:
            object.__setattr__(self, "horizon", self.steps)
        for name in ("steps", "horizon", "spheres", "sky_rows", "progress_every", "save_every"):
            want(getattr(self, name) >= 1, name, getattr(self, name), ">= 1")
        want(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2^32 - 1")
        want(0 <= self.scattered < 1, "scattered", self.scattered, "0 to below 1")
        want(0 < self.opacity < 1, "opacity", self.opacity, "between 0 and 1")
        want(0 <= self.near < self.far, "near", self.near, f">= 0 and below far, {self.far}")
        want(self.range_width > 0, "range_width", self.range_width, "> 0")
        want(self.margin >= 0, "margin", self.margin, ">= 0")
        want(self.movers in ("fit", "mask"), "movers", self.movers, "fit or mask")
        for group in ("rates", "weights"):
            for name, value in dataclasses.asdict(getattr(self, group)).items():
                want(0 <= value < np.inf, f"{group}.{name}", value, ">= 0")
        want(self.weights.d_ssim <= 1, "weights.d_ssim", self.weights.d_ssim, "0 to 1")
        kind, rate = self.exposure.kind, self.exposure.rate
        want(kind in ("none", "gain", "affine"), "exposure.kind", kind, "none, gain or affine")
        want(0 < rate < np.inf, "exposure.rate", rate, "> 0")
        rig = self.rig
        for name in ("mounts", "path", "boxes"):
            want(0 <= getattr(rig, name) < np.inf, f"rig.{name}", getattr(rig, name), ">= 0")
        want(0 < rig.every < np.inf, "rig.every", rig.every, "> 0")
        want(0 <= rig.start < 1, "rig.start", rig.start, "0 to 1, below 1")

    @classmethod
    def preset(cls, name: Preset, **changes: Any) -> "DriveSettings":
        """Returns settings for a class of machine.

        Args:
            name: "cpu" fits 20 000 spheres, for images of some 100 x 100 pixels in minutes on two
                cores; "gpu" 300 000.
            **changes: Settings to use instead of the preset's.

        Raises:
            ValueError: If there is no such preset.
        """
        if name == "cpu":
            cpu: dict[str, Any] = {"steps": 1500, "spheres": 20_000}
            return cls(**(cpu | changes))
        if name == "gpu":
            return cls(**changes)
        raise ValueError(f"preset: got {name!r}, want 'cpu' or 'gpu'")

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries of numbers and strings, fit for JSON and YAML."""
        return {**dataclasses.asdict(self), "growth": growth_to_dict(self.growth)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DriveSettings":
        """Rebuilds settings from `to_dict`'s result.

        Raises:
            ValueError: If a name is unknown or a value is out of range.
        """
        values = dict(values)
        growth = dict(values.pop("growth", {"rule": "none"}))
        groups = {
            "rates": DriveRates,
            "weights": DriveWeights,
            "exposure": CameraExposure,
            "rig": RigRefinement,
            "growth": growth_type(growth.pop("rule", None)),
        }
        values["growth"] = growth
        for name, group in groups.items():
            if name in values:
                values[name] = build(group, values[name], f"{name}.")
        return build(cls, values, "")
