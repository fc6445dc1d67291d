"""What the charges of a ledger add up to, and what its cap has room for.

The state of a ledger is its entries read one by one, each checked against those before it; the
total cost of all charges follows from how often each distinct event was charged.

Charges that are chosen by earlier results need a *filter*: a rule about sums that holds
whatever the results are. Charges that are all declared beforehand may be composed more
tightly, but then nothing else is granted. The proofs are in ``docs/ledger.md``.
"""

import abc
import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.events import Event, Neighbours
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.entries import (
    OLD_FORMAT,
    ORIGIN,
    Entry,
    Opening,
    Position,
    Receipt,
    Row,
    damaged,
    read_entry,
)

if TYPE_CHECKING:
    from dpflows.privacy.accounting.filters import AdaptiveFilter

_REMEMBERED = 256


@final
@dataclasses.dataclass(frozen=True)
class EventCounts:
    """How often each distinct event was charged; the order does not matter.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> event = PureEvent(epsilon=Sensitivity.uniformly(0.25), purpose="a")
        >>> EventCounts.of([event, event]).items
        frozenset({(PureEvent(purpose='', count=1, epsilon=...), 2)})
    """

    items: frozenset[tuple[Event, int]]

    @classmethod
    def of(cls, events: Iterable[Event]) -> "EventCounts":
        """Merge equal events, ignoring their purposes."""
        return cls.of_counts(counted(events))

    @classmethod
    def of_counts(cls, counts: Counter[Event]) -> "EventCounts":
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


def total(counts: EventCounts, cap: Budget, accountant: str) -> float:
    """The epsilon of counted events at the cap's delta under the cap's neighbours.

    Guarantee:
        At least the true cost of events that were decided beforehand: only accountants that prove a
        bound are used, and an event whose cost is unknown under the cap's neighbours is an error.
    """
    return _priced(counts, float(cap.delta), cap.neighbours, accountant)


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
def _priced(counts: EventCounts, delta: float, neighbours: Neighbours, accountant: str) -> float:
    from dpflows.privacy.accounting import epsilon_of

    check_accountant(accountant)
    return epsilon_of(counts.events(), delta=delta, neighbours=neighbours, accountant=accountant)


@final
@dataclasses.dataclass(frozen=True)
class RunState:
    """The state of a run: ``RESERVED``, or ``RELEASED`` with the digest of the release.

    Example:
        >>> RunState("RELEASED", "ab" * 32).is_released
        True
    """

    name: Literal["RESERVED", "RELEASED"]
    artefact: str = ""

    @property
    def is_released(self) -> bool:
        """Whether the run's release may be visible."""
        return self.name == "RELEASED"


@final
class LedgerState:
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
        self.undone: Counter[EventCounts] = Counter()
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

    def state_of(self, run: str) -> RunState | None:
        """The state of a run."""
        if run in self.released:
            return RunState("RELEASED", self.released[run].artefact)
        return RunState("RESERVED") if run in self.reserved else None

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
            self.declared, self.undone = (
                entry.declared,
                Counter(map(EventCounts.of, entry.declared)),
            )
        else:
            self.reserved[entry.run] = entry
            self.position = entry.position
            self.counts.update(counted(entry.events))
            self.charges[entry.purpose] += sum(event.count for event in entry.events)
            if self.declared is not None:
                self.undone[EventCounts.of(entry.events)] -= 1


def _declaration_follows(state: LedgerState, opening: Opening, entry: Entry) -> bool:
    is_first = state.declared is None and not state.reserved
    within = entry.epsilon <= opening.cap.epsilon and all(entry.declared)
    return opening.composition == "declared" and is_first and within


def _charge_follows(state: LedgerState, opening: Opening, entry: Entry) -> bool:
    cap = opening.cap
    within = entry.neighbours == cap.neighbours and entry.epsilon <= cap.epsilon
    is_new = entry.run not in state.reserved and len(entry.events) > 0
    if opening.composition == "declared":
        return within and is_new and state.undone[EventCounts.of(entry.events)] > 0
    return within and is_new and _moves_on(state.position, entry.position)


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


def _release_follows(state: LedgerState, opening: Opening, entry: Entry) -> bool:
    unmarked = entry.run in state.reserved and entry.run not in state.released
    return unmarked and (entry.epsilon, entry.remaining) == (state.epsilon, state.remaining)


