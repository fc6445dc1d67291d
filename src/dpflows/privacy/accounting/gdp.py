"""Gaussian and zero-concentrated differential privacy.

GDP composition is exact for full batches; for sampled batches its central limit is only an
estimate. zCDP sums one number per event, which is simple and loose.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from scipy.special import ndtr

from dpflows.privacy.accounting import privacy_profiles
from dpflows.privacy.accounting.pld import full_batch
from dpflows.privacy.accounting.privacy_profiles import (
    Accountant,
    GaussianProfile,
    Profile,
    unpriced,
)
from dpflows.privacy.events import (
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Neighbours,
    PureEvent,
    SampledGaussianEvent,
    VoteEvent,
    ZCDPEvent,
    tally,
)


@final
class GDPAccountant(Accountant):
    """Composition of full-batch Gaussians, which is again one Gaussian.

    Guarantee:
        A bound that is attained: mu is the root of the sum of squared sensitivities
        over noise variances.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0), count=4)
        >>> round(GDPAccountant().profile([event], "zero-out").epsilon(1e-5), 3)
        4.377
    """

    name = "gdp"
    kind = "bound"
    reading = "exact, full batches"

    def profile(self, events: Sequence[Event], neighbours: Neighbours) -> Profile:
        """One Gaussian pair at the composed distance."""
        costs = (
            count * _exact(full_batch(e), neighbours) ** 2 for e, count in tally(events).items()
        )
        return GaussianProfile(math.sqrt(sum(costs)))


@final
class GDPCLTAccountant(Accountant):
    """The central limit of many sampled Gaussians (Bu, Dong, Long and Su 2020).

    Guarantee:
        None: an estimate that may understate the cost several times over when the
        noise is small or the rate large. Uniform batches follow the original formula,
        which takes the norm bound C although replacing a row moves the sum by 2C.

    Example:
        >>> step = SampledGaussianEvent(
        ...     sampling="uniform", rows=24059, batch_size=100, noise_multiplier=2.1, count=12565
        ... )
        >>> round(GDPCLTAccountant().profile([step], "replace-one").epsilon(1.52e-5), 3)
        1.0
    """

    name = "gdp-clt"
    kind = "estimate"
    reading = "may understate"

    def profile(self, events: Sequence[Event], neighbours: Neighbours) -> Profile:
        """One pair of Gaussians at the limiting distance."""
        costs = (
            count * _limit(full_batch(e), neighbours) ** 2 for e, count in tally(events).items()
        )
        return GaussianProfile(math.sqrt(sum(costs)))


@functools.singledispatch
def _exact(event: Event, neighbours: Neighbours) -> float:
    raise unpriced(event, "gdp", neighbours, "only full-batch Gaussians; use accountant 'pld'")


@functools.singledispatch
def _limit(event: Event, neighbours: Neighbours) -> float:
    raise unpriced(event, "gdp-clt", neighbours, "only Gaussian steps; use accountant 'pld'")


@_exact.register(GaussianEvent)
@_limit.register(GaussianEvent)
def _(event: GaussianEvent, neighbours: Neighbours) -> float:
    return event.sensitivity.under(neighbours) / event.noise


@_limit.register(SampledGaussianEvent)
def _(event: SampledGaussianEvent, neighbours: Neighbours) -> float:
    if event.sampling == "poisson":
        return _poisson(event, neighbours)
    if neighbours == "add-remove":
        raise unpriced(event, "gdp-clt", neighbours, "fixed-size batches need 'replace-one'")
    return _uniform(event)


def _poisson(event: SampledGaussianEvent, neighbours: Neighbours) -> float:
    if neighbours == "replace-one" or event.batch_cap is not None:
        raise unpriced(event, "gdp-clt", neighbours, "use accountant 'pld'")
    return event.rate * math.sqrt(_expm1(event.noise_multiplier**-2))


def _uniform(event: SampledGaussianEvent) -> float:
    mu = 1 / event.noise_multiplier
    grown = (_expm1(mu * mu) + 1) * ndtr(1.5 * mu) + 3 * ndtr(-0.5 * mu) - 2
    return event.rate * math.sqrt(2 * max(float(grown), 0.0))


def _expm1(exponent: float) -> float:
    return math.expm1(exponent) if exponent < 700 else math.inf


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
    return privacy_profiles.vote_width(event, neighbours) ** 2 / 8
