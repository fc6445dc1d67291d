"""Private evaluation: noisy figures about private rows that may be published.

Guarantee:
    ``PrivateEvaluation.release`` makes exactly ``events``, which are known before a row is
    used. Ranges and bins are computed from rows that the model generates, so they are
    public if the model is. The number of rows is public.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from dpflows.errors import InputError
from dpflows.evaluation.fidelity import BINS, largest_gap, total_variation
from dpflows.evaluation.measures import Coding, Figures, LogLikelihood, Subject, public_range
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.accounting.registry import PrivacyPlan
from dpflows.privacy.events import DiscreteLaplaceEvent, Event, GaussianEvent, Release, only_these
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms import clipped_moments, noisy_histogram
from dpflows.privacy.mechanisms.statistics import COUNTING, moments_sensitivity
from dpflows.privacy.randomness import Entropy

#: What a ledger is told.
PURPOSE = "evaluate"


class PrivateMeasure(abc.ABC):
    """A measure that can be released privately.

    Attributes:
        share: Its share of the squared budget.

    Guarantee:
        ``release`` is run where nothing but what ``events`` lists can be released.
    """

    share: ClassVar[float]

    @abc.abstractmethod
    def events(self, columns: int, level: float) -> tuple[Event, ...]:
        """Its events at a given noise level."""

    @abc.abstractmethod
    def release(self, subject: Subject, level: float, entropy: Entropy) -> dict[str, Figures]:
        """The noisy figures by measure."""


@final
class PrivateLogLikelihood(PrivateMeasure):
    """The mean log-density of rows, clipped to a public range.

    Guarantee:
        One Gaussian release on a lattice, by ``clipped_moments``.
    """

    share = 0.5

    def events(self, columns: int, level: float) -> tuple[Event, ...]:
        """One release of clipped moments."""
        return (
            GaussianEvent(
                noise=_moment_noise(level),
                sensitivity=moments_sensitivity(1),
                purpose=LogLikelihood.name,
            ),
        )

    def release(self, subject: Subject, level: float, entropy: Entropy) -> dict[str, Figures]:
        """Mean, what the noise adds to its error, and the range."""
        low, high = public_range(subject)
        # a log-density below every range must not become a NaN, which would count as null
        logs = np.clip(subject.logs(subject.rows), low, high).astype(np.float64)
        found = clipped_moments(
            logs[:, None],
            np.array([low]),
            np.array([high]),
            noise=_moment_noise(level),
            entropy=entropy,
            purpose=LogLikelihood.name,
        )
        mean, half = float(found.value.mean[0]), (high - low) / 2
        # the mean is a noisy sum over a noisy count: the count's noise weighs as the mean does
        weight = math.hypot(1.0, (mean - (low + high) / 2) / half)
        figures = {
            "mean": mean,
            "standard_error": float(found.value.deviation[0]) / math.sqrt(len(logs)),
            "error_of_noise": _moment_noise(level) * half * weight / len(logs),
            "clipped_below": low,
            "clipped_above": high,
        }
        return {LogLikelihood.name: figures}


@final
class PrivateMarginals(PrivateMeasure):
    """Distances of columns from noisy counts in public bins.

    Guarantee:
        One histogram with two-sided geometric noise per column; the distances follow from
        the noisy counts.
    """

    share = 0.5

    def events(self, columns: int, level: float) -> tuple[Event, ...]:
        """One noisy histogram per column."""
        scale = _count_scale(level, columns)
        return tuple(
            DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=_column(i))
            for i in range(columns)
        )

    def release(self, subject: Subject, level: float, entropy: Entropy) -> dict[str, Figures]:
        """Two distances per column."""
        scale = _count_scale(level, len(subject.names))
        codings = subject.codings(BINS)
        found = {
            name: _noisy_counts(subject.rows[name], coding, scale, entropy, _column(i))
            for i, (name, coding) in enumerate(codings.items())
        }
        figures: dict[str, Figures] = {"kolmogorov": {}, "total-variation": {}}
        for name, coding in codings.items():
            both = found[name].value, coding.counts(subject.generated[name])
            figures["kolmogorov"][name] = largest_gap(*both, is_ordered=coding.is_ordered)
            figures["total-variation"][name] = total_variation(*both)
        return figures


def _noisy_counts(
    cells: np.ndarray, coding: Coding, scale: float, entropy: Entropy, purpose: str
) -> Release:
    """The noisy number of cells in every bin: one cell of a row is in one bin."""
    edges = np.arange(coding.size + 1) - 0.5
    codes = coding.codes(cells).astype(np.float64)
    return noisy_histogram(codes, edges, scale=scale, entropy=entropy, purpose=purpose)


PRIVATE_MEASURES: tuple[PrivateMeasure, ...] = (PrivateLogLikelihood(), PrivateMarginals())


@final
@dataclasses.dataclass(frozen=True)
class PrivateEvaluation(PrivacyPlan):
    """The plan of a private evaluation, fixed before a row is used.

    Attributes:
        budget: The total budget.
        accountant: The accountant's name.
        rows: Public number of rows.
        columns: Number of columns.
        level: The noise of a release of sensitivity one with the whole budget.
        bins: Mean number of bins per column.

    Guarantee:
        ``events`` cost at most the budget, and ``release`` makes them and no others.

    Example:
        >>> plan = plan_evaluation(Budget(1.0, 1e-5), rows=1000, columns=2)
        >>> len(plan.events), plan.guarantee().epsilon <= 1.0
        (3, True)
    """

    budget: Budget
    accountant: str
    rows: int
    columns: int
    level: float
    bins: float = BINS

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release, in order."""
        return _events(self.columns, self.level)

    @property
    def noise_distance(self) -> float:
        """About the total variation that noise alone shows between equal columns."""
        return (
            self.bins
            * _count_scale(_with_share(self.level, PrivateMarginals()), self.columns)
            / (2 * self.rows)
        )

    def to_dict(self) -> dict[str, Any]:
        """The declared split and its noise, ready for JSON."""
        return {
            "rows": self.rows,
            "shares_of_squared_budget": {
                "log-likelihood": PrivateLogLikelihood.share,
                "marginals": PrivateMarginals.share,
            },
            "epsilon_by_itself": self.shares(),
            "distance_of_noise_alone": self.noise_distance,
        }

    def release(self, subject: Subject, entropy: Entropy) -> dict[str, Figures]:
        """Make the releases; call it once, after the charge."""
        if subject.table.rows != self.rows or len(subject.names) != self.columns:
            raise InputError("the evaluation was planned for a table of another shape")
        figures: dict[str, Figures] = {}
        for measure in PRIVATE_MEASURES:
            level = _with_share(self.level, measure)
            with only_these(measure.events(self.columns, level)):
                figures |= measure.release(subject, level, entropy)
        return figures


