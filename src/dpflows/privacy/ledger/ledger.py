"""The ledger of a data set: opening, charging, verifying and publishing.

``Ledger`` opens a ledger, or creates one with a cap, and charges releases in transactions.
``publish`` and ``recover`` do the last steps of a release: the file is written safely, the
ledger records it, and only then does it become visible.
"""

import contextlib
import dataclasses
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast, final

from dpflows.errors import InputError
from dpflows.files import artefact_digest, give_name, require_absent, sync
from dpflows.privacy.events import Event, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger.compositions import (
    DeclaredMethod,
    LedgerState,
    RunState,
    check_choice_of,
    method_of,
    same_charges,
)
from dpflows.privacy.ledger.entries import (
    COMPOSITIONS,
    ORIGIN,
    Composition,
    Entry,
    Opening,
    Receipt,
    check_artefact,
    check_purpose,
    check_run,
    now,
    plain_events,
    random_name,
    read_entry,
)
from dpflows.privacy.ledger.stores import Store, StoredRows, open_store


@final
class LedgerTransaction:
    """An open transaction, in which no one else can add rows.

    Guarantee:
        Nothing is committed after a row could not be added, or in another process than
        the one that opened the transaction.
    """

    def __init__(self, stored: StoredRows, state: LedgerState) -> None:
        self.stored, self.state = stored, state
        self._process, self._broken = os.getpid(), False
        self.has_written = False

    def write(self, **fields: Any) -> Entry:
        """Chain an entry to the last one."""
        entry = Entry(number=self.state.number + 1, time=now(), **fields)
        row = entry.chained_to(self.state.head)
        self._broken = self.has_written = True
        self.stored.append(row)
        written = self.state.add(row)
        self._broken = False
        return written

    def close(self) -> None:
        """Refuse to commit an incomplete transaction."""
        self.require_own_process()
        if self._broken:
            raise InputError("a row could not be added to the ledger; nothing was granted")

    def require_own_process(self) -> None:
        """Refuse a process that was forked in the middle of a transaction."""
        if os.getpid() != self._process:
            raise InputError(
                "a ledger that is held cannot be used in a forked process; fork before or after"
            )


@dataclasses.dataclass(frozen=True)
class LedgerSettings:
    """The caller's settings for a ledger; ``None`` accepts those of the ledger.

    Attributes:
        cap: The budget of all charges together.
        composition: Whether charges may be chosen by earlier results.
        accountant: The accountant's name.
    """

    cap: Budget | None
    composition: str | None
    accountant: str | None


def opened(store: Store, settings: LedgerSettings) -> Opening:
    """The first entry of a ledger; it is written if there is none and a cap is given."""
    if settings.composition is not None:
        check_choice("composition", settings.composition, COMPOSITIONS)
    found = _found(store)
    if found is None:
        found = _made(store, settings)
    _require_same(found, settings)
    return found


def _found(store: Store) -> Opening | None:
    if not store.exists():
        return None
    with store.reading() as stored:
        return _first(stored)


def _made(store: Store, settings: LedgerSettings) -> Opening:
    cap, composition = settings.cap, cast(Composition, settings.composition or "adaptive")
    if cap is None:
        raise InputError(
            f"there is no ledger at {store.name}; name an existing one, or give a cap to create it "
            "(in Python cap=Budget(epsilon, delta), on the command line --cap-epsilon and "
            "--cap-delta)"
        )
    if not cap.is_private:
        raise InputError("epsilon of a cap must be finite: a ledger needs a limit")
    accountant = check_choice_of(composition, settings.accountant)
    opening = Opening(random_name(), cap, accountant, composition)
    entry = Entry(number=1, state="OPENED", epsilon=0.0, time=now(), opening=opening)
    with store.creating() as stored:
        # Somebody else may have been first.
        first = _first(stored)
        if first is None:
            stored.append(entry.chained_to(ORIGIN))
        return first or opening


def _first(stored: StoredRows) -> Opening | None:
    row = stored.at(1)
    return None if row is None else read_entry(row, ORIGIN).opening


def _require_same(found: Opening, settings: LedgerSettings) -> None:
    if settings.cap is not None and settings.cap != found.cap:
        fixed = found.cap
        raise InputError(
            f"the ledger's cap was fixed when it was created: epsilon {fixed.epsilon:g}, delta "
            f"{fixed.delta:g}, neighbours {fixed.neighbours}; remove the cap, or give this one"
        )
    for name in ("composition", "accountant"):
        wanted, fixed_name = getattr(settings, name), getattr(found, name)
        if wanted is not None and wanted != fixed_name:
            raise InputError(
                f"the ledger's {name} was fixed when it was created: {fixed_name!r}; remove the "
                f"{name}, or give this one"
            )


