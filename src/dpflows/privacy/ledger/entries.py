"""The rows of a ledger: what they say, and how each is chained to all before it."""

import dataclasses
import datetime
import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, final, get_args

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours, event_from_dict
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.words import check_artefact, check_events, check_purpose, check_run

FORMAT = 1
#: What the first row is chained to.
ORIGIN = "0" * 64

EntryKind = Literal["OPENED", "RESERVED", "RELEASED"]
ENTRY_KINDS: tuple[EntryKind, ...] = get_args(EntryKind)


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


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a ledger, read.

    Attributes:
        number: Counted from 1.
        state: ``OPENED``, ``RESERVED`` (a charge) or ``RELEASED`` (what it paid for is out).
        epsilon: The total of all charges up to here, at the cap's delta.
        time: When it was written, in UTC, by the clock of whoever wrote it.
        head: The hash of this row and, through the chain, of all rows before it.
        run: Which run was charged or released.
        purpose: What the charge is for.
        neighbours: The relation under which the total was priced.
        events: What was charged.
        artefact: The SHA-256 of the released file, or nothing.
        opening: What an ``OPENED`` row fixes.

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

    @property
    def label(self) -> str:
        """The state and the run in one word or two."""
        return f"{self.state} {self.run}".strip()

    def to_dict(self) -> dict[str, Any]:
        """The content of the row, JSON-ready; the hash is not part of it."""
        common = {"entry": self.number, "state": self.state, "time": self.time}
        return common | {"epsilon": float(self.epsilon)} | _SPECIFIC[self.state](self)

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
    return {
        "format": FORMAT,
        "ledger": opening.identity,
        "cap": {
            "epsilon": float(cap.epsilon),
            "delta": float(cap.delta),
            "neighbours": cap.neighbours,
        },
        "accountant": opening.accountant,
    }


def _of_charge(entry: Entry) -> dict[str, Any]:
    return {
        "run": entry.run,
        "purpose": entry.purpose,
        "neighbours": entry.neighbours,
        "events": [event.to_dict() for event in entry.events],
    }


def _of_release(entry: Entry) -> dict[str, Any]:
    return {"run": entry.run, "artefact": entry.artefact}


_SPECIFIC: dict[str, Callable[[Entry], dict[str, Any]]] = {
    "OPENED": _of_opening,
    "RESERVED": _of_charge,
    "RELEASED": _of_release,
}


def _parse(body: str) -> dict[str, Any]:
    content = json.loads(body, parse_constant=_refuse_constant)
    # Exactly what was written: no other names, no repeated ones, no other spelling.
    if type(content) is not dict or content.keys() != _NAMES[content["state"]]:
        raise ValueError("not an entry")
    if canonical(content) != body:
        raise ValueError("not canonical")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError("not a finite number")


def _read(content: dict[str, Any]) -> Entry:
    if type(content["entry"]) is not int or not 0 <= content["epsilon"] < math.inf:
        raise ValueError("not an entry")
    return Entry(
        number=content["entry"],
        state=content["state"],
        epsilon=float(content["epsilon"]),
        time=str(content["time"]),
        **_READERS[content["state"]](content),
    )


def _read_opening(content: dict[str, Any]) -> dict[str, Any]:
    if content["format"] != FORMAT:
        raise ValueError("another format")
    cap = Budget(**content["cap"])
    return {"opening": Opening(str(content["ledger"]), cap, str(content["accountant"]))}


def _read_charge(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": check_run(content["run"]),
        "purpose": check_purpose(content["purpose"]),
        "neighbours": content["neighbours"],
        "events": _read_events(content["events"]),
    }


def _read_release(content: dict[str, Any]) -> dict[str, Any]:
    return {"run": check_run(content["run"]), "artefact": check_artefact(content["artefact"])}


_COMMON = {"entry", "state", "time", "epsilon"}
_NAMES: dict[str, set[str]] = {
    "OPENED": _COMMON | {"format", "ledger", "cap", "accountant"},
    "RESERVED": _COMMON | {"run", "purpose", "neighbours", "events"},
    "RELEASED": _COMMON | {"run", "artefact"},
}
_READERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "OPENED": _read_opening,
    "RESERVED": _read_charge,
    "RELEASED": _read_release,
}


def _read_events(descriptions: Sequence[dict[str, Any]]) -> tuple[Event, ...]:
    return _events_from(canonical(descriptions))


@functools.lru_cache(maxsize=256)
def _events_from(text: str) -> tuple[Event, ...]:
    """Most entries of a long ledger hold the same few events, which are then read once."""
    return tuple(event_from_dict(description) for description in json.loads(text))
