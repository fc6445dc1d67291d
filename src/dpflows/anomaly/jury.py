"""The members of an ensemble together with the meter that every answer goes through."""

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from jaxtyping import Float

from dpflows.anomaly.books import FileBooks, LedgerBooks, MemoryBooks, read_taken
from dpflows.anomaly.members import Member, count_normal
from dpflows.anomaly.meter import Meter
from dpflows.anomaly.offers import Offer
from dpflows.anomaly.storage import read_members, written_members
from dpflows.errors import InputError
from dpflows.privacy.ledger import Ledger
from dpflows.privacy.randomness import Entropy

Arrays = dict[str, np.ndarray]

_HEX = re.compile("[0-9a-f]{32}")


@final
class Jury:
    """Members that vote, a mechanism that hides the votes, and a meter that counts answers.

    Args:
        members: One per part.
        offer: What the budget buys.
        taken: How many charges were made before.
        identity: By which it knows its file; drawn if not given.
        bound: The identity of the ledger without which it does not answer, if any.

    Guarantee:
        ``judge`` is the only way from the members to the outside. It charges first. Where a
        ledger is named, the ledger counts the answers of all copies together.
    """

    def __init__(
        self,
        members: Sequence[Member],
        offer: Offer,
        *,
        taken: int = 0,
        identity: str | None = None,
        bound: str | None = None,
    ) -> None:
        self._members, self._voting = tuple(members), offer.voting()
        self._meter = Meter(offer.budget, offer.price, offer.accountant, MemoryBooks(taken))
        self._identity = secrets.token_hex(16) if identity is None else identity
        self._file: Path | None = None
        self._bound, self._is_connected = bound, bound is None
        self.offer = offer

    def connect(self, ledger: Ledger | None) -> None:
        """Charge answers to the ledger that the ensemble was made with, and to no other."""
        if ledger is None:
            return
        if ledger.identity != self._bound:
            raise InputError(
                "ledger must be the one that the ensemble was made with, got "
                + ("another" if self._bound else "one for an ensemble that was made without any")
            )
        if not self._is_connected:
            self._meter.move_to(LedgerBooks(ledger, self._identity, self.offer.price))
            self._is_connected = True

    def judge(self, rows: Float[np.ndarray, "rows columns"], entropy: Entropy) -> list[bool]:
        """Whether each row is normal: all are answered, or none is looked at."""
        self._require_ledger()
        with self._voting.admitted(self._meter, len(rows), entropy) as ask:
            return [ask(count) for count in count_normal(self._members, rows)]

    def remaining(self) -> int:
        """How many more rows will be answered whatever the answers are."""
        self._require_ledger()
        return self._voting.guaranteed(self._meter)

    def spent(self) -> float:
        """The epsilon of all charges so far."""
        self._require_ledger()
        return self._meter.spent()

    def keep(self, detector: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the detector that owns this jury to its first and only file.

        Copies of an ensemble that is charged to a ledger do no harm: all share one count.
        """
        from dpflows.anomaly.persistence import save

        if self._bound is not None:
            save(detector, path, overwrite=overwrite)
            return
        with self._meter.held():
            if self._file is None:
                save(detector, path, overwrite=overwrite)
                self.charge_in(path)
            elif os.path.realpath(path) != str(self._file):
                raise InputError(
                    f"the ensemble is charged in {str(self._file)!r}; a second file would be "
                    "answered again, so move that file instead and load it"
                )

    def charge_in(self, path: str | os.PathLike[str]) -> None:
        """Write every further charge to this file, unless a ledger has them."""
        if self._bound is not None:
            return
        books = FileBooks(path, self._identity)
        self._meter.move_to(books)
        self._file = books.path

    def to_file(self) -> tuple[dict[str, Any], Arrays]:
        """A JSON-ready header and arrays."""
        members, arrays = written_members(self._members)
        taken = self._meter.taken() if self._bound is None else 0
        meter = {"taken": taken, "identity": self._identity}
        header = {"offer": self.offer.to_dict(), "members": members, "meter": meter}
        return header | {"ledger": self._bound}, arrays

    @classmethod
    def from_file(cls, header: dict[str, Any], arrays: Arrays, *, columns: int) -> "Jury":
        """Read back what ``to_file`` gave; the content may be hostile."""
        offer, meter = Offer.from_dict(header["offer"]), header["meter"]
        expected = offer.terms.voters
        members = read_members(header["members"], arrays, expected=expected, columns=columns)
        return cls(
            members,
            offer,
            taken=read_taken(meter),
            identity=_checked(meter["identity"], "identity"),
            bound=None if (bound := header.get("ledger")) is None else _checked(bound, "ledger"),
        )

    def _require_ledger(self) -> None:
        if not self._is_connected:
            raise InputError(
                "the ensemble is charged to a ledger and answers nothing without it; give the "
                "ledger that it was made with"
            )

    def __reduce__(self) -> NoReturn:
        raise InputError("an ensemble cannot be copied: a copy would be asked a second time")


def _checked(name: Any, what: str) -> str:
    """A name that a file states, which may be hostile."""
    if not isinstance(name, str) or _HEX.fullmatch(name) is None:
        raise InputError(f"the file's {what} must be 32 hexadecimal digits")
    return name
