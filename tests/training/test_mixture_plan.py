"""Plans are public, spend the budget and no more, and survive JSON."""

import json
import math

import pytest

from dpflows.errors import InputError
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import NEIGHBOURS, GaussianEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.training.local_frames import Recipe
from dpflows.training.mixture_em import MixturePlan, plan_mixture


def cost(events, budget):
    return epsilon_of(events, delta=budget.delta, neighbours=budget.neighbours, accountant="pld")


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_events_spend_the_budget_and_no_more(epsilon, neighbours):
    budget = Budget(epsilon, 1e-5, neighbours)
    plan = plan_mixture(budget, rows=20_000, columns=4)
    assert 0.998 * epsilon < cost(plan.events, budget) <= epsilon


def test_what_was_spent_before_is_left_out():
    budget = Budget(1.0, 1e-5)
    before = [GaussianEvent(noise=8.0, sensitivity=Sensitivity.of_sum(1.0))]
    plan = plan_mixture(budget, rows=20_000, columns=4, before=before)
    assert 0.998 < cost([*before, *plan.events], budget) <= 1.0


def test_a_share_leaves_the_rest_to_the_caller():
    budget = Budget(1.0, 1e-5)
    whole = plan_mixture(budget, rows=20_000, columns=4)
    part = plan_mixture(budget, rows=20_000, columns=4, share=0.3)
    rest = GaussianEvent(noise=whole.noise / math.sqrt(0.7), sensitivity=Sensitivity.of_sum(1.0))
    assert cost([*part.events, rest], budget) == pytest.approx(cost(whole.events, budget))


@pytest.mark.parametrize("columns", [1, 2, 10, 50])
@pytest.mark.parametrize("splitting", [True, False])
def test_shares_sum_to_one_and_rounds_end_with_all_components(columns, splitting):
    recipe = Recipe(splitting=splitting)
    plan = plan_mixture(Budget(1.0, 1e-5), rows=24_000, columns=columns, recipe=recipe)
    assert sum(share for _, share in plan.rounds) == pytest.approx(1.0)
    assert all(share > 0 for _, share in plan.rounds)
    assert plan.rounds[-1][0] == plan.components


def test_no_privacy_needs_no_noise_and_no_event():
    plan = plan_mixture(Budget(math.inf, 1e-5), rows=20_000, columns=4)
    assert plan.noise == 0.0
    assert plan.events == ()
    assert plan.components > 1


def test_more_budget_and_more_rows_allow_more_components():
    def k(epsilon, rows):
        return plan_mixture(Budget(epsilon, 1e-6), rows=rows, columns=10).components

    assert k(0.1, 500) == 1
    assert k(0.5, 24_000) < k(1.0, 24_000) < k(1.0, 240_000)


def test_the_shape_follows_from_public_numbers():
    def shape(columns, rows):
        return plan_mixture(Budget(1.0, 1e-6), rows=rows, columns=columns).shape

    assert shape(16, 1000) == "full"
    assert shape(50, 30_000) == "low-rank"
    assert shape(50, 1000) == "diagonal"
    assert shape(50, 10_000_000) == "full"


def test_a_plan_survives_json():
    plan = plan_mixture(Budget(1.0, 1e-5), rows=20_000, columns=4)
    assert MixturePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("damage", [{"rounds": 3}, {"recipe": {"unknown": 1}}, {"more": 1}])
def test_a_damaged_plan_is_refused(damage):
    plan = plan_mixture(Budget(1.0, 1e-5), rows=20_000, columns=4)
    with pytest.raises(InputError, match="mixture plan cannot be read"):
        MixturePlan.from_dict(plan.to_dict() | damage)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"rows": 0}, "rows"),
        ({"columns": 0}, "columns"),
        ({"components": 0}, "components"),
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
    ],
)
def test_wrong_settings_are_named(wrong, name):
    with pytest.raises(InputError, match=f"^{name} must be"):
        plan_mixture(Budget(1.0, 1e-5), **({"rows": 100, "columns": 2} | wrong))