_FOLLOWS: dict[str, Callable[[LedgerState, Opening, Entry], bool]] = {
    "DECLARED": _declaration_follows,
    "RESERVED": _charge_follows,
    "RELEASED": _release_follows,
}


GDP_FILTER, RDP_FILTER = "gdp-filter", "rdp-filter"
#: Accountants whose totals hold for charges that are chosen by earlier results.
FILTERS = (GDP_FILTER, RDP_FILTER, "zcdp", "gdp")
#: How far another version of a numerical library may move a price.
TOLERANCE = 1e-6
#: What a sum of a few equal numbers may be off by.
_ROUNDING = 1e-12
_SPREAD = 100


class Grant(NamedTuple):
    """The terms that a ledger records for a granted charge."""

    epsilon: float
    remaining: float
    position: Position | None = None

    def recorded(self) -> dict[str, Any]:
        """The same by the field names of an entry."""
        return self._asdict()


class Method(abc.ABC):
    """A rule by which charges compose.

    Args:
        opening: The first entry of the ledger.

    Guarantee:
        ``charge`` raises unless all charges, including the new one, are within the cap. Its
        decision depends on earlier requests and the new one, not on any result.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    @property
    def _cap(self) -> Budget:
        return self._opening.cap

    @abc.abstractmethod
    def charge(self, state: LedgerState, events: Sequence[Event]) -> Grant:
        """The terms of a new charge; raises if it is refused."""

    @abc.abstractmethod
    def remaining(self, state: LedgerState) -> float:
        """The epsilon, at the cap's delta, that remains for one further fit."""

    @abc.abstractmethod
    def recheck(self, entries: Sequence[Entry]) -> None:
        """Refuse entries that record less than their events cost."""

    def _refusal(
        self, state: LedgerState, counts_as: float, events: Sequence[Event]
    ) -> BudgetError:
        cap, left = self._cap, self.remaining(state)
        return BudgetError(
            f"the ledger's cap is epsilon {cap.epsilon:g} at delta {cap.delta:g} for all charges "
            f"together; epsilon {state.epsilon:.4g} is spent; this charge counts as epsilon "
            f"{counts_as:.4g}{self._alone(events, counts_as)}, and one further fit may use at most "
            f"epsilon {rounded_down(left)}; nothing was charged; request a smaller epsilon"
        )

    def _alone(self, events: Sequence[Event], counts_as: float) -> str:
        """A remark where a filter counts a charge for clearly more than it costs alone."""
        alone = total(EventCounts.of(events), self._cap, "pld")
        if not alone < 0.95 * counts_as:
            return ""
        return f" ({alone:.4g} alone; see 'What a charge counts for' in docs/ledger.md)"


