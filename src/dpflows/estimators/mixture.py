"""DP-MoG: a mixture of Gaussians fitted under differential privacy."""

import dataclasses
import math
import os
from typing import Any, final

import numpy as np
from flowjax.distributions import AbstractDistribution

from dpflows.errors import InputError
from dpflows.estimators.intake import Intake
from dpflows.estimators.plans import ReleasePlan
from dpflows.estimators.released import Arrays, ReleasedEstimator
from dpflows.flows.base import gaussian_mixture
from dpflows.flows.normalisers import Normaliser, Scaling
from dpflows.mixtures.park import STAMP as FAITHFUL_STAMP
from dpflows.mixtures.variants import VARIANTS, Options, Planned
from dpflows.privacy.events import check_choice
from dpflows.privacy.randomness import Entropy
from dpflows.table.encoding import Encoding
from dpflows.table.schema import Schema

#: The variant that promises nothing, whatever its budget.
FLAWED = "faithful"


@final
class DPGaussianMixture(ReleasedEstimator):
    """A mixture of Gaussians, cut off at the bounds.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and is stamped so.
        delta: The chance, far below one over the number of rows, that epsilon fails.
        schema: What the columns mean, a ``Schema`` or the path of one.
        bounds: Public ``(low, high)`` of the columns instead of a schema, numbers or one
            per column. Rows beyond them are moved to the nearest bound.
        discover: The share of epsilon that may find bounds where none are declared.
        neighbours: Which change of one person's data is hidden.
        accountant: Who prices the releases.
        components: How many components; ``None`` takes as many as the budget can describe.
        variant: ``local``, EM in the frames of the components, is the one to use. The
            others are here to be compared with: ``corrected`` and ``laplace`` are plain
            DP-EM with noisy sums, ``faithful`` is Park et al. as released, NOT PRIVATE.
        radius: Of a public ball that holds the rows, in half-widths of the box; for the
            other variants, which need one. ``None`` takes the ball around the box.
        composition: How ``faithful`` adds up: ``moments``, ``zcdp``, ``zcdp-slip``,
            ``advanced`` or ``linear``.
        law: The noise of ``faithful``, ``gaussian`` or ``laplace``.
        allow_large_delta: Accept a delta of one over the number of rows or more; it becomes a
            caveat of the guarantee.
        insecure_test_seed: Makes everything reproducible and NOT PRIVATE; for tests.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows. Variants
        that are faithful to a flawed original are stamped NOT PRIVATE.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> model = DPGaussianMixture(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
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
        components: int | None = None,
        variant: str = "local",
        radius: float | None = None,
        composition: str = "moments",
        law: str = "gaussian",
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
        self.components = components
        self.variant = variant
        self.radius = radius
        self.composition = composition
        self.law = law
        self.allow_large_delta = allow_large_delta
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int | None = None) -> ReleasePlan:
        """What ``fit`` would do with a table of this shape; reads no row."""
        budget, told = self._budget_for(rows), self._declarations()
        columns = told.count(columns)
        before = told.events(budget, columns)
        planned = self._planned(rows, columns)
        if self.variant == FLAWED:
            budget = dataclasses.replace(budget, epsilon=math.inf)
        work = rows * planned.components * (columns + 2) ** 2 * planned.releases
        return ReleasePlan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            releases=(*before, *planned.events),
            details={"variant": self.variant, **planned.details},
            seconds=3 + 2e-9 * work,
            megabytes=50 + 2e-5 * rows * columns,
        )

    def _planned(self, rows: int, columns: int) -> Planned:
        check_choice("variant", self.variant, tuple(VARIANTS))
        return VARIANTS[self.variant].plan(
            self._budget(),
            Options(self.components, self.radius, self.composition, self.law),
            rows=rows,
            columns=columns,
            accountant=self.accountant,
            before=self._declarations().events(self._budget(), columns),
        )

    def _estimate(
        self, intake: Intake, plan: ReleasePlan, entropy: Entropy
    ) -> tuple[Normaliser, Arrays]:
        cube = cube_of(intake.encoding)
        planned = self._planned(plan.rows, plan.columns)
        found = VARIANTS[self.variant].fit(cube.apply(intake.rows), planned, entropy=entropy)
        mixture = found.mixture
        kept = mixture.weights > 0
        return cube, {
            "weights": mixture.weights[kept],
            "means": mixture.means[kept],
            "factors": mixture.factors[kept],
        }

    @staticmethod
    def _assemble(arrays: Arrays) -> AbstractDistribution:
        return mixture_from(arrays)

    def stamps(self) -> tuple[str, ...]:
        """What the settings alone will mark a fit with."""
        flawed = (FAITHFUL_STAMP,) if self.variant == FLAWED else ()
        return (*flawed, *super().stamps())


def cube_of(encoding: Encoding) -> Scaling:
    """The map from the declared box to the cube [-1, 1]^d."""
    return Scaling((encoding.low + encoding.high) / 2, (encoding.high - encoding.low) / 2)


def mixture_from(arrays: Arrays) -> AbstractDistribution:
    """A mixture from a file's arrays, which may be hostile."""
    weights, means, factors = (arrays[name] for name in ("weights", "means", "factors"))
    k, d = means.shape
    if weights.shape != (k,) or factors.shape != (k, d, d) or k < 1:
        raise InputError("the file's weights, means and factors do not fit together")
    if not (np.isfinite(means).all() and np.isfinite(factors).all()):
        raise InputError("the file's means and factors must be finite")
    return gaussian_mixture(weights, means, np.tril(factors))
