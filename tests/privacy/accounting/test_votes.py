"""A vote's chances follow its law, and its price is that of the worst pair of neighbours."""

import itertools
import math

import numpy as np
import pytest

from dpflows.privacy.accounting import delta_of, epsilon_of, privacy_profiles
from dpflows.privacy.accounting.rdp import ORDERS
from dpflows.privacy.events import NEIGHBOURS, VOTE_LAWS, PureEvent, Sensitivity, VoteEvent

EPSILONS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0)
every_law = pytest.mark.parametrize("law", VOTE_LAWS)


def vote(law: str, epsilon: float, voters: int = 10, *, turned: float = 1.0, count: int = 1):
    return VoteEvent(
        voters=voters,
        epsilon=epsilon,
        law=law,
        sensitivity=Sensitivity.uniformly(turned),
        count=count,
    )


def bernoulli(event: VoteEvent, counted: int):
    return np.array([event.chance(counted), event.chance(event.voters - counted)])


def neighbouring(voters: int, turned: int):
    """All ordered pairs of vote counts that one person can turn into each other."""
    both = itertools.product(range(voters + 1), repeat=2)
    return [(one, two) for one, two in both if 0 < abs(one - two) <= turned]


@pytest.mark.parametrize("voters", [1, 2, 7, 10])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_chances_follow_the_laws(voters, epsilon):
    """Against the logistic function, and against a sum over all values of the noise."""
    noise = np.arange(-10_000, 10_001)
    weights = math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(noise))
    for counted in range(voters + 1):
        margin = counted - voters / 2
        logistic = 1 / (1 + math.exp(-epsilon * margin))
        summed = weights[margin + noise > 0].sum() + weights[margin + noise == 0].sum() / 2
        assert vote("exponential", epsilon, voters).chance(counted) == pytest.approx(logistic)
        assert vote("geometric", epsilon, voters).chance(counted) == pytest.approx(summed)


@every_law
def test_log_chances_stay_exact_where_chances_vanish(law):
    event = vote(law, 40.0, 100)
    assert event.chance(0) == 0.0
    expected = -40.0 * 50 - (math.log(2) if law == "geometric" else 0.0)
    assert event.log_chance(0) == pytest.approx(expected)
    assert privacy_profiles.vote_epsilon(event, "zero-out") <= 40.0 * (1 + 1e-12)
    assert np.isfinite(privacy_profiles.vote_renyi(event, "zero-out", ORDERS)).all()


