"""What all charges of a ledger cost together."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable
from typing import final

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours
from dpflows.privacy.guarantee import Budget

_REMEMBERED = 256


@final
@dataclasses.dataclass(frozen=True)
class Bill:
    """How often each distinct event was charged; the order does not matter.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> event = PureEvent(epsilon=Sensitivity.uniformly(0.25), purpose="a")
        >>> Bill.of([event, event]).items
        frozenset({(PureEvent(purpose='', count=1, epsilon=...), 2)})
    """

    items: frozenset[tuple[Event, int]]

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Bill":
        """Equal events merged, whatever they were for."""
        return cls.of_counts(counted(events))

    @classmethod
    def of_counts(cls, counts: Counter[Event]) -> "Bill":
        """The same from events that are counted already."""
        return cls(frozenset(counts.items()))

    def events(self) -> list[Event]:
        """The merged events in an order that depends on nothing else."""
        merged = [dataclasses.replace(event, count=count) for event, count in self.items]
        return sorted(merged, key=repr)


def counted(events: Iterable[Event]) -> Counter[Event]:
    """How often each distinct event was made, labels aside."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[dataclasses.replace(event, count=1, purpose="")] += event.count
    return counts


def total(bill: Bill, cap: Budget, accountant: str) -> float:
    """The epsilon of a bill at the cap's delta under the cap's neighbours.

    Guarantee:
        At least the true cost of events that were decided beforehand: only accountants
        that prove a bound are asked, and an event that has no price under the cap's
        neighbours is an error.
    """
    return _priced(bill, float(cap.delta), cap.neighbours, accountant)


def check_accountant(accountant: str) -> str:
    """Refuse an accountant that is unknown or may understate the cost."""
    # The accounting library takes seconds to import, and reading a ledger needs none of it.
    from dpflows.privacy.accounting import ACCOUNTANTS
    from dpflows.privacy.accounting.pricing import choose

    if choose(accountant).kind != "bound":
        proven = [name for name, one in ACCOUNTANTS.items() if one.kind == "bound"]
        raise InputError(
            f"accountant must prove a bound, but {accountant!r} only estimates; a ledger takes "
            f"one of {', '.join(proven)}"
        )
    return accountant


@functools.lru_cache(maxsize=_REMEMBERED)
def _priced(bill: Bill, delta: float, neighbours: Neighbours, accountant: str) -> float:
    from dpflows.privacy.accounting import epsilon_of

    check_accountant(accountant)
    return epsilon_of(bill.events(), delta=delta, neighbours=neighbours, accountant=accountant)
