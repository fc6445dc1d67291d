"""Privacy loss distributions: the default accountant, tight and with proven bounds.

Each event becomes the discretised privacy loss of a dominating pair, rounded
pessimistically, and the losses are convolved. The neighbour relation is resolved before the
library is called, by the sensitivity that each event states, so that no factor is applied
twice.

The spacing of the grid follows from a rough standard deviation and the largest loss of each event.
It is a power of two that only grows when events are added or become costlier, so a coarser (more
pessimistic) grid never makes a costlier composition look cheaper.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library

from dpflows.errors import InputError
from dpflows.privacy.accounting import privacy_profiles, rdp
from dpflows.privacy.accounting.privacy_profiles import Accountant, LowerOf, Profile, unpriced
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
    SelectionEvent,
    Sensitivity,
    VoteEvent,
    ZCDPEvent,
    tally,
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
    return Spread(
        privacy_profiles.vote_width(event, neighbours) / 2,
        privacy_profiles.vote_epsilon(event, neighbours),
    )


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


#: Below this the rounding errors of the convolution are no longer negligible.
SMALLEST_DELTA = 1e-11
#: What those errors are allowed to be, and are charged as: absolute and relative.
_SLACK, _RELATIVE_SLACK = 1e-12, 1e-6
#: How many points describe the loss of an event known by its Rényi curve alone.
_CURVE_POINTS = 400


class Loss(NamedTuple):
    """A composed privacy loss for one order of the neighbours.

    Attributes:
        values: The losses, ascending.
        chances: Probability of each under the first of the two neighbours, rounded pessimistically.
        failure: Probability of an infinite loss.
    """

    values: privacy_profiles.Losses
    chances: privacy_profiles.Losses
    failure: float

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at ``epsilon``."""
        above = int(np.searchsorted(self.values, epsilon, side="right"))
        # a dot product would wake the threads of a library for linear algebra, which costs more
        beyond = self.chances[above:] * -np.expm1(epsilon - self.values[above:])
        return float(beyond.sum()) + self.failure

    def epsilon(self, delta: float) -> float:
        """The least epsilon, not below zero, whose divergence is at most ``delta``.

        Between two losses the divergence is ``mass - exp(epsilon) * weight``, where both sums go
        over the larger losses.
        """
        if self.failure > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        places = range(len(self.values))
        at = bisect.bisect_left(
            places, True, key=lambda i: self.delta(float(self.values[i])) <= delta
        )
        mass = float(np.sum(self.chances[at:])) + self.failure
        weight = float((self.chances[at:] * np.exp(self.values[at] - self.values[at:])).sum())
        return max(float(self.values[at]) + math.log((mass - delta) / weight), 0.0)


@final
@dataclasses.dataclass(frozen=True)
class _LossProfile(Profile):
    losses: tuple[Loss, ...]

    def epsilon(self, delta: float) -> float:
        if delta < SMALLEST_DELTA:
            raise InputError(
                f"delta must be at least {SMALLEST_DELTA} for accountant 'pld', got {delta}; "
                "use accountant 'rdp' below that"
            )
        surely = delta * (1 - _RELATIVE_SLACK) - _SLACK
        return max(loss.epsilon(surely) for loss in self.losses)

    def delta(self, epsilon: float) -> float:
        computed = max(loss.delta(epsilon) for loss in self.losses)
        return float(certain(np.array([computed]))[0])


def certain(delta: privacy_profiles.Losses) -> privacy_profiles.Losses:
    """Computed deltas plus the numerical error of the convolution.

    Example:
        >>> bool(certain(np.array([1e-6]))[0] > 1e-6)
        True
    """
    return np.minimum(1.0, delta * (1 + _RELATIVE_SLACK) + _SLACK)


@functools.lru_cache(maxsize=64)
def losses_of(tallied: tuple[tuple[Event, int], ...], neighbours: Neighbours) -> tuple[Loss, ...]:
    """The composed loss of tallied events in each order of the neighbours.

    Guarantee:
        Pessimistic as for ``PLDAccountant``, up to the error that ``certain`` adds.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> [loss] = losses_of(((event, 1),), "zero-out")
        >>> bool(abs(loss.chances.sum() - 1) < 1e-6)
        True
    """
    composed = _compose(tallied, neighbours)
    # The library has no names for these; it gives deltas one by one, too slowly.
    both = [composed._pmf_remove, composed._pmf_add]
    return tuple(map(_seen, both[:1] if composed._symmetric else both))


