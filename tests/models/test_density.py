import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from dpflows.errors import InputError
from dpflows.models import (
    Defended,
    Density,
    Scaling,
    gaussian,
    gaussian_mixture,
    uniform_box,
    wide_gaussian,
)
from dpflows.models.density import CHUNK

SHIFT, SCALE = np.array([100.0, -5.0]), np.array([10.0, 0.1])


def _density(low=None, high=None, weight=0.01):
    model = Defended(gaussian(2), wide_gaussian(2), weight)
    return Density(Scaling(SHIFT, SCALE), model, low, high)


def _truth(x, weight=0.01):
    pdf = [stats.norm(SHIFT, SCALE * sd).pdf(x).prod(axis=1) for sd in (1, 3)]
    return np.log((1 - weight) * pdf[0] + weight * pdf[1])


def far(rows):
    """Which rows only a background ten times as wide could have drawn."""
    return (np.abs(rows - SHIFT) > 8 * SCALE).any(axis=1)


def test_the_background_stays_in_the_density_and_leaves_the_samples():
    """False alarms: a normal of 8 deviations has a chance of 1e-15."""
    model = Defended(gaussian(2), uniform_box([-50, -50], [50, 50]), 0.5)
    density = Density(Scaling(SHIFT, SCALE), model)
    assert not far(density.sample(jr.key(1), 500)).any()
    assert 150 < far(density.sample(jr.key(1), 500, background=True)).sum() < 350


@pytest.mark.parametrize("weight", [0.0, 0.01, 0.5])
def test_log_prob_is_in_original_units(weight):
    x = SHIFT + SCALE * np.random.default_rng(0).normal(size=(50, 2))
    got = _density(weight=weight).log_prob(x)
    np.testing.assert_allclose(got, _truth(x, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 17, CHUNK + 3])
def test_chunks_change_nothing(n):
    x = SHIFT + SCALE * np.random.default_rng(1).normal(size=(n, 2))
    got = _density().log_prob(x)
    assert got.shape == (n,)
    np.testing.assert_allclose(got, _truth(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [0, 1, CHUNK + 3])
def test_sample_has_the_asked_size(n):
    assert _density().sample(jr.key(0), n).shape == (n, 2)


def _lower_half():
    return _density(low=[-np.inf, -5.0], high=[100.0, np.inf])


def test_mass_outside_the_bounds_goes_inside():
    """False-alarm rate below 1e-6: 0.03 is above 5 standard errors of the share inside."""
    density = _lower_half().with_inside_mass(jr.key(0))
    assert density.log_inside == pytest.approx(np.log(0.25), abs=0.04)
    x = np.array([[95.0, -4.95], [101.0, -4.95]])
    assert density.log_prob(x)[0] == pytest.approx(_truth(x)[0] + np.log(4), abs=0.05)
    assert density.log_prob(x)[1] == -np.inf


def _p_value(rows):
    """Kolmogorov-Smirnov of the first column against the lower half of its mixture."""

    def cdf(x):
        z = (x - SHIFT[0]) / SCALE[0]
        return 2 * (0.99 * stats.norm.cdf(z) + 0.01 * stats.norm.cdf(z / 3))

    return stats.kstest(rows[:, 0], cdf).pvalue


def test_samples_are_those_inside_the_bounds():
    """False-alarm rate 1e-4."""
    rows = _lower_half().with_inside_mass(jr.key(0)).sample(jr.key(1), 5000)
    assert (rows[:, 0] <= 100).all()
    assert (rows[:, 1] >= -5).all()
    assert _p_value(rows) > 1e-4


def test_clipping_instead_of_rejecting_is_noticed():
    """The twin: rows clipped to the bounds pile up on them."""
    clipped = np.minimum(_density().sample(jr.key(1), 5000), 100)
    assert _p_value(clipped) < 1e-4


def test_an_impossible_box_still_gives_rows_inside():
    density = _density(low=[1000.0, 50.0], high=[1001.0, 51.0])
    rows = density.sample(jr.key(0), 7)
    assert rows.shape == (7, 2)
    assert ((rows >= [1000, 50]) & (rows <= [1001, 51])).all()


def test_dates_keep_their_digits():
    """A second in 2025, in seconds since 1970, is below float32's resolution."""
    density = Density(Scaling([1.75e9], [10.0]), Defended(gaussian(1), wide_gaussian(1)))
    near, far = density.log_prob(np.array([[1.75e9], [1.75e9 + 10]]))
    assert near - far == pytest.approx(0.5, abs=0.02)


def test_the_background_floors_the_density():
    stray = np.array([[1000.0, -5.0]])
    assert _density().log_prob(stray)[0] > _density(weight=0.0).log_prob(stray)[0] + 1000


def test_defended_samples_hold_their_share_of_background():
    """False-alarm rate below 1e-6: the share is binomial, 5 standard errors are 0.016."""
    narrow = gaussian_mixture(np.ones(1), np.zeros((1, 1)), np.full((1, 1, 1), 0.01))
    rows = Defended(narrow, uniform_box([5.0], [6.0]), 0.5).sample(jr.key(0), 25_000)
    assert float(jnp.mean(rows > 4)) == pytest.approx(0.5, abs=0.016)


@pytest.mark.parametrize("weight", [-0.1, 1.0, float("nan")])
def test_defended_refuses_a_weight_that_is_none(weight):
    with pytest.raises(InputError, match="^weight must"):
        Defended(gaussian(1), wide_gaussian(1), weight)


def test_shapes_must_agree():
    with pytest.raises(InputError, match="^background must have"):
        Defended(gaussian(1), wide_gaussian(2))
    with pytest.raises(InputError, match="^low must have 2 columns"):
        _density(low=[0.0])
    with pytest.raises(InputError, match="^normaliser must have 1 columns"):
        Density(Scaling(SHIFT, SCALE), Defended(gaussian(1), wide_gaussian(1)))
    with pytest.raises(InputError, match="^x must be a table of 2 columns"):
        _density().log_prob(np.zeros((4, 3)))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_normaliser_refuses_what_it_cannot_undo(scale):
    with pytest.raises(InputError, match="scale must be"):
        Scaling([0.0], [scale])


@pytest.mark.long
def test_a_million_rows():
    x = SHIFT + SCALE * np.random.default_rng(2).normal(size=(1_000_000, 2))
    assert np.isfinite(_density().log_prob(x)).all()
    assert _lower_half().with_inside_mass(jr.key(0)).sample(jr.key(1), 1_000_000).shape == x.shape
