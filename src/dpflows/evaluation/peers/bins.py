"""Columns of any kind as a few public bins, for methods that know counts alone.

Bins are groups of leaves: labels, truth values, spikes and missing cells stay apart, and
intervals of numbers are joined into some of equal width. No value is looked at.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import final

import numpy as np
from jaxtyping import Int64

from dpflows.privacy.randomness import Entropy
from dpflows.table.intervals import Intervals
from dpflows.table.leaves import Leaves, Uniforms, leaves_of
from dpflows.table.schema import Schema

#: Intervals of one column of numbers.
BINS = 100

#: Cells by column: float64, labels or ``None``, truth values, or dates.
Columns = Mapping[str, np.ndarray]
Codes = Int64[np.ndarray, "rows columns"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class BinnedColumn:
    """The bins of one column.

    Attributes:
        leaves: What the bins are made of.
        most: At most so many intervals of numbers.

    Example:
        >>> from dpflows.table.columns import Column
        >>> age = BinnedColumn(leaves_of(Column("age", "integer", min=0, max=99)), most=10)
        >>> age.size, age.encode(np.array([0.0, 9.0, 10.0, 99.0])).tolist()
        (10, [0, 0, 1, 9])
    """

    leaves: Leaves
    most: int = BINS

    @functools.cached_property
    def bins(self) -> Int64[np.ndarray, " leaves"]:
        """The bin of every leaf."""
        if not isinstance(self.leaves, Intervals):
            return np.arange(self.leaves.size)
        intervals = self.leaves.filled - len(self.leaves.spikes)
        groups = min(self.most, intervals)
        joined = np.arange(intervals) * groups // intervals
        return np.concatenate([joined, groups + np.arange(self.leaves.size - intervals)])

    @property
    def size(self) -> int:
        """How many bins there are."""
        return int(self.bins[-1]) + 1

    def encode(self, cells: np.ndarray) -> Int64[np.ndarray, " rows"]:
        """The bin of every cell; -1 where it lies outside what is declared."""
        found = self.leaves.find(cells)
        return np.where(found < 0, -1, self.bins[found])

    def decode(self, codes: Int64[np.ndarray, " rows"], uniforms: Uniforms) -> np.ndarray:
        """A value of every bin, evenly spread inside it."""
        upto = np.cumsum(self._shares)
        # every bin's shares add up to one, so that bins end at whole numbers
        found = np.searchsorted(upto, codes + uniforms(len(codes)), side="right")
        first = np.searchsorted(self.bins, codes)
        last = np.searchsorted(self.bins, codes, side="right") - 1
        return self.leaves.draw(np.clip(found, first, last), uniforms)

    @functools.cached_property
    def _shares(self) -> np.ndarray:
        """How much of its bin each leaf is."""
        volumes = np.exp(self.leaves.log_volumes)
        return volumes / np.bincount(self.bins, volumes)[self.bins]


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
    columns: tuple[BinnedColumn, ...]

    @classmethod
    def of(cls, schema: Schema, most: int = BINS) -> "Grid":
        """The grid of a schema, with at most so many intervals per column."""
        return cls(schema, tuple(BinnedColumn(leaves_of(c), most) for c in schema.columns))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many bins each column has."""
        return tuple(column.size for column in self.columns)

    def encode(self, columns: Columns) -> Codes:
        """The bins of every row."""
        pairs = zip(self.schema.names, self.columns, strict=True)
        return np.column_stack([column.encode(columns[name]) for name, column in pairs])

    def decode(self, codes: Codes, entropy: Entropy) -> dict[str, np.ndarray]:
        """Rows of these bins; a bin below zero becomes any."""
        steps = itertools.count()

        def uniforms(count: int) -> np.ndarray:
            return entropy.uniforms("dither", step=next(steps), count=count)

        filled = _filled(codes, self.sizes, uniforms)
        pairs = zip(self.schema.names, self.columns, filled.T, strict=True)
        return {name: column.decode(own, uniforms) for name, column, own in pairs}


def _filled(codes: Codes, sizes: tuple[int, ...], uniforms: Uniforms) -> Codes:
    anywhere = uniforms(codes.size).reshape(codes.shape) * np.array(sizes)
    return np.where(codes < 0, anywhere.astype(np.int64), codes)
