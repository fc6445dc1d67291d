"""Every accountant: its published figures, and bounds that really are bounds.

Lower bounds come from closed forms, exact sums or simulation, never from the library
that the accountants use.
"""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpflows.errors import InputError
from dpflows.privacy.accounting import ACCOUNTANTS, Run, View, calibrate_steps, delta_of, epsilon_of
from dpflows.privacy.events import (
    VOTE_LAWS,
    BoundedRangeEvent,
    GaussianEvent,
    LaplaceEvent,
    SampledGaussianEvent,
    Sensitivity,
    VoteEvent,
    ZCDPEvent,
)
from dpflows.privacy.guarantee import Budget

PAPER = Run(rows=24059, batch_size=100, noise_multiplier=2.1, delta=1.52e-5)
UNIT = Sensitivity.uniformly(1.0)
BOUNDS = [name for name, accountant in ACCOUNTANTS.items() if accountant.kind == "bound"]
#: One-sided normal quantile of a false alarm once in a million runs.
FALSE_ALARM = 1e-6
DEVIATIONS = float(norm.isf(FALSE_ALARM))


@pytest.mark.parametrize(
    ("accountant", "sampling", "neighbours", "steps", "tolerance"),
    [
        ("pld", "poisson", "zero-out", 16968, 0.005),
        ("pld", "poisson", "add-remove", 16968, 0.005),
        ("rdp", "poisson", "zero-out", 14308, 0.01),
        ("gdp-clt", "uniform", "replace-one", 12565, 1 / 12565),
        ("gdp-clt", "poisson", "zero-out", 17205, 1 / 17205),
        ("pld", "poisson", "replace-one", 4790, 0.005),
        ("pld", "uniform", "replace-one", 1746, 0.02),
        ("rdp", "uniform", "replace-one", 433, 0.01),
    ],
)
def test_steps_at_epsilon_one(accountant, sampling, neighbours, steps, tolerance):
    found = PAPER.steps(View(accountant, sampling, neighbours), epsilon=1.0)
    assert abs(found / steps - 1) <= tolerance * (1 + 1e-9)


def test_epsilon_of_the_papers_run():
    assert 2.90 <= PAPER.epsilon(View("pld", "uniform", "replace-one"), steps=12565) <= 3.05
    found = PAPER.epsilon(View("pld", "poisson", "zero-out"), steps=12565)
    assert found == pytest.approx(0.849, rel=0.005)
    replaced = PAPER.epsilon(View("pld", "poisson", "replace-one"), steps=12565)
    assert replaced == pytest.approx(1.707, rel=0.005)


def test_other_releases_beside_the_run():
    """Figures worked out independently: Laplace 0.909, exponential mechanism 0.874."""
    base = PAPER.events("poisson", 12565)
    tenth = Sensitivity.uniformly(0.1)
    assert epsilon_of(
        [*base, LaplaceEvent(scale=10.0, sensitivity=UNIT)], delta=1.52e-5
    ) == pytest.approx(0.909, abs=0.001)
    assert epsilon_of([*base, BoundedRangeEvent(epsilon=tenth)], delta=1.52e-5) == pytest.approx(
        0.874, abs=0.001
    )
    moments = GaussianEvent(noise=40.0, sensitivity=UNIT)
    assert epsilon_of([*base, moments], delta=1.52e-5) == pytest.approx(0.8537, abs=0.001)


def gaussian_delta(epsilon: float, mu: float) -> float:
    return float(
        norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    )


@pytest.mark.parametrize("accountant", BOUNDS)
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("noise", [0.5, 2.0, 17.0, 300.0])
@pytest.mark.parametrize("count", [1, 50])
def test_gaussian_bounds_are_above_the_closed_form(accountant, neighbours, noise, count):
    event = GaussianEvent(noise=noise, sensitivity=Sensitivity.of_sum(1.0), count=count)
    mu = math.sqrt(count) * event.sensitivity.under(neighbours) / noise
    for delta in (1e-3, 1e-6, 1e-10):
        epsilon = epsilon_of([event], delta=delta, neighbours=neighbours, accountant=accountant)
        assert gaussian_delta(epsilon, mu) <= delta * (1 + 1e-9)
    if accountant in ("pld", "gdp"):
        tight = epsilon_of([event], delta=1e-6, neighbours=neighbours, accountant=accountant)
        assert gaussian_delta(tight * 0.995, mu) > 1e-6


