"""One private Gaussian: what it recovers, in how wide a box, and what noise does to it."""

import numpy as np
import pytest

from dpflows import DPGaussian, InputError
from dpflows.estimators.gaussian import shrunk_factor
from dpflows.privacy.mechanisms import SecondMoments

COVARIANCE = np.array([[1.0, 0.8, 0.0], [0.8, 1.0, -0.3], [0.0, -0.3, 0.5]])
ROWS = np.random.default_rng(8).multivariate_normal([1.0, 0.0, -2.0], COVARIANCE, size=8000)


def make(**changes):
    settings = {"epsilon": 1.0, "delta": 1e-5, "bounds": (-10, 10), "insecure_test_seed": 4}
    return DPGaussian(**(settings | changes))


def full_gaussian(rows):
    """The mean log-density of rows under their own Gaussian."""
    return -0.5 * (np.linalg.slogdet(2 * np.pi * np.cov(rows.T))[1] + rows.shape[1])


@pytest.mark.parametrize("width", [10, 1000])
def test_it_is_nearly_the_full_gaussian_however_wide_the_bounds(width):
    fit = make(bounds=(-width, width)).fit(ROWS)
    assert fit.score(ROWS) == pytest.approx(full_gaussian(ROWS), abs=0.06)


def test_without_privacy_it_is_the_full_gaussian():
    fit = make(epsilon=float("inf")).fit(ROWS)
    assert fit.score(ROWS) == pytest.approx(full_gaussian(ROWS), abs=0.02)


def test_correlations_are_kept():
    factor = make().fit(ROWS).parameters_["factor"]
    covariance = factor @ factor.T
    found = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert found == pytest.approx(0.8, abs=0.03)


def test_far_rows_do_not_stretch_it():
    far = np.vstack([ROWS, np.full((20, 3), 10.0)])
    assert make().fit(far).score(ROWS) > full_gaussian(ROWS) - 0.3


def test_noise_is_not_taken_for_correlation():
    """Correlations of the size of the noise vanish, much larger ones hardly move."""
    faint = SecondMoments(np.zeros(2), np.array([[1.0, 0.2], [0.2, 1.0]]), 1e4, doubt=0.4)
    clear = SecondMoments(np.zeros(2), np.array([[1.0, 0.8], [0.8, 1.0]]), 1e4, doubt=0.02)
    assert shrunk_factor(faint)[1, 0] == 0
    assert shrunk_factor(clear)[1, 0] == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("doubt", [1e-9, 0.1, 10.0])
def test_indefinite_covariances_become_definite(doubt):
    noisy = SecondMoments(np.zeros(2), np.array([[-1.0, 3.0], [3.0, 1.0]]), 50.0, doubt)
    factor = shrunk_factor(noisy)
    assert np.isfinite(factor).all()
    assert (np.diagonal(factor) > 0).all()


def test_one_column_is_enough():
    assert make().fit(ROWS[:, :1]).sample(5).shape == (5, 1)


def test_releases_are_known_in_advance():
    purposes = [event.purpose for event in make().plan(100, 3).events]
    assert purposes == [*(f"frame {i}" for i in range(1, 7)), "covariance"]


@pytest.mark.parametrize("radius", [0.0, -1.0, float("inf")])
def test_the_radius_must_make_sense(radius):
    with pytest.raises(InputError, match="radius must be positive"):
        make(radius=radius).plan(100, 2)
