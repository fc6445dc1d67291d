"""Fidelity measures: distances between generated and real rows, by columns and sets of columns.

All distances lie between 0 (equal) and 1. Counts are taken in public bins that hold equal
shares of the model's generated rows. Associations between two columns are compared by
correlation coefficients or Cramer's V.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.evaluation.measures import (
    Codes,
    Coding,
    Codings,
    Columns,
    Figures,
    Measure,
    Subject,
    numbers,
)
from dpflows.privacy.randomness import Entropy

#: Bins per column, and per column of a pair.
BINS, PAIR_BINS = 16, 4
#: Triples of columns that are looked at.
MOST_TRIPLES = 100
#: More cells than these are not counted one by one.
MOST_CELLS = 1_000_000

Counts = Float64[np.ndarray, " bins"] | Int64[np.ndarray, " bins"]


def largest_gap(real: Counts, generated: Counts, *, is_ordered: bool = True) -> float:
    """Kolmogorov's distance at the edges of the bins; without an order, that of one bin.

    Example:
        >>> largest_gap(np.array([1.0, 1.0]), np.array([1.0, 0.0]))
        0.5
        >>> largest_gap(np.array([1, 1, 0, 2]), np.array([0, 0, 1, 3]), is_ordered=False)
        0.25
    """
    gaps = shares_of(real) - shares_of(generated)
    return float(np.abs(np.cumsum(gaps) if is_ordered else gaps).max())


def total_variation(real: Counts, generated: Counts) -> float:
    """Half the sum of the absolute differences of the bins' shares.

    Example:
        >>> total_variation(np.array([2.0, 0.0]), np.array([1.0, 1.0]))
        0.5
    """
    return float(np.abs(shares_of(real) - shares_of(generated)).sum() / 2)


def shares_of(counts: Counts) -> Float64[np.ndarray, " bins"]:
    """The shares of the bins; counts that noise made negative are none.

    Example:
        >>> shares_of(np.array([3, -1, 1])).tolist()
        [0.75, 0.0, 0.25]
    """
    """The shares of the bins; counts that noise made negative are none."""
    kept = np.maximum(np.asarray(counts, dtype=np.float64), 0.0)
    total = kept.sum()
    # noise may leave nothing; then nothing is known, and all bins are alike
    return kept / total if total > 0 else np.full(len(kept), 1 / len(kept))


def column_errors(real: Columns, generated: Columns, codings: Codings) -> Figures:
    """The total variation of every column, in the bins of its coding.

    Example:
        >>> from dpflows.table.schema import Column
        >>> codings = {"ill": Coding(Column("ill", "boolean"))}
        >>> real, generated = np.array([True, False]), np.array([True, True])
        >>> column_errors({"ill": real}, {"ill": generated}, codings)
        {'ill': 0.5}
    """
    return {names[0]: error for names, error in subset_errors(real, generated, codings, 1).items()}


def pair_errors(
    real: Columns, generated: Columns, codings: Codings
) -> dict[tuple[str, ...], float]:
    """The total variation of every pair of columns, in the cells of their codings.

    Example:
        >>> from dpflows.table.schema import Column
        >>> codings = {name: Coding(Column(name, "boolean")) for name in ("ill", "old")}
        >>> cells = np.array([True, False])
        >>> pair_errors({"ill": cells, "old": cells}, {"ill": cells, "old": ~cells}, codings)
        {('ill', 'old'): 1.0}
    """
    return subset_errors(real, generated, codings, 2)


def subset_errors(
    real: Columns,
    generated: Columns,
    codings: Codings,
    size: int,
    *,
    chosen: Sequence[tuple[str, ...]] | None = None,
) -> dict[tuple[str, ...], float]:
    """The total variation of sets of columns, in the cells of their codings.

    Args:
        real: Cells by column.
        generated: Cells by column.
        codings: The bins of every column.
        size: How many columns a set has.
        chosen: The sets, if not all.
    """
    codes = [{name: codings[name].codes(of[name]) for name in codings} for of in (real, generated)]
    sets = itertools.combinations(codings, size) if chosen is None else chosen
    return {names: _cell_distance(codes, codings, names) for names in sets}


def _cell_distance(
    codes: Sequence[dict[str, Codes]], codings: Codings, names: tuple[str, ...]
) -> float:
    sizes = [codings[name].size for name in names]
    cells = [np.ravel_multi_index([of[name] for name in names], sizes) for of in codes]
    if math.prod(sizes) > MOST_CELLS:
        # three columns of many labels have millions of cells: number those that hold a row
        _, place = np.unique(np.concatenate(cells), return_inverse=True)
        cells = np.split(place, [len(cells[0])])
    most = max(int(part.max(initial=0)) for part in cells) + 1
    real, generated = (np.bincount(part, minlength=most) for part in cells)
    return total_variation(real, generated)


def _by_column(subject: Subject) -> list[tuple[Coding, Counts, Counts]]:
    return [
        (coding, coding.counts(subject.rows[name]), coding.counts(subject.generated[name]))
        for name, coding in subject.codings(BINS).items()
    ]


@final
class Kolmogorov(Measure):
    """The largest difference of each column's distribution functions, at the bins' edges.

    Missing cells come after every value. Labels have no order: for them it is the largest
    difference of one label's share.
    """

    name = "kolmogorov"
    title = "Kolmogorov distance"
    each = "column"

    def of(self, subject: Subject) -> Figures:
        """One distance per column."""
        return {
            coding.column.name: largest_gap(a, b, is_ordered=coding.is_ordered)
            for coding, a, b in _by_column(subject)
        }


@final
class TotalVariation(Measure):
    """The total variation between each column's shares of the bins."""

    name = "total-variation"
    title = "Total variation distance"
    each = "column"

    def of(self, subject: Subject) -> Figures:
        """One distance per column."""
        return {coding.column.name: total_variation(a, b) for coding, a, b in _by_column(subject)}


