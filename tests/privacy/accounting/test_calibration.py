"""Calibration finds the edge of the budget and never crosses it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import calibrate_noise, calibrate_steps, epsilon_of, registry
from dpflows.privacy.accounting.registry import PRECISION
from dpflows.privacy.events import GaussianEvent, PureEvent, SampledGaussianEvent, Sensitivity
from dpflows.privacy.guarantee import Budget

UNIT = Sensitivity.of_sum(1.0)


def steps_of(count: int, noise: float, batch_size: int = 100, cap: int | None = None):
    return [
        SampledGaussianEvent(
            sampling="poisson",
            rows=24059,
            batch_size=batch_size,
            noise_multiplier=noise,
            batch_cap=cap,
            count=count,
        )
    ]


@pytest.mark.parametrize(
    ("batch_size", "steps", "noise"),
    [(100, 500, 0.80), (100, 5000, 1.29), (512, 1000, 2.59), (2048, 2500, 15.52)],
)
def test_known_multipliers(batch_size, steps, noise):
    """The table of multipliers at epsilon 1, delta 1.52e-5."""
    found = calibrate_noise(Budget(1.0, 1.52e-5), lambda z: steps_of(steps, z, batch_size))
    assert found == pytest.approx(noise, abs=0.006)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 8.0])
def test_the_multiplier_is_the_smallest_within_budget(accountant, epsilon):
    def cost(noise: float) -> float:
        return epsilon_of(steps_of(1000, noise), delta=1e-6, accountant=accountant)

    found = calibrate_noise(
        Budget(epsilon, 1e-6), lambda z: steps_of(1000, z), accountant=accountant
    )
    assert cost(found) <= epsilon < cost(found * (1 - 2 * PRECISION))


def test_capped_batches_calibrate_too():
    found = calibrate_noise(Budget(1.0, 1.52e-5), lambda z: steps_of(2000, z, cap=140))
    assert epsilon_of(steps_of(2000, found, cap=140), delta=1.52e-5) <= 1.0
    assert found == pytest.approx(
        calibrate_noise(Budget(1.0, 1.52e-5), lambda z: steps_of(2000, z)), rel=0.05
    )


@settings(max_examples=30, deadline=None)
@given(noise=st.floats(3.0, 100.0), epsilon=st.floats(0.05, 8.0))
def test_the_number_of_steps_is_the_largest_within_budget(noise, epsilon):
    def run(count: int):
        return [GaussianEvent(noise=noise, sensitivity=UNIT, count=count)]

    budget = Budget(epsilon, 1e-6)
    try:
        found = calibrate_steps(budget, run, accountant="gdp")
    except BudgetError:
        found = 0
    assert found == 0 or epsilon_of(run(found), delta=1e-6, accountant="gdp") <= epsilon
    assert epsilon_of(run(found + 1), delta=1e-6, accountant="gdp") > epsilon


def test_no_privacy_needs_no_noise_and_has_no_limit():
    unlimited = Budget(math.inf, 1e-6)
    assert calibrate_noise(unlimited, lambda z: steps_of(10, z)) == 0.0
    with pytest.raises(InputError, match="epsilon must be finite"):
        calibrate_steps(unlimited, lambda t: steps_of(t, 1.0))


def test_impossible_budgets_are_refused():
    dear = PureEvent(epsilon=Sensitivity.uniformly(3.0))
    with pytest.raises(BudgetError, match="epsilon is too small"):
        calibrate_noise(Budget(1.0, 1e-6), lambda z: [dear, *steps_of(10, z)])
    with pytest.raises(BudgetError, match="single step"):
        calibrate_steps(Budget(1.0, 1e-6), lambda t: [dear, *steps_of(t, 1.0)])


def test_free_steps_have_no_limit():
    free = Sensitivity.uniformly(0.0)
    with pytest.raises(InputError, match="any number of steps"):
        calibrate_steps(
            Budget(1.0, 1e-6), lambda t: [GaussianEvent(noise=1.0, sensitivity=free, count=t)]
        )


@pytest.mark.parametrize("beside", [5.0, 6.0, 8.0])
def test_what_else_is_bought_does_not_prolong_the_search(beside, monkeypatch):
    """A fixed cost flattens the curve where the noise is ample, and secants mislead there."""
    budget, asked = Budget(1.0, 1e-6), []

    def priced(events, neighbours, accountant):
        asked.append(accountant)
        return profile_of(events, neighbours, accountant)

    profile_of = registry.profile_of
    monkeypatch.setattr(registry, "profile_of", priced)

    def events(noise):
        fixed = GaussianEvent(noise=beside, sensitivity=UNIT)
        return [fixed, *steps_of(500, noise, batch_size=2048)]

    noise = calibrate_noise(budget, events)
    assert asked.count("pld") <= 8
    assert epsilon_of(events(noise), delta=1e-6, neighbours="zero-out") <= 1.0
    assert epsilon_of(events(noise / 1.001), delta=1e-6, neighbours="zero-out") > 1.0
