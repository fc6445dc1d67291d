"""An adapter with the interface of PyOD detectors; PyOD itself is not needed."""

import math
from typing import Any, final

import numpy as np
from jaxtyping import Float64, Int64
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dpflows.anomaly.threshold import DPAnomalyDetector
from dpflows.errors import InputError
from dpflows.privacy.ledger import Ledger

#: The score of a row outside the declared bounds: above all others, and finite as PyOD's are.
OUTSIDE = float(np.finfo(np.float64).max)


class PrivateScoresError(InputError, AttributeError):
    """Raised for scores of the training rows, which a private detector does not store."""


@final
class PyODAdapter(BaseEstimator):
    """A threshold detector with the interface of PyOD's detectors.

    Scores are minus log-densities, so higher is more abnormal; labels are 1 for
    anomalies and 0 for normal rows, and a row is an anomaly if its score exceeds
    ``threshold_``.

    PyOD keeps the scores and labels of the training rows as ``decision_scores_`` and ``labels_``.
    Those are private values that no guarantee covers, so they are neither computed nor stored, and
    reading them is an error; without privacy (infinite epsilon) they are available as usual. There
    is no ``predict_proba``: PyOD scales scores by the least and the greatest of the training rows,
    which would be private too, and a density by itself gives no probability of being an anomaly.

    Args:
        detector: A ``DPAnomalyDetector``. A fitted one can be used without ``fit``; ``fit`` makes a
        new one with its settings.

    Guarantee:
        That of the detector, which is all that ``fit`` computes from private rows. Scores and
        labels of private rows are private.

    Example:
        >>> from dpflows import DPGaussian
        >>> rows = np.random.default_rng().normal(size=(2000, 2)).clip(-6, 6)
        >>> density = DPGaussian(epsilon=1.0, delta=1e-5, bounds=(-6, 6))
        >>> adapter = PyODAdapter(DPAnomalyDetector(density, contamination=0.05)).fit(rows)
        >>> adapter.predict(np.array([[0.0, 0.0], [5.5, -5.5]])).tolist()
        [0, 1]
        >>> hasattr(adapter, "labels_")
        False
    """

    def __init__(self, detector: DPAnomalyDetector) -> None:
        self.detector = detector

    def fit(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> "PyODAdapter":
        """Fit the detector within its budget, charged to a ledger if given; ``y`` is ignored."""
        fresh = DPAnomalyDetector(**self._told().get_params(deep=False))
        self.detector_ = fresh.fit(X, ledger=ledger)
        is_private = math.isfinite(self.detector_.guarantee_.epsilon)
        self._training_scores = None if is_private else self.decision_function(X)
        return self

    def decision_function(self, X: Any) -> Float64[np.ndarray, " n"]:
        """How abnormal each row is; the greatest finite number outside the bounds."""
        logs = np.asarray(self._fitted().score_samples(X), np.float64)
        return np.nan_to_num(-logs, nan=OUTSIDE, posinf=OUTSIDE)

    def predict(self, X: Any) -> Int64[np.ndarray, " n"]:
        """1 for anomalies, 0 for normal rows."""
        return (self.decision_function(X) > self.threshold_).astype(np.int64)

    @property
    def contamination(self) -> float:
        """The share of rows to flag, if the threshold is a quantile."""
        return self._told().contamination

    @property
    def threshold_(self) -> float:
        """The score that anomalies exceed."""
        return -self._fitted().offset_

    @property
    def decision_scores_(self) -> Float64[np.ndarray, " n"]:
        """Scores of the training rows; available only without privacy."""
        return self._scores_of_training("decision_scores_")

    @property
    def labels_(self) -> Int64[np.ndarray, " n"]:
        """Labels of the training rows; available only without privacy."""
        return (self._scores_of_training("labels_") > self.threshold_).astype(np.int64)

    def _scores_of_training(self, name: str) -> Float64[np.ndarray, " n"]:
        self._fitted()
        scores = getattr(self, "_training_scores", None)
        if scores is None:
            method = "decision_function" if name == "decision_scores_" else "predict"
            raise PrivateScoresError(
                f"{name} would hold values of private rows, which no guarantee covers, so they are "
                f"not stored; call {method}(X) on rows of your choice and treat the result as "
                "private, or fit with epsilon=inf if no privacy is needed"
            )
        return scores

    def _told(self) -> DPAnomalyDetector:
        if not isinstance(self.detector, DPAnomalyDetector):
            kind = type(self.detector).__name__
            raise InputError(f"detector must be a DPAnomalyDetector, got {kind}")
        return self.detector

    def _fitted(self) -> DPAnomalyDetector:
        """The detector that ``fit`` made, or the one given if that is fitted."""
        found: DPAnomalyDetector = vars(self).get("detector_", self._told())
        check_is_fitted(found, "offset_")
        return found
