"""Normalisation: columns are brought to comparable units before training, within the budget.

``bounds`` maps the declared box and costs nothing; ``moments`` releases the mean and the
standard deviation of every column; ``histograms`` releases every column's distribution and
transforms it to a Gaussian. A new method is one class and one line in ``NORMALISATIONS``.
"""

import abc
import dataclasses
import math
from typing import final

import numpy as np
from jaxtyping import Float

from dpflows.models.normalisers import Curves, Normaliser, Scaling, gaussian_curve, normaliser_from
from dpflows.pipeline.stage import Stage, Work, needed
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import Event, GaussianEvent, Sensitivity, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.histograms import (
    BINS,
    RANK_ERROR,
    noisy_distributions,
    trees_sensitivity,
)
from dpflows.privacy.mechanisms.statistics import Moments, clipped_moments, moments_sensitivity
from dpflows.privacy.randomness import Entropy
from dpflows.training.checkpoints import Before

#: Declared bounds are mapped to this many units on either side of zero.
REACH = 3.0
#: The part of the squared Gaussian budget that normalisation may spend.
SHARE = 0.05
#: What an unlimited budget adds to each sum, in rows: nothing that could be seen.
FAINT = 1e-3
#: The paper's way, for comparison, and what it must be marked with.
UNPAID = "paper-not-private"
UNPAID_STAMP = (
    "NOT PRIVATE: columns were standardised by their own moments, without noise or budget"
)
_ZOOMS = 3
_ZOOM_REACH = 4.0
_MOST_QUANTILES, _FEWEST_QUANTILES = 32, 4

Rows = Float[np.ndarray, "rows columns"]
Vector = Float[np.ndarray, " columns"]


@dataclasses.dataclass(frozen=True)
class Normalisation(Stage):
    """A planned normalisation of the columns.

    Attributes:
        rows: Public number of rows.
        columns: Number of columns.
        noise: Noise on each released sum or count, in rows.

    Guarantee:
        ``find`` releases exactly ``events``; they are known before a row is read.
    """

    rows: int
    columns: int
    noise: float

    is_kept = True

    def run(self, work: Work) -> Work:
        """Find the normaliser."""
        return work.after(normaliser=self.find(needed(work.rows), *work.box, entropy=work.entropy))

    def keep(self, work: Work) -> Before:
        """The normaliser, with the scaling of a prior."""
        return {}, needed(work.normaliser).arrays()

    def resume(self, work: Work, kept: Before) -> Work:
        """The normaliser that was found before."""
        return work.after(normaliser=normaliser_from(kept[1]))

    @property
    def is_worthwhile(self) -> bool:
        """Whether the statistics exceed the noise."""
        return True

    @staticmethod
    @abc.abstractmethod
    def sensitivity(columns: int) -> Sensitivity | None:
        """Sensitivity of all releases, stacked; None if there are none."""

    @property
    @abc.abstractmethod
    def events(self) -> tuple[Event, ...]:
        """The events."""

    @abc.abstractmethod
    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Normaliser:
        """The normaliser for rows inside the public box."""


class Unpriced(Normalisation):
    """A normalisation without events: it reads only public values, or is not private."""

    @staticmethod
    def sensitivity(columns: int) -> None:
        """None: nothing is released."""

    @property
    def events(self) -> tuple[Event, ...]:
        """None."""
        return ()


@final
class FromBounds(Unpriced):
    """Map the declared box to [-3, 3] in every column.

    Guarantee:
        Reads only the public bounds, so it costs nothing.

    Example:
        >>> rows, low, high = np.ones((5, 1)), np.array([0.0]), np.array([6.0])
        >>> FromBounds(5, 1, 0.0).find(rows, low, high, entropy=Entropy.from_os()).shift.tolist()
        [3.0]
    """

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """The box's middle and half-width."""
        return Scaling((low + high) / 2, (high - low) / (2 * REACH))


@final
class FromMoments(Normalisation):
    """Shift and scale by noisy means and deviations, in frames that shrink towards the data.

    The noise is proportional to the frame, so each round clips to a frame that the last round found
    to be wide enough.

    Guarantee:
        Three Gaussian releases of clipped moments; the frames follow from them.

    Example:
        >>> rows = np.random.default_rng().normal(0.5, 0.1, size=(5000, 1))
        >>> plan = FromMoments(5000, 1, noise=5.0)
        >>> found = plan.find(rows, np.zeros(1), np.ones(1), entropy=Entropy.from_os())
        >>> bool(abs(found.shift[0] - 0.5) < 0.05), len(plan.events)
        (True, 3)
    """

    @staticmethod
    def sensitivity(columns: int) -> Sensitivity:
        """Sensitivity of the sums of one round."""
        return moments_sensitivity(columns)

    @property
    def events(self) -> tuple[Event, ...]:
        """One release per round, each with a part of the share."""
        unit = self.sensitivity(self.columns)
        return tuple(
            GaussianEvent(noise=self._round_noise, sensitivity=unit, purpose=_round_name(i))
            for i in range(_ZOOMS)
        )

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """Shrink the frame, round by round."""
        left, right = low, high
        for i in range(_ZOOMS):
            moments = self._measure(rows, left, right, entropy, _round_name(i))
            spread = self._cautious(moments, left, right)
            left = np.maximum(low, moments.mean - _ZOOM_REACH * spread)
            right = np.minimum(high, moments.mean + _ZOOM_REACH * spread)
        return Scaling(moments.mean, np.clip(moments.deviation, spread / 4, None))

    @property
    def _round_noise(self) -> float:
        return self.noise * math.sqrt(_ZOOMS)

    def _measure(
        self, rows: Rows, left: Vector, right: Vector, entropy: Entropy, purpose: str
    ) -> Moments:
        return clipped_moments(
            rows, left, right, noise=self._round_noise, entropy=entropy, purpose=purpose
        ).value

    def _cautious(self, moments: Moments, left: Vector, right: Vector) -> Vector:
        """The deviation, bounded from below by the noise."""
        half, doubt = (right - left) / 2, self._round_noise / moments.count
        return np.maximum(np.sqrt(moments.deviation**2 + doubt * half**2), 1e-9 * half)


