"""DP-NF: a normalizing flow fitted under differential privacy."""

import os
from typing import Any, final

import numpy as np

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.charging import Job
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.estimators.parameters import (
    fresh_model,
    parameter_arrays,
    require_room,
    with_parameters,
)
from dpflows.estimators.preparing import Beginning, Preparation, Prepared, prepare, rate_after
from dpflows.flows.architectures import Architecture
from dpflows.flows.density import Defended
from dpflows.flows.normalisers import Normaliser
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.ledger import Ledger
from dpflows.privacy.randomness import Entropy
from dpflows.table.encoding import Encoding
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.defaults import defaults_for
from dpflows.training.fitting import fit_model
from dpflows.training.initialising import (
    PAPER_FORMULA,
    PAPER_STAMP,
    Initialisation,
    plan_initialisation,
)
from dpflows.training.loop import Callbacks
from dpflows.training.plan import Plan, Settings, make_plan


@final
class DPFlow(DensityEstimator):
    """A differentially private normalizing flow.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and is stamped so.
        delta: The chance, far below one over the number of rows, that epsilon fails.
        schema: What the columns mean, a ``Schema`` or the path of one.
        bounds: Public ``(low, high)`` of the columns instead of a schema, numbers or one
            per column. Rows beyond them are moved to the nearest bound.
        discover: The share of epsilon that may find bounds where none are declared.
        neighbours: Which change of one person's data is hidden.
        prior: What the flow starts from: ``None`` for a Gaussian, ``"mixture"`` for a
            mixture fitted with a share of the budget, or a fitted ``DPGaussianMixture``.
            ``"auto"`` lets a public rule of rows, columns and budget decide whether a
            mixture serves better, alone or refined; it takes no prior where you fix
            the architecture, the steps, the noise or the initialisation.
        prior_share: The part of the squared Gaussian budget for a ``"mixture"``; all of
            it leaves the mixture as it is.
        prior_is_public: Whether a given prior was fitted to other people's public rows.
            If not, its own cost is part of this release.
        trainable_prior: Whether training may move the prior.
        normalisation: How columns are brought to comparable units inside the budget:
            ``histograms``, ``moments`` or ``bounds``; ``paper-not-private`` is for comparison.
        architecture: A family by name, an ``Architecture``, or ``None`` for the rule.
        initialisation: How ActNorm layers start: ``identity``, or ``private`` from noisy
            moments of what reaches them; ``paper-not-private`` is for comparison.
        accountant: Who prices the run.
        sampling: ``poisson`` or ``uniform``.
        batch_size: Expected rows per step.
        steps: Number of steps.
        noise_multiplier: Noise per step in units of the clipping norm; without
            ``steps`` the run lasts as long as the budget does.
        learning_rate: Step size of the optimizer.
        optimizer: ``adam`` or ``sgd``.
        schedule: ``cosine`` or ``constant`` learning rate.
        averaging: Decay of an average of the parameters to release, or ``None``.
        clipping: ``fixed`` or ``automatic``.
        clipping_norm: The most a row's gradient may weigh.
        insecure_test_seed: Makes everything reproducible and NOT PRIVATE; for tests.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> flow = DPFlow(epsilon=1.0, delta=1e-4, bounds=(-4, 4), steps=3).fit(rows)
        >>> flow.sample(5).shape, flow.guarantee_.epsilon <= 1.0
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
        prior: str | DPGaussianMixture | None = "auto",
        prior_share: float = 0.5,
        prior_is_public: bool = False,
        trainable_prior: bool = False,
        normalisation: str = "histograms",
        architecture: str | Architecture | None = None,
        initialisation: str = "identity",
        accountant: str = "pld",
        sampling: str = "poisson",
        batch_size: int | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        learning_rate: float | None = None,
        optimizer: str = "adam",
        schedule: str = "cosine",
        averaging: float | None = None,
        clipping: str = "fixed",
        clipping_norm: float = 1.0,
        insecure_test_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.discover = discover
        self.neighbours = neighbours
        self.prior = prior
        self.prior_share = prior_share
        self.prior_is_public = prior_is_public
        self.trainable_prior = trainable_prior
        self.normalisation = normalisation
        self.architecture = architecture
        self.initialisation = initialisation
        self.accountant = accountant
        self.sampling = sampling
        self.batch_size = batch_size
        self.steps = steps
        self.noise_multiplier = noise_multiplier
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.schedule = schedule
        self.averaging = averaging
        self.clipping = clipping
        self.clipping_norm = clipping_norm
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int | None = None) -> Plan:
        """What ``fit`` would do with a table of this shape; reads no row."""
        budget, told = self._budget(), self._declarations()
        columns = told.count(columns)
        share = self._beginning().share(budget, rows=rows, columns=columns)
        settings = Settings(
            architecture=self._architecture(),
            sampling=self.sampling,
            batch_size=self.batch_size,
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            learning_rate=rate_after(share, self.learning_rate),
            optimizer=self.optimizer,
            schedule=self.schedule,
            averaging=self.averaging,
            clipping=self.clipping,
            clipping_norm=self.clipping_norm,
            accountant=self.accountant,
        )
        start = self._initialisation(rows, columns).events if share < 1 else ()
        prepared = self._preparation(rows, columns).events
        before = (*told.events(budget, columns), *prepared, *start)
        return make_plan(
            budget,
            rows=rows,
            columns=columns,
            settings=settings,
            before=before if budget.is_private else (),
            train=share < 1,
        )

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        callbacks: Callbacks | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> "DPFlow":
        """Fit the flow to the rows of ``X`` within the budget.

        Args:
            X: A table without missing values, in any form that ``read_table`` accepts.
            y: Ignored.
            ledger: Where the plan is charged before the rows are used.
            callbacks: Progress and stop hooks.
            checkpoint: A file that keeps the run until ``save`` has written its model; one
                file per run. A fit with the same settings goes on from it, at no further
                cost, also after the last step.
        """
        return self._fit(X, ledger, checkpoint=checkpoint, callbacks=callbacks)

    def _learn(self, job: Job) -> None:
        """Prepare, train and keep what came of it."""
        plan, entropy = job.plan, job.entropy
        ways = self._preparation(plan.rows, plan.columns), self._declarations()
        intake, prepared = prepare(*ways, job.table, plan.budget, job.journal, entropy)
        rows = prepared.normaliser.apply(intake.rows)
        model = fit_model(
            self._start(plan, intake.encoding, prepared, rows, job.journal, entropy),
            rows,
            plan,
            entropy=entropy,
            callbacks=job.callbacks,
            checkpoints=job.journal,
            known_to_taps=True,
        )
        self.prepared_ = prepared
        self._release(intake, plan, model, prepared.normaliser, entropy)

    def _start(
        self,
        plan: Plan,
        encoding: Encoding,
        prepared: Prepared,
        rows: np.ndarray,
        checkpoints: Checkpoints | None,
        entropy: Entropy,
    ) -> Defended:
        """An untrained model; one that goes on from a checkpoint needs no start of its own."""
        key = entropy.key("initialisation")
        model = fresh_model(plan, prepared, encoding, key, trainable_prior=self.trainable_prior)
        if plan.steps == 0 or (checkpoints is not None and checkpoints.has_state):
            return model
        start = self._initialisation(*rows.shape).start(model.flow, rows, entropy=entropy)
        return Defended(start, model.background)

    def _describe_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header = {"plan": self.plan_.to_dict(), "trainable_prior": self.trainable_prior}
        return header, self.prepared_.arrays() | parameter_arrays(self.density_.model)

    @classmethod
    def _rebuild(
        cls,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        guarantee: Guarantee,
        encoding: Encoding,
        normaliser: Normaliser,
    ) -> tuple["DPFlow", Defended]:
        budget = Budget(guarantee.epsilon, guarantee.delta, guarantee.neighbours)
        plan = Plan.from_dict(header["plan"], budget)
        if plan.steps > 0:
            require_room(plan.architecture, len(encoding.low), arrays)
        prepared, trainable = Prepared.from_arrays(arrays), bool(header["trainable_prior"])
        key = np.zeros(2, np.uint32)
        template = fresh_model(plan, prepared, encoding, key, trainable_prior=trainable)
        estimator = cls(
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            schema=encoding.schema,
            neighbours=guarantee.neighbours,
            architecture=plan.architecture,
            accountant=guarantee.accountant,
            trainable_prior=trainable,
        )
        estimator.plan_, estimator.prepared_ = plan, prepared
        return estimator, with_parameters(template, arrays)

    def _preparation(self, rows: int, columns: int) -> Preparation:
        budget = self._budget()
        return self._beginning().preparation(
            budget,
            rows=rows,
            columns=columns,
            accountant=self.accountant,
            before=self._declarations().events(budget, columns),
        )

    def _beginning(self) -> Beginning:
        fixed = (self.architecture, self.steps, self.noise_multiplier)
        wants_flow = fixed != (None, None, None) or self.initialisation != "identity"
        prior = None if self.prior == "auto" and wants_flow else self.prior
        return Beginning(prior, self.prior_share, self.prior_is_public, self.normalisation)

    def _initialisation(self, rows: int, columns: int) -> Initialisation:
        budget = self._budget()
        rule = defaults_for(budget, rows=rows, columns=columns)
        layers = (self._architecture() or rule.architecture).act_norms
        return plan_initialisation(self.initialisation, budget, layers=layers, columns=columns)

    def stamps(self) -> tuple[str, ...]:
        """What the settings alone will mark a fit with."""
        formula = (PAPER_STAMP,) if self.initialisation == PAPER_FORMULA else ()
        return (*formula, *self._beginning().stamps, *super().stamps())

    def _architecture(self) -> Architecture | None:
        chosen = self.architecture
        if chosen is None or isinstance(chosen, Architecture):
            return chosen
        if not isinstance(chosen, str):
            raise InputError("architecture must be a name, an Architecture or None")
        return Architecture(chosen)
