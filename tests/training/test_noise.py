"""The noise that is added is the noise that is accounted."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpflows.privacy.randomness import Entropy
from dpflows.training.clipping import ClippedSum
from dpflows.training.noise import noisy, standard_noise

SIGMA, CLIP = 1.7, 0.6
#: A correct sigma is rejected with at most this probability (KS at this level; the
#: 1% band on the standard deviation is 14 standard errors wide at a million draws).
FALSE_ALARM = 1e-6


def zero_gradient_run(taken_apart, steps, sigma=SIGMA):
    """Noise of every step of a run whose gradients are all zero, unmasked coordinates only."""
    parameters, blueprint = taken_apart
    zero = ClippedSum(jax.tree.map(jnp.zeros_like, parameters), sensitivity=CLIP)
    entropy = Entropy.insecure(11)
    words = jnp.asarray(np.stack([entropy.key("noise", step=step) for step in range(steps)]))
    add = lambda w: noisy(  # noqa: E731
        zero, blueprint, noise_multiplier=sigma, key=jax.random.wrap_key_data(w)
    )
    released = jax.jit(jax.vmap(add))(words)
    unmasked = [np.asarray(leaf).reshape(steps, -1) for leaf in jax.tree.leaves(released.free)]
    for layer, mask in zip(released.dense, blueprint.masks, strict=True):
        weight = np.asarray(layer.weight)
        assert (weight[..., ~mask] == 0).all()
        unmasked += [
            weight[..., mask].reshape(steps, -1),
            np.asarray(layer.bias).reshape(steps, -1),
        ]
    return np.concatenate(unmasked, axis=1)


def noise_is_right(drawn):
    sd = drawn.std() / (SIGMA * CLIP)
    p_value = stats.kstest(drawn.ravel()[:200_000] / (SIGMA * CLIP), "norm").pvalue
    return abs(sd - 1) < 0.01 and p_value > FALSE_ALARM


def test_noise_has_the_accounted_scale_on_every_coordinate(taken_apart):
    drawn = zero_gradient_run(taken_apart, steps=6000)
    assert drawn.size > 1_000_000
    assert noise_is_right(drawn)
    # Each coordinate's own variance is chi-square; the band holds for all at once.
    limit = stats.chi2.isf(FALSE_ALARM / drawn.shape[1], len(drawn)) / len(drawn)
    assert (drawn.var(axis=0) / (SIGMA * CLIP) ** 2).max() < limit


def test_a_sigma_five_percent_off_is_caught(taken_apart):
    assert not noise_is_right(zero_gradient_run(taken_apart, steps=6000, sigma=0.95 * SIGMA))


def test_noise_never_repeats_between_steps(taken_apart):
    drawn = zero_gradient_run(taken_apart, steps=2000)
    assert len(np.unique(drawn, axis=0)) == len(drawn)


def test_coordinates_are_uncorrelated(taken_apart):
    drawn = zero_gradient_run(taken_apart, steps=4000)
    correlation = np.corrcoef(drawn.T)[np.triu_indices(drawn.shape[1], 1)]
    limit = stats.norm.isf(FALSE_ALARM / (2 * len(correlation))) / np.sqrt(len(drawn))
    assert np.abs(correlation).max() < limit


def test_one_key_for_every_array_would_be_caught(taken_apart):
    """The twin of the correlation test: equal noise in two arrays stands out."""
    drawn = zero_gradient_run(taken_apart, steps=4000)
    drawn[:, 1] = drawn[:, 0]
    assert np.corrcoef(drawn[:, :2].T)[0, 1] > 0.99


def test_noise_follows_the_dtype(taken_apart):
    parameters, blueprint = taken_apart
    noise = standard_noise(parameters, blueprint, key=jax.random.key(0))
    assert jax.tree.map(lambda a: a.dtype, noise) == jax.tree.map(lambda a: a.dtype, parameters)
