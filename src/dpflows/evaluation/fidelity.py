"""How far the columns of generated rows, and pairs of them, are from those of real rows.

All distances lie between 0, alike, and 1, as far apart as can be. Counts are taken in
public bins that hold equal shares of the rows that the model itself generates.
"""

import itertools
from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.evaluation.coding import Codes, Codings, Columns
from dpflows.evaluation.measures import Figures, Measure, Rows, Subject
from dpflows.privacy.mechanisms.counting import bin_counts

#: Bins per column, and per column of a pair.
BINS, PAIR_BINS = 16, 4

Edges = Float64[np.ndarray, " edges"]
Counts = Float64[np.ndarray, " bins"] | Int64[np.ndarray, " bins"]


def public_edges(subject: Subject, bins: int = BINS) -> tuple[Edges, ...]:
    """Bin edges of every column; the outermost are the declared bounds.

    Guarantee:
        Computed from generated rows and the schema alone: post-processing of the model.
    """
    schema, shares = subject.model.encoding_.schema, np.arange(1, bins) / bins
    inner = np.quantile(subject.generated, shares, axis=0).T
    ends = zip(inner, schema.lows(), schema.highs(), strict=True)
    return tuple(np.unique(np.concatenate([[low], cuts, [high]])) for cuts, low, high in ends)


def largest_gap(real: Counts, generated: Counts) -> float:
    """Kolmogorov's distance at the edges of the bins.

    Example:
        >>> largest_gap(np.array([1.0, 1.0]), np.array([1.0, 0.0]))
        0.5
    """
    return float(np.abs(np.cumsum(_shares(real) - _shares(generated))).max())


def total_variation(real: Counts, generated: Counts) -> float:
    """Half the sum of what the shares of the bins differ by.

    Example:
        >>> total_variation(np.array([2.0, 0.0]), np.array([1.0, 1.0]))
        0.5
    """
    return float(np.abs(_shares(real) - _shares(generated)).sum() / 2)


def _shares(counts: Counts) -> Float64[np.ndarray, " bins"]:
    kept = np.maximum(np.asarray(counts, dtype=np.float64), 0.0)
    total = kept.sum()
    # noise may leave nothing; then nothing is known, and all bins are alike
    return kept / total if total > 0 else np.full(len(kept), 1 / len(kept))


def column_errors(real: Columns, generated: Columns, codings: Codings) -> Figures:
    """The total variation of every column, in the bins of its coding.

    Example:
        >>> from dpflows.evaluation.coding import Coding
        >>> from dpflows.table.columns import Column
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
        >>> from dpflows.evaluation.coding import Coding
        >>> from dpflows.table.columns import Column
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
    # only cells that hold a row are counted: three columns of many labels have millions
    seen, place = np.unique(np.concatenate(cells), return_inverse=True)
    counts = [np.bincount(part, minlength=len(seen)) for part in np.split(place, [len(cells[0])])]
    return total_variation(counts[0], counts[1])


def _by_column(subject: Subject) -> list[tuple[str, Counts, Counts]]:
    columns = zip(
        subject.names, public_edges(subject), subject.rows.T, subject.generated.T, strict=True
    )
    return [(name, bin_counts(a, cuts), bin_counts(b, cuts)) for name, cuts, a, b in columns]


@final
class Kolmogorov(Measure):
    """The largest difference of each column's distribution functions, at the bins' edges."""

    name = "kolmogorov"
    title = "Kolmogorov distance"
    each = "column"

    def of(self, subject: Subject) -> Figures:
        """One distance per column."""
        return {name: largest_gap(a, b) for name, a, b in _by_column(subject)}


@final
class TotalVariation(Measure):
    """The total variation between each column's shares of the bins."""

    name = "total-variation"
    title = "Total variation distance"
    each = "column"

    def of(self, subject: Subject) -> Figures:
        """One distance per column."""
        return {name: total_variation(a, b) for name, a, b in _by_column(subject)}


@final
class Correlations(Measure):
    """Half the difference of each pair's correlation coefficients."""

    name = "correlations"
    title = "Difference of correlations"
    each = "pair"

    def of(self, subject: Subject) -> Figures:
        """One difference per pair; a constant column correlates with nothing."""
        gap = np.abs(_correlation(subject.rows) - _correlation(subject.generated)) / 2
        return {_pair(subject, i, j): float(gap[i, j]) for i, j in _pairs(subject)}


@final
class PairCells(Measure):
    """The total variation between the shares of the cells of each pair of columns."""

    name = "pair-cells"
    title = "Total variation of pairs"
    each = "pair"

    def of(self, subject: Subject) -> Figures:
        """One distance per pair."""
        edges = public_edges(subject, PAIR_BINS)
        figures = {}
        for i, j in _pairs(subject):
            cells = [
                np.histogram2d(rows[:, i], rows[:, j], bins=[edges[i], edges[j]])[0].ravel()
                for rows in (subject.rows, subject.generated)
            ]
            figures[_pair(subject, i, j)] = total_variation(*cells)
        return figures


def _pairs(subject: Subject) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(len(subject.names)), 2))


def _pair(subject: Subject, i: int, j: int) -> str:
    return f"{subject.names[i]}, {subject.names[j]}"


def _correlation(rows: Rows) -> Float64[np.ndarray, "d d"]:
    centred = rows - rows.mean(axis=0)
    deviation = centred.std(axis=0)
    unit = np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)
    return unit.T @ unit / len(rows)