@final
class AdaptiveMethod(Method):
    """The adaptive filter; the first charge counts by its exact loss.

    Guarantee:
        Holds for charges chosen by earlier results: see ``AdaptiveFilter``.
    """

    def charge(self, state: LedgerState, events: Sequence[Event]) -> Grant:
        """Account for the first charge exactly, and for each later one as the filter counts it."""
        if not state.reserved:
            return self._first(state, events)
        gate, before = self._gate(state), self._position(state)
        after = advanced(gate, before, events)
        if after.is_over:
            raise self._too_much(state, gate, before, events)
        epsilon = max(state.epsilon, _epsilon_at(gate, after))
        return Grant(min(epsilon, self._cap.epsilon), _left_at(gate, after), after)

    def remaining(self, state: LedgerState) -> float:
        """The whole cap before the first charge; then what remains in the filter."""
        if not state.reserved:
            return self._cap.epsilon
        return _left_at(self._gate(state), self._position(state))

    def recheck(self, entries: Sequence[Entry]) -> None:
        """Recompute the cost of every charge, and up to a hundred totals."""
        charges = [entry for entry in entries if entry.state == "RESERVED"]
        old = [entry for entry in charges if entry.position is None]
        if old != charges[: len(old)] or (old and self._opening.format != OLD_FORMAT):
            raise InputError(
                "an entry of the ledger lacks its cost, so the ledger was changed or "
                "damaged; restore an unchanged copy"
            )
        if old:
            _recheck_totals(old, self._cap, self._opening.accountant)
        if len(charges) > len(old):
            self._recheck_prices(charges, len(old))

    def _recheck_prices(self, charges: Sequence[Entry], old: int) -> None:
        gate, chosen = gate_for(self._cap, EventCounts.of(charges[0].events)), spread(len(charges))
        before = _repriced(gate, charges[:old]) if old else None
        for place, entry in enumerate(charges[old:], start=old):
            after = entry.position or _start(gate)
            least = _start(gate) if before is None else advanced(gate, before, entry.events)
            if not _covers(after, least):
                raise _understated(entry, _epsilon_at(gate, least))
            if place in chosen:
                _check(entry, _epsilon_at(gate, after))
                _check_left(entry, _left_at(gate, after))
            before = after

    def _first(self, state: LedgerState, events: Sequence[Event]) -> Grant:
        counts = EventCounts.of(events)
        epsilon = total(counts, self._cap, "pld")
        # Written so that a total that is no number is refused too.
        if not epsilon <= self._cap.epsilon:
            raise self._refusal(state, epsilon, events)
        gate = gate_for(self._cap, counts)
        return Grant(epsilon, gate.remaining(0.0), _start(gate))

    def _gate(self, state: LedgerState) -> "AdaptiveFilter":
        first = next(iter(state.reserved.values()))
        return gate_for(self._cap, EventCounts.of(first.events))

    def _position(self, state: LedgerState) -> Position:
        if state.position is None:
            # All charges are from version 0.1.
            return _repriced(self._gate(state), list(state.reserved.values()))
        return state.position

    def _too_much(
        self,
        state: LedgerState,
        gate: "AdaptiveFilter",
        before: Position,
        events: Sequence[Event],
    ) -> BudgetError:
        from dpflows.privacy.accounting.filters import as_epsilon

        if before.is_over:
            return BudgetError(
                f"the ledger's cap is epsilon {self._cap.epsilon:g} at delta {self._cap.delta:g}; "
                "its charges were made by version 0.1, which composed them as if they had been "
                "decided beforehand; composed so that they may depend on earlier results they "
                "exceed the cap, so the ledger is full; nothing was charged"
            )
        price = gate.price(events, slack=before.slack)
        if math.isinf(price.mu):
            return BudgetError(
                "this charge has no finite cost after other charges: its own delta, or its "
                f"sampling, needs a part of the ledger's delta ({self._cap.delta:g}), and the part "
                "set aside for that is used up or too small; nothing was charged; make it the "
                "first charge of a ledger"
            )
        return self._refusal(state, as_epsilon(price.mu, self._cap.delta), events)


@final
class SumMethod(Method):
    """One number per charge, added up: rho of ``zcdp``, squared mu of ``gdp``, or one Rényi order.

    Guarantee:
        Holds for charges chosen by earlier results: the number of one charge bounds it
        whatever the results before it, and such bounds add up (Feldman and Zrnic 2021;
        Whitehouse, Ramdas, Rogers and Wu 2023).
    """

    def charge(self, state: LedgerState, events: Sequence[Event]) -> Grant:
        """The total with the new charge, which must not exceed the cap."""
        counts = state.counts + counted(events)
        epsilon = self._total(counts)
        if not epsilon <= self._cap.epsilon:
            raise self._refusal(state, self._total(counted(events)), events)
        return Grant(epsilon, self._left(counts))

    def remaining(self, state: LedgerState) -> float:
        """The epsilon of the Gaussian that the rest of the sum allows."""
        return self._left(state.counts)

    def recheck(self, entries: Sequence[Entry]) -> None:
        """Recompute up to a hundred totals, always including the last one."""
        charges = [entry for entry in entries if entry.state == "RESERVED"]
        _recheck_totals(charges, self._cap, self._opening.accountant)
        if charges:
            _check_left(charges[-1], self._left(counted(e for one in charges for e in one.events)))

    def _total(self, counts: Counter[Event]) -> float:
        return _sum_of(EventCounts.of_counts(counts), self._cap, self._opening.accountant)

    def _left(self, counts: Counter[Event]) -> float:
        from dpflows.privacy.accounting.filters import largest_left

        events = EventCounts.of_counts(counts).events()
        return largest_left(self._opening.accountant, self._cap, events)


