"""What a program costs that comes close to the mechanism it is accounted as."""

import math

import numpy as np
import pytest
from scipy import stats

from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.accounting.privacy_profiles import Approximated, GaussianProfile
from dpflows.privacy.events import SampledGaussianEvent, SelectionEvent

MU, DISTANCE = 0.7, 1e-4


@pytest.mark.parametrize("delta", [1e-2, 0.1])
def test_epsilon_and_delta_agree(delta):
    near = Approximated(GaussianProfile(MU), DISTANCE)
    assert near.delta(near.epsilon(delta)) <= delta * (1 + 1e-9)


def test_a_distance_beyond_delta_has_no_finite_epsilon():
    assert Approximated(GaussianProfile(MU), 1e-3).epsilon(1e-4) == math.inf


def shifted_normals(distance):
    """True delta of a Gaussian of which both sides lose ``distance``, where it hurts most."""
    x = np.linspace(-12, 13, 400_001)
    first, second = stats.norm.pdf(x, MU), stats.norm.pdf(x)
    step = x[1] - x[0]

    def delta(epsilon):
        gain = np.clip(first - math.exp(epsilon) * second, 0, None).sum() * step
        # the adversary gets mass of one side for sure and never sees as much of the other
        return gain + distance + math.exp(epsilon) * distance

    return delta


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_bound_covers_the_worst_case(epsilon):
    near = Approximated(GaussianProfile(MU), DISTANCE)
    assert near.delta(epsilon) >= shifted_normals(DISTANCE)(epsilon) - 1e-9


def test_leaving_the_distance_out_would_be_caught():
    assert GaussianProfile(MU).delta(0.5) < shifted_normals(DISTANCE)(0.5)


def steps(count):
    return SampledGaussianEvent(
        sampling="poisson", rows=1000, batch_size=100, noise_multiplier=2.0, count=count
    )


def test_the_noise_of_steps_has_a_distance_and_accountants_charge_it(monkeypatch):
    assert 0 < steps(2000).distance < 1e-25
    for accountant in ("pld", "rdp"):
        before = epsilon_of([steps(50)], delta=1e-5, accountant=accountant)
        with monkeypatch.context() as patched:
            patched.setattr(SampledGaussianEvent, "distance", 1e-7)
            assert epsilon_of([steps(50)], delta=1e-5, accountant=accountant) > before


def test_a_selection_has_the_distance_of_its_runs():
    chosen = SelectionEvent(run=(steps(10),), mean=4.0, shape=1.0)
    assert chosen.distance == pytest.approx(4 * steps(10).distance)
