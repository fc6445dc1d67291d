"""Histograms: a joint grid for up to three columns, else one histogram per column."""

import dataclasses
import math
from typing import Any, final

import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.estimators.base import Arrays, ReleasedEstimator
from dpflows.models.density import Grid, ProductGrid, fitting_masses
from dpflows.models.normalisers import Scaling
from dpflows.pipeline.domain import TableSpec
from dpflows.pipeline.plan import Plan, Stage, Work, affordable_noise, needed
from dpflows.privacy.events import DiscreteLaplaceEvent, Event, GaussianEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.statistics import (
    BINS,
    COUNTING,
    MOST_CELLS,
    noisy_distributions,
    noisy_grid,
    trees_sensitivity,
)

#: Beyond so many columns the cells of a joint grid would be too many to fill.
MOST_JOINT_COLUMNS = 3
INDEPENDENT = "columns are modelled as independent: no relation between them is kept"
JOINT = "none: the grid is joint over all columns"
_PURPOSE = "histogram"
#: Bins per axis without noise, factor and power of the rows, by number of columns.
_BINS_RULE = {1: (8.0, 1 / 3), 2: (4.0, 1 / 3), 3: (2.4, 1 / 4)}


def bins_rule(*, rows: int, columns: int, scale: float) -> int:
    """Bins along each column of a joint grid, from public numbers alone.

    ``a n^b / sqrt(1 + scale)`` with (a, b) = (8, 1/3), (4, 1/3), (2.4, 1/4) for one, two and three
    columns; ``scale`` is that of the noise on a count. Determined by scoring test rows of
    half-moons, Gaussians and pinwheel (one and two columns) and of three columns of Life Science
    and Power, for 1,500 to 27,000 rows and scales from 2 to 0.

    Example:
        >>> bins_rule(rows=27_000, columns=2, scale=0.5)
        97
    """
    factor, power = _BINS_RULE[columns]
    most = math.floor(MOST_CELLS ** (1 / columns) + 1e-9)
    return min(max(int(factor * rows**power / math.sqrt(1 + scale)), 1), most)


def smallest_part(*, rows: int, noise: float) -> float:
    """The count, in rows, above which a column's bin is halved; well above the noise.

    Determined on Life Science, Power and Shuttle at epsilon 0.5, 2 and infinity.

    Example:
        >>> smallest_part(rows=1_000_000, noise=10.0)
        2500.0
    """
    return max(20 * noise, round(0.25 * rows ** (2 / 3), 6))