def repeated_answers_delta(event: VoteEvent, one: int, two: int, epsilon: float) -> float:
    """The hockey stick of all answers on two neighbouring counts, by a binomial sum."""
    p, q = (np.array([event.chance(c), event.chance(event.voters - c)]) for c in (one, two))
    yes = np.arange(event.count + 1)
    losses = yes * math.log(p[0] / q[0]) + (event.count - yes) * math.log(p[1] / q[1])
    chances = binom.pmf(yes, event.count, p[0])
    return float(np.sum(chances * np.maximum(0, -np.expm1(epsilon - losses))))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp"])
@pytest.mark.parametrize("law", VOTE_LAWS)
@pytest.mark.parametrize("count", [1, 40])
def test_vote_bounds_are_above_every_pair_of_counts(accountant, law, count):
    event = VoteEvent(voters=10, epsilon=0.3, law=law, sensitivity=UNIT, count=count)
    for delta in (1e-3, 1e-8):
        epsilon = epsilon_of([event], delta=delta, accountant=accountant)
        for one, two in [(c, c + 1) for c in range(10)] + [(c + 1, c) for c in range(10)]:
            assert repeated_answers_delta(event, one, two, epsilon) <= delta * (1 + 1e-9)


def test_the_binomial_sum_rejects_a_vote_priced_at_nine_tenths():
    event = VoteEvent(voters=10, epsilon=0.3, law="geometric", sensitivity=UNIT, count=40)
    epsilon = 0.9 * epsilon_of([event], delta=1e-8)
    assert repeated_answers_delta(event, 5, 6, epsilon) > 1e-8


def simulated_delta(
    rate: float, noise: float, steps: int, epsilon: float, *, pair: str, draws: int
) -> tuple[float, float]:
    """The hockey stick of ``steps`` sampled Gaussians by plain simulation, with its error."""
    generator = np.random.default_rng()
    shift = {"present": (1.0, 0.0), "absent": (0.0, 1.0), "replaced": (1.0, -1.0)}[pair]
    mean_p, mean_q = (value / noise for value in shift)
    total = np.zeros(draws)
    for _ in range(steps):
        x = generator.standard_normal(draws) + mean_p * (generator.random(draws) < rate)
        total += _log_mixture(x, rate, mean_p) - _log_mixture(x, rate, mean_q)
    kept = np.maximum(0, -np.expm1(epsilon - total))
    return float(kept.mean()), float(kept.std() / math.sqrt(draws))


def _log_mixture(x, rate: float, mean: float):
    return np.log1p(rate * np.expm1(mean * x - mean * mean / 2))


CASES = [
    ("zero-out", "present", 0.1, 1.0, 12, 0.8),
    ("zero-out", "absent", 0.1, 1.0, 12, 0.5),
    ("replace-one", "replaced", 0.1, 1.4, 12, 0.8),
]


@pytest.mark.parametrize(
    ("accountant", "neighbours", "pair", "rate", "noise", "steps", "epsilon"),
    [("pld", *case) for case in CASES] + [("rdp", *case) for case in CASES[:2]],
)
def test_sampled_bounds_are_above_simulation(
    accountant, neighbours, pair, rate, noise, steps, epsilon
):
    """False alarms: fewer than one in a million runs of each case."""
    claimed = claim(accountant, neighbours, rate, noise, steps, epsilon)
    mean, error = simulated_delta(rate, noise, steps, epsilon, pair=pair, draws=200_000)
    assert mean - DEVIATIONS * error <= claimed


@pytest.mark.parametrize(("neighbours", "pair", "rate", "noise", "steps", "epsilon"), CASES)
def test_the_simulation_rejects_an_accountant_that_halves_the_rate(
    neighbours, pair, rate, noise, steps, epsilon
):
    claimed = claim("pld", neighbours, rate / 2, noise, steps, epsilon)
    mean, error = simulated_delta(rate, noise, steps, epsilon, pair=pair, draws=200_000)
    assert mean - DEVIATIONS * error > claimed


def claim(accountant, neighbours, rate, noise, steps, epsilon) -> float:
    event = SampledGaussianEvent(
        sampling="poisson",
        rows=1000,
        batch_size=round(1000 * rate),
        noise_multiplier=noise,
        count=steps,
    )
    return delta_of([event], epsilon=epsilon, neighbours=neighbours, accountant=accountant)


