"""The moments accountant as the paper states and runs it.

Batches without replacement by the theorem of Wang, Balle and Kasiviswanathan that the
paper quotes, integer orders, and the first conversion to epsilon that was found. Both have
been sharpened since; and one row is taken to move a sum by the clipping norm, where
exchanging it for another moves it by twice that. It is here to find the paper's numbers of
steps again, and nothing else may use it.
"""

import functools
import math

import numpy as np
from jaxtyping import Float64
from scipy.special import gammaln, logsumexp

from dpflows.privacy.events import SampledGaussianEvent

_ORDERS = np.arange(2, 101)

Orders = Float64[np.ndarray, " orders"]


def moments_epsilon(event: SampledGaussianEvent, delta: float) -> float:
    """What the paper's code states for ``event.count`` steps.

    Example:
        >>> run = SampledGaussianEvent(
        ...     sampling="uniform", rows=24_059, batch_size=100, noise_multiplier=2.1, count=2_198
        ... )
        >>> round(moments_epsilon(run, 1.52e-5), 2)
        1.0
    """
    costs = _costs(event.rate, event.noise_multiplier)
    return float((event.count * costs + _overheads(delta)).min())


def moments_steps(event: SampledGaussianEvent, epsilon: float, delta: float) -> int:
    """How many steps the paper's code allows within epsilon."""
    costs = _costs(event.rate, event.noise_multiplier)
    return max(int(((epsilon - _overheads(delta)) / costs).max()), 0)


def _overheads(delta: float) -> Orders:
    return -math.log(delta) / (_ORDERS - 1)


@functools.lru_cache(maxsize=8)
def _costs(rate: float, noise: float) -> Orders:
    """The Rényi cost of one step at each order."""
    return np.array([_cost(int(order), rate, noise) for order in _ORDERS])


def _cost(order: int, rate: float, noise: float) -> float:
    second = 1 / noise**2
    largest = math.log(min(4 * math.expm1(second), 2 * math.exp(second)))
    j = np.arange(3, order + 1)
    higher = j * math.log(rate) + _choose(order, j) + j * (j - 1) / (2 * noise**2) + math.log(2)
    pair = 2 * math.log(rate) + _choose(order, np.array([2])) + largest
    return float(logsumexp([0.0, *pair, *higher])) / (order - 1)


def _choose(order: int, j: np.ndarray) -> np.ndarray:
    """The logarithm of the binomial coefficients."""
    return gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
