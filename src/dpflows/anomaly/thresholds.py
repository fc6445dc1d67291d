"""Thresholds on log-densities: from a share of anomalies, or from labelled rows.

A row is an anomaly where its log-density lies below the threshold. Nothing here knows
where the rows came from; who may see a threshold is decided by the rules.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.privacy.events import check_choice

CRITERIA = ("accuracy", "youden")

#: Rows the density generates to learn which of its own log-densities are low.
GENERATED = 20_000
#: Log-densities of one row may differ by this from batch to batch.
CLOSE = 1e-6

Logs = Float[np.ndarray, " rows"]


def contamination_threshold(log_densities: Logs, contamination: float) -> float:
    """A number below which lies the given share of the log-densities, and no more.

    It lies half-way between two log-densities, so that rounding turns no row.

    Guarantee:
        None of its own: a quantile of private rows' log-densities is private.

    Example:
        >>> contamination_threshold(np.arange(10.0), 0.1)
        0.5
    """
    check_contamination(contamination)
    return quantile_between(np.sort(without_nan(log_densities)), contamination)


def quantile_between(ordered: Logs, share: float) -> float:
    """A number half-way between two of these increasing numbers, below which lies a share of them.

    Example:
        >>> quantile_between(np.arange(10.0), 0.75)
        6.5
    """
    finite(ordered[-1:])
    place = min(int(share * len(ordered) + 1e-9), len(ordered) - 1)
    value = max(ordered[place], ordered[np.isfinite(ordered)][0])
    gap = CLOSE * (1 + abs(value))
    lower = ordered[np.isfinite(ordered) & (ordered < value - gap)]
    return float((lower[-1] + value) / 2 if len(lower) else value - gap)


def best_threshold(log_densities: Logs, normal: Bool[np.ndarray, " rows"], criterion: str) -> float:
    """The threshold that tells labelled rows apart best.

    Args:
        log_densities: One per row; NaN counts as the lowest.
        normal: Which rows are normal; both kinds must be there.
        criterion: ``accuracy``, the share of rows that are judged rightly, or
            ``youden``, the mean of that share over the two kinds.

    Guarantee:
        None of its own: what is computed from private rows is private.

    Example:
        >>> logs = np.array([-9.0, -8.0, -2.0, -1.0])
        >>> best_threshold(logs, np.array([False, False, True, True]), "accuracy")
        -5.0
    """
    check_choice("criterion", criterion, CRITERIA)
    if normal.all() or not normal.any():
        raise InputError("normal must name rows of both kinds, or no threshold is better than any")
    logs = without_nan(log_densities)
    places = _between(logs)
    kept = 1 - _share_below(logs[normal], places)
    caught = _share_below(logs[~normal], places)
    weight = float(normal.mean()) if criterion == "accuracy" else 0.5
    return float(places[np.argmax(weight * kept + (1 - weight) * caught)])


def check_contamination(contamination: float) -> None:
    """Refuse a share of anomalies outside (0, 0.5]."""
    if not 0 < contamination <= 0.5:
        raise InputError(f"contamination must be in (0, 0.5], got {contamination}")


def normal_rows(labels: Any) -> Bool[np.ndarray, " rows"]:
    """Which rows are normal by labels +1 and -1; labels that could mean either are refused.

    Example:
        >>> normal_rows([1, -1, 1]).tolist()
        [True, False, True]
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.isin(array, (-1, 1)).all():
        raise InputError(
            "labels must be +1 for normal rows and -1 for anomalies; booleans, 0 and 1 could be "
            "meant either way, so convert them, for example by np.where(is_anomaly, -1, 1)"
        )
    return np.asarray(array == 1)


def generated_scores(density: DensityEstimator) -> Float64[np.ndarray, " rows"]:
    """Log-densities of rows that the density generates; reads nothing but the density."""
    return np.asarray(density.score_samples(density.sample(GENERATED)), np.float64)


def without_nan(log_densities: Logs) -> Float64[np.ndarray, " rows"]:
    """Log-densities in which what is no number counts as the lowest.

    Example:
        >>> without_nan(np.array([np.nan, 1.0])).tolist()
        [-inf, 1.0]
    """
    logs = np.asarray(log_densities, np.float64)
    return np.where(np.isnan(logs), -np.inf, logs)


def finite(log_densities: Logs) -> Float64[np.ndarray, " finite"]:
    """The finite ones; at least one must be.

    Example:
        >>> finite(np.array([-np.inf, 1.0])).tolist()
        [1.0]
    """
    logs = np.asarray(log_densities, np.float64)
    logs = logs[np.isfinite(logs)]
    if len(logs) == 0:
        raise InputError("log_densities must hold a finite number, or no threshold lies among them")
    return logs


def _between(logs: Float64[np.ndarray, " rows"]) -> Float64[np.ndarray, " places"]:
    """Every threshold that judges the rows differently: below, between and above them."""
    values = np.unique(finite(logs))
    middles = values[:-1] + np.diff(values) / 2
    inner = np.where(middles > values[:-1], middles, values[1:])
    return np.concatenate([values[:1], inner, [np.nextafter(values[-1], np.inf)]])


def _share_below(
    logs: Float64[np.ndarray, " rows"], places: Float64[np.ndarray, " places"]
) -> Float64[np.ndarray, " places"]:
    return np.searchsorted(np.sort(logs), places, side="left") / len(logs)