@final
class Ledger:
    """Charges every release of one data set to one budget, across runs and processes.

    Args:
        place: A file on a local disk, or ``postgresql://...``. It is created if it does not exist
        and a cap is given.
        cap: The budget of all charges together; fixed when the ledger is created.
        composition: ``adaptive`` (the default) grants charges that may depend on earlier
            results; ``declared`` grants only charges that were all declared before the
            first. Fixed when the ledger is created.
        accountant: The accountant of the charges; fixed when the ledger is created. For
        ``adaptive``
            one of ``gdp-filter`` (the default), ``rdp-filter``, ``zcdp`` and ``gdp``; for
            ``declared`` any accountant that proves a bound, ``pld`` unless given.

    Guarantee:
        A charge is on disk before ``reserve`` returns. All charged results together satisfy
        ``cap``. With ``adaptive`` this holds even if every charge was chosen after looking at all
        earlier results: every charge but the first is replaced by a dominating pair of Gaussians,
        and Gaussians of any sizes are increments of one Brownian motion, which is stopped before it
        exceeds what the first charge left of the cap (the proof is in ``docs/ledger.md``). With
        ``declared`` it holds because the results are a part of what was declared. A refusal depends
        only on the ledger and the request. A charge is never undone. A copy of the ledger is
        another ledger, which only receipts can detect.

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
        self._opening: Opening = opened(self._store, LedgerSettings(cap, composition, accountant))
        self._method = method_of(self._opening)
        # Each thread has its own: nothing here is locked, so a fork finds nothing locked.
        self._own = threading.local()

    @property
    def place(self) -> str:
        """The ledger's location, without passwords."""
        return self._store.name

    @property
    def identity(self) -> str:
        """The ledger's random name, drawn when it was created."""
        return self._opening.identity

    @property
    def cap(self) -> Budget:
        """The budget of all charges together."""
        return self._opening.cap

    @property
    def accountant(self) -> str:
        """The accountant's name."""
        return self._opening.accountant

    @property
    def composition(self) -> Composition:
        """``adaptive`` (charges may depend on earlier results) or ``declared``."""
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
                "the ledger does not take declarations; create one with composition='declared'"
            )
        declared = tuple(plain_events(charge) for charge in charges)
        if not declared or not all(declared):
            raise InputError("charges must not be empty; give the events of each charge")
        with self._writing() as transaction:
            known = transaction.state.declared
            if known is None:
                grant = self._method.declare(declared)
                transaction.write(state="DECLARED", declared=declared, **grant.recorded())
            elif not same_charges(known, declared):
                raise InputError(
                    "the ledger has another declaration, which cannot be changed; make the "
                    "declared charges, or create another ledger"
                )

    def reserve(self, events: Sequence[Event], *, purpose: str, run: str | None = None) -> Receipt:
        """Charge ``events``; raises if they do not fit, and then charges nothing.

        Args:
            events: The events that will be released.
            purpose: A short description, without any value from a row.
            run: A name for the run, unique in this ledger; random if not given. A run
                that is reserved with the same events and purpose is not charged again.

        Raises:
            BudgetError: All charges together would exceed the cap.
            InputError: The run was released already, or reserved with other events; or the cost of
            an event is unknown under the cap's neighbours.
        """
        check_purpose(purpose)
        name = random_name() if run is None else check_run(run)
        charged = plain_events(events)
        if not charged:
            raise InputError("events must not be empty; give the events to charge")
        with self._writing() as transaction:
            known = transaction.state.resumed(name, charged, purpose)
            if known is not None:
                return known
            grant = self._method.charge(transaction.state, charged)
            entry = transaction.write(
                state="RESERVED",
                **grant.recorded(),
                run=name,
                purpose=purpose,
                neighbours=self.cap.neighbours,
                events=charged,
            )
            return transaction.state.receipt_of(entry)

    def require_room(self, events: Sequence[Event]) -> None:
        """Raise if a charge would be refused now; writes and reserves nothing."""
        with self._reading() as state:
            self._method.charge(state, plain_events(events))

    def release(self, receipt: Receipt, *, artefact: str = "") -> Receipt:
        """Record that a charged release is about to become visible.

        Args:
            receipt: The receipt from ``reserve``.
            artefact: The SHA-256 of the released file, or empty.

        Raises:
            InputError: The receipt is not of this ledger, or its run was released with
                another artefact.
        """
        check_artefact(artefact)
        with self._writing() as transaction:
            state = transaction.state
            state.require(receipt)
            known = state.marked(receipt.run, artefact)
            if known is not None:
                return known
            entry = transaction.write(
                state="RELEASED",
                epsilon=state.epsilon,
                remaining=state.remaining,
                run=receipt.run,
                artefact=artefact,
            )
            return state.receipt_of(entry)

    def state_of(self, run: str) -> RunState | None:
        """The state of a run; ``None`` if it was never charged."""
        with self._reading() as state:
            return state.state_of(run)

    def spent(self) -> float:
        """The epsilon of all charges together at the cap's delta, as the last entry records it.

        Guarantee:
            A bound if the decision to stop charging here did not depend on results. The cap is a
            bound in any case.
        """
        transaction = self._held()
        if transaction is not None:
            return transaction.state.epsilon
        with self._store.reading() as stored:
            return _recorded(stored).epsilon

    def remaining(self) -> float:
        """The epsilon, at the cap's delta, that remains for one further fit.

        Not a difference: costs do not add up like epsilons. It is the epsilon of a fit with
        Gaussian noise (a mixture, or gradient steps by the default rules), up to a margin
        of 1% in the noise. Before the first charge it is the whole cap.
        """
        transaction = self._held()
        if transaction is None:
            with self._store.reading() as stored:
                left = _recorded(stored).remaining
            if left is not None:
                return left
        with self._reading() as state:
            known = state.remaining
            return self._method.remaining(state) if known is None else known

    def charged(self, purpose: str) -> int:
        """How many events, each as often as it counts, were reserved for a purpose."""
        with self._reading() as state:
            return state.charges[purpose]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the ledger until the block ends; charges made inside take effect then.

        Guarantee:
            Charges made inside are on disk when the block has ended, all or none. Until then a
            receipt from inside proves nothing: release nothing before.
        """
        with self._writing():
            yield

    def history(self) -> list[Entry]:
        """All entries, each checked against those before it."""
        with self._walking() as stored:
            state = LedgerState()
            return [state.add(row) for row in stored.after(0)]

    def odometer(self) -> list[tuple[int, float]]:
        """The number of each charge and the total epsilon after it."""
        return [(e.number, e.epsilon) for e in self.history() if e.state == "RESERVED"]

    def verify(self, receipt: Receipt | None = None) -> None:
        """Check the hash chain, the order and the costs, and that a receipt is from this ledger.

        All rows are read again. The cost of each charge is recomputed from its events, and so are
        the last total and up to a hundred earlier ones, evenly spaced.

        Raises:
            InputError: A row was changed, removed or added by another program; or the receipt's
                entry is not here, because the ledger was replaced by an older copy.
        """
        with self._walking() as stored:
            state = LedgerState()
            entries = [state.add(row) for row in stored.after(0)]
        if state.opened != self._opening:
            raise InputError("the ledger was replaced by another one; restore the original")
        if receipt is not None:
            state.require(receipt)
        self._method.recheck(entries)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[LedgerTransaction]:
        transaction = self._held()
        if transaction is not None:
            yield transaction
            return
        with self._store.writing() as stored:
            transaction = LedgerTransaction(stored, self._caught_up(stored))
            self._own.transaction = transaction
            try:
                yield transaction
            finally:
                self._own.transaction = None
                self._own.state = None if transaction.has_written else transaction.state
            transaction.close()
        # Not before the commit: rows that were taken back must not be remembered.
        self._own.state = transaction.state

    @contextlib.contextmanager
    def _reading(self) -> Iterator[LedgerState]:
        transaction = self._held()
        if transaction is not None:
            yield transaction.state
            return
        with self._store.reading() as stored:
            state = self._caught_up(stored)
        self._own.state = state
        yield state

    @contextlib.contextmanager
    def _walking(self) -> Iterator[StoredRows]:
        transaction = self._held()
        if transaction is not None:
            yield transaction.stored
            return
        with self._store.reading() as stored:
            yield stored

    def _held(self) -> LedgerTransaction | None:
        transaction: LedgerTransaction | None = getattr(self._own, "transaction", None)
        if transaction is not None:
            transaction.require_own_process()
        return transaction

    def _caught_up(self, stored: StoredRows) -> LedgerState:
        """The state after all rows; those that this thread has read are not read again."""
        state: LedgerState = getattr(self._own, "state", None) or LedgerState()
        self._own.state = None
        row = stored.at(state.number)
        if state.number and (row is None or row.head != state.head):
            raise InputError(
                f"{self._store.name} lacks entries that it had before: it was replaced by an older "
                "copy; restore the newest copy"
            )
        for row in stored.after(state.number):
            state.add(row)
        if state.opened != self._opening:
            raise InputError("the ledger was replaced by another one; restore the original")
        return state

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a ledger object cannot be copied; open the ledger again where it is needed"
        )


def _recorded(stored: StoredRows) -> Entry:
    """The last row, which must match the row before it."""
    last = stored.last()
    if last is None:
        raise InputError("the ledger has lost its entries; restore the newest copy")
    before = stored.at(last.number - 1)
    return read_entry(last, ORIGIN if before is None else before.head)


def pending_files(path: str | os.PathLike[str], run: str) -> list[Path]:
    """The pending files of a run beside ``path``, not yet recorded as released.

    Each publishing process has its own; only the one whose digest the ledger records is released.

    Example:
        >>> import tempfile
        >>> pending_files(f"{tempfile.mkdtemp()}/model.dpflow", "night-7")
        []
    """
    target, (start, end) = Path(path), _affixes(path, run)
    names = os.listdir(target.parent) if target.parent.is_dir() else ()
    return [target.with_name(n) for n in sorted(names) if n.startswith(start) and n.endswith(end)]


def _affixes(path: str | os.PathLike[str], run: str) -> tuple[str, str]:
    target, tag = Path(path), hashlib.sha256(run.encode()).hexdigest()[:12]
    return f".{target.stem}.{tag}.", f"pending{target.suffix}"


def _new_pending(path: str | os.PathLike[str], run: str) -> Path:
    start, end = _affixes(path, run)
    return Path(path).with_name(f"{start}{secrets.token_hex(8)}.{end}")


def publish(
    ledger: Ledger,
    receipt: Receipt,
    path: str | os.PathLike[str],
    write: Callable[[Path], None],
    *,
    overwrite: bool = True,
) -> Receipt:
    """Write a file under a pending name, record it as released, then rename it.

    Args:
        ledger: The ledger that was charged.
        receipt: The receipt from ``reserve``; the charge must be committed.
        path: The file's final name.
        write: Writes the file to the path it is given.
        overwrite: Whether an existing file with the final name may be overwritten.

    Guarantee:
        Whenever the process ends, a file with the final name has a charge, and the ledger records
        its digest. If it ends between the record and the renaming, the pending file remains, which
        ``recover`` renames. Of several processes that publish under one receipt, under any names,
        one succeeds; the others are refused and leave no file, unless all hold the same content.

    Example:
        >>> import tempfile
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> from dpflows.privacy.guarantee import Budget
        >>> folder = tempfile.mkdtemp()
        >>> ledger = Ledger(f"{folder}/clinic.ledger", cap=Budget(1.0, 1e-6))
        >>> query = PureEvent(epsilon=Sensitivity.uniformly(0.4))
        >>> receipt = ledger.reserve([query], purpose="mean age")
        >>> marked = publish(ledger, receipt, f"{folder}/mean.txt", lambda p: p.write_text("41"))
        >>> ledger.state_of(receipt.run).name, sorted(os.listdir(folder))
        ('RELEASED', ['clinic.ledger', 'mean.txt'])
    """
    _require_unreleased(ledger, receipt)
    if not overwrite:
        require_absent(path)
    target, pending = Path(path), _new_pending(path, receipt.run)
    with _removed_on_failure(pending):
        write(pending)
        sync(pending)
        sync(pending.parent)
        artefact = _digest(pending)
    with _removed_if_unmarked(ledger, receipt.run, pending, artefact):
        marked = ledger.release(receipt, artefact=artefact)
    _reveal(pending, target, overwrite)
    return marked


def recover(
    ledger: Ledger, run: str, path: str | os.PathLike[str], *, overwrite: bool = True
) -> bool:
    """Finish a release that was recorded but not renamed; whether ``path`` now holds it.

    Guarantee:
        Only a file whose digest the ledger records as released gets the name.
    """
    state = ledger.state_of(run)
    if state is None or not state.artefact:
        return False
    target = Path(path)
    for pending in pending_files(path, run):
        if not _holds(pending, state.artefact):
            continue
        if _holds(target, state.artefact):
            # a death while the name was given may have left the file under both names
            pending.unlink(missing_ok=True)
        else:
            _reveal(pending, target, overwrite)
        break
    return _holds(target, state.artefact)


def _require_unreleased(ledger: Ledger, receipt: Receipt) -> None:
    state = ledger.state_of(receipt.run)
    if state is None or state.is_released:
        why = "was never charged" if state is None else "was released already"
        raise InputError(
            f"run {receipt.run!r} {why} in this ledger; recover its file with recover(...), or "
            "start a new run"
        )


@contextlib.contextmanager
def _removed_on_failure(pending: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        pending.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _removed_if_unmarked(ledger: Ledger, run: str, pending: Path, artefact: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # A commit may fail to answer and yet be on disk: then the file is to be recovered.
        # What another process released instead leaves this one without a charge.
        state = ledger.state_of(run)
        if state is None or state.artefact != artefact:
            pending.unlink(missing_ok=True)
        raise


def _reveal(pending: Path, target: Path, overwrite: bool) -> None:
    give_name(pending, target, overwrite=overwrite)


def _holds(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def _digest(path: Path) -> str:
    # signing a file later must not make another one of it
    return artefact_digest(path)
