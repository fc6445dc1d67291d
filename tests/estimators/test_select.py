"""Choosing among settings within one budget: honest price, only the winner leaves."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import kstest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from dpflows import (
    Budget,
    BudgetError,
    DPAutoregressive,
    DPFlow,
    DPGaussian,
    DPGaussianMixture,
    DPHistogram,
    DPSelect,
    InputError,
    Ledger,
    load,
)
from dpflows.errors import TrainingError
from dpflows.estimators import select
from dpflows.models.architectures import Architecture
from dpflows.privacy.accounting import epsilon_of, guarantee_for
from dpflows.privacy.accounting.certificates import check_sizes
from dpflows.privacy.events import SampledGaussianEvent, SelectionEvent
from dpflows.privacy.mechanisms import noisy_mean_score
from dpflows.privacy.mechanisms.selection import draw_runs
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

BOX = {"bounds": (-4, 4)}
OS = Entropy.from_os()
FALSE_ALARM = 1e-6
SMALL = Architecture("nsf", width=8, depth=1, blocks=1, knots=4)


def rows(count=3000):
    rng = np.random.default_rng()
    centres = np.array([[-2.0, -2.0], [2.0, 2.0], [-1.0, 2.0]])
    drawn = centres[rng.integers(0, 3, count)] + rng.normal(0, 0.3, (count, 2))
    return drawn.clip(-4, 4)


def gaussian(**changes):
    return DPGaussian(**({"epsilon": 4.0, "delta": 1e-5} | BOX | changes))


def search(candidates=None, **changes):
    chosen = {"radius": [4.0, 6.0]} if candidates is None else candidates
    return DPSelect(gaussian(), chosen, **changes)


@pytest.fixture(scope="module")
def fitted():
    return search().fit(rows())


def test_the_whole_selection_costs_what_was_allowed(fitted):
    promise = fitted.guarantee_
    assert promise.is_private
    assert 0.999 * 4.0 < promise.epsilon <= 4.0
    assert [type(event) for event in promise.events] == [SelectionEvent]
    assert promise.epsilon == epsilon_of(promise.events, delta=1e-5, accountant="rdp")


def test_one_fit_gets_less_than_all_and_all_cost_less_than_the_sum(fitted):
    (event,), plan = fitted.guarantee_.events, fitted.plan_
    single = [
        epsilon_of((*events, *event.run), delta=1e-5, accountant="rdp")
        for events in event.candidates
    ]
    assert max(single) < fitted.guarantee_.epsilon < len(single) * max(single)
    assert plan.run.epsilon < 4.0
    assert f"epsilon {plan.run.epsilon:.4g}" in plan.sentence
    assert plan.seconds > 0


@pytest.mark.parametrize(
    ("law", "neighbours"),
    [("geometric", "replace-one"), ("logarithmic", "zero-out"), ("poisson", "zero-out")],
)
def test_every_law_and_relation_stays_within_the_budget(law, neighbours):
    density = gaussian(neighbours=neighbours, epsilon=1.0)
    plan = DPSelect(density, {"radius": [4.0, 6.0]}, law=law, mean_runs=6).plan(3000, 2)
    assert 0.999 < plan.guarantee().epsilon <= 1.0
    assert plan.guarantee().neighbours == neighbours


@pytest.mark.long
def test_steps_and_marginals_have_a_price_in_a_run():
    flow = DPFlow(1.0, 1e-5, architecture=SMALL, batch_size=50, **BOX)
    grid = {"steps": [20], "prior": [None, "mixture"]}
    plan = DPSelect(flow, grid).plan(3000, 2)
    assert 0.99 < plan.guarantee().epsilon <= 1.0


@pytest.mark.long
def test_cells_of_mixed_tables_have_a_price_in_a_run():
    schema = Schema((Column("ill", "boolean"), Column("sex", "categorical", categories=("f", "m"))))
    mixed = DPSelect(DPAutoregressive(1.0, 1e-5, schema=schema), {"steps": [50]})
    assert 0.99 < mixed.plan(3000).guarantee().epsilon <= 1.0


def winner(seed):
    centres = np.array([[-2.0, -2.0], [2.0, 2.0]])
    rng = np.random.default_rng(4)
    table = (centres[rng.integers(0, 2, 2000)] + rng.normal(0, 0.3, (2000, 2))).clip(-4, 4)
    density = DPHistogram(epsilon=8.0, delta=1e-5, **BOX)
    found = DPSelect(density, {"bins": [2, 16]}, mean_runs=8, insecure_test_seed=seed).fit(table)
    return found.best_params_["bins"]


@pytest.mark.long
def test_a_better_setting_wins(monkeypatch):
    """Seeds for which both candidates are drawn: no false alarms; a wrong sign must be seen."""
    seeds = [seed for seed in range(20) if _draws_both(seed)][:2]
    assert [winner(seed) for seed in seeds] == [16, 16]
    monkeypatch.setattr(select, "_scored", lambda *given: -_true_score(*given))
    assert [winner(seed) for seed in seeds] == [2, 2]


def _draws_both(seed):
    entropy = Entropy.insecure(seed)
    count = draw_runs(8.0, 1.0, entropy=entropy)
    drawn = entropy.uniforms("mechanisms", step=1, count=max(count, 1))[:count]
    return count <= 6 and len({int(2 * share) for share in drawn}) == 2


_true_score = select._scored


def test_only_the_winner_is_kept(fitted):
    kept = {name for name in vars(fitted) if name.endswith("_")}
    assert kept == {"best_estimator_", "best_params_", "best_score_", "plan_", "n_features_in_"}
    assert fitted.best_params_ in list(ParameterGrid({"radius": [4.0, 6.0]}))


def test_it_samples_scores_and_speaks_as_the_winner(fitted):
    table = rows(100)
    assert fitted.sample(7).shape == (7, 2)
    scores = fitted.score_samples(table)
    np.testing.assert_allclose(scores, fitted.best_estimator_.score_samples(table))
    assert fitted.score(table) == pytest.approx(scores.mean())
    assert fitted.privacy_statement() == fitted.guarantee_.privacy_statement()


def test_a_pld_price_survives_a_file_too(tmp_path):
    found = search(accountant="pld").fit(rows())
    found.save(tmp_path / "model.dpflow")
    assert load(tmp_path / "model.dpflow").guarantee_ == found.guarantee_


def test_a_file_with_another_fit_than_the_candidates_is_refused(tmp_path):
    found = search().fit(rows())
    promise = found.guarantee_
    (event,) = promise.events
    others = tuple((dataclasses.replace(one[-1], noise=1e3),) for one in event.candidates)
    forged = guarantee_for(
        [dataclasses.replace(event, candidates=others)],
        budget=Budget(4.0, 1e-5),
        accountant="rdp",
    )
    assert forged.epsilon < promise.epsilon
    found.best_estimator_.guarantee_ = forged
    found.save(tmp_path / "model.dpflow")
    with pytest.raises(InputError):
        load(tmp_path / "model.dpflow")


@pytest.mark.long
def test_too_many_ways_to_train_are_refused():
    flow = DPFlow(1.0, 1e-5, architecture=SMALL, prior=None, normalisation="bounds", **BOX)
    flow.set_params(steps=2)
    with pytest.raises(InputError, match="fewer different training settings"):
        DPSelect(flow, {"batch_size": list(range(10, 70))}).plan(3000, 2)


def test_the_price_of_too_many_ways_is_not_even_tried():
    steps = [
        SampledGaussianEvent(sampling="poisson", rows=99, batch_size=size, noise_multiplier=2.0)
        for size in range(1, 61)
    ]
    check_sizes([SelectionEvent(run=(), candidates=tuple((one,) for one in steps[:20]), mean=2.0)])
    with pytest.raises(InputError, match="more different or repeated releases"):
        check_sizes([SelectionEvent(run=(), candidates=tuple((one,) for one in steps), mean=2.0)])


def test_the_file_carries_the_price_of_the_selection(fitted, tmp_path):
    fitted.save(tmp_path / "model.dpflow")
    again = load(tmp_path / "model.dpflow")
    assert type(again) is DPGaussian
    assert again.guarantee_ == fitted.guarantee_
    table = rows(50)
    np.testing.assert_allclose(again.score_samples(table), fitted.score_samples(table), rtol=1e-5)


def test_the_noisy_score_is_near_the_true_one():
    """The noise is 0.03 nats: more than ten times that is a false alarm in 1e22."""
    table = rows()
    found = search(epsilon=8.0).fit(table)
    error = found.plan_.scoring.error(len(table))
    assert abs(found.best_score_ - found.score(table)) < 10 * error < 0.5


def test_the_ledger_is_charged_once_and_first(tmp_path):
    ledger = Ledger(tmp_path / "a.ledger", cap=Budget(5.0, 1e-5))
    found = search().fit(rows(), ledger=ledger)
    assert ledger.spent() == pytest.approx(found.guarantee_.epsilon)
    assert found.receipt_.ledger == ledger.identity
    found.save(tmp_path / "model.dpflow")
    with pytest.raises(BudgetError):
        search().fit(rows(), ledger=ledger)
    assert ledger.spent() == pytest.approx(found.guarantee_.epsilon)


def test_a_seeded_selection_is_stamped_and_repeatable():
    table = rows()
    one, two = (search(insecure_test_seed=5).fit(table) for _ in range(2))
    assert one.guarantee_.stamps == (TEST_SEED_STAMP,)
    assert one.best_params_ == two.best_params_
    assert one.best_score_ == two.best_score_


def test_a_candidate_without_privacy_stamps_the_selection():
    density = DPGaussianMixture(1.0, 1e-5, components=2, **BOX)
    found = DPSelect(density, [{"variant": "faithful"}, {"variant": "local"}])
    assert any("NOT PRIVATE" in stamp for stamp in found.stamps())


def test_no_privacy_is_stamped():
    found = search(epsilon=math.inf).fit(rows())
    assert not found.guarantee_.is_private
    assert found.guarantee_.events == ()


class Failing(DPHistogram):
    """Refuses every row, as a fit whose rows are unlucky may."""

    def _run(self, plan, work):
        raise ValueError("a private value")


def test_runs_that_fail_lose_and_tell_nothing():
    density = Failing(epsilon=1.0, delta=1e-5, **BOX)
    with pytest.raises(TrainingError) as told:
        DPSelect(density, [{"bins": 4}, {"bins": 8}]).fit(rows(300))
    assert "private value" not in str(told.value)
    assert told.value.__cause__ is None


def test_it_has_the_manners_of_scikit_learn():
    one = search(law="logarithmic", mean_runs=4)
    assert clone(one).get_params(deep=False)["law"] == "logarithmic"
    assert one.get_params()["estimator__epsilon"] == 4.0
    one.set_params(estimator__epsilon=1.0, score_share=0.2)
    assert one.plan(3000, 2).budget.epsilon == 1.0
    with pytest.raises(AttributeError):
        _ = clone(one).guarantee_


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"candidates": []}, "candidates must be"),
        ({"candidates": 3}, "candidates must be"),
        ({"candidates": {"epsilon": [1, 2]}}, "must not set epsilon"),
        ({"candidates": {"colour": [1]}}, "'colour' is not one of them"),
        ({"estimator": 3}, "estimator must be"),
        ({"law": "uniform"}, "law must be one of"),
        ({"mean_runs": 1.0}, "mean_runs must be"),
        ({"score_share": 1.0}, "score_share must be"),
        ({"score_range": (1, 0)}, "score_range must be"),
        ({"score_range": 3}, "score_range must be"),
        ({"delta": 0.5}, "delta must be below 1 / rows"),
        ({"estimator": DPGaussian(discover=0.1)}, "not declared"),
    ],
)
def test_mistakes_are_named_before_a_row_is_read(changes, words):
    told = search().set_params(**changes)
    if "estimator" in changes:
        told.set_params(candidates=[{"radius": 3.0}])
    with pytest.raises(InputError, match=words):
        told.plan(3000, 2)


def noise_of_scores(draws, noise):
    values, half = np.zeros(100), 5.0
    drawn = [
        noisy_mean_score(values, -half, half, noise=noise, entropy=OS).value for _ in range(draws)
    ]
    return np.array(drawn) * len(values) / half


def test_scores_have_the_noise_that_is_charged():
    """False alarms: one in a million; noise of three fifths must be rejected."""
    assert kstest(noise_of_scores(1000, 4.0), "norm", args=(0, 4.0)).pvalue > FALSE_ALARM
    assert kstest(noise_of_scores(1000, 2.4), "norm", args=(0, 4.0)).pvalue < FALSE_ALARM


@pytest.mark.parametrize("extreme", [math.nan, -math.inf, math.inf, 1e308, -3.0])
def test_one_row_moves_a_score_by_half_the_range_at_most(extreme):
    plain, seeded = np.zeros(50), Entropy.insecure(1)
    moved = np.append(plain[:-1], extreme)
    ends = [
        noisy_mean_score(rows, -2.0, 6.0, noise=1.0, entropy=seeded).value * 50
        for rows in (plain, moved)
    ]
    # from the middle of the range, which a null row stands for, to one of its ends
    assert abs(ends[1] - ends[0]) <= 6.0 + 1e-6
