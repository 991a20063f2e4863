"""All choices of a fit, as one frozen value that survives a round trip through JSON."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from ._check import want as _want
from .backdrop import Backdrop
from .depth import DepthLoss
from .exposure import Exposure
from .growth import Growth, Pruning, Relocation, growth_to_dict, growth_type
from .refinement import CameraRefinement

Preset = Literal["cpu", "gpu"]


@dataclasses.dataclass(frozen=True)
class LearningRates:
    """Adam's step sizes at the start of a fit. They decay exponentially until its horizon.

    Geometry is measured in scene units: a camera is about 1 from what it looks at.
    """

    centers: float = 1e-3
    """Scene units per step."""
    centers_final: float = 0.01
    """Share of that rate which is left at the horizon."""
    others_final: float = 0.1
    """Share of the other rates."""
    radii: float = 1e-2
    """Of the logarithm of the radii."""
    opacities: float = 3e-2
    """Of the logit of the opacities."""
    features: float = 5e-3
    """Of the first three features of a sphere, its base colour."""
    features_rest: float = 5e-3
    """Of the others: coefficients of what depends on the direction, or what a network reads."""
    shader: float = 1e-3
    """Of the weights of networks."""
    backdrop: float = 5e-3
    """Of a learned backdrop."""


@dataclasses.dataclass(frozen=True)
class LossWeights:
    """Weights of the terms of the training objective."""

    d_ssim: float = 0.2
    """Share of the structural dissimilarity; differences of pixels take the rest."""
    mse: float = 0.0
    """Share of the mean square in those differences; their mean size takes the rest."""
    opacity: float = 0.0
    """Of the mean opacity."""
    entropy: float = 0.0
    """Of the mean entropy of the opacities, which are driven to 0 or 1."""
    radius: float = 0.0
    """Of the mean radius in scene units."""
    view: float = 0.0
    """Of the mean square of the colour that depends on the viewing direction."""


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How a scene is fitted.

    Schedules depend on `horizon` and never on `steps`: `dataclasses.replace(settings, steps=...)`
    prolongs a fit without changing the steps that it has done.
    """

    steps: int = 3000
    """Total number of steps; may be raised when a fit is resumed."""
    horizon: int = 0
    """Steps over which rates decay and other schedules run; 0 becomes `steps`."""
    seed: int = 0
    """Every random choice follows from it."""
    spheres: int = 15000
    """Largest number of spheres."""
    first_share: float = 1.0
    """Share of them that is there at the start; growth adds the others."""
    kind: Literal["alpha", "softmax"] = "alpha"
    """Blending rule of the renderer."""
    gamma: float = 0.1
    """Softness of the `softmax` rule at the start."""
    gamma_final: float = 0.0
    """Softness at the horizon, reached geometrically; 0 keeps it as it is."""
    shader: Literal["plain", "harmonics", "mlp"] = "harmonics"
    """How features become colour."""
    image_shader: Literal["none", "unet"] = "none"
    """What corrects the colours of whole views; it fades in with the view dependence."""
    degree: int = 1
    """Degree of the harmonics in which a shader sees the direction."""
    view_start: float = 0.15
    """Share of the horizon at which dependence on the direction begins to fade in."""
    view_full: float = 0.5
    """Share of the horizon at which it is there in full."""
    view_dropout: float = 0.2
    """Probability that a step ignores the direction."""
    background: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Colour behind the scene, in [0, 1]; where a learned backdrop starts."""
    backdrop: Backdrop = Backdrop()
    initialization: Literal["auto", "points", "consistent", "random"] = "consistent"
    """Where the first spheres are: on the capture's points, or else at measured depths; where
    several views show the same colours; or at random depths. `auto` takes points if they are
    enough."""
    opacity: float = 0.6
    """Opacity of the first spheres."""
    smallest_radius: float = 0.0
    """Least radius, in pixels of the sharpest training view that sees the sphere; 0 for none."""
    coarse_levels: int = 0
    """How often images are halved at the start of a fit."""
    coarse_until: float = 0.3
    """Share of the horizon at which they have become whole again, one level after the other."""
    views_per_step: int = 1
    """Views of which a step's gradient is the mean."""
    compact_images: bool = False
    """Whether to keep images in 8 bits: a quarter of the memory, rounded colours."""
    progress_every: int = 50
    """Steps between reports of progress."""
    save_every: int = 500
    """Steps between checkpoints."""
    rates: LearningRates = LearningRates()
    losses: LossWeights = LossWeights()
    growth: Growth = Relocation()
    """How spheres come, go and move."""
    pruning: Pruning = Pruning()
    depth: DepthLoss = DepthLoss()
    exposure: Exposure = Exposure()
    cameras: CameraRefinement = CameraRefinement()

    def __post_init__(self):
        """Resolves the horizon and checks ranges; raises `ValueError` naming the setting."""
        if self.horizon == 0:
            object.__setattr__(self, "horizon", self.steps)
        for name in (
            "steps",
            "horizon",
            "spheres",
            "views_per_step",
            "progress_every",
            "save_every",
        ):
            _want(getattr(self, name) >= 1, name, getattr(self, name), ">= 1")
        _want(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2^32 - 1")
        _want(self.kind in ("alpha", "softmax"), "kind", self.kind, "alpha or softmax")
        shaders = ("plain", "harmonics", "mlp")
        _want(self.shader in shaders, "shader", self.shader, "plain, harmonics or mlp")
        known = self.image_shader in ("none", "unet")
        _want(known, "image_shader", self.image_shader, "none or unet")
        ways = ("auto", "points", "consistent", "random")
        wanted = ", ".join(ways)
        _want(self.initialization in ways, "initialization", self.initialization, wanted)
        _want(1e-5 <= self.gamma <= 1, "gamma", self.gamma, "1e-5 to 1")
        final = self.gamma_final
        _want(final == 0 or 1e-5 <= final <= 1, "gamma_final", final, "0, or 1e-5 to 1")
        smallest = self.smallest_radius
        _want(0 <= smallest < math.inf, "smallest_radius", smallest, ">= 0")
        _want(0 <= self.coarse_levels <= 8, "coarse_levels", self.coarse_levels, "0 to 8")
        _want(0 <= self.coarse_until <= 1, "coarse_until", self.coarse_until, "0 to 1")
        _want(0 <= self.degree <= 3, "degree", self.degree, "0 to 3")
        _want(0 < self.opacity < 1, "opacity", self.opacity, "between 0 and 1")
        _want(0 <= self.view_dropout <= 1, "view_dropout", self.view_dropout, "0 to 1")
        late = self.view_start < self.view_full
        _want(late, "view_full", self.view_full, f"more than view_start, {self.view_start}")
        colors = len(self.background) == 3 and all(0 <= c <= 1 for c in self.background)
        _want(colors, "background", self.background, "three values in [0, 1]")
        for name, rate in dataclasses.asdict(self.rates).items():
            _want(math.isfinite(rate) and rate > 0, f"rates.{name}", rate, "> 0")
        for name, weight in dataclasses.asdict(self.losses).items():
            _want(math.isfinite(weight) and weight >= 0, f"losses.{name}", weight, ">= 0")
        _want(self.losses.d_ssim <= 1, "losses.d_ssim", self.losses.d_ssim, "0 to 1")
        _want(self.losses.mse <= 1, "losses.mse", self.losses.mse, "0 to 1")
        _want(0 < self.first_share <= 1, "first_share", self.first_share, "above 0, at most 1")

    @property
    def first_spheres(self) -> int:
        """Number of spheres at the start."""
        return max(1, round(self.first_share * self.spheres))

    @classmethod
    def preset(cls, name: Preset, **changes: Any) -> "FitSettings":
        """Returns settings for a class of machine.

        Args:
            name: "cpu" fits 15 000 spheres to views of about 200 x 200 pixels in minutes on two
                cores; "gpu" 200 000 spheres in seconds.
            **changes: Settings to use instead of the preset's.

        Raises:
            ValueError: If there is no such preset.
        """
        if name == "cpu":
            return cls(**changes)
        if name == "gpu":
            gpu: dict[str, Any] = {
                "steps": 7000,
                "spheres": 200_000,
                "degree": 2,
                "rates": LearningRates(centers=5e-4, features_rest=2e-4),
                "growth": Relocation(draw="gradient"),
            }
            return cls(**(gpu | changes))
        raise ValueError(f"preset: got {name!r}, want 'cpu' or 'gpu'")

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries of numbers, strings and lists, fit for JSON and YAML."""
        fields = dataclasses.asdict(self)
        growth = growth_to_dict(self.growth)
        return {**fields, "background": list(self.background), "growth": growth}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FitSettings":
        """Rebuilds settings from `to_dict`'s result.

        Raises:
            ValueError: If a name is unknown or a value is out of range.
        """
        groups = {
            "rates": LearningRates,
            "losses": LossWeights,
            "backdrop": Backdrop,
            "pruning": Pruning,
            "depth": DepthLoss,
            "exposure": Exposure,
            "cameras": CameraRefinement,
        }
        values = dict(values)
        # The only rule there was had a name of its own.
        growth = dict(values.pop("growth", {"rule": "relocation", **values.pop("relocation", {})}))
        groups["growth"] = growth_type(growth.pop("rule", None))
        values["growth"] = growth
        for name, group in groups.items():
            if name in values:
                values[name] = build(group, values[name], f"{name}.")
        if "background" in values:
            values["background"] = tuple(values["background"])
        return build(cls, values, "")


def build(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    """Makes settings of a type from their values.

    Args:
        cls: The type, a dataclass.
        values: By name.
        prefix: Of the names in complaints.

    Raises:
        ValueError: If a name is unknown, or a value is out of range.
    """
    unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
    if unknown:
        names = ", ".join(prefix + name for name in unknown)
        raise ValueError(f"settings: unknown {names}; were they written by another version?")
    return cls(**values)
