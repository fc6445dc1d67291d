"""The local fit: what it recovers, what it ignores, and what it survives."""

import dataclasses
import math

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.models.density import Mixture
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.local_frames import Recipe
from dpflows.training.mixture_em import fit_local, plan_mixture


def fit(rows, epsilon=1.0, seed=1, **settings):
    plan = plan_mixture(Budget(epsilon, 1e-6), rows=len(rows), columns=rows.shape[1], **settings)
    return fit_local(rows, plan, entropy=Entropy.insecure(seed))


def is_sound(mixture):
    finite = all(np.isfinite(array).all() for array in dataclasses.astuple(mixture))
    return finite and mixture.weights.sum() == pytest.approx(1.0)


THREE = Mixture(
    np.array([0.5, 0.3, 0.2]),
    np.array([[0.2, 0.1], [-0.3, 0.2], [0.0, -0.4]]),
    np.array([[[0.08, 0.0], [0.03, 0.04]], [[0.03, 0.0], [0.0, 0.1]], [[0.05, 0.0], [0.0, 0.05]]]),
)


def shortfall(epsilon, **settings):
    """How far the fit of a known mixture stays below the truth, in nats per row."""
    rng = np.random.default_rng(5)
    train, test = THREE.sample(20_000, rng), THREE.sample(20_000, rng)
    mixture = fit(train, epsilon, **settings)
    return float((THREE.log_prob(test) - mixture.log_prob(test)).mean())


def test_a_known_mixture_is_recovered_at_a_large_budget():
    """The allowance is ten times the standard error of the mean."""
    assert shortfall(50.0) < 0.05


def test_a_single_gaussian_would_not_pass_for_it():
    assert shortfall(50.0, components=1) > 0.3


def test_a_moderate_budget_comes_close():
    assert shortfall(1.0) < 0.1


def test_without_privacy_it_is_ordinary_em():
    assert shortfall(math.inf) < 0.03


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe", [Recipe(gains=False), Recipe(splitting=False), Recipe(background=1e-9)]
)
def test_ablations_run(recipe):
    assert shortfall(2.0, recipe=recipe) < 1.0


def test_a_box_thirty_times_the_rows_is_zoomed_into():
    rows = np.random.default_rng(3).normal([0.5, -0.2], [0.01, 0.03], size=(20_000, 2))
    mixture = fit(rows)
    best = -np.log(2 * np.pi * np.e * 0.01 * 0.03)
    assert mixture.log_prob(rows).mean() > best - 0.1


def far_clusters(**settings):
    """The share of rows that a fit misses when one in fifty lies far from a narrow bulk."""
    rng = np.random.default_rng(7)
    rows = rng.normal(0.0, 0.01, size=(20_000, 3))
    rows[:400] += [0.8, 0.0, -0.5]
    mixture = fit(rows, 2.0, **settings)
    return float((mixture.log_prob(rows) < -20).mean())


def test_a_small_cluster_far_away_is_found():
    assert far_clusters() < 0.001


def test_without_a_scout_it_would_be_missed():
    assert far_clusters(recipe=Recipe(scouting=False)) > 0.01


def test_rows_with_nan_contribute_nothing():
    rows = THREE.sample(500, np.random.default_rng(1))
    plan = plan_mixture(Budget(1.0, 1e-6), rows=600, columns=2)
    holes = np.full((100, 2), math.nan)
    holes[::2, 0] = 1e38
    one = fit_local(rows, plan, entropy=Entropy.insecure(3))
    two = fit_local(np.concatenate([rows, holes]), plan, entropy=Entropy.insecure(3))
    assert (one.means == two.means).all()


def test_a_neighbouring_table_gives_a_close_mixture_under_the_same_noise():
    rows = THREE.sample(5000, np.random.default_rng(2))
    other = rows.copy()
    other[17] = [1e38, -math.inf]
    one, two = fit(rows), fit(other)
    assert (one.means != two.means).any()
    probe = THREE.sample(500, np.random.default_rng(4))
    assert abs(one.log_prob(probe).mean() - two.log_prob(probe).mean()) < 0.05


def test_a_seed_repeats_the_fit_and_the_operating_system_does_not():
    rows = THREE.sample(300, np.random.default_rng(2))
    assert (fit(rows).means == fit(rows).means).all()
    plan = plan_mixture(Budget(1.0, 1e-6), rows=300, columns=2)
    one, two = (fit_local(rows, plan, entropy=Entropy.from_os()) for _ in range(2))
    assert (one.means != two.means).any()


RNG = np.random.default_rng(8)
TABLES = {
    "one column": RNG.normal(0.1, 0.05, size=(3000, 1)),
    "fifty columns": RNG.normal(0.0, 0.1, size=(4000, 50)),
    "fifty rows": RNG.normal(0.0, 0.1, size=(50, 3)),
    "one row": np.zeros((1, 2)),
    "a constant column": RNG.normal(0.0, 0.1, size=(3000, 2)) * [1.0, 0.0],
    "identical rows": np.full((3000, 3), 0.4),
    "only corners": np.sign(RNG.normal(size=(3000, 2))),
    "only NaN": np.full((100, 2), math.nan),
    "huge numbers": RNG.normal(size=(500, 2)) * 1e38,
    "infinite": np.full((500, 2), math.inf),
}


@pytest.mark.parametrize("epsilon", [0.2, 20.0, math.inf])
@pytest.mark.parametrize("name", TABLES)
def test_any_table_gives_a_sound_mixture(name, epsilon):
    assert is_sound(fit(TABLES[name], epsilon))


def test_many_columns_are_as_good_as_a_correlated_gaussian():
    """Fifty columns that share three factors; a diagonal Gaussian is ten nats below."""
    rng = np.random.default_rng(6)
    loads = rng.normal(size=(50, 3))
    rows = 0.05 * (rng.normal(size=(8000, 3)) @ loads.T + rng.normal(size=(8000, 50)))
    covariance = np.cov(rows.T)
    full = -0.5 * (np.linalg.slogdet(covariance)[1] + 50 * np.log(2 * np.pi * np.e))
    diagonal = -0.5 * (np.log(np.diag(covariance)).sum() + 50 * np.log(2 * np.pi * np.e))
    assert full > diagonal + 10
    assert fit(rows, 8.0).log_prob(rows).mean() > full - 0.35 * (full - diagonal)


def test_columns_must_match_the_plan():
    plan = plan_mixture(Budget(1.0, 1e-6), rows=100, columns=2)
    with pytest.raises(InputError, match="^rows must have"):
        fit_local(np.zeros((100, 3)), plan, entropy=Entropy.from_os())
