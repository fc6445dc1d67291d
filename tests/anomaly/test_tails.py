"""Rarity, the counts that are bought, and the tail that is fitted to them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows.anomaly import threshold_rules
from dpflows.anomaly.threshold_rules import (
    COUNTS,
    SHARES,
    Rarity,
    Tail,
    bins_of,
    edges_for,
    fitted_tail,
)
from dpflows.errors import InputError
from dpflows.privacy.events import NEIGHBOURS
from dpflows.privacy.randomness import Entropy

OWN = np.random.default_rng(3).normal(-5.0, 2.0, size=20_000)
RARITY = Rarity.among(OWN)
EDGES = edges_for(4000, 10.0)
HOSTILE = st.floats(width=64) | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308])


def counts_of(rows):
    """What noise is added to; a row that is blank is not there."""
    scores = np.array([row for row in rows if row is not None], dtype=np.float64)
    return np.bincount(bins_of(RARITY.of(scores), EDGES), minlength=len(EDGES) + 1)


def neighbour(rows, place, other, neighbours):
    middle = {"zero-out": [None], "add-remove": [], "replace-one": [other]}[neighbours]
    return [*rows[:place], *middle, *rows[place + 1 :]]


def moves(counts, rows, other):
    return float(np.linalg.norm(counts(rows) - counts(other)))


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@given(rows=st.lists(HOSTILE, min_size=1, max_size=8), other=HOSTILE, data=st.data())
def test_no_row_moves_the_counts_by_more_than_stated(neighbours, rows, other, data):
    place = data.draw(st.integers(0, len(rows) - 1))
    changed = neighbour(rows, place, other, neighbours)
    assert moves(counts_of, rows, changed) <= COUNTS.under(neighbours) * (1 + 1e-12)


def test_the_stated_sensitivity_is_attained():
    assert moves(counts_of, [-5.0, -40.0], [-5.0, None]) == COUNTS.zero_out == 1
    assert moves(counts_of, [-5.0, -40.0], [-5.0, 0.0]) == COUNTS.replace_one == math.sqrt(2)


def beyond_each_edge(rows):
    """Planted: a row counts in every bin up to its own."""
    return np.cumsum(counts_of(rows)[::-1])


def by_rank(rows):
    """Planted: how rare a row is depends on the others."""
    scores = np.array([row for row in rows if row is not None], dtype=np.float64)
    rarities = -np.log((np.argsort(np.argsort(scores)) + 1) / len(scores))
    return np.bincount(bins_of(rarities, EDGES), minlength=len(EDGES) + 1)


@pytest.mark.parametrize("planted", [beyond_each_edge, by_rank])
def test_counts_that_one_row_moves_further_are_caught(planted):
    tables = [list(np.linspace(-9.0, -1.0, size)) for size in range(30, 60)]
    moved = [moves(planted, rows, neighbour(rows, 20, None, "zero-out")) for rows in tables]
    assert max(moved) > COUNTS.zero_out


@given(st.lists(HOSTILE, max_size=30))
def test_every_row_is_in_one_bin(scores):
    rarities = RARITY.of(np.array(scores, dtype=np.float64))
    assert not np.isnan(rarities).any()
    assert counts_of(scores).sum() == len(scores)


def test_what_has_no_density_is_in_the_last_bin():
    assert bins_of(RARITY.of(np.array([math.nan, -math.inf])), EDGES).tolist() == [len(EDGES)] * 2


@given(st.lists(st.floats(-60, 5), min_size=2, max_size=30).map(np.array))
def test_lower_is_rarer(scores):
    ordered = RARITY.of(np.sort(scores))
    assert (np.diff(ordered) <= 1e-9).all()
    assert np.isfinite(ordered).all()


@pytest.mark.parametrize("rarity", [0.05, 0.7, 2.3, 4.6, 6.0, 9.0, 40.0])
def test_a_threshold_flags_the_rows_that_are_rarer(rarity):
    scores = np.random.default_rng(4).uniform(-80, 3, size=5000)
    flagged = scores < RARITY.score(rarity)
    close = np.abs(RARITY.of(scores) - rarity) < 0.02
    assert ((RARITY.of(scores) > rarity) == flagged)[~close].all()


def test_rows_of_equal_density_are_judged_alike_however_they_are_rounded():
    levels = np.repeat([-9.0, -5.0, -2.0, -1.0], [20, 1980, 8000, 10_000])
    steps, jitter = Rarity.among(levels), np.array([-1e-7, 0.0, 1e-7])
    for level in (-12.0, -9.0, -5.0, -2.0, -1.0):
        rarities = steps.of(level + jitter)
        assert np.isfinite(rarities).all()
        if level > -12:
            assert np.ptp(rarities) < 1e-6
        for rarity in (0.3, 1.5, 4.0, 7.5, 9.0, 12.0):
            assert len(set((level + jitter) < steps.score(rarity))) == 1


def test_a_density_of_one_height_has_thresholds_too():
    flat = Rarity.among(np.full(20_000, -3.0))
    for rarity in (0.1, 4.6, 60.0):
        assert flat.score(rarity) < -3.0
    assert np.isfinite(flat.of(np.array([-3.0, -3.5, 1.0]))).all()


def test_a_density_without_a_finite_row_has_no_thresholds():
    with pytest.raises(InputError, match="finite number"):
        Rarity.among(np.full(3, -np.inf))


def drawn(slope, rows, *, strange=0.0, rng=None):
    """Rarities of rows: most fall off with a slope, a share is beyond what the density knows."""
    rng = rng or np.random.default_rng()
    rarities = rng.exponential(1 / slope, size=rows)
    far = rng.random(rows) < strange
    rarities[far] = rng.exponential(8.0, size=far.sum())
    return rarities


def true_share(rarity, slope, strange):
    return (1 - strange) * math.exp(-slope * rarity) + strange * math.exp(-rarity / 8)


@pytest.mark.parametrize(("slope", "strange"), [(1.0, 0.0), (0.6, 0.0), (1.8, 0.02), (1.0, 0.01)])
def test_the_tail_finds_rates_where_the_truth_is_known(slope, strange):
    """Twenty thousand rows, noise of 12: shares of 5% and 10% within a fifth, 1% within half.

    The noise on the 200 rows of the 1% is 12 in each of four bins, 24 in all, and their own
    deviation 14: half of them is 3.6 deviations, two sided, and two slopes of three are known
    besides; so each false alarm is below one in 3,000, and the seeds are fixed.
    """
    rng = np.random.default_rng(11)
    for _ in range(5):
        rarities = drawn(slope, 20_000, strange=strange, rng=rng)
        edges = edges_for(20_000, 12.0)
        noisy = np.bincount(bins_of(rarities, edges), minlength=len(edges) + 1)
        noisy = noisy + 12.0 * rng.normal(size=len(noisy))
        tail = fitted_tail(noisy, edges, rows=20_000, noise=12.0)
        for share, room in ((0.01, 1.5), (0.05, 1.2), (0.1, 1.2)):
            met = true_share(tail.rarity(share), slope, strange)
            assert 1 / room < met / share < room


def test_the_free_rule_misses_those_rates():
    """What the test above would find without the counts."""
    assert true_share(-math.log(0.01), 1.8, 0.02) / 0.01 < 1.5
    assert true_share(-math.log(0.1), 1.8, 0.02) / 0.1 < 1 / 1.2
    assert true_share(-math.log(0.01), 0.6, 0.0) / 0.01 > 1.5


def test_with_next_to_no_budget_the_tail_is_that_of_the_density():
    rng = np.random.default_rng()
    for _ in range(20):
        noisy = 1e7 * rng.normal(size=5)
        tail = fitted_tail(noisy, edges_for(1000, 1e7), rows=1000, noise=1e7)
        for share in (0.01, 0.05, 0.1):
            assert tail.rarity(share) == pytest.approx(-math.log(share), rel=1e-3)


COUNT = st.floats(-1e7, 1e7)


@given(st.lists(COUNT, min_size=5, max_size=5), st.integers(1, 10**7), st.floats(1e-3, 1e7))
def test_whatever_the_noise_thresholds_are_finite_and_in_order(noisy, rows, noise):
    edges = -np.log(SHARES[:4])
    tail = fitted_tail(np.array(noisy), edges, rows=rows, noise=noise)
    rarities = [tail.rarity(share) for share in (0.5, 0.1, 0.01, 1e-4)]
    assert all(math.isfinite(r) for r in rarities)
    assert rarities == sorted(rarities)
    slopes = np.diff([0, *tail.depths]) / np.diff([0, *tail.edges])
    assert slopes.min() > 0.04
    assert slopes.max() < 6


def test_bins_follow_the_public_number_of_rows_and_the_noise():
    assert len(edges_for(10, 1e9)) == 4
    assert len(edges_for(10**9, 1.0)) == len(SHARES)
    assert edges_for(3000, 10.0).tolist() == (-np.log(SHARES[:6])).tolist()


@pytest.mark.parametrize(
    ("edges", "depths"),
    [((), ()), ((1.0,), (1.0, 2.0)), ((2.0, 1.0), (1.0, 2.0)), ((0.0, 1.0), (1.0, 2.0))]
    + [((1.0, math.inf), (1.0, 2.0)), ((1.0, 2.0), (math.nan, 2.0)), ((1.0, 2.0), (2.0, 2.0))],
)
def test_tails_that_cannot_be_are_refused(edges, depths):
    with pytest.raises(InputError, match="tail must have"):
        Tail(edges, depths)


def test_a_test_seed_leaves_its_stamp():
    release = threshold_rules.noisy_tail(
        np.ones(50), noise=3.0, entropy=Entropy.insecure(1), purpose="threshold"
    )
    assert release.stamp == Entropy.insecure(1).stamp
    assert (release.event.noise, release.event.purpose) == (3.0, "threshold")