def test_capped_batches_cost_more_and_a_high_cap_costs_nothing():
    def cost(cap: int | None) -> float:
        event = SampledGaussianEvent(
            sampling="poisson",
            rows=24000,
            batch_size=100,
            noise_multiplier=2.1,
            batch_cap=cap,
            count=12480,
        )
        return epsilon_of([event], delta=1.52e-5)

    assert cost(None) == pytest.approx(0.8477, abs=5e-4)
    assert cost(150) == pytest.approx(0.8477, abs=5e-4)
    assert cost(140) == pytest.approx(0.8483, abs=5e-4)
    assert cost(128) == pytest.approx(0.874, abs=2e-3)


def test_fixed_size_batches_are_above_the_known_attack():
    """All other rows at -C: the batch sum then moves by 2C with chance q, as for Poisson."""
    steps = 12565
    attack = SampledGaussianEvent(
        sampling="poisson", rows=24059, batch_size=100, noise_multiplier=2.1 / 2, count=steps
    )
    attained = epsilon_of([attack], delta=1.52e-5)
    claimed = PAPER.epsilon(View("pld", "uniform", "replace-one"), steps=steps)
    assert attained == pytest.approx(2.297, rel=0.01)
    assert attained < claimed


def test_the_central_limit_really_understates():
    run = Run(rows=24059, batch_size=100, noise_multiplier=0.5, delta=1.52e-5)
    exact = View("pld", "poisson", "zero-out")
    limit = View("gdp-clt", "poisson", "zero-out")
    steps = run.steps(limit, epsilon=1.0)
    assert run.epsilon(exact, steps=steps) > 3 * run.epsilon(limit, steps=steps)
    assert ACCOUNTANTS["gdp-clt"].kind == "estimate"


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_name_a_kind_and_a_reading(accountant):
    assert ACCOUNTANTS[accountant].name == accountant
    assert ACCOUNTANTS[accountant].kind in ("bound", "estimate")
    assert len(ACCOUNTANTS[accountant].reading) < 40


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_no_events_cost_nothing(accountant):
    assert epsilon_of([], delta=1e-6, accountant=accountant) == 0.0
    assert delta_of([], epsilon=0.0, accountant=accountant) == 0.0


@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp", "gdp", "gdp-clt"])
def test_public_releases_cost_nothing(accountant):
    """The number of rows is public when rows are only blanked or replaced."""
    event = GaussianEvent(noise=1.0, sensitivity=Sensitivity(0.0, 1.0, 0.0))
    assert epsilon_of([event], delta=1e-6, accountant=accountant) == pytest.approx(0.0, abs=1e-9)
    assert epsilon_of([event], delta=1e-6, neighbours="add-remove", accountant=accountant) > 1


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta": 1e-6, "accountant": "guess"}, "accountant"),
        ({"delta": 1e-13}, "delta"),
    ],
)
def test_bad_questions_are_refused_in_one_line(arguments, parameter):
    event = ZCDPEvent(rho=Sensitivity.uniformly(0.1))
    with pytest.raises(InputError, match=parameter) as refusal:
        epsilon_of([event], **arguments)
    assert "\n" not in str(refusal.value)


def test_a_refusal_names_who_can_price_it():
    with pytest.raises(InputError, match="pld"):
        epsilon_of(PAPER.events("poisson", 1), delta=1e-5, accountant="zcdp")
    with pytest.raises(InputError, match="replace-one"):
        epsilon_of(PAPER.events("uniform", 1), delta=1e-5, neighbours="add-remove")


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_the_whole_table(epsilon):
    expected = {
        0.5: (4744, 1355, 461),
        1.0: (16968, 4790, 1746),
        2.0: (59452, 16679, 6198),
        4.0: (201687, 56390, 21077),
    }[epsilon]
    views = (("poisson", "zero-out"), ("poisson", "replace-one"), ("uniform", "replace-one"))
    for steps, (sampling, neighbours) in zip(expected, views, strict=True):
        found = calibrate_steps(
            Budget(epsilon, 1.52e-5, neighbours), lambda t, s=sampling: PAPER.events(s, t)
        )
        assert found == pytest.approx(steps, rel=0.005)
