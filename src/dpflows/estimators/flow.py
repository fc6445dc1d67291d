"""DP-NF: a normalizing flow fitted under differential privacy."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator, key_of
from dpflows.estimators.charging import Job
from dpflows.estimators.drawing import draw_rows
from dpflows.estimators.intake import Declarations
from dpflows.estimators.mixed import MixedWay
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.estimators.smooth import SmoothWay
from dpflows.estimators.ways import Way
from dpflows.flows.architectures import Architecture
from dpflows.flows.cells import CellShape
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.ledger import Ledger
from dpflows.table.mixing import MixedEncoding
from dpflows.table.schema import Schema
from dpflows.training.loop import Callbacks
from dpflows.training.optimizers import Descent
from dpflows.training.plan import Plan, Settings


@final
class DPFlow(DensityEstimator):
    """A differentially private normalizing flow.

    A schema that declares labels, truth values, dates, missing cells, spikes, a target or
    constraints makes it model mixed rows, by an autoregressive network over cells. Settings
    that only flows over numbers have are refused then.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and is stamped so.
        delta: The chance, far below one over the number of rows, that epsilon fails.
        schema: What the columns mean, a ``Schema`` or the path of one.
        bounds: Public ``(low, high)`` of the columns instead of a schema, numbers or one
            per column. Rows beyond them are moved to the nearest bound.
        discover: The share of epsilon, and of delta for categories, that may find what is
            not declared.
        neighbours: Which change of one person's data is hidden.
        prior: What the flow starts from: ``None`` for a Gaussian, ``"mixture"`` for a
            mixture fitted with a share of the budget, or a fitted ``DPGaussianMixture``.
            ``"auto"`` fits a mixture and no flow on up to three columns, and takes no
            prior on more, or where you fix the architecture, the steps, the noise or the
            initialisation.
        prior_share: The part of the squared Gaussian budget for a ``"mixture"``; all of
            it leaves the mixture as it is.
        prior_is_public: Whether a given prior was fitted to other people's public rows.
            If not, its own cost is part of this release.
        trainable_prior: Whether training may move the prior.
        normalisation: How columns are brought to comparable units inside the budget:
            ``histograms``, ``moments`` or ``bounds``; ``auto`` takes ``histograms``, but
            ``bounds`` for ``natural`` where rows are few, whose Gaussian standardises columns
            besides; ``paper-not-private`` is for comparison.
        architecture: A family by name, an ``Architecture``, or ``None`` for the rule.
        initialisation: How ActNorm layers start: ``identity``, or ``private`` from noisy
            moments of what reaches them; ``paper-not-private`` is for comparison.
        accountant: Who prices the run.
        sampling: ``poisson`` or ``uniform``.
        batch_size: Expected rows per step.
        steps: Number of steps.
        noise_multiplier: Noise per step in units of the clipping norm; without
            ``steps`` the run lasts as long as the budget does.
        learning_rate: Step size of ``adam`` and ``sgd``; ``natural`` finds its own.
        optimizer: ``natural``, ``adam`` or ``sgd``, or a ``NaturalGradient`` or ``Optimizer``;
            ``auto`` takes ``natural`` where nothing of architecture, steps, noise, learning rate,
            averaging and initialisation is fixed, and ``adam`` elsewhere and without privacy.
        schedule: ``cosine`` or ``constant`` learning rate.
        averaging: Decay of an average of the parameters to release, or ``None``; not for
            ``natural``, whose progress checks choose between the last parameters and an average.
        clipping: ``fixed`` or ``automatic``.
        clipping_norm: The most a row's gradient may weigh.
        allow_large_delta: Accept a delta of one over the number of rows or more; it becomes a
            caveat of the guarantee.
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
        normalisation: str = "auto",
        architecture: str | Architecture | None = None,
        initialisation: str = "identity",
        accountant: str = "pld",
        sampling: str = "poisson",
        batch_size: int | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        learning_rate: float | None = None,
        optimizer: str | Descent = "auto",
        schedule: str = "cosine",
        averaging: float | None = None,
        clipping: str = "fixed",
        clipping_norm: float = 1.0,
        allow_large_delta: bool = False,
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
        self.allow_large_delta = allow_large_delta
        self.insecure_test_seed = insecure_test_seed

    def plan(self, rows: int, columns: int | None = None) -> Plan:
        """What ``fit`` would do with a table of this shape; reads no row."""
        self._budget_for(rows)
        return self._way().plan(rows, self._declarations().count(columns))

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
            X: A table in any form that ``read_table`` accepts.
            y: Ignored.
            ledger: Where the plan is charged before the rows are used.
            callbacks: Progress and stop hooks.
            checkpoint: A file that keeps the run until ``save`` has written its model; one
                file per run. A fit with the same settings and the same table goes on from
                it, at no further cost, also after the last step. With a ledger the run is
                over when ``fit`` returns: another start gives the same model again. While a
                fit lives, another start of its run is refused at once.
        """
        return self._fit(X, ledger, checkpoint=checkpoint, callbacks=callbacks)

    def sample(
        self,
        n_samples: int = 1,
        conditions: Mapping[str, Any] | None = None,
        *,
        background: bool = False,
    ) -> Any:
        """``n_samples`` synthetic rows, as the kind of table that was fitted.

        Args:
            n_samples: How many.
            conditions: Wanted values by column, for tables of mixed kinds. Rows follow the
                conditional distribution: exactly if the columns come first in the model's
                order, by weighted draws otherwise.
            background: Whether to draw from the density as it is, of which one part in a hundred
                is spread evenly over the declared box, where nobody lives. Tables of mixed kinds
                have no such part.

        Rows that break a constraint of the schema are drawn again. ``acceptance_`` then says
        which share of the draws was kept.
        """
        check_is_fitted(self, "density_")
        if isinstance(self.encoding_, MixedEncoding):
            return self._sample_mixed(n_samples, conditions or {})
        if conditions:
            raise InputError("conditions need a table of mixed kinds; this one holds only numbers")
        return super().sample(n_samples, background=background)

    def _sample_mixed(self, n_samples: int, conditions: Mapping[str, Any]) -> Any:
        drawn = draw_rows(
            self.density_,
            self.encoding_,
            n_samples,
            conditions,
            key_of(self._entropy(), "sampling"),
        )
        self.acceptance_ = drawn.acceptance
        return self.form_.frame(drawn.columns, self.encoding_.schema)

    def stamps(self) -> tuple[str, ...]:
        """What the settings alone will mark a fit with."""
        return (*self._way().stamps, *super().stamps())

    def caveats(self, rows: int) -> tuple[str, ...]:
        """What the certificate of a fit to so many rows must say besides its figures."""
        return (*self._way().caveats, *super().caveats(rows))

    def _settings(self, **fixed: Any) -> Settings:
        """What the caller fixed about training, with some of it fixed otherwise."""
        names = [field.name for field in dataclasses.fields(Settings)]
        return Settings(**{name: getattr(self, name) for name in names} | fixed)

    def _learn(self, job: Job) -> None:
        """Do what the plan says and keep what came of it."""
        self._way().learn(job)

    def _declarations(self) -> Declarations:
        return Declarations(self.schema, self.bounds, self.discover, mixed=True)

    def _way(self) -> Way:
        schema = self._declarations().known_schema()
        return MixedWay(self) if schema is not None and schema.is_mixed else SmoothWay(self)

    def _describe_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        # bounds that were discovered may have changed what the schema calls for
        way = MixedWay if isinstance(self.encoding_, MixedEncoding) else SmoothWay
        return way(self).describe()

    @classmethod
    def _rebuild(
        cls,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        guarantee: Guarantee,
        schema: Schema,
    ) -> "DPFlow":
        estimator = cls(
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            schema=schema,
            neighbours=guarantee.neighbours,
            accountant=guarantee.accountant,
        )
        budget = Budget(guarantee.epsilon, guarantee.delta, guarantee.neighbours)
        estimator.plan_ = Plan.from_dict(header["plan"], budget)
        is_mixed = isinstance(estimator.plan_.architecture, CellShape)
        way = MixedWay if is_mixed else SmoothWay
        way(estimator).rebuild(header, arrays, schema)
        return estimator
