"""The base classes of all estimators: the interface, and the steps of every fit.

``TrainedEstimator`` adds the settings of models that are trained by noisy gradients;
``ReleasedEstimator`` is for those that release a few statistics and compute the density from them.
"""

import abc
import copy
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, final

import numpy as np
from flowjax.distributions import AbstractDistribution
from jaxtyping import Float
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError, unchained, unquoted
from dpflows.estimators.charging import (
    Payment,
    alive,
    charge,
    note_fit,
    warn_of_transformers,
    withdrawn_on_failure,
)
from dpflows.estimators.persistence import file_content, rebuilt
from dpflows.models.density import Defended, Density, uniform_box
from dpflows.models.normalisers import Normaliser, normaliser_from
from dpflows.pipeline.domain import TableSpec, feature_names, rows_to_score, stamps_of
from dpflows.pipeline.plan import Descent, Plan, Stage, Work, jax_key, needed, require_same
from dpflows.pipeline.training import Settings, read_plan
from dpflows.privacy.accounting.certificates import check_plan, read_guarantee
from dpflows.privacy.events import NEIGHBOURS, Event, Neighbours, check_choice
from dpflows.privacy.guarantee import Budget, Guarantee, large_delta_caveats, require_small_delta
from dpflows.privacy.ledger import Ledger, Receipt
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import Encoding, Form, Table
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.dp_sgd import Callbacks

Self = TypeVar("Self", bound="DensityEstimator")
NON_PRIVATE_STAMP = "NOT PRIVATE: fitted without privacy (epsilon is infinite)"
#: Where the docstring of an estimator names the parameters of the classes it inherits from.
_INHERITED = "    {common}\n"


