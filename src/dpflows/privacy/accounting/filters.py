"""Gates for runs that stop by themselves: ask before each release, stop when refused.

The cost of a run whose length depends on what it saw is the cost of the longest run
it might have made. Both gates therefore fix that length, or that cost, beforehand.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import rdp
from dpflows.privacy.accounting.calibration import calibrate_steps
from dpflows.privacy.accounting.pricing import epsilon_of
from dpflows.privacy.events import Event, check_at_least
from dpflows.privacy.guarantee import Budget

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
        if self._cost == 0:
            return 0.0
        unused = self._capacity - self._cost
        return min(max(self.budget.epsilon - unused, 0.0), self.budget.epsilon)

    def _cost_of(self, event: Event) -> float:
        curve = rdp.curve_of(event, self.budget.neighbours)
        if curve.failure > 0:
            raise InputError("event must not have a delta of its own; a filter cannot price it")
        return float(event.count * curve.costs[self._index])


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
