"""What a peer is: another project's way from rows to synthetic rows, at the same budget."""

import abc
import dataclasses
import importlib.util
import time
from typing import ClassVar, final

from dpflows.errors import InputError
from dpflows.evaluation.peers.bins import BINS, Codes, Columns, Grid
from dpflows.privacy.accounting import guarantee_for
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

#: A peer is stopped after so many seconds, where nothing else is asked for.
SECONDS = 600.0


class TooSlow(Exception):
    """A peer that was stopped. It has spent what it has spent, and gives no rows."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too slow, stopped after {seconds:.0f} seconds")


@final
@dataclasses.dataclass(frozen=True)
class Clock:
    """A time limit.

    Example:
        >>> Clock.of(60.0).check()
        >>> Clock.of(0.0).check()
        Traceback (most recent call last):
        dpflows.evaluation.peers.base.TooSlow: too slow, stopped after 0 seconds
    """

    limit: float
    start: float

    @classmethod
    def of(cls, seconds: float) -> "Clock":
        """A clock that starts now."""
        return cls(seconds, time.monotonic())

    def check(self, *_: object) -> None:
        """Stop if the time is over; may be given to loops that call back."""
        spent = time.monotonic() - self.start
        if spent >= self.limit:
            raise TooSlow(spent)


@dataclasses.dataclass(frozen=True)
class Peer(abc.ABC):
    """A method of others, with a budget like ours. A new one is one file and one line in PEERS.

    Attributes:
        bins: Intervals that a column of numbers is cut into.
        seconds: When it is stopped.
    """

    bins: int = BINS
    seconds: float = SECONDS

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[str]
    accountant: ClassVar[str] = "zcdp"

    def missing(self) -> str | None:
        """What to install before this can run; nothing if it can."""
        if importlib.util.find_spec(self.needs) is not None:
            return None
        return f"{self.name} needs {self.needs}; install dpflows[peers]"

    @abc.abstractmethod
    def events(self, schema: Schema, budget: Budget) -> tuple[Event, ...]:
        """Every release that a fit makes, or what they cost together at most."""

    def guarantee(self, schema: Schema, budget: Budget, *, stamp: str = "") -> Guarantee:
        """What is promised to the people in the table."""
        stamps = (stamp,) if stamp else ()
        events = self.events(schema, budget)
        return guarantee_for(events, budget=budget, accountant=self.accountant, stamps=stamps)

    def fit_sample(
        self, table: Columns, schema: Schema, budget: Budget, n: int, entropy: Entropy
    ) -> Columns:
        """Fit to the rows of a table, within the budget, and draw ``n`` synthetic rows.

        Args:
            table: Cells by column.
            schema: What the columns mean.
            budget: Finite; all releases together cost at most this.
            n: How many rows to draw.
            entropy: Where the noise comes from.

        Raises:
            TooSlow: The time limit has passed.

        Guarantee:
            That of ``guarantee``, by ``accountant``. The number of rows is public.
        """
        require_finite(budget)
        grid = Grid.of(schema, self.bins)
        drawn = self.draw(Binned(grid.encode(table), grid.sizes), budget, n, entropy)
        return grid.decode(drawn, entropy)

    @abc.abstractmethod
    def draw(self, rows: "Binned", budget: Budget, n: int, entropy: Entropy) -> Codes:
        """The bins of ``n`` synthetic rows; the contract is that of ``fit_sample``."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Binned:
    """Private rows as bins, with the public number of bins of each column."""

    codes: Codes
    sizes: tuple[int, ...]


def require_finite(budget: Budget) -> None:
    """Refuse a budget without a limit: peers are defined with noise only."""
    if not budget.is_private:
        raise InputError("epsilon must be finite in a comparison at equal budgets, got inf")
