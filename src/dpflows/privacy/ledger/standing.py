"""What a ledger's rows amount to: read one by one, each checked against those before it."""

import dataclasses
from collections import Counter
from typing import Literal, final

from dpflows.errors import InputError
from dpflows.privacy.events import Event
from dpflows.privacy.ledger.entries import ORIGIN, Entry, Opening, Row, damaged, read_entry
from dpflows.privacy.ledger.pricing import counted
from dpflows.privacy.ledger.receipts import Receipt


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
        self.number, self.head, self.epsilon = entry.number, entry.head, entry.epsilon
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
        if entry.state == "RESERVED":
            cap = self.opening.cap
            within = entry.neighbours == cap.neighbours and entry.epsilon <= cap.epsilon
            return within and entry.run not in self.reserved and len(entry.events) > 0
        unmarked = entry.run in self.reserved and entry.run not in self.released
        return unmarked and entry.epsilon == self.epsilon

    def _take(self, entry: Entry) -> None:
        if entry.state == "OPENED":
            self.opening = entry.opening
        elif entry.state == "RELEASED":
            self.released[entry.run] = entry
        else:
            self.reserved[entry.run] = entry
            self.counts.update(counted(entry.events))
            self.charges[entry.purpose] += sum(event.count for event in entry.events)
