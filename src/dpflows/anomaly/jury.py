"""The members of an ensemble together with the meter that every answer goes through."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from jaxtyping import Float

from dpflows.anomaly.books import FileBooks, MemoryBooks, read_taken
from dpflows.anomaly.members import Member, count_normal
from dpflows.anomaly.meter import Meter
from dpflows.anomaly.offers import Offer
from dpflows.anomaly.storage import read_members, written_members
from dpflows.errors import InputError
from dpflows.privacy.randomness import Entropy

Arrays = dict[str, np.ndarray]


@final
class Jury:
    """Members that vote, a mechanism that hides the votes, and a meter that counts answers.

    Args:
        members: One per part.
        offer: What the budget buys.
        taken: How many charges were made before.
        identity: By which it knows its file; drawn if not given.

    Guarantee:
        ``judge`` is the only way from the members to the outside. It charges first.
    """

    def __init__(
        self,
        members: Sequence[Member],
        offer: Offer,
        *,
        taken: int = 0,
        identity: str | None = None,
    ) -> None:
        self._members, self._voting = tuple(members), offer.voting()
        self._meter = Meter(offer.budget, offer.price, offer.accountant, MemoryBooks(taken))
        self._identity = secrets.token_hex(16) if identity is None else identity
        self._file: Path | None = None
        self.offer = offer

    def judge(self, rows: Float[np.ndarray, "rows columns"], entropy: Entropy) -> list[bool]:
        """Whether each row is normal: all are answered, or none is looked at."""
        with self._voting.admitted(self._meter, len(rows), entropy) as ask:
            return [ask(count) for count in count_normal(self._members, rows)]

    def remaining(self) -> int:
        """How many more rows will be answered whatever the answers are."""
        return self._voting.guaranteed(self._meter)

    def spent(self) -> float:
        """The epsilon of all charges so far."""
        return self._meter.spent()

    def keep(self, detector: Any, path: str | os.PathLike[str]) -> None:
        """Write the detector that owns this jury to its first and only file."""
        from dpflows.anomaly.persistence import save

        with self._meter.held():
            if self._file is None:
                save(detector, path)
                self.charge_in(path)
            elif os.path.abspath(path) != str(self._file):
                raise InputError(
                    f"the ensemble is charged in {str(self._file)!r}; a second file would be "
                    "answered again, so move that file instead and load it"
                )

    def charge_in(self, path: str | os.PathLike[str]) -> None:
        """Write every further charge to this file before the answer is given."""
        books = FileBooks(path, self._identity)
        self._meter.move_to(books)
        self._file = books.path

    def to_file(self) -> tuple[dict[str, Any], Arrays]:
        """A JSON-ready header and arrays."""
        members, arrays = written_members(self._members)
        meter = {"taken": self._meter.taken(), "identity": self._identity}
        return {"offer": self.offer.to_dict(), "members": members, "meter": meter}, arrays

    @classmethod
    def from_file(cls, header: dict[str, Any], arrays: Arrays, *, columns: int) -> "Jury":
        """Read back what ``to_file`` gave; the content may be hostile."""
        offer, meter = Offer.from_dict(header["offer"]), header["meter"]
        expected = offer.terms.voters
        members = read_members(header["members"], arrays, expected=expected, columns=columns)
        return cls(members, offer, taken=read_taken(meter), identity=str(meter["identity"]))

    def __reduce__(self) -> NoReturn:
        raise InputError("an ensemble cannot be copied: a copy would be asked a second time")
