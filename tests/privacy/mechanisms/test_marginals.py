"""One row moves the counts of several tables by no more than is charged for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows.errors import InputError
from dpflows.privacy.mechanisms import statistics
from dpflows.privacy.mechanisms.statistics import marginals_sensitivity, noisy_marginals
from dpflows.privacy.randomness import Entropy

SIZES = (2, 5, 1)
PLACE = st.tuples(*(st.integers(-1, size - 1) for size in SIZES))


def distance(one, other):
    pairs = zip(
        statistics.table_counts(one, SIZES), statistics.table_counts(other, SIZES), strict=True
    )
    return np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs))


def moves(rows, at, place):
    """How far the counts move when a row is replaced, and when it is blanked."""
    rows = np.array(rows, dtype=np.int64)
    replaced, blanked = rows.copy(), rows.copy()
    replaced[at % len(rows)] = place
    blanked[at % len(rows)] = -1
    return distance(rows, replaced), distance(rows, blanked)


@given(st.lists(PLACE, min_size=1, max_size=8), st.integers(0, 7), PLACE)
def test_one_row_moves_the_counts_by_the_sensitivity_at_most(rows, at, place):
    replaced, blanked = moves(rows, at, place)
    claimed = marginals_sensitivity(len(SIZES))
    assert replaced <= claimed.replace_one + 1e-9
    assert blanked <= claimed.zero_out + 1e-9


def test_the_test_rejects_counts_that_look_at_other_rows(monkeypatch):
    right = statistics.table_counts
    monkeypatch.setattr(
        statistics, "table_counts", lambda p, s: [c * len(p[p[:, 0] >= 0]) for c in right(p, s)]
    )
    assert moves([(0, 1, 0)] * 4, 0, (1, 1, 0))[1] > marginals_sensitivity(3).zero_out


@pytest.mark.parametrize("places", [np.array([[2, 0, 0]]), np.array([[0, 0]])])
def test_places_beyond_the_tables_are_refused(places):
    with pytest.raises(InputError, match="places"):
        noisy_marginals(places, SIZES, noise=1.0, entropy=Entropy.from_os())
