"""Privacy filters: budgets for charges that are chosen adaptively, from earlier results.

``AdaptiveFilter`` serves ledgers. Every charge after the first is replaced by a dominating
release whose cost adds up whatever the results were, in one of two ways, and all granted
charges must fit one of them: two unit Gaussians at a distance ``mu``, except with
probability ``slack``, whose squared distances add up because Gaussians of any sizes are
increments of one Brownian motion; or a pure epsilon. The proof is in ``docs/ledger.md``.

``StepFilter`` and ``PrivacyFilter`` serve runs that stop by themselves: request each release
before it is made, and stop when refused. The cost of a run whose length depends on results
is that of the longest run it might have made, so both fix that length, or that cost,
beforehand.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, final

import numpy as np
from scipy.optimize import brentq

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import privacy_profiles, rdp
from dpflows.privacy.accounting.gdp import ZCDPProfile
from dpflows.privacy.accounting.pld import Loss, certain, full_batch, losses_of, merge_gaussians
from dpflows.privacy.accounting.privacy_profiles import GaussianProfile
from dpflows.privacy.accounting.registry import calibrate_steps, choose, epsilon_of
from dpflows.privacy.events import (
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Neighbours,
    PureEvent,
    VoteEvent,
    check_at_least,
    tally,
)
from dpflows.privacy.guarantee import Budget

#: Which part of the cap's delta is set aside for the case that only pure charges follow.
PURE_SHARE = 1 / 16
#: Which part of the cap's delta is set aside for charges that are no Gaussians.
SLACK_SHARE = 1 / 8
#: Which part of what is left of it one charge may take.
_SLACK_STEP = 1 / 64
#: Less is no help: the convolution of losses is not more exact.
_LEAST_SLACK = 1e-11
#: A fit on sampled batches costs up to this much more than a Gaussian of the same epsilon.
_MARGIN = 0.01
_POINTS = 4096
_LARGEST_MU = 256.0


class Price(NamedTuple):
    """The cost of one charge in a filter.

    Attributes:
        mu: The distance of two unit Gaussians that dominate the charge.
        slack: The probability with which even they give no guarantee.
    """

    mu: float
    slack: float


@final
@dataclasses.dataclass(frozen=True)
class AdaptiveFilter:
    """Limits the charges that may follow a first charge, whatever the results are.

    Args:
        budget: The budget of all charges together.
        first: The first charge. It is requested before any result is seen, so its exact privacy
        loss is used.

    Guarantee:
        Let a later charge be granted only if, it included, the root of the sum of all
        squared ``mu`` of ``price`` is at most ``mu_cap``, or the sum of all
        ``pure_epsilon`` is at most ``pure_cap``. Then all results together are private
        with ``budget``, however each charge was chosen by the results before it. The caps
        are fixed by the first request.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> query = GaussianEvent(noise=10.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> gate = AdaptiveFilter(Budget(1.0, 1e-6), (query,))
        >>> round(gate.price([query], slack=0.0).mu, 6), round(gate.mu_cap, 3)
        (0.1, 0.212)
        >>> round(gate.epsilon(0.0), 2), round(gate.remaining(0.0), 2), gate.remaining(gate.mu_cap)
        (0.4, 0.88, 0.0)
        >>> round(gate.pure_cap, 2)
        0.55
    """

    budget: Budget
    first: tuple[Event, ...]

    @property
    def slack_cap(self) -> float:
        """The part of the cap's delta available to all later charges together."""
        return SLACK_SHARE * self.budget.delta

    @functools.cached_property
    def mu_cap(self) -> float:
        """The largest Gaussian distance that may follow the first charge; zero if none may."""
        epsilon, largest = self.budget.epsilon, _largest_mu(self.budget)
        return _last(lambda mu: self._delta(mu, epsilon) <= self._gaussian_delta, largest)

    @functools.cached_property
    def pure_cap(self) -> float:
        """The pure epsilon that may follow the first charge if nothing else does."""
        epsilon, delta = self.budget.epsilon, PURE_SHARE * self.budget.delta
        known = epsilon - pure_epsilon(self.first, self.budget.neighbours)
        found = _last(lambda pure: self._pure_delta(pure, epsilon) <= delta, epsilon)
        return max(known, found)

    def price(self, events: Sequence[Event], *, slack: float) -> Price:
        """The cost of a later charge after ``slack`` was used; infinite if it has no finite cost.

        Guarantee:
            Depends only on the charge and on earlier requests, not on results.
        """
        tallied = tuple(merge_gaussians(tally(events), self.budget.neighbours).items())
        plain = _without_slack(tallied, self.budget.neighbours)
        if all(isinstance(event, GaussianEvent) for event, _ in tallied):
            return Price(plain, 0.0)
        sparing = self._with_slack(tallied, slack)
        return Price(plain, 0.0) if plain <= 1.001 * sparing.mu else sparing

    def pure_epsilon(self, events: Sequence[Event]) -> float:
        """The cost of a later charge as a pure epsilon; infinite if it has none."""
        return pure_epsilon(events, self.budget.neighbours)

    def epsilon(self, mu: float = math.inf, pure: float = math.inf) -> float:
        """The epsilon, at the cap's delta, of the first charge and later ones of this size.

        Guarantee:
            A bound if it was decided without looking at results that charging would stop
            here. Whatever the decision was, the cap is a bound.
        """
        if 0 in (mu, pure) or self._alone >= self.budget.epsilon:
            return self._alone
        return max(self._alone, min(self._epsilon_by_mu(mu), self._epsilon_by_pure(pure)))

    def remaining(self, mu: float) -> float:
        """The epsilon, at the cap's delta, that remains for one further fit.

        It is the epsilon of 0.99 of the remaining Gaussian distance, so that a fit with sampled
        batches, which is not exactly Gaussian, is granted too.
        """
        left = math.sqrt(max(self.mu_cap**2 - mu**2, 0.0))
        return as_epsilon((1 - _MARGIN) * left, self.budget.delta)

    @functools.cached_property
    def _alone(self) -> float:
        budget = self.budget
        return epsilon_of(self.first, delta=budget.delta, neighbours=budget.neighbours)

    def _epsilon_by_mu(self, mu: float) -> float:
        if mu > self.mu_cap:
            return math.inf
        return self._root(lambda epsilon: self._delta(mu, epsilon), self._gaussian_delta)

    def _epsilon_by_pure(self, pure: float) -> float:
        if pure > self.pure_cap:
            return math.inf
        known = pure + pure_epsilon(self.first, self.budget.neighbours)
        delta = PURE_SHARE * self.budget.delta
        return min(known, self._root(lambda epsilon: self._pure_delta(pure, epsilon), delta))

    def _root(self, delta_at: Callable[[float], float], delta: float) -> float:
        """The smallest epsilon up to the cap's at which delta is small enough."""
        most = self.budget.epsilon

        def excess(epsilon: float) -> float:
            return math.log(max(delta_at(epsilon), 1e-300) / delta)

        if excess(0.0) <= 0:
            return 0.0
        if excess(most) >= 0:
            return most
        return min(most, float(brentq(excess, 0.0, most, xtol=1e-9)) + 2e-9)

    @property
    def _gaussian_delta(self) -> float:
        return (1 - PURE_SHARE) * self.budget.delta

    def _delta(self, mu: float, epsilon: float) -> float:
        """The delta of the first charge, a Gaussian and all of the slack."""
        beside = _delta_beside(self._first_tally, self.budget.neighbours, mu, epsilon)
        return self.slack_cap + (1 - self.slack_cap) * beside

    def _pure_delta(self, pure: float, epsilon: float) -> float:
        """The delta of the first charge beside a loss of plus or minus ``pure``."""
        up, neighbours = 1 / (1 + math.exp(-pure)), self.budget.neighbours
        worse, better = (
            _delta_beside(self._first_tally, neighbours, 0.0, left)
            for left in (epsilon - pure, epsilon + pure)
        )
        return up * worse + (1 - up) * better

    @functools.cached_property
    def _first_tally(self) -> "Tallied":
        return tuple(merge_gaussians(tally(self.first), self.budget.neighbours).items())

    def _with_slack(self, tallied: "Tallied", used: float) -> Price:
        own = max(loss.failure for loss in losses_of(tallied, self.budget.neighbours))
        left = 1 - (1 - self.slack_cap) / (1 - used) - own
        if left <= 2 * _LEAST_SLACK:
            return Price(math.inf, 0.0)
        # A power of two, so that equal charges have equal prices for a while.
        share = 2.0 ** math.floor(math.log2(max(_SLACK_STEP * left, _LEAST_SLACK)))
        return Price(_dominating_mu(tallied, self.budget.neighbours, own + share), own + share)


Tallied = tuple[tuple[Event, int], ...]


def pure_epsilon(events: Sequence[Event], neighbours: Neighbours) -> float:
    """The sum of the pure epsilons of all events; infinite if one has none.

    Example:
        >>> from dpflows.privacy.events import Sensitivity
        >>> pure_epsilon([PureEvent(epsilon=Sensitivity.uniformly(0.25), count=2)], "zero-out")
        0.5
    """
    return sum(event.count * _known_profile(event, neighbours)[1] for event in events)


def added(mu: float, slack: float, price: Price) -> tuple[float, float]:
    """The total ``mu`` and ``slack`` after one more charge.

    Example:
        >>> added(0.3, 0.0, Price(0.4, 0.0))
        (0.5, 0.0)
    """
    return math.hypot(mu, price.mu), 1 - (1 - slack) * (1 - price.slack)


def as_epsilon(mu: float, delta: float) -> float:
    """The epsilon at ``delta`` of two Gaussians at distance ``mu``.

    Example:
        >>> round(as_epsilon(1.0, 1e-5), 3)
        4.377
    """
    return GaussianProfile(mu).epsilon(delta) if mu > 0 else 0.0


def _largest_mu(budget: Budget) -> float:
    return _last(lambda mu: GaussianProfile(mu).delta(budget.epsilon) <= budget.delta, _LARGEST_MU)


def _last(holds: Callable[[float], bool], most: float) -> float:
    """The largest number up to ``most`` that meets a condition, rounded down; else zero."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, most
    while high - low > 1e-8 * most:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@functools.lru_cache(maxsize=4096)
def _delta_beside(tallied: Tallied, neighbours: Neighbours, mu: float, epsilon: float) -> float:
    """The delta at ``epsilon`` of the composition of a charge and a Gaussian.

    The mean, over the loss of the charge, of the Gaussian's delta at the rest of ``epsilon``; for
    both orders of the neighbours.
    """
    if all(isinstance(event, GaussianEvent) for event, _ in tallied):
        return _gaussian_delta(math.hypot(mu, _without_slack(tallied, neighbours)), epsilon)
    found = (_mean_delta(loss, mu, epsilon) for loss in _coarse_losses(tallied, neighbours))
    return float(certain(np.array([max(found)]))[0])


def _gaussian_delta(mu: float, epsilon: float) -> float:
    return GaussianProfile(mu).delta(epsilon) if mu else max(0.0, -math.expm1(epsilon))


@functools.lru_cache(maxsize=64)
def _coarse_losses(tallied: Tallied, neighbours: Neighbours) -> tuple[Loss, ...]:
    return tuple(map(_coarse, losses_of(tallied, neighbours)))


def _coarse(loss: Loss) -> Loss:
    """The loss merged onto fewer points.

    Guarantee:
        Dominates: each loss is split between the two points around it such that its
        chances under both neighbours stay the same, so merging the points gives it back.
    """
    if len(loss.values) <= _POINTS:
        return loss
    points = np.linspace(loss.values[0], loss.values[-1], _POINTS)
    right = np.clip(np.searchsorted(points, loss.values), 1, _POINTS - 1)
    gap = points[right] - points[right - 1]
    below = np.clip(np.expm1(points[right] - loss.values) / np.expm1(gap), 0.0, 1.0)
    chances = np.bincount(right, loss.chances * (1 - below), _POINTS)
    chances += np.bincount(right - 1, loss.chances * below, _POINTS)
    return Loss(points, chances, loss.failure)


def _mean_delta(loss: Loss, mu: float, epsilon: float) -> float:
    left = epsilon - loss.values
    kept = -np.expm1(np.minimum(left, 0.0)) if mu == 0 else privacy_profiles.gaussian(left, mu)
    return loss.failure + float((loss.chances * kept).sum())


@functools.lru_cache(maxsize=256)
def _dominating_mu(tallied: Tallied, neighbours: Neighbours, slack: float) -> float:
    """The smallest distance whose Gaussians dominate a charge, up to a failure probability."""
    return max(_smallest_mu(*_profile(loss), slack) for loss in losses_of(tallied, neighbours))


def _profile(loss: Loss) -> tuple[privacy_profiles.Losses, privacy_profiles.Losses]:
    """Delta at zero and at every positive loss, which bounds delta between them."""
    epsilon = np.concatenate([[0.0], loss.values[loss.values > 0]])
    place = np.searchsorted(loss.values, epsilon, side="right")
    upper = np.append(np.cumsum(loss.chances[::-1])[::-1], 0.0)[place]
    weights = loss.chances * np.exp(-np.maximum(loss.values, -privacy_profiles.LARGEST))
    lower = np.append(np.cumsum(weights[::-1])[::-1], 0.0)[place]
    delta = loss.failure + np.maximum(upper - np.exp(epsilon) * lower, 0.0)
    return epsilon, certain(delta)


def _smallest_mu(
    epsilon: privacy_profiles.Losses, delta: privacy_profiles.Losses, slack: float
) -> float:
    """The smallest mu with delta(e) <= slack + (1 - slack) delta_mu(e) for every e >= 0.

    Guarantee:
        Holds between the given points too: there delta is at most what it is at the
        point before, and the Gaussian's at least what it is at the point after. Negative
        e are the positive ones of the opposite order of the neighbours.
    """
    above = int(np.count_nonzero(delta > slack))
    if above == 0:
        return 0.0
    if above == len(delta):
        return math.inf
    # Delta falls, so these are the first ones.
    at, need = epsilon[1 : above + 1], (delta[:above] - slack) / (1 - slack)
    few = np.unique(np.linspace(0, above - 1, 512).astype(int))
    mu = _least(lambda mu: _covers(mu, at[few], need[few]))
    step = 1e-5
    while mu < math.inf and not _covers(mu, at, need):
        mu, step = mu * (1 + step), 2 * step
    return mu


def _covers(mu: float, epsilon: privacy_profiles.Losses, delta: privacy_profiles.Losses) -> bool:
    return bool(np.all(delta <= privacy_profiles.gaussian(epsilon, mu)))


def _least(holds: Callable[[float], bool]) -> float:
    """The smallest positive number for which a condition holds, rounded up; or infinity."""
    low, high = 0.0, _LARGEST_MU
    if not holds(high):
        return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _without_slack(tallied: Tallied, neighbours: Neighbours) -> float:
    """The distances of single events, added up; infinite if one has none."""
    return math.sqrt(sum(n * _unit_mu(full_batch(event), neighbours) ** 2 for event, n in tallied))


@functools.lru_cache(maxsize=256)
def _unit_mu(event: Event, neighbours: Neighbours) -> float:
    if isinstance(event, GaussianEvent):
        return event.sensitivity.under(neighbours) / event.noise
    profile, reach = _known_profile(event, neighbours)
    if reach == 0:
        return 0.0
    if not math.isfinite(reach):
        return math.inf
    epsilon = np.linspace(0.0, reach, _POINTS)
    delta = np.append(profile(epsilon[:-1]) * (1 + 1e-9), 0.0)
    return _smallest_mu(epsilon, delta, 0.0)


@functools.singledispatch
def _known_profile(
    event: Event, neighbours: Neighbours
) -> tuple[privacy_profiles.HockeyStick, float]:
    """Delta as a function of epsilon where it ends at a finite epsilon; else no end."""
    return np.ones_like, math.inf


@_known_profile.register(PureEvent)
def _(event: PureEvent, neighbours: Neighbours) -> tuple[privacy_profiles.HockeyStick, float]:
    return _pure(event.epsilon.under(neighbours))


@_known_profile.register(LaplaceEvent)
def _(event: LaplaceEvent, neighbours: Neighbours) -> tuple[privacy_profiles.HockeyStick, float]:
    return _pure(event.sensitivity.under(neighbours) / event.scale)


@_known_profile.register(DiscreteLaplaceEvent)
def _(
    event: DiscreteLaplaceEvent, neighbours: Neighbours
) -> tuple[privacy_profiles.HockeyStick, float]:
    return _pure(math.ceil(event.sensitivity.under(neighbours)) / event.scale)


@_known_profile.register(BoundedRangeEvent)
def _(
    event: BoundedRangeEvent, neighbours: Neighbours
) -> tuple[privacy_profiles.HockeyStick, float]:
    width = event.epsilon.under(neighbours)
    return privacy_profiles.bounded_range(width) if width else np.zeros_like, width


@_known_profile.register(VoteEvent)
def _(event: VoteEvent, neighbours: Neighbours) -> tuple[privacy_profiles.HockeyStick, float]:
    return privacy_profiles.vote_profile(event, neighbours), privacy_profiles.vote_epsilon(
        event, neighbours
    )


def _pure(epsilon: float) -> tuple[privacy_profiles.HockeyStick, float]:
    return privacy_profiles.randomised_response(epsilon, 0.0), epsilon


T = TypeVar("T")

#: A cost this far over the capacity is a rounding error of sums.
_ROUNDING = 1e-12


@final
class StepFilter:
    """Grants as many identical steps as the budget allows, with tight accounting.

    The number is computed once; a check is a comparison of two integers.

    Args:
        budget: The budget of the whole run.
        step: One step.
        before: The events that were already released within the same budget.
        accountant: The accountant's name.

    Guarantee:
        However the caller decides to stop early, all granted steps together cost at most
        ``budget.epsilon``. A run that stopped because of its results must claim ``limit`` steps;
        one that stopped for public reasons may claim ``spent()``.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> step = GaussianEvent(noise=20.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> gate = StepFilter(Budget(1.0, 1e-5), step, accountant="gdp")
        >>> while gate.request():
        ...     pass  # one step of training
        >>> gate.taken, gate.spent() <= 1.0
        (28, True)
    """

    def __init__(
        self,
        budget: Budget,
        step: Event,
        *,
        before: Sequence[Event] = (),
        accountant: str = "pld",
    ) -> None:
        self._budget, self._step = budget, dataclasses.replace(step, count=1)
        self._before, self._accountant = tuple(before), accountant
        self.limit = self._affordable()
        self.taken = 0

    def request(self, count: int = 1) -> bool:
        """Whether ``count`` more steps are within the budget; if so they are counted."""
        check_at_least("count", count, 1)
        granted = self.taken + count <= self.limit
        self.taken += count if granted else 0
        return granted

    def spent(self) -> float:
        """The epsilon of the granted steps and everything before them."""
        events = self._events(self.taken) if self.taken else self._before
        return self._price(events)

    def _affordable(self) -> int:
        if not self._budget.is_private:
            raise InputError(
                "epsilon must be finite for a filter; without privacy set the number "
                "of steps instead"
            )
        try:
            return calibrate_steps(self._budget, self._events, accountant=self._accountant)
        except BudgetError:
            return 0

    def _events(self, steps: int) -> tuple[Event, ...]:
        return (*self._before, dataclasses.replace(self._step, count=steps))

    def _price(self, events: Sequence[Event]) -> float:
        budget = self._budget
        return epsilon_of(
            events, delta=budget.delta, neighbours=budget.neighbours, accountant=self._accountant
        )


@final
class PrivacyFilter:
    """Grants any events, each chosen after seeing all earlier results.

    Args:
        budget: The budget of all granted events together.
        order: The Rényi order at which costs are added; by default the one that suits
            Gaussian noise best under this budget; the largest orders suit pure events.
            It is fixed before the first event.

    Guarantee:
        Rényi costs at one fixed order add up even when events are chosen adaptively
        (Feldman and Zrnic 2021), so all granted events cost at most
        ``budget.epsilon`` at ``budget.delta``. A refusal depends on public numbers only.

    Example:
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> gate = PrivacyFilter(Budget(1.0, 1e-6))
        >>> query = GaussianEvent(noise=20.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> sum(gate.request(query) for _ in range(100))
        19
        >>> gate.spent() <= 1.0
        True
    """

    def __init__(self, budget: Budget, *, order: float | None = None) -> None:
        if not budget.is_private:
            raise InputError("epsilon must be finite for a filter")
        self.budget = budget
        self._index = _best_order(budget) if order is None else _index_of(order)
        self._capacity = float(_capacities(budget)[self._index])
        if self._capacity <= 0:
            raise InputError(
                f"order is too small for this epsilon and delta; use a larger one, got {order}"
            )
        self._cost = 0.0

    @property
    def order(self) -> float:
        """The Rényi order at which costs are added."""
        return float(rdp.ORDERS[self._index])

    def request(self, event: Event) -> bool:
        """Whether ``event`` is within the budget; if so it is charged and may be made."""
        cost = self._cost_of(event)
        granted = self._cost + cost <= self._capacity + _ROUNDING
        self._cost += cost if granted else 0.0
        return granted

    def spent(self) -> float:
        """The epsilon of everything granted so far."""
        return self._epsilon(self._cost)

    def total(self, events: Sequence[Event]) -> float:
        """The epsilon of these events alone; nothing is charged.

        Guarantee:
            At most ``budget.epsilon`` exactly if all of them together would be granted.
        """
        return self._epsilon(sum(self._cost_of(event) for event in events))

    def left_beside(self, events: Sequence[Event]) -> float:
        """The distance of the largest Gaussian that would be granted beside these events."""
        left = self._capacity - sum(self._cost_of(event) for event in events)
        return math.sqrt(max(2 * left / self.order, 0.0))

    def _epsilon(self, cost: float) -> float:
        if cost == 0:
            return 0.0
        over = cost - self._capacity
        return max(self.budget.epsilon + (0.0 if 0 < over <= _ROUNDING else over), 0.0)

    def _cost_of(self, event: Event) -> float:
        curve = rdp.curve_of(event, self.budget.neighbours)
        if curve.failure > 0:
            raise InputError("event must not have its own delta; this filter does not support it")
        return float(event.count * curve.costs[self._index])


def largest_left(accountant: str, budget: Budget, events: Sequence[Event]) -> float:
    """The epsilon, at the budget's delta, that remains for one further fit after ``events``.

    Args:
        accountant: ``zcdp``, ``gdp`` or ``rdp-filter``, whose costs add up over charges.
        budget: The budget of everything together.
        events: What was charged.

    Example:
        >>> round(largest_left("gdp", Budget(1.0, 1e-6), []), 2)
        0.99
    """
    mu = _LEFT[accountant](budget, events)
    return as_epsilon(0.99 * mu, budget.delta) if mu > 1e-5 else 0.0


def _left_of_rho(budget: Budget, events: Sequence[Event]) -> float:
    most = _most(lambda rho: ZCDPProfile(rho).epsilon(budget.delta), budget)
    spent = _losses_profile("zcdp", budget, events, ZCDPProfile).rho
    return math.sqrt(max(2 * (most - spent), 0.0))


def _left_of_mu(budget: Budget, events: Sequence[Event]) -> float:
    most = _most(lambda mu: GaussianProfile(mu).epsilon(budget.delta), budget)
    spent = _losses_profile("gdp", budget, events, GaussianProfile).mu
    return math.sqrt(max(most**2 - spent**2, 0.0))


def _left_at_order(budget: Budget, events: Sequence[Event]) -> float:
    return PrivacyFilter(budget).left_beside(events)


_LEFT: dict[str, Callable[[Budget, Sequence[Event]], float]] = {
    "zcdp": _left_of_rho,
    "gdp": _left_of_mu,
    "rdp-filter": _left_at_order,
}


def _losses_profile(accountant: str, budget: Budget, events: Sequence[Event], kind: type[T]) -> T:
    found = choose(accountant).profile(events, budget.neighbours)
    if not isinstance(found, kind):
        raise TypeError(f"accountant {accountant!r} returned an unexpected kind of profile")
    return found


def _most(epsilon: Callable[[float], float], budget: Budget) -> float:
    """The largest cost whose epsilon is within the budget."""
    low, high = 0.0, 1.0
    while epsilon(high) <= budget.epsilon:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle) <= budget.epsilon else (low, middle)
    return low


def _capacities(budget: Budget) -> rdp.Orders:
    """The Rényi cost at each order that converts to exactly the budget."""
    orders = rdp.ORDERS
    overhead = np.log1p(-1 / orders) - (math.log(budget.delta) + np.log(orders)) / (orders - 1)
    return budget.epsilon - overhead


def _best_order(budget: Budget) -> int:
    return int(np.argmax(_capacities(budget) / rdp.ORDERS))


def _index_of(order: float) -> int:
    matches = np.flatnonzero(np.isclose(rdp.ORDERS, order))
    if len(matches) == 0:
        raise InputError(f"order must be one of the accountant's Rényi orders, got {order}")
    return int(matches[0])
