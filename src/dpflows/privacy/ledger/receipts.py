"""The proof of a charge, which travels with the release it paid for."""

import dataclasses
import math
from typing import Any, final

from dpflows.errors import InputError
from dpflows.privacy.ledger.words import check_run, is_digest, is_hex

_LARGEST_ENTRY = 2**53


@final
@dataclasses.dataclass(frozen=True)
class Receipt:
    """Where a charge stands in which ledger.

    Attributes:
        ledger: The ledger's identity.
        run: The run that was charged.
        entry: The number of the entry.
        head: The hash of that entry, which depends on every entry before it.
        epsilon: The ledger's total after the entry.

    Guarantee:
        Whoever holds a receipt notices when an older copy of the ledger was put in its
        place: the older copy has no entry with this head. A receipt is no signature.

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
    return InputError("the receipt cannot be read; take the one that the ledger gave")
