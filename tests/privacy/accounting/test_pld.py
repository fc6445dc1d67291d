"""What a composed privacy loss costs, against the library that composes it."""

import math

import numpy as np
import pytest

from dpflows.privacy.accounting import pld
from dpflows.privacy.events import (
    GaussianEvent,
    PureEvent,
    SampledGaussianEvent,
    Sensitivity,
    tally,
)

UNIT = Sensitivity.of_sum(1.0)
STEPS = SampledGaussianEvent(
    sampling="poisson", rows=2000, batch_size=300, batch_cap=360, noise_multiplier=3.0, count=40
)
LISTS = {
    "gaussian": [GaussianEvent(noise=3.0, sensitivity=UNIT)],
    "steps": [STEPS],
    "both": [STEPS, GaussianEvent(noise=6.0, sensitivity=UNIT)],
    "pure": [PureEvent(epsilon=Sensitivity.uniformly(0.5))],
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2, 0.3, 0.9])
def test_epsilon_is_the_librarys_and_never_less(name, delta):
    tallied = tuple(tally(LISTS[name]).items())
    theirs = pld._compose(tallied, "zero-out").get_epsilon_for_delta(delta)
    ours = max(loss.epsilon(delta) for loss in pld.losses_of(tallied, "zero-out"))
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert ours >= theirs - 1e-12


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_delta_is_the_librarys(name, epsilon):
    tallied = tuple(tally(LISTS[name]).items())
    theirs = pld._compose(tallied, "zero-out").get_delta_for_epsilon(epsilon)
    ours = max(loss.delta(epsilon) for loss in pld.losses_of(tallied, "zero-out"))
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_what_may_fail_more_often_than_delta_has_no_epsilon():
    loss = pld.Loss(np.array([0.0, 1.0]), np.array([0.4, 0.5]), 0.1)
    assert loss.epsilon(0.05) == math.inf
    assert loss.epsilon(0.2) == pytest.approx(1 + math.log((0.6 - 0.2) / 0.5))
