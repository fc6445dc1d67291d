"""Thresholds: exact shares, the best split of labelled rows, labels that mean one thing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows.anomaly.threshold_rules import (
    CRITERIA,
    best_threshold,
    contamination_threshold,
    normal_rows,
    quantile_between,
)
from dpflows.errors import InputError

logs = st.lists(st.floats(-50, 50) | st.just(-np.inf), min_size=1, max_size=60).map(np.array)


@given(logs, st.floats(0.01, 0.5))
def test_no_more_than_the_share_of_finite_rows_lies_below(values, contamination):
    if not np.isfinite(values).any():
        return
    threshold = contamination_threshold(values, contamination)
    below = values < threshold
    assert np.isfinite(threshold)
    outside = np.isneginf(values).mean()
    assert below[np.isneginf(values)].all()
    assert below.mean() <= max(contamination, outside) + 1e-9


@pytest.mark.parametrize("contamination", [0.01, 0.1, 0.29, 0.5])
def test_the_share_is_attained_where_rows_differ(contamination):
    values = np.random.default_rng().normal(size=1000)
    below = values < contamination_threshold(values, contamination)
    assert below.mean() == pytest.approx(contamination)


def test_rounding_does_not_turn_rows_of_equal_density():
    values = np.repeat([-5.0, -2.0, -1.0], [5, 45, 50])
    threshold = contamination_threshold(values, 0.3)
    for jitter in (-1e-7, 0.0, 1e-7):
        assert ((values + jitter) < threshold).mean() == 0.05


def scored(values, normal, threshold, criterion):
    judged = values >= threshold
    kept, caught = judged[normal].mean(), (~judged[~normal]).mean()
    return (judged == normal).mean() if criterion == "accuracy" else kept + caught - 1


@given(
    st.lists(
        st.tuples(st.sampled_from([-np.inf, -3.0, -2.5, 0.0, 1.0, np.nan]), st.booleans()),
        min_size=2,
        max_size=25,
    ),
    st.sampled_from(CRITERIA),
)
def test_no_other_threshold_is_better(pairs, criterion):
    values, normal = np.array([v for v, _ in pairs]), np.array([n for _, n in pairs])
    if normal.all() or not normal.any() or not np.isfinite(values).any():
        return
    best = scored(values, normal, best_threshold(values, normal, criterion), criterion)
    for other in (-4.0, -2.7, -1.0, 0.5, 2.0):
        assert best >= scored(values, normal, other, criterion) - 1e-12


def test_neighbouring_floats_are_told_apart():
    values = np.array([1.0, np.nextafter(1.0, 2.0)])
    threshold = best_threshold(values, np.array([False, True]), "youden")
    assert (values >= threshold).tolist() == [False, True]


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 1], [True, False, True], ["normal", "anomaly", "normal"], [1, 2, -1], [[1, -1]]]
    + [[1.0, np.nan, -1.0]],
)
def test_labels_that_could_mean_either_are_refused(labels):
    with pytest.raises(InputError, match=r"\+1 for normal rows and -1 for anomalies"):
        normal_rows(labels)


def test_labels_of_one_kind_have_no_best_threshold():
    with pytest.raises(InputError, match="both kinds"):
        best_threshold(np.zeros(3), np.ones(3, bool), "accuracy")


@pytest.mark.parametrize("contamination", [0.0, 0.6, -1.0, float("nan")])
def test_shares_that_cannot_be(contamination):
    with pytest.raises(InputError, match="contamination must be in"):
        contamination_threshold(np.zeros(3), contamination)


def test_without_a_finite_number_there_is_no_threshold():
    for find in (
        lambda v: contamination_threshold(v, 0.1),
        lambda v: best_threshold(v, np.array([True, False]), "youden"),
    ):
        with pytest.raises(InputError, match="finite number"):
            find(np.full(2, -np.inf))


@given(logs, st.floats(0.0, 1.0))
def test_any_share_has_a_finite_place(values, share):
    if not np.isfinite(values).any():
        return
    place = quantile_between(np.sort(values), share)
    assert np.isfinite(place)
    outside = np.isneginf(values).mean()
    assert (values < place).mean() <= max(share, outside) + 1e-9
