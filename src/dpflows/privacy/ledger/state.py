"""What all charges of a ledger cost together.

What a ledger's rows amount to: read one by one, each checked against those before it.
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
    from dpflows.privacy.accounting.registry import choose

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


@final
@dataclasses.dataclass(frozen=True)
class State:
    """How far a run has come: ``RESERVED``, or ``RELEASED`` with the digest of what is out.

    Example:
        >>> State("RELEASED", "ab" * 32).is_released
        True
    """

    name: Literal["RESERVED", "RELEASED"]
    artefact: str = ""

    @property
    def is_released(self) -> bool:
        """Whether what the run paid for may have been seen."""
        return self.name == "RELEASED"


@final
class Standing:
    """The sum of all rows read so far.

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
        """What the first row fixed."""
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
        """How far a run has come."""
        if run in self.released:
            return State("RELEASED", self.released[run].artefact)
        return State("RESERVED") if run in self.reserved else None

    def receipt_of(self, entry: Entry) -> Receipt:
        """The proof that an entry is here."""
        return Receipt(self.opened.identity, entry.run, entry.number, entry.head, entry.epsilon)

    def require(self, receipt: Receipt) -> None:
        """Refuse a receipt of another ledger, or one that this ledger never gave."""
        if receipt.ledger != self.opened.identity:
            raise InputError("the receipt belongs to another ledger; name the one that gave it")
        given = (self.reserved.get(receipt.run), self.released.get(receipt.run))
        if receipt not in [self.receipt_of(entry) for entry in given if entry is not None]:
            raise InputError(
                f"the ledger has no entry {receipt.entry} with the receipt's head: an old copy of "
                "the ledger was restored, or the receipt was changed; put the newest ledger back"
            )

    def resumed(self, run: str, events: tuple[Event, ...], purpose: str) -> Receipt | None:
        """The receipt of a run that goes on; nothing if it is new, an error if it is over."""
        known = self.reserved.get(run)
        if known is None:
            return None
        if run in self.released:
            raise InputError(
                f"run {run!r} was released already; what it charged is used up, start a new run"
            )
        if (known.events, known.purpose) != (events, purpose):
            raise InputError(
                f"run {run!r} was charged for something else; go on with the settings it began "
                "with, or start a new run"
            )
        return self.receipt_of(known)

    def marked(self, run: str, artefact: str) -> Receipt | None:
        """The receipt of a run's release; nothing if there was none, an error if another."""
        known = self.released.get(run)
        if known is None:
            return None
        if known.artefact != artefact:
            raise InputError(
                f"run {run!r} was released with another artefact; a charge pays for one release, "
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
    """Whether a filter's position may follow another: its caps stay, the rest only grows."""
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