def _seen(pmf: Any) -> Loss:
    # filling up the gaps of a few far losses would take memory and time without bound
    if isinstance(pmf, pld_pmf.SparsePLDPmf):
        places = np.array(sorted(pmf._loss_probs), dtype=np.int64)
        chances = np.array([pmf._loss_probs[place] for place in places.tolist()])
    else:
        places = pmf._lower_loss + np.arange(len(pmf._probs))
        chances = np.asarray(pmf._probs, dtype=np.float64)
    likely = chances > 0
    values = places * float(pmf._discretization)
    return Loss(values[likely], chances[likely], float(pmf._infinity_mass))


@final
class PLDAccountant(Accountant):
    """Composition of privacy loss distributions.

    Guarantee:
        A bound: pairs dominate, rounding is pessimistic, truncated mass is added to delta.
        Numerical error of the convolution stays below ``SMALLEST_DELTA``. Where the worst
        pair differs from delta to delta, the Rényi bound may be lower and then counts.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> round(PLDAccountant().profile([event], "zero-out").epsilon(1e-5), 2)
        1.99
    """

    name = "pld"
    kind = "bound"
    reading = "proven bound; report this"

    def profile(self, events: Sequence[Event], neighbours: Neighbours) -> Profile:
        """The convolution of all losses on one grid."""
        tallied = merge_gaussians(tally(events), neighbours)
        composed = _LossProfile(losses_of(tuple(tallied.items()), neighbours))
        if not any(isinstance(event, _ENVELOPES) for event in tallied):
            return composed
        return _with_renyi(composed, events, neighbours)


# Events with a profile that no single pair of neighbours attains.
_ENVELOPES = (BoundedRangeEvent, SelectionEvent, VoteEvent)


def _with_renyi(composed: Profile, events: Sequence[Event], neighbours: Neighbours) -> Profile:
    try:
        return LowerOf(composed, rdp.total(events, neighbours))
    except InputError:
        return composed


@functools.lru_cache(maxsize=64)
def _compose(tallied: tuple[tuple[Event, int], ...], neighbours: Neighbours) -> Any:
    grid = grid_for(dict(tallied), neighbours)
    total = library.identity(grid)
    for event, count in tallied:
        total = total.compose(_repeated(event, count, neighbours, grid))
    return total


@functools.lru_cache(maxsize=64)
def _repeated(event: Event, count: int, neighbours: Neighbours, grid: float) -> Any:
    loss = _unit_loss(event, neighbours, grid)
    if count == 1:
        return loss
    # Vanishing probabilities overflow inside the library's search for where the tails
    # end; it skips what is not finite and keeps more of them.
    with np.errstate(all="ignore"):
        return loss.self_compose(count)


@functools.lru_cache(maxsize=64)
def _unit_loss(event: Event, neighbours: Neighbours, grid: float) -> Any:
    return _loss(event, neighbours, grid)


@functools.singledispatch
def _loss(event: Event, neighbours: Neighbours, grid: float) -> Any:
    raise unpriced(event, "pld", neighbours, "use accountant 'rdp'")


