"""A mixture as numbers: density, samples and refusals."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dpflows.errors import InputError
from dpflows.models.density import Mixture

MIXTURE = Mixture(
    np.array([0.3, 0.7]),
    np.array([[0.0, 1.0], [-1.0, 0.5]]),
    np.array([[[1.0, 0.0], [0.4, 0.5]], [[0.2, 0.0], [0.0, 0.3]]]),
)


def test_the_density_agrees_with_scipy():
    rows = np.random.default_rng(1).normal(size=(20_000, 2))
    parts = zip(MIXTURE.weights, MIXTURE.means, MIXTURE.factors, strict=True)
    expected = sum(w * multivariate_normal(m, f @ f.T).pdf(rows) for w, m, f in parts)
    assert MIXTURE.log_prob(rows) == pytest.approx(np.log(expected))
    assert MIXTURE.log_prob(np.empty((0, 2))).shape == (0,)


def test_samples_have_the_moments():
    """The bands are over ten standard errors wide: false alarms below one in a million."""
    rows = MIXTURE.sample(200_000, np.random.default_rng(2))
    assert rows.mean(axis=0) == pytest.approx(MIXTURE.weights @ MIXTURE.means, abs=0.02)
    assert rows.mean(axis=0) != pytest.approx(MIXTURE.means[0], abs=0.02)


def test_a_change_of_units_keeps_the_density():
    scale, shift = np.array([2.0, 0.1]), np.array([3.0, -1.0])
    rows = np.random.default_rng(3).normal(size=(50, 2))
    moved = MIXTURE.scaled(scale, shift).log_prob(rows * scale + shift)
    assert moved == pytest.approx(MIXTURE.log_prob(rows) - np.log(scale).sum())


@pytest.mark.parametrize(
    ("weights", "means", "factors"),
    [
        (np.full(1, 0.5), np.zeros((1, 1)), np.ones((1, 1, 1))),
        (np.array([1.5, -0.5]), np.zeros((2, 1)), np.ones((2, 1, 1))),
        (np.ones(1), np.zeros((1, 1)), -np.ones((1, 1, 1))),
    ],
)
def test_impossible_mixtures_are_refused(weights, means, factors):
    with pytest.raises(InputError, match="must"):
        Mixture(weights, means, factors)
