"""A single Gaussian: noisy frames of the columns, then one release of mean and covariance.

The frames are found iteratively, from the declared bounds down to the data.
"""

import dataclasses
import math
from typing import final

import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Float, Float64

from dpflows.errors import InputError
from dpflows.estimators.base import Arrays, ReleasedEstimator
from dpflows.models.density import gaussian_mixture
from dpflows.models.normalisers import Scaling
from dpflows.pipeline.domain import TableSpec
from dpflows.pipeline.plan import FAINT, Plan, Stage, Work, affordable_noise, needed
from dpflows.privacy.accounting import noise_of_share
from dpflows.privacy.events import Event, GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import (
    Moments,
    SecondMoments,
    Weights,
    clipped_moments,
    moments_sensitivity,
    noisy_covariance,
)
from dpflows.privacy.randomness import Entropy

#: Enough to come from bounds a thousand times too wide to the data.
ROUNDS = 6
#: The part of the squared Gaussian budget that all rounds may spend.
SHARE = 0.15
_REACH = 4.0

Rows = Float[np.ndarray, "rows columns"]
Vector = Float[np.ndarray, " columns"]


@final
@dataclasses.dataclass(frozen=True)
class Frames:
    """Location and scale of every column, in rounds that each clip to the frame of the last.

    The noise is proportional to the frame, so a round reduces the frame to about four times the
    root of noise over rows.

    Attributes:
        columns: Number of columns.
        noise: Noise on each sum of each round, in rows.

    Guarantee:
        ``find`` releases exactly ``events``; they are known before a row is read.

    Example:
        >>> rows = np.random.default_rng().normal(0.5, 0.1, size=(5000, 1))
        >>> frames = Frames.planned(Budget(1.0, 1e-5), columns=1)
        >>> box = (np.full(1, -100.0), np.full(1, 100.0))
        >>> bool(abs(frames.find(rows, *box, entropy=Entropy.from_os()).shift[0] - 0.5) < 1)
        True
    """

    columns: int
    noise: float

    @classmethod
    def planned(cls, budget: Budget, *, columns: int) -> "Frames":
        """Frames with the noise that their share of the budget allows."""
        noise = noise_of_share(budget, moments_sensitivity(columns), SHARE / ROUNDS)
        return cls(columns, max(noise, FAINT))

    @property
    def events(self) -> tuple[Event, ...]:
        """One release per round."""
        unit = moments_sensitivity(self.columns)
        return tuple(
            GaussianEvent(noise=self.noise, sensitivity=unit, purpose=_purpose(i))
            for i in range(ROUNDS)
        )

    def find(self, rows: Rows, low: Vector, high: Vector, *, entropy: Entropy) -> Scaling:
        """Shrink the frame, round by round."""
        left, right = low, high
        for i in range(ROUNDS):
            moments = clipped_moments(
                rows, left, right, noise=self.noise, entropy=entropy, purpose=_purpose(i)
            ).value
            spread = self._cautious(moments, left, right)
            left = np.maximum(low, moments.mean - _REACH * spread)
            right = np.minimum(high, moments.mean + _REACH * spread)
        return Scaling(moments.mean, np.maximum(moments.deviation, spread / _REACH))

    def _cautious(self, moments: Moments, left: Vector, right: Vector) -> Vector:
        """The deviation, bounded from below by the noise."""
        half, doubt = (right - left) / 2, self.noise / moments.count
        return np.maximum(np.sqrt(moments.deviation**2 + doubt * half**2), 1e-9 * half)


def _purpose(index: int) -> str:
    return f"frame {index + 1}"


_PURPOSE = "covariance"
_LEAST = 1e-4


