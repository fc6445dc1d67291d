"""Every mechanism: the odds of what it releases on neighbouring tables.

Odds are estimated with exact (OpenDP) noise. Each statistical test has exact binomial
confidence bounds with a false-alarm rate of one in a million (sparse vector: one in ten
thousand), and a twin in which the noise is 30% too small and which it must reject.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta

from dpflows.privacy.accounting import delta_of, epsilon_of
from dpflows.privacy.events import (
    Event,
    GaussianEvent,
    Sensitivity,
)
from dpflows.privacy.mechanisms import (
    SparseVector,
    categories,
    choosing,
    clipped_moments,
    counting,
    discover_categories,
    exponential_mechanism,
    moments,
    noisy_count,
    noisy_distributions,
    noisy_histogram,
    noisy_vote,
    private_bounds,
    private_quantile,
    quantiles,
    report_noisy_max,
    sparse,
    trees,
    voting,
)
from dpflows.privacy.mechanisms.samplers import Sampler, sampler_for
from dpflows.privacy.randomness import Entropy

FALSE_ALARM = 1e-6
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)
EDGES = np.array([-1.0, 0.0, 0.5, 1.0])
MODULES = (categories, choosing, counting, moments, quantiles, sparse, trees, voting)


NULL = math.nan


class Buffered(Sampler):
    """OpenDP's noise, drawn in large batches, with its scale multiplied by ``factor``."""

    def __init__(self, factor: float) -> None:
        self._exact, self._factor, self._kept = sampler_for(OS, ""), factor, {}

    def discrete_laplace(self, values, scale: float) -> list[int]:
        return [value + self._draw(scale) for value in values]

    def gaussian(self, values, noise: float, *, lattice=None) -> list[float]:
        return self._exact.gaussian(values, noise * self._factor, lattice=lattice)

    def noisy_max(self, scores, scale: float, law) -> int:
        return self._exact.noisy_max(scores, scale * self._factor, law)

    def _draw(self, scale: float) -> int:
        kept = self._kept.setdefault(scale, [])
        if not kept:
            kept.extend(self._exact.discrete_laplace([0] * 4000, scale * self._factor))
        return kept.pop()


@pytest.fixture
def noise(monkeypatch):
    """Make all mechanisms draw from OpenDP in batches, with a planted factor on the scale."""

    def plant(factor: float) -> None:
        sampler = Buffered(factor)
        for module in MODULES:
            if hasattr(module, "sampler_for"):
                monkeypatch.setattr(module, "sampler_for", lambda *_: sampler)
        monkeypatch.setattr(quantiles, "_DOUBLING_EDGES", np.array([0.0, 2.0, 4.0, 8.0]))
        for name, few in (("BRANCHES", 2), ("LEVELS", 2), ("BINS", 4)):
            monkeypatch.setattr(trees, name, few)

    return plant


@dataclasses.dataclass(frozen=True)
class Trial:
    """An outcome that tells two neighbouring tables apart as well as any."""

    outcome: Callable[[int], bool]
    epsilon: float
    delta: float = 0.0
    odds: bool = False
    runs: int = 4000
    alarm: float = FALSE_ALARM


def in_bin(rows: list[float]) -> bool:
    return bool(noisy_histogram(np.array(rows), EDGES, scale=1.0, entropy=OS).value[1] >= 1)


def in_first_not_second(rows: list[float]) -> bool:
    first, second = noisy_histogram(np.array(rows), EDGES, scale=1.0, entropy=OS).value[1:]
    return bool(first >= 1 and second <= 0)


def counted(rows: list[float]) -> bool:
    return noisy_count(np.array(rows), scale=1.0, entropy=OS).value >= 1


def bounded(rows: list[float]) -> bool:
    """Over the three bins that the fixture leaves; a noisy count of two makes one visible."""
    return private_bounds(np.array(rows), scale=1.0, miss=0.5, entropy=OS).value == (2.0, 4.0)


def upper_median(rows: list[float]) -> bool:
    candidates = np.array([0.0, 1.0])
    release = private_quantile(np.array(rows), candidates, fraction=0.5, scale=0.5, entropy=OS)
    return release.value == 1.0


def chosen(scores: list[float]) -> bool:
    release = exponential_mechanism(np.array(scores), sensitivity=UNIT, scale=1.0, entropy=OS)
    return release.value == 0


def reported(scores: list[float]) -> bool:
    release = report_noisy_max(np.array(scores), sensitivity=UNIT, scale=4 / 3, entropy=OS)
    return release.value == 0


def shown(rows: list[str], delta: float) -> bool:
    return "a" in discover_categories(rows, scale=1.0, delta=delta, entropy=OS).value


def heavy_moments(rows: np.ndarray) -> bool:
    """The noisy total of (1, x, x^2), read back from the moments; the midpoint decides."""
    found = clipped_moments(
        rows, np.array([-1.0]), np.array([1.0]), noise=math.sqrt(3), entropy=OS
    ).value
    mean, square = found.mean[0], found.deviation[0] ** 2 + found.mean[0] ** 2
    return bool(found.count * (1 + mean + square) > 400 * 1.25 + 1.5)


