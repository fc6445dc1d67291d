"""Whatever is planned within a budget, and what it will cost."""

import abc
from collections.abc import Sequence

from dpflows.privacy.accounting import epsilon_of, guarantee_for
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget, Guarantee


class Spending(abc.ABC):
    """A plan that knows its events before a row is read.

    Attributes:
        budget: What may be spent.
        accountant: Who prices the events.

    Guarantee:
        ``guarantee`` prices exactly ``events``: whoever carries the plan out must
        release those and nothing else.
    """

    budget: Budget
    accountant: str

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """Every release the plan makes, in order."""

    @property
    def is_private(self) -> bool:
        """Whether any privacy is asked for."""
        return self.budget.is_private

    def guarantee(self, *, stamps: Sequence[str] = (), caveats: Sequence[str] = ()) -> Guarantee:
        """What carrying out the plan promises."""
        return guarantee_for(
            self.events,
            budget=self.budget,
            accountant=self.accountant,
            stamps=stamps,
            caveats=caveats,
        )

    def shares(self) -> dict[str, float]:
        """The epsilon of each purpose by itself; together they compose to less than the sum."""
        purposes = dict.fromkeys(event.purpose for event in self.events)
        return {
            purpose: self._price([event for event in self.events if event.purpose == purpose])
            for purpose in purposes
        }

    def _price(self, events: Sequence[Event]) -> float:
        return epsilon_of(
            events,
            delta=self.budget.delta,
            neighbours=self.budget.neighbours,
            accountant=self.accountant,
        )