@dataclasses.dataclass(eq=False, repr=False)
class DensityEstimator(DensityMixin, BaseEstimator, abc.ABC):
    """A density released under a guarantee, with the interface of scikit-learn.

    Args:
        epsilon: The total privacy budget; ``inf`` fits without privacy and marks the model NOT
        PRIVATE.
        delta: The delta of the guarantee, far below one over the number of rows.
        schema: The schema of the table, a ``Schema`` or the path of a file.
        bounds: Public ``(low, high)`` of the columns instead of a schema, numbers or one
            per column. Values beyond them are clipped to the nearest bound.
        discover: The share of epsilon, and of delta for categories, spent on finding undeclared
        bounds and categories.
        neighbours: The neighbour relation, ``zero-out`` or ``replace-one``: the change of one
        person's data that is protected.
        accountant: The privacy accountant: ``pld``, ``rdp``, ``gdp`` and others.
        allow_large_delta: Allow a delta of one over the number of rows or more; it becomes a caveat
        of the guarantee.
        insecure_test_seed: Seed for tests; makes everything reproducible and NOT PRIVATE.

    Attributes:
        density_: The released density.
        guarantee_: The privacy guarantee of the fit.
        plan_: The plan that was run.
        receipt_: The ledger's receipt of the charge; ``None`` without a ledger.

    Guarantee:
        ``fit_with`` is how every estimator is fitted: it resolves the declarations once, reads
        the table, plans once, charges, and runs the stages of that plan. With a ledger
        the charge is bound to the model before ``fit`` returns; if that fails, the estimator
        is left unfitted.
        Everything but ``fit`` reads only released attributes: it is post-processing and
        may be repeated at no cost. Scoring reads the rows it is given and stores nothing;
        scores of private rows are themselves private.
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    _: dataclasses.KW_ONLY
    schema: Schema | str | os.PathLike[str] | None = None
    bounds: Any = None
    discover: float | None = None
    neighbours: str = "zero-out"
    accountant: str = "pld"
    allow_large_delta: bool = False
    insecure_test_seed: int | None = None

    #: Whether tables of mixed kinds can be fitted.
    models_mixed: ClassVar[bool] = False
    #: A ``Density`` with its ``Encoding``, or a ``MixedDensity`` with its ``MixedEncoding``.
    density_: Any = dataclasses.field(init=False)
    encoding_: Any = dataclasses.field(init=False)
    guarantee_: Guarantee = dataclasses.field(init=False)
    plan_: Plan = dataclasses.field(init=False)
    form_: Form = dataclasses.field(init=False)
    receipt_: Receipt | None = dataclasses.field(init=False)
    # not annotated: it is no parameter
    _payment = Payment()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__doc__ is not None and _INHERITED in cls.__doc__:
            inherited = "\n".join(_arguments(base) for base in reversed(cls.__mro__[1:]))
            cls.__doc__ = cls.__doc__.replace(_INHERITED, inherited.strip("\n") + "\n")

    def plan(self, rows: int, columns: int | None = None) -> Plan:
        """The plan of ``fit`` for a table of this shape; reads no row.

        Args:
            rows: Number of rows, which is public.
            columns: Number of columns, if no schema declares it.
        """
        return self._plan(self.spec(), rows, columns)

    def _plan(self, spec: TableSpec, rows: int, columns: int | None) -> Plan:
        """The plan, with its stamps and caveats."""
        if spec.schema is not None and not self.models_mixed:
            spec.schema.require_numeric()
        plan = self._stages(spec, self._budget_for(rows), rows, spec.count(columns))
        stamps = () if spec.schema is None else stamps_of(spec.schema)
        return dataclasses.replace(
            plan,
            stamps=(*stamps, *self._stamps(spec)),
            caveats=self._caveats(spec, rows),
        )

    @abc.abstractmethod
    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        """The stages of ``fit``, from public numbers and the settings."""

    @unchained
    def prepare(self, X: Any) -> "PreparedFit":
        """Resolve the declarations, read the table, and plan its fit; ``fit`` takes the result.

        Nothing is charged or released. The result must not be published: it holds the rows.
        """
        warn_of_transformers()
        spec = self.spec()
        table = spec.read(X)
        return PreparedFit(self, table, self._plan(spec, table.rows, len(table.schema.columns)))

    def fit(
        self: Self,
        X: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        callbacks: Callbacks | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Fit the density to the rows of ``X`` within the budget.

        Args:
            X: A table in any form that ``read_table`` accepts, or what ``prepare`` made of one.
            y: Ignored.
            ledger: The ledger to which the plan is charged before the rows are used.
            callbacks: Progress and stop hooks of training.
            checkpoint: A file in which the run is saved until ``save`` has written its model; one
            file per run. A fit with the same settings and the same table resumes from it, at no
            further cost, also after the last step. With a ledger the run is finished when ``fit``
            returns: another start gives the same model again. While a fit is active, another start
            of its run is refused.
        """
        self.fit_with((), X, ledger=ledger, checkpoint=checkpoint, callbacks=callbacks)
        return self

    @unchained
    def fit_with(
        self,
        later: Sequence[Stage],
        X: Any,
        *,
        ledger: Ledger | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        callbacks: Callbacks | None = None,
    ) -> tuple[Work, Payment]:
        """Resolve, read, plan, charge and run; then run further stages on the fitted density.

        Args:
            later: Stages that need the fitted density, as ``Work.density``.
            X: The table, or what ``prepare`` made of it.
            ledger: Where plan and further stages are charged before the rows are used.
            checkpoint: A file that keeps the run.
            callbacks: Progress and stop hooks of training.

        Returns:
            What the stages made, and the payment. Where there are further stages, the model is
            a part of something else, and the caller hands out the whole.
        """
        prepared = X if isinstance(X, PreparedFit) else self.prepare(X)
        table, plan = prepared.table, prepared.of(self)
        entropy = self.entropy()
        journal = _journal(checkpoint, plan, ledger, table)
        events = (*plan.events, *(event for stage in later for event in stage.events))
        work = Work(table, entropy, journal, callbacks)
        with alive(journal):
            payment = charge(ledger, events, stamps=plan.stamps, journal=journal)
            _note(table, plan, events, payment)
            with withdrawn_on_failure(self):
                if not self._took_over(journal, table.schema):
                    self._run(plan, work)
                self._payment, self.receipt_ = payment, payment.receipt
                work = work.after(density=self)
                for stage in later:
                    work = plan.carry_out(stage, work)
                if not later:
                    self._payment = payment.hand_out(self._file_content)
        return work, payment

    def _run(self, plan: Plan, work: Work) -> None:
        """Run a plan of this estimator, and store its releases."""
        work = plan.run(work)
        self.plan_ = plan
        self.density_ = self._assemble(plan, work)
        self._adopt(plan.guarantee(), work.encoding, work.table.form)

    @abc.abstractmethod
    def _assemble(self, plan: Plan, work: Work) -> Any:
        """The density that the stages released."""

    def _took_over(self, journal: Checkpoints | None, declared: Schema) -> bool:
        """Whether an earlier start finished the run; then its model is restored exactly."""
        kept = None if journal is None else journal.result()
        if journal is None or kept is None:
            return False
        require_same(journal.before(), declared)
        found = vars(rebuilt(*kept))
        self.__dict__.update({name: value for name, value in found.items() if name.endswith("_")})
        return True

    def _file_content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return file_content(self)

    def sample(self, n_samples: int = 1, *, background: bool = False) -> Any:
        """``n_samples`` synthetic rows, as the kind of table that was fitted.

        Args:
            n_samples: Number of rows.
            background: Whether to include samples of the background, a hundredth of the density
            that is uniform over the declared box and describes no rows.
        """
        check_is_fitted(self, "density_")
        if n_samples < 1:
            raise InputError(f"n_samples must be at least 1, got {n_samples}")
        key = jax_key(self.entropy(), "sampling")
        points = self.density_.sample(key, n_samples, background=background)
        return self.form_.frame(self.encoding_.decode(points), self.encoding_.schema)

    def score_samples(self, X: Any) -> Float[np.ndarray, " n"]:
        """The natural logarithm of the density of each row, in original units.

        Rows outside the declared domain have density zero. An integer column has a density per
        unit, which approximates a probability. In tables of mixed kinds labels, truth values, whole
        numbers, missing cells and spikes contribute their probability, and continuous values their
        density per unit.
        """
        check_is_fitted(self, "density_")
        return self.density_.log_prob(self._points(X))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density of the rows."""
        return float(np.mean(self.score_samples(X)))

    def privacy_statement(self) -> str:
        """The guarantee in plain language."""
        check_is_fitted(self, "density_")
        return self.guarantee_.privacy_statement()

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model and its guarantee to one ``.dpflow`` file.

        If the fit was charged, the ledger has recorded the digest of this file as the run's
        release. The checkpoint of the run, if any, is removed when the file is safe.

        Args:
            path: Where the file goes.
            overwrite: Whether an existing file may be overwritten; a lost model can only be
            replaced by a new fit, which is charged again.
        """
        self._payment.deliver(path, self._file_content(), overwrite=overwrite)

    def __getstate__(self) -> dict[str, Any]:
        if "density_" in vars(self):
            raise InputError(
                f"a fitted {type(self).__name__} cannot be pickled: write it with save(path) and "
                "read it with load(path) where it is needed, or use threads "
                "(joblib.Parallel(prefer='threads'))"
            )
        return cast(dict[str, Any], super().__getstate__())

    def __copy__(self: Self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        # A copy in memory is the same model, and needs no pickle.
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(vars(self), memo))
        return twin

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-ready header and the arrays that together are the model."""
        check_is_fitted(self, "density_")
        header, arrays = self._describe_model()
        common = {
            "schema": self.encoding_.schema.to_dict(),
            "form": self.form_.to_dict(),
            "guarantee": self.guarantee_.to_dict(),
            "receipt": None if self.receipt_ is None else self.receipt_.to_dict(),
        }
        return common | header, arrays

    @classmethod
    def from_file(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> "DensityEstimator":
        """Read back the result of ``to_file``; the content may be hostile."""
        guarantee = read_guarantee(header["guarantee"])
        estimator = cls._rebuild(header, arrays, guarantee, Schema.from_dict(header["schema"]))
        check_plan(guarantee, estimator.plan_)
        estimator._adopt(guarantee, estimator.encoding_, Form.from_dict(header["form"]))
        estimator.receipt_ = read_receipt(header)
        return estimator

    @abc.abstractmethod
    def _describe_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The header and arrays specific to this kind of estimator."""

    @classmethod
    @abc.abstractmethod
    def _rebuild(
        cls,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        guarantee: Guarantee,
        schema: Schema,
    ) -> "DensityEstimator":
        """An estimator with the file's settings, plan, encoding and density."""

    @staticmethod
    def _settings_of(guarantee: Guarantee, schema: Schema) -> dict[str, Any]:
        """The settings of the estimator that a file holds."""
        return {
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "schema": schema,
            "neighbours": guarantee.neighbours,
            "accountant": guarantee.accountant,
        }

    def _adopt(self, guarantee: Guarantee, encoding: Any, form: Form) -> None:
        self.guarantee_, self.encoding_, self.form_ = guarantee, encoding, form
        self.n_features_in_ = len(encoding.schema.columns)
        names = feature_names(form, encoding.schema)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def spec(self) -> TableSpec:
        """The declarations; a schema in a file is read now."""
        return TableSpec.resolve(self.schema, self.bounds, self.discover, mixed=self.models_mixed)

    def log_densities(self, table: Table) -> Float[np.ndarray, " n"]:
        """As ``score_samples``, of a table that was read already."""
        rows = dataclasses.replace(table, schema=self.encoding_.schema)
        return self.density_.log_prob(self.encoding_.score_points(rows))

    @unquoted
    def _points(self, X: Any) -> Any:
        return self.encoding_.score_points(self._table(X))

    def _table(self, X: Any) -> Table:
        """Rows to score, read as the rows of the fit were."""
        return rows_to_score(X, self.encoding_.schema, type(self).__name__)

    def budget(self) -> Budget:
        """What the settings allow the fit to cost."""
        check_choice("neighbours", self.neighbours, NEIGHBOURS)
        if self.neighbours == "add-remove":
            raise InputError(
                "neighbours must be zero-out or replace-one: the plan of a fit publishes the "
                "number of rows, which add-remove would have to protect"
            )
        return Budget(self.epsilon, self.delta, cast(Neighbours, self.neighbours))

    def _budget_for(self, rows: int) -> Budget:
        """The budget, if its delta is small enough for the number of rows."""
        budget = self.budget()
        require_small_delta(budget, rows, allowed=self.allow_large_delta)
        return budget

    def entropy(self) -> Entropy:
        """Where noise, batches and samples come from."""
        return entropy_for(self.insecure_test_seed)

    def caveats(self, rows: int) -> tuple[str, ...]:
        """The caveats of the certificate of a fit to this number of rows."""
        return self._caveats(self.spec(), rows)

    def stamps(self) -> tuple[str, ...]:
        """The stamps that the settings cause; empty if nothing voids the guarantee."""
        return self._stamps(self.spec())

    def _caveats(self, spec: TableSpec, rows: int) -> tuple[str, ...]:
        return large_delta_caveats(self.budget(), rows)

    def _stamps(self, spec: TableSpec) -> tuple[str, ...]:
        unlimited = () if self.budget().is_private else (NON_PRIVATE_STAMP,)
        seeded = (self.entropy().stamp,) if self.insecure_test_seed is not None else ()
        return (*unlimited, *seeded)


