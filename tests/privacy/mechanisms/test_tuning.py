"""Private selection: the law of the number of runs, and what it costs."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import GaussianEvent, SelectionEvent, Sensitivity
from dpflows.privacy.mechanisms import select_best, selection
from dpflows.privacy.randomness import Entropy

FALSE_ALARM = 1e-6
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)


def runs_drawn(mean: float, shape: float | None, draws: int = 4000) -> np.ndarray:
    return np.array([selection.draw_runs(mean, shape, entropy=OS) for _ in range(draws)])


def misfit(drawn: np.ndarray, chances: np.ndarray) -> float:
    """The chance of a worse fit (chi-square over cells that expect at least ten)."""
    cells = np.append(np.flatnonzero(len(drawn) * chances >= 10), len(chances))
    expected = np.array([chances[cell] for cell in cells[:-1]]) * len(drawn)
    observed = np.array([np.count_nonzero(drawn == cell) for cell in cells[:-1]])
    rest = np.array([len(drawn) - expected.sum(), len(drawn) - observed.sum()])
    statistic = float(((observed - expected) ** 2 / expected).sum())
    statistic += (rest[1] - rest[0]) ** 2 / max(rest[0], 1.0)
    return float(chi2.sf(statistic, len(cells) - 1))


@pytest.mark.parametrize("shape", [1.0, 0.0, 0.5, None])
def test_the_number_of_runs_has_the_law_that_is_charged(shape):
    """False alarms: about one in a million; a mean 25% off must be rejected."""
    drawn = runs_drawn(6.0, shape)
    assert misfit(drawn, selection.run_chances(6.0, shape)) > FALSE_ALARM
    assert misfit(runs_drawn(6.0 * 1.25, shape), selection.run_chances(6.0, shape)) < FALSE_ALARM


@pytest.mark.parametrize("shape", [1.0, 0.0, 0.5, 3.0, None])
@pytest.mark.parametrize("mean", [1.5, 10.0, 200.0])
def test_the_law_has_the_mean_that_is_charged(shape, mean):
    chances = selection.run_chances(mean, shape)
    assert chances.sum() == pytest.approx(1.0)
    assert chances @ np.arange(len(chances)) == pytest.approx(mean, rel=1e-6)


def test_selection_returns_the_best_run_and_charges_all():
    paid = (GaussianEvent(noise=30.0, sensitivity=UNIT),)
    seen = []

    def run(index: int) -> tuple[int, float]:
        seen.append(index)
        return index, math.nan if index == 9 else float(index)

    release = select_best(run, 10, run_events=paid, mean=50.0, entropy=OS)
    assert release.value == max((index for index in seen if index != 9), default=9)
    assert release.event == SelectionEvent(run=paid, mean=50.0, shape=1.0, purpose="selection")
    once, many = epsilon_of(paid, delta=1e-6), epsilon_of([release.event], delta=1e-6)
    assert once < many < epsilon_of(paid * 50, delta=1e-6)


def test_selection_matches_the_published_formula():
    """Papernot and Steinke (2022), Theorem 2, for a geometric law and Gaussian runs."""
    mean, rho, delta = 8.0, 1 / (2 * 20.0**2), 1e-6
    orders = np.geomspace(1.01, 600, 3000)
    # Minimise over the auxiliary order of the theorem, here on the same grid.
    extra = 2 * (1 - 1 / orders) * rho * orders + 2 * math.log(mean) / orders
    curve = rho * orders + extra.min() + math.log(mean) / (orders - 1)
    best = curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    run = (GaussianEvent(noise=20.0, sensitivity=UNIT),)
    event = SelectionEvent(run=run, mean=mean, shape=1.0)
    claimed = epsilon_of([event], delta=delta, accountant="rdp")
    # The accountant knows fewer orders than this grid, so it finds slightly more.
    assert best.min() <= claimed <= 1.04 * best.min()


def test_a_poisson_law_may_select_nothing():
    results = {
        select_best(lambda i: (i, 0.0), 1, run_events=(), mean=0.5, shape=None, entropy=OS).value
        for _ in range(60)
    }
    assert results == {None, 0}
