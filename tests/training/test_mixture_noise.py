"""The noise of a release is the noise its event claims."""

import numpy as np
import pytest
from scipy import stats

from dpflows.privacy.randomness import Entropy
from dpflows.training.mixture_em import noisy

#: A correct noise is rejected with at most this probability, per test.
FALSE_ALARM = 1e-6
COUNT = 60_000


def drawn(noise, entropy):
    return noisy(np.zeros((COUNT // 6, 6)), noise, entropy=entropy, purpose="mixture 0").ravel()


def has_deviation(values, noise):
    """Exact chi-square bounds for the variance, and the law by Kolmogorov and Smirnov."""
    spread = (values**2).sum() / noise**2
    low, high = stats.chi2.ppf(FALSE_ALARM / 4, COUNT), stats.chi2.isf(FALSE_ALARM / 4, COUNT)
    law = stats.kstest(values / noise, "norm").pvalue > FALSE_ALARM / 2
    return low < spread < high and law


@pytest.mark.parametrize("entropy", [Entropy.from_os(), Entropy.insecure(4)])
@pytest.mark.parametrize("noise", [0.7, 43.0])
def test_noise_has_the_claimed_deviation(entropy, noise):
    values = drawn(noise, entropy)
    assert has_deviation(values, noise)
    assert not has_deviation(1.05 * values, noise)
    assert not has_deviation(0.95 * values, noise)


def test_the_sums_are_kept():
    sums = np.array([[1e5, -3.25]])
    assert noisy(sums, 1e-3, entropy=Entropy.from_os(), purpose="") == pytest.approx(sums, abs=0.1)


def test_without_noise_nothing_changes():
    sums = np.ones((2, 3))
    assert (noisy(sums, 0.0, entropy=Entropy.from_os(), purpose="") == sums).all()


def test_releases_draw_different_noise_and_a_seed_repeats_it():
    zeros = np.zeros((2, 3))
    seed = Entropy.insecure(1)
    one, two = (noisy(zeros, 1.0, entropy=seed, purpose=f"mixture {j}") for j in range(2))
    assert (one != two).all()
    assert (noisy(zeros, 1.0, entropy=seed, purpose="mixture 0") == one).all()
