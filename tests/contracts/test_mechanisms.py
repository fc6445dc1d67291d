"""Every mechanism: the odds of what it releases on neighbouring tables.

Odds are estimated with exact (OpenDP) noise. Each statistical test has exact binomial
confidence bounds with a false-alarm rate of one in a million, and a twin in which the
noise is 30% too small and which it must reject. The sparse vector, whose bugs are of many
kinds, has a suite of its own in tests/privacy/mechanisms/test_sparse_variants.py.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from contracts.trials import (
    AXIS,
    CROWD,
    EDGES,
    GAUSSIAN_DELTA,
    OS,
    PLACES,
    RARE,
    ROW,
    SPREAD,
    TRIALS,
    UNIT,
    UNIT_BOX,
    WEIGHTS,
    exceeds_claim,
)
from dpflows.privacy.accounting import delta_of, epsilon_of, privacy_profiles
from dpflows.privacy.events import Event, GaussianEvent
from dpflows.privacy.mechanisms import (
    SparseVector,
    clipped_moments,
    exponential_mechanism,
    noisy_covariance,
    noisy_distributions,
    noisy_grid,
    noisy_histogram,
    noisy_kernel_sum,
    noisy_marginals,
    noisy_vote,
    private_quantile,
    report_noisy_max,
    selection,
    statistics,
)
from dpflows.privacy.randomness import Sampler, sampler_for

MODULES = (
    statistics,
    selection,
    statistics,
    statistics,
    statistics,
    statistics,
    statistics,
    statistics,
    selection,
    selection,
    statistics,
    selection,
)


class Buffered(Sampler):
    """OpenDP's noise, drawn in large batches, with its scale multiplied by ``factor``."""

    def __init__(self, factor: float) -> None:
        self._exact, self._factor, self._kept = sampler_for(OS, ""), factor, {}

    def discrete_laplace(self, values, scale: float) -> list[int]:
        draw = partial(self._exact.discrete_laplace, scale=scale * self._factor)
        return [value + self._next(scale, draw) for value in values]

    def gaussian(self, values, noise: float, *, lattice=None) -> list[float]:
        draw = partial(self._exact.gaussian, noise=noise * self._factor, lattice=lattice)
        return [value + self._next((noise, lattice), draw) for value in values]

    def noisy_max(self, scores, scale: float, law) -> int:
        return self._exact.noisy_max(scores, scale * self._factor, law)

    def _next(self, key, draw: Callable[[list[int]], list]) -> float:
        kept = self._kept.setdefault(key, [])
        if not kept:
            kept.extend(draw([0] * 4000))
        return kept.pop()


@pytest.fixture
def noise(monkeypatch):
    """Make all mechanisms draw from OpenDP in batches, with a planted factor on the scale."""

    def plant(factor: float) -> None:
        sampler = Buffered(factor)
        for module in MODULES:
            if hasattr(module, "sampler_for"):
                monkeypatch.setattr(module, "sampler_for", lambda *_: sampler)
        monkeypatch.setattr(selection, "_DOUBLING_EDGES", np.array([0.0, 2.0, 4.0, 8.0]))
        for name, few in (("BRANCHES", 2), ("LEVELS", 2), ("BINS", 4)):
            monkeypatch.setattr(statistics, name, few)

    return plant


@pytest.mark.parametrize("name", TRIALS)
def test_odds_never_exceed_the_claim(name, noise):
    """False alarms: at most one in a million."""
    noise(1.0)
    assert not exceeds_claim(TRIALS[name])


#: Twins that take long; the mechanisms themselves are tried in every run.
SLOW = ("distributions", "moments", "covariance", "kernels", "quantile", "noisy max")
TWINS = [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in TRIALS]


@pytest.mark.parametrize("name", TWINS)
def test_the_test_rejects_thirty_percent_too_little_noise(name, noise):
    noise(0.7)
    assert exceeds_claim(TRIALS[name])


def test_a_category_of_one_row_shows_with_chance_delta_at_most(noise):
    """False alarms: at most one in a million runs."""
    noise(1.0)
    assert not exceeds_claim(RARE)


def test_the_test_rejects_a_threshold_thirty_percent_too_low(noise, monkeypatch):
    noise(1.0)
    right = statistics.discovery_threshold
    monkeypatch.setattr(
        statistics, "discovery_threshold", lambda scale, delta: 0.7 * right(scale, delta)
    )
    assert exceeds_claim(RARE)


def test_claims_match_the_events():
    """The epsilons tried above are those that the events state."""

    def cost(event: Event, neighbours: str = "zero-out") -> float:
        if isinstance(event, GaussianEvent):
            return delta_of([event], epsilon=0.0, neighbours=neighbours)
        return epsilon_of([event], delta=1e-9, neighbours=neighbours)

    rows, near = np.array([0.2]), pytest.approx
    histogram = noisy_histogram(rows, EDGES, scale=1.0, entropy=OS).event
    assert cost(histogram) == near(1.0, abs=1e-3)
    assert cost(histogram, "replace-one") == near(2.0, abs=1e-3)
    quantile = private_quantile(rows, EDGES, fraction=0.5, scale=0.5, entropy=OS).event
    assert quantile.epsilon.under("zero-out") == 2.0
    choice = exponential_mechanism(np.zeros(2), sensitivity=UNIT, scale=1.0, entropy=OS).event
    assert choice.epsilon.under("replace-one") == 2.0
    report = report_noisy_max(np.zeros(2), sensitivity=UNIT, scale=4 / 3, entropy=OS).event
    assert cost(report) == near(1.5, abs=1e-3)
    found = clipped_moments(
        SPREAD, np.array([-1.0]), np.array([1.0]), noise=math.sqrt(3), entropy=OS
    ).event
    assert cost(found) == near(GAUSSIAN_DELTA, abs=1e-4)
    counts = noisy_distributions(
        SPREAD, np.array([-1.0]), np.array([1.0]), noise=math.sqrt(3), entropy=OS
    ).event
    assert cost(counts) == near(GAUSSIAN_DELTA, abs=1e-4)
    near_row = noisy_covariance(
        CROWD, radius=0.5, noise=WEIGHTS.sensitivity.zero_out, entropy=OS
    ).event
    assert cost(near_row) == near(GAUSSIAN_DELTA, abs=1e-4)
    bumps = noisy_kernel_sum(ROW, *UNIT_BOX, axis=AXIS, noise=1.0, entropy=OS).event
    assert cost(bumps) == near(GAUSSIAN_DELTA, abs=1e-4)
    cells = noisy_marginals(PLACES, (2, 3), noise=math.sqrt(2), entropy=OS).event
    assert cost(cells) == near(GAUSSIAN_DELTA, abs=1e-4)
    grid = noisy_grid(ROW, *UNIT_BOX, bins=2, scale=1.0, entropy=OS).event
    assert cost(grid) == near(1.0, abs=1e-3)
    elected = noisy_vote(26, 51, epsilon=1.0, entropy=OS).event
    assert privacy_profiles.vote_epsilon(elected, "zero-out") == near(1.0)
    logistic = noisy_vote(3, 5, epsilon=1.5, law="exponential", entropy=OS).event
    assert privacy_profiles.vote_width(logistic, "zero-out") == near(1.5)
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=3.0, positives=1, entropy=OS)
    assert cost(stream.event) == near(3.0, abs=1e-3)
