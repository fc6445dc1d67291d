"""What a mixed model is given before its first step: bins that stand out from noise, and marginals.

Two Gaussian releases. The first counts the bins of every long column, so that rare bins can be
merged until a merged bin stands out from the noise. The second counts the merged bins of every
column, or of its pairs with the target, for the model to be raked to.

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
from jaxtyping import Float, Int

from dpflows.models.autoregressive import CellNetwork, CellShape, marginals, raked
from dpflows.models.mixed import BinShares
from dpflows.pipeline.plan import Stage, Work, jax_key, needed
from dpflows.privacy.accounting import noise_of_share
from dpflows.privacy.events import Event, GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import (
    BRANCHES,
    marginals_sensitivity,
    noisy_marginals,
    reconciled,
)
from dpflows.privacy.randomness import Entropy
from dpflows.table.bins import FinestBins, MergedBins
from dpflows.table.columns import Column
from dpflows.table.kinds.base import BOUNDS
from dpflows.table.kinds.numbers import MOST_CLASSES
from dpflows.table.reading import MixedEncoding
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Before

#: A column of up to so many bins has all of them counted by themselves.
FEW = 32
#: The parts of the squared Gaussian budget for bins and for merged bins.
BIN_SHARE, MERGED_SHARE = 0.08, 0.20
#: The noise of an unlimited budget, in rows: nothing that could be seen.
FAINT = 1e-3
#: Purposes of the two releases.
BINS, MERGED = "histograms", "marginals"
#: How often the bins of a column are counted whose bounds are not declared yet.
_MOST_LEVELS = 3

Codes = Int[np.ndarray, "rows columns"]
Counts = Float[np.ndarray, " bins"]


@final
@dataclasses.dataclass(frozen=True)
class Counted:
    """Noisy counts of merged bins.

    Attributes:
        tables: For every column one line per merged bin of the first, or a single line.
        noise: The standard deviation of every count.
    """

    tables: tuple[Float[np.ndarray, "lines _"], ...]
    noise: float


@final
@dataclasses.dataclass(frozen=True)
class Grouping:
    """How bins will be merged, and what merged bins will be counted.

    Attributes:
        levels: How often the bins of each column are counted: not at all, by themselves,
            or in ever larger groups as well.
        in_pairs: Whether merged bins are counted in pairs with those of the first column.
        rows: The public number of rows.
        bin_noise: Of the counts of bins, in rows.
        merged_noise: Of the counts of merged bins.

    Guarantee:
        ``group`` and ``count`` release exactly ``events``, which follow only from the columns'
        declarations and the budget.
    """

    levels: tuple[int, ...]
    in_pairs: bool
    rows: int
    bin_noise: float = FAINT
    merged_noise: float = FAINT

    @property
    def bin_tables(self) -> int:
        """In how many tables of bins a row is counted."""
        return sum(self.levels)

    @property
    def merged_tables(self) -> int:
        """In how many tables of merged bins a row is counted."""
        return len(self.levels) - self.in_pairs

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of both releases."""
        released = (
            (BINS, self.bin_tables, self.bin_noise),
            (MERGED, self.merged_tables, self.merged_noise),
        )
        return tuple(
            GaussianEvent(noise=noise, sensitivity=marginals_sensitivity(tables), purpose=purpose)
            for purpose, tables, noise in released
            if tables > 0
        )

    def group(
        self, codes: Codes, columns: Sequence[FinestBins], *, entropy: Entropy
    ) -> tuple[BinShares, ...]:
        """Count the bins of long columns, and merge rare ones.

        Args:
            codes: The bin of every cell of the private rows.
            columns: The columns' public bins.
            entropy: Where the noise comes from.
        """
        counts = self._bin_counts(codes, columns, entropy)
        merged = [
            MergedBins.each(bins) if at not in counts else self._merged(bins, counts[at])
            for at, bins in enumerate(columns)
        ]
        return tuple(BinShares(one.groups, one.shares, one.bins.log_volumes) for one in merged)

    def count(self, groups: Codes, sizes: Sequence[int], *, entropy: Entropy) -> Counted:
        """Count the merged bins of every column, or of its pairs with the first."""
        lines = sizes[0] if self.in_pairs else 1
        places = groups[:, :1] * np.array(sizes[1:]) + groups[:, 1:] if self.in_pairs else groups
        widths = sizes[1:] if self.in_pairs else sizes
        released = noisy_marginals(
            places,
            [lines * width for width in widths],
            noise=self.merged_noise,
            entropy=entropy,
            purpose=MERGED,
        ).value
        tables = tuple(counts.reshape(lines, -1) for counts in released)
        return Counted(_with_first(tables) if self.in_pairs else tables, self.merged_noise)

    def _bin_counts(
        self, codes: Codes, columns: Sequence[FinestBins], entropy: Entropy
    ) -> dict[int, Counts]:
        """The counts of long columns' bins in their order, from counts at all levels."""
        tables = [(at, BRANCHES**i) for at, levels in enumerate(self.levels) for i in range(levels)]
        if not tables:
            return {}
        places = [columns[at].ranks[codes[:, at]] // width for at, width in tables]
        sizes = [self._room(columns, at) // width for at, width in tables]
        released = noisy_marginals(
            np.column_stack(places), sizes, noise=self.bin_noise, entropy=entropy, purpose=BINS
        ).value
        nested: dict[int, list[np.ndarray]] = {}
        for (at, _), counts in zip(tables, released, strict=True):
            nested.setdefault(at, []).insert(0, counts[None])
        return {at: reconciled(levels)[0, : columns[at].size] for at, levels in nested.items()}

    def _room(self, columns: Sequence[FinestBins], at: int) -> int:
        """The bins of a column, filled up so that all levels of its groups are whole."""
        return BRANCHES ** self.levels[at] if self.levels[at] > 1 else columns[at].size

    def _merged(self, bins: FinestBins, counts: Counts) -> MergedBins:
        """Merged bins of one column by the counts of its bins in their order."""
        width = BRANCHES ** (_levels_of(max(bins.filled, 2)) - 1)
        return MergedBins.by_counts(bins, counts, noise=self.bin_noise, rows=self.rows, width=width)


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
        bin_noise=_noise(budget, draft.bin_tables, BIN_SHARE),
        merged_noise=_noise(budget, draft.merged_tables, MERGED_SHARE),
    )


def _noise(budget: Budget, tables: int, share: float) -> float:
    """The noise on the tables that spends a share of the squared Gaussian budget."""
    if tables == 0:
        return FAINT
    return max(noise_of_share(budget, marginals_sensitivity(tables), share), FAINT)


def _is_short(column: Column) -> bool:
    return column.is_declared and column.bins().size <= MOST_CLASSES


def _levels(column: Column) -> int:
    """How often a column's bins are counted, by its declaration alone."""
    if not column.is_declared:
        return _MOST_LEVELS if column.rules.discovers == BOUNDS else 1
    bins = column.bins()
    if bins.size <= FEW:
        return 0
    return _levels_of(bins.size) if bins.is_ordered else 1


def _levels_of(size: int) -> int:
    """The levels of groups above so many bins."""
    # a power of the number of branches must not be rounded up
    return math.ceil(round(math.log(size, BRANCHES), 9))


def _with_first(pairs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The pairs, preceded by the marginal of the first column that all of them imply."""
    first = np.mean([pair.sum(axis=1) for pair in pairs], axis=0)
    return (np.tile(first, (len(first), 1)), *pairs)


#: Names of arrays in files and checkpoints.
_CELLS, _SHARES, _COUNTS = "cells-{}", "shares-{}", "counts-{}"


def order_of(schema: Schema) -> tuple[int, ...]:
    """The columns in the model's order: the target, then the others as declared.

    Example:
        >>> from dpflows.table.schema import Column
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
        finest = [encoding.bins[at] for at in order_of(encoding.schema)]
        bins = self.grouping.group(codes, finest, entropy=work.entropy)
        groups, sizes = groups_of(bins, codes), [column.size for column in bins]
        counts = self.grouping.count(groups, sizes, entropy=work.entropy)
        return work.after(bins=bins, counts=counts, points=groups.astype(np.float32))

    def keep(self, work: Work) -> Before:
        """Bins and counts."""
        tables = {_COUNTS.format(i): table for i, table in enumerate(work.counts.tables)}
        return {}, tables | column_arrays(needed(work.bins))

    def resume(self, work: Work, kept: Before) -> Work:
        """Bins and counts that were released before."""
        bins = read_columns(kept[1], work.mixed)
        tables = tuple(kept[1][_COUNTS.format(i)] for i in range(len(bins)))
        counts = Counted(tables, self.grouping.merged_noise)
        points = groups_of(bins, _codes(work)).astype(np.float32)
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


def groups_of(columns: tuple[BinShares, ...], codes: np.ndarray) -> np.ndarray:
    """The merged bin of every bin."""
    pairs = zip(columns, codes.T, strict=True)
    return np.column_stack([column.groups[at] for column, at in pairs])


def column_arrays(columns: tuple[BinShares, ...]) -> dict[str, np.ndarray]:
    """The merged bins of all columns by name."""
    groups = {_CELLS.format(i): column.groups for i, column in enumerate(columns)}
    return groups | {_SHARES.format(i): column.shares for i, column in enumerate(columns)}


def read_columns(arrays: dict[str, np.ndarray], encoding: MixedEncoding) -> tuple[BinShares, ...]:
    """The columns that ``column_arrays`` described; the content may be hostile."""
    finest = [encoding.bins[at] for at in order_of(encoding.schema)]
    return tuple(
        BinShares(
            arrays[_CELLS.format(i)].astype(np.int64),
            arrays[_SHARES.format(i)].astype(float),
            bins.log_volumes,
        )
        for i, bins in enumerate(finest)
    )


def _codes(work: Work) -> np.ndarray:
    """The bin of every cell, in the model's order of columns."""
    return needed(work.rows)[:, order_of(work.mixed.schema)]
