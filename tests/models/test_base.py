import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from paramax import NonTrainable
from scipy import stats

from dpflows.errors import InputError
from dpflows.models import gaussian_mixture, uniform_box, wide_gaussian

WEIGHTS = np.array([1.0, 3.0])
MEANS = np.array([[0.0, 0.0], [3.0, -1.0]])
FACTORS = np.array([[[1.0, 0.0], [0.5, 1.0]], [[0.3, 0.0], [-0.2, 0.4]]])


def _trainable(model):
    def frozen(node):
        return isinstance(node, NonTrainable)

    return [x for x in jax.tree.leaves(model, is_leaf=frozen) if eqx.is_inexact_array(x)]


def test_mixture_density_is_that_of_its_parts():
    x = np.array([[0.5, -0.5], [3.0, -1.2]])
    parts = [
        weight / 4 * stats.multivariate_normal(mean, factor @ factor.T).pdf(x)
        for weight, mean, factor in zip(WEIGHTS, MEANS, FACTORS, strict=True)
    ]
    got = gaussian_mixture(WEIGHTS, MEANS, FACTORS).log_prob(jnp.asarray(x))
    np.testing.assert_allclose(got, np.log(sum(parts)), rtol=1e-5)


def test_mixture_samples_have_its_moments():
    """False-alarm rate below 1e-6: tolerances are above 5 standard errors."""
    rows = gaussian_mixture(WEIGHTS, MEANS, FACTORS).sample(jr.key(0), (20_000,))
    np.testing.assert_allclose(rows.mean(axis=0), WEIGHTS @ MEANS / 4, atol=0.06)


def test_a_frozen_mixture_has_nothing_to_train():
    assert not _trainable(gaussian_mixture(WEIGHTS, MEANS, FACTORS))
    assert _trainable(gaussian_mixture(WEIGHTS, MEANS, FACTORS, trainable=True))


@pytest.mark.parametrize("background", [wide_gaussian(2), uniform_box([0.0, 1.0], [1.0, 3.0])])
def test_backgrounds_have_nothing_to_train(background):
    assert not _trainable(background)


def test_mixture_refuses_dead_parts():
    with pytest.raises(InputError, match="^weights must be positive"):
        gaussian_mixture(np.array([0.0, 1.0]), MEANS, FACTORS)
    with pytest.raises(InputError, match="^diagonals of factors must be positive"):
        gaussian_mixture(WEIGHTS, MEANS, -FACTORS)


@pytest.mark.parametrize(
    ("low", "high"), [([0.0], [0.0]), ([1.0], [0.0]), ([0.0], [1.0, 2.0]), ([0.0], [np.inf])]
)
def test_box_refuses_what_has_no_volume(low, high):
    with pytest.raises(InputError, match="^low"):
        uniform_box(low, high)


def test_box_is_empty_outside():
    box = uniform_box([0.0, 0.0], [1.0, 2.0])
    assert float(box.log_prob(jnp.array([0.5, 2.5]))) == -np.inf
    assert float(box.log_prob(jnp.array([0.5, 1.5]))) == pytest.approx(-np.log(2), rel=1e-5)
