"""A kernel density estimate released as a function, with Gaussian-process noise."""

import dataclasses
import math
from typing import final

from flowjax.distributions import AbstractDistribution

from dpflows.errors import InputError
from dpflows.estimators.base import Arrays, ReleasedEstimator
from dpflows.models.density import Grid, fitting_masses
from dpflows.models.normalisers import Scaling
from dpflows.pipeline.domain import TableSpec
from dpflows.pipeline.plan import Plan, Stage, Work, affordable_noise, needed
from dpflows.privacy.events import Event, GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import (
    KERNEL,
    MOST_COLUMNS,
    MOST_POINTS,
    KernelAxis,
    noisy_kernel_sum,
)

_PURPOSE = "kernels"
_WIDEST = 0.25


def bandwidth_rule(*, rows: int, columns: int, noise: float) -> float:
    """The kernel's standard deviation as a share of the bounds, from public numbers only.

    ``0.065 (noise / n)^(1 / (columns + 2))``, which balances smoothing and noise, and at least
    ``0.02 n^(-1/6)``. The powers follow from theory; the factors were determined by scoring test
    rows of half-moons, Gaussians and pinwheel, one column and two, for 1,500 to 27,000 rows and
    noise from 6.4 to 0.

    Example:
        >>> round(bandwidth_rule(rows=27_000, columns=2, noise=2.4), 4)
        0.0063
    """
    noisy = 0.065 * (noise / rows) ** (1 / (columns + 2))
    return min(max(noisy, 0.02 * rows ** (-1 / 6), 1 / MOST_POINTS), _WIDEST)


@final
@dataclasses.dataclass(frozen=True)
class ReleaseKernels(Stage):
    """Release the sum of all rows' kernels on a grid, with Gaussian-process noise.

    Attributes:
        rows: Public number of rows.
        columns: Number of columns.
        points: The number of points along each column.
        bandwidth: The kernel's standard deviation as a share of the bounds.
        event: The release, with its noise.
    """

    rows: int
    columns: int
    points: int
    bandwidth: float
    event: GaussianEvent

    @property
    def events(self) -> tuple[Event, ...]:
        """The one release."""
        return (self.event,)

    def run(self, work: Work) -> Work:
        """Release the sum, and turn it into masses."""
        low, high = work.box
        axis = KernelAxis(points=self.points, bandwidth=self.bandwidth)
        values = noisy_kernel_sum(
            needed(work.rows),
            low,
            high,
            axis=axis,
            noise=self.event.noise,
            entropy=work.entropy,
            purpose=self.event.purpose,
        ).value
        cells_per_kernel = math.sqrt(2 * math.pi) * self.bandwidth * self.points
        total = self.rows * cells_per_kernel**self.columns
        masses = fitting_masses(values, total=total)
        return work.after(normaliser=Scaling(low, high - low), parameters={"masses": masses})


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPKernelDensity(ReleasedEstimator):
    """A Gaussian kernel density in one or two columns, with Gaussian-process noise.

    The sum of all rows' kernels is released at the points of a fine grid, plus a path of the
    Gaussian process whose covariance is the same kernel (Hall, Rinaldo and Wasserman, 2013). One
    row changes that function by one kernel, whose norm in the kernel's Hilbert space is one, so the
    cost does not depend on the grid. Negative values are set to zero and the density is constant
    within each cell, so that it integrates to one exactly. The bandwidth is a share of the bounds:
    bounds much wider than the data oversmooth it.

    Args:
    {common}
        bandwidth: The kernel's standard deviation as a share of the width of the bounds,
            from 1/256 to 1/4; ``None`` for ``bandwidth_rule``.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPKernelDensity(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
        >>> model.sample(5).shape, model.guarantee_.epsilon <= 1.0
        ((5, 2), True)
    """

    bandwidth: float | None = None

    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        _require_few(columns)
        domain = spec.domain(budget, columns)
        noise = affordable_noise(
            budget,
            lambda level: GaussianEvent(noise=level, sensitivity=KERNEL, purpose=_PURPOSE),
            before=domain.events,
            accountant=self.accountant,
        )
        bandwidth = self._bandwidth(rows, columns, noise)
        points = min(math.ceil(3 / bandwidth), MOST_POINTS)
        event = GaussianEvent(noise=noise, sensitivity=KERNEL, purpose=_PURPOSE)
        return Plan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            stages=(domain, ReleaseKernels(rows, columns, points, bandwidth, event)),
            details={"noise": noise, "bandwidth": bandwidth, "points": points},
            cost=(2 + 2e-5 * points**columns + 1e-8 * rows * points, 30 + 1e-4 * points**columns),
        )

    @staticmethod
    def _model(arrays: Arrays) -> AbstractDistribution:
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
            f"columns must be at most {MOST_COLUMNS}, got {columns}: with more columns the grid "
            "has too many points and each kernel too few rows; use DPFlow or DPGaussianMixture"
        )
