"""The query budget of an ensemble: every answer is charged before it is given.

The number of charges is stored in memory, in the ensemble's own file, or in a ledger.
"""

import abc
import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np

from dpflows.errors import BudgetError, InputError
from dpflows.files import is_current, lock, read_model, require_one_name, sync, write_model
from dpflows.privacy.accounting import StepFilter
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger

_ENTRY = "meter"
_RETRIES = 1000


class Transaction(abc.ABC):
    """An open transaction on the number of charges, with exclusive access."""

    taken: int

    @abc.abstractmethod
    def write(self, taken: int) -> None:
        """Replace the number; it is durable when the page is closed."""

    def require(self, count: int) -> None:  # noqa: B027 (most books have room for ever)
        """Raise if ``count`` more charges would exceed a limit here."""


class QueryCounter(abc.ABC):
    """A store of one number that only increases."""

    @abc.abstractmethod
    def opened(self) -> contextlib.AbstractContextManager[Transaction]:
        """A transaction with exclusive access until the block ends."""


@final
class MemoryCounter(QueryCounter):
    """Charges stored in memory, for one process.

    Guarantee:
        A forked process is refused, since its copy would have its own budget.

    Example:
        >>> counter = MemoryCounter(3)
        >>> with counter.opened() as transaction:
        ...     transaction.write(transaction.taken + 1)
        >>> with counter.opened() as transaction:
        ...     transaction.taken
        4
    """

    def __init__(self, taken: int = 0) -> None:
        self._transaction, self._process = _MemoryTransaction(taken), os.getpid()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Transaction]:
        """A transaction; the query budget's own lock excludes other threads."""
        if os.getpid() != self._process:
            raise InputError(
                "the ensemble was copied into another process, where it would have its own budget; "
                "save it before sharing it between processes, and load it there"
            )
        yield self._transaction


@final
class _MemoryTransaction(Transaction):
    def __init__(self, taken: int) -> None:
        self.taken = taken

    def write(self, taken: int) -> None:
        """Store the number."""
        self.taken = taken


@final
class FileCounter(QueryCounter):
    """Charges in the header of a model file that several processes may share.

    Args:
        path: The file, on a local disk.
        identity: The ensemble's random name; another ensemble's file is refused.

    Guarantee:
        ``write`` returns when the new number is on disk. The file is locked while a page is open.
        It is replaced as a whole, and its successor is locked before it takes its place, so that no
        process reads a number that is about to change. Symbolic links are followed, and a file with
        hard links is refused in every transaction. A copy of the file is another file with its own
        count.
    """

    def __init__(self, path: str | os.PathLike[str], identity: str) -> None:
        self.path, self.identity = Path(os.path.realpath(path)), identity

    @contextlib.contextmanager
    def opened(self) -> Iterator[Transaction]:
        """A transaction on the number, read under the lock."""
        transaction = _FileTransaction(self.path, _locked(self.path))
        try:
            transaction.require_one_name()
            transaction.read(self.identity)
            yield transaction
        finally:
            transaction.close()


@final
class _FileTransaction(Transaction):
    """A locked file; the lock is passed on when the file is replaced."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._header: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self.taken = 0

    def read(self, identity: str) -> None:
        """Read the number from the file, if it is still the ensemble's own."""
        self._header, self._arrays = read_model(self._path)
        entry = self._header.get(_ENTRY)
        if not isinstance(entry, dict) or entry.get("identity") != identity:
            raise InputError(
                f"{str(self._path)!r} is no longer the file of this ensemble; load it again"
            )
        self.taken = read_taken(entry)

    def require_one_name(self) -> None:
        """Refuse a file that would have its old number under another name."""
        require_one_name(os.fstat(self._descriptor), self._path, "an ensemble")

    def write(self, taken: int) -> None:
        """Replace the file by a locked successor."""
        self.require_one_name()
        # One name is enough under the lock, and a killed process leaves one file at most.
        successor = self._path.with_name(f".{self._path.name}.next")
        entry = self._header[_ENTRY] | {"taken": taken}
        write_model(successor, header=self._header | {_ENTRY: entry}, arrays=self._arrays)
        descriptor = os.open(successor, os.O_RDONLY | os.O_CLOEXEC)
        lock(descriptor, successor, wait=True)
        os.replace(successor, self._path)
        sync(self._path.parent)
        self._header[_ENTRY] = entry
        self.taken = taken
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


@final
class LedgerCounter(QueryCounter):
    """Charges in the ledger of the data set, under the ensemble's own purpose.

    Args:
        ledger: The ledger.
        identity: The ensemble's random name; all copies of its file share it and the count.
        price: The event of one charge.

    Guarantee:
        During a transaction no other charge is made. Its charges are committed together when it
        ends without an error, and before then nothing may be answered. The ledger's cap must
        suffice as well as the ensemble's budget.

    Example:
        >>> import tempfile
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> from dpflows.privacy.guarantee import Budget
        >>> ledger = Ledger(f"{tempfile.mkdtemp()}/clinic.ledger", cap=Budget(1.0, 1e-6))
        >>> counter = LedgerCounter(ledger, "0f", PureEvent(epsilon=Sensitivity.uniformly(0.2)))
        >>> with counter.opened() as transaction:
        ...     transaction.write(transaction.taken + 2)
        >>> round(ledger.spent(), 3), ledger.charged("answers of ensemble 0f")
        (0.4, 2)
    """

    def __init__(self, ledger: Ledger, identity: str, event: Event) -> None:
        self.ledger, self._event = ledger, event
        self._purpose = f"answers of ensemble {identity}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[Transaction]:
        """The number, inside one transaction of the ledger."""
        with self.ledger.held():
            yield _LedgerTransaction(self.ledger, self._purpose, self._event)


