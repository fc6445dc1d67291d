"""One Gaussian: the mean and the covariance of all columns, released once."""

import math
import os
from typing import Any, final

import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.estimators.frames import SHARE, Frames
from dpflows.estimators.intake import Intake
from dpflows.estimators.plans import ReleasePlan, affordable_noise
from dpflows.estimators.released import Arrays, ReleasedEstimator
from dpflows.flows.base import gaussian_mixture
from dpflows.flows.normalisers import Normaliser
from dpflows.privacy.events import GaussianEvent
from dpflows.privacy.mechanisms.covariances import SecondMoments, Weights, noisy_covariance
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

_PURPOSE = "covariance"
_LEAST = 1e-4


@final
class DPGaussian(ReleasedEstimator):
    """A single Gaussian with a private mean and covariance, cut off at the bounds.

    The box may be far wider than the data, so a small share of the budget first finds a
    frame for each column, in six rounds of noisy moments. Rows in that frame are
    shortened to a public radius, and one release gives their count, sums and second
    moments. Correlations are shrunk towards zero by as much of their size as the noise
    explains, and no direction is given a smaller variance than the noise could hide.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and is stamped so.
        delta: The chance, far below one over the number of rows, that epsilon fails.
        schema: What the columns mean, a ``Schema`` or the path of one.
        bounds: Public ``(low, high)`` of the columns instead of a schema, numbers or one
            per column. Rows beyond them are moved to the nearest bound.
        discover: The share of epsilon that may find bounds where none are declared.
        neighbours: Which change of one person's data is hidden.
        accountant: Who prices the releases.
        radius: The length to which longer rows are shortened, in standard deviations;
            ``None`` is ``2 sqrt(columns) + 2``.
        allow_large_delta: Accept a delta of one over the number of rows or more; it becomes a
            caveat of the guarantee.
        insecure_test_seed: Makes everything reproducible and NOT PRIVATE; for tests.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPGaussian(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
        >>> model.sample(5).shape, model.guarantee_.epsilon <= 1.0
        ((5, 2), True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        schema: Schema | str | os.PathLike[str] | None = None,
        bounds: Any = None,
        discover: float | None = None,
        neighbours: str = "zero-out",
        accountant: str = "pld",
        radius: float | None = None,
        allow_large_delta: bool = False,
        insecure_test_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.discover = discover
        self.neighbours = neighbours
        self.accountant = accountant
        self.radius = radius
        self.allow_large_delta = allow_large_delta
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int | None = None) -> ReleasePlan:
        """What ``fit`` would do with a table of this shape; reads no row."""
        budget, told = self._budget_for(rows), self._declarations()
        columns = told.count(columns)
        radius = self._radius(columns)
        unit = Weights.best(radius=radius, columns=columns).sensitivity
        frames = Frames.planned(budget, columns=columns)
        noise, releases = affordable_noise(
            budget,
            lambda level: GaussianEvent(noise=level, sensitivity=unit, purpose=_PURPOSE),
            before=(*told.events(budget, columns), *frames.events),
            accountant=self.accountant,
        )
        return ReleasePlan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            releases=releases,
            details={"noise": noise, "radius": radius, "frame_share": SHARE},
            seconds=2 + 4e-9 * rows * (columns + 5) ** 2,
            megabytes=10 + 2e-5 * rows * columns**2,
        )

    def _estimate(
        self, intake: Intake, plan: ReleasePlan, entropy: Entropy
    ) -> tuple[Normaliser, Arrays]:
        box = (intake.encoding.low, intake.encoding.high)
        frames = Frames.planned(plan.budget, columns=plan.columns)
        frame = frames.find(intake.rows, *box, entropy=entropy)
        found = noisy_covariance(
            frame.apply(intake.rows),
            radius=plan.details["radius"],
            noise=plan.details["noise"],
            entropy=entropy,
            purpose=_PURPOSE,
        ).value
        return frame, {"mean": found.mean, "factor": shrunk_factor(found)}

    @staticmethod
    def _assemble(arrays: Arrays) -> AbstractDistribution:
        mean, factor = arrays["mean"], arrays["factor"]
        if mean.ndim != 1 or factor.shape != 2 * mean.shape or not np.isfinite(mean).all():
            raise InputError("the file's mean and factor do not fit together")
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
    """The Cholesky factor of a covariance that a noisy one makes likely.

    Guarantee:
        Reads the noisy moments alone.

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
