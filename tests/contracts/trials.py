"""For each mechanism, an outcome that tells two neighbouring tables apart as well as any."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy.stats import beta

from dpflows.privacy.events import Sensitivity
from dpflows.privacy.mechanisms import (
    KernelAxis,
    clipped_moments,
    discover_categories,
    exponential_mechanism,
    noisy_count,
    noisy_covariance,
    noisy_distributions,
    noisy_grid,
    noisy_histogram,
    noisy_kernel_sum,
    noisy_marginals,
    noisy_vote,
    private_bounds,
    private_quantile,
    report_noisy_max,
    statistics,
)
from dpflows.privacy.mechanisms.statistics import Weights, weighted_sums
from dpflows.privacy.randomness import Entropy

FALSE_ALARM = 1e-6
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)
EDGES = np.array([-1.0, 0.0, 0.5, 1.0])
NULL = math.nan


@dataclasses.dataclass(frozen=True)
class Trial:
    """An outcome that tells two neighbouring tables apart as well as any."""

    outcome: Callable[[int], bool]
    epsilon: float
    delta: float = 0.0
    odds: bool = False
    runs: int = 4000


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


def elected(votes: int) -> bool:
    return noisy_vote(votes, 5, epsilon=1.5, law="exponential", entropy=OS).value


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


def shows_in_grid(rows: np.ndarray) -> bool:
    return bool(noisy_grid(rows, *UNIT_BOX, bins=2, scale=1.0, entropy=OS).value[1] >= 1)


def shows_in_kernels(rows: np.ndarray) -> bool:
    """The noisy coordinates, read back and projected on those of the row in question."""
    values = noisy_kernel_sum(rows, *UNIT_BOX, axis=AXIS, noise=1.0, entropy=OS).value
    return bool(DIRECTION @ values > DIRECTION @ AXIS.values @ ALONE / 2)


def shows_in_covariance(rows: np.ndarray) -> bool:
    """The noisy sums, read back; a crowd at zero keeps the noisy count away from its floor."""
    found = noisy_covariance(rows, radius=0.5, noise=WEIGHTS.sensitivity.zero_out, entropy=OS).value
    mean = found.mean[0]
    square = found.covariance[0, 0] + mean**2
    sums = found.count * np.array([WEIGHTS.count, WEIGHTS.mean * mean / 0.5, square / 0.5**2])
    return bool((sums - CROWDED) @ LONG > LONG @ LONG / 2)


def shows_in_marginals(places: np.ndarray) -> bool:
    """The noisy counts of the row's cells in both tables; the midpoint decides."""
    first, second = noisy_marginals(places, (2, 3), noise=math.sqrt(2), entropy=OS).value
    return bool(first[1] + second[2] > 1)


UNIT_BOX = (np.zeros(1), np.ones(1))
ROW = np.full((1, 1), 0.5)
NOBODY = np.empty((0, 1))
PLACES = np.array([[1, 2]])
AXIS = KernelAxis(points=9, bandwidth=0.2)
ALONE = AXIS.coordinates(ROW[:, 0])[0]
DIRECTION = ALONE @ np.linalg.pinv(AXIS.values)
WEIGHTS = Weights.best(radius=0.5, columns=1)
CROWD = np.zeros((400, 1))
CROWDED, LONG = weighted_sums(CROWD, radius=0.5), weighted_sums(ROW, radius=0.5)

#: The total variation of two unit Gaussians at distance one.
GAUSSIAN_DELTA = math.erf(0.5 / math.sqrt(2))
SPREAD = np.concatenate([np.full(200, -0.5), np.full(200, 0.5)])[:, None]
THRESHOLD = statistics.discovery_threshold(1.0, 1e-6)

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
    "vote, exponential": Trial(lambda side: elected([3, 2][side]), 1.5, odds=True, runs=2500),
    "categories": Trial(lambda side: shown(["a"] * (THRESHOLD - side), 1e-6), 1.0),
    "moments": Trial(
        lambda side: heavy_moments([np.vstack([SPREAD, [[1.0]]]), SPREAD][side]),
        0.0,
        delta=GAUSSIAN_DELTA,
        runs=2500,
    ),
    "distributions": Trial(
        lambda side: crowded([np.vstack([SPREAD, [[-0.9]]]), SPREAD][side]),
        0.0,
        delta=GAUSSIAN_DELTA,
        runs=2500,
    ),
    "grid": Trial(lambda side: shows_in_grid([ROW, NOBODY][side]), 1.0),
    "covariance": Trial(
        lambda side: shows_in_covariance([np.vstack([CROWD, ROW]), CROWD][side]),
        0.0,
        delta=GAUSSIAN_DELTA,
        runs=2500,
    ),
    "marginals": Trial(
        lambda side: shows_in_marginals([PLACES, np.full((1, 2), -1)][side]),
        0.0,
        delta=GAUSSIAN_DELTA,
        runs=2500,
    ),
    "kernels": Trial(
        lambda side: shows_in_kernels([ROW, NOBODY][side]), 0.0, delta=GAUSSIAN_DELTA, runs=2500
    ),
}


def confidence(hits: int, runs: int) -> tuple[float, float]:
    """Exact two-sided binomial bounds; each fails in at most half of the false alarms."""
    tail = FALSE_ALARM / 2
    lower = beta.ppf(tail, hits, runs - hits + 1) if hits else 0.0
    upper = beta.isf(tail, hits + 1, runs - hits) if hits < runs else 1.0
    return float(lower), float(upper)


def exceeds_claim(trial: Trial) -> bool:
    """Whether the outcome is surely likelier on one table than the claim allows."""
    hits = [sum(trial.outcome(side) for _ in range(trial.runs)) for side in (0, 1)]
    lower = confidence(hits[0], trial.runs)[0]
    upper = confidence(hits[1], trial.runs)[1]
    if trial.odds:
        lower, upper = lower / (1 - lower), upper / (1 - upper)
    return lower > math.exp(trial.epsilon) * upper + trial.delta


RARE = Trial(lambda side: shown([["a"], [None]][side], 0.05), 0.0, delta=0.05)