@_loss.register(GaussianEvent)
def _(event: GaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    mu = event.sensitivity.under(neighbours) / event.noise
    if mu == 0:
        return library.identity(grid)
    reach = spread_of(event, neighbours).reach
    return _pair(_pmf(lambda epsilon: privacy_profiles.gaussian(epsilon, mu), reach, grid))


@_loss.register(LaplaceEvent)
def _(event: LaplaceEvent, neighbours: Neighbours, grid: float) -> Any:
    sensitivity = event.sensitivity.under(neighbours)
    if sensitivity == 0:
        return library.identity(grid)
    scale = event.scale / sensitivity
    return library.from_laplace_mechanism(scale, value_discretization_interval=grid)


@_loss.register(DiscreteLaplaceEvent)
def _(event: DiscreteLaplaceEvent, neighbours: Neighbours, grid: float) -> Any:
    sensitivity = math.ceil(event.sensitivity.under(neighbours))
    if sensitivity == 0:
        return library.identity(grid)
    return library.from_discrete_laplace_mechanism(
        1 / event.scale, sensitivity=sensitivity, value_discretization_interval=grid
    )


@_loss.register(PureEvent)
def _(event: PureEvent, neighbours: Neighbours, grid: float) -> Any:
    return _from_parameters(event.epsilon.under(neighbours), 0.0, grid)


@_loss.register(ApproximateEvent)
def _(event: ApproximateEvent, neighbours: Neighbours, grid: float) -> Any:
    return _from_parameters(event.epsilon.under(neighbours), event.delta, grid)


@_loss.register(BoundedRangeEvent)
def _(event: BoundedRangeEvent, neighbours: Neighbours, grid: float) -> Any:
    width = event.epsilon.under(neighbours)
    if width == 0:
        return library.identity(grid)
    return _pair(_pmf(privacy_profiles.bounded_range(width), width, grid))


@_loss.register(VoteEvent)
def _(event: VoteEvent, neighbours: Neighbours, grid: float) -> Any:
    reach = privacy_profiles.vote_epsilon(event, neighbours)
    if reach == 0:
        return library.identity(grid)
    return _pair(_pmf(privacy_profiles.vote_profile(event, neighbours), reach, grid))


@_loss.register(ZCDPEvent)
@_loss.register(SelectionEvent)
def _(event: ZCDPEvent | SelectionEvent, neighbours: Neighbours, grid: float) -> Any:
    curve = rdp.curve_of(event, neighbours)
    reach = spread_of(event, neighbours).reach
    if not math.isfinite(reach):
        raise unpriced(event, "pld", neighbours, "its Rényi cost is not finite")
    return _from_curve(curve, reach, grid)


@_loss.register(SampledGaussianEvent)
def _(event: SampledGaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    if event.sampling == "uniform":
        return _uniform(event, neighbours, grid)
    if event.batch_cap is not None:
        return _capped(event, neighbours, grid)
    return _poisson(event, neighbours, grid)


def _poisson(event: SampledGaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    rate, mu, reach = event.rate, 1 / event.noise_multiplier, spread_of(event, neighbours).reach
    if neighbours == "replace-one":
        return _pair(_pmf(privacy_profiles.poisson_replaced(rate, mu), reach, grid))
    return _pair(
        _pmf(privacy_profiles.poisson_present(rate, mu), reach, grid),
        _pmf(privacy_profiles.poisson_absent(rate, mu), reach, grid),
    )


def _capped(event: SampledGaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    """Poisson batches truncated to a cap: with some probability a batch of fixed size.

    Where a batch is truncated, a row that is removed makes room for another one, so its pair is
    that of a replaced row at twice the distance (Ganesh et al. 2025).
    """
    whole = _poisson(event, neighbours, grid)
    chance, rate = privacy_profiles.cut(event)
    if chance == 0:
        return whole
    reach = spread_of(event, neighbours).reach
    cut = _pair(
        _pmf(privacy_profiles.poisson_replaced(rate, 2 / event.noise_multiplier), reach, grid)
    )
    return cut.compute_mixture(whole, chance)


def _uniform(event: SampledGaussianEvent, neighbours: Neighbours, grid: float) -> Any:
    if neighbours == "add-remove":
        raise unpriced(event, "pld", neighbours, _NO_ADD_REMOVE)
    # Also for zero-out: a batch without the row holds some other row in its place, so
    # the two batches differ by two clipped rows even where one table row is null.
    profile = privacy_profiles.without_replacement(event.rate, 2 / event.noise_multiplier)
    return _pair(_pmf(profile, spread_of(event, neighbours).reach, grid))


_NO_ADD_REMOVE = (
    "batches of fixed size change their rate when a row is added; use neighbours "
    "'replace-one' or sampling 'poisson'"
)


def _from_parameters(epsilon: float, delta: float, grid: float) -> Any:
    return _pair(_pmf(privacy_profiles.randomised_response(epsilon, delta), epsilon, grid))


def _from_curve(curve: rdp.Curve, reach: float, grid: float) -> Any:
    """The loss of a pair that dominates everything with this Rényi curve."""
    stride = math.ceil(reach / grid / _CURVE_POINTS)
    multiples = stride * np.arange(-_CURVE_POINTS, _CURVE_POINTS + 1)
    epsilon = multiples * grid
    half = epsilon[_CURVE_POINTS:]
    known = np.array([curve.delta(float(value)) for value in half])
    both = privacy_profiles.symmetrised(lambda losses: np.interp(losses, half, known))
    delta = privacy_profiles.convex_in_odds(epsilon, np.minimum.accumulate(both(epsilon)))
    return _pair(pld_pmf.create_pmf_pessimistic_connect_dots(grid, multiples, delta))


def _pmf(profile: privacy_profiles.HockeyStick, reach: float, grid: float) -> Any:
    return _connect_the_dots(profile(_losses(reach, grid)), grid)


def _losses(reach: float, grid: float) -> privacy_profiles.Losses:
    steps = math.ceil(reach / grid)
    return np.arange(-steps, steps + 1) * grid


def _connect_the_dots(delta: privacy_profiles.Losses, grid: float) -> Any:
    steps = len(delta) // 2
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        grid, -steps, steps, np.clip(delta, 0.0, 1.0)
    )


def _pair(present: Any, absent: Any = None) -> Any:
    return library.PrivacyLossDistribution(present, absent)
