"""A kernel density estimate released as a function, with Gaussian-process noise."""

import math
import os
from typing import Any, final

from flowjax.distributions import AbstractDistribution

from dpflows.errors import InputError
from dpflows.estimators.intake import Intake
from dpflows.estimators.plans import ReleasePlan, affordable_noise
from dpflows.estimators.released import Arrays, ReleasedEstimator
from dpflows.flows.grid import Grid, fitting_masses
from dpflows.flows.normalisers import Normaliser, Scaling
from dpflows.privacy.events import GaussianEvent
from dpflows.privacy.mechanisms.kernels import (
    KERNEL,
    MOST_COLUMNS,
    MOST_POINTS,
    KernelAxis,
    noisy_kernel_sum,
)
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

_PURPOSE = "kernels"
_WIDEST = 0.25


def bandwidth_rule(*, rows: int, columns: int, noise: float) -> float:
    """The kernel's standard deviation as a share of the bounds, from public numbers alone.

    ``0.065 (noise / n)^(1 / (columns + 2))``, where blurring and noise balance, and at
    least ``0.02 n^(-1/6)``. The powers follow from theory; the factors were found by scoring
    test rows of half-moons, Gaussians and pinwheel, one column and two, for 1,500 to
    27,000 rows and noise from 6.4 to 0.

    Example:
        >>> round(bandwidth_rule(rows=27_000, columns=2, noise=2.4), 4)
        0.0063
    """
    noisy = 0.065 * (noise / rows) ** (1 / (columns + 2))
    return min(max(noisy, 0.02 * rows ** (-1 / 6), 1 / MOST_POINTS), _WIDEST)


@final
class DPKernelDensity(ReleasedEstimator):
    """A Gaussian kernel density in one or two columns, with Gaussian-process noise.

    The sum of all rows' kernels is released at the points of a fine grid, plus a path of
    the Gaussian process whose covariance is the same kernel (Hall, Rinaldo and Wasserman,
    2013). One row moves that function by one kernel, whose norm in the kernel's Hilbert
    space is one, so the price does not depend on the grid. Negative values are cut off and
    the density is even within each cell, so that it integrates to one exactly. The
    bandwidth is a share of the bounds: bounds much wider than the data blur it.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and is stamped so.
        delta: The chance, far below one over the number of rows, that epsilon fails.
        schema: What the columns mean, a ``Schema`` or the path of one.
        bounds: Public ``(low, high)`` of the columns instead of a schema, numbers or one
            per column. Rows beyond them are moved to the nearest bound.
        discover: The share of epsilon that may find bounds where none are declared.
        neighbours: Which change of one person's data is hidden.
        accountant: Who prices the releases.
        bandwidth: The kernel's standard deviation as a share of the width of the bounds,
            from 1/256 to 1/4; ``None`` for ``bandwidth_rule``.
        allow_large_delta: Accept a delta of one over the number of rows or more; it becomes a
            caveat of the guarantee.
        insecure_test_seed: Makes everything reproducible and NOT PRIVATE; for tests.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPKernelDensity(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
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
        bandwidth: float | None = None,
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
        self.bandwidth = bandwidth
        self.allow_large_delta = allow_large_delta
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int | None = None) -> ReleasePlan:
        """What ``fit`` would do with a table of this shape; reads no row."""
        budget, told = self._budget_for(rows), self._declarations()
        columns = told.count(columns)
        _require_few(columns)
        noise, releases = affordable_noise(
            budget,
            lambda level: GaussianEvent(noise=level, sensitivity=KERNEL, purpose=_PURPOSE),
            before=told.events(budget, columns),
            accountant=self.accountant,
        )
        bandwidth = self._bandwidth(rows, columns, noise)
        points = min(math.ceil(3 / bandwidth), MOST_POINTS)
        return ReleasePlan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            releases=releases,
            details={"noise": noise, "bandwidth": bandwidth, "points": points},
            seconds=2 + 2e-5 * points**columns + 1e-8 * rows * points,
            megabytes=30 + 1e-4 * points**columns,
        )

    def _estimate(
        self, intake: Intake, plan: ReleasePlan, entropy: Entropy
    ) -> tuple[Normaliser, Arrays]:
        low, high = intake.encoding.low, intake.encoding.high
        axis = KernelAxis(points=plan.details["points"], bandwidth=plan.details["bandwidth"])
        values = noisy_kernel_sum(
            intake.rows,
            low,
            high,
            axis=axis,
            noise=plan.details["noise"],
            entropy=entropy,
            purpose=_PURPOSE,
        ).value
        cells_per_kernel = math.sqrt(2 * math.pi) * axis.bandwidth * len(axis.points)
        total = plan.rows * cells_per_kernel**plan.columns
        return Scaling(low, high - low), {"masses": fitting_masses(values, total=total)}

    @staticmethod
    def _assemble(arrays: Arrays) -> AbstractDistribution:
        return Grid(arrays["masses"])

    def _bandwidth(self, rows: int, columns: int, noise: float) -> float:
        if self.bandwidth is None:
            return bandwidth_rule(rows=rows, columns=columns, noise=noise)
        if not 1 / MOST_POINTS <= self.bandwidth <= _WIDEST:
            raise InputError(
                f"bandwidth must be a share of the bounds from 1/{MOST_POINTS} to {_WIDEST}, "
                f"or None; got {self.bandwidth}"
            )
        return float(self.bandwidth)


def _require_few(columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise InputError(
            f"columns must be at most {MOST_COLUMNS}, got {columns}: a grid over more holds too "
            "many points, and a kernel too few rows; use DPFlow or DPGaussianMixture"
        )
