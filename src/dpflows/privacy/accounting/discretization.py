"""The grid on which privacy losses are discretised.

The spacing follows from a rough standard deviation and the largest loss of each event. It is
a power of two that only grows when events are added or become costlier, so a coarser (more
pessimistic) grid never makes a costlier composition look cheaper.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

from dpflows.privacy.accounting import rdp, votes
from dpflows.privacy.events import (
    ApproximateEvent,
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Neighbours,
    PureEvent,
    SampledGaussianEvent,
    Sensitivity,
    VoteEvent,
)

_POINTS = 2**16
_DEVIATIONS = 10
_FINEST = 2.0**-40
#: exp() of more would overflow a float.
_LARGEST_EXPONENT = 600.0


@dataclasses.dataclass(frozen=True)
class Spread:
    """A rough standard deviation and the largest value of one event's privacy loss."""

    deviation: float
    reach: float


def grid_for(tallied: Mapping[Event, int], neighbours: Neighbours) -> float:
    """The spacing that covers the composed loss with a fixed number of points."""
    spreads = [(spread_of(event, neighbours), count) for event, count in tallied.items()]
    variance = sum(count * spread.deviation**2 for spread, count in spreads)
    composed = _DEVIATIONS * math.sqrt(variance) + variance / 2
    reach = max([composed, *(spread.reach for spread, _ in spreads), _POINTS * _FINEST])
    return float(2.0 ** math.ceil(math.log2(reach / _POINTS)))


def full_batch(event: Event) -> Event:
    """A sampled Gaussian whose batch is the whole table, as a plain Gaussian."""
    match event:
        case SampledGaussianEvent(rate=1.0, batch_cap=None, noise_multiplier=noise):
            return GaussianEvent(noise=noise, sensitivity=Sensitivity.of_sum(1.0))
        case _:
            return event


def merge_gaussians(tallied: Mapping[Event, int], neighbours: Neighbours) -> dict[Event, int]:
    """All plain Gaussians merged into the one that equals their composition exactly."""
    squares, rest = 0.0, {}
    for event, count in tallied.items():
        plain = full_batch(event)
        if isinstance(plain, GaussianEvent):
            squares += count * (plain.sensitivity.under(neighbours) / plain.noise) ** 2
        else:
            rest[event] = count
    if squares == 0:
        return rest
    mu = Sensitivity.uniformly(math.sqrt(squares))
    return {GaussianEvent(noise=1.0, sensitivity=mu): 1, **rest}


@functools.singledispatch
def spread_of(event: Event, neighbours: Neighbours) -> Spread:
    """The spread of one event's loss; by its Rényi curve for kinds without a rule."""
    # what may fail has no reach of its own: it is mass at infinity
    kept = rdp.Curve(rdp.curve_of(event, neighbours).costs)
    reach = kept.epsilon(math.exp(-50))
    return Spread(reach / _DEVIATIONS, reach)


@spread_of.register(GaussianEvent)
def _(event: GaussianEvent, neighbours: Neighbours) -> Spread:
    mu = event.sensitivity.under(neighbours) / event.noise
    return Spread(mu, _gaussian_reach(mu))


@spread_of.register(LaplaceEvent)
@spread_of.register(DiscreteLaplaceEvent)
def _(event: LaplaceEvent | DiscreteLaplaceEvent, neighbours: Neighbours) -> Spread:
    return _within(event.sensitivity.under(neighbours) / event.scale)


@spread_of.register(PureEvent)
@spread_of.register(ApproximateEvent)
@spread_of.register(BoundedRangeEvent)
def _(event: PureEvent | ApproximateEvent | BoundedRangeEvent, neighbours: Neighbours) -> Spread:
    return _within(event.epsilon.under(neighbours))


@spread_of.register(VoteEvent)
def _(event: VoteEvent, neighbours: Neighbours) -> Spread:
    # No variable deviates by more than half of its range.
    return Spread(votes.width(event, neighbours) / 2, votes.pure_epsilon(event, neighbours))


@spread_of.register(SampledGaussianEvent)
def _(event: SampledGaussianEvent, neighbours: Neighbours) -> Spread:
    doubled = event.sampling == "uniform" or neighbours == "replace-one"
    mu = (2 if doubled else 1) / event.noise_multiplier
    # A batch cut to its cap is priced at twice the distance.
    far = 2 / event.noise_multiplier if event.batch_cap is not None else mu
    deviation = event.rate * math.sqrt(math.expm1(min(mu * mu, _LARGEST_EXPONENT)))
    return Spread(min(mu, deviation), _amplified(_gaussian_reach(far), event.rate))


def _amplified(reach: float, rate: float) -> float:
    """The largest loss after sampling: log(1 + rate (exp(reach) - 1)).

    Losses beyond the range of a float count as unbounded.
    """
    return math.log1p(rate * math.expm1(min(reach, _LARGEST_EXPONENT)))


def _within(epsilon: float) -> Spread:
    return Spread(epsilon, epsilon)


def _gaussian_reach(mu: float) -> float:
    return _DEVIATIONS * mu + mu * mu / 2
