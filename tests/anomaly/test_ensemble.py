"""The detector as a whole: what leaves it, what it costs, and what it refuses."""

import contextlib
import copy
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from anomaly.voters import BOUNDS, cost_of, ensemble, normal_rows
from dpflows import (
    Budget,
    BudgetError,
    DPEnsembleDetector,
    DPFlow,
    DPGaussian,
    InputError,
    Schema,
    load,
)
from dpflows.anomaly import members
from dpflows.anomaly.members import INTERNAL_STAMP
from dpflows.models.architectures import Architecture
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy
from dpflows.table.reading import Encoding

CENTRE, CORNER = [0.0, 0.0], [3.9, -3.9]


@pytest.fixture(scope="module")
def rows():
    return normal_rows()


def certain(**settings):
    """Answers so dear that noise hardly ever turns one: the chance is below 1e-10."""
    known = {"epsilon_per_query": 20.0, "total_budget": Budget(90.0, 1e-6), "contamination": 0.01}
    return ensemble(5, **(known | settings))


@pytest.mark.parametrize("mechanism", ["geometric", "exponential", "sparse-vector"])
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one", "add-remove"])
def test_it_tells_normal_rows_from_anomalies(rows, mechanism, neighbours):
    budget = Budget(90.0, 1e-6, neighbours)
    detector = certain(mechanism=mechanism, total_budget=budget).fit(rows)
    assert detector.predict([CENTRE, CORNER]).tolist() == [1, -1]
    assert detector.answer(CENTRE) is True
    assert detector.answer(np.array(CORNER)) is False


@pytest.mark.long  # every part compiles a program of its own
@pytest.mark.parametrize("k", [1, 3])
def test_a_flow_can_vote(rows, k):
    flow = DPFlow(
        bounds=BOUNDS,
        prior=None,
        architecture=Architecture("nsf", width=8, depth=1, blocks=1, knots=4),
        steps=3,
        batch_size=20,
    )
    detector = DPEnsembleDetector(
        k, flow, epsilon_per_query=25.0, total_budget=Budget(90.0, 1e-6), contamination=0.01
    ).fit(rows[:100])
    assert set(detector.predict([CENTRE, [9.0, 9.0]])) <= {1, -1}
    assert detector.answer([9.0, 9.0]) is False


