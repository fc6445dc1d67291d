"""Public bins of columns of every kind, so that the rows of any table can be counted."""

import dataclasses
import math
from collections.abc import Mapping
from typing import final

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from dpflows.errors import InputError
from dpflows.table.cells import seconds
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

#: Cells by column: float64, labels or ``None``, truth values, or dates.
Columns = Mapping[str, np.ndarray]
Codes = Int64[np.ndarray, " _"]
Cuts = Float64[np.ndarray, " _"]

#: How a bin of no value is called.
MISSING, UNDECLARED = "missing", "not declared"

_DAY = 86_400.0


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

    @property
    def labels(self) -> tuple[object, ...]:
        """The labels or truth values that are bins; none for numbers and dates."""
        if self.column.kind == "boolean":
            return (False, True)
        return self.column.categories or ()

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the bins means something."""
        return self.column.kind != "categorical"

    @property
    def size(self) -> int:
        """Number of bins."""
        return self._filled + self._has_undeclared + self.column.nullable

    def codes(self, cells: np.ndarray) -> Codes:
        """The bin of every cell."""
        missing = is_missing(cells)
        if missing.any() and not self.column.nullable:
            raise InputError(f"column {self.column.name!r} has missing cells; declare it nullable")
        found = np.full(len(cells), self.size - 1)
        found[~missing] = self._find(cells[~missing])
        return found

    def counts(self, cells: np.ndarray) -> Int64[np.ndarray, " bins"]:
        """How many cells lie in every bin."""
        return np.bincount(self.codes(cells), minlength=self.size).astype(np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the bins."""
        shown = tuple(str(label) for label in self._spoken) if self.labels else self._intervals()
        extra = (UNDECLARED,) * self._has_undeclared + (MISSING,) * self.column.nullable
        return (*shown, *extra)

    @property
    def _spoken(self) -> tuple[object, ...]:
        return ("no", "yes") if self.column.kind == "boolean" else self.labels

    @property
    def _filled(self) -> int:
        return len(self.labels) or len(self.cuts) + 1

    @property
    def _has_undeclared(self) -> bool:
        return self.column.kind == "categorical" and self.column.other is None

    @property
    def _undeclared(self) -> int:
        """The bin of an undeclared label."""
        if self.column.other is None:
            return self._filled
        return self.labels.index(self.column.other)

    def _find(self, cells: np.ndarray) -> Codes:
        if not self.labels:
            values = numbers(cells, self.column)
            return np.searchsorted(np.array(self.cuts), values, side="right").astype(np.int64)
        found = pd.Index(self.labels, dtype=object).get_indexer(pd.Index(cells, dtype=object))
        return np.where(found < 0, self._undeclared, found).astype(np.int64)

    def _intervals(self) -> tuple[str, ...]:
        ends = [*bounds_of(self.column)]
        edges = [ends[0], *self.cuts, ends[1]]
        whole = self.column.kind == "integer"
        # of whole numbers the last one in a bin is shown, not the first one of the next
        last = [cut - 1 for cut in self.cuts] if whole else list(self.cuts)
        shown = [[_shown(end, self.column) for end in side] for side in (edges, [*last, ends[1]])]
        pairs = zip(shown[0], shown[1], strict=False)
        return tuple(low if low == high else f"{low} to {high}" for low, high in pairs)


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
    if column.kind in ("categorical", "boolean"):
        if not column.is_declared:
            raise InputError(f"column {column.name!r} has no categories; declare them")
        return Coding(column)
    return Coding(column, _inner(column, _quantiles(column, cells, np.arange(1, bins) / bins)))


def even_coding_of(column: Column, cells: np.ndarray, bins: int) -> Coding:
    """A coding for pictures: bins of one width, which nearly all given numbers lie between.

    Guarantee:
        As that of ``coding_of``.

    Example:
        >>> even_coding_of(Column("x", "integer", min=0, max=99), np.arange(100.0), 4).cuts
        (26.0, 50.0, 74.0)
    """
    if column.kind in ("categorical", "boolean"):
        return coding_of(column, cells, bins)
    ends = _quantiles(column, cells, np.array([0.01, 0.99])).tolist()
    low, high = ends or bounds_of(column)
    even = np.linspace(low, high, bins + 1)
    if column.kind == "date" and high - low >= bins * _DAY:
        even = np.round(even / _DAY) * _DAY
    return Coding(column, _inner(column, even[1:-1]))


def _quantiles(column: Column, cells: np.ndarray, shares: Cuts) -> Cuts:
    values = numbers(cells[~is_missing(cells)], column)
    return np.quantile(values, shares) if len(values) else np.empty(0)


def _inner(column: Column, cuts: Cuts) -> tuple[float, ...]:
    # a cut between whole numbers is the same as one at the next
    inner = np.unique(cuts if column.kind == "continuous" else np.ceil(cuts))
    low, high = bounds_of(column)
    return tuple(inner[(inner > low) & (inner < high)].tolist())


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
    """Numbers, or dates in seconds, clipped to the declared bounds; missing ones are NaN."""
    values = seconds(cells) if column.kind == "date" else cells.astype(np.float64)
    return np.clip(values, *bounds_of(column))


def moved_inside(columns: Columns, schema: Schema) -> dict[str, np.ndarray]:
    """The same cells, with numbers and dates moved into the bounds, as a fit moves them.

    Example:
        >>> schema = Schema((Column("age", "integer", min=0, max=120),))
        >>> moved_inside({"age": np.array([-3.0, 40.0])}, schema)["age"].tolist()
        [0.0, 40.0]
    """
    return {column.name: _inside(columns[column.name], column) for column in schema.columns}


def is_missing(cells: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Which cells hold nothing."""
    return np.asarray(pd.isna(cells), dtype=bool)


def bounds_of(column: Column) -> tuple[float, float]:
    """The declared bounds, or infinite ones."""
    low, high = column.min, column.max
    return -math.inf if low is None else low, math.inf if high is None else high


def _inside(cells: np.ndarray, column: Column) -> np.ndarray:
    if column.min is None or column.max is None:
        return cells
    if column.kind != "date":
        return np.clip(cells.astype(np.float64), column.min, column.max)
    low, high = (np.datetime64(int(end), "s") for end in (column.min, column.max))
    return np.clip(cells, low.astype(cells.dtype), high.astype(cells.dtype))


def _shown(value: float, column: Column) -> str:
    if math.isinf(value):
        return "any"
    if column.kind == "date":
        # no library's calendar: it would refuse years that columns may have
        return str(np.datetime64(round(value), "s")).removesuffix("T00:00:00")
    return f"{value:.4g}" if column.kind == "continuous" else f"{value:.15g}"
