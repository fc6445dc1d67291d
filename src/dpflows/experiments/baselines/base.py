"""The interface of baselines, public bins of columns, and inference by Private-PGM.

Bins are merged finest bins: labels, truth values, spikes and missing cells stay apart, and
intervals of numbers are joined into some of equal width. No value is looked at.

Distributions over bins are inferred from noisy counts by Private-PGM (McKenna et al. 2019).
The library ``mbi`` reads only noisy counts, never a row: all of this is post-processing.
"""

import abc
import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import jax
import numpy as np
from jaxtyping import Float64, Int64

from dpflows.errors import InputError
from dpflows.privacy.accounting import guarantee_for
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy
from dpflows.table.bins import MergedBins, Uniforms
from dpflows.table.schema import Schema

#: Intervals of one column of numbers.
BINS = 100

#: Cells by column: float64, labels or ``None``, truth values, or dates.
Columns = Mapping[str, np.ndarray]
Codes = Int64[np.ndarray, "rows columns"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The bins of all columns.

    Guarantee:
        Bins depend on the schema alone, and the codes of a row on that row alone.

    Example:
        >>> grid = Grid.of(Schema.from_bounds([0, 0], [1, 1]), most=4)
        >>> grid.sizes
        (6, 6)
        >>> grid.encode({"x0": np.array([0.0, 0.6]), "x1": np.array([0.1, 1.0])}).tolist()
        [[4, 0], [2, 5]]
    """

    schema: Schema
    columns: tuple[MergedBins, ...]

    @classmethod
    def of(cls, schema: Schema, most: int = BINS) -> "Grid":
        """The grid of a schema, with at most so many intervals per column."""
        return cls(schema, tuple(MergedBins.evenly(c.bins(), most) for c in schema.columns))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many bins each column has."""
        return tuple(column.size for column in self.columns)

    def encode(self, columns: Columns) -> Codes:
        """The bins of every row."""
        pairs = zip(self.schema.names, self.columns, strict=True)
        return np.column_stack([column.find(columns[name]) for name, column in pairs])

    def decode(self, codes: Codes, entropy: Entropy) -> dict[str, np.ndarray]:
        """Rows of these bins; a bin below zero becomes any."""
        steps = itertools.count()

        def uniforms(count: int) -> np.ndarray:
            return entropy.uniforms("dither", step=next(steps), count=count)

        filled = _filled(codes, self.sizes, uniforms)
        pairs = zip(self.schema.names, self.columns, filled.T, strict=True)
        return {name: column.draw(own, uniforms) for name, column, own in pairs}


def _filled(codes: Codes, sizes: tuple[int, ...], uniforms: Uniforms) -> Codes:
    anywhere = uniforms(codes.size).reshape(codes.shape) * np.array(sizes)
    return np.where(codes < 0, anywhere.astype(np.int64), codes)


#: A peer is stopped after so many seconds, where nothing else is asked for.
SECONDS = 600.0


class TooSlow(Exception):
    """A baseline was stopped by its time limit; it gives no rows."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"stopped after the time limit of {seconds:.0f} seconds")


@final
@dataclasses.dataclass(frozen=True)
class Clock:
    """A time limit.

    Example:
        >>> Clock.of(60.0).check()
        >>> Clock.of(0.0).check()
        Traceback (most recent call last):
        dpflows.experiments.baselines.base.TooSlow: stopped after the time limit of 0 seconds
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
class Baseline(abc.ABC):
    """A baseline: a method of others. A new one is one file and one line in BASELINES.

    Attributes:
        bins: Number of intervals of a numeric column.
        seconds: Time limit in seconds.
    """

    bins: int = BINS
    seconds: float = SECONDS

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[str]
    accountant: ClassVar[str] = "zcdp"

    def missing(self) -> str | None:
        """What to install before this can run; None if it can."""
        if importlib.util.find_spec(self.needs) is not None:
            return None
        return f"{self.name} needs {self.needs}; install dpflows[peers]"

    @abc.abstractmethod
    def events(self, schema: Schema, budget: Budget) -> tuple[Event, ...]:
        """Every release of a fit, or events that bound their cost."""

    def guarantee(self, schema: Schema, budget: Budget, *, stamp: str = "") -> Guarantee:
        """The privacy guarantee of a fit."""
        stamps = (stamp,) if stamp else ()
        events = self.events(schema, budget)
        return guarantee_for(events, budget=budget, accountant=self.accountant, stamps=stamps)

    def fit_sample(
        self, table: Columns, schema: Schema, budget: Budget, n: int, entropy: Entropy
    ) -> Columns:
        """Fit to the rows of a table, within the budget, and draw ``n`` synthetic rows.

        Args:
            table: Cells by column.
            schema: The schema.
            budget: Finite; all releases together cost at most this.
            n: How many rows to draw.
            entropy: Source of randomness.

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
    """Refuse an unlimited budget: baselines are defined only with noise."""
    if not budget.is_private:
        raise InputError("epsilon must be finite in a comparison, got inf")


#: Columns of a table of counts, by number.
Clique = tuple[int, ...]
Counts = Float64[np.ndarray, "_"]

_ITERATIONS = 5000


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """Noisy counts of the cells of a few columns, row by row of their table.

    Attributes:
        clique: Which columns.
        counts: The noisy counts.
        noise: Their standard deviation.
        weights: What counts are multiplied with to have that deviation; ones if not given.
    """

    clique: Clique
    counts: Counts
    noise: float
    weights: Counts | None = None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A distribution over bins inferred from noisy counts.

    Example:
        >>> seen = [Measured((0,), np.array([30.0, 10.0]), 1.0)]
        >>> graph = fit_graph((2, 3), seen, rows=40, clock=Clock.of(60.0))
        >>> graph.counts((0,)).round().tolist(), graph.draw(8).shape
        ([30.0, 10.0], (8, 2))
    """

    field: Any
    columns: int

    def counts(self, clique: Clique) -> Counts:
        """The expected counts of the cells of a few columns."""
        # the library would compile a program for every table that is asked for
        found = np.einsum(*self._factors, list(clique), optimize="greedy").ravel()
        return found * (float(self.field.total) / found.sum())

    @functools.cached_property
    def _factors(self) -> list[Any]:
        """The factors whose product is the distribution, each followed by its columns."""
        tables = self.field.potentials.tables.values()
        logs = [(np.asarray(one.values), list(one.domain.attributes)) for one in tables]
        sizes = self.field.domain.shape
        free = [(np.zeros(size), [column]) for column, size in enumerate(sizes)]
        return [part for log, at in [*logs, *free] for part in (np.exp(log - log.max()), at)]

    def draw(self, n: int) -> Codes:
        """Rows whose counts are close to the expected ones."""
        with _in_double_precision():
            drawn = self.field.synthetic_data(rows=n).data
        return np.column_stack([drawn[i] for i in range(self.columns)]).astype(np.int64)


def fit_graph(
    sizes: Sequence[int],
    measured: Sequence[Measured],
    *,
    rows: int,
    clock: Clock,
    start: Graph | None = None,
    iterations: int = _ITERATIONS,
) -> Graph:
    """The distribution of greatest entropy among those that fit the counts best.

    Args:
        sizes: Bins of each column.
        measured: What is known.
        rows: The public number of rows.
        clock: The time limit.
        start: An earlier distribution to start from.
        iterations: Steps of mirror descent.
    """
    mbi = _library()
    clock.check()
    with _in_double_precision():
        domain = mbi.Domain(tuple(range(len(sizes))), tuple(sizes))
        known = [_in_words_of(mbi, each) for each in measured]
        field = mbi.estimation.MirrorDescent().estimate(
            domain,
            known,
            known_total=float(rows),
            iters=iterations,
            callback_fn=clock.check,
            warm_start=None if start is None else start.field,
        )
    return Graph(field, len(sizes))


def megabytes(sizes: Sequence[int], cliques: Sequence[Clique]) -> float:
    """How large a distribution with these tables of counts would be."""
    mbi = _library()
    domain = mbi.Domain(tuple(range(len(sizes))), tuple(sizes))
    return float(mbi.junction_tree.hypothetical_model_size(domain, list(cliques)))


def places(codes: Codes, sizes: Sequence[int], clique: Clique) -> Int64[np.ndarray, " rows"]:
    """Each row's cell in the table of a few columns; -1 if one of them is not declared.

    Example:
        >>> places(np.array([[1, 2], [0, -1]]), (2, 3), (0, 1)).tolist()
        [5, -1]
    """
    own = codes[:, list(clique)]
    shape = tuple(sizes[i] for i in clique)
    cells = np.ravel_multi_index(tuple(np.maximum(own, 0).T), shape)
    return np.where((own < 0).any(axis=1), -1, cells)


def exact_counts(codes: Codes, sizes: Sequence[int], clique: Clique) -> Counts:
    """How many rows are in each cell. Private."""
    at = places(codes, sizes, clique)
    return np.bincount(at[at >= 0], minlength=cells_of(sizes, clique)).astype(np.float64)


def cells_of(sizes: Sequence[int], clique: Clique) -> int:
    """How many cells the table of a few columns has."""
    return int(np.prod([sizes[i] for i in clique]))


def _in_words_of(mbi: Any, seen: Measured) -> Any:
    if seen.weights is None:
        return mbi.LinearMeasurement(seen.counts, seen.clique, stddev=seen.noise)
    weighted, query = seen.counts * seen.weights, mbi.WeightedQuery(seen.weights)
    return mbi.LinearMeasurement(weighted, seen.clique, stddev=seen.noise, query=query)


@contextlib.contextmanager
def _in_double_precision() -> Iterator[None]:
    # single precision stalls on tables of many rows; the rest of the process keeps its own
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def _library() -> Any:
    # imported on first use, for it is an extra; its advice at import is followed above
    with _in_double_precision():
        import mbi
    return mbi
