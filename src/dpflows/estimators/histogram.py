"""Histograms: a joint grid for up to three columns, one histogram per column beyond."""

import math
import os
from typing import Any, final

import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.estimators.intake import Intake
from dpflows.estimators.plans import ReleasePlan, affordable_noise
from dpflows.estimators.released import Arrays, ReleasedEstimator
from dpflows.flows.grid import Grid, ProductGrid, fitting_masses
from dpflows.flows.normalisers import Normaliser, Scaling
from dpflows.privacy.events import DiscreteLaplaceEvent, Event, GaussianEvent
from dpflows.privacy.mechanisms.counting import COUNTING
from dpflows.privacy.mechanisms.grids import MOST_CELLS, noisy_grid
from dpflows.privacy.mechanisms.trees import BINS, noisy_distributions, trees_sensitivity
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

#: Beyond so many columns the cells of a joint grid would be too many to fill.
MOST_JOINT_COLUMNS = 3
INDEPENDENT = "columns are taken as independent: no relation between them is kept"
JOINT = "none: cells are joint over all columns"
_PURPOSE = "histogram"
#: Bins per axis without noise, factor and power of the rows, by number of columns.
_BINS_RULE = {1: (8.0, 1 / 3), 2: (4.0, 1 / 3), 3: (2.4, 1 / 4)}


def bins_rule(*, rows: int, columns: int, scale: float) -> int:
    """Bins along each column of a joint grid, from public numbers alone.

    ``a n^b / sqrt(1 + scale)`` with (a, b) = (8, 1/3), (4, 1/3), (2.4, 1/4) for one, two
    and three columns; ``scale`` is that of the noise on a count. Found by scoring test
    rows of half-moons, Gaussians and pinwheel (one and two columns) and of three columns
    of Life Science and Power, for 1,500 to 27,000 rows and scales from 2 to 0.

    Example:
        >>> bins_rule(rows=27_000, columns=2, scale=0.5)
        97
    """
    factor, power = _BINS_RULE[columns]
    most = math.floor(MOST_CELLS ** (1 / columns) + 1e-9)
    return min(max(int(factor * rows**power / math.sqrt(1 + scale)), 1), most)


def smallest_part(*, rows: int, noise: float) -> float:
    """The count above which a column's bin is halved, in rows: what noise cannot fake.

    Found on Life Science, Power and Shuttle at epsilon 0.5, 2 and infinity.

    Example:
        >>> smallest_part(rows=1_000_000, noise=10.0)
        2500.0
    """
    return max(20 * noise, round(0.25 * rows ** (2 / 3), 6))


@final
class DPHistogram(ReleasedEstimator):
    """Noisy counts in the cells of a grid over the bounds.

    Up to three columns share one grid. A row is in one cell, so two-sided geometric noise
    of the same scale serves any number of cells; it has less than half the standard
    deviation of Gaussian noise at the same price. Beyond three columns the density is a
    PRODUCT of one histogram per column: columns are taken as independent, and whatever
    relates them is lost (``plan().details["independence"]`` says which it is). Each is
    halved again and again where its noisy counts allow, so that wide bounds do little
    harm. Negative counts are cut off, with a constant taken from all so that the total
    is right, and the result is mixed with an even background.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and is stamped so.
        delta: The chance, far below one over the number of rows, that epsilon fails.
        schema: What the columns mean, a ``Schema`` or the path of one.
        bounds: Public ``(low, high)`` of the columns instead of a schema, numbers or one
            per column. Rows beyond them are moved to the nearest bound.
        discover: The share of epsilon that may find bounds where none are declared.
        neighbours: Which change of one person's data is hidden.
        accountant: Who prices the releases.
        bins: Bins along each column of a joint grid; ``None`` for ``bins_rule``.
        allow_large_delta: Accept a delta of one over the number of rows or more; it becomes a
            caveat of the guarantee.
        insecure_test_seed: Makes everything reproducible and NOT PRIVATE; for tests.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPHistogram(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
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
        bins: int | None = None,
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
        self.bins = bins
        self.allow_large_delta = allow_large_delta
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int | None = None) -> ReleasePlan:
        """What ``fit`` would do with a table of this shape; reads no row."""
        budget, told = self._budget_for(rows), self._declarations()
        columns = told.count(columns)
        noise, releases = affordable_noise(
            budget,
            lambda level: _event(columns, level),
            before=told.events(budget, columns),
            accountant=self.accountant,
        )
        details = self._details(rows, columns, noise)
        cells = details["cells"]
        return ReleasePlan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            releases=releases,
            details=details,
            seconds=2 + 2e-5 * cells + 1e-7 * rows * columns,
            megabytes=10 + 1e-4 * cells + 4e-5 * rows * columns,
        )

    def _details(self, rows: int, columns: int, noise: float) -> dict[str, Any]:
        if columns > MOST_JOINT_COLUMNS:
            self._refuse_bins(columns)
            part = smallest_part(rows=rows, noise=noise)
            shape = {"bins": BINS, "cells": BINS * columns, "smallest_part": part}
            return {"noise": noise, "independence": INDEPENDENT, **shape}
        bins = self._bins(rows, columns, noise)
        return {"noise": noise, "independence": JOINT, "bins": bins, "cells": bins**columns}

    def _estimate(
        self, intake: Intake, plan: ReleasePlan, entropy: Entropy
    ) -> tuple[Normaliser, Arrays]:
        low, high = intake.encoding.low, intake.encoding.high
        find = _column_masses if plan.columns > MOST_JOINT_COLUMNS else _joint_masses
        return Scaling(low, high - low), find(intake, plan, entropy)

    @staticmethod
    def _assemble(arrays: Arrays) -> AbstractDistribution:
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
                f"bins applies to at most {MOST_JOINT_COLUMNS} columns, got {columns}; leave it "
                "out, the bins of each column then follow its noisy counts"
            )


def _joint_masses(intake: Intake, plan: ReleasePlan, entropy: Entropy) -> Arrays:
    counts = noisy_grid(
        intake.rows,
        intake.encoding.low,
        intake.encoding.high,
        bins=plan.details["bins"],
        scale=plan.details["noise"],
        entropy=entropy,
        purpose=_PURPOSE,
    ).value
    return {"masses": fitting_masses(counts.astype(float), total=plan.rows)}


def _column_masses(intake: Intake, plan: ReleasePlan, entropy: Entropy) -> Arrays:
    below = noisy_distributions(
        intake.rows,
        intake.encoding.low,
        intake.encoding.high,
        noise=plan.details["noise"],
        entropy=entropy,
        purpose=_PURPOSE,
    ).value
    masses = [halved(line, plan.details["smallest_part"]) for line in below]
    return {"column-masses": np.stack(masses)}


def _event(columns: int, noise: float) -> Event:
    if columns > MOST_JOINT_COLUMNS:
        unit = trees_sensitivity(columns)
        return GaussianEvent(noise=noise, sensitivity=unit, purpose=_PURPOSE)
    return DiscreteLaplaceEvent(scale=noise, sensitivity=COUNTING, purpose=_PURPOSE)


def halved(below: Float64[np.ndarray, " edges"], most: float) -> Float64[np.ndarray, " bins"]:
    """Shares of equal bins: any with more than ``most`` rows is halved, the rest are even.

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