def _arguments(cls: type) -> str:
    """The documentation of the parameters that a class of estimators adds."""
    is_ours = issubclass(cls, DensityEstimator) and cls.__doc__ is not None
    if not is_ours or "    Args:\n" not in str(cls.__doc__):
        return ""
    return str(cls.__doc__).split("    Args:\n")[1].split("\n\n")[0].rstrip()


@final
@dataclasses.dataclass(frozen=True, repr=False)
class PreparedFit:
    """A table that was read, and the plan of its fit. Holds private rows.

    Attributes:
        estimator: What made the plan.
        table: The table.
        plan: The plan that ``fit`` will charge and run.
    """

    estimator: DensityEstimator
    table: Table
    plan: Plan

    def of(self, estimator: DensityEstimator) -> Plan:
        """The plan, for the estimator that made it."""
        if estimator is not self.estimator:
            raise InputError("this fit was prepared by another estimator: call prepare again")
        return self.plan


def _note(table: Table, plan: Plan, events: Sequence[Event], payment: Payment) -> None:
    """Warn if this process has fitted the rows before without a ledger."""
    note_fit(
        table,
        events,
        plan.budget,
        stamps=plan.stamps,
        is_charged=payment.ledger is not None,
        run=None if payment.journal is None else payment.journal.known_run(),
    )


