"""No row moves a statistic further than its mechanism claims, however hostile the row."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflows.privacy.events import NEIGHBOURS, Sensitivity
from dpflows.privacy.mechanisms import (
    clipped_moments,
    discover_categories,
    noisy_count,
    noisy_histogram,
    private_bounds,
    private_quantile,
    selection,
    statistics,
)
from dpflows.privacy.randomness import Entropy

FALSE_ALARM = 1e-6
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)
EDGES = np.array([-1.0, 0.0, 0.5, 1.0])

HOSTILE = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 0.5, 1.0]),
)
NULL = math.nan


def neighbour(rows: list, place: int, other, neighbours: str) -> list:
    """The table after one row was blanked out, removed or replaced."""
    before, after = rows[:place], rows[place + 1 :]
    middle = {"zero-out": [None], "add-remove": [], "replace-one": [other]}[neighbours]
    return [*before, *middle, *after]


def column(rows: list) -> np.ndarray:
    return np.array([NULL if row is None else row for row in rows], dtype=np.float64)


def matrix(rows: list) -> np.ndarray:
    return np.array([[NULL, NULL] if row is None else row for row in rows]).reshape(-1, 2)


def l1(difference: np.ndarray) -> float:
    return float(np.abs(difference).sum())


def linf(difference: np.ndarray) -> float:
    return float(np.abs(difference).max(initial=0.0))


@dataclasses.dataclass(frozen=True)
class Statistic:
    """What a mechanism computes before noise, how it is measured and what it claims."""

    compute: Callable[[list], np.ndarray]
    norm: Callable[[np.ndarray], float]
    claimed: Sensitivity
    row: st.SearchStrategy = HOSTILE


def category_counts(rows: list) -> np.ndarray:
    names = ["a", "b", "c", ""]
    return np.array([sum(row == name for row in rows) for name in names], dtype=np.float64)


def votes_of(rows: list) -> np.ndarray:
    """Three shards by position; each votes by the mean of its rows."""
    slots = column([*rows, *[None] * 3])
    shards = [np.nan_to_num(slots[shard::3], posinf=1.0, neginf=-1.0) for shard in range(3)]
    return np.array([float(sum(np.clip(shard, -1, 1).sum() > 0.2 for shard in shards))])


BOX = (np.array([-2.0, 0.0]), np.array([3.0, 1e-3]))
HUGE = (np.array([-1.7e308, -1e-300]), np.array([1.7e308, 3e-300]))
PAIR = st.tuples(HOSTILE, HOSTILE).map(list)

STATISTICS = {
    "histogram": Statistic(
        lambda rows: statistics.bin_counts(column(rows), EDGES), l1, statistics.COUNTING
    ),
    "count": Statistic(
        lambda rows: np.array([np.count_nonzero(~np.isnan(column(rows)))]), l1, UNIT
    ),
    "bounds": Statistic(
        lambda rows: statistics.bin_counts(column(rows), selection._DOUBLING_EDGES),
        l1,
        statistics.COUNTING,
    ),
    **{
        f"quantile {fraction}": Statistic(
            lambda rows, f=fraction: selection.quantile_scores(column(rows), EDGES, f),
            linf,
            selection.quantile_sensitivity(fraction),
        )
        for fraction in (0.05, 0.5, 0.9)
    },
    "categories": Statistic(
        category_counts, l1, statistics.COUNTING, st.sampled_from(["a", "b", "c", ""])
    ),
    "moments": Statistic(
        lambda rows: statistics.unit_sums(matrix(rows), *BOX),
        lambda d: float(np.linalg.norm(d)),
        statistics.moments_sensitivity(2),
        PAIR,
    ),
    "moments in a huge box": Statistic(
        lambda rows: statistics.unit_sums(matrix(rows), *HUGE),
        lambda d: float(np.linalg.norm(d)),
        statistics.moments_sensitivity(2),
        PAIR,
    ),
}


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("name", STATISTICS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_row_moves_a_statistic_by_more_than_claimed(name, neighbours, data):
    statistic = STATISTICS[name]
    rows = data.draw(st.lists(statistic.row, min_size=1, max_size=8))
    place = data.draw(st.integers(0, len(rows) - 1))
    other = neighbour(rows, place, data.draw(statistic.row), neighbours)
    moved = statistic.norm(statistic.compute(rows) - statistic.compute(other))
    assert moved <= statistic.claimed.under(neighbours) * (1 + 1e-12)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@given(rows=st.lists(HOSTILE, min_size=1, max_size=9), other=HOSTILE, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_turns_at_most_one_vote(neighbours, rows, other, data):
    place = data.draw(st.integers(0, len(rows) - 1))
    changed = neighbour(rows, place, other, neighbours)
    assert l1(votes_of(rows) - votes_of(changed)) <= selection.VOTING.under(neighbours)


@given(score=HOSTILE, change=st.floats(-1, 1))
@settings(max_examples=200, deadline=None)
def test_taming_scores_does_not_stretch_them(score, change):
    tamed = selection._tamed(np.array([score, score + change, math.nan]))
    assert tamed[2] == -1e15
    if not math.isnan(score):
        assert abs(tamed[0] - tamed[1]) <= 1 + 1e-12 or abs(score) > 1e15


@given(value=st.floats(-1e9, 1e9), change=st.floats(-1, 1))
@settings(max_examples=200, deadline=None)
def test_the_sparse_vector_lattice_does_not_stretch_values(value, change):
    steps = [round(v * selection._LATTICE) for v in (value, value + change)]
    # Floats near 1e9 are themselves spaced by up to 1e-7.
    assert abs(steps[0] - steps[1]) <= selection._LATTICE + 1 + 2.5e-7 * selection._LATTICE


def test_the_worst_replacement_for_moments_is_attained():
    """The claimed 2 sqrt(columns) is not slack: a row jumps from one corner to the other."""
    low, high = np.array([[-1.0, -1.0]]), np.array([[1.0, 1.0]])
    box = (np.array([-1.0, -1.0]), np.array([1.0, 1.0]))
    moved = np.linalg.norm(statistics.unit_sums(low, *box) - statistics.unit_sums(high, *box))
    assert moved == pytest.approx(2 * math.sqrt(2))


@pytest.mark.parametrize("rows", [[], [NULL], [math.inf, -math.inf], [1e308, 5e-324]])
def test_hostile_columns_are_answered_not_refused(rows):
    values = np.array(rows, dtype=np.float64)
    assert noisy_histogram(values, EDGES, scale=1.0, entropy=OS).value.shape == (3,)
    assert isinstance(noisy_count(values, scale=1.0, entropy=OS).value, int)
    private_bounds(values, scale=1.0, entropy=OS)
    assert private_quantile(values, EDGES, fraction=0.3, scale=1.0, entropy=OS).value in EDGES
    table = values[:, None]
    found = clipped_moments(table, np.array([0.0]), np.array([1.0]), noise=1.0, entropy=OS).value
    assert np.isfinite([found.mean[0], found.deviation[0], found.count]).all()
    assert discover_categories([], scale=1.0, delta=1e-9, entropy=OS).value == {}
