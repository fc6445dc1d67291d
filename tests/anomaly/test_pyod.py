"""PyOD's conventions, tested by themselves: scores up, labels 0 and 1, nothing private kept."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from dpflows import DPAnomalyDetector, DPGaussian
from dpflows.anomaly.pyod import PyODAdapter
from dpflows.errors import InputError

RNG = np.random.default_rng(6)
ROWS = RNG.normal(size=(2000, 2)).clip(-6, 6)
ASKED = np.vstack([ROWS[:100], RNG.uniform(4, 6, size=(20, 2)), [[7.0, 0.0]]])


def adapter(epsilon=1.0, **settings):
    density = DPGaussian(epsilon, 1e-5, bounds=(-6, 6), insecure_test_seed=1)
    return PyODAdapter(DPAnomalyDetector(density, **settings))


@pytest.fixture(scope="module")
def fitted():
    return adapter(contamination=0.05).fit(ROWS)


def test_scores_rise_and_labels_are_those_above_the_threshold(fitted):
    scores, labels = fitted.decision_function(ASKED), fitted.predict(ASKED)
    assert np.isfinite(scores).all()
    assert scores[-1] == scores.max()  # outside the bounds
    np.testing.assert_array_equal(labels, scores > fitted.threshold_)
    assert labels.dtype.kind == "i"
    assert labels.shape == (len(ASKED),)
    assert roc_auc_score(np.arange(len(ASKED)) >= 100, scores) > 0.95


def test_labels_are_the_detectors_the_other_way_round(fitted):
    labels = {1: 0, -1: 1}
    expected = [labels[int(label)] for label in fitted.detector_.predict(ASKED)]
    assert fitted.predict(ASKED).tolist() == expected
    assert fitted.threshold_ == -fitted.detector_.offset_
    assert fitted.contamination == 0.05


@pytest.mark.parametrize(
    ("name", "way_out"), [("decision_scores_", "decision_function"), ("labels_", "predict")]
)
def test_values_of_training_rows_are_not_kept(fitted, name, way_out):
    assert not hasattr(fitted, name)
    with pytest.raises(InputError, match=rf"call {way_out}\(X\) .* or fit with epsilon=inf"):
        getattr(fitted, name)
    sizes = [np.size(value) for value in vars(fitted).values()]
    assert max(sizes) < len(ROWS)


def test_without_privacy_all_is_as_usual():
    plain = adapter(math.inf, contamination=0.1, threshold="bought").fit(ROWS, y=np.ones(2000))
    np.testing.assert_array_equal(plain.decision_scores_, plain.decision_function(ROWS))
    np.testing.assert_array_equal(plain.labels_, plain.predict(ROWS))
    assert plain.labels_.sum() == 200


def test_a_private_fit_forgets_what_an_earlier_one_kept():
    model = adapter(math.inf).fit(ROWS)
    assert hasattr(model, "labels_")
    model.set_params(detector__estimator__epsilon=1.0).fit(ROWS)
    assert not hasattr(model, "labels_")


def test_a_fitted_detector_answers_at_once(fitted):
    np.testing.assert_array_equal(
        PyODAdapter(fitted.detector_).predict(ASKED), fitted.predict(ASKED)
    )


def test_a_chance_is_not_made_up(fitted):
    assert not hasattr(fitted, "predict_proba")


def test_manners():
    model = adapter()
    assert clone(model).get_params()["detector__contamination"] == 0.1
    with pytest.raises(NotFittedError):
        model.predict(ASKED)
    with pytest.raises(NotFittedError):
        _ = model.threshold_
    with pytest.raises(InputError, match="detector must be a DPAnomalyDetector"):
        model.set_params(detector=clone(model.detector.estimator)).fit(ROWS)
