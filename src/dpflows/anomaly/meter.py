"""Counts what was paid for: first the charge, then the answer, never the other way."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NoReturn, final

from dpflows.anomaly.books import Book, MemoryBooks, Page
from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import StepFilter
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget


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
