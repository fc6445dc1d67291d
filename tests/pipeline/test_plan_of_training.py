"""A plan is made of public numbers, keeps its budget and describes itself."""

import dataclasses
import json

import pytest

from dpflows.errors import BudgetError, InputError
from dpflows.pipeline.plan import Odometer, Recorded
from dpflows.pipeline.training import Settings, make_plan, read_plan
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import GaussianEvent, PureEvent, Sensitivity
from dpflows.privacy.guarantee import Budget

BUDGET = Budget(1.0, 1e-5)
SHAPE = {"rows": 5000, "columns": 4}
BEFORE = (GaussianEvent(noise=20.0, sensitivity=Sensitivity.of_sum(1.0), purpose="moments"),)


def spent(plan):
    budget = plan.budget
    return epsilon_of(plan.events, delta=budget.delta, neighbours=budget.neighbours)


@pytest.mark.parametrize("neighbours", ["zero-out", "add-remove", "replace-one"])
@pytest.mark.parametrize(
    "settings",
    [Settings(steps=40), Settings(noise_multiplier=20.0), Settings(steps=40, batch_size=5000)],
)
def test_every_plan_keeps_its_budget_and_uses_it(neighbours, settings):
    plan = make_plan(dataclasses.replace(BUDGET, neighbours=neighbours), settings=settings, **SHAPE)
    assert 0.99 < spent(plan) <= 1.0


def test_fixed_size_batches_are_priced_as_such():
    plan = make_plan(
        Budget(1.0, 1e-5, "replace-one"), settings=Settings(steps=40, sampling="uniform"), **SHAPE
    )
    assert plan.events[-1].sampling == "uniform"
    assert spent(plan) <= 1.0


def test_what_was_spent_before_raises_the_noise():
    alone = make_plan(BUDGET, settings=Settings(steps=40), **SHAPE)
    after = make_plan(BUDGET, settings=Settings(steps=40), before=(Recorded(BEFORE),), **SHAPE)
    assert after.noise_multiplier > alone.noise_multiplier
    assert spent(after) <= 1.0
    assert list(after.shares()) == ["moments", "training"]


def test_overspending_before_training_is_refused():
    greedy = (PureEvent(epsilon=Sensitivity.uniformly(1.5), purpose="bounds"),)
    with pytest.raises(BudgetError, match="too small"):
        make_plan(BUDGET, settings=Settings(steps=10), before=(Recorded(greedy),), **SHAPE)


def test_a_plan_survives_json():
    plan = make_plan(BUDGET, settings=Settings(steps=40), before=(Recorded(BEFORE),), **SHAPE)
    assert read_plan(json.loads(json.dumps(plan.to_dict())), BUDGET) == plan


def test_an_unlimited_budget_needs_no_noise():
    plan = make_plan(Budget(float("inf"), 1e-5), **SHAPE)
    assert (plan.noise_multiplier, plan.events, plan.is_private) == (0.0, (), False)


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (0, 2), (10, 0)])
def test_impossible_tables_are_refused(rows, columns):
    with pytest.raises(InputError, match="must be at least"):
        make_plan(BUDGET, rows=rows, columns=columns)


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (100, 50), (10_000_000, 3)])
def test_the_rule_covers_small_wide_and_long_tables(rows, columns):
    plan = make_plan(BUDGET, rows=rows, columns=columns)
    assert 1 <= plan.batches.batch_size <= rows
    assert spent(plan) <= 1.0
    assert plan.seconds > 0
    assert plan.megabytes > 0


def test_the_odometer_never_shows_less_than_was_spent():
    plan = make_plan(BUDGET, settings=Settings(steps=37), **SHAPE)
    odometer = Odometer(plan)
    for step in (1, 5, 20, 37):
        event = plan.batches.event(steps=step, noise_multiplier=plan.noise_multiplier)
        assert epsilon_of([event], delta=1e-5) <= odometer(step) <= 1.0
