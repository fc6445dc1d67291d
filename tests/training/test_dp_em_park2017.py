"""DP-EM as released: the authors' compositions, and the stamp that voids them."""

import math

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy
from dpflows.training.dp_em import COMPOSITIONS, STAMP, each_epsilon, fit_faithful

BUDGET = Budget(1.0, 1e-4)
ROWS = np.random.default_rng(1).normal(0.0, 0.15, size=(2000, 3))


def each(composition, law="gaussian", budget=BUDGET):
    return each_epsilon(budget, components=3, steps=10, composition=composition, law=law)


def test_linear_composition_divides_by_the_number_of_releases():
    assert each("linear") == pytest.approx(1 / 70)


def test_advanced_composition_satisfies_its_theorem():
    e = each("advanced")
    spent = e * math.sqrt(140 * math.log(2e4)) + 70 * e * math.expm1(e)
    assert spent == pytest.approx(1.0)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_concentrated_composition_returns_the_budget(law):
    spread = 2 * math.log(1.25e6) if law == "gaussian" else 1.0
    rho = 70 * each("zcdp", law) ** 2 / (2 * spread)
    assert rho + 2 * math.sqrt(rho * math.log(1e4)) == pytest.approx(1.0)


def test_some_moment_proves_the_budget_and_none_a_smaller_one():
    e, spread, orders = each("moments"), 2 * math.log(1.25e6), np.arange(1, 101)
    logs = 70 * (orders**2 + orders) * e**2 / (2 * spread)
    assert ((logs + math.log(1e4)) / orders).min() == pytest.approx(1.0)


def test_the_slip_wastes_most_of_the_budget():
    assert each("linear") < each("zcdp-slip") < 0.5 * each("zcdp") < each("moments")


def test_moments_that_cannot_prove_the_budget_are_refused():
    with pytest.raises(InputError, match="^epsilon must be at least"):
        each("moments", budget=Budget(0.01, 1e-6))


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_every_way_fits_and_is_stamped(composition, law):
    found = fit_faithful(
        ROWS, BUDGET, composition=composition, law=law, entropy=Entropy.insecure(2)
    )
    assert found.events == ()
    assert found.stamps == (STAMP, TEST_SEED_STAMP)
    assert np.isfinite(found.mixture.log_prob(ROWS)).all()


def test_more_budget_fits_better():
    def score(epsilon):
        found = fit_faithful(ROWS, Budget(epsilon, 1e-4), entropy=Entropy.insecure(3))
        return found.mixture.log_prob(ROWS).mean()

    assert score(0.3) < score(4.0) < score(math.inf) + 0.05


def test_an_unknown_composition_is_refused():
    with pytest.raises(InputError, match="^composition must be one of"):
        each_epsilon(BUDGET, components=3, steps=10, composition="magic")
