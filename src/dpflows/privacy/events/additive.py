"""Values released with noise added to them."""

import dataclasses
from typing import ClassVar

from dpflows.privacy.events.base import Event
from dpflows.privacy.events.checks import check_positive
from dpflows.privacy.events.relations import Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianEvent(Event):
    """A vector plus independent Gaussian noise of standard deviation ``noise`` (L2)."""

    kind: ClassVar[str] = "gaussian"
    noise: float
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noise", self.noise)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceEvent(Event):
    """A vector plus independent Laplace noise of the given ``scale`` (L1)."""

    kind: ClassVar[str] = "laplace"
    scale: float
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("scale", self.scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceEvent(Event):
    """Integers plus two-sided geometric noise, P(k) ~ exp(-|k|/scale) (L1, integer)."""

    kind: ClassVar[str] = "discrete-laplace"
    scale: float
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("scale", self.scale)
