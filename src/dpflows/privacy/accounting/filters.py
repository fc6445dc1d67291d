"""Gates for runs that stop by themselves: ask before each release, stop when refused.

The cost of a run whose length depends on what it saw is the cost of the longest run
it might have made. Both gates therefore fix that length, or that cost, beforehand.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeVar, final

import numpy as np

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import rdp
from dpflows.privacy.accounting.adaptive import as_epsilon
from dpflows.privacy.accounting.calibration import calibrate_steps
from dpflows.privacy.accounting.gdp import GaussianProfile
from dpflows.privacy.accounting.pricing import choose, epsilon_of
from dpflows.privacy.accounting.zcdp import ZCDPProfile
from dpflows.privacy.events import Event, check_at_least
from dpflows.privacy.guarantee import Budget

T = TypeVar("T")

#: A cost this far over the capacity is a rounding error of sums.
_ROUNDING = 1e-12


@final
class StepFilter:
    """Lets through as many identical steps as the budget allows, at the tight price.

    The number is worked out once; a check is a comparison of two integers.

    Args:
        budget: What the whole run may cost.
        step: One step.
        before: What was already released and shares the budget.
        accountant: Who prices it.

    Guarantee:
        However the caller decides to stop early, all granted steps together cost at
        most ``budget.epsilon``. A run that stopped because of what it saw must claim
        ``limit`` steps; one that stopped for public reasons may claim ``spent()``.

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
        """Whether ``count`` more steps fit; if so they are taken."""
        check_at_least("count", count, 1)
        granted = self.taken + count <= self.limit
        self.taken += count if granted else 0
        return granted

    def spent(self) -> float:
        """What the granted steps and everything before them cost."""
        events = self._events(self.taken) if self.taken else self._before
        return self._price(events)

    def _affordable(self) -> int:
        if not self._budget.is_private:
            raise InputError("epsilon must be finite for a filter; without privacy count steps")
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
    """Lets through any events, each chosen after seeing all earlier results.

    Args:
        budget: What all granted events together may cost.
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
            raise InputError(f"order must be larger for this epsilon and delta, got {order}")
        self._cost = 0.0

    @property
    def order(self) -> float:
        """The Rényi order at which costs are added."""
        return float(rdp.ORDERS[self._index])

    def request(self, event: Event) -> bool:
        """Whether ``event`` still fits; if so it is charged and may be made."""
        cost = self._cost_of(event)
        granted = self._cost + cost <= self._capacity + _ROUNDING
        self._cost += cost if granted else 0.0
        return granted

    def spent(self) -> float:
        """The epsilon that covers everything granted so far."""
        return self._epsilon(self._cost)

    def total(self, events: Sequence[Event]) -> float:
        """The epsilon that covers these events by themselves; nothing is charged.

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
            raise InputError("event must not have a delta of its own; a filter cannot price it")
        return float(event.count * curve.costs[self._index])


def largest_left(accountant: str, budget: Budget, events: Sequence[Event]) -> float:
    """The largest single fit that still fits beside ``events``: its epsilon at the budget's delta.

    Args:
        accountant: ``zcdp``, ``gdp`` or ``rdp-filter``, whose costs of single charges add up.
        budget: What everything together may cost.
        events: What was charged.

    Example:
        >>> round(largest_left("gdp", Budget(1.0, 1e-6), []), 2)
        0.99
    """
    mu = _LEFT[accountant](budget, events)
    return as_epsilon(0.99 * mu, budget.delta) if mu > 1e-5 else 0.0


def _left_of_rho(budget: Budget, events: Sequence[Event]) -> float:
    most = _most(lambda rho: ZCDPProfile(rho).epsilon(budget.delta), budget)
    spent = _profile("zcdp", budget, events, ZCDPProfile).rho
    return math.sqrt(max(2 * (most - spent), 0.0))


def _left_of_mu(budget: Budget, events: Sequence[Event]) -> float:
    most = _most(lambda mu: GaussianProfile(mu).epsilon(budget.delta), budget)
    spent = _profile("gdp", budget, events, GaussianProfile).mu
    return math.sqrt(max(most**2 - spent**2, 0.0))


def _left_at_order(budget: Budget, events: Sequence[Event]) -> float:
    return PrivacyFilter(budget).left_beside(events)


_LEFT: dict[str, Callable[[Budget, Sequence[Event]], float]] = {
    "zcdp": _left_of_rho,
    "gdp": _left_of_mu,
    "rdp-filter": _left_at_order,
}


def _profile(accountant: str, budget: Budget, events: Sequence[Event], kind: type[T]) -> T:
    found = choose(accountant).profile(events, budget.neighbours)
    if not isinstance(found, kind):
        raise TypeError(f"accountant {accountant!r} gave another kind of profile")
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
