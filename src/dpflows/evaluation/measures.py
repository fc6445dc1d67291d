"""The interface of measures that compare a model with rows, the log-likelihood, and public bins.

Columns of every kind are counted in public bins, so that the rows of any table can be compared. A
new measure is one class and one line in ``MEASURES`` of ``report``.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, final

import jax
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Float64, Int64

from dpflows.errors import InputError
from dpflows.estimators.autoregressive import draw_rows
from dpflows.estimators.base import DensityEstimator
from dpflows.models.mixed import MixedDensity
from dpflows.pipeline.plan import jax_key
from dpflows.privacy.randomness import Entropy
from dpflows.table.bins import Bins
from dpflows.table.columns import Column
from dpflows.table.reading import MixedEncoding, Table
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


#: Rows that the model generates to be compared with; they cost nothing.
GENERATED = 20_000

#: Figures by name: of the whole table, or one for each column or pair of columns.
Figures = dict[str, float]

INTERNAL_STAMP = (
    "INTERNAL: these figures were computed from the given rows, and no guarantee covers them. "
    "Store them as you store the rows."
)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model and the rows it is compared with, with columns of any kind.

    Attributes:
        model: A fitted density.
        table: Rows that match its schema.
        key: Random key of the generated rows.
        entropy: Source of randomness of everything else.

    Guarantee:
        ``generated`` and all that follows from it alone is post-processing of the model.
        ``rows`` is private, and so is everything computed from it.
    """

    model: DensityEstimator
    table: Table
    key: jax.Array
    entropy: Entropy

    @classmethod
    def of(cls, model: DensityEstimator, table: Table, entropy: Entropy) -> "Subject":
        """A subject whose generated rows come from ``entropy``."""
        return cls(model, table, jax_key(entropy, "sampling"), entropy)

    @property
    def schema(self) -> Schema:
        """The schema."""
        return self.model.encoding_.schema

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.schema.names

    @functools.cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """The rows' cells by column, clipped to the declared bounds as in a fit."""
        return moved_inside(self.table.columns, self.schema)

    @functools.cached_property
    def generated(self) -> dict[str, np.ndarray]:
        """Cells by column of rows of the model itself, which keep the schema's constraints."""
        density, encoding = self.model.density_, self.model.encoding_
        if isinstance(encoding, MixedEncoding) and isinstance(density, MixedDensity):
            return draw_rows(density, encoding, GENERATED, {}, self.key).columns
        return encoding.decode(density.sample(self.key, GENERATED))

    def codings(self, bins: int) -> Codings:
        """Bins of every column; those of numbers hold equal shares of the generated rows.

        Guarantee:
            Computed from generated rows and the schema alone: post-processing of the model.
        """
        return reference_codings(self.generated, self.schema, bins)

    def logs(self, columns: dict[str, np.ndarray]) -> Float[np.ndarray, " rows"]:
        """The model's log-density of rows; minus infinity where a label is not declared."""
        table = Table(columns, self.schema, self.table.form, 0)
        return self.model.density_.log_prob(self.model.encoding_.score_points(table))


class Measure(abc.ABC):
    """A comparison of a model with rows. INTERNAL unless it is released by ``private``.

    Attributes:
        name: Its name in JSON documents.
        title: Its title in text.
        each: The part of the table a figure refers to, if not all of it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    each: ClassVar[str] = ""

    @abc.abstractmethod
    def of(self, subject: Subject) -> Figures:
        """The figures, by name."""

    def line(self, figures: Figures) -> str:
        """The figures in one line, for a reader."""
        if not figures:
            return f"{self.title}: there is no {self.each}"
        worst = max(figures, key=lambda name: figures[name])
        mean = sum(figures.values()) / len(figures)
        return f"{self.title}: mean {mean:.3f}, largest {figures[worst]:.3f} ({self.each} {worst})"


#: The public range begins where so many of the model's own rows lie lower.
LOWEST_SHARE = 0.005


@final
class LogLikelihood(Measure):
    """The mean log-density of the rows, in nats per row.

    Values beyond the declared bounds are clipped, as in a fit, and counted. A row with an
    undeclared label has density zero: it is counted, but excluded from the mean.
    """

    name = "log-likelihood"
    title = "Mean log-density, nats per row"

    def of(self, subject: Subject) -> Figures:
        """The mean and its standard error, and the numbers of cells and rows outside."""
        logs = subject.logs(subject.rows)
        kept = logs[np.isfinite(logs)].astype(np.float64)
        outside = {
            "cells_beyond_bounds": float(subject.table.outside),
            "rows_of_density_zero": float(len(logs) - len(kept)),
        }
        return _mean_and_error(kept) | outside

    def line(self, figures: Figures) -> str:
        """Mean and error, and the number of excluded rows."""
        lost = figures.get("rows_of_density_zero", 0)
        rest = f"; excluding {lost:,.0f} rows of density zero" if lost else ""
        if "mean" not in figures:
            return f"{self.title}: none{rest}"
        noise = figures.get("error_of_noise")
        added = "" if noise is None else f", of the noise {noise:.3f}"
        error = f"standard error {figures['standard_error']:.3f}{added}"
        return f"{self.title}: {figures['mean']:.3f} ({error}){rest}"


def _mean_and_error(logs: Float64[np.ndarray, " rows"]) -> Figures:
    if not len(logs):
        return {}
    spread = float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
    return {"mean": float(logs.mean()), "standard_error": spread / math.sqrt(len(logs))}


def public_range(subject: Subject) -> tuple[float, float]:
    """The range that holds nearly all log-densities of the model's own samples.

    Guarantee:
        Computed only from generated rows: post-processing of the model.
    """
    logs = subject.logs(subject.generated)
    # rounding may leave a generated row just outside the domain
    logs = logs[np.isfinite(logs)]
    low, high = float(np.quantile(logs, LOWEST_SHARE)), float(logs.max())
    # a flat density has one value, and a range needs two ends
    return low, max(high, low + 1e-3 * (1 + abs(low)))
