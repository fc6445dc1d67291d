"""DP-MoG: a mixture of Gaussians fitted under differential privacy."""

import dataclasses
import math
from typing import final

import numpy as np
from flowjax.distributions import AbstractDistribution

from dpflows.errors import InputError
from dpflows.estimators.released import Arrays, ReleasedEstimator
from dpflows.flows.base import gaussian_mixture
from dpflows.flows.normalisers import Scaling
from dpflows.mixtures.park import STAMP as FAITHFUL_STAMP
from dpflows.mixtures.variants import VARIANTS, Options, Planned
from dpflows.pipeline.domain import TableSpec
from dpflows.pipeline.plan import Plan
from dpflows.pipeline.stage import Stage, Work, needed
from dpflows.privacy.events import Event, check_choice
from dpflows.privacy.guarantee import Budget

#: The variant that promises nothing, whatever its budget.
FLAWED = "faithful"


@final
@dataclasses.dataclass(frozen=True)
class FitMixture(Stage):
    """EM on the rows in the cube [-1, 1]^d.

    Attributes:
        variant: A key of ``VARIANTS``.
        planned: What the variant will do.
    """

    variant: str
    planned: Planned

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release of EM."""
        return self.planned.events

    def run(self, work: Work) -> Work:
        """Fit the mixture; components without weight are left out."""
        low, high = work.box
        cube = Scaling((low + high) / 2, (high - low) / 2)
        rows = cube.apply(needed(work.rows))
        mixture = VARIANTS[self.variant].fit(rows, self.planned, entropy=work.entropy).mixture
        kept = mixture.weights > 0
        parameters = {
            "weights": mixture.weights[kept],
            "means": mixture.means[kept],
            "factors": mixture.factors[kept],
        }
        return work.after(normaliser=cube, parameters=parameters)


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPGaussianMixture(ReleasedEstimator):
    """A mixture of Gaussians, cut off at the bounds.

    Args:
    {common}
        components: How many components; ``None`` takes as many as the budget can describe.
        variant: ``local``, EM in the frames of the components, is the one to use. The
            others are here to be compared with: ``corrected`` and ``laplace`` are plain
            DP-EM with noisy sums, ``faithful`` is Park et al. as released, NOT PRIVATE.
        radius: Of a public ball that holds the rows, in half-widths of the box; for the
            other variants, which need one. ``None`` takes the ball around the box.
        composition: How ``faithful`` adds up: ``moments``, ``zcdp``, ``zcdp-slip``,
            ``advanced`` or ``linear``.
        law: The noise of ``faithful``, ``gaussian`` or ``laplace``.

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

    components: int | None = None
    variant: str = "local"
    radius: float | None = None
    composition: str = "moments"
    law: str = "gaussian"

    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        check_choice("variant", self.variant, tuple(VARIANTS))
        domain = spec.domain(budget, columns)
        planned = VARIANTS[self.variant].plan(
            budget,
            Options(self.components, self.radius, self.composition, self.law),
            rows=rows,
            columns=columns,
            accountant=self.accountant,
            before=domain.events,
        )
        if self.variant == FLAWED:
            budget = dataclasses.replace(budget, epsilon=math.inf)
        work = rows * planned.components * (columns + 2) ** 2 * planned.releases
        return Plan(
            budget=budget,
            accountant=self.accountant,
            rows=rows,
            columns=columns,
            stages=(domain, FitMixture(self.variant, planned)),
            details={"variant": self.variant, **planned.details},
            cost=(3 + 2e-9 * work, 50 + 2e-5 * rows * columns),
        )

    @staticmethod
    def _model(arrays: Arrays) -> AbstractDistribution:
        return mixture_from(arrays)

    def _stamps(self, spec: TableSpec) -> tuple[str, ...]:
        flawed = (FAITHFUL_STAMP,) if self.variant == FLAWED else ()
        return (*flawed, *super()._stamps(spec))


def mixture_from(arrays: Arrays) -> AbstractDistribution:
    """A mixture from a file's arrays, which may be hostile."""
    weights, means, factors = (arrays[name] for name in ("weights", "means", "factors"))
    k, d = means.shape
    if weights.shape != (k,) or factors.shape != (k, d, d) or k < 1:
        raise InputError("the file's weights, means and factors do not fit together")
    if not (np.isfinite(means).all() and np.isfinite(factors).all()):
        raise InputError("the file's means and factors must be finite")
    return gaussian_mixture(weights, means, np.tril(factors))
