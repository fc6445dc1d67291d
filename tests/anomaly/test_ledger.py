"""Answers and thresholds that are charged to the ledger of the data set."""

import hashlib
import shutil

import numpy as np
import pytest

from anomaly.voters import BOUNDS, cost_of, ensemble, normal_rows
from dpflows import (
    Budget,
    BudgetError,
    DPAnomalyDetector,
    DPEnsembleDetector,
    DPGaussian,
    InputError,
    load,
)
from dpflows.anomaly import ensemble as voting_ensemble
from dpflows.anomaly.query_budget import LedgerCounter
from dpflows.privacy.events import PureEvent, Sensitivity
from dpflows.privacy.ledger import Ledger

CENTRE = [0.0, 0.0]


@pytest.fixture(scope="module")
def rows():
    return normal_rows(200)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "clinic.ledger", cap=Budget(50.0, 1e-6))


def saved(rows, ledger, path, **settings):
    detector = ensemble(**settings).fit(rows, ledger=ledger)
    detector.save(path)
    return detector


def test_the_ledger_counts_and_fit_itself_costs_nothing(rows, ledger):
    detector = ensemble(total_budget=Budget(cost_of(5), 1e-6)).fit(rows, ledger=ledger)
    assert ledger.spent() == 0
    detector.predict(rows[:3])
    assert detector.remaining_queries() == 2
    assert ledger.spent() == pytest.approx(cost_of(3)) == pytest.approx(detector.spent())
    with pytest.raises(BudgetError, match="allows 2 more"):
        detector.predict(rows[:3])
    entries = ledger.history()[1:]
    assert [entry.state for entry in entries] == ["RESERVED", "RELEASED"]
    assert detector._voters._identity in entries[0].purpose


def test_a_copied_file_cannot_be_asked_again(rows, ledger, tmp_path):
    saved(rows, ledger, tmp_path / "e.dpflow", total_budget=Budget(cost_of(4), 1e-6))
    shutil.copy(tmp_path / "e.dpflow", tmp_path / "copy.dpflow")
    first, second = load(tmp_path / "e.dpflow"), load(tmp_path / "copy.dpflow")
    assert len(first.predict(rows[:3], ledger=ledger)) == 3
    with pytest.raises(BudgetError, match="allows 1 more"):
        second.predict(rows[:2], ledger=ledger)
    assert second.answer(CENTRE, ledger=ledger) in (True, False)
    for detector in (first, second, load(tmp_path / "e.dpflow")):
        with pytest.raises(BudgetError, match="allows 0 more"):
            detector.answer(CENTRE, ledger=ledger)


def test_without_its_ledger_it_answers_nothing(rows, ledger, tmp_path):
    saved(rows, ledger, tmp_path / "e.dpflow")
    detector = load(tmp_path / "e.dpflow")
    for ask in (detector.remaining_queries, detector.spent, lambda: detector.answer(CENTRE)):
        with pytest.raises(InputError, match="does not answer without it"):
            ask()
    other = Ledger(tmp_path / "other.ledger", cap=Budget(50.0, 1e-6))
    with pytest.raises(InputError, match="got another"):
        detector.answer(CENTRE, ledger=other)
    detector.answer(CENTRE, ledger=ledger)
    assert detector.remaining_queries() == detector.plan_.charges - 1  # it knows it now
    assert (other.spent(), ledger.spent() > 0) == (0.0, True)


def test_an_ensemble_without_a_ledger_takes_none_later(rows, ledger):
    detector = ensemble().fit(rows)
    with pytest.raises(InputError, match="fitted without one"):
        detector.answer(CENTRE, ledger=ledger)


def test_saving_it_twice_is_harmless(rows, ledger, tmp_path):
    detector = saved(rows, ledger, tmp_path / "e.dpflow")
    detector.answer(CENTRE)
    detector.save(tmp_path / "f.dpflow")
    left = detector.remaining_queries()
    again = load(tmp_path / "f.dpflow")
    again.answer(CENTRE, ledger=ledger)
    assert again.remaining_queries() == detector.remaining_queries() == left - 1


@pytest.mark.parametrize("mechanism", ["geometric", "sparse-vector"])
def test_the_cap_of_the_ledger_holds_too(rows, tmp_path, mechanism, monkeypatch):
    """Others spend from the same ledger, so it may end before the ensemble's own budget."""
    small = Ledger(tmp_path / "small.ledger", cap=Budget(1.0, 1e-6))
    detector = DPEnsembleDetector(
        5,
        DPGaussian(bounds=BOUNDS),
        epsilon_per_query=0.3,
        total_budget=Budget(9.0, 1e-6),
        mechanism=mechanism,
    ).fit(rows, ledger=small)
    looked, honest = [], voting_ensemble.count_normal
    monkeypatch.setattr(voting_ensemble, "count_normal", lambda *a: looked.append(1) or honest(*a))
    with pytest.raises(BudgetError, match="cap is epsilon 1"):
        detector.predict(rows[:9])
    assert (looked if mechanism == "geometric" else [], small.spent()) == ([], 0.0)
    assert len(detector.predict(rows[:3])) == 3
    assert small.spent() <= 1.0


