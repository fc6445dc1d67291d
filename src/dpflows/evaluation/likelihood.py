"""How likely a model finds rows that it was not fitted to."""

import math
from typing import final

import numpy as np

from dpflows.evaluation.measures import Figures, Measure, Subject

#: The public range begins where so many of the model's own rows lie lower.
LOWEST_SHARE = 0.005


@final
class LogLikelihood(Measure):
    """The mean log-density of the rows, in nats per row.

    Rows beyond the declared bounds are moved to them, as in a fit, and counted.
    """

    name = "log-likelihood"
    title = "Mean log-density, nats per row"

    def of(self, subject: Subject) -> Figures:
        """The mean, its standard error, and how many cells lay beyond the bounds."""
        logs = subject.logs(subject.rows)
        spread = float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
        return {
            "mean": float(logs.mean()),
            "standard_error": spread / math.sqrt(len(logs)),
            "cells_beyond_bounds": float(subject.table.outside),
        }


def public_range(subject: Subject) -> tuple[float, float]:
    """Between which log-densities nearly all rows of the model itself lie.

    Guarantee:
        Computed from generated rows alone: post-processing of the model.
    """
    logs = subject.logs(subject.generated)
    low, high = float(np.quantile(logs, LOWEST_SHARE)), float(logs.max())
    # a flat density has one value, and a range needs two ends
    return low, max(high, low + 1e-3 * (1 + abs(low)))
