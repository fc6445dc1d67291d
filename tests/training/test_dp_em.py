"""Plain DP-EM: its claims hold, its steps are counted, its noise is the one that is paid."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpflows.errors import InputError
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import NEIGHBOURS, GaussianEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy
from dpflows.training import dp_em
from dpflows.training.local_frames import ROUNDING, UNIT, Components

FALSE_ALARM = 1e-6
HOSTILE = [math.nan, math.inf, -math.inf, 1e38, -1e38, 1e308, 5e-324, 0.0, 1.0, -1.0]


def components(k, d, rng):
    factors = np.tile(np.eye(d), (k, 1, 1)) * rng.uniform(0.05, 1, size=(k, d, 1))
    return Components(rng.dirichlet(np.ones(k)), rng.uniform(-1, 1, size=(k, d)), factors)


def sums(rows, state):
    return dp_em.global_sums(dp_em.in_unit_ball(rows, 2.0), state)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_no_row_moves_the_sums_further_than_claimed(seed, d, k):
    rng = np.random.default_rng(seed)
    state, rows = components(k, d, rng), rng.normal(size=(15, d))
    rows[rng.random((15, d)) < 0.1] = rng.choice(HOSTILE)
    blanked, replaced = rows.copy(), rows.copy()
    blanked[3], replaced[3] = math.nan, rng.choice(HOSTILE, size=d)
    tables = {
        "zero-out": blanked,
        "add-remove": np.delete(rows, 3, axis=0),
        "replace-one": replaced,
    }
    for relation, other in tables.items():
        moved = sums(rows, state) - sums(other, state)
        assert np.linalg.norm(moved) <= UNIT.under(relation)
        assert np.abs(moved).sum() <= dp_em.sum_sensitivity(d).under(relation)


@pytest.mark.parametrize("d", [1, 3, 10])
def test_the_claims_are_attained(d):
    """By any row on the sphere in L2, by the diagonal in L1."""
    state = Components(np.ones(1), np.zeros((1, d)), np.eye(d)[None])
    moved = dp_em.global_sums(np.full((1, d), 1 / math.sqrt(d)), state)
    assert np.linalg.norm(moved) == pytest.approx(ROUNDING, rel=1e-9)
    assert np.abs(moved).sum() == pytest.approx(dp_em.sum_sensitivity(d).zero_out, rel=1e-5)


def test_rows_outside_the_ball_would_be_caught():
    """The twin: without projection the claim fails."""
    state = Components(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    assert np.linalg.norm(dp_em.global_sums(np.full((1, 2), 2.0), state)) > 1


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_gaussian_steps_spend_the_budget_and_no_more(neighbours):
    budget = Budget(1.0, 1e-5, neighbours)
    plan = dp_em.plan_corrected(budget, rows=1000, columns=3)
    assert sum(event.count for event in plan.events) == plan.steps
    assert 0.998 < _cost(plan.events, budget) <= 1.0


@pytest.mark.parametrize("neighbours", ["zero-out", "add-remove"])
def test_laplace_steps_add_up(neighbours):
    budget = Budget(1.0, 1e-5, neighbours)
    plan = dp_em.plan_corrected(budget, rows=1000, columns=3, law="laplace", steps=4)
    (event,) = plan.events
    assert event.count * event.sensitivity.under(neighbours) / event.scale == pytest.approx(1.0)
    assert _cost(plan.events, budget) <= 1.0 + 1e-9


def _cost(events, budget):
    return epsilon_of(events, delta=budget.delta, neighbours=budget.neighbours, accountant="pld")


TWO = np.concatenate(
    [
        np.random.default_rng(1).normal([0.4, 0.2], 0.08, size=(3000, 2)),
        np.random.default_rng(2).normal([-0.4, -0.1], 0.1, size=(6000, 2)),
    ]
)


@pytest.mark.parametrize("law", dp_em.LAWS)
def test_two_clusters_are_found_at_a_large_budget(law):
    plan = dp_em.plan_corrected(
        Budget(100.0, 1e-6), rows=9000, columns=2, components=2, steps=25, law=law
    )
    found = dp_em.fit_corrected(TWO, plan, entropy=Entropy.insecure(1))
    order = np.argsort(found.mixture.weights)
    assert found.mixture.weights[order] == pytest.approx([1 / 3, 2 / 3], abs=0.03)
    assert found.mixture.means[order] == pytest.approx(
        np.array([[0.4, 0.2], [-0.4, -0.1]]), abs=0.05
    )
    assert found.events == plan.events
    assert found.stamps == (TEST_SEED_STAMP,)


@pytest.mark.parametrize("law", dp_em.LAWS)
def test_noise_follows_the_plan(law):
    """Kolmogorov and Smirnov at one in a million; five percent off is noticed."""
    plan = dp_em.plan_corrected(Budget(1.0, 1e-6), rows=10, columns=2, law=law)
    drawn = dp_em._noised(np.zeros((20_000, 6)), plan, Entropy.insecure(3), 0).ravel()
    right = stats.kstest(drawn / plan.noise, {"gaussian": "norm", "laplace": "laplace"}[law])
    wrong = stats.kstest(drawn * 1.05 / plan.noise, {"gaussian": "norm", "laplace": "laplace"}[law])
    assert right.pvalue > FALSE_ALARM > wrong.pvalue


@pytest.mark.parametrize("law", dp_em.LAWS)
@pytest.mark.parametrize("epsilon", [0.05, math.inf])
def test_any_table_gives_a_sound_mixture(law, epsilon):
    for rows in (np.full((40, 3), math.nan), np.full((40, 3), 1e38), np.zeros((1, 3))):
        plan = dp_em.plan_corrected(Budget(epsilon, 1e-6), rows=40, columns=3, law=law)
        mixture = dp_em.fit_corrected(rows, plan, entropy=Entropy.from_os()).mixture
        assert np.isfinite(mixture.log_prob(np.zeros((1, 3)))).all()


def test_wrong_settings_are_named():
    budget = Budget(1.0, 1e-6)
    with pytest.raises(InputError, match="^law must be one of"):
        dp_em.plan_corrected(budget, rows=9, columns=1, law="uniform")
    before = [GaussianEvent(noise=9.0, sensitivity=Sensitivity.of_sum(1.0))]
    with pytest.raises(InputError, match="^law must be gaussian"):
        dp_em.plan_corrected(budget, rows=9, columns=1, law="laplace", before=before)
