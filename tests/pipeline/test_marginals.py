"""Bins are merged by what was paid for, until merged bins stand out."""

import numpy as np
import pytest

from dpflows.pipeline import marginals
from dpflows.pipeline.marginals import plan_grouping
from dpflows.privacy.events import GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms import statistics
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column

BUDGET = Budget(1.0, 1e-5)
SEX = Column("sex", "categorical", categories=("F", "M"))
AGE = Column("age", "integer", min=0, max=120, nullable=True)
GAIN = Column("gain", "integer", min=0, max=99_999)
TOWN = Column("town", "categorical", categories=tuple(f"t{i}" for i in range(60)))
COLUMNS = (SEX, AGE, GAIN, TOWN)
BINS = tuple(column.bins() for column in COLUMNS)


def codes_of(rows, rng=None):
    rng = rng or np.random.default_rng()
    return np.column_stack([rng.integers(0, bins.size, rows) for bins in BINS])


def test_frequent_values_have_merged_bins_of_their_own():
    values = np.repeat([0.0, 15_024.0, 40_000.0], [20_000, 3_000, 50])
    codes = BINS[2].find(values)[:, None]
    plan = plan_grouping(BUDGET, [GAIN], rows=len(codes), has_target=False)
    column = plan.group(codes, [BINS[2]], entropy=Entropy.from_os())[0]
    groups = column.groups[codes[:, 0]]
    assert len(set(groups[[0, 20_001, -1]])) == 3
    assert (column.groups == groups[0]).sum() == 1


def test_no_rows_are_spread_over_deserts():
    """Values end at a third of the range: what lies beyond is not in a bin with them.

    Two groups lie between, each of which noise may fill with a chance of one in forty; a
    seed decides that it does not.
    """
    values = np.random.default_rng().integers(0, 33_000, 20_000).astype(float)
    codes = BINS[2].find(values)[:, None]
    plan = plan_grouping(BUDGET, [GAIN], rows=len(codes), has_target=False)
    column = plan.group(codes, [BINS[2]], entropy=Entropy.insecure(1))[0]
    far = column.groups[BINS[2].find(np.array([90_000.0]))]
    assert far not in column.groups[codes[:, 0]]


@pytest.mark.parametrize("has_target", [True, False])
def test_a_plan_pays_for_what_it_counts(has_target, monkeypatch):
    """Every table of the two releases is in the events, with its noise."""
    seen = []
    right = statistics.noisy_marginals

    def watched(places, sizes, **settings):
        release = right(places, sizes, **settings)
        seen.append(release.event)
        return release

    monkeypatch.setattr(marginals, "noisy_marginals", watched)
    plan = plan_grouping(BUDGET, COLUMNS, rows=500, has_target=has_target)
    codes, entropy = codes_of(500), Entropy.from_os()
    columns = plan.group(codes, BINS, entropy=entropy)
    groups = np.column_stack([c.groups[at] for c, at in zip(columns, codes.T, strict=True)])
    counted = plan.count(groups, [c.size for c in columns], entropy=entropy)
    assert tuple(seen) == plan.events
    assert len(counted.tables) == len(COLUMNS)
    assert {len(table) for table in counted.tables} == ({2} if has_target else {1})


def test_undeclared_columns_are_planned_for():
    """What is found later has at most as many levels as were paid for."""
    open_ended = (Column("town", "categorical"), Column("age", "integer"), SEX)
    plan = plan_grouping(BUDGET, open_ended, rows=500, has_target=True)
    assert plan.levels == (1, 3, 0)
    assert not plan.in_pairs


def test_shares_follow_the_budget():
    noise = {
        epsilon: plan_grouping(
            Budget(epsilon, 1e-5), COLUMNS, rows=500, has_target=True
        ).merged_noise
        for epsilon in (0.5, 1.0, 4.0)
    }
    assert noise[0.5] > noise[1.0] > noise[4.0] > 0


def test_an_unlimited_budget_counts_almost_exactly():
    plan = plan_grouping(Budget(np.inf, 1e-5), [SEX], rows=10, has_target=False)
    codes = np.array([[0]] * 7 + [[1]] * 3)
    counted = plan.count(codes, [2], entropy=Entropy.from_os())
    np.testing.assert_allclose(counted.tables[0], [[7, 3]], atol=0.1)


def test_missing_cells_have_a_merged_bin_of_their_own():
    codes = np.full((400, 1), BINS[1].filled)
    codes[:200, 0] = 30
    plan = plan_grouping(BUDGET, [AGE], rows=400, has_target=False)
    column = plan.group(codes, [BINS[1]], entropy=Entropy.from_os())[0]
    missing = column.groups[BINS[1].filled]
    assert (column.groups == missing).sum() == 1


def test_events_are_gaussian_and_grow_with_the_columns():
    events = plan_grouping(BUDGET, COLUMNS, rows=500, has_target=False).events
    assert all(isinstance(event, GaussianEvent) for event in events)
    bins, merged = (event.sensitivity.zero_out**2 for event in events)
    # two levels of ages, three of gains, one of towns; and a table for each column
    assert (round(bins), round(merged)) == (6, 4)
