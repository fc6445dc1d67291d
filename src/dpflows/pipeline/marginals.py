"""Merged bins and noisy marginals of a mixed table, before training and for raking after it.

Two Gaussian releases. The first counts the leaves of every long column, so that rare leaves
can be merged into cells whose counts exceed the noise. The second counts the cells of
every column, or of its pairs with the target; the trained model is raked to these counts.

Guarantee:
    The bins of every column are merged by noisy counts, and the merged bins are counted with
    noise; both releases are the stage's events. The initial biases, and the raking after
    training, follow from these releases.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int

from dpflows.models.autoregressive import CellNetwork, CellShape, marginals, raked
from dpflows.models.mixed import Grouped
from dpflows.pipeline.stage import Stage, Work, jax_key, needed
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import Event, GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.histograms import (
    BRANCHES,
    marginals_sensitivity,
    noisy_marginals,
    reconciled,
)
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column
from dpflows.table.leaves import Leaves, leaves_of
from dpflows.table.mixing import MixedEncoding
from dpflows.table.schema import MOST_CLASSES, Schema
from dpflows.training.checkpoints import Before

#: A column of up to so many leaves has a cell for each.
FEW = 32
#: The most cells that a column is aimed to have beside its frequent leaves.
MOST_CELLS = 32
#: A cell should hold so many standard deviations of the noise on a leaf's count.
STANDS_OUT = 4.0
#: A group of leaves counts as empty below so many standard deviations.
EMPTY = 2.0
#: The parts of the squared Gaussian budget for leaves and for cells.
LEAF_SHARE, CELL_SHARE = 0.08, 0.20
#: The noise of an unlimited budget, in rows: nothing that could be seen.
FAINT = 1e-3
#: Purposes of the two releases.
LEAVES, CELLS = "histograms", "marginals"
#: How often the leaves of a column are counted of which nothing is declared yet.
_UNDECLARED = {"categorical": 1}
_MOST_LEVELS = 3

Codes = Int[np.ndarray, "rows columns"]
Counts = Float[np.ndarray, " leaves"]


@final
@dataclasses.dataclass(frozen=True)
class Counted:
    """Noisy counts of cells.

    Attributes:
        tables: For every column one row per cell of the first, or a single row.
        noise: The standard deviation of every count.
    """

    tables: tuple[Float[np.ndarray, "lines _"], ...]
    noise: float


@final
@dataclasses.dataclass(frozen=True)
class Grouping:
    """The planned merging of leaves into cells, and counting of the cells.

    Attributes:
        levels: How often the leaves of each column are counted: not at all, singly, or also in
        groups of increasing size.
        in_pairs: Whether cells are counted in pairs with those of the first column.
        rows: The public number of rows.
        leaf_noise: Noise on the counts of leaves, in rows.
        cell_noise: Noise on the counts of cells, in rows.

    Guarantee:
        ``group`` and ``count`` release exactly ``events``, which follow only from the columns'
        declarations and the budget.
    """

    levels: tuple[int, ...]
    in_pairs: bool
    rows: int
    leaf_noise: float = FAINT
    cell_noise: float = FAINT

    @property
    def leaf_tables(self) -> int:
        """The number of tables of leaves in which a row is counted."""
        return sum(self.levels)

    @property
    def cell_tables(self) -> int:
        """The number of tables of cells in which a row is counted."""
        return len(self.levels) - self.in_pairs

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of both releases."""
        released = (
            (LEAVES, self.leaf_tables, self.leaf_noise),
            (CELLS, self.cell_tables, self.cell_noise),
        )
        return tuple(
            GaussianEvent(noise=noise, sensitivity=marginals_sensitivity(tables), purpose=purpose)
            for purpose, tables, noise in released
            if tables > 0
        )

    def group(
        self, codes: Codes, leaves: Sequence[Leaves], *, entropy: Entropy
    ) -> tuple[Grouped, ...]:
        """Count the leaves of long columns, and merge rare ones.

        Args:
            codes: The leaf of every cell of the private rows.
            leaves: The columns' public leaves.
            entropy: Where the noise comes from.
        """
        counts = self._leaf_counts(codes, leaves, entropy)
        return tuple(
            _each(column) if at not in counts else self._together(column, counts[at])
            for at, column in enumerate(leaves)
        )

    def count(self, cells: Codes, sizes: Sequence[int], *, entropy: Entropy) -> Counted:
        """Count the cells of every column, or of its pairs with the first."""
        lines = sizes[0] if self.in_pairs else 1
        places = cells[:, :1] * np.array(sizes[1:]) + cells[:, 1:] if self.in_pairs else cells
        widths = sizes[1:] if self.in_pairs else sizes
        released = noisy_marginals(
            places,
            [lines * width for width in widths],
            noise=self.cell_noise,
            entropy=entropy,
            purpose=CELLS,
        ).value
        tables = tuple(counts.reshape(lines, -1) for counts in released)
        return Counted(_with_first(tables) if self.in_pairs else tables, self.cell_noise)

    def _leaf_counts(
        self, codes: Codes, leaves: Sequence[Leaves], entropy: Entropy
    ) -> dict[int, Counts]:
        """The counts of long columns' leaves in their order, from counts at all levels."""
        tables = [(at, BRANCHES**i) for at, levels in enumerate(self.levels) for i in range(levels)]
        if not tables:
            return {}
        places = [ranks(leaves[at])[codes[:, at]] // width for at, width in tables]
        sizes = [self._room(leaves, at) // width for at, width in tables]
        released = noisy_marginals(
            np.column_stack(places), sizes, noise=self.leaf_noise, entropy=entropy, purpose=LEAVES
        ).value
        nested: dict[int, list[np.ndarray]] = {}
        for (at, _), counts in zip(tables, released, strict=True):
            nested.setdefault(at, []).insert(0, counts[None])
        return {at: reconciled(levels)[0, : leaves[at].size] for at, levels in nested.items()}

    def _room(self, leaves: Sequence[Leaves], at: int) -> int:
        """The leaves of a column, padded so that all groups have equal sizes."""
        return BRANCHES ** self.levels[at] if self.levels[at] > 1 else leaves[at].size

    def _together(self, leaves: Leaves, counts: Counts) -> Grouped:
        """Cells of one column by the counts of its leaves in their order."""
        filled = counts[: leaves.filled]
        if leaves.is_ordered:
            empty = self._deserted(filled)
            cells = runs(np.where(empty, 0.0, filled), self._enough(filled), empty)
        else:
            cells = rest(filled, self._enough(filled))
        missing = np.arange(leaves.size - leaves.filled) + cells.max() + 1
        at = ranks(leaves)
        cells, volumes = np.concatenate([cells, missing])[at], leaves.log_volumes
        by_count = np.maximum(counts, self.leaf_noise)[at]
        weights = np.exp(volumes - volumes.max()) if leaves.is_ordered else by_count
        return Grouped(cells, weights / np.bincount(cells, weights)[cells], volumes)

    def _deserted(self, counts: Counts) -> Bool[np.ndarray, " leaves"]:
        """The leaves that lie in large groups which may be empty."""
        width = BRANCHES ** (math.ceil(round(math.log(max(len(counts), 2), BRANCHES), 9)) - 1)
        sums = np.add.reduceat(counts, np.arange(0, len(counts), width))
        return np.repeat(sums < EMPTY * self.leaf_noise, width)[: len(counts)]

    def _enough(self, counts: Counts) -> float:
        """The rows a cell should have: a share of those that are not in frequent leaves."""
        thin = max(counts[counts < self.rows / MOST_CELLS].sum(), 0.0)
        return max(thin / MOST_CELLS, STANDS_OUT * self.leaf_noise)


def plan_grouping(
    budget: Budget, columns: Sequence[Column], *, rows: int, has_target: bool
) -> Grouping:
    """Choose the noise of both releases by their shares of the squared Gaussian budget.

    Args:
        budget: The total.
        columns: As declared, in the model's order.
        rows: The public number of rows.
        has_target: Whether the first column is a target, whose pairs matter most.

    Example:
        >>> age = Column("age", "integer", min=0, max=120)
        >>> plan = plan_grouping(Budget(1.0, 1e-5), [age], rows=10_000, has_target=False)
        >>> [event.purpose for event in plan.events]
        ['histograms', 'marginals']
    """
    in_pairs = has_target and len(columns) > 1 and _is_short(columns[0])
    draft = Grouping(tuple(map(_levels, columns)), in_pairs, rows)
    if not budget.is_private:
        return draft
    return dataclasses.replace(
        draft,
        leaf_noise=_noise(budget, draft.leaf_tables, LEAF_SHARE),
        cell_noise=_noise(budget, draft.cell_tables, CELL_SHARE),
    )


def _noise(budget: Budget, tables: int, share: float) -> float:
    """The noise on the tables that spends a share of the squared Gaussian budget."""
    if tables == 0:
        return FAINT
    unit = marginals_sensitivity(tables)
    whole = calibrate_noise(
        budget, lambda noise: [GaussianEvent(noise=noise, sensitivity=unit)], accountant="gdp"
    )
    return max(whole / math.sqrt(share), FAINT)


def _is_short(column: Column) -> bool:
    return column.is_declared and leaves_of(column).size <= MOST_CLASSES


def _levels(column: Column) -> int:
    """How often a column's leaves are counted, by its declaration only."""
    if not column.is_declared:
        return _UNDECLARED.get(column.kind, _MOST_LEVELS)
    leaves = leaves_of(column)
    if leaves.size <= FEW:
        return 0
    # a power of the number of branches must not be rounded up
    return math.ceil(round(math.log(leaves.size, BRANCHES), 9)) if leaves.is_ordered else 1


def ranks(leaves: Leaves) -> Int[np.ndarray, " leaves"]:
    """The rank of every leaf in the order of values; missing is last."""
    places = np.arange(leaves.size)
    places[np.asarray(leaves.order)] = np.arange(leaves.filled)
    return places


def _each(leaves: Leaves) -> Grouped:
    """A cell for every leaf."""
    return Grouped(np.arange(leaves.size), np.ones(leaves.size), leaves.log_volumes)


def _with_first(pairs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The pairs, preceded by the marginal of the first column that all of them imply."""
    first = np.mean([pair.sum(axis=1) for pair in pairs], axis=0)
    return (np.tile(first, (len(first), 1)), *pairs)


def runs(
    counts: Counts, enough: float, empty: Bool[np.ndarray, " leaves"] | None = None
) -> Int[np.ndarray, " leaves"]:
    """Merge neighbouring leaves until they have enough rows; one that has enough stays alone.

    Args:
        counts: Rows per leaf, in the order of values.
        enough: How many rows a cell should have.
        empty: Leaves that are kept separate, so that no rows are spread over them.

    Example:
        >>> runs(np.array([1.0, 2.0, 9.0, 3.0, 3.0, 1.0]), 5.0).tolist()
        [0, 0, 1, 2, 2, 3]
        >>> runs(np.array([1.0, 0.0, 0.0]), 5.0, np.array([False, True, True])).tolist()
        [0, 1, 1]
    """
    walls = np.zeros(len(counts), dtype=bool)
    if empty is not None:
        walls[1:] = empty[1:] != empty[:-1]
    cells, cell, held = [], 0, 0.0
    for at, (count, wall) in enumerate(zip(counts.tolist(), walls.tolist(), strict=True)):
        if at > 0 and (wall or max(count, held) >= enough):
            cell, held = cell + 1, 0.0
        cells.append(cell)
        held += count
    return np.array(cells, dtype=np.int64)


def rest(counts: Counts, enough: float) -> Int[np.ndarray, " leaves"]:
    """A cell for every label that has enough rows, and one for all others.

    Example:
        >>> rest(np.array([1.0, 9.0, 2.0, 8.0]), 5.0).tolist()
        [2, 0, 2, 1]
    """
    frequent = counts >= enough
    return np.where(frequent, np.cumsum(frequent) - 1, frequent.sum())


_CELLS, _SHARES, _COUNTS = "cells-{}", "shares-{}", "counts-{}"


def order_of(schema: Schema) -> tuple[int, ...]:
    """The columns in the model's order: the target, then the others as declared.

    Example:
        >>> from dpflows.table.columns import Column
        >>> rows = (Column("sex", "boolean"), Column("ill", "boolean"))
        >>> order_of(Schema(rows, target="ill"))
        (1, 0)
    """
    names = list(schema.names)
    first = [] if schema.target is None else [names.index(schema.target)]
    return (*first, *(at for at in range(len(names)) if at not in first))


@final
@dataclasses.dataclass(frozen=True)
class CountMarginals(Stage):
    """Merge rare bins by noisy counts, and count the merged bins.

    Attributes:
        grouping: The noise of both releases, and the counted columns.

    Guarantee:
        Releases what ``grouping`` lists.
    """

    grouping: Grouping

    is_kept = True

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of both releases."""
        return self.grouping.events

    def run(self, work: Work) -> Work:
        """Merge, then count."""
        encoding, codes = work.mixed, _codes(work)
        leaves = [encoding.leaves[at] for at in order_of(encoding.schema)]
        bins = self.grouping.group(codes, leaves, entropy=work.entropy)
        cells, sizes = cells_of(bins, codes), [column.size for column in bins]
        counts = self.grouping.count(cells, sizes, entropy=work.entropy)
        return work.after(bins=bins, counts=counts, points=cells.astype(np.float32))

    def keep(self, work: Work) -> Before:
        """Bins and counts."""
        tables = {_COUNTS.format(i): table for i, table in enumerate(work.counts.tables)}
        return {}, tables | column_arrays(needed(work.bins))

    def resume(self, work: Work, kept: Before) -> Work:
        """Bins and counts that were released before."""
        bins = read_columns(kept[1], work.mixed)
        tables = tuple(kept[1][_COUNTS.format(i)] for i in range(len(bins)))
        counts = Counted(tables, self.grouping.cell_noise)
        points = cells_of(bins, _codes(work)).astype(np.float32)
        return work.after(bins=bins, counts=counts, points=points)


@final
@dataclasses.dataclass(frozen=True)
class BuildNetwork(Stage):
    """Build an autoregressive network, initialised to independent noisy marginals."""

    shape: CellShape

    @property
    def events(self) -> tuple[Event, ...]:
        """None: the counts were released before."""
        return ()

    def run(self, work: Work) -> Work:
        """Build the network and set the biases of its outputs."""
        counts = [np.maximum(t.sum(axis=0), work.counts.noise) for t in work.counts.tables]
        biases = np.concatenate([np.log(count / count.sum()) for count in counts])
        sizes = tuple(column.size for column in needed(work.bins))
        key = jax_key(work.entropy, "initialisation")
        return work.after(model=self.shape.build(sizes, key=key, biases=biases))


@final
@dataclasses.dataclass(frozen=True)
class RakeNetwork(Stage):
    """Rake the trained network to the released marginals.

    Guarantee:
        Reads the network, its samples and released counts: post-processing.
    """

    rows: int

    @property
    def events(self) -> tuple[Event, ...]:
        """None."""
        return ()

    def run(self, work: Work) -> Work:
        """Rake the network."""
        network: CellNetwork = work.model
        seen = marginals(work.counts.tables, noise=work.counts.noise, rows=self.rows)
        return work.after(model=raked(network, seen, jax_key(work.entropy, "sampling", step=1)))


def cells_of(columns: tuple[Grouped, ...], codes: np.ndarray) -> np.ndarray:
    """The merged bin of every bin."""
    pairs = zip(columns, codes.T, strict=True)
    return np.column_stack([column.cells[at] for column, at in pairs])


def column_arrays(columns: tuple[Grouped, ...]) -> dict[str, np.ndarray]:
    """The merged bins of all columns by name."""
    cells = {_CELLS.format(i): column.cells for i, column in enumerate(columns)}
    return cells | {_SHARES.format(i): column.shares for i, column in enumerate(columns)}


def read_columns(arrays: dict[str, np.ndarray], encoding: MixedEncoding) -> tuple[Grouped, ...]:
    """Restore columns from ``column_arrays``, whose content may be hostile."""
    leaves = [encoding.leaves[at] for at in order_of(encoding.schema)]
    return tuple(
        Grouped(
            arrays[_CELLS.format(i)].astype(np.int64),
            arrays[_SHARES.format(i)].astype(float),
            column.log_volumes,
        )
        for i, column in enumerate(leaves)
    )


def _codes(work: Work) -> np.ndarray:
    """The bin of every cell, in the model's order of columns."""
    return needed(work.rows)[:, order_of(work.mixed.schema)]
