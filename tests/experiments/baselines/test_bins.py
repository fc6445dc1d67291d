"""Bins of every kind of column: public, complete, and undone by drawing inside them."""

import numpy as np
import pytest

from dpflows.experiments.baselines.base import BINS, Grid
from dpflows.privacy.randomness import Entropy
from dpflows.table.bins import MergedBins
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

COLUMNS = {
    "continuous": Column("c", "continuous", min=-1, max=3),
    "integer": Column("i", "integer", min=0, max=99_999),
    "few": Column("f", "integer", min=1, max=16),
    "spiked": Column("s", "continuous", min=0, max=10, spikes=(0, 2.5), nullable=True),
    "labels": Column("l", "categorical", categories=("a", "b", "c"), nullable=True),
    "truth": Column("t", "boolean"),
    "date": Column("d", "date", min=0, max=10 * 86400),
}


def uniforms(count):
    return np.random.default_rng().random(count)


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_drawn_value_lies_in_its_bin(kind):
    column = MergedBins.evenly(COLUMNS[kind].bins(), BINS)
    codes = np.tile(np.arange(column.size), 20)
    assert (column.find(column.draw(codes, uniforms)) == codes).all()


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_bin_is_in_a_merged_one_and_those_are_few(kind):
    column = MergedBins.evenly(COLUMNS[kind].bins(), most=8)
    assert set(column.groups) == set(range(column.size))
    assert column.size <= 8 + 4
    assert (np.diff(column.groups) >= 0).all()


def test_values_are_spread_evenly_inside_a_bin():
    """Fails by chance once in 10^6 runs: the mean of 40,000 uniforms within 5 deviations."""
    column = MergedBins.evenly(COLUMNS["continuous"].bins(), most=2)
    drawn = column.draw(np.zeros(40_000, dtype=np.int64), uniforms)
    assert drawn.min() >= -1
    assert drawn.max() <= 1
    assert abs(drawn.mean()) < 5 * np.sqrt(1 / 3) / 200


def test_undeclared_labels_are_no_bin_and_become_any():
    schema = Schema((COLUMNS["labels"],))
    grid = Grid.of(schema)
    codes = grid.encode({"l": np.array(["a", "x", None], dtype=object)})
    assert codes[:, 0].tolist() == [0, -1, 3]
    drawn = grid.decode(np.full((200, 1), -1), Entropy.from_os())
    assert set(drawn["l"]) == {"a", "b", "c", None}


def test_bins_do_not_depend_on_rows():
    grid = Grid.of(Schema((COLUMNS["integer"],)))
    assert grid.sizes == (BINS + 2,)
    codes = grid.encode({"i": np.array([0.0, 1.0, 99_998.0, 99_999.0])})
    assert codes[:, 0].tolist() == [BINS, 0, BINS - 1, BINS + 1]
