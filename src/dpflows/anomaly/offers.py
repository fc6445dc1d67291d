"""What an ensemble offers before it reads a row: how many answers, at what cost."""

import dataclasses
import functools
from typing import Any, final

from dpflows.anomaly.votes import Mechanism, Terms, mechanism_for
from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import StepFilter
from dpflows.privacy.accounting.registry import Spending
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget

#: Finer prices buy millions of answers, which take an accountant minutes to add up.
_FINEST = 2000


@final
@dataclasses.dataclass(frozen=True)
class Offer(Spending):
    """As many charges as a budget has room for.

    Attributes:
        budget: What all answers together may cost.
        accountant: Who prices them.
        mechanism: How votes become answers.
        terms: What is asked of the mechanism.

    Guarantee:
        ``guarantee`` prices all charges that will ever be granted, whether or not they
        are used.

    Example:
        >>> offer = Offer(Budget(1.0, 1e-6), "pld", "geometric", Terms(10, 0.1, "zero-out", 1))
        >>> offer.charges
        10
    """

    budget: Budget
    accountant: str
    mechanism: str
    terms: Terms

    def __post_init__(self) -> None:
        if not self.budget.is_private:
            raise InputError(
                "total_budget.epsilon must be finite: members are fitted without noise, so what "
                "protects people is that answers end"
            )
        if self.terms.epsilon < self.budget.epsilon / _FINEST:
            raise InputError(
                f"epsilon_per_query must be at least 1/{_FINEST} of total_budget.epsilon, got "
                f"{self.terms.epsilon}; finer answers would be coin tosses"
            )
        if self.charges == 0:
            raise BudgetError(
                f"epsilon_per_query {self.terms.epsilon} is more than total_budget allows for a "
                "single charge; lower it, or raise total_budget"
            )

    def voting(self) -> Mechanism:
        """The mechanism, ready to be asked."""
        return mechanism_for(self.mechanism, self.terms)

    @property
    def price(self) -> Event:
        """One charge."""
        return self.voting().price

    @functools.cached_property
    def charges(self) -> int:
        """How many charges the budget has room for."""
        return StepFilter(self.budget, self.price, accountant=self.accountant).limit

    @property
    def events(self) -> tuple[Event, ...]:
        """All charges that will ever be granted."""
        return (dataclasses.replace(self.price, count=self.charges),)

    @property
    def sentence(self) -> str:
        """What the budget buys, in plain words."""
        what = self.voting().charge
        return f"The budget buys {self.charges} charges, each for {what}."

    def settings(self) -> dict[str, Any]:
        """The settings of an ensemble that makes this offer."""
        return {
            "k": self.terms.voters,
            "epsilon_per_query": self.terms.epsilon,
            "total_budget": self.budget,
            "mechanism": self.mechanism,
            "alarms": self.terms.alarms,
            "accountant": self.accountant,
        }

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``from_dict`` reads it back."""
        return {
            "budget": dataclasses.asdict(self.budget),
            "accountant": self.accountant,
            "mechanism": self.mechanism,
            "parts": self.terms.voters,
            "epsilon_per_query": self.terms.epsilon,
            "alarms": self.terms.alarms,
            "charges": self.charges,
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Offer":
        """Read back ``to_dict``; the content may be hostile."""
        budget = Budget(**description["budget"])
        terms = Terms(
            _whole(description["parts"]),
            float(description["epsilon_per_query"]),
            budget.neighbours,
            _whole(description["alarms"]),
        )
        return cls(budget, str(description["accountant"]), str(description["mechanism"]), terms)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise InputError("parts and alarms must be whole numbers")
    return value