@pytest.mark.parametrize("each", [25, pytest.param(1250, marks=pytest.mark.long)])
def test_of_many_questions_from_eight_threads_a_hundred_are_answered(rows, each):
    detector = ensemble(total_budget=Budget(cost_of(100), 1e-6)).fit(rows)
    assert detector.remaining_queries() == 100
    told = []

    def ask():
        for _ in range(each):
            with contextlib.suppress(BudgetError):
                told.append(detector.answer(CENTRE))

    crowd = [threading.Thread(target=ask) for _ in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert len(told) == 100
    assert detector.remaining_queries() == 0
    assert detector.spent() == pytest.approx(detector.guarantee_.epsilon)


def test_a_batch_is_answered_whole_or_not_looked_at(rows, monkeypatch):
    detector = ensemble(total_budget=Budget(cost_of(5), 1e-6)).fit(rows)
    looked = []
    honest = members.Member.says_normal
    monkeypatch.setattr(
        members.Member, "says_normal", lambda self, x: looked.append(1) or honest(self, x)
    )
    with pytest.raises(BudgetError, match="allows 5 more, but 6 were requested") as refusal:
        detector.predict(rows[:6])
    assert looked == []
    assert "\n" not in str(refusal.value)
    assert len(detector.predict(rows[:5])) == 5
    assert len(looked) == 5
    with pytest.raises(BudgetError, match="allows 0 more"):
        detector.answer(CENTRE)


def test_a_saved_ensemble_goes_on_where_it_was(rows, tmp_path):
    detector = certain().fit(rows)
    total = detector.remaining_queries()
    detector.answer(CENTRE)
    detector.save(path := tmp_path / "e.dpflow")
    again = load(path)
    assert again.remaining_queries() == detector.remaining_queries() == total - 1
    assert again.predict([CENTRE, CORNER]).tolist() == [1, -1]
    assert detector.remaining_queries() == total - 3
    assert again.guarantee_ == detector.guarantee_
    assert again.spent() == detector.spent()
    assert os.stat(path).st_mode & 0o077 == 0


def test_saving_again_is_harmless_and_a_second_file_is_refused(rows, tmp_path):
    detector = certain().fit(rows)
    detector.save(path := tmp_path / "e.dpflow")
    detector.answer(CENTRE)
    detector.save(path)
    left = load(path).remaining_queries()
    assert left == detector.remaining_queries()
    with pytest.raises(InputError, match="a second file would have its own budget"):
        detector.save(tmp_path / "f.dpflow")
    assert not (tmp_path / "f.dpflow").exists()


def test_without_its_file_it_answers_nothing(rows, tmp_path):
    detector = certain().fit(rows)
    detector.save(path := tmp_path / "e.dpflow")
    path.unlink()
    with pytest.raises(InputError, match="cannot charge"):
        detector.answer(CENTRE)


ASK = """
import sys
from dpflows import BudgetError, load
detector = load(sys.argv[1])
try:
    while True:
        print(int(detector.answer([0.0, 0.0])), flush=True)
except BudgetError:
    pass
"""
DIE = """
import os, signal, sys
from dpflows import load
from dpflows.anomaly import ensemble
ensemble.count_normal = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
load(sys.argv[1]).answer([0.0, 0.0])
"""


@pytest.mark.long
def test_two_processes_share_one_file(rows, tmp_path):
    detector = ensemble(total_budget=Budget(cost_of(40), 1e-6)).fit(rows)
    detector.save(path := tmp_path / "e.dpflow")
    command = [sys.executable, "-c", ASK, str(path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=120)[0].split() for process in both]
    assert sum(map(len, told)) == 40
    assert detector.remaining_queries() == 0


def test_a_kill_between_charge_and_answer_costs_the_charge(rows, tmp_path):
    detector = certain().fit(rows)
    detector.save(path := tmp_path / "e.dpflow")
    left = detector.remaining_queries()
    done = subprocess.run([sys.executable, "-c", DIE, str(path)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert load(path).remaining_queries() == detector.remaining_queries() == left - 1


@pytest.mark.long
def test_a_seed_makes_it_reproducible_and_is_stamped(rows, tmp_path):
    told = [ensemble(insecure_test_seed=7).fit(rows).predict(rows[:30]).tolist() for _ in range(2)]
    assert told[0] == told[1]
    assert set(told[0]) == {1, -1}
    detector = ensemble(insecure_test_seed=7).fit(rows)
    detector.save(tmp_path / "e.dpflow")
    for model in (detector, load(tmp_path / "e.dpflow")):
        assert TEST_SEED_STAMP in model.guarantee_.stamps
        assert TEST_SEED_STAMP in model.privacy_statement()


def test_without_a_seed_it_is_not_reproducible(rows):
    """False alarms: 60 nearly fair coins fall twice alike once in 1e15 runs."""
    detector = ensemble().fit(rows)
    assert (detector.predict(rows[:60]) != detector.predict(rows[:60])).any()


def test_it_says_that_it_is_internal(rows, tmp_path):
    detector = certain().fit(rows)
    assert INTERNAL_STAMP not in repr(certain())
    assert INTERNAL_STAMP in repr(detector)
    assert detector.privacy_statement().startswith(INTERNAL_STAMP)
    header, _ = detector.to_file()
    assert header["internal"] is True
    assert header["stamp"] == INTERNAL_STAMP
    assert detector.guarantee_.is_private


@pytest.mark.parametrize("name", ["score_samples", "decision_function"])
def test_scores_are_refused_with_the_reason(rows, name):
    detector = certain().fit(rows)
    with pytest.raises(AttributeError, match="scores would not be private"):
        getattr(detector, name)
    assert not hasattr(detector, name)
    with pytest.raises(AttributeError, match="no attribute 'sample'"):
        detector.sample  # noqa: B018


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_a_fitted_ensemble_cannot_be_copied(rows, duplicate):
    with pytest.raises(InputError, match="its own budget"):
        duplicate(certain().fit(rows))


def test_a_clone_is_unfitted_and_has_the_settings():
    detector = certain(mechanism="sparse-vector", alarms=3, n_jobs=2)
    twin = clone(detector)
    assert repr(twin) == repr(detector)
    for ask in (twin.remaining_queries, twin.spent, twin.privacy_statement, twin.to_file):
        with pytest.raises(NotFittedError):
            ask()
    with pytest.raises(NotFittedError):
        twin.predict([CENTRE])


def test_frames_are_read_by_name(rows):
    frame = pd.DataFrame(rows, columns=["weight", "height"])
    detector = certain().fit(frame)
    assert list(detector.feature_names_in_) == ["weight", "height"]
    assert detector.answer(pd.DataFrame({"height": [0.0], "weight": [0.0]})) is True


def test_a_part_that_cannot_be_fitted_votes_and_nothing_is_said(rows, monkeypatch, capfd, caplog):
    """Two of five parts fail: three normal votes are left, and nobody hears of it."""
    honest, fitted = DPGaussian.fit, []

    def fails(self, X, y=None):
        fitted.append(1)
        if len(fitted) in (2, 3):  # the first one is the rehearsal
            raise FloatingPointError("row 7 holds 3.14159")
        return honest(self, X)

    monkeypatch.setattr(DPGaussian, "fit", fails)
    caplog.set_level(logging.DEBUG)
    detector = certain().fit(rows)
    monkeypatch.undo()
    assert [member.density is None for member in detector._voters._members].count(True) == 2
    assert detector.predict([CENTRE, CORNER]).tolist() == [1, -1]
    assert "3.14159" not in "".join(capfd.readouterr()) + caplog.text


def test_a_failed_part_is_still_failed_after_loading(rows, monkeypatch, tmp_path):
    monkeypatch.setattr(members, "fit_part", lambda *_: (None, {}, 0.0))
    detector = certain().fit(rows)
    detector.save(tmp_path / "e.dpflow")
    assert load(tmp_path / "e.dpflow").answer(CENTRE) is False


def test_what_fails_on_made_up_rows_is_raised(rows, monkeypatch):
    """Otherwise a broken worker would make an ensemble that says anomaly to everything."""
    monkeypatch.setattr(DPGaussian, "fit", lambda self, X, y=None: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        certain().fit(rows)


def test_made_up_rows_are_of_the_schema_and_not_of_the_table():
    columns = Schema.from_bounds([0, 0], [100, 1], names=["age", "dose"])
    made_up = members.made_up_rows(Encoding(columns), 500, Entropy.from_os())
    assert made_up.min() >= 0
    assert 50 < made_up[:, 0].max() <= 100
    assert made_up[:, 1].max() <= 1


def test_where_the_number_of_rows_is_hidden_few_rows_raise_nothing():
    budget = Budget(90.0, 1e-6, "add-remove")
    detector = certain(total_budget=budget).fit(np.zeros((1, 2)))
    assert detector.answer(CENTRE) is False


def test_answers_leave_no_trace_in_the_object(rows):
    """Everything that the object shows is the same before and after, but for the charges."""
    detector = ensemble().fit(rows)

    def shown():
        public = {k: v for k, v in vars(detector).items() if not k.startswith("_")}
        return repr(detector), repr(public), str(vars(detector._voters))

    before = shown()
    detector.predict(rows[:20])
    assert shown() == before


def test_nothing_but_the_answer_is_said(rows, capfd, caplog, tmp_path):
    caplog.set_level(logging.DEBUG, logger="dpflows")
    detector = ensemble().fit(rows)
    detector.save(tmp_path / "e.dpflow")
    answers = detector.predict(rows[:20])
    assert (answers.dtype, set(answers.tolist()) <= {1, -1}) == (np.int64, True)
    assert type(detector.answer(CENTRE)) is bool
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_no_row_is_in_the_file(rows, tmp_path):
    """False alarms: eight bytes do not meet by chance. Bounds are values of some rows."""
    detector = certain().fit(rows)
    detector.save(path := tmp_path / "e.dpflow")
    content = path.read_bytes()
    cells = rows[np.abs(rows) < 4]
    assert not [cell for cell in cells if cell.tobytes() in content]
    assert rows[0].tobytes() in b"x" + rows.tobytes()  # the search has power


def test_integers_and_schemas_are_understood():
    schema = Schema.from_bounds([0, 0], [100, 1], names=["age", "dose"])
    chance = np.random.default_rng()
    table = pd.DataFrame({"age": chance.integers(40, 60, 300), "dose": chance.random(300)})
    detector = certain()
    detector.estimator = DPGaussian(schema=schema)
    detector.fit(table)
    assert detector.predict(pd.DataFrame({"age": [50, 2], "dose": [0.5, 0.5]})).tolist() == [1, -1]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::dpflows.errors.RepeatedFitWarning")
def test_thresholds_from_public_labels(rows):
    public = (np.vstack([normal_rows(100), np.full((50, 2), 3.9)]), [1] * 100 + [-1] * 50)
    for criterion in ("accuracy", "youden"):
        detector = certain(threshold=criterion, public=public).fit(rows)
        assert detector.predict([CENTRE, CORNER]).tolist() == [1, -1]
    assert certain(threshold=50.0).fit(rows).answer(CENTRE) is False
    assert certain(threshold=-50).fit(rows).answer(CENTRE) is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"k": 400}, "k must be at most half the number of rows"),
        ({"estimator": DPGaussian()}, "bounds are not declared"),
        ({"estimator": None}, "bounds are not declared"),
        ({"estimator": DPGaussian(bounds=BOUNDS, radius=-1.0)}, "radius must be positive"),
        ({"estimator": "gaussian"}, "estimator must be a density estimator"),
        ({"epsilon_per_query": -1.0}, "epsilon_per_query must be a positive"),
        ({"total_budget": Budget(float("inf"), 1e-6)}, "total_budget.epsilon must be finite"),
        ({"epsilon_per_query": 4e-4}, "at least 1/2000 of total_budget.epsilon"),
        ({"mechanism": "coin"}, "mechanism must be one of"),
        ({"contamination": 0.9}, "contamination must be in"),
        ({"threshold": "mine"}, "threshold must be a number, part"),
        ({"threshold": float("nan")}, "threshold must be a finite number"),
        ({"threshold": "youden"}, r"public must be \(rows, labels\)"),
        ({"threshold": "youden", "public": ([CENTRE], [1])}, "rows of both kinds"),
        ({"threshold": "youden", "public": ([CENTRE], [1, -1])}, "one label per row"),
        ({"alarms": 0}, "alarms must be at least 1"),
        ({"accountant": "guess"}, "accountant must be"),
        ({"backend": "abacus"}, "backend must be"),
    ],
)
def test_mistakes_are_one_line(rows, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        ensemble().set_params(**changes).fit(rows)
    assert "\n" not in str(caught.value)


def test_a_question_that_no_budget_answers_is_refused_before_rows_are_read():
    with pytest.raises(BudgetError, match="decrease it, or increase total_budget"):
        ensemble(epsilon_per_query=3.0).fit("missing.csv")


def test_wrong_questions_are_refused_and_cost_nothing(rows):
    detector = certain().fit(rows)
    left = detector.remaining_queries()
    for wrong, message in [
        ([1.0, 2.0, 3.0], "expecting 2 features"),
        ([CENTRE, CORNER], "one row, got 2"),
        ([np.nan, 0.0], "must be filled"),
    ]:
        with pytest.raises(InputError, match=message):
            detector.answer(wrong)
    assert detector.remaining_queries() == left
