"""Every detector: scikit-learn manners, honest prices, files that last and refuse forgeries.

A new name in ``DETECTORS`` must be given a maker here, or the suite fails.
"""

import copy
import importlib

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_outlier_detector
from sklearn.exceptions import NotFittedError

import dpflows
from dpflows import Budget, DPAnomalyDetector, DPEnsembleDetector, DPGaussian
from dpflows.anomaly.persistence import DETECTORS, load
from dpflows.errors import InputError
from dpflows.files import write_model
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.randomness import TEST_SEED_STAMP

_RNG = np.random.default_rng(4)
ROWS = _RNG.normal(size=(600, 2)).clip(-4, 4)
#: Two rows that no detector can mistake: the chance that noise turns one is below 1e-6.
CLEAR = np.array([[0.0, 0.0], [4.0, -4.0]])
BOUNDS = (-4, 4)


def _threshold(**changes):
    return DPAnomalyDetector(DPGaussian(3.0, 1e-5, bounds=BOUNDS, **changes), contamination=0.02)


def _free(**changes):
    return _threshold(**changes).set_params(threshold="samples")


def _ensemble(**changes):
    return DPEnsembleDetector(
        3,
        DPGaussian(bounds=BOUNDS),
        epsilon_per_query=20.0,
        total_budget=Budget(90.0, 1e-6),
        contamination=0.02,
        **changes,
    )


MAKERS = {
    "DPAnomalyDetector": _threshold,
    "DPAnomalyDetector (free)": _free,
    "DPEnsembleDetector": _ensemble,
}

every_detector = pytest.mark.parametrize("name", MAKERS)


def _fitted(name, rows=ROWS):
    """A fresh one with a seed, for answers may be used up."""
    return MAKERS[name](insecure_test_seed=1).fit(rows)


def test_every_detector_is_tested_and_exported():
    assert {type(make()).__name__ for make in MAKERS.values()} == set(DETECTORS)
    for name, module in DETECTORS.items():
        assert getattr(dpflows, name) is getattr(importlib.import_module(module), name)


@every_detector
def test_parameters_are_only_stored(name):
    detector = MAKERS[name]().set_params(contamination=9.0)
    assert repr(clone(detector).get_params()) == repr(detector.get_params())
    assert is_outlier_detector(detector)


@every_detector
def test_answers_are_plus_and_minus_one(name):
    answers = _fitted(name).predict(CLEAR)
    assert answers.tolist() == [1, -1]
    assert answers.dtype == np.int64


@every_detector
def test_rows_outside_the_bounds_are_anomalies(name):
    assert _fitted(name).predict(np.array([[4.5, 0.0], [0.0, -1e300]])).tolist() == [-1, -1]


@every_detector
def test_fit_and_predict_at_once(name):
    """The training rows are the ones asked about, so their answers are private."""
    detector = MAKERS[name](insecure_test_seed=1)
    if name == "DPEnsembleDetector":
        detector.set_params(k=2)  # four answers are paid for, so four rows
    assert set(detector.fit_predict(ROWS[:4])) <= {1, -1}


@every_detector
def test_the_guarantee_is_what_the_events_cost(name):
    promise = _fitted(name).guarantee_
    prices = {"delta": promise.delta, "neighbours": promise.neighbours}
    assert epsilon_of(promise.events, accountant=promise.accountant, **prices) == promise.epsilon
    assert promise.epsilon <= (90.0 if name == "DPEnsembleDetector" else 3.0)


@every_detector
def test_a_test_seed_is_stamped_and_without_one_the_guarantee_stands(name):
    assert TEST_SEED_STAMP in _fitted(name).guarantee_.stamps
    assert TEST_SEED_STAMP in _fitted(name).privacy_statement()
    honest = MAKERS[name]().fit(ROWS)
    assert honest.guarantee_.is_private
    assert "differential privacy" in honest.privacy_statement()


@every_detector
def test_a_neighbouring_table_leaves_the_public_part_alone(name):
    neighbour = ROWS.copy()
    neighbour[0] = [4.0, -4.0]
    promises = [_fitted(name, rows).guarantee_ for rows in (ROWS, neighbour)]
    assert promises[0] == promises[1]


@every_detector
def test_a_saved_detector_comes_back_the_same(name, tmp_path):
    detector = _fitted(name)
    detector.save(tmp_path / "d.dpflow")
    again = load(tmp_path / "d.dpflow")
    assert type(again) is type(detector)
    assert again.guarantee_ == detector.guarantee_
    assert again.privacy_statement() == detector.privacy_statement()
    assert again.n_features_in_ == 2
    assert again.predict(CLEAR).tolist() == [1, -1]
    assert (tmp_path / "d.dpflow").stat().st_mode & 0o077 == 0


@every_detector
def test_frames_are_known_by_their_names(name, tmp_path):
    frame = pd.DataFrame(ROWS, columns=["weight", "height"])
    detector = _fitted(name, frame)
    detector.save(tmp_path / "d.dpflow")
    assert list(detector.feature_names_in_) == ["weight", "height"]
    asked = pd.DataFrame(CLEAR, columns=["weight", "height"])
    assert load(tmp_path / "d.dpflow").predict(asked).tolist() == [1, -1]


@every_detector
def test_wrong_questions_are_refused(name):
    with pytest.raises(NotFittedError):
        MAKERS[name]().predict(CLEAR)
    with pytest.raises(InputError, match="is expecting 2 features"):
        _fitted(name).predict(np.zeros((3, 5)))


@every_detector
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "must be filled"),
        (np.array([["secret", "1"], ["2", "3"]]), "must hold numbers, got 1 cell"),
    ],
)
def test_bad_tables_are_refused_without_quoting_them(name, table, message):
    with pytest.raises(InputError, match=message) as caught:
        MAKERS[name]().fit(table)
    assert "secret" not in str(caught.value)


@every_detector
@pytest.mark.parametrize("threshold", ["guess", True, float("nan")])
def test_thresholds_that_cannot_be(name, threshold):
    with pytest.raises(InputError, match="threshold"):
        MAKERS[name]().set_params(threshold=threshold).fit(ROWS)


@every_detector
@pytest.mark.parametrize("other", [None, 7, "text", [1], {}])
def test_files_that_lack_a_part_or_hold_another_are_refused(name, other, tmp_path):
    header, arrays = _fitted(name).to_file()
    named = header | {"detector": name.split()[0]}
    for part in header.keys() & {"guarantee", "schema", "form", "density"}:
        forged = {key: value for key, value in named.items() if key != part}
        forged |= {} if other is None else {part: other}
        write_model(tmp_path / "forged.dpflow", header=forged, arrays=arrays)
        with pytest.raises(InputError, match=r"^[^\n]+$"):
            load(tmp_path / "forged.dpflow")


@every_detector
def test_files_with_damaged_numbers_are_refused(name, tmp_path):
    header, arrays = _fitted(name).to_file()
    named = header | {"detector": name.split()[0]}
    for damaged, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        forged = arrays | {damaged: np.full_like(array, np.nan)}
        write_model(tmp_path / "forged.dpflow", header=named, arrays=forged)
        with pytest.raises(InputError):
            load(tmp_path / "forged.dpflow")


@every_detector
def test_a_copy_is_a_detector_too(name):
    """Searches over settings copy what they are given."""
    assert type(copy.deepcopy(MAKERS[name]())) is type(MAKERS[name]())
