"""Rényi differential privacy: the moments accountant with the current conversion.

Poisson batches use the sampled Gaussian bound, batches without replacement the bound
of Wang, Balle and Kasiviswanathan (2019). Replaced rows, and batches truncated to a cap,
are integrated numerically over their dominating pairs. Costs add up order by order.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence
from typing import Any, final

import dp_accounting
import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as library
from jaxtyping import Float64

from dpflows.privacy.accounting import privacy_profiles
from dpflows.privacy.accounting.privacy_profiles import Accountant, Profile, unpriced
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
    VoteEvent,
    ZCDPEvent,
    tally,
    unit,
)

Orders = Float64[np.ndarray, " orders"]


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log message says more than that an order was left out."""
    return "Excluding this order" not in str(record.msg)


logging.getLogger("absl").addFilter(_is_news)

_ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
ORDERS = library.RdpAccountant().orders.astype(np.float64)


@final
@dataclasses.dataclass(frozen=True)
class Curve(Profile):
    """Rényi costs at ``ORDERS``, and a probability ``failure`` of no guarantee.

    Guarantee:
        Holds outside an event of probability ``failure``, which is taken from delta.
    """

    costs: Orders
    failure: float = 0.0

    def epsilon(self, delta: float) -> float:
        """The best conversion over all orders."""
        left = delta - self.failure
        if left <= 0:
            return math.inf
        return float(library.compute_epsilon(ORDERS, self.costs, left)[0])

    def delta(self, epsilon: float) -> float:
        """The best conversion over all orders, plus the failure probability."""
        return min(1.0, float(library.compute_delta(ORDERS, self.costs, epsilon)[0]) + self.failure)

    def times(self, count: int) -> "Curve":
        """The cost of ``count`` repetitions."""
        return Curve(count * self.costs, -math.expm1(count * math.log1p(-self.failure)))

    def plus(self, other: "Curve") -> "Curve":
        """The sum of both costs."""
        survival = (1 - self.failure) * (1 - other.failure)
        return Curve(self.costs + other.costs, 1 - survival)


FREE = Curve(np.zeros_like(ORDERS))


@final
class RDPAccountant(Accountant):
    """The moments accountant.

    Guarantee:
        A bound, usually 5 to 30% above the tight one; valid for very small delta too.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> event = GaussianEvent(noise=2.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> round(RDPAccountant().profile([event], "zero-out").epsilon(1e-5), 2)
        2.17
    """

    name = "rdp"
    kind = "bound"
    reading = "proven bound, looser"

    def profile(self, events: Sequence[Event], neighbours: Neighbours) -> Profile:
        """The sum of all Rényi curves."""
        return total(events, neighbours)


def total(events: Sequence[Event], neighbours: Neighbours) -> Curve:
    """The Rényi cost of making all ``events``."""
    curve = FREE
    for event, count in tally(events).items():
        curve = curve.plus(curve_of(event, neighbours).times(count))
    return curve


def curve_of(event: Event, neighbours: Neighbours) -> Curve:
    """The Rényi cost of making ``event`` once."""
    return _cached(unit(event), neighbours)


@functools.lru_cache(maxsize=256)
def _cached(event: Event, neighbours: Neighbours) -> Curve:
    return _curve(event, neighbours)


@functools.singledispatch
def _curve(event: Event, neighbours: Neighbours) -> Curve:
    raise unpriced(event, "rdp", neighbours, "use accountant 'pld'")


@_curve.register(GaussianEvent)
def _(event: GaussianEvent, neighbours: Neighbours) -> Curve:
    return Curve(ORDERS * (event.sensitivity.under(neighbours) / event.noise) ** 2 / 2)


@_curve.register(ZCDPEvent)
def _(event: ZCDPEvent, neighbours: Neighbours) -> Curve:
    return Curve(ORDERS * event.rho.under(neighbours))


@_curve.register(LaplaceEvent)
def _(event: LaplaceEvent, neighbours: Neighbours) -> Curve:
    sensitivity = event.sensitivity.under(neighbours)
    if sensitivity == 0:
        return FREE
    return _from_library(dp_accounting.LaplaceDpEvent(event.scale / sensitivity), _ADD_REMOVE)


@_curve.register(DiscreteLaplaceEvent)
def _(event: DiscreteLaplaceEvent, neighbours: Neighbours) -> Curve:
    return _pure(event.sensitivity.under(neighbours) / event.scale)


@_curve.register(PureEvent)
def _(event: PureEvent, neighbours: Neighbours) -> Curve:
    return _pure(event.epsilon.under(neighbours))


@_curve.register(ApproximateEvent)
def _(event: ApproximateEvent, neighbours: Neighbours) -> Curve:
    # Any (epsilon, delta) mechanism imitates one that fails with chance delta and is
    # purely epsilon-private otherwise (Kairouz, Oh and Viswanath 2015).
    return dataclasses.replace(_pure(event.epsilon.under(neighbours)), failure=event.delta)


@_curve.register(BoundedRangeEvent)
def _(event: BoundedRangeEvent, neighbours: Neighbours) -> Curve:
    # Hoeffding's lemma on a loss of width epsilon: epsilon^2 / 8 zCDP (Rogers, Steinke 2021).
    epsilon = event.epsilon.under(neighbours)
    return Curve(np.minimum(ORDERS * epsilon**2 / 8, _pure(epsilon).costs))


@_curve.register(VoteEvent)
def _(event: VoteEvent, neighbours: Neighbours) -> Curve:
    return Curve(privacy_profiles.vote_renyi(event, neighbours, ORDERS))


