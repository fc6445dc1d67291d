"""The state of a ledger: its entries read one by one, each checked against those before it.

The total cost of all charges follows from how often each distinct event was charged.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, final

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.entries import (
    ORIGIN,
    Entry,
    Opening,
    Position,
    Receipt,
    Row,
    damaged,
    read_entry,
)

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
        """Merge equal events, ignoring their purposes."""
        return cls.of_counts(counted(events))

    @classmethod
    def of_counts(cls, counts: Counter[Event]) -> "Bill":
        """The same from events that are already counted."""
        return cls(frozenset(counts.items()))

    def events(self) -> list[Event]:
        """The merged events in a canonical order."""
        merged = [dataclasses.replace(event, count=count) for event, count in self.items]
        return sorted(merged, key=repr)


def counted(events: Iterable[Event]) -> Counter[Event]:
    """How often each distinct event was made, ignoring purposes."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[dataclasses.replace(event, count=1, purpose="")] += event.count
    return counts


def total(bill: Bill, cap: Budget, accountant: str) -> float:
    """The epsilon of counted events at the cap's delta under the cap's neighbours.

    Guarantee:
        At least the true cost of events that were decided beforehand: only accountants that prove a
        bound are used, and an event whose cost is unknown under the cap's neighbours is an error.
    """
    return _priced(bill, float(cap.delta), cap.neighbours, accountant)


def check_accountant(accountant: str) -> str:
    """Refuse an accountant that is unknown or may understate the cost."""
    # The accounting library takes seconds to import, and reading a ledger needs none of it.
    from dpflows.privacy.accounting import ACCOUNTANTS
    from dpflows.privacy.accounting.registry import choose

    if choose(accountant).kind != "bound":
        proven = [name for name, one in ACCOUNTANTS.items() if one.kind == "bound"]
        raise InputError(
            f"accountant must prove a bound, but {accountant!r} gives only estimates; use "
            f"one of {', '.join(proven)}"
        )
    return accountant


@functools.lru_cache(maxsize=_REMEMBERED)
def _priced(bill: Bill, delta: float, neighbours: Neighbours, accountant: str) -> float:
    from dpflows.privacy.accounting import epsilon_of

    check_accountant(accountant)
    return epsilon_of(bill.events(), delta=delta, neighbours=neighbours, accountant=accountant)


@final
@dataclasses.dataclass(frozen=True)
class State:
    """The state of a run: ``RESERVED``, or ``RELEASED`` with the digest of the release.

    Example:
        >>> State("RELEASED", "ab" * 32).is_released
        True
    """

    name: Literal["RESERVED", "RELEASED"]
    artefact: str = ""

    @property
    def is_released(self) -> bool:
        """Whether the run's release may be visible."""
        return self.name == "RELEASED"


