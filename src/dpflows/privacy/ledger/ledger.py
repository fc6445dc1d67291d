"""The record of everything that was ever spent on one data set."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn, final

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.checking import check_prices
from dpflows.privacy.ledger.desk import Desk
from dpflows.privacy.ledger.entries import ORIGIN, Entry, Opening, plain_events, read_entry
from dpflows.privacy.ledger.opening import opened
from dpflows.privacy.ledger.pricing import Bill, counted, total
from dpflows.privacy.ledger.receipts import Receipt
from dpflows.privacy.ledger.standing import Standing, State
from dpflows.privacy.ledger.stores import Pages, open_store
from dpflows.privacy.ledger.words import check_artefact, check_purpose, check_run, random_name


@final
class Ledger:
    """Charges every release of one data set to one budget, across runs and processes.

    Args:
        place: A file on a local disk, or ``postgresql://...``. What is not there yet is
            made if a cap is given.
        cap: What all charges together may cost; fixed when the ledger is made.
        accountant: Who prices all charges together; fixed when the ledger is made, ``pld``
            unless given. Only accountants that prove a bound are taken.

    Guarantee:
        A charge is on disk before ``reserve`` returns. It is granted only if all events of
        the ledger, this charge included, cost at most ``cap.epsilon`` at ``cap.delta``
        under ``cap.neighbours``; the sum is made while nobody else may write. A refusal
        depends on the ledger and the request alone. There is no refund. A copy of the
        ledger is another ledger, which only receipts can tell. The total bounds the cost of
        charges whose size does not depend on what earlier ones revealed; where it does,
        the accountants ``zcdp`` and ``gdp`` have a proof, ``pld`` and ``rdp`` have none.

    Example:
        >>> import tempfile
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> ledger = Ledger(f"{tempfile.mkdtemp()}/clinic.ledger", cap=Budget(1.0, 1e-6))
        >>> query = PureEvent(epsilon=Sensitivity.uniformly(0.4))
        >>> receipt = ledger.reserve([query], purpose="mean age")
        >>> round(ledger.remaining(), 3)
        0.6
        >>> ledger.reserve([query, query], purpose="two more")
        Traceback (most recent call last):
        dpflows.errors.BudgetError: the ledger's cap is epsilon 1 ...
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        cap: Budget | None = None,
        accountant: str | None = None,
    ) -> None:
        self._store = open_store(place)
        self._opening: Opening = opened(self._store, cap, accountant)
        # Each thread has its own: nothing here is locked, so a fork finds nothing locked.
        self._own = threading.local()

    @property
    def place(self) -> str:
        """Where it is, in words that hold no password."""
        return self._store.name

    @property
    def identity(self) -> str:
        """The ledger's own name, drawn at random when it was made."""
        return self._opening.identity

    @property
    def cap(self) -> Budget:
        """What all charges together may cost."""
        return self._opening.cap

    @property
    def accountant(self) -> str:
        """Who prices all charges together."""
        return self._opening.accountant

    def reserve(self, events: Sequence[Event], *, purpose: str, run: str | None = None) -> Receipt:
        """Charge ``events``, or raise and charge nothing.

        Args:
            events: What will be released.
            purpose: What for, in a few words; no value from a row.
            run: A name for the run, unique in this ledger; random if not given. A run
                that is reserved with the same events and purpose is not charged again.

        Raises:
            BudgetError: All charges together would pass the cap.
            InputError: The run was released already, or reserved with other events; or an
                event has no price under the cap's neighbours.
        """
        check_purpose(purpose)
        name = random_name() if run is None else check_run(run)
        charged = plain_events(events)
        if not charged:
            raise InputError("events must not be empty: there is nothing to charge")
        with self._writing() as desk:
            known = desk.standing.resumed(name, charged, purpose)
            if known is not None:
                return known
            epsilon = self._affordable(desk.standing, charged)
            entry = desk.write(
                state="RESERVED",
                epsilon=epsilon,
                run=name,
                purpose=purpose,
                neighbours=self.cap.neighbours,
                events=charged,
            )
            return desk.standing.receipt_of(entry)

    def require_room(self, events: Sequence[Event]) -> None:
        """Refuse what could not be charged now; writes nothing and promises nothing."""
        with self._reading() as standing:
            self._affordable(standing, plain_events(events))

    def release(self, receipt: Receipt, *, artefact: str = "") -> Receipt:
        """Mark that what a charge paid for is about to be seen.

        Args:
            receipt: What ``reserve`` gave.
            artefact: The SHA-256 of the file that is released, or nothing.

        Raises:
            InputError: The receipt is not of this ledger, or its run was released with
                another artefact.
        """
        check_artefact(artefact)
        with self._writing() as desk:
            standing = desk.standing
            standing.require(receipt)
            known = standing.marked(receipt.run, artefact)
            if known is not None:
                return known
            entry = desk.write(
                state="RELEASED", epsilon=standing.epsilon, run=receipt.run, artefact=artefact
            )
            return standing.receipt_of(entry)

    def state_of(self, run: str) -> State | None:
        """How far a run has come; nothing if it was never charged."""
        with self._reading() as standing:
            return standing.state_of(run)

    def spent(self) -> float:
        """The epsilon of all charges together at the cap's delta, as the last entry records it."""
        desk = self._held()
        if desk is not None:
            return desk.standing.epsilon
        with self._store.reading() as pages:
            return _recorded(pages)

    def remaining(self) -> float:
        """What is left of the cap's epsilon; charges compose to less than their sum."""
        return max(self.cap.epsilon - self.spent(), 0.0)

    def charged(self, purpose: str) -> int:
        """How many events, each as often as it counts, were reserved for a purpose."""
        with self._reading() as standing:
            return standing.charges[purpose]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep all others out until the block ends; what is charged inside counts then.

        Guarantee:
            Charges made inside are on disk when the block has ended, all or none. Until
            then no receipt from inside is proof of anything: release nothing before.
        """
        with self._writing():
            yield

    def history(self) -> list[Entry]:
        """All entries, each checked against those before it."""
        with self._walking() as pages:
            standing = Standing()
            return [standing.add(row) for row in pages.after(0)]

    def odometer(self) -> list[tuple[int, float]]:
        """The number of each charge and the total epsilon after it."""
        return [(e.number, e.epsilon) for e in self.history() if e.state == "RESERVED"]

    def verify(self, receipt: Receipt | None = None) -> None:
        """Check the chain, the order and the prices, and that a receipt is from this ledger.

        All rows are read again. The last total is computed again from all events, and so
        are up to a hundred earlier ones, evenly spread.

        Raises:
            InputError: A row was changed, removed or added by other means; or the receipt's
                entry is not here, because an old copy of the ledger was restored.
        """
        with self._walking() as pages:
            standing = Standing()
            entries = [standing.add(row) for row in pages.after(0)]
        if standing.opened != self._opening:
            raise InputError("another ledger was put in this one's place; put the first one back")
        if receipt is not None:
            standing.require(receipt)
        check_prices(entries, self._opening)

    def _affordable(self, standing: Standing, events: Sequence[Event]) -> float:
        """The total with the new events, or a refusal."""
        epsilon = total(Bill.of_counts(standing.counts + counted(events)), self._opening)
        # Written so that a total that is no number is refused too.
        if not epsilon <= self.cap.epsilon:
            raise BudgetError(
                f"the ledger's cap is epsilon {self.cap.epsilon:g} at delta {self.cap.delta:g}; "
                f"{standing.epsilon:.4g} is spent and with this charge it would be {epsilon:.4g}; "
                "nothing was charged, ask for less"
            )
        return epsilon

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Desk]:
        desk = self._held()
        if desk is not None:
            yield desk
            return
        with self._store.writing() as pages:
            desk = Desk(pages, self._caught_up(pages))
            self._own.desk = desk
            try:
                yield desk
            finally:
                self._own.desk = None
                self._own.standing = None if desk.has_written else desk.standing
            desk.close()
        # Not before the commit: rows that were taken back must not be remembered.
        self._own.standing = desk.standing

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Standing]:
        desk = self._held()
        if desk is not None:
            yield desk.standing
            return
        with self._store.reading() as pages:
            standing = self._caught_up(pages)
        self._own.standing = standing
        yield standing

    @contextlib.contextmanager
    def _walking(self) -> Iterator[Pages]:
        desk = self._held()
        if desk is not None:
            yield desk.pages
            return
        with self._store.reading() as pages:
            yield pages

    def _held(self) -> Desk | None:
        desk: Desk | None = getattr(self._own, "desk", None)
        if desk is not None:
            desk.require_own_process()
        return desk

    def _caught_up(self, pages: Pages) -> Standing:
        """What all rows amount to; those that this thread read before are not read again."""
        standing: Standing = getattr(self._own, "standing", None) or Standing()
        self._own.standing = None
        row = pages.at(standing.number)
        if standing.number and (row is None or row.head != standing.head):
            raise InputError(
                f"{self._store.name} lacks entries that were there before: an old copy was put in "
                "its place; put the newest one back"
            )
        for row in pages.after(standing.number):
            standing.add(row)
        if standing.opened != self._opening:
            raise InputError("another ledger was put in this one's place; put the first one back")
        return standing

    def __reduce__(self) -> NoReturn:
        raise InputError("a ledger cannot be copied; open its place again where it is needed")


def _recorded(pages: Pages) -> float:
    """The total of the last row, which must fit the row before it."""
    last = pages.last()
    if last is None:
        raise InputError("the ledger has lost its entries; put the newest copy back")
    before = pages.at(last.number - 1)
    return read_entry(last, ORIGIN if before is None else before.head).epsilon