@final
class DeclaredMethod(Method):
    """All charges are declared before the first one and composed together.

    Guarantee:
        Only declared charges are granted, each as often as it was declared, in any order,
        so that all results together are a part of what was declared.
    """

    def declare(self, charges: Sequence[tuple[Event, ...]]) -> Grant:
        """The total of all declared charges, which must not exceed the cap."""
        whole = EventCounts.of(event for charge in charges for event in charge)
        epsilon = total(whole, self._cap, self._opening.accountant)
        if not epsilon <= self._cap.epsilon:
            raise BudgetError(
                f"the ledger's cap is epsilon {self._cap.epsilon:g} at delta "
                f"{self._cap.delta:g}; the {len(charges):,} charges declared would cost "
                f"{epsilon:.4g} together; nothing was declared; declare fewer or smaller ones"
            )
        return Grant(epsilon, self._largest(map(EventCounts.of, charges)))

    def charge(self, state: LedgerState, events: Sequence[Event]) -> Grant:
        """Grant a charge that was declared and not made yet."""
        left, wanted = self._undone(state), EventCounts.of(events)
        if not left[wanted]:
            raise BudgetError(
                "this charge is not among those declared for the ledger that remain "
                f"({left.total():,} of {len(state.declared or ()):,}); nothing was charged; "
                "make a declared charge, or create another ledger"
            )
        left[wanted] -= 1
        return Grant(state.epsilon, self._largest(left.elements()))

    def remaining(self, state: LedgerState) -> float:
        """The largest single charge that was declared and not made yet."""
        return 0.0 if state.declared is None else self._largest(self._undone(state).elements())

    def recheck(self, entries: Sequence[Entry]) -> None:
        """Recompute the total of the declaration; all later rows repeat it."""
        for entry in entries:
            if entry.state == "DECLARED":
                epsilon = self.declare(entry.declared).epsilon
                _check(entry, epsilon)

    def _undone(self, state: LedgerState) -> Counter[EventCounts]:
        if state.declared is None:
            raise InputError(
                "the ledger grants only declared charges, and none is declared yet; call "
                "declare([...]) with all charges before the first one"
            )
        return +state.undone

    def _largest(self, counts: Iterable[EventCounts]) -> float:
        costs = (total(counts, self._cap, self._opening.accountant) for counts in set(counts))
        return max(costs, default=0.0)


def method_of(opening: Opening) -> Method:
    """The rule by which a ledger's charges compose.

    Ledgers of version 0.1 that name ``pld`` or ``rdp`` continue with the filter: the totals
    of these accountants hold for charges decided beforehand only.
    """
    if opening.composition == "declared":
        return DeclaredMethod(opening)
    return SumMethod(opening) if opening.accountant in FILTERS[1:] else AdaptiveMethod(opening)


def check_choice_of(composition: str, accountant: str | None) -> str:
    """The accountant of a new ledger; refuses one that does not support the composition."""
    if accountant in FILTERS and composition == "adaptive":
        return accountant
    if accountant is not None and accountant not in (GDP_FILTER, RDP_FILTER):
        check_accountant(accountant)
    if composition == "adaptive" and accountant is not None:
        raise InputError(
            f"accountant {accountant!r} proves no bound for charges that depend on earlier "
            f"results; remove it, use one of {', '.join(FILTERS)}, or declare all charges "
            "beforehand (composition='declared')"
        )
    if accountant in (GDP_FILTER, RDP_FILTER):
        raise InputError(
            f"accountant {accountant!r} is a filter; with composition='declared' use 'pld' or "
            "remove the accountant"
        )
    return accountant or (GDP_FILTER if composition == "adaptive" else "pld")


def same_charges(one: Sequence[Sequence[Event]], other: Sequence[Sequence[Event]]) -> bool:
    """Whether two declarations hold the same charges, in whatever order."""
    return Counter(map(EventCounts.of, one)) == Counter(map(EventCounts.of, other))


