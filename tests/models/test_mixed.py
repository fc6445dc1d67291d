"""The density of mixed rows adds up to one, and rows are drawn from it."""

import itertools

import jax.random as jr
import numpy as np
import pytest
from scipy.stats import chisquare

from dpflows.errors import InputError
from dpflows.models import mixed
from dpflows.models.autoregressive import cell_network
from dpflows.models.mixed import BinShares, MixedDensity
from models.test_cells import moved

FALSE_ALARM = 1e-6
#: A label of three, of which two share a merged bin; an interval of length 8, one of 2 and a spike.
LABELS = BinShares(np.array([0, 1, 1]), np.array([1.0, 0.3, 0.7]), np.zeros(3))
NUMBERS = BinShares(np.array([0, 0, 1]), np.array([0.4, 0.6, 1.0]), np.log([8.0, 2.0, 1.0]))
ORDER = (1, 0)


@pytest.fixture(scope="module")
def density():
    network = moved(cell_network((2, 2), width=8, depth=1, key=jr.key(0)))
    return MixedDensity(network, (NUMBERS, LABELS), ORDER)


def bins():
    return np.array(list(itertools.product(range(3), range(3))), dtype=float)


def masses(density):
    """What each pair of bins weighs: its density times what it holds."""
    volume = np.array([8.0, 2.0, 1.0])[bins()[:, 1].astype(int)]
    return np.exp(density.log_prob(bins() + 0.5)) * volume


def test_all_that_there_is_weighs_one(density):
    assert masses(density).sum() == pytest.approx(1, abs=1e-5)


def test_the_place_inside_a_bin_does_not_matter(density):
    near, far = (density.log_prob(bins() + place) for place in (0.0, 0.99))
    np.testing.assert_allclose(near, far)


def test_what_lies_outside_has_no_density(density):
    points = np.array([[-1.0, 0.5], [0.5, -1.0], [3.2, 0.5], [0.5, 0.5]])
    assert np.isneginf(density.log_prob(points)).tolist() == [True, True, True, False]


def surprise(density, points):
    codes = np.floor(points).astype(int)
    observed = np.bincount(codes[:, 0] * 3 + codes[:, 1], minlength=9)
    expected = masses(density)
    return chisquare(observed, expected / expected.sum() * len(points)).pvalue


def test_rows_follow_the_density(density):
    """False alarms: one in a million."""
    assert surprise(density, density.sample(jr.key(1), 40_000)) > FALSE_ALARM


def test_the_test_rejects_bins_drawn_evenly(density, monkeypatch):
    def evenly(self, groups, uniform):
        order = np.argsort(self.groups, kind="stable")
        first, count = np.searchsorted(self.groups[order], groups), np.bincount(self.groups)[groups]
        return order[first + (uniform * count).astype(int)]

    monkeypatch.setattr(mixed.BinShares, "draw", evenly)
    assert surprise(density, density.sample(jr.key(1), 40_000)) < FALSE_ALARM


def test_places_are_spread_evenly_inside_bins(density):
    """Six standard errors of a mean of uniforms."""
    places = np.mod(density.sample(jr.key(1), 40_000), 1)
    assert abs(places.mean(axis=0) - 0.5).max() < 6 * np.sqrt(1 / 12 / 40_000)


@pytest.mark.parametrize("n", [0, 1, 17, mixed.CHUNK + 3])
def test_chunks_change_nothing(density, n):
    points = density.sample(jr.key(2), n)
    assert points.shape == (n, 2)
    assert density.log_prob(points).shape == (n,)


def test_given_entries_stay_and_are_weighted(density):
    given = np.tile([-1.0, 2.25], (30_000, 1))
    points, logs = density.sample_given(jr.key(3), given)
    assert (points[:, 1] == 2.25).all()
    weights, at = np.exp(logs), bins()[:, 1] == 2
    # numbers come first in the network's order, so every row has the chance of its spike
    np.testing.assert_allclose(weights, masses(density)[at].sum(), rtol=1e-4)
    shares = np.bincount(np.floor(points[:, 0]).astype(int), minlength=3) / len(points)
    expected = masses(density)[at] / masses(density)[at].sum()
    np.testing.assert_allclose(shares, expected, atol=6 * 0.5 / np.sqrt(len(points)))


@pytest.mark.parametrize(
    "parts",
    [
        (np.array([0, 1]), np.array([1.0, 0.5]), np.zeros(2)),
        (np.array([0, 0]), np.array([1.5, -0.5]), np.zeros(2)),
        (np.array([0, 2]), np.array([1.0, 1.0]), np.zeros(2)),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(parts):
    with pytest.raises(InputError):
        BinShares(*parts)


def test_a_density_needs_the_merged_bins_of_its_network():
    network = cell_network((2, 3), width=4, depth=1, key=jr.key(0))
    with pytest.raises(InputError, match="merged bins"):
        MixedDensity(network, (NUMBERS, LABELS), ORDER)
    with pytest.raises(InputError, match="order"):
        MixedDensity(
            cell_network((2, 2), width=4, depth=1, key=jr.key(0)), (NUMBERS, LABELS), (0, 0)
        )