def crowded(rows: np.ndarray) -> bool:
    """The noisy counts of the first bin and of the first half; the midpoint decides.

    Reconciled counts lose nothing about the noisy ones, so no other test is stronger.
    """
    below = noisy_distributions(
        rows, np.array([-1.0]), np.array([1.0]), noise=math.sqrt(2), entropy=OS
    ).value[0]
    return bool(below[1] + below[2] > 200 + 1)


def answers(first: float, last: float) -> bool:
    """Six times no and then yes: the threshold's noise must not be spent for free."""
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=3.0, positives=1, entropy=OS)
    return not any(stream.exceeds(first) for _ in range(6)) and stream.exceeds(last)


SPREAD = np.concatenate([np.full(200, -0.5), np.full(200, 0.5)])[:, None]
THRESHOLD = categories.discovery_threshold(1.0, 1e-6)

TRIALS = {
    "count": Trial(lambda side: counted([[1.0], []][side]), 1.0),
    "histogram": Trial(lambda side: in_bin([[0.2], [NULL]][side]), 1.0),
    "histogram, replaced": Trial(lambda side: in_first_not_second([[0.2], [0.7]][side]), 2.0),
    "bounds": Trial(lambda side: bounded([[3.0, 3.0], [3.0, NULL]][side]), 1.0),
    "quantile": Trial(
        lambda side: upper_median([[0.0, 2.0], [0.0]][side]), 2.0, odds=True, runs=2500
    ),
    "exponential": Trial(
        lambda side: chosen([[1.0, 0.0], [0.0, 1.0]][side]), 2.0, odds=True, runs=2500
    ),
    "noisy max": Trial(lambda side: reported([[1.0, 1.0], [0.0, 2.0]][side]), 1.5),
    "vote": Trial(lambda side: noisy_vote([26, 25][side], 51, epsilon=1.0, entropy=OS).value, 1.0),
    "categories": Trial(lambda side: shown(["a"] * (THRESHOLD - side), 1e-6), 1.0),
    "moments": Trial(
        lambda side: heavy_moments([np.vstack([SPREAD, [[1.0]]]), SPREAD][side]),
        0.0,
        # Two unit Gaussians at distance one.
        delta=math.erf(0.5 / math.sqrt(2)),
        runs=2500,
    ),
    "distributions": Trial(
        lambda side: crowded([np.vstack([SPREAD, [[-0.9]]]), SPREAD][side]),
        0.0,
        delta=math.erf(0.5 / math.sqrt(2)),
        runs=2500,
    ),
    "sparse vector": Trial(
        lambda side: answers(*[(-0.5, 0.5), (0.5, -0.5)][side]), 3.0, runs=40_000, alarm=1e-4
    ),
}


def confidence(hits: int, runs: int, alarm: float = FALSE_ALARM) -> tuple[float, float]:
    """Exact two-sided binomial bounds; each fails in at most half of the false alarms."""
    tail = alarm / 2
    lower = beta.ppf(tail, hits, runs - hits + 1) if hits else 0.0
    upper = beta.isf(tail, hits + 1, runs - hits) if hits < runs else 1.0
    return float(lower), float(upper)


def exceeds_claim(trial: Trial) -> bool:
    """Whether the outcome is surely likelier on one table than the claim allows."""
    hits = [sum(trial.outcome(side) for _ in range(trial.runs)) for side in (0, 1)]
    lower = confidence(hits[0], trial.runs, trial.alarm)[0]
    upper = confidence(hits[1], trial.runs, trial.alarm)[1]
    if trial.odds:
        lower, upper = lower / (1 - lower), upper / (1 - upper)
    return lower > math.exp(trial.epsilon) * upper + trial.delta


@pytest.mark.parametrize("name", TRIALS)
def test_odds_never_exceed_the_claim(name, noise):
    """False alarms: at most ``trial.alarm``, one in a million unless said otherwise."""
    noise(1.0)
    trial = TRIALS[name]
    assert not exceeds_claim(dataclasses.replace(trial, runs=min(trial.runs, 8000)))


@pytest.mark.parametrize("name", TRIALS)
def test_the_test_rejects_thirty_percent_too_little_noise(name, noise):
    noise(0.7)
    assert exceeds_claim(TRIALS[name])


RARE = Trial(lambda side: shown([["a"], [None]][side], 0.05), 0.0, delta=0.05)


def test_a_category_of_one_row_shows_with_chance_delta_at_most(noise):
    """False alarms: at most one in a million runs."""
    noise(1.0)
    assert not exceeds_claim(RARE)


def test_the_test_rejects_a_threshold_thirty_percent_too_low(noise, monkeypatch):
    noise(1.0)
    right = categories.discovery_threshold
    monkeypatch.setattr(
        categories, "discovery_threshold", lambda scale, delta: 0.7 * right(scale, delta)
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
    assert cost(found) == near(TRIALS["moments"].delta, abs=1e-4)
    counts = noisy_distributions(
        SPREAD, np.array([-1.0]), np.array([1.0]), noise=math.sqrt(3), entropy=OS
    ).event
    assert cost(counts) == near(TRIALS["distributions"].delta, abs=1e-4)
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=3.0, positives=1, entropy=OS)
    assert cost(stream.event) == near(3.0, abs=1e-3)