def advanced(gate: "AdaptiveFilter", before: Position, events: Sequence[Event]) -> Position:
    """The filter's position after one more charge; a sum that exceeds its cap becomes ``None``."""
    mu, slack = before.mu, before.slack
    if mu is not None:
        from dpflows.privacy.accounting.filters import added

        mu, slack = added(mu, slack, gate.price(events, slack=slack))
    pure = None if before.pure is None else before.pure + gate.pure_epsilon(events)
    return dataclasses.replace(
        before, mu=_within(mu, before.mu_cap), slack=slack, pure=_within(pure, before.pure_cap)
    )


def _within(amount: float | None, cap: float) -> float | None:
    # Written so that an amount that is no number closes the way too.
    return amount if amount is not None and amount <= cap * (1 + _ROUNDING) else None


def _start(gate: "AdaptiveFilter") -> Position:
    return Position(gate.mu_cap, gate.pure_cap)


def _repriced(gate: "AdaptiveFilter", charges: Sequence[Entry]) -> Position:
    position = _start(gate)
    for entry in charges[1:]:
        position = advanced(gate, position, entry.events)
    return position


def _epsilon_at(gate: "AdaptiveFilter", position: Position) -> float:
    amounts = (math.inf if amount is None else amount for amount in (position.mu, position.pure))
    return gate.epsilon(*amounts)


def _left_at(gate: "AdaptiveFilter", position: Position) -> float:
    return 0.0 if position.mu is None else gate.remaining(position.mu)


@functools.lru_cache(maxsize=64)
def gate_for(cap: Budget, first: EventCounts) -> "AdaptiveFilter":
    """The filter that the first charge leaves."""
    from dpflows.privacy.accounting.filters import AdaptiveFilter

    return AdaptiveFilter(cap, tuple(first.events()))


def rounded_down(epsilon: float) -> str:
    """Four decimal places, rounded down, since the remaining budget must not be overstated.

    Example:
        >>> rounded_down(0.12349)
        '0.1234'
    """
    return f"{math.floor(epsilon * 1e4 + 1e-6) / 1e4:.4f}"


def spread(count: int) -> set[int]:
    """At most a hundred positions among ``count``, always including the last one.

    Example:
        >>> sorted(spread(3)), len(spread(1000))
        ([0, 1, 2], 100)
    """
    stride = max(1, -(-count // _SPREAD))
    return set(range(count - 1, -1, -stride))


def _recheck_totals(charges: Sequence[Entry], cap: Budget, accountant: str) -> None:
    chosen, counts = spread(len(charges)), Counter[Event]()
    for place, entry in enumerate(charges):
        counts.update(counted(entry.events))
        if place in chosen:
            _check(entry, _sum_of(EventCounts.of_counts(counts), cap, accountant))


def _sum_of(counts: EventCounts, cap: Budget, accountant: str) -> float:
    if accountant != RDP_FILTER:
        return total(counts, cap, accountant)
    from dpflows.privacy.accounting.filters import PrivacyFilter

    return PrivacyFilter(cap).total(counts.events())


def _covers(recorded: Position, least: Position) -> bool:
    return (
        recorded.mu_cap <= least.mu_cap * (1 + TOLERANCE)
        and recorded.pure_cap <= least.pure_cap * (1 + TOLERANCE)
        and _is_enough(recorded.mu, least.mu)
        and _is_enough(recorded.pure, least.pure)
        and recorded.slack >= least.slack * (1 - TOLERANCE)
    )


def _is_enough(recorded: float | None, least: float | None) -> bool:
    if recorded is None or least is None:
        return recorded is None
    return recorded >= least * (1 - TOLERANCE)


def _check(entry: Entry, epsilon: float) -> None:
    if not entry.epsilon >= epsilon * (1 - TOLERANCE):
        raise _understated(entry, epsilon)


_CHANGED = "the ledger was changed, or was written by a version of dpflows with other rules"


def _check_left(entry: Entry, left: float) -> None:
    if entry.remaining is not None and not entry.remaining <= left * (1 + TOLERANCE) + 1e-9:
        raise InputError(
            f"entry {entry.number} of the ledger records that epsilon {entry.remaining:.6g} "
            f"remains, but it is {left:.6g}: {_CHANGED}"
        )


def _understated(entry: Entry, epsilon: float) -> InputError:
    return InputError(
        f"entry {entry.number} of the ledger records a total of epsilon {entry.epsilon:.6g}, "
        f"but its events cost {epsilon:.6g}: {_CHANGED}"
    )
