"""A row's part depends on the key and on the row alone."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from dpflows.anomaly.voting import Assignment, votes_turned, way_for
from dpflows.errors import InputError
from dpflows.privacy.events import NEIGHBOURS
from dpflows.privacy.randomness import Entropy

PARTS = 7
FALSE_ALARM = 1e-6


def drawn(neighbours):
    return Assignment.drawn(PARTS, neighbours, Entropy.from_os())


def rows_of(count):
    return np.random.default_rng().normal(size=(count, 3))


def rising_rows(count):
    """Rows in the order of their first cell: to change an early one shifts most ranks."""
    rows = rows_of(count)
    return rows[np.argsort(rows[:, 0])]


def by_rank(self, rows):
    """Planted: rows are sorted and dealt out in turn."""
    ranks = np.argsort(np.argsort(rows[:, 0]))
    return ranks % self.parts


def by_turn(self, rows):
    """Planted: the first row to the first part and so on, whatever the row."""
    return np.arange(len(rows)) % self.parts


def by_shuffle(self, rows):
    """Planted: a keyed shuffle of as many rows as there are, cut into pieces."""
    chance = np.random.default_rng(list(self.key))
    return chance.permutation(len(rows)) % self.parts


def moved(assign, rows, changed, *, dropped=None):
    """How many other rows change their part."""
    before = assign(rows)
    if dropped is not None:
        return int((np.delete(before, dropped) != assign(changed)).sum())
    others = np.any(rows == changed, axis=1)
    return int((before != assign(changed))[others].sum())


def replaced(rows, at, value):
    changed = rows.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@given(at=st.integers(0, 199), value=st.sampled_from([0.0, 1e300, -1.0]))
def test_a_replaced_or_blanked_row_moves_no_other(neighbours, at, value):
    rows = rows_of(200)
    assert moved(drawn(neighbours).of, rows, replaced(rows, at, value)) == 0


@given(at=st.integers(0, 199))
def test_a_removed_row_moves_no_other(at):
    rows = rows_of(200)
    changed = np.delete(rows, at, axis=0)
    assert moved(drawn("add-remove").of, rows, changed, dropped=at) == 0


@given(order=st.permutations(range(12)))
def test_by_content_the_order_of_rows_is_nothing(order):
    rows, assignment = rows_of(12), drawn("add-remove")
    np.testing.assert_array_equal(assignment.of(rows[order]), assignment.of(rows)[order])


@pytest.mark.parametrize("bug", [by_rank, by_turn, by_shuffle])
def test_assignments_that_look_at_other_rows_are_caught(bug, monkeypatch):
    monkeypatch.setattr(Assignment, "of", bug)
    rows, assignment = rising_rows(200), drawn("add-remove")
    removed = np.delete(rows, 3, axis=0)
    assert moved(assignment.of, rows, removed, dropped=3) > 50


def test_by_rank_is_caught_by_a_replaced_row_too():
    rows, assignment = rising_rows(200), drawn("replace-one")
    assert moved(lambda r: by_rank(assignment, r), rows, replaced(rows, 3, 1e300)) > 10


def test_rows_that_come_later_move_no_earlier_one():
    rows = rows_of(300)
    assignment = drawn("zero-out")
    np.testing.assert_array_equal(assignment.of(rows)[:100], assignment.of(rows[:100]))


def test_zero_has_one_part_whatever_its_sign():
    assignment = drawn("add-remove")
    parts = assignment.of(np.array([[0.0, 1.0], [-0.0, 1.0]]))
    assert parts[0] == parts[1]


def surprise(parts):
    """The chance of sizes as uneven as these."""
    counts = np.bincount(parts, minlength=PARTS)
    expected = len(parts) / PARTS
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), PARTS - 1))


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_parts_are_about_equal(neighbours):
    """False alarms: one in a million, with keys from the operating system."""
    assert surprise(drawn(neighbours).of(rows_of(20_000))) > FALSE_ALARM


def test_the_test_rejects_parts_of_unequal_size():
    favoured = drawn("zero-out").of(rows_of(20_000))
    favoured[np.random.default_rng().random(20_000) < 0.03] = 0
    assert surprise(favoured) < FALSE_ALARM


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_another_key_is_another_assignment(neighbours):
    """False alarms: the parts of 200 rows meet by chance once in 7^200 runs."""
    rows = rows_of(200)
    assert (drawn(neighbours).of(rows) != drawn(neighbours).of(rows)).any()


def test_one_person_turns_one_vote_under_the_relation_that_is_hidden():
    for neighbours in NEIGHBOURS:
        assert votes_turned(PARTS, way_for(neighbours)).under(neighbours) == 1
    assert votes_turned(PARTS, "position").add_remove == PARTS
    assert votes_turned(PARTS, "content").replace_one == 2


def test_the_key_is_not_shown():
    assignment = drawn("zero-out")
    assert "key" not in repr(assignment)


def test_no_parts_are_refused():
    with pytest.raises(InputError, match="k must be at least 1"):
        Assignment(0, "position", b"")


@pytest.mark.parametrize("neighbours", ["zero-out", "add-remove"])
def test_a_million_rows_take_seconds(neighbours):
    """Measured: 0.05 and 1.5 seconds; the bound leaves room for a busy machine."""
    rows = np.random.default_rng().normal(size=(1_000_000, 3))
    start = time.perf_counter()
    drawn(neighbours).of(rows)
    assert time.perf_counter() - start < 10