def test_a_stream_that_was_not_committed_is_not_asked_again(rows, ledger, monkeypatch):
    """What is charged on a page that ends with an error is taken back, and the stream with it."""
    detector = ensemble(mechanism="sparse-vector", epsilon_per_query=0.3).fit(rows, ledger=ledger)
    voting = detector._voters._voting

    def broken(members, asked):
        yield len(members)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(voting_ensemble, "count_normal", broken)
        with pytest.raises(KeyboardInterrupt):
            detector.predict(rows[:2])
    assert (voting._stream, voting._left(), ledger.spent()) == (None, 0, 0.0)
    detector.answer(CENTRE)
    assert ledger.spent() == pytest.approx(0.3, abs=1e-3)


def test_a_seed_has_no_price(rows, ledger):
    with pytest.raises(InputError, match="NOT PRIVATE"):
        ensemble(insecure_test_seed=1).fit(rows, ledger=ledger)


@pytest.mark.parametrize("name", [7, "", "x", ["a"], "../../x", "A" * 32])
def test_names_in_files_that_cannot_be(rows, name, tmp_path):
    from dpflows.files import read_model, write_model

    ensemble().fit(rows).save(tmp_path / "e.dpflow")
    header, arrays = read_model(tmp_path / "e.dpflow")
    write_model(tmp_path / "f.dpflow", header=header | {"ledger": name}, arrays=arrays)
    with pytest.raises(InputError, match=r"^[^\n]+$"):
        load(tmp_path / "f.dpflow")


def test_books_count_by_ensemble(ledger):
    event = PureEvent(epsilon=Sensitivity.uniformly(0.25))
    first, second = (LedgerCounter(ledger, identity * 32, event) for identity in "ab")
    with first.opened() as transaction:
        transaction.write(3)
    with second.opened() as transaction:
        assert transaction.taken == 0
        transaction.write(1)
    with first.opened() as transaction:
        assert transaction.taken == 3
    assert ledger.spent() == pytest.approx(1.0, abs=1e-3)


def detector_for(**settings):
    return DPAnomalyDetector(DPGaussian(3.0, 1e-5, bounds=BOUNDS), **settings)


def test_a_bought_threshold_is_charged_with_the_density_in_one_entry(rows, ledger, tmp_path):
    detector = detector_for().fit(rows, ledger=ledger)
    assert [entry.state for entry in ledger.history()] == ["OPENED", "RESERVED", "RELEASED"]
    charge = ledger.history()[1]
    assert charge.events == detector.guarantee_.events
    assert charge.events[-1].purpose == "threshold"
    # What is handed out in memory is released: the ledger knows the file before it is written.
    assert ledger.state_of(charge.run).is_released
    detector.save(tmp_path / "d.dpflow")
    digest = hashlib.sha256((tmp_path / "d.dpflow").read_bytes()).hexdigest()
    assert ledger.state_of(charge.run).artefact == digest
    assert load(tmp_path / "d.dpflow").receipt_ == detector.receipt_
    assert len(ledger.odometer()) == 1


def test_a_free_threshold_adds_nothing(rows, ledger):
    detector = detector_for(threshold="samples").fit(rows, ledger=ledger)
    assert ledger.history()[1].events == detector.estimator_.plan_.events
    around = DPAnomalyDetector.around(detector.estimator_)
    assert around.receipt_ == detector.receipt_


def test_a_refused_detector_is_not_fitted(rows, tmp_path):
    """The density alone, half of the squared Gaussian budget of epsilon 3, would find room."""
    small = Ledger(tmp_path / "small.ledger", cap=Budget(2.5, 1e-5))
    detector = detector_for(threshold="bought", threshold_share=0.5)
    with pytest.raises(BudgetError):
        detector.fit(rows, ledger=small)
    assert (small.spent(), hasattr(detector, "estimator_")) == (0.0, False)
    alone = detector.fit(rows).estimator_.guarantee_.epsilon
    assert alone < 2.5


def test_the_adapter_for_other_libraries_charges_too(rows, ledger):
    from dpflows.anomaly.pyod import PyODAdapter

    adapter = PyODAdapter(detector_for()).fit(np.asarray(rows), ledger=ledger)
    assert adapter.detector_.receipt_.ledger == ledger.identity
