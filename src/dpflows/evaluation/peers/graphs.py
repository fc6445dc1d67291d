"""Distributions over bins from noisy counts, by Private-PGM (McKenna et al. 2019).

The library ``mbi`` sees noisy counts only, never a row: all of this is post-processing.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Float64, Int64

from dpflows.evaluation.peers.base import Clock
from dpflows.evaluation.peers.bins import Codes

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
    """A distribution over bins that explains noisy counts.

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
        clock: When to give up.
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