def entropy_for(insecure_test_seed: int | None) -> Entropy:
    """The operating system's entropy, or that of a test seed, which carries a stamp.

    Example:
        >>> entropy_for(None).stamp
        ''
    """
    if insecure_test_seed is None:
        return Entropy.from_os()
    return Entropy.insecure(insecure_test_seed)


def read_receipt(header: dict[str, Any]) -> Receipt | None:
    """The receipt that a file's header holds, if any; the content may be hostile."""
    described = header.get("receipt")
    return None if described is None else Receipt.from_dict(described)


def _journal(
    checkpoint: str | os.PathLike[str] | None, plan: Any, ledger: Ledger | None, table: Table
) -> Checkpoints | None:
    if checkpoint is None:
        return None
    charged_to = None if ledger is None else ledger.identity
    return Checkpoints(Path(checkpoint), plan, charged_to, table=table)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class TrainedEstimator(DensityEstimator):
    """A density whose model is trained on batches of rows.

    Args:
        sampling: ``poisson`` or ``uniform`` batches.
        batch_size: Expected rows per step.
        steps: Number of steps.
        noise_multiplier: Noise per step in units of the clipping norm; without ``steps``, training
        runs until the budget is spent.
        learning_rate: Step size of ``adam`` and ``sgd``; ``natural`` determines its own.
        optimizer: ``natural``, ``adam`` or ``sgd``, or a ``NaturalGradient`` or ``Optimizer``;
            ``auto`` follows a public rule.
        schedule: ``cosine`` or ``constant`` learning rate.
        averaging: Decay of the exponential average of the parameters that is released, or ``None``;
        not for
            ``natural``, whose progress checks choose between the last parameters and an average.
        clipping: ``fixed`` or ``automatic``.
        clipping_norm: The largest norm of a row's gradient.
    """

    sampling: str = "poisson"
    batch_size: int | None = None
    steps: int | None = None
    noise_multiplier: float | None = None
    learning_rate: float | None = None
    optimizer: str | Descent = "auto"
    schedule: str = "cosine"
    averaging: float | None = None
    clipping: str = "fixed"
    clipping_norm: float = 1.0

    def _settings(self, **fixed: Any) -> Settings:
        """The caller's training settings, with some of them replaced."""
        names = [field.name for field in dataclasses.fields(Settings)]
        given = {name: getattr(self, name) for name in names if name not in fixed}
        return Settings(**given | fixed)