@final
class FromHistograms(Normalisation):
    """Transform every column to a Gaussian by its noisy distribution.

    Knots are noisy quantiles, as many as the noise allows; beyond the outermost ones the
    tails are assumed to decay exponentially, at the rate observed just inside. Columns with
    spikes, skew or gaps become smooth ones, which a flow learns with far fewer steps.

    Guarantee:
        One Gaussian release of nested counts; the curves follow from it.

    Example:
        >>> rows = np.random.default_rng().exponential(size=(5000, 1))
        >>> plan = FromHistograms(5000, 1, noise=5.0)
        >>> curves = plan.find(rows, np.zeros(1), np.full(1, 50.0), entropy=Entropy.from_os())
        >>> bool(abs(curves.apply(rows).std() - 1) < 0.2)
        True
    """

    @staticmethod
    def sensitivity(columns: int) -> Sensitivity:
        """Sensitivity of the counts of all columns."""
        return trees_sensitivity(columns)

    @property
    def events(self) -> tuple[Event, ...]:
        """One release."""
        unit = self.sensitivity(self.columns)
        return (GaussianEvent(noise=self.noise, sensitivity=unit, purpose="normalisation"),)

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Curves:
        """A curve through the noisy quantiles of each column."""
        below = noisy_distributions(
            rows, low, high, noise=self.noise, entropy=entropy, purpose="normalisation"
        ).value
        edges = np.linspace(low, high, BINS + 1, axis=1)
        columns = zip(edges, self._trusted(below), strict=True)
        return Curves([gaussian_curve(x, counts, parts=self.quantiles) for x, counts in columns])

    @property
    def quantiles(self) -> int:
        """The number of parts of equal mass that exceed the noise."""
        doubt = 4 * RANK_ERROR * self.noise / self.rows
        return int(min(1 / max(doubt, 1e-9), _MOST_QUANTILES))

    @property
    def is_worthwhile(self) -> bool:
        """Whether a few quantiles exceed the noise."""
        return self.quantiles >= _FEWEST_QUANTILES

    def _trusted(self, below: Float[np.ndarray, "columns edges"]) -> np.ndarray:
        """The counts, or uniform ones where the column is lost in noise."""
        even = np.broadcast_to(np.linspace(0, 1, below.shape[1]), below.shape)
        return np.where(below[:, -1:] < self.rows / 2, even, below)


@final
class FromRows(Unpriced):
    """Standardise by the rows' own moments, as the paper does. NOT PRIVATE.

    Guarantee:
        None: the moments are released without noise. Results must carry ``UNPAID_STAMP``.

    Example:
        >>> rows, low, high = np.array([[1.0], [3.0]]), np.zeros(1), np.full(1, 9.0)
        >>> FromRows(2, 1, 0.0).find(rows, low, high, entropy=Entropy.from_os()).shift.tolist()
        [2.0]
    """

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """The rows' mean and deviation."""
        return Scaling(rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9 * (high - low)))


def _round_name(index: int) -> str:
    return f"normalisation {index + 1}"


NORMALISATIONS: dict[str, type[Normalisation]] = {
    "bounds": FromBounds,
    "histograms": FromHistograms,
    "moments": FromMoments,
    UNPAID: FromRows,
}


def plan_normalisation(
    name: str, budget: Budget, *, rows: int, columns: int, share: float = SHARE
) -> Normalisation:
    """Choose the noise of a normalisation by its share of the budget.

    Args:
        name: A key of ``NORMALISATIONS``.
        budget: The total.
        rows: Public number of rows.
        columns: Number of columns.
        share: The share of the squared Gaussian budget it may spend. If the statistics would be
        lost in noise, the declared bounds are used instead, at no cost.

    Example:
        >>> plan_normalisation("histograms", Budget(1.0, 1e-5), rows=9000, columns=2).quantiles
        11
        >>> len(plan_normalisation("histograms", Budget(1.0, 1e-5), rows=90, columns=2).events)
        0
    """
    check_choice("normalisation", name, tuple(NORMALISATIONS))
    way = NORMALISATIONS[name]
    unit = way.sensitivity(columns)
    if unit is None:
        return way(rows, columns, 0.0)
    whole = calibrate_noise(
        budget, lambda noise: [GaussianEvent(noise=noise, sensitivity=unit)], accountant="gdp"
    )
    planned = way(rows, columns, max(whole / math.sqrt(share), FAINT))
    return planned if planned.is_worthwhile else FromBounds(rows, columns, 0.0)
