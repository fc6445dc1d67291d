"""The entries of a ledger, their hash chain, and receipts.

Every entry is one line of canonical JSON, chained by SHA-256 to all entries before it. Its
texts are validated to be short and printable, so that no rows end up in a ledger. A
``Receipt`` proves a charge and travels with the release that was charged.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import math
import re
import secrets
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, Literal, NoReturn, final, get_args

from dpflows.errors import InputError
from dpflows.privacy.events import Event, Neighbours, SelectionEvent, event_from_dict
from dpflows.privacy.guarantee import Budget

LONGEST_RUN, LONGEST_PURPOSE = 100, 200

_HEX = re.compile(r"[0-9a-f]+")
_NAME = re.compile(r"[a-z0-9-]{1,32}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_DIGEST_LENGTH, _IDENTITY_LENGTH = 64, 32


def random_name() -> str:
    """A unique random name of 128 bits.

    Example:
        >>> len(random_name())
        32
    """
    return secrets.token_hex(16)


def check_run(run: str) -> str:
    """Refuse a run id that is not short, printable and free of blanks.

    Example:
        >>> check_run("night-7")
        'night-7'
    """
    plain = run.isascii() and run.isprintable() and " " not in run
    if not (plain and 1 <= len(run) <= LONGEST_RUN):
        raise InputError(
            f"run must be 1 to {LONGEST_RUN} printable ASCII characters without blanks; omit it "
            "for a random name"
        )
    return run


def check_purpose(purpose: str) -> str:
    """Refuse a purpose that is empty, long or not printable.

    Example:
        >>> check_purpose("fit")
        'fit'
    """
    if not purpose:
        raise InputError("purpose must describe the charge in a few words, but it is empty")
    _check_label(purpose)
    return purpose


def check_events(events: Iterable[Event]) -> None:
    """Refuse labels inside events that are long or not printable."""
    for event in events:
        _check_label(event.purpose)
        if isinstance(event, SelectionEvent):
            check_events(event.run)


def check_artefact(artefact: str) -> str:
    """Refuse anything but a SHA-256 in hexadecimal or an empty text.

    Example:
        >>> check_artefact("")
        ''
    """
    if artefact and not is_digest(artefact):
        raise InputError("artefact must be the SHA-256 of a file, 64 hexadecimal digits, or empty")
    return artefact


def check_identity(identity: str) -> str:
    """Refuse anything but the random name of a ledger.

    Example:
        >>> check_identity("0f" * 16) == "0f" * 16
        True
    """
    if len(identity) != _IDENTITY_LENGTH or not is_hex(identity):
        raise InputError("a ledger's identity must be 32 hexadecimal digits")
    return identity


def check_name(name: str) -> str:
    """Refuse anything but a short name in lower case, with hyphens.

    Example:
        >>> check_name("gdp-filter")
        'gdp-filter'
    """
    if _NAME.fullmatch(name) is None:
        raise InputError("a name must be up to 32 lower-case letters, digits and hyphens")
    return name


def check_time(time: str) -> str:
    """Refuse anything but a time in UTC to the second.

    Example:
        >>> check_time("2026-11-16T15:28:27Z")
        '2026-11-16T15:28:27Z'
    """
    if _TIME.fullmatch(time) is None:
        raise InputError("time must have the form 2026-11-16T15:28:27Z")
    return time


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal."""
    return len(text) == _DIGEST_LENGTH and is_hex(text)


def is_hex(text: str) -> bool:
    """Whether a text consists of hexadecimal digits."""
    return _HEX.fullmatch(text) is not None


