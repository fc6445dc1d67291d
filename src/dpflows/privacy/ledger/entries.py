"""The rows of a ledger: what they say, and how each is chained to all before it."""

import dataclasses
import datetime
import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence, Set
from typing import Any, Literal, NoReturn, final, get_args

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours, event_from_dict
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.words import (
    check_artefact,
    check_events,
    check_identity,
    check_name,
    check_purpose,
    check_run,
    check_time,
)

#: Version 0.1 wrote format 1, whose first row names no composition.
FORMAT, OLD_FORMAT = 2, 1
#: What the first row is chained to.
ORIGIN = "0" * 64

EntryKind = Literal["OPENED", "DECLARED", "RESERVED", "RELEASED"]
ENTRY_KINDS: tuple[EntryKind, ...] = get_args(EntryKind)

#: Whether charges may be chosen by earlier results, or are all declared beforehand.
Composition = Literal["adaptive", "declared"]
COMPOSITIONS: tuple[Composition, ...] = get_args(Composition)


@final
@dataclasses.dataclass(frozen=True)
class Row:
    """A row as it is stored: its number, its content as canonical JSON, and its hash."""

    number: int
    body: str
    head: str


@final
@dataclasses.dataclass(frozen=True)
class Opening:
    """What the first row fixes for good."""

    identity: str
    cap: Budget
    accountant: str
    composition: Composition = "adaptive"
    format: int = FORMAT


@final
@dataclasses.dataclass(frozen=True)
class Position:
    """How far the charges after the first one have come in the adaptive filter.

    Attributes:
        mu_cap: How far they may come together as Gaussians; fixed by the first charge.
        pure_cap: How far they may come together as pure epsilons; fixed by the first charge.
        mu: The root of the sum of their squared distances; ``None`` once it passed its cap.
        slack: The chance with which nothing is promised about these Gaussians.
        pure: The sum of their pure epsilons; ``None`` once it passed its cap.
    """

    mu_cap: float
    pure_cap: float
    mu: float | None = 0.0
    slack: float = 0.0
    pure: float | None = 0.0

    @property
    def is_over(self) -> bool:
        """Whether both caps are passed."""
        return self.mu is None and self.pure is None

    @property
    def pure_left(self) -> float:
        """How much pure epsilon is still affordable."""
        return 0.0 if self.pure is None else max(self.pure_cap - self.pure, 0.0)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a ledger, read.

    Attributes:
        number: Counted from 1.
        state: ``OPENED``, ``DECLARED`` (all charges to come), ``RESERVED`` (a charge) or
            ``RELEASED`` (what it paid for is out).
        epsilon: What all charges up to here cost together, at the cap's delta.
        time: When it was written, in UTC, by the clock of whoever wrote it.
        head: The hash of this row and, through the chain, of all rows before it.
        run: Which run was charged or released.
        purpose: What the charge is for.
        neighbours: The relation under which the total was priced.
        events: What was charged.
        artefact: The SHA-256 of the released file, or nothing.
        opening: What an ``OPENED`` row fixes.
        remaining: The epsilon of the largest single fit still affordable after this row;
            rows of version 0.1 do not say.
        position: Where the filter stands after a charge, in ledgers that have one.
        declared: All charges to come, in a ``DECLARED`` row.

    Example:
        >>> entry = Entry(number=3, state="RELEASED", epsilon=0.5, time="", run="night-7")
        >>> entry.label
        'RELEASED night-7'
    """

    number: int
    state: EntryKind
    epsilon: float
    time: str
    head: str = ""
    run: str = ""
    purpose: str = ""
    neighbours: Neighbours | None = None
    events: tuple[Event, ...] = ()
    artefact: str = ""
    opening: Opening | None = None
    remaining: float | None = None
    position: Position | None = None
    declared: tuple[tuple[Event, ...], ...] = ()

    @property
    def label(self) -> str:
        """The state and the run in one word or two."""
        return f"{self.state} {self.run}".strip()

    def to_dict(self) -> dict[str, Any]:
        """The content of the row, JSON-ready; the hash is not part of it."""
        common = {"entry": self.number, "state": self.state, "time": self.time}
        recorded = {"epsilon": float(self.epsilon)}
        if self.remaining is not None:
            recorded["remaining"] = float(self.remaining)
        return common | recorded | _SPECIFIC[self.state](self)

    def chained_to(self, head: str) -> Row:
        """The row to store after the row with this hash."""
        body = canonical(self.to_dict())
        return Row(self.number, body, chain(head, body))


def read_entry(row: Row, previous: str) -> Entry:
    """Read a row that follows the row with the hash ``previous``.

    Raises:
        InputError: The row is not what was once chained to its predecessor.
    """
    if row.head != chain(previous, row.body):
        raise damaged(row.number)
    try:
        entry = _read(_parse(row.body))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise damaged(row.number) from None
    if entry.number != row.number:
        raise damaged(row.number)
    return dataclasses.replace(entry, head=row.head)


def damaged(number: int) -> InputError:
    """The error of a row that cannot be what this ledger once wrote."""
    return InputError(
        f"entry {number} of the ledger was changed or damaged; nothing is charged or released "
        "until an unchanged copy, one that all receipts fit, is put back"
    )


def chain(previous: str, body: str) -> str:
    """The hash of a row: SHA-256 of its predecessor's hash and its own content."""
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def canonical(content: Any) -> str:
    """The one way to write a content as JSON."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain_events(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events as they will be read back; refuses what JSON cannot hold."""
    check_events(events)
    try:
        described = json.loads(canonical([event.to_dict() for event in events]))
        return _read_events(described)
    except (TypeError, ValueError):
        raise InputError("events must hold plain finite numbers; convert them") from None


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_opening(entry: Entry) -> dict[str, Any]:
    opening = entry.opening
    if opening is None:
        raise TypeError("an opening entry lacks its opening")
    cap = opening.cap
    old = opening.format == OLD_FORMAT
    composition = {} if old else {"composition": opening.composition}
    return composition | {
        "format": opening.format,
        "ledger": opening.identity,
        "cap": {
            "epsilon": float(cap.epsilon),
            "delta": float(cap.delta),
            "neighbours": cap.neighbours,
        },
        "accountant": opening.accountant,
    }