@_curve.register(SampledGaussianEvent)
def _(event: SampledGaussianEvent, neighbours: Neighbours) -> Curve:
    if event.sampling == "uniform":
        return _uniform(event, neighbours)
    whole = _poisson(event, neighbours)
    chance, rate = privacy_profiles.cut(event)
    return whole if chance == 0 else _mixed(whole, _cut(event, rate), chance)


@_curve.register(SelectionEvent)
def _(event: SelectionEvent, neighbours: Neighbours) -> Curve:
    run = _dearest(event, neighbours)
    shape = math.inf if event.shape is None else event.shape
    # Whether a run fails is decided by coins that ignore the rows. Given that none of the
    # runs failed, their number has the same law with a smaller mean, which costs no more.
    return Curve(_selected(run, event.mean, shape), min(1.0, event.mean * run.failure))


def _dearest(event: SelectionEvent, neighbours: Neighbours) -> Curve:
    """An upper bound of every candidate's curve; a run's candidate is drawn without the rows."""
    curves = [total((*events, *event.run), neighbours) for events in event.candidates or ((),)]
    costs = np.max([curve.costs for curve in curves], axis=0)
    return Curve(costs, max(curve.failure for curve in curves))


def _poisson(event: SampledGaussianEvent, neighbours: Neighbours) -> Curve:
    if neighbours == "replace-one":
        return _replaced(event.rate, 1 / event.noise_multiplier)
    base = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    return _from_library(dp_accounting.PoissonSampledDpEvent(event.rate, base), _ADD_REMOVE)


def _cut(event: SampledGaussianEvent, rate: float) -> Curve:
    """A truncated batch: a removed row makes room for another, so two clipped rows differ."""
    return _replaced(rate, 2 / event.noise_multiplier)


def _mixed(often: Curve, seldom: Curve, chance: float) -> Curve:
    """One of two releases, drawn by a public random bit."""
    above = ORDERS - 1
    likely = _log_rest(chance) + above * often.costs
    return Curve(np.logaddexp(likely, math.log(chance) + above * seldom.costs) / above)


#: Beyond this exponent an order's cost overflows a float, and is called infinite.
_LARGEST_EXPONENT = 600.0
_SPACING = 0.05


@functools.lru_cache(maxsize=256)
def _replaced(rate: float, mu: float) -> Curve:
    """(1 - rate) N(0) + rate N(mu) against its mirror image, by the trapezoidal rule.

    The rule converges faster than any power of the spacing for such smooth integrands;
    terms that integrate to zero are taken off first, so that small costs keep their digits.
    """
    known = ORDERS * (ORDERS - 1) * mu**2 / 2 < _LARGEST_EXPONENT
    # where the chance of N(0) is small, the largest part lies at (2 order - 1) mu
    reach = 12 + 2 * ORDERS[known].max(initial=1.0) * mu
    places = np.arange(-reach, reach, _SPACING * min(1.0, 1 / mu))
    ours, theirs = _log_mixture(places, rate, mu), _log_mixture(places, rate, -mu)
    costs = np.full_like(ORDERS, np.inf)
    with np.errstate(over="ignore"):
        costs[known] = [_renyi(order, ours, theirs, places) for order in ORDERS[known]]
    return Curve(costs)


def _renyi(order: float, ours: Orders, theirs: Orders, places: Orders) -> float:
    """The Rényi divergence of two densities given by their logarithms, rounded up."""
    powers = np.exp(order * ours + (1 - order) * theirs)
    terms = powers - order * np.exp(ours) + (order - 1) * np.exp(theirs)
    excess = max(float(terms.sum()), 0.0) * (places[1] - places[0])
    return (math.log1p(excess) * (1 + 1e-9) + 1e-15) / (order - 1)


def _log_rest(chance: float) -> float:
    return math.log1p(-chance) if chance < 1 else -math.inf


def _log_mixture(places: Orders, rate: float, mu: float) -> Orders:
    base = -(places**2) / 2 - math.log(2 * math.pi) / 2
    return base + np.logaddexp(_log_rest(rate), math.log(rate) + mu * places - mu**2 / 2)


def _uniform(event: SampledGaussianEvent, neighbours: Neighbours) -> Curve:
    if neighbours == "add-remove":
        raise unpriced(event, "rdp", neighbours, "use neighbours 'replace-one'")
    # The library takes the noise in units of the sensitivity and does not double it:
    # batches with and without the row differ by two clipped rows.
    base = dp_accounting.GaussianDpEvent(event.noise_multiplier / 2)
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(event.rows, event.batch_size, base)
    return _from_library(sampled, _REPLACE_ONE)


def _from_library(event: Any, relation: Any) -> Curve:
    accountant = library.RdpAccountant(list(ORDERS), relation)
    return Curve(accountant.compose(event).rdp)


def _pure(epsilon: float) -> Curve:
    """Randomised response, the worst of all epsilon-private mechanisms."""
    if epsilon == 0:
        return FREE
    grow = ORDERS * epsilon - np.logaddexp(0.0, epsilon)
    shrink = (1 - ORDERS) * epsilon - np.logaddexp(0.0, epsilon)
    costs = np.logaddexp(grow, shrink) / (ORDERS - 1)
    return Curve(np.clip(costs, 0.0, epsilon))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _CurveEvent(dp_accounting.DpEvent):
    """A curve computed here, as a leaf inside one of the library's events."""

    curve: Curve


@final
class _CurveAccountant(library.RdpAccountant):
    """The library's accountant, extended to curves computed here."""

    _rdp: Orders

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        if not isinstance(event, _CurveEvent):
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            self._rdp = self._rdp + count * event.curve.costs
        return None


def _selected(run: Curve, mean: float, shape: float) -> Orders:
    event = dp_event.RepeatAndSelectDpEvent(_CurveEvent(run), mean, shape)
    return np.asarray(_CurveAccountant(list(ORDERS), _ADD_REMOVE).compose(event).rdp)
