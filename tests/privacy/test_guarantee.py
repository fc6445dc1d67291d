"""Budgets refuse nonsense; guarantees say what they are worth and survive JSON."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest

from dpflows.errors import InputError
from dpflows.privacy.accounting import epsilon_of, guarantee_for
from dpflows.privacy.events import GaussianEvent, SampledGaussianEvent, Sensitivity
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy

EVENT = GaussianEvent(noise=5.0, sensitivity=Sensitivity.of_sum(1.0), purpose="moments")
BUDGET = Budget(2.0, 1e-6)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, -math.inf])
def test_epsilon_must_be_positive(epsilon):
    with pytest.raises(InputError, match="epsilon must be positive"):
        Budget(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan, math.inf])
def test_delta_must_be_inside_the_unit_interval(delta):
    with pytest.raises(InputError, match="delta must be in"):
        Budget(1.0, delta)


def test_unknown_words_are_refused_in_one_line():
    """In a process of its own, where no type checker speaks first."""
    program = """
from dpflows.errors import InputError
from dpflows.privacy.events import SampledGaussianEvent, GaussianEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.accounting import epsilon_of
event = GaussianEvent(noise=1.0, sensitivity=Sensitivity.of_sum(1.0))
attempts = {
    "neighbours": lambda: Budget(1.0, 1e-6, "friends"),
    "neighbours ": lambda: epsilon_of([event], delta=1e-6, neighbours="friends"),
    "accountant": lambda: epsilon_of([event], delta=1e-6, accountant="guess"),
    "sampling": lambda: SampledGaussianEvent(
        sampling="shuffle", rows=9, batch_size=3, noise_multiplier=1.0
    ),
    "sampling must be poisson or uniform: balls-in-bins": lambda: SampledGaussianEvent(
        sampling="balls-in-bins", rows=9, batch_size=3, noise_multiplier=1.0
    ),
}
for parameter, attempt in attempts.items():
    try:
        attempt()
    except InputError as refusal:
        assert str(refusal).startswith(parameter.strip()), refusal
        assert "\\n" not in str(refusal)
    else:
        raise SystemExit(f"{parameter} was accepted")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_guarantee_costs_what_its_events_cost():
    promise = guarantee_for([EVENT], budget=BUDGET)
    assert promise.epsilon == epsilon_of([EVENT], delta=1e-6)
    assert promise.replace_one_epsilon == epsilon_of([EVENT], delta=1e-6, neighbours="replace-one")
    assert promise.is_private
    assert promise.versions.keys() >= {"dpflows", "dp-accounting", "opendp"}


def test_a_guarantee_never_hides_overspending():
    promise = guarantee_for([EVENT] * 100, budget=BUDGET)
    assert promise.epsilon > BUDGET.epsilon


def test_the_statement_answers_the_officers_questions():
    words = guarantee_for([EVENT], budget=BUDGET).privacy_statement()
    assert "NOT PRIVATE" not in words
    for part in ("Who is protected", "Against whom", "does not cover", "zero-out"):
        assert part in words
    assert "replacing a row by any other row, epsilon is 1.7" in words


@pytest.mark.parametrize("epsilon", [0.84831, 0.84839, 1.0, 12345.4, 3e-7, 0.1])
def test_printed_figures_are_rounded_up(epsilon):
    promise = dataclasses.replace(guarantee_for([EVENT], budget=BUDGET), epsilon=epsilon)
    printed = float(promise.privacy_statement().split("(")[1].split(",")[0])
    assert epsilon <= printed * (1 + 1e-8) <= epsilon * 1.0012


def test_without_a_finite_budget_nothing_is_promised():
    promise = guarantee_for([EVENT], budget=Budget(math.inf, 1e-6))
    assert promise.kind == "none"
    assert not promise.is_private
    assert promise.privacy_statement().splitlines()[0].startswith("NOT PRIVATE")


def test_a_stamp_is_the_first_line_and_voids_the_guarantee():
    stamp = Entropy.insecure(1).stamp
    promise = guarantee_for([EVENT], budget=BUDGET, stamps=[stamp])
    assert promise.privacy_statement().splitlines()[0] == stamp
    assert not promise.is_private


def test_a_caveat_is_printed_and_voids_nothing():
    caveat = "delta is at or above one over the number of rows"
    promise = guarantee_for([EVENT], budget=BUDGET, caveats=[caveat])
    assert promise.is_private
    assert f"Caveat: {caveat}" in promise.privacy_statement().splitlines()
    assert Guarantee.from_dict(json.loads(json.dumps(promise.to_dict()))) == promise


def test_a_description_without_caveats_is_read():
    description = guarantee_for([EVENT], budget=BUDGET).to_dict()
    del description["caveats"]
    assert Guarantee.from_dict(description).caveats == ()


def test_the_statement_claims_nothing_that_cannot_be_declared():
    words = guarantee_for([EVENT], budget=BUDGET).privacy_statement()
    assert "privacy unit" not in words
    assert "one row per person is assumed" in words
    assert "a table was refused or a fit failed" in words
    assert "the probability of any outcome changes by at most a factor e^epsilon = " in words


def test_an_estimate_says_so():
    step = SampledGaussianEvent(
        sampling="poisson", rows=1000, batch_size=10, noise_multiplier=1.0, count=100
    )
    promise = guarantee_for([step], budget=BUDGET, accountant="gdp-clt")
    assert promise.kind == "estimate"
    assert not promise.is_private
    assert "ESTIMATE" in promise.privacy_statement()


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_strict_json_round_trip(epsilon):
    promise = guarantee_for([EVENT], budget=Budget(epsilon, 1e-6, "add-remove"), stamps=["x"])
    text = json.dumps(promise.to_dict(), allow_nan=False)
    assert Guarantee.from_dict(json.loads(text)) == promise


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "proof"},
        {"neighbours": "friends"},
        {"delta": 3.0},
        {"epsilon": -1.0},
        {"epsilon": "much"},
        {"replace_one_epsilon": -2.0},
        {"events": [{"kind": "gaussian"}]},
        {"events": 3},
        {"versions": []},
        {"surprise": 1},
    ],
)
def test_forged_descriptions_are_refused_in_one_line(change):
    description = guarantee_for([EVENT], budget=BUDGET).to_dict() | change
    with pytest.raises(InputError, match="guarantee description cannot be read") as refusal:
        Guarantee.from_dict(description)
    assert "\n" not in str(refusal.value)


def test_the_words_do_not_need_the_accounting_library():
    program = (
        "import sys; import dpflows.privacy.guarantee; "
        "assert not {'dp_accounting', 'opendp', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_epsilon_next_to_nothing_is_printed_from_above():
    tiny = Guarantee(1e-320, 1e-6, "zero-out", "pld", "bound", (), None, {})
    assert tiny.privacy_statement().startswith("(1e-300, ")
