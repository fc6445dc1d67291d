"""One charge, one model: whatever is kept of a run, copied or started again."""

import copy
import hashlib
import os
import pickle
import shutil

import numpy as np
import pytest
from sklearn.base import clone

from dpflows import Budget, DPAnomalyDetector, DPFlow, DPGaussian, InputError, load
from dpflows.estimators.charging import Payment
from dpflows.files import model_bytes
from dpflows.models.architectures import Architecture
from dpflows.privacy.ledger import Ledger
from dpflows.training.dp_sgd import CHUNK, Callbacks

ROWS = np.random.default_rng(5).normal(size=(200, 2)).clip(-4, 4)
SMALL = Architecture("maf", width=4, depth=1, blocks=1)


class Killed(BaseException):
    """Stands for a SIGKILL."""


def flow():
    return DPFlow(1.0, 1e-4, bounds=(-4, 4), architecture=SMALL, steps=2 * CHUNK, batch_size=20)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "clinic.ledger", cap=Budget(3.0, 1e-4))


def killed(*args, **options):
    raise Killed


def interrupted(ledger, path, then=killed):
    """A run that was charged and stopped after its first chunk."""
    with pytest.raises(Killed):
        flow().fit(ROWS, ledger=ledger, checkpoint=path, callbacks=Callbacks(on_progress=then))
    return path


def digest(model):
    header, arrays = model._file_content()
    return hashlib.sha256(model_bytes(header=header, arrays=arrays)).hexdigest()


def released(ledger, model):
    return ledger.state_of(model.receipt_.run)


def test_a_model_in_memory_is_released_and_save_confirms_it(ledger, tmp_path):
    model = flow().fit(ROWS, ledger=ledger, checkpoint=tmp_path / "run")
    assert released(ledger, model).artefact == digest(model)
    for name in ("a", "b"):
        model.save(tmp_path / name)
        content = (tmp_path / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest(model)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "clinic.ledger"]
    model.is_prior_trained_ = True
    with pytest.raises(InputError, match="changed after fit"):
        model.save(tmp_path / "c")


def test_a_copy_of_a_run_gives_no_second_model(ledger, tmp_path):
    """The original ends first; its copy is refused before it learns anything."""
    kept = interrupted(ledger, tmp_path / "run")
    shutil.copy(kept, tmp_path / "copy")
    model, other = flow().fit(ROWS, ledger=ledger, checkpoint=kept), flow()
    with pytest.raises(InputError, match="was already released"):
        other.fit(ROWS, ledger=ledger, checkpoint=tmp_path / "copy")
    assert not hasattr(other, "density_")
    assert [entry.state for entry in ledger.history()[1:]] == ["RESERVED", "RELEASED"]
    assert released(ledger, model).artefact == digest(model)


def race(ledger, tmp_path):
    """A copy of a run ends while the original still learns; both, and what was refused."""
    kept, models = tmp_path / "run", [flow(), flow()]

    def overtake(progress):
        if progress.step == CHUNK:
            shutil.copy(kept, tmp_path / "copy")
            models[1].fit(ROWS, ledger=ledger, checkpoint=tmp_path / "copy")

    try:
        watch = Callbacks(on_progress=overtake)
        models[0].fit(ROWS, ledger=ledger, checkpoint=kept, callbacks=watch)
    except InputError as error:
        return models, str(error)
    return models, ""


@pytest.mark.long
def test_a_copy_that_is_quicker_leaves_the_original_without_a_model(ledger, tmp_path):
    models, said = race(ledger, tmp_path)
    assert "was released with another artefact" in said
    assert [hasattr(model, "density_") for model in models] == [False, True]
    with pytest.raises(ValueError, match="not fitted"):
        models[0].sample(3)
    assert released(ledger, models[1]).artefact == digest(models[1])
    # What the loser kept is worth nothing either.
    with pytest.raises(InputError, match="another artefact"):
        flow().fit(ROWS, ledger=ledger, checkpoint=tmp_path / "run")


def test_the_test_catches_models_that_are_not_marked(ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(Payment, "hand_out", lambda payment, model: payment)
    models, said = race(ledger, tmp_path)
    assert said == ""
    assert digest(models[0]) != digest(models[1])
    assert len(ledger.odometer()) == 1


@pytest.mark.parametrize("where", ["before the mark", "after the mark"])
def test_another_start_of_a_finished_run_gives_the_identical_model(
    ledger, tmp_path, monkeypatch, where
):
    honest, estimator = Ledger.release, flow()

    def release(self, receipt, *, artefact=""):
        if where == "after the mark":
            honest(self, receipt, artefact=artefact)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "release", release)
        with pytest.raises(Killed):
            estimator.fit(ROWS, ledger=ledger, checkpoint=tmp_path / "run")
    assert not hasattr(estimator, "density_")
    again, once_more = (
        flow().fit(ROWS, ledger=ledger, checkpoint=tmp_path / "run") for _ in range(2)
    )
    assert digest(again) == digest(once_more) == released(ledger, again).artefact
    np.testing.assert_array_equal(again.score_samples(ROWS), once_more.score_samples(ROWS))
    assert again.steps == 2 * CHUNK
    again.save(tmp_path / "m")
    assert load(tmp_path / "m").score(ROWS) == again.score(ROWS)
    assert len(ledger.odometer()) == 1


@pytest.mark.long
def test_a_run_goes_on_with_its_own_table_alone(ledger, tmp_path):
    kept, other = interrupted(ledger, tmp_path / "run"), ROWS.copy()
    other[3, 0] += 0.5
    with pytest.raises(InputError, match="belongs to another table"):
        flow().fit(other, ledger=ledger, checkpoint=kept)
    model = flow().fit(ROWS, ledger=ledger, checkpoint=kept)
    assert len(ledger.odometer()) == 1
    assert released(ledger, model).is_released


def test_a_detector_that_cannot_be_marked_is_not_fitted(ledger, monkeypatch):
    detector = DPAnomalyDetector(DPGaussian(1.0, 1e-5, bounds=(-4, 4)))
    monkeypatch.setattr(Ledger, "release", killed)
    with pytest.raises(Killed):
        detector.fit(ROWS, ledger=ledger)
    assert [name for name in vars(detector) if name.endswith("_")] == []


@pytest.mark.parametrize("wrap", [lambda e: e, DPAnomalyDetector])
def test_a_fitted_estimator_says_how_to_ship_it(wrap, tmp_path):
    unfitted = wrap(DPGaussian(1.0, 1e-5, bounds=(-4, 4)))
    assert type(pickle.loads(pickle.dumps(unfitted))) is type(clone(unfitted))
    fitted = clone(unfitted).fit(ROWS)
    with pytest.raises(InputError, match=r"^a fitted DPGaussian cannot be pickled: .*load\(path\)"):
        pickle.dumps(fitted)
    for twin in (copy.copy(fitted), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(twin.score_samples(ROWS), fitted.score_samples(ROWS))


def test_threads_share_a_fitted_estimator():
    joblib = pytest.importorskip("joblib")
    fitted = DPGaussian(1.0, 1e-5, bounds=(-4, 4)).fit(ROWS)
    scores = joblib.Parallel(n_jobs=2, prefer="threads")(
        joblib.delayed(fitted.score)(part) for part in (ROWS[:100], ROWS[100:])
    )
    assert np.mean(scores) == pytest.approx(fitted.score(ROWS))
