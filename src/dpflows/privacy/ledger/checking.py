"""The totals that a ledger records, computed again from its events."""

from collections import Counter
from collections.abc import Sequence

from dpflows.errors import InputError
from dpflows.privacy.events import Event
from dpflows.privacy.ledger.entries import Entry, Opening
from dpflows.privacy.ledger.pricing import Bill, counted, total

_AT_MOST = 100
#: How far another version of a numerical library may move a price.
_TOLERANCE = 1e-6


def check_prices(entries: Sequence[Entry], opening: Opening) -> None:
    """Refuse totals below what the events cost."""
    charges = [entry for entry in entries if entry.state == "RESERVED"]
    chosen = _spread(len(charges))
    counts: Counter[Event] = Counter()
    for place, entry in enumerate(charges):
        counts.update(counted(entry.events))
        if place in chosen:
            _check(entry, total(Bill.of_counts(counts), opening))


def _check(entry: Entry, epsilon: float) -> None:
    if not entry.epsilon >= epsilon * (1 - _TOLERANCE):
        raise InputError(
            f"entry {entry.number} of the ledger records a total of epsilon {entry.epsilon:.6g}, "
            f"but its events cost {epsilon:.6g}: it was not written by this version's rules"
        )


def _spread(count: int) -> set[int]:
    """At most a hundred places among ``count``, the last one always."""
    stride = max(1, -(-count // _AT_MOST))
    return set(range(count - 1, -1, -stride))
