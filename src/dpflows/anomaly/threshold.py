"""A private density with a threshold: rows of low density are anomalies."""

import math
import os
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Int64
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted

from dpflows.anomaly.threshold_rules import (
    RULES,
    FindThreshold,
    Threshold,
    ThresholdSettings,
    left_beside,
    moved,
    together,
)
from dpflows.errors import BudgetError, InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.charging import Payment, withdrawn_on_failure
from dpflows.estimators.density import DPDensity
from dpflows.estimators.persistence import described, file_content, rebuilt
from dpflows.pipeline.plan import needed
from dpflows.privacy.accounting import guarantee_for
from dpflows.privacy.accounting.certificates import TOLERANCE, Misstated, read_guarantee
from dpflows.privacy.events import BoundedRangeEvent, Event, GaussianEvent
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.ledger import Ledger, Receipt
from dpflows.table.reading import Encoding

_PREFIX = "density/"
#: How a bought threshold was released: now, and before 0.2.
_BOUGHT = (GaussianEvent, BoundedRangeEvent)
#: How often the density's part is adjusted until density and threshold use the budget, and so
#: much of it is enough.
_TRIALS, _ENOUGH = 20, 0.99


@final
class DPAnomalyDetector(OutlierMixin, BaseEstimator):
    """Flags rows whose private density lies below a threshold.

    Args:
        estimator: An unfitted density estimator, whose epsilon is the whole budget;
            ``None`` is ``DPDensity()``.
        contamination: The share of rows to flag, in (0, 0.5], if the threshold is a quantile.
        threshold: The log-density, in original units, below which a row is an anomaly. A number, or
        a rule: ``bought``, the quantile of the training rows from noisy counts, charged to the
        budget; ``samples``, the quantile of rows that the
            fitted density generates itself (free); ``accuracy`` or ``youden``, the best on
            ``public`` (free). ``auto`` is ``bought`` for ``fit`` and ``samples`` for ``around``.
        public: Labelled rows that are public, as ``(rows, labels)`` with labels +1 for
            normal and -1 for anomalies.
        threshold_share: The share of the squared Gaussian budget for the rule ``bought``; the
        density gets the rest. ``None`` follows a public rule of budget, rows and contamination:
        between 0.05 and 0.25.

    Attributes:
        estimator_: The fitted density.
        offset_: The threshold.
        threshold_rule_: The threshold and its origin.
        guarantee_: The guarantee of density and threshold together.
        receipt_: The ledger's receipt of the charge; ``None`` without a ledger.

    Guarantee:
        ``guarantee_`` covers the density and the threshold, which are all that ``fit`` computes
        from the private rows. Everything else is post-processing of the two and may be repeated at
        no cost. Scores and predictions of private rows are themselves private: no guarantee covers
        the rows that are scored.

    Example:
        >>> from dpflows import DPGaussian
        >>> rows = np.random.default_rng().normal(size=(2000, 2)).clip(-6, 6)
        >>> density = DPGaussian(epsilon=1.0, delta=1e-5, bounds=(-6, 6))
        >>> detector = DPAnomalyDetector(density, contamination=0.05).fit(rows)
        >>> detector.predict(np.array([[0.0, 0.0], [5.5, -5.5], [9.0, 0.0]])).tolist()
        [1, -1, -1]
        >>> [event.purpose for event in detector.guarantee_.events][-1]
        'threshold'
        >>> detector.with_contamination(0.2).offset_ > detector.offset_
        True
    """

    estimator_: DensityEstimator
    threshold_rule_: Threshold
    guarantee_: Guarantee
    receipt_: Receipt | None
    _payment: Payment = Payment()

    def __init__(
        self,
        estimator: DensityEstimator | None = None,
        *,
        contamination: float = 0.1,
        threshold: float | str = "auto",
        public: Any = None,
        threshold_share: float | None = None,
    ) -> None:
        self.estimator = estimator
        self.contamination = contamination
        self.threshold = threshold
        self.public = public
        self.threshold_share = threshold_share

    @classmethod
    def around(
        cls,
        density: DensityEstimator,
        *,
        contamination: float = 0.1,
        threshold: float | str = "auto",
        public: Any = None,
    ) -> "DPAnomalyDetector":
        """A detector from a fitted density, at no further cost.

        Args:
            density: A fitted density estimator.
            contamination: The share of rows to flag.
            threshold: A number, ``samples``, which is ``auto`` here, ``accuracy`` or ``youden``.
            public: Labelled rows for the latter two.

        Guarantee:
            Reads the released density and public values: post-processing.

        Example:
            >>> from dpflows import DPGaussian
            >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-6, 6)
            >>> density = DPGaussian(epsilon=1.0, delta=1e-5, bounds=(-6, 6)).fit(rows)
            >>> detector = DPAnomalyDetector.around(density, threshold=-12)
            >>> detector.offset_, detector.guarantee_ == density.guarantee_
            (-12.0, True)
        """
        detector = cls(density, contamination=contamination, threshold=threshold, public=public)
        check_is_fitted(_checked(density), "density_")
        settings = detector._threshold_settings(auto="samples")
        if settings.rule.is_paid:
            raise InputError(
                "threshold 'bought' reads the training rows, which a fitted density no longer has; "
                "fit a DPAnomalyDetector on the rows with its own budget, or choose "
                "'samples', a number, or 'accuracy' or 'youden' with public labelled rows"
            )
        settings.rule.check(settings)
        stage = FindThreshold(settings, density.budget(), density.accountant)
        return detector._adopt(
            density, settings.rule.find(stage, density, None), density.guarantee_
        )

    def fit(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> "DPAnomalyDetector":
        """Fit the density to the rows of ``X`` and find the threshold.

        Args:
            X: A table without missing values, in any form that ``read_table`` accepts.
            y: Ignored.
            ledger: The ledger to which density and threshold are charged before the rows are used.
        """
        wanted, settings = self._wanted(), self._threshold_settings(auto="bought")
        settings.rule.check(settings)
        budget = wanted.budget()
        shape = _shape(X, wanted) if settings.rule.is_paid else (0, 0)
        stage = FindThreshold.planned(settings, budget, wanted.accountant, shape[0])
        density = _beside(stage.released, wanted, shape)
        work, payment = density.fit_with([stage], X, ledger=ledger)
        density._payment = Payment()
        with withdrawn_on_failure(self):
            promise = _total(density, stage.events, budget)
            self._adopt(density, needed(work.threshold), promise)
            self._payment = payment.hand_out(self._file_content)
        return self

    def with_contamination(self, contamination: float) -> "DPAnomalyDetector":
        """A detector with the same density for another share of anomalies, at no cost.

        The threshold is computed from the released counts, if there are any, and else from rows
        that the density generates.

        Args:
            contamination: The share of rows to flag, in (0, 0.5].

        Guarantee:
            Reads only released values: post-processing.
        """
        check_is_fitted(self, "offset_")
        found = moved(self.threshold_rule_, self.estimator_, contamination)
        if found is None:
            return DPAnomalyDetector.around(self.estimator_, contamination=contamination)
        settings = self.get_params(deep=False) | {"contamination": contamination}
        return DPAnomalyDetector(**settings)._adopt(self.estimator_, found, self.guarantee_)

    @property
    def encoding_(self) -> Encoding:
        """The encoding of rows, from the schema only."""
        return self.estimator_.encoding_

    @property
    def plan_(self) -> Any:
        """The plan of the density's fit."""
        return self.estimator_.plan_

    def score_samples(self, X: Any) -> Float[np.ndarray, " n"]:
        """The log-density of each row; rows outside the declared bounds have ``-inf``."""
        check_is_fitted(self, "offset_")
        return self.estimator_.score_samples(X)

    def decision_function(self, X: Any) -> Float[np.ndarray, " n"]:
        """The log-density minus the threshold; negative for anomalies."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Int64[np.ndarray, " n"]:
        """+1 for normal rows, -1 for anomalies."""
        return np.where(self._is_normal(X), 1, -1).astype(np.int64)

    def privacy_statement(self) -> str:
        """The guarantee in plain language, and the origin of the threshold."""
        check_is_fitted(self, "offset_")
        sentence = self.threshold_rule_.sentence
        return f"{self.guarantee_.privacy_statement()}\nAnomalies by {sentence}."

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write density, threshold and guarantee to one ``.dpflow`` file.

        If the fit was charged, the ledger has recorded the digest of this file as the run's
        release.

        Args:
            path: Where the file goes.
            overwrite: Whether an existing file may be overwritten.
        """
        self._payment.deliver(path, self._file_content(), overwrite=overwrite)

    def _file_content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return file_content(self, role="detector")

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-ready header and the arrays that together are the detector."""
        check_is_fitted(self, "offset_")
        density, arrays = described(self.estimator_)
        header = {
            "threshold": self.threshold_rule_.to_dict(),
            "guarantee": self.guarantee_.to_dict(),
            "density": density,
            "receipt": density["receipt"],
        }
        return header, {_PREFIX + name: array for name, array in arrays.items()}

    @classmethod
    def from_file(
        cls, header: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> "DPAnomalyDetector":
        """Read back what ``to_file`` gave; the content may be hostile."""
        inner = {
            name.removeprefix(_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(_PREFIX)
        }
        density, found = rebuilt(header["density"], inner), Threshold.from_dict(header["threshold"])
        detector = cls(density, threshold=found.value if found.rule == "given" else found.rule)
        if found.contamination is not None:
            detector.contamination = found.contamination
        promise = read_guarantee(header["guarantee"])
        _check_total(promise, density.guarantee_, found)
        return detector._adopt(density, found, promise)

    def _is_normal(self, X: Any) -> Bool[np.ndarray, " n"]:
        # a log-density that is no number is no sign of being normal
        return self.decision_function(X) >= 0

    def _adopt(
        self, density: DensityEstimator, found: Threshold, guarantee: Guarantee
    ) -> "DPAnomalyDetector":
        self.estimator_, self.threshold_rule_, self.guarantee_ = density, found, guarantee
        self.offset_, self.receipt_ = found.value, density.receipt_
        self.n_features_in_ = density.n_features_in_
        if hasattr(density, "feature_names_in_"):
            self.feature_names_in_ = density.feature_names_in_
        return self

    def _threshold_settings(self, *, auto: str) -> ThresholdSettings:
        is_auto = isinstance(self.threshold, str) and self.threshold == "auto"
        threshold = auto if is_auto else self.threshold
        return ThresholdSettings(threshold, self.contamination, self.public, self.threshold_share)

    def _wanted(self) -> DensityEstimator:
        return DPDensity() if self.estimator is None else _checked(self.estimator)


def _checked(estimator: Any) -> DensityEstimator:
    if not isinstance(estimator, DensityEstimator):
        kind = type(estimator).__name__
        raise InputError(f"estimator must be a density estimator such as DPDensity(), got {kind}")
    return estimator


def _fresh(estimator: DensityEstimator, *, epsilon: float) -> DensityEstimator:
    """An unfitted copy with the same settings; a fitted prior among them stays fitted."""
    settings = estimator.get_params(deep=False)
    return type(estimator)(**(settings | {"epsilon": epsilon}))


def _shape(X: Any, wanted: DensityEstimator) -> tuple[int, int]:
    """The public numbers of rows and columns."""
    table = wanted.spec().read(X)
    return table.rows, len(table.schema.columns)


def _beside(
    events: tuple[GaussianEvent, ...], wanted: DensityEstimator, shape: tuple[int, int]
) -> DensityEstimator:
    """An unfitted density with the budget that remains after a threshold's event.

    Guarantee:
        Its plan and the event together cost at most the budget, by its accountant.
    """
    if not events:
        return _fresh(wanted, epsilon=wanted.epsilon)
    budget, fitting = wanted.budget(), None
    epsilon = left_beside(events[0], budget, wanted.accountant)
    for _ in range(_TRIALS):
        density = _fresh(wanted, epsilon=epsilon)
        planned = (*density.plan(*shape).events, *events)
        used = together(planned, budget, wanted.accountant) / budget.epsilon
        fitting = density if used <= 1 else fitting
        if _ENOUGH <= used <= 1:
            break
        epsilon = min(0.999 * epsilon / used, budget.epsilon)
    if fitting is None:
        raise BudgetError(
            "the budget does not suffice for a density and a threshold; increase epsilon, decrease "
            "threshold_share or choose threshold='samples'"
        )
    return fitting


def _check_total(promise: Guarantee, density: Guarantee, found: Threshold) -> None:
    """Refuse a file whose total is not that of its density and its threshold."""
    if promise == density and not (RULES[found.rule].is_paid and math.isfinite(density.epsilon)):
        return
    kept, bought = promise.events[: len(density.events)], promise.events[len(density.events) :]
    if kept != density.events or len(bought) != 1 or not isinstance(bought[0], _BOUGHT):
        raise Misstated("the releases in the file are not those of its density and threshold")
    budget = Budget(promise.epsilon, promise.delta, promise.neighbours)
    if not found.epsilon >= together(bought, budget, promise.accountant) * (1 - TOLERANCE):
        raise Misstated(
            "the file claims a smaller epsilon for its threshold than its release costs"
        )


def _total(density: DensityEstimator, events: tuple[Event, ...], budget: Budget) -> Guarantee:
    """The guarantee of density and threshold together."""
    promise = density.guarantee_
    if not events:
        return promise
    return guarantee_for(
        (*promise.events, *events),
        budget=budget,
        accountant=promise.accountant,
        stamps=promise.stamps,
        caveats=promise.caveats,
    )