def _of_declaration(entry: Entry) -> dict[str, Any]:
    return {"charges": [[event.to_dict() for event in charge] for charge in entry.declared]}


def _of_charge(entry: Entry) -> dict[str, Any]:
    position = {} if entry.position is None else {"filter": dataclasses.asdict(entry.position)}
    return position | {
        "run": entry.run,
        "purpose": entry.purpose,
        "neighbours": entry.neighbours,
        "events": [event.to_dict() for event in entry.events],
    }


def _of_release(entry: Entry) -> dict[str, Any]:
    return {"run": entry.run, "artefact": entry.artefact}


_SPECIFIC: dict[str, Callable[[Entry], dict[str, Any]]] = {
    "OPENED": _of_opening,
    "DECLARED": _of_declaration,
    "RESERVED": _of_charge,
    "RELEASED": _of_release,
}


def _parse(body: str) -> dict[str, Any]:
    content = json.loads(body, parse_constant=_refuse_constant)
    # Exactly what was written: no other names, no repeated ones, no other spelling.
    if type(content) is not dict or not _are_names(content["state"], content.keys()):
        raise ValueError("not an entry")
    if canonical(content) != body:
        raise ValueError("not canonical")
    return content


def _are_names(state: str, names: Set[str]) -> bool:
    """Whether a row has all names of its kind, and besides them at most the newer ones."""
    return _NAMES[state] <= names <= _NAMES[state] | _NEWER[state]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError("not a finite number")


def _read(content: dict[str, Any]) -> Entry:
    if type(content["entry"]) is not int:
        raise ValueError("not an entry")
    return Entry(
        number=content["entry"],
        state=content["state"],
        epsilon=_number(content["epsilon"]),
        time=check_time(content["time"]),
        remaining=_number(content["remaining"]) if "remaining" in content else None,
        **_READERS[content["state"]](content),
    )


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("not an amount")
    return float(value)


def _read_opening(content: dict[str, Any]) -> dict[str, Any]:
    written = content["format"]
    if type(written) is not int or written not in (OLD_FORMAT, FORMAT):
        raise ValueError("another format")
    if (written == FORMAT) != ("composition" in content):
        raise ValueError("not an opening")
    composition = content.get("composition", "adaptive")
    if composition not in COMPOSITIONS:
        raise ValueError("another composition")
    cap = Budget(**content["cap"])
    name, accountant = check_identity(content["ledger"]), check_name(content["accountant"])
    return {"opening": Opening(name, cap, accountant, composition, written)}


def _read_declaration(content: dict[str, Any]) -> dict[str, Any]:
    return {"declared": tuple(_read_events(charge) for charge in content["charges"])}


def _read_charge(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": check_run(content["run"]),
        "purpose": check_purpose(content["purpose"]),
        "neighbours": content["neighbours"],
        "events": _read_events(content["events"]),
        "position": _read_position(content["filter"]) if "filter" in content else None,
    }


def _read_position(content: dict[str, Any]) -> Position:
    if content.keys() != {field.name for field in dataclasses.fields(Position)}:
        raise ValueError("not a position")
    mu_cap, pure_cap, slack = (_number(content[name]) for name in ("mu_cap", "pure_cap", "slack"))
    mu, pure = (_number_or_end(content[name]) for name in ("mu", "pure"))
    return Position(mu_cap, pure_cap, mu, slack, pure)


def _number_or_end(value: Any) -> float | None:
    return None if value is None else _number(value)


def _read_release(content: dict[str, Any]) -> dict[str, Any]:
    return {"run": check_run(content["run"]), "artefact": check_artefact(content["artefact"])}


_COMMON = {"entry", "state", "time", "epsilon"}
_NAMES: dict[str, set[str]] = {
    "OPENED": _COMMON | {"format", "ledger", "cap", "accountant"},
    "DECLARED": _COMMON | {"charges"},
    "RESERVED": _COMMON | {"run", "purpose", "neighbours", "events"},
    "RELEASED": _COMMON | {"run", "artefact"},
}
_NEWER: dict[str, set[str]] = {
    "OPENED": {"composition"},
    "DECLARED": {"remaining"},
    "RESERVED": {"remaining", "filter"},
    "RELEASED": {"remaining"},
}
_READERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "OPENED": _read_opening,
    "DECLARED": _read_declaration,
    "RESERVED": _read_charge,
    "RELEASED": _read_release,
}


def _read_events(descriptions: Sequence[dict[str, Any]]) -> tuple[Event, ...]:
    return _events_from(canonical(descriptions))


@functools.lru_cache(maxsize=256)
def _events_from(text: str) -> tuple[Event, ...]:
    """Most entries of a long ledger hold the same few events, which are then read once."""
    return tuple(event_from_dict(description) for description in json.loads(text))
