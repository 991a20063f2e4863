"""Rules by which spheres come, go and move while a scene is fitted, as values."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from ._check import want


@dataclasses.dataclass(frozen=True)
class Relocation:
    """Spheres that show little move onto copies of visible ones."""

    every: int = 100
    """Steps between relocations; 0 switches them off."""
    start: float = 0.05
    """Share of the horizon at which they begin."""
    stop: float = 0.7
    """Share of the horizon at which they end."""
    opacity: float = 0.4
    """Spheres below this opacity are moved."""
    share: float = 0.1
    """Largest share of the spheres moved at once."""
    draw: Literal["opacity", "gradient"] = "opacity"
    """What the chance of a visible sphere to be copied is in proportion to: its opacity, or the
    root mean square of its center's gradient."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        _check_times(self.every, self.start, self.stop)
        _want_share("opacity", self.opacity)
        _want_share("share", self.share)
        want(self.draw in ("opacity", "gradient"), "growth.draw", self.draw, "opacity or gradient")


@dataclasses.dataclass(frozen=True)
class MCMC:
    """Spheres are samples that wander towards where they are needed.

    Transparent ones move onto copies of visible ones, drawn in proportion to opacity, whose
    opacity and size change so that the picture does not; their number grows by a share each time;
    noise keeps transparent ones moving. Goes with small weights of `losses.opacity` and
    `losses.radius`, which tell what is not needed.

    References:
        Kheradmand et al., "3D Gaussian Splatting as Markov Chain Monte Carlo", NeurIPS 2024.
    """

    every: int = 100
    """Steps between moves; 0 switches them off."""
    start: float = 0.02
    """Share of the horizon at which they begin."""
    stop: float = 0.8
    """Share of the horizon at which they end."""
    opacity: float = 0.005
    """Spheres below this opacity are moved, and feel the noise."""
    growth: float = 0.05
    """Spheres added each time, as a share of those alive."""
    noise: float = 0.2
    """Standard deviation, in radii, of the move of a transparent sphere in one of the first steps.
    It decays as the rate of the centers does."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        _check_times(self.every, self.start, self.stop)
        _want_share("opacity", self.opacity)
        want(0 <= self.growth <= 1, "growth.growth", self.growth, "0 to 1")
        want(0 <= self.noise < float("inf"), "growth.noise", self.noise, ">= 0")


@dataclasses.dataclass(frozen=True)
class Densification:
    """Spheres whose position matters most get company; transparent ones go.

    What matters is the running mean square of the gradient of a center, which Adam keeps: unlike
    a mean gradient, pixels that pull a sphere apart do not cancel in it. Large spheres are split,
    small ones cloned, into rows that are free.

    References:
        Kerbl et al., "3D Gaussian Splatting for Real-Time Radiance Field Rendering", SIGGRAPH
        2023, section 5.2; Ye et al., "AbsGS", 2024.
    """

    every: int = 100
    """Steps between rounds; 0 switches them off."""
    start: float = 0.02
    """Share of the horizon at which they begin."""
    stop: float = 0.5
    """Share of the horizon at which they end."""
    opacity: float = 0.02
    """Spheres below this opacity go."""
    share: float = 0.05
    """Spheres that get company each time, as a share of those alive."""
    radius: float = 0.02
    """Scene units above which a sphere is split and not cloned."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        _check_times(self.every, self.start, self.stop)
        _want_share("opacity", self.opacity)
        _want_share("share", self.share)
        want(self.radius > 0, "growth.radius", self.radius, "> 0")


@dataclasses.dataclass(frozen=True)
class NoGrowth:
    """The spheres of the start stay."""


@dataclasses.dataclass(frozen=True)
class Pruning:
    """Removal of spheres that hide behind others in every training view.

    Nothing tells what they look like, until another view sees them. Rows that come free are used
    by the growth rule. In a soft blend all spheres along a ray share it and none hides behind
    others, so `kind="softmax"` goes without.
    """

    share: float = 0.1
    """Spheres of which less than this reaches any training view go (see `visibility`); 0 keeps
    all."""
    every: int = 500
    """Steps between rounds; but at least five for each training view, for a round renders all."""
    start: float = 0.1
    """Share of the horizon at which they begin."""
    stop: float = 0.95
    """Share of the horizon at which they end."""

    def __post_init__(self):
        """Checks ranges; raises `ValueError` naming the setting."""
        want(0 <= self.share < 1, "pruning.share", self.share, "0 to 1")
        want(self.every >= 1, "pruning.every", self.every, ">= 1")
        want(0 <= self.start <= 1, "pruning.start", self.start, "0 to 1")
        want(0 <= self.stop <= 1, "pruning.stop", self.stop, "0 to 1")


Growth = Relocation | MCMC | Densification | NoGrowth

_RULES: Mapping[str, type] = {
    "relocation": Relocation,
    "mcmc": MCMC,
    "densification": Densification,
    "none": NoGrowth,
}


def growth_to_dict(growth: Growth) -> dict[str, Any]:
    """Returns the rule's name, under `rule`, and its settings."""
    [name] = [name for name, rule in _RULES.items() if type(growth) is rule]
    return {"rule": name, **dataclasses.asdict(growth)}


def growth_type(name: Any) -> type:
    """Returns the type of the rule of a name.

    Raises:
        ValueError: If there is no such rule.
    """
    want(name in _RULES, "growth.rule", name, f"one of {', '.join(_RULES)}")
    return _RULES[name]


def _check_times(every: int, start: float, stop: float) -> None:
    want(every >= 0, "growth.every", every, ">= 0")
    want(0 <= start <= 1, "growth.start", start, "0 to 1")
    want(0 <= stop <= 1, "growth.stop", stop, "0 to 1")


def _want_share(name: str, value: float) -> None:
    want(0 < value <= 1, f"growth.{name}", value, "above 0, at most 1")
