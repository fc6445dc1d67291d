"""The private kernel density: smooth, priced by its norm, and only for few columns."""

import numpy as np
import pytest

from dpflows import DPKernelDensity, InputError
from dpflows.estimators.kernel import bandwidth_rule

RING = np.random.default_rng(7).uniform(0, 2 * np.pi, size=8000)
ROWS = np.stack([np.cos(RING), np.sin(RING)], axis=1)


def make(**changes):
    settings = {"epsilon": 1.0, "delta": 1e-5, "bounds": (-2, 2), "insecure_test_seed": 4}
    return DPKernelDensity(**(settings | changes))


def test_a_ring_stays_a_ring():
    radius = np.linalg.norm(make().fit(ROWS).sample(3000), axis=1)
    assert np.median(radius) == pytest.approx(1.0, abs=0.05)
    assert ((radius > 0.7) & (radius < 1.3)).mean() > 0.9


def test_without_privacy_it_is_the_kernel_density():
    """Against a direct sum of kernels at a few rows, but for the background and the cells."""
    fit = make(epsilon=float("inf"), bandwidth=0.05).fit(ROWS)
    squares = ((ROWS[:20, None] - ROWS) ** 2).sum(axis=2) / (0.05 * 4) ** 2
    direct = np.log(np.exp(-squares / 2).mean(axis=1) / (2 * np.pi * (0.05 * 4) ** 2))
    np.testing.assert_allclose(fit.score_samples(ROWS[:20]), direct, atol=0.06)


def test_one_column_works():
    fit = make().fit(ROWS[:, :1])
    assert fit.parameters_["masses"].ndim == 1
    assert fit.sample(4).shape == (4, 1)


def test_the_price_does_not_depend_on_the_grid():
    coarse, fine = (make(bandwidth=h).plan(500, 2) for h in (0.2, 0.02))
    assert coarse.events == fine.events
    assert coarse.details["points"] < fine.details["points"]


@pytest.mark.parametrize("columns", [1, 2])
def test_the_bandwidth_follows_rows_and_noise(columns):
    here = bandwidth_rule(rows=1000, columns=columns, noise=4.0)
    assert bandwidth_rule(rows=100_000, columns=columns, noise=4.0) < here
    assert bandwidth_rule(rows=1000, columns=columns, noise=40.0) > here
    assert bandwidth_rule(rows=2, columns=columns, noise=1e6) == 0.25
    assert bandwidth_rule(rows=10**15, columns=columns, noise=1e-3) == 1 / 256


def test_more_columns_are_refused_with_a_way_out():
    with pytest.raises(InputError, match="at most 2, got 3.*DPFlow or DPGaussianMixture"):
        make().fit(np.zeros((10, 3)))


@pytest.mark.parametrize("bandwidth", [0.0, 0.001, 0.3, float("nan")])
def test_impossible_bandwidths_are_refused(bandwidth):
    with pytest.raises(InputError, match="bandwidth must be a share"):
        make(bandwidth=bandwidth).plan(100, 2)
