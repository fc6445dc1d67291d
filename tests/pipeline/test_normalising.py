"""Normalisation brings columns to comparable units for what it says it costs."""

import numpy as np
import pytest
from scipy.special import ndtr

from dpflows.errors import InputError
from dpflows.models.normalisers import gaussian_curve
from dpflows.pipeline import initialisation as normalising
from dpflows.pipeline.initialisation import NORMALISATIONS, plan_normalisation
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms import clipped_moments, noisy_distributions
from dpflows.privacy.randomness import Entropy

BUDGET = Budget(1.0, 1e-5)
ROWS = 12_000
RNG = np.random.default_rng(7)
COLUMNS = {
    "narrow": (RNG.normal(0.3, 0.01, ROWS), -1.0, 1.0),
    "skewed": (np.exp(RNG.normal(size=ROWS)), 0.0, 1000.0),
    "spiked": (np.where(RNG.uniform(size=ROWS) < 0.6, 0.0, RNG.exponential(size=ROWS)), 0.0, 50.0),
    "constant": (np.full(ROWS, 0.2), -1.0, 1.0),
    "uniform": (RNG.uniform(size=ROWS), 0.0, 1.0),
    "far": (1.7e9 + RNG.normal(size=ROWS), 1.6e9, 1.8e9),
}
TABLE = np.stack([values for values, _, _ in COLUMNS.values()], axis=1)
LOW, HIGH = (np.array([column[i] for column in COLUMNS.values()]) for i in (1, 2))


def found(name, entropy=None, budget=BUDGET):
    way = plan_normalisation(name, budget, rows=ROWS, columns=TABLE.shape[1])
    return way, way.find(TABLE, LOW, HIGH, entropy=entropy or Entropy.from_os())


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_every_way_is_undone_inside_the_box(name):
    _, normaliser = found(name)
    assert normaliser.undo(normaliser.apply(TABLE)) == pytest.approx(TABLE, rel=1e-9, abs=1e-6)
    corners = normaliser.apply(np.stack([LOW, HIGH]))
    assert np.isfinite(corners).all()
    assert (corners[0] < corners[1]).all()


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_the_events_are_known_before_a_row_is_read(name, monkeypatch):
    released = []

    def recorded(mechanism):
        def call(*args, **options):
            released.append(mechanism(*args, **options))
            return released[-1]

        return call

    monkeypatch.setattr(normalising, "clipped_moments", recorded(clipped_moments))
    monkeypatch.setattr(normalising, "noisy_distributions", recorded(noisy_distributions))
    way, _ = found(name)
    assert tuple(release.event for release in released) == way.events


@pytest.mark.parametrize("name", ["histograms", "moments"])
def test_it_takes_its_share_of_the_budget(name):
    """A share of 5% of the squared budget is about a fifth of epsilon by itself."""
    way, _ = found(name)
    assert epsilon_of(way.events, delta=BUDGET.delta) == pytest.approx(0.19, abs=0.04)


def test_histograms_make_columns_nearly_gaussian():
    _, normaliser = found("histograms", Entropy.insecure(1), Budget(4.0, 1e-5))
    rows = normaliser.apply(TABLE)
    spread = dict(zip(COLUMNS, rows.std(axis=0), strict=True))
    assert 0.7 < spread["skewed"] < 1.3
    assert 0.7 < spread["uniform"] < 1.3
    assert np.abs(rows).max() < 15


def test_a_curve_follows_the_normal_quantiles():
    edges = np.linspace(-8, 8, 4097)
    curve = gaussian_curve(edges, 1e5 * (ndtr(edges) - ndtr(-8)), parts=32)
    x = np.linspace(-2, 2, 41)
    assert curve.value(x) == pytest.approx(x, abs=0.05)


def test_noise_that_swallows_a_column_leaves_a_straight_map():
    way = plan_normalisation("histograms", Budget(1e-3, 1e-5), rows=50, columns=1)
    normaliser = way.find(
        np.zeros((50, 1)), np.array([-1.0]), np.array([1.0]), entropy=Entropy.from_os()
    )
    assert np.isfinite(normaliser.apply(np.linspace(-1, 1, 9)[:, None])).all()


@pytest.mark.parametrize("name", ["histograms", "moments"])
def test_a_row_that_is_not_a_number_counts_nowhere(name):
    way = plan_normalisation(name, BUDGET, rows=ROWS, columns=TABLE.shape[1])
    blank = np.vstack([TABLE, np.full(TABLE.shape[1], np.nan)])
    one, other = (
        way.find(rows, LOW, HIGH, entropy=Entropy.insecure(3)).arrays() for rows in (TABLE, blank)
    )
    for first, second in zip(one.values(), other.values(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_an_unknown_way_is_refused():
    with pytest.raises(InputError, match="normalisation must be one of"):
        plan_normalisation("guess", BUDGET, rows=10, columns=1)