def _check_label(label: str) -> None:
    if len(label) > LONGEST_PURPOSE or not label.isprintable():
        raise InputError(
            f"purpose must be at most {LONGEST_PURPOSE} printable characters; describe the "
            "release, not the content of the rows"
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
    """What the first row fixes permanently."""

    identity: str
    cap: Budget
    accountant: str
    composition: Composition = "adaptive"
    format: int = FORMAT


@final
@dataclasses.dataclass(frozen=True)
class Position:
    """The position of the adaptive filter after the first charge.

    Attributes:
        mu_cap: The largest Gaussian distance of later charges; fixed by the first charge.
        pure_cap: The largest pure epsilon of later charges; fixed by the first charge.
        mu: The root of the sum of their squared distances; ``None`` once it exceeds its cap.
        slack: The probability of no guarantee about these Gaussians.
        pure: The sum of their pure epsilons; ``None`` once it exceeds its cap.
    """

    mu_cap: float
    pure_cap: float
    mu: float | None = 0.0
    slack: float = 0.0
    pure: float | None = 0.0

    @property
    def is_over(self) -> bool:
        """Whether both caps are exceeded."""
        return self.mu is None and self.pure is None

    @property
    def pure_left(self) -> float:
        """The remaining pure epsilon."""
        return 0.0 if self.pure is None else max(self.pure_cap - self.pure, 0.0)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a ledger.

    Attributes:
        number: Counted from 1.
        state: ``OPENED``, ``DECLARED`` (all future charges), ``RESERVED`` (a charge) or
        ``RELEASED`` (the charged release was published).
        epsilon: The epsilon of all charges up to this row, at the cap's delta.
        time: When it was written, in UTC, by the clock of the writing process.
        head: The hash of this row and, through the chain, of all rows before it.
        run: The run that was charged or released.
        purpose: What the charge is for.
        neighbours: The neighbour relation of the total.
        events: What was charged.
        artefact: The SHA-256 of the released file, or empty.
        opening: What an ``OPENED`` row fixes.
        remaining: The epsilon that remains for one further fit after this row; unknown in rows of
        version 0.1.
        position: The filter's position after a charge, in ledgers with a filter.
        declared: All future charges, in a ``DECLARED`` row.

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
        """The state and the run as text."""
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
        InputError: The row does not match the hash of its predecessor.
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
    """The error of a row that this ledger cannot have written."""
    return InputError(
        f"entry {number} of the ledger was changed or damaged; nothing can be charged or released; "
        "restore an unchanged copy that matches all receipts"
    )


def chain(previous: str, body: str) -> str:
    """The hash of a row: SHA-256 of its predecessor's hash and its own content."""
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def canonical(content: Any) -> str:
    """The canonical JSON form of a content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain_events(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events as JSON values; refuses what JSON cannot hold."""
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
    """Whether a row has all fields of its kind, and at most the newer ones besides."""
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


_LARGEST_ENTRY = 2**53


@final
@dataclasses.dataclass(frozen=True)
class Receipt:
    """Proof of a charge: its entry in its ledger.

    Attributes:
        ledger: The ledger's identity.
        run: The run that was charged.
        entry: The number of the entry.
        head: The hash of that entry, which depends on every entry before it.
        epsilon: The ledger's total after the entry.

    Guarantee:
        A receipt detects that the ledger was replaced by an older copy: that copy has no entry with
        this head. A receipt is not a signature.

    Example:
        >>> receipt = Receipt("0f" * 16, "night-7", 2, "ab" * 32, 0.5)
        >>> Receipt.from_dict(receipt.to_dict()) == receipt
        True
    """

    ledger: str
    run: str
    entry: int
    head: str
    epsilon: float

    def to_dict(self) -> dict[str, Any]:
        """A description that strict JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, description: Any) -> "Receipt":
        """Read back what ``to_dict`` wrote; anything else, a hostile file's too, is refused."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(description, dict) or sorted(map(str, description)) != sorted(names):
            raise _unreadable()
        return _checked(*(description[name] for name in names))


def _checked(ledger: Any, run: Any, entry: Any, head: Any, epsilon: Any) -> Receipt:
    if not all(type(text) is str for text in (ledger, run, head)):
        raise _unreadable()
    if type(entry) is not int or not 1 <= entry <= _LARGEST_ENTRY:
        raise _unreadable()
    if not (is_hex(ledger) and len(ledger) == 32 and is_digest(head)):
        raise _unreadable()
    if type(epsilon) not in (int, float) or not (0 <= epsilon < math.inf):
        raise _unreadable()
    return Receipt(ledger, check_run(run), entry, head, float(epsilon))


def _unreadable() -> InputError:
    return InputError("the receipt cannot be read; use the one that the ledger issued")
