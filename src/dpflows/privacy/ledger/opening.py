"""Finding a ledger, or making one where none is."""

from dpflows.errors import InputError
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.entries import ORIGIN, Entry, Opening, now, read_entry
from dpflows.privacy.ledger.pricing import check_accountant
from dpflows.privacy.ledger.stores import Pages, Store
from dpflows.privacy.ledger.words import random_name

DEFAULT_ACCOUNTANT = "pld"


def opened(store: Store, cap: Budget | None, accountant: str | None) -> Opening:
    """What the first row of a ledger fixes; without one and with a cap it is written."""
    found = _found(store)
    if found is None:
        found = _made(store, cap, accountant)
    _require_same(found, cap, accountant)
    return found


def _found(store: Store) -> Opening | None:
    if not store.exists():
        return None
    with store.reading() as pages:
        return _first(pages)


def _made(store: Store, cap: Budget | None, accountant: str | None) -> Opening:
    if cap is None:
        raise InputError(
            f"there is no ledger at {store.name}; name an existing one, or give its cap to make it "
            "(in Python cap=Budget(epsilon, delta), on the command line --cap-epsilon and "
            "--cap-delta)"
        )
    if not cap.is_private:
        raise InputError("epsilon of a cap must be finite: a ledger without a limit limits nothing")
    opening = Opening(random_name(), cap, check_accountant(accountant or DEFAULT_ACCOUNTANT))
    entry = Entry(number=1, state="OPENED", epsilon=0.0, time=now(), opening=opening)
    with store.creating() as pages:
        # Somebody else may have been first.
        first = _first(pages)
        if first is None:
            pages.append(entry.chained_to(ORIGIN))
        return first or opening


def _first(pages: Pages) -> Opening | None:
    row = pages.at(1)
    return None if row is None else read_entry(row, ORIGIN).opening


def _require_same(found: Opening, cap: Budget | None, accountant: str | None) -> None:
    if cap is not None and cap != found.cap:
        fixed = found.cap
        raise InputError(
            f"the ledger's cap was fixed when it was made: epsilon {fixed.epsilon:g}, delta "
            f"{fixed.delta:g}, neighbours {fixed.neighbours}; leave the cap out, or give this one"
        )
    if accountant is not None and accountant != found.accountant:
        raise InputError(
            f"the ledger's accountant was fixed when it was made: {found.accountant!r}; leave the "
            "accountant out, or give this one"
        )