def released_density(model: Defended, work: Work) -> Density:
    """A released model over the box; its mass inside is computed from the model only."""
    density = Density(needed(work.normaliser), model, *work.box)
    return density.with_inside_mass(jax_key(work.entropy, "sampling", step=1))


def describe_density(density: Density) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The parts of a density in a file, besides its model."""
    header = {"log_inside": density.log_inside, "background_weight": density.model.weight}
    return header, density.normaliser.arrays()


def read_density(
    header: dict[str, Any], normaliser: Normaliser, model: Defended, encoding: Encoding
) -> Density:
    """Restore a density from ``describe_density``, whose content may be hostile."""
    weighted = Defended(model.flow, model.background, float(header["background_weight"]))
    inside = float(header["log_inside"])
    return Density(normaliser, weighted, encoding.low, encoding.high, inside)


Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ReleasedEstimator(DensityEstimator):
    """An estimator whose density is a function of a few noisy statistics.

    Attributes:
        parameters_: The released statistics by name, in the normaliser's units.

    Guarantee:
        Only the stages of the plan read rows.
    """

    parameters_: Arrays = dataclasses.field(init=False)

    def _assemble(self, plan: Plan, work: Work) -> Density:
        self.parameters_ = needed(work.parameters)
        model = _defended(self._model(self.parameters_), needed(work.normaliser), work.numeric)
        return released_density(model, work)

    @staticmethod
    @abc.abstractmethod
    def _model(arrays: Arrays) -> AbstractDistribution:
        """The model of those arrays, which may come from a hostile file."""

    def _describe_model(self) -> tuple[dict[str, Any], Arrays]:
        header, arrays = describe_density(self.density_)
        return header | {"plan": self.plan_.to_dict()}, arrays | self.parameters_

    @classmethod
    def _rebuild(
        cls: type[Self],
        header: dict[str, Any],
        arrays: Arrays,
        guarantee: Guarantee,
        schema: Schema,
    ) -> Self:
        estimator = cls(**cls._settings_of(guarantee, schema))
        estimator.plan_ = read_plan(header["plan"], guarantee.budget)
        encoding, normaliser = Encoding(schema), normaliser_from(arrays)
        estimator.parameters_ = {
            name: array for name, array in arrays.items() if name not in normaliser.arrays()
        }
        model = _defended(cls._model(estimator.parameters_), normaliser, encoding)
        estimator.density_ = read_density(header, normaliser, model, encoding)
        estimator.encoding_ = encoding
        return estimator


def _defended(model: AbstractDistribution, normaliser: Normaliser, encoding: Encoding) -> Defended:
    """The model over the uniform background on the declared box."""
    corners = (normaliser.apply(corner[None])[0] for corner in (encoding.low, encoding.high))
    return Defended(model, uniform_box(*corners))
