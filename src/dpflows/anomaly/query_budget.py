"""Where charges are written down: in memory, in the ensemble's own file, or in a ledger.

Counts what was paid for: first the charge, then the answer, never the other way.
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
from dpflows.files import read_model, sync, write_model
from dpflows.locking import is_current, lock, require_one_name
from dpflows.privacy.accounting import StepFilter
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger

_ENTRY = "meter"
_RETRIES = 1000


class Page(abc.ABC):
    """The number of charges, open for writing while nobody else may read or write it."""

    taken: int

    @abc.abstractmethod
    def write(self, taken: int) -> None:
        """Replace the number; it is safe when the page is closed."""

    def require(self, count: int) -> None:  # noqa: B027 (most books have room for ever)
        """Refuse now if ``count`` more charges would not find room here."""


class Book(abc.ABC):
    """Keeps one number that only grows."""

    @abc.abstractmethod
    def opened(self) -> contextlib.AbstractContextManager[Page]:
        """The page, closed to all others until the block ends."""


@final
class MemoryBooks(Book):
    """Charges of one process; they end with it.

    Guarantee:
        A process that was forked off is refused, since its copy would be spent again.

    Example:
        >>> books = MemoryBooks(3)
        >>> with books.opened() as page:
        ...     page.write(page.taken + 1)
        >>> with books.opened() as page:
        ...     page.taken
        4
    """

    def __init__(self, taken: int = 0) -> None:
        self._page, self._process = _Note(taken), os.getpid()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Page]:
        """The page; the meter's own lock keeps other threads out."""
        if os.getpid() != self._process:
            raise InputError(
                "the ensemble was copied into another process, where its budget would be spent "
                "again; save it before processes share it, and load it there"
            )
        yield self._page


@final
class _Note(Page):
    def __init__(self, taken: int) -> None:
        self.taken = taken

    def write(self, taken: int) -> None:
        """Keep the number."""
        self.taken = taken


@final
class FileBooks(Book):
    """Charges in the header of a model file that several processes may share.

    Args:
        path: The file, on a local disk.
        identity: The ensemble's own; any other ensemble's file is refused.

    Guarantee:
        ``write`` returns when the new number is on disk. The file is locked while a page
        is open. It is replaced as a whole, and its successor is locked before it takes
        its place, so that no process reads a number that is about to change.
        One file has one number, by whatever name it is reached: symbolic links are
        followed to it, and a file with hard links is refused, at every page.
        A copy of the file is another file, and counts by itself.
    """

    def __init__(self, path: str | os.PathLike[str], identity: str) -> None:
        self.path, self.identity = Path(os.path.realpath(path)), identity

    @contextlib.contextmanager
    def opened(self) -> Iterator[Page]:
        """The page, read afresh under the lock."""
        page = _Sheet(self.path, _locked(self.path))
        try:
            page.require_one_name()
            page.read(self.identity)
            yield page
        finally:
            page.close()


@final
class _Sheet(Page):
    """A locked file; the lock follows the file from version to version."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._header: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self.taken = 0

    def read(self, identity: str) -> None:
        """Take the number from the file, if it is still the ensemble's own."""
        self._header, self._arrays = read_model(self._path)
        entry = self._header.get(_ENTRY)
        if not isinstance(entry, dict) or entry.get("identity") != identity:
            raise InputError(
                f"{str(self._path)!r} is no longer the file of this ensemble; load it again"
            )
        self.taken = read_taken(entry)

    def require_one_name(self) -> None:
        """Refuse a file that would keep its old number under another name."""
        require_one_name(os.fstat(self._descriptor), self._path, "an ensemble")

    def write(self, taken: int) -> None:
        """Put a locked successor in the file's place."""
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
        """Let others in."""
        os.close(self._descriptor)


@final
class LedgerBooks(Book):
    """Charges in the ledger of the data set, under the ensemble's own purpose.

    Args:
        ledger: The ledger.
        identity: The ensemble's own; every copy of its file shares it, and the count.
        price: One charge.

    Guarantee:
        While a page is open nobody else is charged. What was written on it is committed,
        all or nothing, when it is closed without an error, and before then nothing may
        be answered. Besides the ensemble's own budget the ledger's cap has to suffice.

    Example:
        >>> import tempfile
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> from dpflows.privacy.guarantee import Budget
        >>> ledger = Ledger(f"{tempfile.mkdtemp()}/clinic.ledger", cap=Budget(1.0, 1e-6))
        >>> books = LedgerBooks(ledger, "0f", PureEvent(epsilon=Sensitivity.uniformly(0.2)))
        >>> with books.opened() as page:
        ...     page.write(page.taken + 2)
        >>> round(ledger.spent(), 3), ledger.charged("answers of ensemble 0f")
        (0.4, 2)
    """

    def __init__(self, ledger: Ledger, identity: str, price: Event) -> None:
        self.ledger, self._price = ledger, price
        self._purpose = f"answers of ensemble {identity}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[Page]:
        """The page, inside one transaction of the ledger."""
        with self.ledger.held():
            yield _Account(self.ledger, self._purpose, self._price)