@pytest.mark.parametrize("voters", range(2, 31))
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_geometric_errs_less_than_exponential_at_every_margin(voters, epsilon):
    geometric, exponential = (
        vote("geometric", epsilon, voters),
        vote("exponential", epsilon, voters),
    )
    for fewer in range((voters + 1) // 2):
        margin = voters / 2 - fewer
        assert geometric.chance(fewer) < exponential.chance(fewer)
        assert exponential.chance(fewer) == pytest.approx(1 / (1 + math.exp(epsilon * margin)))
        half = 2 if voters % 2 == 0 else 2 * math.cosh(epsilon / 2)
        assert geometric.chance(fewer) == pytest.approx(math.exp(-epsilon * margin) / half)
    if voters % 2 == 0:
        assert geometric.chance(voters // 2) == exponential.chance(voters // 2) == 0.5


def test_published_errors():
    """Margin 2.5 at epsilon 1: wrong with chance 0.0759 and 0.0364."""
    assert vote("exponential", 1.0, 9).chance(2) == pytest.approx(0.0759, abs=5e-5)
    assert vote("geometric", 1.0, 9).chance(2) == pytest.approx(0.0364, abs=5e-5)


@pytest.mark.parametrize("voters", [2, 3, 10, 25])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_answer_costs_what_the_closed_form_says(voters, epsilon):
    shrink = (1 + math.exp(-epsilon * (voters / 2 - 1))) / (1 + math.exp(-epsilon * voters / 2))
    exact = epsilon - math.log(shrink)
    assert privacy_profiles.vote_epsilon(
        vote("exponential", epsilon, voters), "zero-out"
    ) == pytest.approx(exact, rel=1e-12)
    geometric = privacy_profiles.vote_epsilon(vote("geometric", epsilon, voters), "zero-out")
    assert 0.5 * epsilon < geometric <= epsilon * (1 + 1e-12)


@every_law
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_the_default_accountant_finds_the_closed_form(law, neighbours):
    event = vote(law, 0.5)
    claimed = epsilon_of([event], delta=1e-10, neighbours=neighbours)
    assert claimed == pytest.approx(privacy_profiles.vote_epsilon(event, neighbours), abs=1e-4)


@every_law
@pytest.mark.parametrize("voters", [1, 4, 7])
@pytest.mark.parametrize("turned", [1, 2, 9])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
def test_prices_are_those_of_the_worst_pair_among_all(law, voters, turned, epsilon):
    """All pairs up to the sensitivity, in both orders, against the few that are priced."""
    event = vote(law, epsilon, voters, turned=turned)
    grid = np.linspace(-1.1, 1.1, 45) * epsilon * turned
    profile, costs = np.zeros_like(grid), np.zeros_like(ORDERS)
    for one, two in neighbouring(voters, turned):
        p, q = bernoulli(event, one), bernoulli(event, two)
        profile = np.maximum(profile, np.maximum(p - np.exp(grid)[:, None] * q, 0).sum(axis=1))
        powers = np.log(p) + (ORDERS[:, None] - 1) * np.log(p / q)
        costs = np.maximum(costs, np.logaddexp(*powers.T) / (ORDERS - 1))
    np.testing.assert_allclose(
        privacy_profiles.vote_profile(event, "zero-out")(grid), profile, atol=1e-14
    )
    np.testing.assert_allclose(
        privacy_profiles.vote_renyi(event, "zero-out", ORDERS), costs, rtol=1e-9, atol=1e-13
    )


@every_law
def test_the_envelope_is_convex_in_the_odds(law):
    """Else no pair of distributions would have it as its profile."""
    odds = np.linspace(0.01, 4.0, 2000)
    values = privacy_profiles.vote_profile(vote(law, 1.0), "zero-out")(np.log(odds))
    assert np.diff(values, 2).min() > -1e-14


@every_law
@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp"])
@pytest.mark.parametrize("voters", [4, 5])
def test_bounds_are_above_any_three_questions(law, accountant, voters):
    """Three answers, each from its own pair of counts, by direct sums over eight outcomes."""
    event = vote(law, 0.8, voters)
    pairs = [(bernoulli(event, a), bernoulli(event, b)) for a, b in neighbouring(voters, 1)]
    for epsilon in (0.3, 0.9, 1.6):
        reached = 0.0
        for chosen in itertools.combinations_with_replacement(pairs, 3):
            p, q = (np.einsum("i,j,k->ijk", *side) for side in zip(*chosen, strict=True))
            reached = max(reached, float(np.maximum(p - math.exp(epsilon) * q, 0).sum()))
        claimed = delta_of(
            [vote(law, 0.8, voters, count=3)], epsilon=epsilon, accountant=accountant
        )
        assert reached <= claimed
        if accountant == "pld":
            assert claimed <= 1.4 * reached + 1e-3


@every_law
@pytest.mark.parametrize("count", [1, 30, 400])
@pytest.mark.parametrize("voters", [10, 11])
def test_exact_prices_are_below_simpler_ones(law, count, voters):
    """Exact for one answer; for many, the profile of the worst pairs or the Rényi cost.

    No single pair has that profile, so the Rényi cost comes out lower for many answers.
    """
    event = vote(law, 0.1, voters, count=count)

    def cost(accountant: str) -> float:
        return epsilon_of([event], delta=1e-5, accountant=accountant)

    pure = PureEvent(epsilon=Sensitivity.uniformly(0.1), count=count)
    assert cost("pld") <= cost("rdp")
    assert cost("rdp") <= cost("zcdp") * (1 + 1e-9)
    assert cost("pld") <= epsilon_of([pure], delta=1e-5) * (1 + 1e-3)
    assert cost("zcdp") <= epsilon_of([pure], delta=1e-5, accountant="zcdp") * (1 + 1e-9)


def test_many_answers_of_the_exponential_law_cost_about_half():
    """Its log odds move by epsilon, those of the geometric law by nearly twice that."""
    costs = [epsilon_of([vote(law, 0.02, count=400)], delta=1e-5) for law in VOTE_LAWS]
    assert costs[0] == pytest.approx(costs[1] / 2, rel=0.15)


def test_a_row_that_reaches_no_voter_costs_nothing():
    assert epsilon_of([vote("geometric", 1.0, turned=0.0)], delta=1e-6) == 0.0
