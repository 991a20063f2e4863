"""What a `blend` is asked for: the part of its arguments that is fixed when it is traced."""

import dataclasses
import math
from typing import Literal, get_args

Kind = Literal["softmax", "alpha"]
Stop = Literal["per_sphere", "total"]

ALPHA_STOP = 1e-4  # transmittance below which `kind="alpha"` ends a ray unless told otherwise
MAX_CHANNELS = 64  # channels that one pass blends
TILES = (8, 16, 32)  # rays on a side of the square that is culled together


@dataclasses.dataclass(frozen=True)
class BlendSettings:
    """Static options of `blend`, normalised so that equal requests share one trace."""

    kind: Kind
    stop: Stop | None = None
    stop_p: float = 0.01
    gradient_hits: int | None = None
    nearest: int = 0
    hit_counts: bool = False
    tile: int = 16

    def __post_init__(self):
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}; give 'softmax' or 'alpha'")
        if self.stop is not None and self.stop not in get_args(Stop):
            raise ValueError(f"stop is {self.stop!r}; give None, 'per_sphere' or 'total'")
        stop_p = float(self.stop_p)
        if not 0.0 <= stop_p < 1.0:
            raise ValueError(f"stop_p is {stop_p}; give a share in [0, 1)")
        if self.gradient_hits is not None and int(self.gradient_hits) < 1:
            raise ValueError(
                f"gradient_hits is {self.gradient_hits}; give None for all hits or a count >= 1"
            )
        if int(self.nearest) < 0:
            raise ValueError(f"nearest is {self.nearest}; give a count >= 0")
        if self.tile not in TILES:
            raise ValueError(f"tile is {self.tile}; give one of {TILES}")
        set_field = object.__setattr__
        set_field(self, "stop_p", stop_p + 0.0)  # -0.0 and 0.0 are one key
        if self.gradient_hits is not None:
            set_field(self, "gradient_hits", int(self.gradient_hits))
        set_field(self, "nearest", int(self.nearest))
        set_field(self, "hit_counts", bool(self.hit_counts))

    @property
    def tracked(self) -> int:
        """How many nearest hits the forward pass must remember for each ray."""
        return max(self.nearest, self.gradient_hits or 0)

    @property
    def logit_stop(self) -> float:
        """Log odds of the stopping share; minus infinity when nothing may be omitted."""
        if self.stop is None or self.stop_p == 0.0:
            return -math.inf
        return math.log(self.stop_p) - math.log1p(-self.stop_p)

    @property
    def min_transmittance(self) -> float:
        """Transmittance below which a ray of `kind="alpha"` ends."""
        return ALPHA_STOP if self.stop is None else self.stop_p
