"""Seeded noise follows the law of exact noise."""

from collections.abc import Callable

import pytest
from scipy.stats import beta

from dpflows.privacy.events import Sensitivity
from dpflows.privacy.randomness import Entropy, Sampler, sampler_for

FALSE_ALARM = 1e-6
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)


def confidence(hits: int, runs: int, alarm: float = FALSE_ALARM) -> tuple[float, float]:
    """Exact two-sided binomial bounds; each fails in at most half of the false alarms."""
    tail = alarm / 2
    lower = beta.ppf(tail, hits, runs - hits + 1) if hits else 0.0
    upper = beta.isf(tail, hits + 1, runs - hits) if hits < runs else 1.0
    return float(lower), float(upper)


@pytest.mark.parametrize("law", ["laplace", "gaussian", "gumbel", "exponential"])
def test_seeded_noise_follows_the_same_law_as_exact_noise(law):
    """Frequencies of one outcome; false alarms: at most four in a million."""

    def frequency(sampler: Callable[[int], Sampler]) -> tuple[float, float]:
        def outcome(run: int) -> bool:
            if law == "laplace":
                return sampler(run).discrete_laplace([0], 2.0)[0] >= 1
            if law == "gaussian":
                return sampler(run).gaussian([0.0], 2.0)[0] >= 1.0
            return sampler(run).noisy_max([0.0, 1.0], 2.0, law) == 0

        return confidence(sum(outcome(run) for run in range(2500)), 2500)

    exact = frequency(lambda run: sampler_for(OS, ""))
    seeded = frequency(lambda run: sampler_for(Entropy.insecure(run), "x"))
    assert exact[0] <= seeded[1]
    assert seeded[0] <= exact[1]