def plan_evaluation(
    budget: Budget, *, rows: int, columns: int, bins: float = BINS, accountant: str = "pld"
) -> PrivateEvaluation:
    """Plan a private evaluation with the least noise the budget allows; reads no row.

    Args:
        budget: The total budget; must be finite.
        rows: Public number of rows.
        columns: Number of columns.
        bins: Mean number of bins per column, a public number.
        accountant: The accountant's name.
    """
    if not budget.is_private:
        raise InputError(
            "epsilon must be finite for a private evaluation; use evaluate for INTERNAL figures"
        )
    if rows < 2:
        raise InputError(
            f"rows must be at least 2, got {rows}; a table of one row cannot be protected"
        )
    if budget.neighbours == "add-remove":
        raise InputError("neighbours must be zero-out or replace-one: the number of rows is public")
    level = calibrate_noise(budget, lambda noise: _events(columns, noise), accountant=accountant)
    return PrivateEvaluation(budget, accountant, rows, columns, level, bins)


def noise_note(plan: Mapping[str, Any]) -> str:
    """A note on the distances caused by noise alone.

    Example:
        >>> noise_note({"distance_of_noise_alone": 0.02})
        'Noise alone would show a total variation of about 0.020 per column.'
    """
    noise = plan["distance_of_noise_alone"]
    return f"Noise alone would show a total variation of about {noise:.3f} per column."


def bins_of(subject: Subject) -> float:
    """Mean number of bins per column, from generated rows only."""
    sizes = [coding.size for coding in subject.codings(BINS).values()]
    return sum(sizes) / len(sizes)


def _events(columns: int, level: float) -> tuple[Event, ...]:
    parts: Sequence[tuple[Event, ...]] = [
        measure.events(columns, _with_share(level, measure)) for measure in PRIVATE_MEASURES
    ]
    return tuple(event for part in parts for event in part)


def _with_share(level: float, measure: PrivateMeasure) -> float:
    """Costs go with the inverse square of the noise, so a share of them with its root."""
    return level / math.sqrt(measure.share)


def _moment_noise(level: float) -> float:
    return level * moments_sensitivity(1).zero_out


def _count_scale(level: float, columns: int) -> float:
    """Each column has an equal part of the share."""
    return level * math.sqrt(columns)


def _column(index: int) -> str:
    return f"marginal of column {index + 1}"
