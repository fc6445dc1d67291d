"""Private evaluation: what is announced is released, within the budget, near the truth."""

import numpy as np
import pytest

from dpflows import DPGaussian
from dpflows.errors import InputError, UnplannedReleaseError
from dpflows.evaluation import private
from dpflows.evaluation.measures import Subject, public_range
from dpflows.evaluation.private import plan_evaluation
from dpflows.evaluation.report import evaluate
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import read_table

OS = Entropy.from_os()
BUDGET = Budget(1.0, 1e-6)


def rows_of(count):
    return np.random.default_rng().normal(size=(count, 2)).clip(-4, 4)


@pytest.fixture(scope="module")
def subject():
    model = DPGaussian(4.0, 1e-6, bounds=(-4, 4)).fit(rows_of(4000))
    return Subject.of(model, read_table(rows_of(5000), model.encoding_.schema), OS)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_the_plan_keeps_the_budget_and_uses_it(neighbours):
    budget = Budget(1.0, 1e-6, neighbours)
    plan = plan_evaluation(budget, rows=5000, columns=7)
    cost = epsilon_of(plan.events, delta=1e-6, neighbours=neighbours)
    assert 0.99 < cost <= 1.0
    assert len(plan.events) == 8


def test_replacing_a_row_needs_more_noise():
    plans = [
        plan_evaluation(Budget(1.0, 1e-6, relation), rows=100, columns=2)
        for relation in ("zero-out", "replace-one")
    ]
    assert plans[1].level > 1.1 * plans[0].level


def test_noisy_figures_are_near_the_exact_ones(subject):
    """False alarms below 1e-6: limits of seven standard deviations of the noise and more."""
    plan = plan_evaluation(BUDGET, rows=5000, columns=2)
    found, exact = plan.release(subject, OS), evaluate(subject)
    likelihood = found["log-likelihood"]
    logs = np.clip(subject.logs(subject.rows), *public_range(subject))
    assert abs(likelihood["mean"] - logs.mean()) < 7 * likelihood["error_of_noise"]
    assert likelihood["error_of_noise"] < 0.05
    for name in ("kolmogorov", "total-variation"):
        for column, value in found[name].items():
            assert abs(value - exact[name][column]) < 10 * plan.noise_distance


def test_a_model_of_another_law_is_noticed_through_the_noise(subject):
    """The twin: rows that moved by half a deviation stand out."""
    model = subject.model
    moved = Subject.of(model, read_table(rows_of(5000) + 0.5, model.encoding_.schema), OS)
    plan = plan_evaluation(BUDGET, rows=5000, columns=2)
    near, far = (plan.release(one, OS)["kolmogorov"] for one in (subject, moved))
    assert all(far[name] > near[name] + 0.1 for name in near)


def test_releases_that_were_not_announced_are_refused(subject, monkeypatch):
    """The twin of the announced events: a histogram with less noise is no plan's release."""
    plan = plan_evaluation(BUDGET, rows=5000, columns=2)
    real = private.noisy_histogram
    monkeypatch.setattr(
        private,
        "noisy_histogram",
        lambda *given, scale, **named: real(*given, scale=scale / 3, **named),
    )
    with pytest.raises(UnplannedReleaseError, match="not among the planned"):
        plan.release(subject, OS)


def test_noise_differs_from_release_to_release(subject):
    plan = plan_evaluation(BUDGET, rows=5000, columns=2)
    means = {plan.release(subject, OS)["log-likelihood"]["mean"] for _ in range(3)}
    assert len(means) == 3


@pytest.mark.parametrize(
    ("budget", "rows"),
    [
        (Budget(float("inf"), 1e-6), 100),
        (Budget(1.0, 1e-6, "add-remove"), 100),
        (Budget(1.0, 1e-6), 1),
    ],
)
def test_evaluations_that_cannot_be_private_are_refused(budget, rows):
    with pytest.raises(InputError):
        plan_evaluation(budget, rows=rows, columns=2)


def test_a_plan_is_for_one_shape(subject):
    plan = plan_evaluation(BUDGET, rows=4999, columns=2)
    with pytest.raises(InputError, match="another shape"):
        plan.release(subject, OS)