@final
@dataclasses.dataclass(frozen=True)
class ReleaseHistogram(Stage):
    """Release noisy counts: of one grid over few columns, or of each of many columns.

    Attributes:
        rows: Public number of rows.
        details: The public choices: bins, and the smallest part of a column.
        event: The release, with its noise.
    """

    rows: int
    details: dict[str, Any]
    event: DiscreteLaplaceEvent | GaussianEvent

    @property
    def events(self) -> tuple[Event, ...]:
        """The one release."""
        return (self.event,)

    def run(self, work: Work) -> Work:
        """Count, and turn counts into masses."""
        low, high = work.box
        find = self._column_masses if isinstance(self.event, GaussianEvent) else self._joint_masses
        return work.after(normaliser=Scaling(low, high - low), parameters=find(work))

    def _joint_masses(self, work: Work) -> Arrays:
        counts = noisy_grid(
            needed(work.rows),
            *work.box,
            bins=self.details["bins"],
            scale=self.event.scale,  # type: ignore[union-attr]
            entropy=work.entropy,
            purpose=self.event.purpose,
        ).value
        return {"masses": fitting_masses(counts.astype(float), total=self.rows)}

    def _column_masses(self, work: Work) -> Arrays:
        below = noisy_distributions(
            needed(work.rows),
            *work.box,
            noise=self.event.noise,  # type: ignore[union-attr]
            entropy=work.entropy,
            purpose=self.event.purpose,
        ).value
        masses = [halved(line, self.details["smallest_part"]) for line in below]
        return {"column-masses": np.stack(masses)}


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPHistogram(ReleasedEstimator):
    """Noisy counts in the cells of a grid over the bounds.

    Up to three columns share one grid. A row is in one cell, so the scale of the two-sided
    geometric noise does not depend on the number of cells; its standard deviation is less than half
    that of Gaussian noise at the same cost. Beyond three columns the density is a PRODUCT of one
    histogram per column: columns are modelled as independent, and their relations are lost
    (``plan().details["independence"]`` states this). Bins are halved repeatedly where noisy counts
    allow, so that wide bounds do little harm. Counts are projected to be non-negative with the
    right total, and the result is mixed with a uniform background.

    Args:
    {common}
        bins: Bins along each column of a joint grid; ``None`` for ``bins_rule``.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPHistogram(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
        >>> model.sample(5).shape, model.guarantee_.epsilon <= 1.0
        ((5, 2), True)
    """

    bins: int | None = None

    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        domain = spec.domain(budget, columns)
        noise = affordable_noise(
            budget,
            lambda level: _event(columns, level),
            before=domain.events,
            accountant=self.accountant,
        )
        details = self._details(rows, columns, noise)
        release = ReleaseHistogram(rows, details, _event(columns, noise))
        cells = details["cells"]
        return Plan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            stages=(domain, release),
            details=details,
            cost=(
                2 + 2e-5 * cells + 1e-7 * rows * columns,
                10 + 1e-4 * cells + 4e-5 * rows * columns,
            ),
        )

    def _details(self, rows: int, columns: int, noise: float) -> dict[str, Any]:
        if columns > MOST_JOINT_COLUMNS:
            self._refuse_bins(columns)
            part = smallest_part(rows=rows, noise=noise)
            shape = {"bins": BINS, "cells": BINS * columns, "smallest_part": part}
            return {"noise": noise, "independence": INDEPENDENT, **shape}
        bins = self._bins(rows, columns, noise)
        return {"noise": noise, "independence": JOINT, "bins": bins, "cells": bins**columns}

    @staticmethod
    def _model(arrays: Arrays) -> AbstractDistribution:
        if "masses" in arrays:
            return Grid(arrays["masses"])
        return ProductGrid(arrays["column-masses"])

    def _bins(self, rows: int, columns: int, scale: float) -> int:
        if self.bins is None:
            return bins_rule(rows=rows, columns=columns, scale=scale)
        if self.bins < 1 or self.bins**columns > MOST_CELLS:
            raise InputError(
                f"bins must be at least 1 and give at most {MOST_CELLS:,} cells, got {self.bins} "
                f"along each of {columns} columns"
            )
        return int(self.bins)

    def _refuse_bins(self, columns: int) -> None:
        if self.bins is not None:
            raise InputError(
                f"bins applies to at most {MOST_JOINT_COLUMNS} columns, got {columns}; remove it; "
                "the bins of each column then follow its noisy counts"
            )


def _event(columns: int, noise: float) -> DiscreteLaplaceEvent | GaussianEvent:
    if columns > MOST_JOINT_COLUMNS:
        unit = trees_sensitivity(columns)
        return GaussianEvent(noise=noise, sensitivity=unit, purpose=_PURPOSE)
    return DiscreteLaplaceEvent(scale=noise, sensitivity=COUNTING, purpose=_PURPOSE)


def halved(below: Float64[np.ndarray, " edges"], most: float) -> Float64[np.ndarray, " bins"]:
    """Shares of equal bins: bins with more than ``most`` rows are halved.

    Args:
        below: Noisy number of rows below each edge, increasing from zero.
        most: Rows that a bin may hold without being halved.

    Example:
        >>> halved(np.array([0.0, 6.0, 8.0, 9.0, 10.0]), 5.0).tolist()
        [0.6, 0.2, 0.1, 0.1]
    """
    masses, waiting = np.zeros(len(below) - 1), [(0, len(below) - 1)]
    while waiting:
        first, last = waiting.pop()
        count, middle = below[last] - below[first], (first + last) // 2
        if count > most and last - first > 1:
            waiting += [(first, middle), (middle, last)]
        else:
            masses[first:last] = count / (last - first)
    whole = masses.sum()
    return masses / whole if whole > 0 else np.full(len(masses), 1 / len(masses))
