"""The noise that is added is the noise that is accounted."""

import numpy as np
from scipy import stats

from dpflows.privacy.randomness import Entropy, RoundedGaussian, lattice
from dpflows.training.dp_sgd import private_gradient
from dpflows.training.ghost_clipping import Clipping, by_taps

SIGMA, CLIP = 1.7, 0.6
#: A correct sigma is rejected with at most this probability (KS at this level; the
#: 1% band on the standard deviation is 14 standard errors wide at a million draws).
FALSE_ALARM = 1e-6


def gradient_of(taken_apart, loss, sigma=SIGMA):
    parameters, blueprint = taken_apart
    clipper = by_taps(loss, blueprint, Clipping(CLIP))
    return private_gradient(clipper, blueprint, parameters, noise_multiplier=sigma, batch_size=1)


def zero_gradient_run(taken_apart, loss, steps, sigma=SIGMA):
    """Noise of every step of a run whose gradients are all zero, trained coordinates only."""
    gradient = gradient_of(taken_apart, loss, sigma)
    noise = RoundedGaussian(Entropy.insecure(11))
    zero = np.zeros(gradient.coordinates)
    released = [gradient.release(zero, noise, step=step) for step in range(steps)]
    hidden = np.delete(np.stack(released), gradient.trained, axis=1)
    assert hidden.size > 0
    assert (hidden == 0).all()
    return np.stack(released)[:, gradient.trained]


def noise_is_right(drawn):
    sd = drawn.std() / (SIGMA * CLIP)
    p_value = stats.kstest(drawn.ravel()[:200_000] / (SIGMA * CLIP), "norm").pvalue
    return abs(sd - 1) < 0.01 and p_value > FALSE_ALARM


def test_noise_has_the_accounted_scale_on_every_coordinate(taken_apart, loss):
    drawn = zero_gradient_run(taken_apart, loss, steps=6000)
    assert drawn.size > 1_000_000
    assert noise_is_right(drawn)
    # Each coordinate's own variance is chi-square; the band holds for all at once.
    limit = stats.chi2.isf(FALSE_ALARM / drawn.shape[1], len(drawn)) / len(drawn)
    assert (drawn.var(axis=0) / (SIGMA * CLIP) ** 2).max() < limit


def test_a_sigma_five_percent_off_is_caught(taken_apart, loss):
    assert not noise_is_right(zero_gradient_run(taken_apart, loss, steps=6000, sigma=0.95 * SIGMA))


def test_noise_never_repeats_between_steps(taken_apart, loss):
    drawn = zero_gradient_run(taken_apart, loss, steps=2000)
    assert len(np.unique(drawn, axis=0)) == len(drawn)


def test_coordinates_are_uncorrelated(taken_apart, loss):
    drawn = zero_gradient_run(taken_apart, loss, steps=4000)
    correlation = np.corrcoef(drawn.T)[np.triu_indices(drawn.shape[1], 1)]
    limit = stats.norm.isf(FALSE_ALARM / (2 * len(correlation))) / np.sqrt(len(drawn))
    assert np.abs(correlation).max() < limit


def test_equal_noise_on_two_coordinates_would_be_caught(taken_apart, loss):
    """The twin of the correlation test."""
    drawn = zero_gradient_run(taken_apart, loss, steps=4000)
    drawn[:, 1] = drawn[:, 0]
    assert np.corrcoef(drawn[:, :2].T)[0, 1] > 0.99


def test_what_is_released_lies_on_the_lattice(taken_apart, loss):
    gradient = gradient_of(taken_apart, loss)
    points = zero_gradient_run(taken_apart, loss, steps=3) / lattice(gradient.scale)
    assert (points == np.rint(points)).all()
