"""How likely a model finds rows that it was not fitted to."""

import math
from typing import final

import numpy as np
from jaxtyping import Float64

from dpflows.evaluation.measures import Figures, Measure, Subject

#: The public range begins where so many of the model's own rows lie lower.
LOWEST_SHARE = 0.005


@final
class LogLikelihood(Measure):
    """The mean log-density of the rows, in nats per row.

    Cells beyond the declared bounds are moved to them, as in a fit, and counted. A row with
    a label that is not declared has density zero: it is counted, and the mean leaves it out.
    """

    name = "log-likelihood"
    title = "Mean log-density, nats per row"

    def of(self, subject: Subject) -> Figures:
        """The mean and its standard error, and how many cells and rows lay outside."""
        logs = subject.logs(subject.rows)
        kept = logs[np.isfinite(logs)].astype(np.float64)
        outside = {
            "cells_beyond_bounds": float(subject.table.outside),
            "rows_of_density_zero": float(len(logs) - len(kept)),
        }
        return _mean_and_error(kept) | outside

    def line(self, figures: Figures) -> str:
        """Mean and error, and how many rows were left out."""
        lost = figures.get("rows_of_density_zero", 0)
        rest = f"; without {lost:,.0f} rows of density zero" if lost else ""
        if "mean" not in figures:
            return f"{self.title}: none{rest}"
        noise = figures.get("error_of_noise")
        added = "" if noise is None else f", of the noise {noise:.3f}"
        error = f"standard error {figures['standard_error']:.3f}{added}"
        return f"{self.title}: {figures['mean']:.3f} ({error}){rest}"


def _mean_and_error(logs: Float64[np.ndarray, " rows"]) -> Figures:
    if not len(logs):
        return {}
    spread = float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
    return {"mean": float(logs.mean()), "standard_error": spread / math.sqrt(len(logs))}


def public_range(subject: Subject) -> tuple[float, float]:
    """Between which log-densities nearly all rows of the model itself lie.

    Guarantee:
        Computed from generated rows alone: post-processing of the model.
    """
    logs = subject.logs(subject.generated)
    # rounding may leave a generated row just outside the domain
    logs = logs[np.isfinite(logs)]
    low, high = float(np.quantile(logs, LOWEST_SHARE)), float(logs.max())
    # a flat density has one value, and a range needs two ends
    return low, max(high, low + 1e-3 * (1 + abs(low)))
