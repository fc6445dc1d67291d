"""Dominating pairs cost at least what the worst mechanisms of their kind attain."""

import math

import numpy as np
import pytest
from scipy.stats import binom, laplace

from dpflows.privacy.accounting import delta_of, epsilon_of
from dpflows.privacy.events import (
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    LaplaceEvent,
    PureEvent,
    Sensitivity,
)

UNIT = Sensitivity.uniformly(1.0)


def randomised_response_delta(epsilon: float, loss: float, count: int) -> float:
    heads = np.arange(count + 1)
    chances = binom.pmf(heads, count, 1 / (1 + math.exp(-loss)))
    losses = (2 * heads - count) * loss
    return float(np.sum(chances * np.maximum(0, -np.expm1(epsilon - losses))))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp"])
@pytest.mark.parametrize(("loss", "count"), [(0.3, 1), (0.3, 40), (0.05, 400), (0.01, 5000)])
@pytest.mark.parametrize("delta", [1e-6, 1e-10])
def test_pure_bounds_are_above_randomised_response(accountant, loss, count, delta):
    event = PureEvent(epsilon=Sensitivity.uniformly(loss), count=count)
    epsilon = epsilon_of([event], delta=delta, accountant=accountant)
    assert randomised_response_delta(epsilon, loss, count) <= delta * (1 + 1e-9)
    if accountant == "pld":
        assert randomised_response_delta(epsilon * 0.99, loss, count) > delta


def product_delta(losses, chances, epsilon: float, count: int) -> float:
    """The hockey stick of ``count`` independent losses with few values, by direct sums."""
    total, weight = np.array([0.0]), np.array([1.0])
    for _ in range(count):
        total = (total[:, None] + losses[None, :]).ravel()
        weight = (weight[:, None] * chances[None, :]).ravel()
    return float(np.sum(weight * np.maximum(0, -np.expm1(epsilon - total))))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp"])
def test_bounded_range_is_above_every_exponential_mechanism(accountant):
    """For each split t the worst mechanism has losses t and t - width; try many, thrice."""
    width, delta = 0.8, 1e-2
    event = BoundedRangeEvent(epsilon=Sensitivity.uniformly(width), count=3)
    epsilon = epsilon_of([event], delta=delta, accountant=accountant)
    reached = 0.0
    for top in np.linspace(0.01, width - 0.01, 41):
        low = (1 - math.exp(top - width)) / (math.exp(top) - math.exp(top - width))
        high = low * math.exp(top)
        losses, chances = np.array([top, top - width]), np.array([high, 1 - high])
        reached = max(reached, product_delta(losses, chances, epsilon, 3))
    assert reached <= delta * (1 + 1e-9)
    if accountant == "pld":
        assert epsilon < epsilon_of(
            [PureEvent(epsilon=Sensitivity.uniformly(width), count=3)], delta=delta
        )


@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp"])
@pytest.mark.parametrize("split", [(1.0,), (0.5, 0.5), (0.9, 0.1), (0.25,) * 4])
def test_laplace_on_vectors_is_dominated_by_one_coordinate(accountant, split):
    """The same L1 distance spread over coordinates, by a numerical convolution."""
    epsilon_one, grid = 1.5, 1 / 400
    event = LaplaceEvent(scale=1 / epsilon_one, sensitivity=UNIT)
    weights = np.array([1.0])
    for share in split:
        loss = share * epsilon_one
        edges = np.arange(-round(loss / grid), round(loss / grid) + 1) * grid
        # P(loss <= l) for one coordinate: an atom at each end, exponential in between.
        below = np.where(edges >= loss, 1.0, laplace.cdf(edges / 2 - loss / 2))
        weights = np.convolve(weights, np.diff(below, prepend=0.0))
    losses = (np.arange(len(weights)) - len(weights) // 2) * grid
    # Rounding each loss down gives a lower bound on what is reached.
    losses = losses - grid * len(split)
    for target in (0.0, 0.3, 0.9):
        reached = float(np.sum(weights * np.maximum(0, -np.expm1(target - losses))))
        claimed = delta_of([event], epsilon=target, accountant=accountant)
        assert reached <= claimed + 1e-9


def test_discrete_laplace_with_sensitivity_two_matches_direct_sums():
    event = DiscreteLaplaceEvent(scale=2.0, sensitivity=Sensitivity.uniformly(2.0))
    k = np.arange(-400, 401)
    shape = np.tanh(0.25)
    present, absent = shape * np.exp(-np.abs(k) / 2), shape * np.exp(-np.abs(k - 2) / 2)
    for epsilon in (0.0, 0.4, 0.9):
        exact = float(np.maximum(0, present - math.exp(epsilon) * absent).sum())
        claimed = delta_of([event], epsilon=epsilon)
        assert exact <= claimed <= exact + 1e-3