@final
class Standing:
    """The state after all rows read so far.

    Guarantee:
        A row that is not chained to the row before it, or could not have been written
        after it, is refused.
    """

    def __init__(self) -> None:
        self.opening: Opening | None = None
        self.number, self.head, self.epsilon = 0, ORIGIN, 0.0
        self.remaining: float | None = None
        self.position: Position | None = None
        self.declared: tuple[tuple[Event, ...], ...] | None = None
        self.undone: Counter[Bill] = Counter()
        self.counts: Counter[Event] = Counter()
        self.charges: Counter[str] = Counter()
        self.reserved: dict[str, Entry] = {}
        self.released: dict[str, Entry] = {}

    @property
    def opened(self) -> Opening:
        """The first entry."""
        if self.opening is None:
            raise damaged(1)
        return self.opening

    def add(self, row: Row) -> Entry:
        """Read the next row."""
        if row.number != self.number + 1:
            raise damaged(self.number + 1)
        entry = read_entry(row, self.head)
        if not self._may_follow(entry):
            raise damaged(row.number)
        self._take(entry)
        self.number, self.head = entry.number, entry.head
        self.epsilon, self.remaining = entry.epsilon, entry.remaining
        return entry

    def state_of(self, run: str) -> State | None:
        """The state of a run."""
        if run in self.released:
            return State("RELEASED", self.released[run].artefact)
        return State("RESERVED") if run in self.reserved else None

    def receipt_of(self, entry: Entry) -> Receipt:
        """The receipt of an entry."""
        return Receipt(self.opened.identity, entry.run, entry.number, entry.head, entry.epsilon)

    def require(self, receipt: Receipt) -> None:
        """Refuse a receipt of another ledger, or one that this ledger never issued."""
        if receipt.ledger != self.opened.identity:
            raise InputError("the receipt is from another ledger; use the ledger that issued it")
        given = (self.reserved.get(receipt.run), self.released.get(receipt.run))
        if receipt not in [self.receipt_of(entry) for entry in given if entry is not None]:
            raise InputError(
                f"the ledger has no entry {receipt.entry} with the receipt's head: the ledger was "
                "replaced by an older copy, or the receipt was changed; restore the newest copy of "
                "the ledger"
            )

    def resumed(self, run: str, events: tuple[Event, ...], purpose: str) -> Receipt | None:
        """The receipt of a run that continues; ``None`` if new, an error if it was released."""
        known = self.reserved.get(run)
        if known is None:
            return None
        if run in self.released:
            raise InputError(
                f"run {run!r} was already released, so its charge is used; start a new run"
            )
        if (known.events, known.purpose) != (events, purpose):
            raise InputError(
                f"run {run!r} was charged for something else; continue with its original settings, "
                "or start a new run"
            )
        return self.receipt_of(known)

    def marked(self, run: str, artefact: str) -> Receipt | None:
        """The receipt of a run's release; ``None`` if there is none, an error if it differs."""
        known = self.released.get(run)
        if known is None:
            return None
        if known.artefact != artefact:
            raise InputError(
                f"run {run!r} was released with another artefact; a charge covers one release, so "
                "start a new run"
            )
        return self.receipt_of(known)

    def _may_follow(self, entry: Entry) -> bool:
        if entry.state == "OPENED":
            return entry.number == 1 and entry.epsilon == 0
        if self.opening is None:
            return False
        return _FOLLOWS[entry.state](self, self.opening, entry)

    def _take(self, entry: Entry) -> None:
        if entry.state == "OPENED":
            self.opening = entry.opening
        elif entry.state == "RELEASED":
            self.released[entry.run] = entry
        elif entry.state == "DECLARED":
            self.declared, self.undone = entry.declared, Counter(map(Bill.of, entry.declared))
        else:
            self.reserved[entry.run] = entry
            self.position = entry.position
            self.counts.update(counted(entry.events))
            self.charges[entry.purpose] += sum(event.count for event in entry.events)
            if self.declared is not None:
                self.undone[Bill.of(entry.events)] -= 1


def _declaration_follows(standing: Standing, opening: Opening, entry: Entry) -> bool:
    is_first = standing.declared is None and not standing.reserved
    within = entry.epsilon <= opening.cap.epsilon and all(entry.declared)
    return opening.composition == "declared" and is_first and within


def _charge_follows(standing: Standing, opening: Opening, entry: Entry) -> bool:
    cap = opening.cap
    within = entry.neighbours == cap.neighbours and entry.epsilon <= cap.epsilon
    is_new = entry.run not in standing.reserved and len(entry.events) > 0
    if opening.composition == "declared":
        return within and is_new and standing.undone[Bill.of(entry.events)] > 0
    return within and is_new and _moves_on(standing.position, entry.position)


def _moves_on(before: Position | None, after: Position | None) -> bool:
    """Whether a filter's position may follow another: equal caps, and no sum decreases."""
    if before is None or after is None:
        return before is None
    if (after.mu_cap, after.pure_cap) != (before.mu_cap, before.pure_cap) or after.is_over:
        return False
    grows = _grows(before.mu, after.mu, after.mu_cap) and before.slack <= after.slack
    return grows and _grows(before.pure, after.pure, after.pure_cap)


def _grows(before: float | None, after: float | None, cap: float) -> bool:
    return after is None or (before is not None and before <= after <= cap)


def _release_follows(standing: Standing, opening: Opening, entry: Entry) -> bool:
    unmarked = entry.run in standing.reserved and entry.run not in standing.released
    return unmarked and (entry.epsilon, entry.remaining) == (standing.epsilon, standing.remaining)


_FOLLOWS: dict[str, Callable[[Standing, Opening, Entry], bool]] = {
    "DECLARED": _declaration_follows,
    "RESERVED": _charge_follows,
    "RELEASED": _release_follows,
}
