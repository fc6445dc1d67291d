"""Codes of public bins: every cell has one, and they depend on nothing but the declaration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.evaluation.measures import Coding, coding_of, moved_inside, reference_codings
from dpflows.privacy.mechanisms.statistics import bin_counts
from dpflows.table.columns import Column
from evaluation.mixed import SCHEMA, fresh_rows

LABELS = Column("sex", "categorical", categories=("F", "M"))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(1, 30))
def test_numbers_are_counted_as_a_histogram_would(values, bins):
    column = Column("x", "continuous", min=-1e5, max=1e5)
    cells = np.array(values)
    coding = coding_of(column, cells, bins)
    edges = np.array([-1e5, *coding.cuts, 1e5])
    moved = np.clip(cells, -1e5, 1e5)
    np.testing.assert_array_equal(coding.counts(cells), bin_counts(moved, edges))
    assert coding.size <= bins


def test_every_cell_of_every_kind_has_one_named_bin():
    rows = fresh_rows(300)
    for name, coding in reference_codings(rows, SCHEMA, bins=5).items():
        codes = coding.codes(rows[name])
        assert ((codes >= 0) & (codes < coding.size)).all()
        assert len(coding.names) == len(set(coding.names)) == coding.size
        assert coding.counts(rows[name]).sum() == 300


@pytest.mark.parametrize(
    ("column", "cells", "codes"),
    [
        (LABELS, ["M", "F", "zebra"], [1, 0, 2]),
        (Column("s", "categorical", categories=("a", "b"), other="b"), ["a", "zebra"], [0, 1]),
        (Column("s", "categorical", categories=("a",), nullable=True), ["q", None, "a"], [1, 2, 0]),
        (Column("t", "boolean", nullable=True), [True, None, False], [1, 2, 0]),
        (Column("t", "boolean"), [True, False], [1, 0]),
    ],
)
def test_labels_keep_the_declared_order(column, cells, codes):
    assert Coding(column).codes(np.array(cells, dtype=object)).tolist() == codes


def test_truth_values_may_come_as_booleans():
    assert Coding(Column("t", "boolean")).codes(np.array([True, False])).tolist() == [1, 0]


def test_dates_lie_between_cuts_and_may_be_missing():
    column = Column("when", "date", min=0, max=1e6, nullable=True)
    dates = np.array(["1960-01-01", "1970-01-02", "NaT", "2020-01-01"], dtype="datetime64[us]")
    coding = Coding(column, (1000.0, 90_000.0))
    assert coding.codes(dates).tolist() == [0, 1, 3, 2]
    assert coding.names[0] == "1970-01-01 to 1970-01-01T00:16:40"


def test_bins_say_what_they_hold():
    age = Column("age", "integer", min=0, max=120, nullable=True)
    assert Coding(age, (18.0, 19.0)).names == ("0 to 17", "18", "19 to 120", "missing")
    assert Coding(Column("x", "continuous", min=0, max=1), (0.25,)).names == (
        "0 to 0.25",
        "0.25 to 1",
    )
    assert Coding(Column("x", "continuous"), (1.0,)).names == ("any to 1", "1 to any")
    assert Coding(LABELS).names == ("F", "M", "not declared")
    assert Coding(Column("t", "boolean")).names == ("no", "yes")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 30))
def test_no_bin_of_whole_numbers_is_empty_of_them(values, bins):
    cells = np.array(values, dtype=float)
    coding = coding_of(Column("x", "integer", min=0, max=50), cells, bins)
    assert coding.counts(np.arange(51.0)).min() >= 1


def test_a_constant_column_has_one_bin():
    rows = np.full(9, 3.0)
    assert coding_of(Column("x", "continuous", min=0, max=9), rows, 4).size <= 2
    assert coding_of(Column("x", "integer", min=0, max=3), rows, 4).size == 1


def test_missing_cells_must_be_declared():
    with pytest.raises(InputError, match="nullable"):
        Coding(LABELS).codes(np.array(["F", None], dtype=object))


def test_labels_must_be_declared():
    with pytest.raises(InputError, match="categories"):
        coding_of(Column("s", "categorical"), np.array(["a"], dtype=object), 4)


def test_a_column_without_a_cell_has_bins_too():
    column = Column("x", "continuous", min=0, max=1, nullable=True)
    assert coding_of(column, np.full(3, np.nan), 4).counts(np.full(3, np.nan)).tolist() == [0, 3]


def test_cells_beyond_the_bounds_move_and_missing_ones_stay():
    rows = fresh_rows(3)
    rows["age"] = np.array([-5.0, 40.0, 500.0])
    rows["dose"] = np.array([np.nan, 99.0, 1.0])
    rows["seen"] = np.array(["1960-01-01", "NaT", "2099-01-01"], dtype="datetime64[us]")
    moved = moved_inside(rows, SCHEMA)
    assert moved["age"].tolist() == [0, 40, 120]
    np.testing.assert_array_equal(moved["dose"], [np.nan, 9, 1])
    shown = moved["seen"].astype("datetime64[D]").astype(str).tolist()
    assert shown == ["1970-01-01", "NaT", "1972-09-27"]
    assert moved["city"] is rows["city"]
