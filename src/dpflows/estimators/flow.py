"""DP-NF: a normalizing flow fitted under differential privacy."""

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.base import (
    DensityEstimator,
    TrainedEstimator,
    describe_density,
    read_density,
    released_density,
)
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.estimators.persistence import parameter_arrays, require_room, with_parameters
from dpflows.models.architectures import Architecture
from dpflows.models.autoregressive import CellShape
from dpflows.models.density import Density, Mixture
from dpflows.models.normalisers import normaliser_from
from dpflows.pipeline.defaults import rule_for
from dpflows.pipeline.domain import TableSpec
from dpflows.pipeline.initialisation import (
    NORMALISATIONS,
    PAPER_FORMULA,
    PAPER_STAMP,
    UNPAID,
    UNPAID_STAMP,
    BuildFlow,
    FitPrior,
    FromBounds,
    GivenPrior,
    Normalisation,
    gaussian_share,
    plan_initialisation,
    plan_normalisation,
    prior_arrays,
    prior_from,
    untrained_flow,
)
from dpflows.pipeline.plan import Descent, Plan, Stage, Work, needed
from dpflows.pipeline.training import OPTIMIZERS, make_plan, name_of, read_plan
from dpflows.privacy.accounting import strength
from dpflows.privacy.events import Event, check_choice
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.table.reading import Encoding
from dpflows.table.schema import Schema
from dpflows.training.mixture_em import plan_mixture
from dpflows.training.natural_gradient import NaturalGradient

