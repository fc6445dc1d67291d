"""What a charge counts for in the adaptive filter: never less than it is worth."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from dpflows.privacy.accounting import delta_of, epsilon_of
from dpflows.privacy.accounting.filters import AdaptiveFilter, added, as_epsilon
from dpflows.privacy.accounting.privacy_profiles import gaussian
from dpflows.privacy.events import (
    ApproximateEvent,
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
    Sensitivity,
    VoteEvent,
    ZCDPEvent,
)
from dpflows.privacy.guarantee import Budget

CAP = Budget(1.0, 1e-6)
ONE = Sensitivity.uniformly(1.0)
FIRST = (GaussianEvent(noise=10.0, sensitivity=ONE),)


def steps(batch: int, noise: float, count: int, **settings) -> SampledGaussianEvent:
    return SampledGaussianEvent(
        **{"sampling": "poisson", "rows": 5000, "batch_size": batch}
        | {"noise_multiplier": noise, "count": count}
        | settings
    )


CHARGES: dict[str, list[Event]] = {
    "gaussian": [GaussianEvent(noise=8.0, sensitivity=ONE, count=3)],
    "steps": [steps(50, 1.3, 300)],
    "capped steps": [steps(50, 2.0, 100, batch_cap=70)],
    "fixed batches": [steps(50, 4.0, 100, sampling="uniform")],
    "steps and a histogram": [
        steps(50, 2.0, 50),
        DiscreteLaplaceEvent(scale=20.0, sensitivity=ONE),
    ],
    "pure": [PureEvent(epsilon=Sensitivity.uniformly(0.3))],
    "many pure": [PureEvent(epsilon=Sensitivity.uniformly(0.02), count=200)],
    "laplace": [LaplaceEvent(scale=5.0, sensitivity=ONE, count=2)],
    "bounded range": [BoundedRangeEvent(epsilon=Sensitivity.uniformly(0.4))],
    "votes": [VoteEvent(voters=10, epsilon=0.3, law="exponential", sensitivity=ONE, count=4)],
    "zcdp": [ZCDPEvent(rho=Sensitivity.uniformly(0.004))],
    "approximate": [ApproximateEvent(epsilon=Sensitivity.uniformly(0.1), delta=2e-8)],
}
CASES = [(name, "zero-out") for name in CHARGES if name != "gaussian"]
CASES += [(name, "replace-one") for name in ("steps", "capped steps", "fixed batches")]


@pytest.mark.parametrize(("name", "neighbours"), CASES)
def test_a_price_dominates_and_a_smaller_one_does_not(name, neighbours):
    """At epsilons off the grid of losses; ``delta_of`` takes the larger of both orders.

    The twin asks for less, which must fail: 2%, or 10% where the profile of the charge is
    itself only an envelope.
    """
    events, budget = CHARGES[name], Budget(CAP.epsilon, CAP.delta, neighbours)
    price = AdaptiveFilter(budget, FIRST).price(events, slack=0.0)
    tails = [as_epsilon(price.mu, 10.0**-d) for d in np.arange(1.5, 9.1, 0.75)]
    epsilons = np.array([0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, *tails])
    found = np.array([delta_of(events, epsilon=e, neighbours=neighbours) for e in epsilons])

    def covers(mu: float) -> bool:
        allowed = price.slack + (1 - price.slack) * gaussian(epsilons, mu)
        # What delta_of adds for its own rounding.
        return bool(np.all(found <= allowed * (1 + 1e-6) + 2e-12))

    assert covers(price.mu)
    assert not covers((0.9 if name == "zcdp" else 0.98) * price.mu)


def test_gaussians_have_their_own_distance():
    found = AdaptiveFilter(CAP, FIRST).price(CHARGES["gaussian"], slack=0.0)
    assert found == (pytest.approx(math.sqrt(3) / 8), 0.0)


def test_a_pure_event_has_the_price_of_the_textbook():
    """Dong, Roth and Su (2022): 2 Phi^-1(e^eps / (1 + e^eps))."""
    for epsilon in (0.01, 0.3, 1.0, 4.0):
        event = PureEvent(epsilon=Sensitivity.uniformly(epsilon))
        found = AdaptiveFilter(CAP, FIRST).price([event], slack=0.0)
        exact = 2 * ndtri(math.exp(epsilon) / (1 + math.exp(epsilon)))
        assert exact * (1 - 1e-9) <= found.mu <= exact * 1.002
        assert found.slack == 0


@pytest.mark.parametrize(
    ("name", "least"), [("steps", 0.9), ("capped steps", 0.0), ("pure", 0.6), ("gaussian", 0.8)]
)
def test_the_first_charge_leaves_what_the_cap_allows(name, least):
    """A Gaussian of ``mu_cap`` beside the first charge, by the library's own convolution."""
    gate = AdaptiveFilter(CAP, tuple(CHARGES[name]))
    room = CAP.delta * 15 / 16 - CAP.delta / 8
    if gate.mu_cap > 0:
        beside = [*gate.first, GaussianEvent(noise=1 / gate.mu_cap, sensitivity=ONE)]
        assert room * 0.97 < delta_of(beside, epsilon=CAP.epsilon) < room * 1.03
    if gate.pure_cap > 0:
        loss = PureEvent(epsilon=Sensitivity.uniformly(gate.pure_cap))
        assert delta_of([*gate.first, loss], epsilon=CAP.epsilon + 2e-3) < CAP.delta / 16
    assert gate.remaining(0.0) >= 0


def test_the_first_charge_may_take_everything():
    gate = AdaptiveFilter(CAP, (GaussianEvent(noise=1 / 0.2367, sensitivity=ONE),))
    assert gate.epsilon(0.0) == pytest.approx(1.0, abs=1e-3)
    assert (gate.mu_cap, gate.pure_cap, gate.remaining(0.0)) == (0.0, 0.0, 0.0)


def test_slack_never_runs_out_at_once_and_never_passes_its_share():
    gate, mu, slack = AdaptiveFilter(CAP, FIRST), 0.0, 0.0
    granted = 0
    while granted < 2000 and math.isfinite((price := gate.price(CHARGES["steps"], slack=slack)).mu):
        mu, slack = added(mu, slack, price)
        granted += 1
    assert 300 < granted < 2000
    assert slack <= gate.slack_cap


def test_prices_do_not_fall_when_slack_was_used():
    gate = AdaptiveFilter(CAP, FIRST)
    prices = [gate.price(CHARGES["steps"], slack=used).mu for used in (0.0, 6e-8, 1.2e-7)]
    assert prices == sorted(prices)


@settings(max_examples=15, deadline=None)
@given(first=st.floats(0.02, 0.2), share=st.floats(0.0, 1.0))
def test_epsilon_grows_to_the_cap_and_what_is_left_shrinks(first, share):
    gate = AdaptiveFilter(CAP, (GaussianEvent(noise=1 / first, sensitivity=ONE),))
    mu = share * gate.mu_cap
    alone = epsilon_of(gate.first, delta=CAP.delta)
    assert alone * (1 - 1e-9) <= gate.epsilon(mu) <= CAP.epsilon
    assert gate.epsilon(mu) <= gate.epsilon(gate.mu_cap) * (1 + 1e-9)
    # both are roots that were searched for, to a relative precision of about 1e-12
    assert gate.remaining(gate.mu_cap) == 0
    assert 0 <= gate.remaining(mu) <= gate.remaining(0.0) * (1 + 1e-9)
