"""Releases of which only the promise they keep is known."""

import dataclasses
from typing import ClassVar

from dpflows.errors import InputError
from dpflows.privacy.events.base import Event
from dpflows.privacy.events.relations import Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundedRangeEvent(Event):
    """An exponential mechanism: the log odds of any two outcomes move by ``epsilon`` at most.

    ``epsilon`` is given per neighbour relation, since utilities may be more
    sensitive to replacing a row than to removing it.
    """

    kind: ClassVar[str] = "bounded-range"
    epsilon: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class PureEvent(Event):
    """Anything that is epsilon-DP and about which no more is known (sparse vector)."""

    kind: ClassVar[str] = "pure"
    epsilon: Sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApproximateEvent(Event):
    """Anything that is (epsilon, delta)-DP and about which no more is known."""

    kind: ClassVar[str] = "approximate"
    epsilon: Sensitivity
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.delta < 1:
            raise InputError(f"delta must be in [0, 1), got {self.delta}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZCDPEvent(Event):
    """Anything that is rho-zCDP and about which no more is known."""

    kind: ClassVar[str] = "zcdp"
    rho: Sensitivity
