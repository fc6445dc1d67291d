"""Every declared value has one bin, and bins give values of their own back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpflows.errors import InputError
from dpflows.table.bins import MOST_INTERVALS, MOST_LABELS, MergedBins, rest, runs
from dpflows.table.columns import Column

DAY = 86400
CHANCE = np.random.default_rng(7)


def drawn(bins, numbers, fraction=None):
    uniforms = CHANCE.random if fraction is None else lambda count: np.full(count, fraction)
    return bins.draw(np.asarray(numbers), uniforms)


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
def test_every_value_has_one_bin_and_bins_give_their_own_values_back(parts, seed):
    column = Column(**parts)
    bins, values = column.bins(), values_of(column, np.random.default_rng(seed))
    found = bins.find(values)
    assert ((found >= 0) & (found < bins.filled)).all()
    for fraction in (None, 0.0, np.nextafter(1, 0)):
        again = drawn(bins, found, fraction)
        assert again.dtype == values.dtype
        np.testing.assert_array_equal(bins.find(again), found)


@given(parts=columns())
@settings(max_examples=200, deadline=None)
def test_bins_are_all_used_and_their_volumes_add_up(parts):
    column = Column(**parts)
    bins = column.bins()
    assert bins.size == bins.filled + column.nullable
    every = np.arange(bins.size)
    np.testing.assert_array_equal(bins.find(drawn(bins, every)), every)
    assert sorted(bins.order) == list(range(bins.filled))
    volumes = np.exp(bins.log_volumes)
    assert volumes.shape == (bins.size,)
    if column.kind in ("integer", "date"):
        length = DAY if column.unit == "day" else 1
        values = column.max // length - column.min // length + 1
        assert volumes[: bins.filled].sum() == pytest.approx(values)
    if column.kind == "continuous":
        spikes = len(bins.spikes)
        assert volumes[: bins.filled].sum() - spikes == pytest.approx(column.max - column.min)


@given(parts=columns())
@settings(deadline=None)
def test_missing_cells_have_a_bin_only_where_they_are_declared(parts):
    column = Column(**parts)
    bins = column.bins()
    nothing = {"continuous": np.nan, "integer": np.nan, "date": np.datetime64("NaT", "us")}
    gap = np.array([nothing.get(column.kind)])
    if not column.nullable:
        with pytest.raises(InputError, match="declare it nullable"):
            bins.find(gap)
        return
    assert bins.find(gap).tolist() == [bins.size - 1]
    assert bins.log_volumes[-1] == 0
    back = drawn(bins, [0, bins.size - 1])
    assert back.dtype == gap.dtype
    assert bins.find(back).tolist() == [0, bins.size - 1]


def test_the_order_is_that_of_the_values():
    column = Column("x", "continuous", min=-8, max=8, spikes=(8, 0.003, -8))
    bins = column.bins()
    low, high = (drawn(bins, bins.order, fraction) for fraction in (0.0, np.nextafter(1, 0)))
    assert bins.is_ordered
    assert bins.order[0] == MOST_INTERVALS
    assert bins.order[-1] == bins.filled - 1
    # an interval and the spike inside it overlap
    assert (np.diff(low) < 0).sum() + (np.diff(high) < 0).sum() == 1


def test_single_whole_numbers_need_no_spikes():
    bins = Column("age", "integer", min=17, max=90, spikes=(17, 40)).bins()
    assert bins.spikes == ()
    assert bins.find(np.array([17.0, 40, 90])).tolist() == [0, 23, 73]


def test_an_interval_that_spikes_use_up_is_no_bin():
    column = Column("x", "integer", min=0, max=4095, spikes=(0, 1, 2, 3))
    bins = column.bins()
    assert bins.find(np.array([0.0, 3, 4])).tolist() == [1023, 1026, 0]
    assert bins.order[:5].tolist() == [1023, 1024, 1025, 1026, 0]


@pytest.mark.parametrize(
    "column",
    [
        Column("x", "integer", min=5, max=5),
        Column("x", "date", min=0, max=0),
        Column("x", "categorical", categories=("only",)),
    ],
)
def test_a_constant_column_has_one_bin(column):
    bins = column.bins()
    assert bins.size == 1
    assert bins.log_volumes.tolist() == [0.0]
    assert bins.find(values_of(column, CHANCE)).max() == 0


def test_numbers_beyond_the_bounds_are_found_at_the_nearest():
    bins = Column("x", "continuous", min=0, max=1).bins()
    assert bins.find(np.array([-5.0, 7.0])).tolist() == bins.find(np.array([0.0, 1.0])).tolist()


def test_labels_that_are_not_declared():
    labels = np.array(["a", "b", "stranger", None], dtype=object)
    plain = Column("x", "categorical", categories=("b", "a"), nullable=True)
    assert plain.bins().find(labels).tolist() == [1, 0, -1, 2]
    other = Column("x", "categorical", categories=("b", "a"), other="b", nullable=True)
    assert other.bins().find(labels).tolist() == [1, 0, 0, 2]
    assert not plain.bins().is_ordered


@pytest.mark.parametrize("days", [1, 40, 365, 3650])
def test_days_stay_whole(days):
    column = Column("x", "date", min=0, max=(days - 1) * DAY, unit="day")
    dates = np.arange(days).astype("datetime64[D]").astype("datetime64[us]")
    bins = column.bins()
    found = bins.find(dates)
    back = drawn(bins, found)
    np.testing.assert_array_equal(back, back.astype("datetime64[D]"))
    np.testing.assert_array_equal(bins.find(back), found)
    if days <= MOST_INTERVALS:
        np.testing.assert_array_equal(back, dates)


@pytest.mark.parametrize("days", [365, 3650])
def test_intervals_of_seconds_begin_at_midnight_where_they_are_long(days):
    """A day whose time was cut off lies in the bin that it was drawn from."""
    bins = Column("x", "date", min=0, max=(days - 1) * DAY, spikes=()).bins()
    found = bins.find(np.arange(days).astype("datetime64[D]").astype("datetime64[us]"))
    back = drawn(bins, found).astype("datetime64[D]").astype("datetime64[us]")
    np.testing.assert_array_equal(bins.find(back), found)


def test_moments_belong_to_their_second():
    bins = Column("x", "date", min=0, max=9).bins()
    assert bins.find(np.array([3_999_999, 4_000_000], "datetime64[us]")).tolist() == [3, 4]
    assert drawn(bins, [4]).astype("datetime64[s]").astype(int).tolist() == [4]


def test_what_has_no_bins_is_refused_with_advice():
    many = tuple(map(str, range(MOST_LABELS + 1)))
    cases = {
        "nothing is declared about column 'x'": Column("x", "integer"),
        "group them into at most 500, or drop": Column("x", "categorical", categories=many),
        "too close for their size; subtract": Column("x", "continuous", min=1e15, max=1e15 + 1),
    }
    for message, column in cases.items():
        with pytest.raises(InputError, match=message):
            _ = column.bins().size


@given(arrays(float, st.integers(1, 60), elements=st.floats(-50, 500)), st.floats(1, 200))
def test_neighbours_stay_together_until_they_have_enough(counts, enough):
    groups = runs(counts, enough)
    assert groups[0] == 0
    assert set(np.diff(groups)) <= {0, 1}
    for group in range(groups.max()):
        inside = counts[groups == group]
        following = counts[groups == group + 1]
        assert inside.sum() >= enough or following[0] >= enough


@given(arrays(float, st.integers(1, 60), elements=st.floats(-50, 500)), st.floats(1, 200))
def test_rare_labels_share_one_bin(counts, enough):
    groups = rest(counts, enough)
    rare = counts < enough
    assert len(set(groups[rare])) == rare.any()
    assert len(set(groups[~rare])) == (~rare).sum()
    assert not set(groups[rare]) & set(groups[~rare])


@given(parts=columns(), most=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_bins_are_merged_evenly(parts, most):
    bins = Column(**parts).bins()
    merged = MergedBins.evenly(bins, most)
    singles = bins.size - bins.filled + bins.singles
    assert merged.size <= most + singles
    assert (np.diff(merged.groups) >= 0).all()
    assert set(merged.groups) == set(range(merged.size))
    intervals = np.bincount(merged.groups)[: merged.size - singles]
    assert np.ptp(intervals) <= 1 if len(intervals) else merged.size == singles
    np.testing.assert_allclose(np.bincount(merged.groups, merged.shares), 1)


@given(parts=columns(), seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_merged_bins_give_their_own_values_back(parts, seed):
    bins, chance = Column(**parts).bins(), np.random.default_rng(seed)
    counts = chance.poisson(1.0, bins.size) * chance.choice([0.0, 50.0], bins.size)
    for merged in (
        MergedBins.each(bins),
        MergedBins.evenly(bins, 7),
        MergedBins.by_counts(bins, counts, noise=3.0, rows=1000, width=32),
    ):
        groups = chance.integers(0, merged.size, 200)
        np.testing.assert_array_equal(merged.find(merged.draw(groups, chance.random)), groups)


def test_merged_bins_stand_out_from_the_noise():
    bins = Column("x", "integer", min=0, max=99, nullable=True).bins()
    counts = np.full(101, 10.0)
    counts[50] = 500.0
    merged = MergedBins.by_counts(bins, counts, noise=10.0, rows=1500, width=10)
    assert (merged.groups == merged.groups[50]).sum() == 1
    assert (merged.groups == merged.groups[100]).sum() == 1
    held = np.bincount(merged.groups, counts)
    # runs end before a frequent value and at the last one
    assert (held[:-1] >= 40).sum() >= merged.size - 4
