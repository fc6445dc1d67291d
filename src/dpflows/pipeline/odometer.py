"""How much of the budget a run has spent by a given step, at no cost worth naming."""

import functools
import math

from dpflows.pipeline.plan import Plan
from dpflows.privacy.accounting import epsilon_of

#: The accountant is asked at this many points of a run; in between, the next one is shown.
KNOTS = 12


class Odometer:
    """An upper bound on the epsilon spent after each step of a plan.

    Guarantee:
        Never shows less than the accountant would: a step is priced as the next of
        a few knots. Reads the plan alone.

    Example:
        >>> from dpflows.privacy.guarantee import Budget
        >>> from dpflows.pipeline.plan import make_plan
        >>> from dpflows.pipeline.training import Settings
        >>> plan = make_plan(Budget(1.0, 1e-5), rows=900, columns=2, settings=Settings(steps=9))
        >>> 0 < Odometer(plan)(1) <= Odometer(plan)(9) <= 1.0
        True
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stride = max(math.ceil(plan.steps / KNOTS), 1)
        self._at_knot = functools.lru_cache(maxsize=None)(self._price)

    def __call__(self, step: int) -> float:
        """The epsilon spent after ``step`` steps, rounded up to the next knot."""
        return self._at_knot(min(math.ceil(step / self._stride) * self._stride, self._plan.steps))

    def _price(self, steps: int) -> float:
        plan = self._plan
        if not plan.is_private:
            return math.inf
        return epsilon_of(
            plan.events_by(steps),
            delta=plan.budget.delta,
            neighbours=plan.budget.neighbours,
            accountant=plan.accountant,
        )
