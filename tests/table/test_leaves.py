"""Every declared value has one leaf, and leaves give values of their own back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.table.cells import seconds
from dpflows.table.columns import Column
from dpflows.table.intervals import MOST_INTERVALS, Intervals
from dpflows.table.leaves import MOST_LABELS, leaves_of

DAY = 86400
CHANCE = np.random.default_rng(7)


def drawn(leaves, numbers, fraction=None):
    uniforms = CHANCE.random if fraction is None else lambda count: np.full(count, fraction)
    return leaves.draw(np.asarray(numbers), uniforms)


def values_of(column, chance):
    """Some declared values: bounds, spikes and others."""
    if column.kind == "boolean":
        return np.array([False, True])
    if column.kind == "categorical":
        return np.array(column.categories, dtype=object)
    some = chance.uniform(column.min, column.max, 200)
    some = np.concatenate([[column.min, column.max], column.spikes or (), some])
    some = np.clip(np.rint(some) if column.is_whole else some, column.min, column.max)
    return (some * 1e6).astype("datetime64[us]") if column.kind == "date" else some


@st.composite
def columns(draw):
    kind = draw(st.sampled_from(["continuous", "integer", "date", "boolean", "categorical"]))
    nullable = draw(st.booleans())
    if kind == "boolean":
        return {"name": "x", "kind": kind, "nullable": nullable}
    if kind == "categorical":
        labels = draw(st.lists(st.text(max_size=3), min_size=1, max_size=9, unique=True))
        return {"name": "x", "kind": kind, "nullable": nullable, "categories": tuple(labels)}
    low = draw(st.integers(-(10**6), 10**6))
    width = draw(st.sampled_from([0, 1, 5, 1023, 1024, 1025, 5000, 10**6, 40 * DAY, 10**9]))
    width = max(width, 1) if kind == "continuous" else width
    places = draw(st.none() | st.lists(st.integers(0, min(width, 9)), unique=True))
    spikes = None if places is None else tuple(low + place for place in places)
    bounds = {"min": low, "max": low + width, "spikes": spikes}
    if kind == "date" and draw(st.booleans()):
        bounds["unit"] = "day"
    return {"name": "x", "kind": kind, "nullable": nullable} | bounds


@given(parts=columns(), seed=st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_every_value_has_one_leaf_and_leaves_give_their_own_values_back(parts, seed):
    column = Column(**parts)
    leaves, values = leaves_of(column), values_of(column, np.random.default_rng(seed))
    found = leaves.find(values)
    assert ((found >= 0) & (found < leaves.filled)).all()
    for fraction in (None, 0.0, np.nextafter(1, 0)):
        again = drawn(leaves, found, fraction)
        assert again.dtype == values.dtype
        np.testing.assert_array_equal(leaves.find(again), found)


@given(parts=columns())
@settings(max_examples=200, deadline=None)
def test_leaves_are_all_used_and_their_volumes_add_up(parts):
    column = Column(**parts)
    leaves = leaves_of(column)
    assert leaves.size == leaves.filled + column.nullable
    every = np.arange(leaves.size)
    np.testing.assert_array_equal(leaves.find(drawn(leaves, every)), every)
    assert sorted(leaves.order) == list(range(leaves.filled))
    volumes = np.exp(leaves.log_volumes)
    assert volumes.shape == (leaves.size,)
    if column.kind in ("integer", "date"):
        length = DAY if column.counts_days else 1
        values = column.max // length - column.min // length + 1
        assert volumes[: leaves.filled].sum() == pytest.approx(values)
    if column.kind == "continuous":
        spikes = len(leaves.spikes)
        assert volumes[: leaves.filled].sum() - spikes == pytest.approx(column.max - column.min)


@given(parts=columns())
@settings(deadline=None)
def test_missing_cells_have_a_leaf_only_where_they_are_declared(parts):
    column = Column(**parts)
    leaves = leaves_of(column)
    nothing = {"continuous": np.nan, "integer": np.nan, "date": np.datetime64("NaT", "us")}
    gap = np.array([nothing.get(column.kind)])
    if not column.nullable:
        with pytest.raises(InputError, match="declare it nullable"):
            leaves.find(gap)
        return
    assert leaves.find(gap).tolist() == [leaves.size - 1]
    assert leaves.log_volumes[-1] == 0
    back = drawn(leaves, [0, leaves.size - 1])
    assert back.dtype == gap.dtype
    assert leaves.find(back).tolist() == [0, leaves.size - 1]


def test_the_order_is_that_of_the_values():
    column = Column("x", "continuous", min=-8, max=8, spikes=(8, 0.003, -8))
    leaves = leaves_of(column)
    low, high = (drawn(leaves, leaves.order, fraction) for fraction in (0.0, np.nextafter(1, 0)))
    assert leaves.is_ordered
    assert leaves.order[0] == MOST_INTERVALS
    assert leaves.order[-1] == leaves.filled - 1
    # an interval and the spike inside it overlap
    assert (np.diff(low) < 0).sum() + (np.diff(high) < 0).sum() == 1


def test_single_whole_numbers_need_no_spikes():
    leaves = leaves_of(Column("age", "integer", min=17, max=90, spikes=(17, 40)))
    assert leaves.spikes == ()
    assert leaves.find(np.array([17.0, 40, 90])).tolist() == [0, 23, 73]


def test_an_interval_that_spikes_use_up_is_no_leaf():
    column = Column("x", "integer", min=0, max=4095, spikes=(0, 1, 2, 3))
    leaves = leaves_of(column)
    assert leaves.find(np.array([0.0, 3, 4])).tolist() == [1023, 1026, 0]
    assert leaves.order[:5].tolist() == [1023, 1024, 1025, 1026, 0]


@pytest.mark.parametrize(
    "column",
    [
        Column("x", "integer", min=5, max=5),
        Column("x", "date", min=0, max=0),
        Column("x", "categorical", categories=("only",)),
    ],
)
def test_a_constant_column_has_one_leaf(column):
    leaves = leaves_of(column)
    assert leaves.size == 1
    assert leaves.log_volumes.tolist() == [0.0]
    assert leaves.find(values_of(column, CHANCE)).max() == 0


def test_numbers_beyond_the_bounds_are_found_at_the_nearest():
    leaves = leaves_of(Column("x", "continuous", min=0, max=1))
    assert leaves.find(np.array([-5.0, 7.0])).tolist() == leaves.find(np.array([0.0, 1.0])).tolist()


def test_labels_that_are_not_declared():
    labels = np.array(["a", "b", "stranger", None], dtype=object)
    plain = Column("x", "categorical", categories=("b", "a"), nullable=True)
    assert leaves_of(plain).find(labels).tolist() == [1, 0, -1, 2]
    other = Column("x", "categorical", categories=("b", "a"), other="b", nullable=True)
    assert leaves_of(other).find(labels).tolist() == [1, 0, 0, 2]
    assert not leaves_of(plain).is_ordered


@pytest.mark.parametrize("days", [1, 40, 365, 3650])
def test_days_stay_whole(days):
    column = Column("x", "date", min=0, max=(days - 1) * DAY, unit="day")
    dates = np.arange(days).astype("datetime64[D]").astype("datetime64[us]")
    leaves = leaves_of(column)
    found = leaves.find(dates)
    back = drawn(leaves, found)
    np.testing.assert_array_equal(back, back.astype("datetime64[D]"))
    np.testing.assert_array_equal(leaves.find(back), found)
    if days <= MOST_INTERVALS:
        np.testing.assert_array_equal(back, dates)


@pytest.mark.parametrize("days", [365, 3650])
def test_intervals_of_seconds_begin_at_midnight_where_they_are_long(days):
    """A day whose time was cut off lies in the leaf that it was drawn from."""
    leaves = leaves_of(Column("x", "date", min=0, max=(days - 1) * DAY, spikes=()))
    found = leaves.find(np.arange(days).astype("datetime64[D]").astype("datetime64[us]"))
    back = drawn(leaves, found).astype("datetime64[D]").astype("datetime64[us]")
    np.testing.assert_array_equal(leaves.find(back), found)


def test_moments_belong_to_their_second():
    leaves = Intervals(Column("x", "date", min=0, max=9))
    assert leaves.find(np.array([3_999_999, 4_000_000], "datetime64[us]")).tolist() == [3, 4]
    assert seconds(drawn(leaves, [4])).tolist() == [4.0]


def test_what_has_no_leaves_is_refused_with_advice():
    many = tuple(map(str, range(MOST_LABELS + 1)))
    cases = {
        "nothing is declared about column 'x'": Column("x", "integer"),
        "group them into at most 500, or drop": Column("x", "categorical", categories=many),
        "too close for their size; subtract": Column("x", "continuous", min=1e15, max=1e15 + 1),
    }
    for message, column in cases.items():
        with pytest.raises(InputError, match=message):
            _ = leaves_of(column).size