#: From so many rows per column on, each counted as much as mu, histograms are worth their share
#: before a flow that is trained by natural gradient.
ENOUGH_ROWS = 3600
#: The learning rate of a flow that refines a mixture by a first-order method.
REFINING_RATE = 1e-3
PUBLIC_PRIOR = (
    "the prior of the flow is a mixture that the curator declared to be fitted to public rows of "
    "other people (prior_is_public). The cost of that fit is not included here; if it used rows of "
    "the same people, its cost must be added."
)


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPFlow(TrainedEstimator):
    """A differentially private normalizing flow over columns of numbers.

    Args:
    {common}
        prior: The prior of the flow: ``None`` for a Gaussian, ``"mixture"`` for a
            mixture fitted with a share of the budget, or a fitted ``DPGaussianMixture``.
        prior_share: The share of the squared Gaussian budget for a ``"mixture"``; with 1 the
        mixture itself is the model.
        prior_is_public: Whether a given prior was fitted to other people's public rows.
            If not, its cost is part of this release.
        trainable_prior: Whether the prior is trained.
        normalisation: How columns are brought to comparable units within the budget:
        ``histograms``, ``moments`` or ``bounds``; ``auto`` uses ``histograms``, but ``bounds`` for
        ``natural`` with few rows, where the initial Gaussian standardises the columns;
        ``paper-not-private`` is for comparison.
        architecture: A family by name, an ``Architecture``, or ``None`` for the rule.
        initialisation: Initialisation of ActNorm layers: ``identity``, or ``private`` from noisy
        moments of their inputs; ``paper-not-private`` is for comparison.

    ``optimizer="auto"`` uses ``natural`` if none of architecture, steps, noise, learning rate,
    averaging and initialisation is set, and otherwise, or without privacy, ``adam``.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> flow = DPFlow(epsilon=1.0, delta=1e-4, bounds=(-4, 4), steps=3).fit(rows)
        >>> flow.sample(5).shape, flow.guarantee_.epsilon <= 1.0
        ((5, 2), True)
    """

    prior: str | DPGaussianMixture | None = None
    prior_share: float = 0.5
    prior_is_public: bool = False
    trainable_prior: bool = False
    normalisation: str = "auto"
    architecture: str | Architecture | None = None
    initialisation: str = "identity"

    prior_: Mixture | None = dataclasses.field(init=False)
    is_prior_trained_: bool = dataclasses.field(init=False)

    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        """Domain, normaliser, prior, untrained flow, training."""
        share, optimizer = self._share(), self._optimizer()
        is_trained = share < 1
        rule = rule_for(name_of(optimizer))(budget, rows=rows, columns=columns)
        architecture = self._architecture() or rule.architecture
        domain = spec.domain(budget, columns)
        start = plan_initialisation(
            self.initialisation, budget, layers=architecture.act_norms, columns=columns
        )
        build = BuildFlow(architecture if is_trained else None, start, self.trainable_prior)
        return make_plan(
            budget,
            rows=rows,
            columns=columns,
            settings=self._settings(
                architecture=self._architecture(),
                learning_rate=self._learning_rate(share, optimizer),
                optimizer=optimizer,
            ),
            before=(domain, *self._prior_stages(budget, rows, columns, domain.events), build),
            train=is_trained,
        )

    def _prior_stages(
        self, budget: Budget, rows: int, columns: int, before: Sequence[Event]
    ) -> tuple[Stage, ...]:
        """The normaliser and the prior."""
        check_choice("normalisation", self.normalisation, ("auto", *NORMALISATIONS))
        if isinstance(self.prior, DPGaussianMixture):
            return (_given(self.prior, is_public=self.prior_is_public),)
        share, is_natural = self._share(), self._is_natural()
        rows_per_column = strength(budget) * rows / columns
        name = self._normalisation(share, rows_per_column)
        normaliser: Normalisation = plan_normalisation(name, budget, rows=rows, columns=columns)
        if share == 0 and not is_natural:
            return (normaliser,)
        normaliser = normaliser if is_natural else FromBounds(rows, columns, 0.0)
        mixture = plan_mixture(
            budget,
            rows=rows,
            columns=columns,
            accountant=self.accountant,
            components=None if share > 0 else 1,
            before=(*before, *normaliser.events),
            share=share or gaussian_share(budget, rows=rows, columns=columns),
        )
        return normaliser, FitPrior(mixture)

    def _share(self) -> float:
        """The share of the squared Gaussian budget for fitting a mixture."""
        if self.prior is None or isinstance(self.prior, DPGaussianMixture):
            return 0.0
        if self.prior != "mixture":
            raise InputError(
                "prior must be None, 'mixture' or a fitted DPGaussianMixture; DPDensity chooses "
                "between a flow and a mixture by a public rule"
            )
        if not 0 < self.prior_share <= 1:
            raise InputError(f"prior_share must be in (0, 1], got {self.prior_share}")
        return self.prior_share

    def _normalisation(self, share: float, rows_per_column: float) -> str:
        """The given normalisation, or that of the public rule.

        Histograms, except for natural gradient where they would be noisy or no flow follows.
        """
        if self.normalisation != "auto":
            return self.normalisation
        is_enough = 0 < share < 1 or (share == 0 and rows_per_column >= ENOUGH_ROWS)
        return "histograms" if is_enough or not self._is_natural() else "bounds"

    def _learning_rate(self, share: float, optimizer: str | Descent) -> float | None:
        """The given learning rate, or a small one for a flow with a fitted prior."""
        is_refined = share > 0 and name_of(optimizer) != NaturalGradient.name
        return REFINING_RATE if is_refined and self.learning_rate is None else self.learning_rate

    def _optimizer(self) -> str | Descent:
        check_choice("optimizer", name_of(self.optimizer), ("auto", *OPTIMIZERS))
        if self.optimizer != "auto":
            return self.optimizer
        fixed = (self.architecture, self.steps, self.noise_multiplier, self.learning_rate)
        is_free = all(setting is None for setting in (*fixed, self.averaging))
        is_free = is_free and self.initialisation == "identity"
        return NaturalGradient.name if is_free and self.budget().is_private else "adam"

    def _is_natural(self) -> bool:
        return name_of(self._optimizer()) == NaturalGradient.name

    def _architecture(self) -> Architecture | None:
        chosen = self.architecture
        if chosen is None or isinstance(chosen, Architecture):
            return chosen
        if not isinstance(chosen, str):
            raise InputError("architecture must be a name, an Architecture or None")
        return Architecture(chosen)

    def _assemble(self, plan: Plan, work: Work) -> Density:
        build = next(stage for stage in plan.stages if isinstance(stage, BuildFlow))
        self.prior_, self.is_prior_trained_ = work.prior, build.trainable_prior
        return released_density(needed(work.model), work)

    def _stamps(self, spec: TableSpec) -> tuple[str, ...]:
        formula = (PAPER_STAMP,) if self.initialisation == PAPER_FORMULA else ()
        return (*formula, *self._prior_stamps(), *super()._stamps(spec))

    def _prior_stamps(self) -> tuple[str, ...]:
        """The stamps of a given private prior, and of a non-private normaliser."""
        if isinstance(self.prior, DPGaussianMixture):
            return () if self.prior_is_public else self.prior.guarantee_.stamps
        return (UNPAID_STAMP,) if self.normalisation == UNPAID else ()

    def _caveats(self, spec: TableSpec, rows: int) -> tuple[str, ...]:
        # that a given prior was called public, no calculation can check
        is_told = isinstance(self.prior, DPGaussianMixture) and self.prior_is_public
        return (*((PUBLIC_PRIOR,) if is_told else ()), *super()._caveats(spec, rows))

    def _describe_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        common, arrays = describe_density(self.density_)
        header = {"plan": self.plan_.to_dict(), "trainable_prior": self.is_prior_trained_}
        parameters = parameter_arrays(self.density_.model)
        return common | header, arrays | prior_arrays(self.prior_) | parameters

    @classmethod
    def _rebuild(
        cls,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        guarantee: Guarantee,
        schema: Schema,
    ) -> "DensityEstimator":
        plan = read_plan(header["plan"], guarantee.budget)
        if isinstance(plan.architecture, CellShape):
            # 0.1 called networks over mixed rows flows, too
            from dpflows.estimators.autoregressive import DPAutoregressive

            return DPAutoregressive._rebuild(header, arrays, guarantee, schema)
        estimator, encoding = cls(**cls._settings_of(guarantee, schema)), Encoding(schema)
        is_trained = plan.steps > 0
        if is_trained:
            require_room(plan.architecture, len(encoding.low), arrays)
        estimator.prior_ = prior_from(arrays)
        estimator.is_prior_trained_ = bool(header["trainable_prior"])
        normaliser = normaliser_from(arrays)
        template = untrained_flow(
            plan.architecture if is_trained or estimator.prior_ is None else None,
            normaliser,
            estimator.prior_,
            (encoding.low, encoding.high),
            np.zeros(2, np.uint32),
            estimator.is_prior_trained_,
        )
        model = with_parameters(template, arrays)
        estimator.density_ = read_density(header, normaliser, model, encoding)
        estimator.encoding_, estimator.plan_ = encoding, plan
        return estimator


def _given(fitted: DPGaussianMixture, *, is_public: bool) -> GivenPrior:
    """A fitted mixture as the prior of a flow, in the units of the rows."""
    check_is_fitted(fitted, "density_")
    cube, parts = fitted.density_.normaliser.arrays(), fitted.parameters_
    weights = parts["weights"] / parts["weights"].sum()
    mixture = Mixture(weights, parts["means"], parts["factors"])
    spent = () if is_public else fitted.guarantee_.events
    return GivenPrior(mixture.scaled(cube["scale"], cube["shift"]), spent)
