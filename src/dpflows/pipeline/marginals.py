"""What a mixed model is given before its first step: bins that stand out from noise, and marginals.

Guarantee:
    The bins of every column are merged by noisy counts, and the merged bins are counted with
    noise; both releases are the stage's events. What is raked to them after training, and where
    training starts, follows from those.
"""

import dataclasses
from typing import final

import numpy as np

from dpflows.flows.cells import CellNetwork, CellShape
from dpflows.flows.mixed import Grouped
from dpflows.flows.raking import marginals, raked
from dpflows.pipeline.stage import Stage, Work, jax_key, needed
from dpflows.privacy.events import Event
from dpflows.table.mixing import MixedEncoding
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Before
from dpflows.training.grouping import Counted, Grouping

_CELLS, _SHARES, _COUNTS = "cells-{}", "shares-{}", "counts-{}"


def order_of(schema: Schema) -> tuple[int, ...]:
    """The columns in the model's order: the target, then the others as they are declared.

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
        grouping: The noise of both releases, and which columns are counted.

    Guarantee:
        Releases what ``grouping`` lists.
    """

    grouping: Grouping

    is_kept = True

    @property
    def events(self) -> tuple[Event, ...]:
        """What both releases cost."""
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
    """An autoregressive network of independent columns that have their noisy marginals."""

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
    """Shift the trained network until its own marginals are the released ones.

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
    """The columns that ``column_arrays`` described; the content may be hostile."""
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
