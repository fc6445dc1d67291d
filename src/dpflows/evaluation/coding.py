"""Public bins of columns of every kind, so that the rows of any table can be counted."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import final

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from dpflows.errors import InputError
from dpflows.table.bins import Bins
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

#: Cells by column: float64, labels or ``None``, truth values, or dates.
Columns = Mapping[str, np.ndarray]
Codes = Int64[np.ndarray, " _"]
Cuts = Float64[np.ndarray, " _"]

#: How a bin of no value is called.
MISSING, UNDECLARED = "missing", "not declared"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Coding:
    """The bins of one column, numbered from zero.

    Labels and truth values are bins as they are declared, followed by one for labels that
    are not, unless another label counts for them. Numbers and dates lie between cuts; those
    beyond the bounds count as the bounds. Missing cells are the last bin of a nullable
    column.

    Attributes:
        column: What is declared.
        cuts: Where the bins of numbers meet, increasing; a cut belongs to the bin above it.

    Guarantee:
        Bins depend on the declaration and the cuts alone, and a code on its own cell alone.

    Example:
        >>> coding = Coding(Column("age", "integer", min=0, max=99, nullable=True), (18.0, 65.0))
        >>> coding.codes(np.array([3.0, 18.0, 200.0, np.nan])).tolist(), coding.size
        ([0, 1, 2, 3], 4)
        >>> coding = Coding(Column("sex", "categorical", categories=("F", "M")))
        >>> coding.codes(np.array(["M", "X"], dtype=object)).tolist()
        [1, 2]
    """

    column: Column
    cuts: tuple[float, ...] = ()

    @functools.cached_property
    def bins(self) -> Bins:
        """The bins that hold a value."""
        return self.column.rules.cut(self.cuts)

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the bins means something."""
        return self.column.rules.is_ordinal

    @property
    def size(self) -> int:
        """How many bins there are."""
        return self.bins.filled + self._has_undeclared + self.column.nullable

    def codes(self, cells: np.ndarray) -> Codes:
        """The bin of every cell."""
        missing = is_missing(cells)
        if missing.any() and not self.column.nullable:
            raise InputError(f"column {self.column.name!r} has missing cells; declare it nullable")
        codes = np.full(len(cells), self.size - 1)
        found = self.bins.find(cells[~missing])
        codes[~missing] = np.where(found < 0, self.bins.filled, found)
        return codes

    def counts(self, cells: np.ndarray) -> Int64[np.ndarray, " bins"]:
        """How many cells lie in every bin."""
        return np.bincount(self.codes(cells), minlength=self.size).astype(np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """What the bins are called, for a reader."""
        shown = self.column.rules.labels or self._intervals()
        extra = (UNDECLARED,) * self._has_undeclared + (MISSING,) * self.column.nullable
        return (*shown, *extra)

    @property
    def _has_undeclared(self) -> bool:
        return self.column.rules.is_open

    def _intervals(self) -> tuple[str, ...]:
        rules = self.column.rules
        low, high = map(rules.shown, bounds_of(self.column))
        starts = [low, *map(rules.shown, self.cuts)]
        ends = [*map(rules.shown_below, self.cuts), high]
        pairs = zip(starts, ends, strict=True)
        return tuple(start if start == end else f"{start} to {end}" for start, end in pairs)


Codings = dict[str, Coding]


def coding_of(column: Column, cells: np.ndarray, bins: int) -> Coding:
    """A coding whose bins hold equal shares of the given cells, if they are numbers or dates.

    Guarantee:
        Private if the cells are. From rows that a model generates, or with labels and truth
        values, it is public where the model is.

    Example:
        >>> coding_of(Column("dose", "continuous", min=0, max=8), np.arange(8.0), 2).cuts
        (3.5,)
    """
    if column.rules.has_labels:
        if column.rules.lacks:
            raise InputError(f"column {column.name!r} has no categories; declare them")
        return Coding(column)
    quantiles = _quantiles(column, cells, np.arange(1, bins) / bins)
    return Coding(column, column.rules.cut_at(quantiles))


def even_coding_of(column: Column, cells: np.ndarray, bins: int) -> Coding:
    """A coding for pictures: bins of one width, which nearly all given numbers lie between.

    Guarantee:
        As that of ``coding_of``.

    Example:
        >>> even_coding_of(Column("x", "integer", min=0, max=99), np.arange(100.0), 4).cuts
        (26.0, 50.0, 74.0)
    """
    if column.rules.has_labels:
        return coding_of(column, cells, bins)
    ends = _quantiles(column, cells, np.array([0.01, 0.99])).tolist()
    low, high = ends or bounds_of(column)
    return Coding(column, column.rules.cut_at(column.rules.even_cuts(low, high, bins)))


def _quantiles(column: Column, cells: np.ndarray, shares: Cuts) -> Cuts:
    values = numbers(cells[~is_missing(cells)], column)
    return np.quantile(values, shares) if len(values) else np.empty(0)


def reference_codings(columns: Columns, schema: Schema, bins: int = 20) -> Codings:
    """A coding of every column, with bins that hold equal shares of the given columns.

    Args:
        columns: Cells by column, such as those of held-out rows; then the bins are INTERNAL.
        schema: The schema.
        bins: At most so many for each column of numbers or dates, missing cells apart.

    Example:
        >>> schema = Schema((Column("dose", "continuous", min=0, max=8),))
        >>> reference_codings({"dose": np.arange(8.0)}, schema, bins=4)["dose"].size
        4
    """
    return {c.name: coding_of(c, columns[c.name], bins) for c in schema.columns}


def numbers(cells: np.ndarray, column: Column) -> Float64[np.ndarray, " rows"]:
    """Values as numbers, moved into the declared bounds; missing ones are NaN."""
    return column.rules.numbers(column.rules.inside(cells))


def moved_inside(columns: Columns, schema: Schema) -> dict[str, np.ndarray]:
    """The same cells, with numbers and dates moved into the bounds, as a fit moves them.

    Example:
        >>> schema = Schema((Column("age", "integer", min=0, max=120),))
        >>> moved_inside({"age": np.array([-3.0, 40.0])}, schema)["age"].tolist()
        [0.0, 40.0]
    """
    return {c.name: c.rules.inside(columns[c.name]) for c in schema.columns}


def is_missing(cells: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Which cells hold nothing."""
    return np.asarray(pd.isna(cells), dtype=bool)


def bounds_of(column: Column) -> tuple[float, float]:
    """The declared bounds, or infinite ones."""
    low, high = column.min, column.max
    return -np.inf if low is None else low, np.inf if high is None else high
