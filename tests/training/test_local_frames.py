"""No row moves the released statistic further than claimed, and some row moves it that far."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflows.training.local_frames import (
    ROUNDING,
    UNIT,
    Background,
    Components,
    inside_cube,
    local_sums,
    statistic_for,
)

HOSTILE = [math.nan, math.inf, -math.inf, 1e38, -1e38, 1e308, 5e-324, -0.0, 1.0, -1.0, 0.3]
SHAPES = [(1, 1), (2, 2), (3, 1), (5, 3), (10, 10), (50, 8)]


def components(k, d, seed):
    rng = np.random.default_rng(seed)
    bent = np.tril(rng.normal(size=(k, d, d)), -1) / d + np.eye(d)
    factors = 10 ** rng.uniform(-4, 0, size=(k, d, 1)) * bent
    return Components(rng.dirichlet(np.ones(k)), rng.uniform(-1, 1, size=(k, d)), factors)


def background(d, weight=0.01):
    return Background(weight, -d * math.log(2))


def sums(rows, parts, statistic):
    return local_sums(inside_cube(rows), parts, statistic, background(rows.shape[1]))


@given(st.integers(0, 2**32 - 1), st.sampled_from(SHAPES), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_no_row_moves_the_sums_further_than_claimed(seed, shape, k):
    d, block = shape
    rng = np.random.default_rng(seed)
    statistic, parts = statistic_for(columns=d, block=block), components(k, d, seed)
    rows = rng.uniform(-1.5, 1.5, size=(20, d))
    rows[rng.random((20, d)) < 0.05] = rng.choice(HOSTILE)
    blanked, replaced = rows.copy(), rows.copy()
    blanked[7] = math.nan
    replaced[7] = rng.choice([rng.uniform(-1, 1), *HOSTILE], size=d)
    whole = sums(rows, parts, statistic)
    for other, relation in [
        (blanked, "zero-out"),
        (np.delete(rows, 7, axis=0), "add-remove"),
        (replaced, "replace-one"),
    ]:
        moved = np.linalg.norm(whole - sums(other, parts, statistic))
        assert moved <= UNIT.under(relation)


@pytest.mark.parametrize(("d", "block"), SHAPES)
def test_the_claim_is_attained(d, block):
    """By a row on an axis at the radius of the cut, or at the mean, all of it one component's."""
    statistic = statistic_for(columns=d, block=block)
    parts = Components(np.ones(1), np.zeros((1, d)), 0.01 * np.eye(d)[None])
    rows = np.zeros((2, d))
    rows[0, 0] = 0.5
    norms = [np.linalg.norm(local_sums(r[None], parts, statistic, NOWHERE)) for r in rows]
    assert max(norms) == pytest.approx(ROUNDING, rel=1e-12)
    assert max(norms) <= 1.0


NOWHERE = Background(0.0, 0.0)


@pytest.mark.parametrize(("d", "block"), SHAPES)
def test_no_radius_or_direction_beats_the_maximiser(d, block):
    statistic = statistic_for(columns=d, block=block)
    parts = Components(np.ones(1), np.zeros((1, d)), 0.01 * np.eye(d)[None])
    rng = np.random.default_rng(d)
    rows = rng.normal(size=(300, d)) * rng.uniform(0, 0.05, size=(300, 1))
    rows[::3] *= rng.random((100, d)) < 2 / d
    norms = [np.linalg.norm(local_sums(r[None], parts, statistic, NOWHERE)) for r in rows]
    assert max(norms) <= ROUNDING * (1 + 1e-12)


def test_a_statistic_without_the_cut_would_be_caught():
    """The twin: a radius ten times as large at the same weights exceeds the claim."""
    statistic = dataclasses.replace(statistic_for(columns=3, block=3), clip=20.0)
    parts = Components(np.ones(1), np.zeros((1, 3)), 0.01 * np.eye(3)[None])
    row = np.array([[0.9, 0.0, 0.0]])
    assert np.linalg.norm(local_sums(row, parts, statistic, NOWHERE)) > 1


def test_soft_responsibilities_only_shorten():
    statistic = statistic_for(columns=2, block=2)
    row = np.array([[0.5, 0.0]])
    alone = Components(np.ones(1), np.zeros((1, 2)), 0.1 * np.eye(2)[None])
    twins = Components(np.full(2, 0.5), np.zeros((2, 2)), np.tile(0.1 * np.eye(2), (2, 1, 1)))
    one = np.linalg.norm(local_sums(row, alone, statistic, NOWHERE))
    two = np.linalg.norm(local_sums(row, twins, statistic, NOWHERE))
    assert two == pytest.approx(one / math.sqrt(2))


def test_the_order_and_the_chunks_of_rows_do_not_matter():
    rng = np.random.default_rng(3)
    rows = rng.uniform(-1, 1, size=(60_000, 10))
    statistic, parts = statistic_for(columns=10, block=10), components(40, 10, 1)
    whole = local_sums(rows, parts, statistic, background(10))
    shuffled = local_sums(rows[::-1], parts, statistic, background(10))
    assert np.linalg.norm(whole - shuffled) < (1 - ROUNDING) / 2


def test_sums_agree_with_a_plain_computation():
    rng = np.random.default_rng(5)
    rows, parts = rng.uniform(-1, 1, size=(50, 3)), components(4, 3, 9)
    statistic = statistic_for(columns=3, block=3)
    expected = np.zeros((4, statistic.size))
    for row in rows:
        local = [
            np.linalg.solve(f, row - m) for m, f in zip(parts.means, parts.factors, strict=True)
        ]
        logs = [
            math.log(0.99 * w)
            - 0.5 * y @ y
            - np.log(np.diag(f)).sum()
            - 1.5 * math.log(2 * math.pi)
            for w, y, f in zip(parts.weights, local, parts.factors, strict=True)
        ]
        density = np.exp([*logs, math.log(0.01) - 3 * math.log(2)])
        shares = density / density.sum()
        for k, y in enumerate(local):
            y = y * min(1, statistic.clip / np.linalg.norm(y))
            second = np.outer(y, y) - statistic.centre * np.eye(3)
            flat = [*np.diag(second), *(math.sqrt(2) * second[np.tril_indices(3, -1)])]
            parts_of_row = [statistic.count, *(statistic.first * y)]
            expected[k] += shares[k] * np.array(
                [*parts_of_row, *(statistic.second * np.array(flat))]
            )
    assert local_sums(rows, parts, statistic, background(3)) == pytest.approx(expected, abs=1e-4)
