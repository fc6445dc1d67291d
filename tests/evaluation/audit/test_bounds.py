"""The bound from right guesses: against the formula, against simulation, at its ends."""

import math

import numpy as np
import pytest
from scipy import stats

from dpflows.errors import InputError
from dpflows.evaluation.audit import (
    Game,
    expected_bound,
    lower_bound,
    p_value,
    planned_guesses,
    separation,
)
from dpflows.privacy.accounting.privacy_profiles import GaussianProfile


def by_the_book(correct, guesses, canaries, epsilon, delta):
    """The theorem, term by term."""
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [stats.binom.pmf(k, guesses, chance) for k in range(guesses + 1)]
    extra = max((sum(mass[correct - i : correct]) / i for i in range(1, correct + 1)), default=0)
    return min(sum(mass[correct:]) + 2 * canaries * delta * extra, 1.0)


@pytest.mark.parametrize("correct", [0, 1, 13, 29, 30])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-3), (2.5, 1e-5)])
def test_the_p_value_is_the_theorems(correct, epsilon, delta):
    found = p_value(correct, guesses=30, canaries=100, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(by_the_book(correct, 30, 100, epsilon, delta), rel=1e-9)


def test_delta_costs_and_more_right_guesses_pay():
    play = dict(guesses=100, canaries=1000, confidence=0.95)
    bounds = [lower_bound(c, delta=1e-6, **play) for c in range(50, 101, 5)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0
    assert lower_bound(90, delta=1e-4, **play) < lower_bound(90, delta=0.0, **play)
    assert lower_bound(100, delta=0.01, **play) == 0.0  # delta alone explains so much


def test_the_bound_is_where_the_surprise_ends():
    bound = lower_bound(90, guesses=100, canaries=1000, delta=1e-6, confidence=0.95)
    play = dict(guesses=100, canaries=1000, delta=1e-6)
    assert (
        p_value(90, epsilon=bound - 1e-4, **play) < 0.05 < p_value(90, epsilon=bound + 1e-4, **play)
    )


def bounds_of_randomized_response(epsilon, claimed_chance, runs, rng):
    """The sharpest (epsilon, 0)-private game: each coin is told truly with a fixed chance."""
    correct = rng.binomial(200, claimed_chance, size=runs)
    play = dict(guesses=200, canaries=200, delta=0.0, confidence=0.95)
    known = {c: lower_bound(int(c), **play) for c in np.unique(correct)}
    return np.array([known[c] for c in correct])


def test_the_bound_keeps_its_confidence_where_the_theorem_is_sharp():
    """False alarms of this test: below 1e-6 (five sigma above 5% of 3,000 runs)."""
    rng = np.random.default_rng()
    chance = math.e / (1 + math.e)
    above = (bounds_of_randomized_response(1.0, chance, 3000, rng) > 1.0).mean()
    assert above < 0.05 + 5 * math.sqrt(0.05 * 0.95 / 3000)


def test_a_game_that_tells_too_much_is_caught():
    """The twin: at epsilon 1.5 the bound exceeds 1 far more often than one time in twenty."""
    chance = 1 / (1 + math.exp(-1.5))
    found = bounds_of_randomized_response(1.0, chance, 3000, np.random.default_rng())
    assert (found > 1.0).mean() > 0.2


def test_separation_inverts_the_gaussian_profile():
    assert GaussianProfile(separation(2.0, 1e-6)).epsilon(1e-6) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_the_planned_audit_expects_to_flag_noise_three_times_too_small(epsilon):
    """Power, computed before anything is trained: also on a poor day the bound passes."""
    public = dict(canaries=5000, delta=1e-5, confidence=0.95)
    guesses = planned_guesses(5000, epsilon=epsilon, delta=1e-5, confidence=0.95)
    mu = separation(epsilon, 1e-5)
    assert expected_bound(3 * mu, guesses=guesses, **public) > 1.2 * epsilon
    assert expected_bound(mu, guesses=guesses, **public) < 0.6 * epsilon


def test_guesses_are_taken_from_both_ends():
    coins = np.array([False, True, False, True, True])
    game = Game(5, guesses=3)
    assert game.correct(np.array([0.0, 4.0, 1.0, 2.0, 3.0]), coins) == 3
    assert game.correct(-np.array([0.0, 4.0, 1.0, 2.0, 3.0]), coins) == 0


@pytest.mark.parametrize(
    "wrong", [dict(canaries=1), dict(canaries=9, guesses=10), dict(canaries=9, confidence=1.0)]
)
def test_games_that_cannot_be_played_are_refused(wrong):
    with pytest.raises(InputError):
        Game(**wrong)


def test_impossible_counts_are_refused():
    with pytest.raises(InputError, match="guesses"):
        lower_bound(5, guesses=4, canaries=10, delta=0.0, confidence=0.95)
