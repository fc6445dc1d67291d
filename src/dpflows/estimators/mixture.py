"""DP-MoG: Gaussian mixtures fitted under differential privacy, by one of several variants.

A new variant is one class and one line in ``VARIANTS``.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from flowjax.distributions import AbstractDistribution

from dpflows.errors import InputError
from dpflows.estimators.base import Arrays, ReleasedEstimator
from dpflows.models.density import Rows, gaussian_mixture
from dpflows.models.normalisers import Scaling
from dpflows.pipeline.domain import TableSpec
from dpflows.pipeline.plan import Plan, Stage, Work, needed
from dpflows.privacy.events import Event, check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.dp_em import STAMP as FAITHFUL_STAMP
from dpflows.training.dp_em import EMPlan, Fitted, fit_corrected, fit_faithful, plan_corrected
from dpflows.training.mixture_em import MixturePlan, fit_local, plan_mixture

#: What the originals used where the caller names no number.
_COMPONENTS, _STEPS = 3, 10


@dataclasses.dataclass(frozen=True)
class Options:
    """The caller's options; ``None`` leaves the choice to the variant.

    Attributes:
        components: Number of components.
        radius: Radius of a public ball around the rows, in units of the cube [-1, 1]^d.
        composition: How the faithful variant composes its parameters' epsilons.
        law: The faithful variant's noise, ``gaussian`` or ``laplace``.
    """

    components: int | None = None
    radius: float | None = None
    composition: str = "moments"
    law: str = "gaussian"


@dataclasses.dataclass(frozen=True)
class Planned:
    """The plan of a variant: its events, its size and its own plan.

    Attributes:
        events: Every release.
        components: The number of components.
        releases: Number of passes over the rows.
        details: Public choices by name, ready for JSON.
        plan: The variant's own plan.
    """

    events: tuple[Event, ...]
    components: int
    releases: int
    details: dict[str, Any]
    plan: Any


class Variant(abc.ABC):
    """A method of fitting a mixture to rows inside the cube [-1, 1]^d."""

    @abc.abstractmethod
    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """The plan of the fit within the budget, after ``before``."""

    @abc.abstractmethod
    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Carry out a plan.

        Guarantee:
            The mixture is a function of the planned events, or it carries a stamp.
        """


@final
class Local(Variant):
    """EM in local frames with noise-aware gains and splitting."""

    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """Plan as many components as the budget supports."""
        plan = plan_mixture(
            budget,
            rows=rows,
            columns=columns,
            accountant=accountant,
            components=options.components,
            before=before,
        )
        return Planned(plan.events, plan.components, len(plan.rounds), plan.to_dict(), plan)

    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Fit in local frames."""
        plan: MixturePlan = planned.plan
        return Fitted(fit_local(rows, plan, entropy=entropy), plan.events, ())


@final
@dataclasses.dataclass(frozen=True)
class Stacked(Variant):
    """Plain DP-EM with noisy stacked sums.

    Attributes:
        law: ``gaussian`` with exact composition; ``laplace`` adds up epsilons.
    """

    law: str

    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """Plan ten equal steps."""
        plan = plan_corrected(
            budget,
            rows=rows,
            columns=columns,
            components=options.components or _COMPONENTS,
            steps=_STEPS,
            law=self.law,
            radius=options.radius,
            accountant=accountant,
            before=before,
        )
        details = dataclasses.asdict(plan)
        return Planned(plan.events, plan.components, plan.steps, details, plan)

    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Fit in one public ball."""
        plan: EMPlan = planned.plan
        return fit_corrected(rows, plan, entropy=entropy)


@final
class Faithful(Variant):
    """DP-EM as released by its authors. NOT PRIVATE."""

    def plan(
        self,
        budget: Budget,
        options: Options,
        *,
        rows: int,
        columns: int,
        accountant: str,
        before: Sequence[Event],
    ) -> Planned:
        """A plan without events, since no event covers its releases."""
        if before:
            raise InputError(
                "the faithful variant cannot share its budget with other releases; "
                "use variant='local'"
            )
        components = options.components or _COMPONENTS
        radius = columns**0.5 if options.radius is None else options.radius
        settings = {
            "components": components,
            "steps": _STEPS,
            "composition": options.composition,
            "law": options.law,
            "radius": radius,
        }
        return Planned((), components, _STEPS + 1, settings, (budget, settings))

    def fit(self, rows: Rows, planned: Planned, *, entropy: Entropy) -> Fitted:
        """Fit with the authors' noise."""
        budget, settings = planned.plan
        return fit_faithful(rows, budget, **settings, entropy=entropy)


VARIANTS: dict[str, Variant] = {
    "local": Local(),
    "corrected": Stacked("gaussian"),
    "laplace": Stacked("laplace"),
    "faithful": Faithful(),
}


#: The variant that promises nothing, whatever its budget.
FLAWED = "faithful"


@final
@dataclasses.dataclass(frozen=True)
class FitMixture(Stage):
    """EM on the rows in the cube [-1, 1]^d.

    Attributes:
        variant: A key of ``VARIANTS``.
        planned: The plan of the variant.
    """

    variant: str
    planned: Planned

    @property
    def events(self) -> tuple[Event, ...]:
        """Every release of EM."""
        return self.planned.events

    def run(self, work: Work) -> Work:
        """Fit the mixture; components without weight are removed."""
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
    """A differentially private Gaussian mixture, truncated at the bounds.

    Args:
    {common}
        components: Number of components; ``None`` for as many as the budget supports.
        variant: ``local``, EM in the frames of the components, is recommended. The others are for
        comparison: ``corrected`` and ``laplace`` are plain
            DP-EM with noisy sums, ``faithful`` is Park et al. as released, NOT PRIVATE.
        radius: Radius of a public ball around the rows, in half-widths of the box, for the other
        variants. ``None`` uses the ball around the box.
        composition: Composition of ``faithful``: ``moments``, ``zcdp``, ``zcdp-slip``,
            ``advanced`` or ``linear``.
        law: The noise of ``faithful``, ``gaussian`` or ``laplace``.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows. Models of the variant
        ``faithful`` are marked NOT PRIVATE.

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
        raise InputError("the file's weights, means and factors are inconsistent")
    if not (np.isfinite(means).all() and np.isfinite(factors).all()):
        raise InputError("the file's means and factors must be finite")
    return gaussian_mixture(weights, means, np.tril(factors))
