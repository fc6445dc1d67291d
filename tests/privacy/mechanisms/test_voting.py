"""Votes, drawn for real: answers come with the chances that their event states.

All bounds are exact binomial ones. False alarms: at most one in a million per test.
"""

import dataclasses
import math

import pytest
from scipy.stats import beta

from dpflows.privacy.accounting import privacy_profiles
from dpflows.privacy.events import VOTE_LAWS, Sensitivity
from dpflows.privacy.mechanisms import noisy_vote, selection
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy, Sampler, sampler_for

FALSE_ALARM = 1e-6
VOTERS = 10
#: How often each epsilon is tried: enough to miss a planted bug once in ten thousand times.
RUNS = {1.0: 5000, 1.5: 2500, 2.0: 2400}
#: A tie, which is where wrong noise shows best.
MIDDLE = 5
OS = Entropy.from_os()

every_law = pytest.mark.parametrize("law", VOTE_LAWS)
every_epsilon = pytest.mark.parametrize(
    "epsilon", [2.0, *(pytest.param(epsilon, marks=pytest.mark.long) for epsilon in (1.0, 1.5))]
)


@dataclasses.dataclass(frozen=True)
class Quieter(Sampler):
    """Exact noise whose scale is multiplied by ``factor``: the planted bug."""

    factor: float
    exact: Sampler = dataclasses.field(default_factory=lambda: sampler_for(OS, ""))

    def discrete_laplace(self, values, scale: float) -> list[int]:
        return self.exact.discrete_laplace(values, scale * self.factor)

    def gaussian(self, values, noise: float, *, lattice=None) -> list[float]:
        raise NotImplementedError

    def noisy_max(self, scores, scale: float, law) -> int:
        return self.exact.noisy_max(scores, scale * self.factor, law)


@pytest.fixture
def planted(monkeypatch):
    """Half of the noise: the exponential law without its 1/2, the geometric one with 2 epsilon."""
    monkeypatch.setattr(selection, "sampler_for", lambda *_: Quieter(0.5))


def bounds(hits: int, runs: int) -> tuple[float, float]:
    """Exact binomial bounds, each wrong in at most half of the false alarms."""
    lower = beta.ppf(FALSE_ALARM / 2, hits, runs - hits + 1) if hits else 0.0
    upper = beta.isf(FALSE_ALARM / 2, hits + 1, runs - hits) if hits < runs else 1.0
    return float(lower), float(upper)


def refusals(counted: int, law: str, epsilon: float) -> tuple[float, float]:
    """Bounds on the chance of a no."""
    runs = RUNS[epsilon]
    said = (
        noisy_vote(counted, VOTERS, epsilon=epsilon, law=law, entropy=OS).value for _ in range(runs)
    )
    return bounds(runs - sum(said), runs)


def exceeds_claim(law: str, epsilon: float, counts: tuple[int, int]) -> bool:
    """Whether no is surely likelier on the first count than the event's own price allows."""
    event = noisy_vote(0, VOTERS, epsilon=epsilon, law=law, entropy=OS).event
    price = privacy_profiles.vote_epsilon(event, "zero-out")
    assert price <= epsilon * (1 + 1e-12)
    lower, upper = refusals(counts[0], law, epsilon)[0], refusals(counts[1], law, epsilon)[1]
    return lower > math.exp(price) * upper


def yes_votes(parts: set[int]) -> int:
    """How many of ten parts say yes: the first half anyway, and those that a row reaches."""
    return len(set(range(MIDDLE)) | parts)


@every_law
@every_epsilon
def test_odds_on_neighbouring_counts_never_exceed_the_price(law, epsilon):
    """A row that reaches one part turns one vote."""
    assert not exceeds_claim(law, epsilon, (MIDDLE, yes_votes({7})))


@every_law
@every_epsilon
@pytest.mark.usefixtures("planted")
def test_the_test_rejects_half_of_the_noise(law, epsilon):
    """Scores not halved cost 2 epsilon, and so does the geometric law at half its scale."""
    assert exceeds_claim(law, epsilon, (MIDDLE, yes_votes({7})))


@every_law
@every_epsilon
def test_the_test_rejects_a_row_in_two_parts_claimed_as_one(law, epsilon):
    assert exceeds_claim(law, epsilon, (MIDDLE, yes_votes({7, 8})))
    twice = Sensitivity.uniformly(2.0)
    honest = noisy_vote(5, VOTERS, epsilon=epsilon, law=law, sensitivity=twice, entropy=OS).event
    assert privacy_profiles.vote_epsilon(honest, "zero-out") > 1.9 * epsilon


@every_law
@pytest.mark.parametrize(("counted", "voters"), [(2, 4), (2, 5), (1, 2), (4, 6)])
def test_answers_come_with_the_stated_chance(law, counted, voters):
    """Also at a tie, where a fair coin decides."""
    lower, upper, event = frequency(law, counted, voters)
    assert lower <= event.chance(counted) <= upper


@pytest.mark.parametrize("law", ["geometric"])
def test_the_test_rejects_a_tie_that_is_always_lost(law, monkeypatch):
    monkeypatch.setattr(selection, "_coin", lambda *_: 1)
    lower, upper, event = frequency(law, 2, 4)
    assert not lower <= event.chance(2) <= upper


def frequency(law: str, counted: int, voters: int):
    made = [noisy_vote(counted, voters, epsilon=0.9, law=law, entropy=OS) for _ in range(1500)]
    return *bounds(sum(release.value for release in made), len(made)), made[0].event


@every_law
def test_test_seeds_give_both_answers(law):
    said = [
        noisy_vote(5, 10, epsilon=0.1, law=law, entropy=Entropy.insecure(seed))
        for seed in range(60)
    ]
    assert {release.value for release in said} == {True, False}
    assert {release.stamp for release in said} == {TEST_SEED_STAMP}
