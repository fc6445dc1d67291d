"""Zero-concentrated differential privacy: one number per event, simple and loose."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import final

import numpy as np

from dpflows.privacy.accounting import votes
from dpflows.privacy.accounting.base import Accountant, Profile, tally, unpriced
from dpflows.privacy.accounting.spread import full_batch
from dpflows.privacy.events import (
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Neighbours,
    PureEvent,
    VoteEvent,
    ZCDPEvent,
)


@final
@dataclasses.dataclass(frozen=True)
class ZCDPProfile(Profile):
    """A total of ``rho``, converted at the best Rényi order (Canonne, Kamath, Steinke 2020)."""

    rho: float

    def epsilon(self, delta: float) -> float:
        """The smallest converted epsilon over a fine grid of orders."""
        if self.rho == 0:
            return 0.0
        best = 1 + math.sqrt(math.log(1 / delta) / self.rho)
        orders = 1 + (best - 1) * np.geomspace(0.01, 100, 4001)
        converted = self.rho * orders + np.log1p(-1 / orders)
        converted -= (math.log(delta) + np.log(orders)) / (orders - 1)
        return max(0.0, float(converted.min()))

    def delta(self, epsilon: float) -> float:
        """The smallest converted delta over a fine grid of orders."""
        if self.rho == 0:
            return 0.0
        best = max(1 + 1e-6, (epsilon / self.rho + 1) / 2)
        orders = 1 + (best - 1) * np.geomspace(0.01, 100, 4001)
        logarithms = (orders - 1) * (self.rho * orders - epsilon + np.log1p(-1 / orders))
        return float(np.exp(min(0.0, (logarithms - np.log(orders)).min())))


@final
class ZCDPAccountant(Accountant):
    """Rho adds up; amplification by sampling is not expressible.

    Guarantee:
        A bound for unsampled releases, looser than ``gdp`` or ``pld``.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0), count=4)
        >>> round(ZCDPAccountant().profile([event], "zero-out").epsilon(1e-5), 2)
        4.73
    """

    name = "zcdp"
    kind = "bound"
    reading = "valid, full batches"

    def profile(self, events: Sequence[Event], neighbours: Neighbours) -> Profile:
        """The sum of all rho."""
        costs = (count * _rho(full_batch(e), neighbours) for e, count in tally(events).items())
        return ZCDPProfile(sum(costs))


@functools.singledispatch
def _rho(event: Event, neighbours: Neighbours) -> float:
    raise unpriced(event, "zcdp", neighbours, "use accountant 'pld' or 'rdp'")


@_rho.register(GaussianEvent)
def _(event: GaussianEvent, neighbours: Neighbours) -> float:
    return (event.sensitivity.under(neighbours) / event.noise) ** 2 / 2


@_rho.register(ZCDPEvent)
def _(event: ZCDPEvent, neighbours: Neighbours) -> float:
    return event.rho.under(neighbours)


@_rho.register(PureEvent)
def _(event: PureEvent, neighbours: Neighbours) -> float:
    return event.epsilon.under(neighbours) ** 2 / 2


@_rho.register(LaplaceEvent)
@_rho.register(DiscreteLaplaceEvent)
def _(event: LaplaceEvent | DiscreteLaplaceEvent, neighbours: Neighbours) -> float:
    return (event.sensitivity.under(neighbours) / event.scale) ** 2 / 2


@_rho.register(BoundedRangeEvent)
def _(event: BoundedRangeEvent, neighbours: Neighbours) -> float:
    return event.epsilon.under(neighbours) ** 2 / 8


@_rho.register(VoteEvent)
def _(event: VoteEvent, neighbours: Neighbours) -> float:
    return votes.width(event, neighbours) ** 2 / 8
