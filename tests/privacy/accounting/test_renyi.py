"""Rényi costs that are integrated here: replaced rows, batches cut to their cap, selections."""

import logging
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as library

from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.accounting.rdp import ORDERS, curve_of
from dpflows.privacy.events import (
    ApproximateEvent,
    GaussianEvent,
    SampledGaussianEvent,
    SelectionEvent,
    Sensitivity,
)

UNIT = Sensitivity.of_sum(1.0)
DELTA = 1e-6


def steps(noise: float, cap: int | None = None, count: int = 1) -> SampledGaussianEvent:
    return SampledGaussianEvent(
        sampling="poisson",
        rows=24_059,
        batch_size=512,
        noise_multiplier=noise,
        batch_cap=cap,
        count=count,
    )


def gaussian(noise: float) -> GaussianEvent:
    return GaussianEvent(noise=noise, sensitivity=UNIT)


def test_a_replaced_row_in_every_batch_costs_what_the_closed_formula_says():
    """With a rate of one the pair is N(mu) against N(-mu), whose cost is 2 order mu^2."""
    whole = SampledGaussianEvent(sampling="poisson", rows=100, batch_size=100, noise_multiplier=3.0)
    costs, exact = curve_of(whole, "replace-one").costs, 2 * ORDERS / 9
    known = np.isfinite(costs)
    assert known.sum() > 100
    np.testing.assert_allclose(costs[known], exact[known], rtol=1e-7)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("noise", "count"), [(1.0, 600), (2.3, 2500), (10.0, 5000)])
@pytest.mark.parametrize("cap", [603, 530])
def test_cut_batches_cost_at_least_the_tight_price(neighbours, noise, count, cap):
    event = [steps(noise, cap, count)]
    tight = epsilon_of(event, delta=DELTA, neighbours=neighbours)
    assert tight <= epsilon_of(event, delta=DELTA, neighbours=neighbours, accountant="rdp")


def test_a_cap_far_above_the_batch_costs_nothing_more():
    free, capped = (
        epsilon_of([steps(2.3, cap, 2500)], delta=DELTA, accountant="rdp") for cap in (None, 20_000)
    )
    assert capped == pytest.approx(free, rel=1e-9)


def test_a_selection_is_priced_by_its_dearest_candidate():
    cheap, dear, score = gaussian(40.0), gaussian(20.0), gaussian(60.0)
    mixed = SelectionEvent(run=(score,), candidates=((cheap,), (dear,)), mean=5.0, shape=1.0)
    plain = SelectionEvent(run=(score, dear), mean=5.0, shape=1.0)
    for accountant in ("rdp", "pld"):
        prices = [epsilon_of([e], delta=DELTA, accountant=accountant) for e in (mixed, plain)]
        assert prices[0] == pytest.approx(prices[1], rel=1e-9)


def test_the_failure_of_a_run_counts_as_often_as_there_are_runs():
    failing = ApproximateEvent(epsilon=Sensitivity.uniformly(0.0), delta=1e-8)
    event = SelectionEvent(run=(gaussian(30.0), failing), mean=5.0, shape=1.0)
    plain = SelectionEvent(run=(gaussian(30.0),), mean=5.0, shape=1.0)
    found = epsilon_of([event], delta=DELTA, accountant="rdp")
    less = epsilon_of([plain], delta=DELTA - 5e-8, accountant="rdp")
    assert found == pytest.approx(less, rel=1e-9)
    assert math.isinf(epsilon_of([event], delta=4e-8, accountant="rdp"))


@pytest.mark.parametrize("is_filtered", [True, False])
def test_orders_that_the_library_leaves_out_are_no_news(is_filtered, monkeypatch):
    """Leaving out an order can only raise epsilon; without the filter the library speaks of it."""
    logger, said = logging.getLogger("absl"), []
    monkeypatch.setattr(logger, "filters", logger.filters if is_filtered else [])
    monkeypatch.setattr(logger, "handle", lambda r: logger.filter(r) and said.append(r))
    step = dp_accounting.GaussianDpEvent(8.327689)
    library.RdpAccountant().compose(dp_accounting.PoissonSampledDpEvent(0.416684, step))
    assert bool(said) is not is_filtered