@final
@dataclasses.dataclass(frozen=True)
class FindFrames(Stage):
    """Find the location and scale of every column, starting from the declared bounds."""

    frames: Frames

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of all rounds."""
        return self.frames.events

    def run(self, work: Work) -> Work:
        """Find the frame, which normalises the columns."""
        frame = self.frames.find(needed(work.rows), *work.box, entropy=work.entropy)
        return work.after(normaliser=frame)


@final
@dataclasses.dataclass(frozen=True)
class ReleaseCovariance(Stage):
    """The mean and the covariance of all columns, released once.

    Attributes:
        radius: The norm to which longer rows are clipped, in standard deviations.
        event: The release, with its noise.
    """

    radius: float
    event: GaussianEvent

    @property
    def events(self) -> tuple[Event, ...]:
        """The one release."""
        return (self.event,)

    def run(self, work: Work) -> Work:
        """Release the moments, and shrink correlations by the noise."""
        found = noisy_covariance(
            needed(work.normaliser).apply(needed(work.rows)),
            radius=self.radius,
            noise=self.event.noise,
            entropy=work.entropy,
            purpose=self.event.purpose,
        ).value
        return work.after(parameters={"mean": found.mean, "factor": shrunk_factor(found)})


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPGaussian(ReleasedEstimator):
    """A single Gaussian with a private mean and covariance, truncated at the bounds.

    The box may be far wider than the data, so a small share of the budget first finds a frame for
    each column, in six rounds of noisy moments. Rows in that frame are clipped to a public radius,
    and one release gives their count, sums and second moments. Correlations are shrunk towards zero
    by the share of their size that the noise explains, and variances are bounded from below by the
    noise.

    Args:
    {common}
        radius: The norm to which longer rows are clipped, in standard deviations;
            ``None`` is ``2 sqrt(columns) + 2``.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPGaussian(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
        >>> model.sample(5).shape, model.guarantee_.epsilon <= 1.0
        ((5, 2), True)
    """

    radius: float | None = None

    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        radius = self._radius(columns)
        unit = Weights.best(radius=radius, columns=columns).sensitivity
        before = (spec.domain(budget, columns), FindFrames(Frames.planned(budget, columns=columns)))
        noise = affordable_noise(
            budget,
            lambda level: GaussianEvent(noise=level, sensitivity=unit, purpose=_PURPOSE),
            before=[event for stage in before for event in stage.events],
            accountant=self.accountant,
        )
        event = GaussianEvent(noise=noise, sensitivity=unit, purpose=_PURPOSE)
        return Plan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            stages=(*before, ReleaseCovariance(radius, event)),
            details={"noise": noise, "radius": radius, "frame_share": SHARE},
            cost=(2 + 4e-9 * rows * (columns + 5) ** 2, 10 + 2e-5 * rows * columns**2),
        )

    @staticmethod
    def _model(arrays: Arrays) -> AbstractDistribution:
        mean, factor = arrays["mean"], arrays["factor"]
        if mean.ndim != 1 or factor.shape != 2 * mean.shape or not np.isfinite(mean).all():
            raise InputError("the file's mean and factor are inconsistent")
        if not np.isfinite(factor).all():
            raise InputError("the file's factor must be finite")
        return gaussian_mixture(np.ones(1), mean[None], factor[None])

    def _radius(self, columns: int) -> float:
        if self.radius is None:
            return 2 * math.sqrt(columns) + 2
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise InputError(f"radius must be positive and finite, or None; got {self.radius}")
        return float(self.radius)


def shrunk_factor(found: SecondMoments) -> Float64[np.ndarray, "columns columns"]:
    """The Cholesky factor of a shrunken estimate of a noisy covariance.

    Guarantee:
        Reads only the noisy moments.

    Example:
        >>> noisy = SecondMoments(np.zeros(2), np.array([[1.0, 0.1], [0.1, 1.0]]), 50.0, 0.4)
        >>> shrunk_factor(noisy).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    deviation = np.sqrt(np.maximum(np.diagonal(found.covariance), max(found.doubt, _LEAST)))
    correlation = found.covariance / np.outer(deviation, deviation)
    doubts = found.doubt / math.sqrt(2) / np.outer(deviation, deviation)
    apart = ~np.eye(len(deviation), dtype=bool)
    size = (correlation[apart] ** 2).sum()
    noise = (doubts[apart] ** 2 + 1 / found.count).sum()
    kept = max(1 - noise / size, 0.0) if size > 0 else 0.0
    shrunk = np.where(apart, kept * correlation, 1.0)
    spread = math.sqrt(doubts[apart].mean() ** 2 * len(deviation)) if apart.any() else 0.0
    return deviation[:, None] * np.linalg.cholesky(_floored(shrunk, max(spread, _LEAST)))


def _floored(
    matrix: Float64[np.ndarray, "columns columns"], least: float
) -> Float64[np.ndarray, "columns columns"]:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, least)) @ vectors.T
