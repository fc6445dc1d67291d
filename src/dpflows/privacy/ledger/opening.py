"""Finding a ledger, or making one where none is."""

import dataclasses
from typing import cast

from dpflows.errors import InputError
from dpflows.privacy.events import check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.compositions import check_choice_of
from dpflows.privacy.ledger.entries import (
    COMPOSITIONS,
    ORIGIN,
    Composition,
    Entry,
    Opening,
    now,
    read_entry,
)
from dpflows.privacy.ledger.stores import Pages, Store
from dpflows.privacy.ledger.words import random_name


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the caller wants a ledger to be; ``None`` leaves it to the ledger.

    Attributes:
        cap: What all charges together may cost.
        composition: Whether charges may be chosen by earlier results.
        accountant: Who prices them.
    """

    cap: Budget | None
    composition: str | None
    accountant: str | None


def opened(store: Store, wishes: Wishes) -> Opening:
    """What the first row of a ledger fixes; without one and with a cap it is written."""
    if wishes.composition is not None:
        check_choice("composition", wishes.composition, COMPOSITIONS)
    found = _found(store)
    if found is None:
        found = _made(store, wishes)
    _require_same(found, wishes)
    return found


def _found(store: Store) -> Opening | None:
    if not store.exists():
        return None
    with store.reading() as pages:
        return _first(pages)


def _made(store: Store, wishes: Wishes) -> Opening:
    cap, composition = wishes.cap, cast(Composition, wishes.composition or "adaptive")
    if cap is None:
        raise InputError(
            f"there is no ledger at {store.name}; name an existing one, or give its cap to make it "
            "(in Python cap=Budget(epsilon, delta), on the command line --cap-epsilon and "
            "--cap-delta)"
        )
    if not cap.is_private:
        raise InputError("epsilon of a cap must be finite: a ledger without a limit limits nothing")
    accountant = check_choice_of(composition, wishes.accountant)
    opening = Opening(random_name(), cap, accountant, composition)
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


def _require_same(found: Opening, wishes: Wishes) -> None:
    if wishes.cap is not None and wishes.cap != found.cap:
        fixed = found.cap
        raise InputError(
            f"the ledger's cap was fixed when it was made: epsilon {fixed.epsilon:g}, delta "
            f"{fixed.delta:g}, neighbours {fixed.neighbours}; leave the cap out, or give this one"
        )
    for name in ("composition", "accountant"):
        wanted, fixed_name = getattr(wishes, name), getattr(found, name)
        if wanted is not None and wanted != fixed_name:
            raise InputError(
                f"the ledger's {name} was fixed when it was made: {fixed_name!r}; leave the "
                f"{name} out, or give this one"
            )