@final
class PairCells(Measure):
    """The total variation between the shares of the cells of each pair of columns."""

    name = "pair-cells"
    title = "Total variation of pairs"
    each = "pair"

    def of(self, subject: Subject) -> Figures:
        """One distance per pair."""
        codings = subject.codings(PAIR_BINS)
        return named(pair_errors(subject.rows, subject.generated, codings))


@final
class TripleCells(Measure):
    """The total variation between the shares of the cells of random triples of columns."""

    name = "triple-cells"
    title = "Total variation of triples"
    each = "triple"

    def of(self, subject: Subject) -> Figures:
        """One distance for each of at most ``MOST_TRIPLES`` triples."""
        codings = subject.codings(PAIR_BINS)
        chosen = random_subsets(subject.names, 3, MOST_TRIPLES, subject.entropy)
        found = subset_errors(subject.rows, subject.generated, codings, 3, chosen=chosen)
        return named(found)


def random_subsets(
    names: Sequence[str], size: int, most: int, entropy: Entropy
) -> list[tuple[str, ...]]:
    """Different sets of columns: all if there are at most so many, else random ones.

    Example:
        >>> random_subsets("abc", 2, 9, Entropy.from_os())
        [('a', 'b'), ('a', 'c'), ('b', 'c')]
        >>> len(set(random_subsets("abcdefghij", 3, 9, Entropy.from_os())))
        9
    """
    if math.comb(len(names), size) <= most:
        return list(itertools.combinations(names, size))
    found: dict[tuple[str, ...], None] = {}
    steps = itertools.count()
    while len(found) < most:
        drawn = entropy.uniforms("sampling", step=next(steps), count=len(names))
        found[tuple(names[i] for i in np.sort(np.argsort(drawn)[:size]))] = None
    return list(found)


def named(errors: Mapping[tuple[str, ...], float]) -> Figures:
    """Figures of sets of columns, by the columns' names in one text."""
    return {joined(names): error for names, error in errors.items()}


def joined(names: tuple[str, ...]) -> str:
    """Names in one text; those with a comma are quoted, so that sets stay apart.

    Example:
        >>> joined(("age", "height, in cm"))
        "age, 'height, in cm'"
    """
    return ", ".join(repr(name) if "," in name else name for name in names)


Values = Float64[np.ndarray, " rows"]


@final
class Correlations(Measure):
    """Half the difference of each pair's correlation coefficients.

    Truth values count as zero and one, dates in seconds, and rows that miss either cell
    not at all. Labels cannot be correlated: a pair with a column of labels is compared by
    the difference of Cramer's V, corrected for the number of rows.
    """

    name = "correlations"
    title = "Difference of correlations"
    each = "pair"

    def of(self, subject: Subject) -> Figures:
        """One difference per pair; a constant column correlates with nothing."""
        codings = subject.codings(PAIR_BINS)
        real, own = (_Side(columns, codings) for columns in (subject.rows, subject.generated))
        pairs = itertools.combinations(subject.names, 2)
        return named({pair: abs(real.strength(*pair) - own.strength(*pair)) for pair in pairs})


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Side:
    """The columns of one side: numbers where there is an order, and codes for all."""

    columns: Columns
    codings: Codings

    @functools.cached_property
    def codes(self) -> dict[str, Codes]:
        return {name: of.codes(self.columns[name]) for name, of in self.codings.items()}

    @functools.cached_property
    def values(self) -> dict[str, Values]:
        ordered = [coding.column for coding in self.codings.values() if coding.is_ordered]
        return {column.name: numbers(self.columns[column.name], column) for column in ordered}

    def strength(self, a: str, b: str) -> float:
        """A number whose largest difference is one."""
        if a in self.values and b in self.values:
            return correlation(self.values[a], self.values[b]) / 2
        rows, columns = self.codings[a].size, self.codings[b].size
        cells = np.bincount(columns * self.codes[a] + self.codes[b], minlength=rows * columns)
        return cramers_v(cells.reshape(rows, columns).astype(np.float64))


def correlation(a: Values, b: Values) -> float:
    """The correlation coefficient over rows with both cells; zero if either is constant.

    Example:
        >>> round(correlation(np.array([1.0, 2.0, np.nan]), np.array([2.0, 1.0, 0.0])), 6)
        -1.0
    """
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return 0.0
    a, b = (_standardised(values[both]) for values in (a, b))
    return float(a @ b / len(a))


def cramers_v(table: Float64[np.ndarray, "a b"]) -> float:
    """Cramer's V of counts, corrected for chance (Bergsma 2013); zero for independence.

    Example:
        >>> cramers_v(np.array([[5.0, 0.0], [0.0, 5.0]])), cramers_v(np.ones((2, 2)))
        (1.0, 0.0)
    """
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    total = table.sum()
    if min(table.shape) < 2 or total < 2:
        return 0.0
    expected = np.outer(table.sum(1), table.sum(0)) / total
    square = float(((table - expected) ** 2 / expected).sum() / total)
    rows, columns = (size - (size - 1) ** 2 / (total - 1) for size in table.shape)
    chance = (table.shape[0] - 1) * (table.shape[1] - 1) / (total - 1)
    most = min(rows, columns) - 1
    return float(np.sqrt(min(1.0, max(0.0, square - chance) / most))) if most > 0 else 0.0


def _standardised(values: Values) -> Values:
    centred = values - values.mean()
    # rounding may leave a constant column a deviation
    deviation = centred.std()
    return centred / deviation if deviation > 0 else np.zeros_like(centred)