@final
class _Account(Page):
    """What a ledger says about one ensemble."""

    def __init__(self, ledger: Ledger, purpose: str, price: Event) -> None:
        self._ledger, self._purpose, self._price = ledger, purpose, price
        self.taken = ledger.charged(purpose)

    def write(self, taken: int) -> None:
        """Charge the difference; the answers follow at once, so the run ends here."""
        receipt = self._ledger.reserve([self._charges(taken - self.taken)], purpose=self._purpose)
        self._ledger.release(receipt)
        self.taken = taken

    def require(self, count: int) -> None:
        """Refuse what would pass the ledger's cap."""
        if count > 0:
            self._ledger.require_room([self._charges(count)])

    def _charges(self, count: int) -> Event:
        return dataclasses.replace(self._price, count=count)


def read_taken(entry: dict[str, Any]) -> int:
    """The number of charges that a file states, which may be hostile."""
    taken = entry["taken"]
    if type(taken) is not int or taken < 0:
        raise InputError("the file's number of charges must be a whole number of at least 0")
    return taken


def _locked(path: Path) -> int:
    """A locked descriptor of the file that has the name now."""
    for _ in range(_RETRIES):
        descriptor = _open(path)
        lock(descriptor, path, wait=True)
        if is_current(path, descriptor):
            return descriptor
        # It was replaced while we waited for the lock of its predecessor.
        os.close(descriptor)
    raise InputError(f"cannot lock {str(path)!r}: too many processes change it; ask again")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(
            f"cannot charge {str(path)!r}: {error.strerror}; the ensemble answers only while its "
            "file is where it was"
        ) from None


@final
class Meter:
    """Lets through as many charges as a budget allows, whoever asks and from wherever.

    Args:
        budget: What all charges together may cost.
        price: One charge.
        accountant: Who prices them.
        books: Where the number of charges is written; in memory unless given.

    Guarantee:
        However many threads ask, and processes if the books are a file, no more than
        ``limit`` charges are granted, and a charge is written before ``charge`` returns.
        A refusal depends on the number of charges alone. The limit is that of the tight
        price of equal charges, which holds for questions chosen by earlier answers.

    Example:
        >>> from dpflows.privacy.events import PureEvent, Sensitivity
        >>> price = PureEvent(epsilon=Sensitivity.uniformly(0.25))
        >>> meter = Meter(Budget(1.0, 1e-9), price, "pld")
        >>> meter.charge(3), meter.remaining()
        (0, 1)
        >>> meter.charge(2)
        Traceback (most recent call last):
        dpflows.errors.BudgetError: the budget has room for 1 more, but 2 were asked for; ...
    """

    def __init__(
        self, budget: Budget, price: Event, accountant: str, books: Book | None = None
    ) -> None:
        self._gate = StepFilter(budget, price, accountant=accountant)
        self._books: Book = MemoryBooks() if books is None else books
        self._lock = threading.RLock()
        self._page: Page | None = None

    @property
    def limit(self) -> int:
        """How many charges the budget allows in all."""
        return self._gate.limit

    def charge(self, count: int) -> int:
        """Take ``count`` charges, all or none; gives the number of charges before them."""
        with self._lock:
            # Charges are never taken back, so what is known to be spent may refuse at once.
            self._require(count)
            with self.held() as page:
                self._require(count)
                before = self._gate.taken
                self._gate.request(count)
                page.write(self._gate.taken)
                return before

    @contextlib.contextmanager
    def held(self) -> Iterator[Page]:
        """Keep all others out until the block ends, other processes included."""
        with self._lock:
            if self._page is not None:
                yield self._page
                return
            with self._books.opened() as page:
                self._gate.taken = page.taken
                self._page = page
                try:
                    yield page
                finally:
                    self._page = None

    def require(self, count: int) -> None:
        """Refuse now if ``count`` charges could not be taken; for use while held."""
        with self.held() as page:
            self._require(count)
            page.require(count)

    def remaining(self) -> int:
        """How many charges are left."""
        with self.held():
            return max(self.limit - self._gate.taken, 0)

    def taken(self) -> int:
        """How many charges were granted."""
        with self.held():
            return self._gate.taken

    def spent(self) -> float:
        """The epsilon of the charges granted so far."""
        with self.held():
            return self._gate.spent() if self._gate.taken else 0.0

    def move_to(self, books: Book) -> None:
        """From now on write charges there."""
        with self._lock:
            self._books = books

    def _require(self, count: int) -> None:
        left = max(self.limit - self._gate.taken, 0)
        if count > left:
            raise BudgetError(
                f"the budget has room for {left} more, but {count} were asked for; none was "
                "answered and nothing was charged"
            )

    def __reduce__(self) -> NoReturn:
        raise InputError("a meter cannot be copied: a copy would be spent a second time")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise InputError("a meter cannot be copied: a copy would be spent a second time")