@final
class _LedgerTransaction(Transaction):
    """The charges of one ensemble in a ledger."""

    def __init__(self, ledger: Ledger, purpose: str, event: Event) -> None:
        self._ledger, self._purpose, self._event = ledger, purpose, event
        self.taken = ledger.charged(purpose)

    def write(self, taken: int) -> None:
        """Charge the difference and record the answers as released."""
        receipt = self._ledger.reserve([self._charges(taken - self.taken)], purpose=self._purpose)
        self._ledger.release(receipt)
        self.taken = taken

    def require(self, count: int) -> None:
        """Raise if the charges would exceed the ledger's cap."""
        if count > 0:
            self._ledger.require_room([self._charges(count)])

    def _charges(self, count: int) -> Event:
        return dataclasses.replace(self._event, count=count)


def read_taken(entry: dict[str, Any]) -> int:
    """The number of charges in a file, which may be hostile."""
    taken = entry["taken"]
    if type(taken) is not int or taken < 0:
        raise InputError("the file's number of charges must be a whole number of at least 0")
    return taken


def _locked(path: Path) -> int:
    """A locked descriptor of the file that the path names now."""
    for _ in range(_RETRIES):
        descriptor = _open(path)
        lock(descriptor, path, wait=True)
        if is_current(path, descriptor):
            return descriptor
        # It was replaced while we waited for the lock of its predecessor.
        os.close(descriptor)
    raise InputError(f"cannot lock {str(path)!r}: too many processes are changing it; try again")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(
            f"cannot charge {str(path)!r}: {error.strerror}; the ensemble answers only while its "
            "file is in its place; restore the file, then try again"
        ) from None


@final
class QueryBudget:
    """Grants as many charges as a budget allows, across threads and processes.

    Args:
        budget: The budget of all charges together.
        price: The event of one charge.
        accountant: The accountant's name.
        books: The store of the number of charges; in memory unless given.

    Guarantee:
        From any number of threads, and of processes if the books are a file, no more than ``limit``
        charges are granted, and a charge is stored before ``charge`` returns. A refusal depends
        only on the number of charges. The limit follows from tight composition of equal charges,
        which holds for queries chosen by earlier answers.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> event = PureEvent(epsilon=Sensitivity.uniformly(0.25))
        >>> queries = QueryBudget(Budget(1.0, 1e-9), event, "pld")
        >>> queries.charge(3), queries.remaining()
        (0, 1)
        >>> queries.charge(2)
        Traceback (most recent call last):
        dpflows.errors.BudgetError: the budget allows 1 more, but 2 were requested; ...
    """

    def __init__(
        self, budget: Budget, event: Event, accountant: str, counter: QueryCounter | None = None
    ) -> None:
        self._gate = StepFilter(budget, event, accountant=accountant)
        self._counter: QueryCounter = MemoryCounter() if counter is None else counter
        self._lock = threading.RLock()
        self._transaction: Transaction | None = None

    @property
    def limit(self) -> int:
        """Number of charges that the budget allows in total."""
        return self._gate.limit

    def charge(self, count: int) -> int:
        """Make ``count`` charges, all or none; returns the number of charges before them."""
        with self._lock:
            # Charges are never taken back, so what is known to be spent may refuse at once.
            self._require(count)
            with self.held() as transaction:
                self._require(count)
                before = self._gate.taken
                self._gate.request(count)
                transaction.write(self._gate.taken)
                return before

    @contextlib.contextmanager
    def held(self) -> Iterator[Transaction]:
        """Lock the query budget until the block ends, also for other processes."""
        with self._lock:
            if self._transaction is not None:
                yield self._transaction
                return
            with self._counter.opened() as transaction:
                self._gate.taken = transaction.taken
                self._transaction = transaction
                try:
                    yield transaction
                finally:
                    self._transaction = None

    def require(self, count: int) -> None:
        """Raise if ``count`` charges would exceed the budget; for use while held."""
        with self.held() as transaction:
            self._require(count)
            transaction.require(count)

    def remaining(self) -> int:
        """Number of charges left."""
        with self.held():
            return max(self.limit - self._gate.taken, 0)

    def taken(self) -> int:
        """Number of charges granted."""
        with self.held():
            return self._gate.taken

    def spent(self) -> float:
        """The epsilon of the charges granted so far."""
        with self.held():
            return self._gate.spent() if self._gate.taken else 0.0

    def move_to(self, counter: QueryCounter) -> None:
        """Store further charges there."""
        with self._lock:
            self._counter = counter

    def _require(self, count: int) -> None:
        left = max(self.limit - self._gate.taken, 0)
        if count > left:
            raise BudgetError(
                f"the budget allows {left} more, but {count} were requested; none was "
                "answered and nothing was charged"
            )

    def __reduce__(self) -> NoReturn:
        raise InputError("a query budget cannot be copied: a copy would have its own budget")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise InputError("a query budget cannot be copied: a copy would have its own budget")
