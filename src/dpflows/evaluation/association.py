"""How strongly two columns go together, in real rows and in generated ones."""

import dataclasses
import functools
import itertools
from typing import final

import numpy as np
from jaxtyping import Float64

from dpflows.evaluation.coding import Codes, Codings, Columns, numbers
from dpflows.evaluation.fidelity import PAIR_BINS, named
from dpflows.evaluation.measures import Figures, Measure, Subject
from dpflows.table.columns import Column

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
        return {column.name: _values(self.columns[column.name], column) for column in ordered}

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


def _values(cells: np.ndarray, column: Column) -> Values:
    if column.kind != "boolean":
        return numbers(cells, column)
    return np.array([np.nan if cell is None else float(cell) for cell in cells.tolist()])
