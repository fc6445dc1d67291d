"""The record of everything that was ever spent on one data set."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn, final

from dpflows.errors import InputError
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.compositions import DeclaredMethod, method_of, same_charges
from dpflows.privacy.ledger.desk import Desk
from dpflows.privacy.ledger.entries import (
    ORIGIN,
    Composition,
    Entry,
    Opening,
    plain_events,
    read_entry,
)
from dpflows.privacy.ledger.opening import Wishes, opened
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
        composition: ``adaptive`` (the default) grants charges that may depend on earlier
            results; ``declared`` grants only charges that were all declared before the
            first. Fixed when the ledger is made.
        accountant: Who prices the charges; fixed when the ledger is made. For ``adaptive``
            one of ``gdp-filter`` (the default), ``rdp-filter``, ``zcdp`` and ``gdp``; for
            ``declared`` any accountant that proves a bound, ``pld`` unless given.

    Guarantee:
        A charge is on disk before ``reserve`` returns. All results that were paid for
        together are private with ``cap``. With ``adaptive`` this holds even if every charge
        was chosen after looking at all earlier results: every charge but the first is
        replaced by a pair of Gaussians at least as easy to tell apart, and Gaussians of
        any sizes are increments of one Brownian motion, which is stopped before it passes
        what the first charge left of the cap (the proof is in ``docs/ledger.md``). With
        ``declared`` it holds because the results are a part of what was declared. A
        refusal depends on the ledger and the request alone. There is no refund. A copy of
        the ledger is another ledger, which only receipts can tell.

    Example:
        >>> import tempfile
        >>> from dpflows.privacy.events import GaussianEvent, Sensitivity
        >>> ledger = Ledger(f"{tempfile.mkdtemp()}/clinic.ledger", cap=Budget(1.0, 1e-6))
        >>> query = GaussianEvent(noise=10.0, sensitivity=Sensitivity.of_sum(1.0))
        >>> receipt = ledger.reserve([query], purpose="mean age")
        >>> round(ledger.spent(), 2), round(ledger.remaining(), 2)
        (0.4, 0.88)
        >>> ledger.reserve([query] * 5, purpose="five more")
        Traceback (most recent call last):
        dpflows.errors.BudgetError: the ledger's cap is epsilon 1 ...
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        cap: Budget | None = None,
        composition: str | None = None,
        accountant: str | None = None,
    ) -> None:
        self._store = open_store(place)
        self._opening: Opening = opened(self._store, Wishes(cap, composition, accountant))
        self._method = method_of(self._opening)
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

    @property
    def composition(self) -> Composition:
        """Whether charges may be chosen by earlier results, or are declared beforehand."""
        return self._opening.composition

    def declare(self, charges: Sequence[Sequence[Event]]) -> None:
        """Fix all charges that a ledger with ``composition="declared"`` will ever grant.

        Args:
            charges: The events of each charge. Each may be made once, in any order;
                purposes do not matter. The same declaration again changes nothing.

        Raises:
            BudgetError: All charges together would cost more than the cap.
            InputError: The ledger takes no declaration, or has another one.

        Example:
            >>> import tempfile
            >>> from dpflows.privacy.events import PureEvent, Sensitivity
            >>> place = f"{tempfile.mkdtemp()}/clinic.ledger"
            >>> ledger = Ledger(place, cap=Budget(1.0, 1e-6), composition="declared")
            >>> query = PureEvent(epsilon=Sensitivity.uniformly(0.4))
            >>> ledger.declare([[query], [query]])
            >>> receipt = ledger.reserve([query], purpose="mean age")
            >>> round(ledger.spent(), 2), round(ledger.remaining(), 2)
            (0.8, 0.4)
        """
        if not isinstance(self._method, DeclaredMethod):
            raise InputError(
                "the ledger takes charges as they come; make one with composition='declared'"
            )
        declared = tuple(plain_events(charge) for charge in charges)
        if not declared or not all(declared):
            raise InputError("charges must not be empty: there is nothing to declare")
        with self._writing() as desk:
            known = desk.standing.declared
            if known is None:
                terms = self._method.declare(declared)
                desk.write(state="DECLARED", declared=declared, **terms.recorded())
            elif not same_charges(known, declared):
                raise InputError(
                    "the ledger has another declaration, which cannot be changed; charge what was "
                    "declared, or make another ledger"
                )

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
            terms = self._method.charge(desk.standing, charged)
            entry = desk.write(
                state="RESERVED",
                **terms.recorded(),
                run=name,
                purpose=purpose,
                neighbours=self.cap.neighbours,
                events=charged,
            )
            return desk.standing.receipt_of(entry)

    def require_room(self, events: Sequence[Event]) -> None:
        """Refuse what could not be charged now; writes nothing and promises nothing."""
        with self._reading() as standing:
            self._method.charge(standing, plain_events(events))

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
                state="RELEASED",
                epsilon=standing.epsilon,
                remaining=standing.remaining,
                run=receipt.run,
                artefact=artefact,
            )
            return standing.receipt_of(entry)

    def state_of(self, run: str) -> State | None:
        """How far a run has come; nothing if it was never charged."""
        with self._reading() as standing:
            return standing.state_of(run)

    def spent(self) -> float:
        """What all charges cost together at the cap's delta, as the last entry records it.

        Guarantee:
            A bound if it was decided without looking at results that charging stops here.
            Whatever was decided, the cap is a bound.
        """
        desk = self._held()
        if desk is not None:
            return desk.standing.epsilon
        with self._store.reading() as pages:
            return _recorded(pages).epsilon

    def remaining(self) -> float:
        """The largest single fit still affordable: its epsilon at the cap's delta.

        Not a difference: costs do not add up like epsilons. It is the epsilon of a fit with
        Gaussian noise (a mixture, or gradient steps by the default rules), up to a margin
        of 1% in the noise. Before the first charge it is the whole cap.
        """
        desk = self._held()
        if desk is None:
            with self._store.reading() as pages:
                left = _recorded(pages).remaining
            if left is not None:
                return left
        with self._reading() as standing:
            known = standing.remaining
            return self._method.remaining(standing) if known is None else known

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

        All rows are read again. What each charge counts for is computed again from its
        events, and so are the last total and up to a hundred earlier ones, evenly spread.

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
        self._method.recheck(entries)

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


def _recorded(pages: Pages) -> Entry:
    """The last row, which must fit the row before it."""
    last = pages.last()
    if last is None:
        raise InputError("the ledger has lost its entries; put the newest copy back")
    before = pages.at(last.number - 1)
    return read_entry(last, ORIGIN if before is None else before.head)
