"""What every private density estimator can do once it is fitted."""

import abc
import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError, unchained, unquoted
from dpflows.estimators.charging import (
    Job,
    Payment,
    alive,
    charge,
    require_same,
    withdrawn_on_failure,
)
from dpflows.estimators.intake import (
    Declarations,
    Intake,
    feature_names,
    rows_to_score,
    stamps_of,
)
from dpflows.estimators.pipelines import warn_of_transformers
from dpflows.estimators.repeats import note_fit
from dpflows.flows.density import Defended, Density
from dpflows.flows.normalisers import Normaliser
from dpflows.privacy.accounting.certifying import check_plan, read_guarantee
from dpflows.privacy.events import NEIGHBOURS, Event, Neighbours, check_choice
from dpflows.privacy.guarantee import (
    Budget,
    Guarantee,
    large_delta_caveats,
    require_small_delta,
)
from dpflows.privacy.ledger import Ledger, Receipt
from dpflows.privacy.randomness import Entropy
from dpflows.privacy.spending import Spending
from dpflows.table.forms import Form
from dpflows.table.reading import Table
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Checkpoints
from dpflows.training.loop import Callbacks

Self = TypeVar("Self", bound="DensityEstimator")
NON_PRIVATE_STAMP = "NOT PRIVATE: fitted without privacy (epsilon is infinite)"


class DensityEstimator(DensityMixin, BaseEstimator, abc.ABC):
    """A density released under a guarantee, with scikit-learn manners.

    Attributes:
        receipt_: The ledger's proof that the fit was charged; ``None`` without a ledger.

    Guarantee:
        ``_fit`` is the way of every estimator: it reads the table, plans, pays, and only
        then hands the rows to ``_learn``, which releases what the plan says. With a ledger
        the charge is bound to the model before ``fit`` returns; if that fails, the estimator
        is left unfitted.
        Everything but ``fit`` reads released attributes alone: it is post-processing and
        may be repeated for ever at no cost. Scoring reads the rows it is given and
        keeps nothing; scores of private rows are themselves private.
    """

    epsilon: float
    delta: float
    schema: Schema | str | os.PathLike[str] | None
    bounds: Any
    discover: float | None
    neighbours: str
    accountant: str
    allow_large_delta: bool
    insecure_test_seed: int | None

    #: A ``Density`` with its ``Encoding``, or a ``MixedDensity`` with its ``MixedEncoding``.
    density_: Any
    encoding_: Any
    guarantee_: Guarantee
    plan_: Any
    form_: Form
    receipt_: Receipt | None
    _payment: Payment = Payment()

    @abc.abstractmethod
    def plan(self, rows: int, columns: int | None = None) -> Spending:
        """What ``fit`` would do with a table of this shape; reads no row."""

    def fit(self: Self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> Self:
        """Spend the budget on the rows of ``X``.

        Args:
            X: A table without missing values, in any form that ``read_table`` accepts.
            y: Ignored.
            ledger: Where the plan is charged before the rows are used.
        """
        return self._fit(X, ledger)

    @unchained
    def _fit(
        self: Self,
        X: Any,
        ledger: Ledger | None,
        *,
        beside: Sequence[Event] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        callbacks: Callbacks | None = None,
        is_part: bool = False,
    ) -> Self:
        """Read, plan, pay, learn, hand out.

        ``beside`` is paid for as well, and released by the caller. So is a density that
        ``is_part`` of something else: the caller hands out the whole.
        """
        warn_of_transformers()
        entropy = self._entropy()
        table = self._declarations().read(X)
        plan = self.plan(table.rows, len(table.schema.columns))
        stamps = (*stamps_of(table.schema), *self.stamps())
        journal = _journal(checkpoint, plan, ledger, table)
        events = (*plan.events, *beside)
        with alive(journal):
            payment = charge(ledger, events, stamps=stamps, journal=journal)
            self._note(table, events, stamps, payment)
            with withdrawn_on_failure(self):
                if not self._took_over(journal, table.schema):
                    self._learn(Job(table, plan, entropy, journal, callbacks))
                self._payment, self.receipt_ = payment, payment.receipt
                if not is_part:
                    self._payment = payment.hand_out(self._file_content)
        return self

    def _note(
        self, table: Table, events: Sequence[Event], stamps: Sequence[str], payment: Payment
    ) -> None:
        """Warn if this process has fitted the rows before, and nobody counts."""
        note_fit(
            table,
            events,
            self._budget(),
            stamps=stamps,
            is_charged=payment.ledger is not None,
            run=None if payment.journal is None else payment.journal.known_run(),
        )

    def _took_over(self, journal: Checkpoints | None, declared: Schema) -> bool:
        """Whether an earlier start finished the run; then its model is this one's, to the bit."""
        from dpflows.estimators.persistence import rebuilt

        kept = None if journal is None else journal.result()
        if journal is None or kept is None:
            return False
        require_same(journal.before(), declared)
        found = vars(rebuilt(*kept))
        self.__dict__.update({name: value for name, value in found.items() if name.endswith("_")})
        return True

    def _file_content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        from dpflows.estimators.persistence import file_content

        return file_content(self)

    @abc.abstractmethod
    def _learn(self, job: Job) -> None:
        """Make the plan's releases from the rows, and keep them with ``_release``."""

    def sample(self, n_samples: int = 1, *, background: bool = False) -> Any:
        """``n_samples`` synthetic rows, as the kind of table that was fitted.

        Args:
            n_samples: How many.
            background: Whether to draw from the density as it is, of which one part in a hundred
                is spread evenly over the declared box, where nobody lives.
        """
        check_is_fitted(self, "density_")
        if n_samples < 1:
            raise InputError(f"n_samples must be at least 1, got {n_samples}")
        key = key_of(self._entropy(), "sampling")
        points = self.density_.sample(key, n_samples, background=background)
        return self.form_.frame(self.encoding_.decode(points), self.encoding_.schema)

    def score_samples(self, X: Any) -> Float[np.ndarray, " n"]:
        """The natural logarithm of the density of each row, in original units.

        Rows outside what is declared have density zero. An integer column counts as a
        density per unit, so that its value approximates a probability. In tables of mixed
        kinds labels, truth values, whole numbers, missing cells and spikes count with their
        probability, and continuous values with their density per unit.
        """
        check_is_fitted(self, "density_")
        return self.density_.log_prob(self._points(X))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density of the rows."""
        return float(np.mean(self.score_samples(X)))

    def privacy_statement(self) -> str:
        """The guarantee in plain words."""
        check_is_fitted(self, "density_")
        return self.guarantee_.privacy_statement()

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one ``.dpflow`` file that carries its guarantee.

        Where the fit was charged, the ledger has marked the digest of this very file as the
        run's release. The checkpoint of the run, if there is one, is removed when the file is
        safe.

        Args:
            path: Where the file goes.
            overwrite: Whether a file that has the name already may be lost; a model that
                was paid for cannot be had again without paying again.
        """
        self._payment.deliver(path, self._file_content(), overwrite=overwrite)

    def __getstate__(self) -> dict[str, Any]:
        if "density_" in vars(self):
            raise InputError(
                f"a fitted {type(self).__name__} cannot be pickled: ship the file that save(path) "
                "writes and load(path) it where it is needed, or use threads "
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
        """Read back what ``to_file`` gave; the content may be hostile."""
        guarantee = read_guarantee(header["guarantee"])
        estimator = cls._rebuild(header, arrays, guarantee, Schema.from_dict(header["schema"]))
        check_plan(guarantee, estimator.plan_)
        estimator._adopt(guarantee, estimator.encoding_, Form.from_dict(header["form"]))
        estimator.receipt_ = read_receipt(header)
        return estimator

    @abc.abstractmethod
    def _describe_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The header and the arrays that only this kind of estimator needs."""

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

    def _release(
        self,
        intake: Intake,
        plan: Spending,
        model: Defended,
        normaliser: Normaliser,
        entropy: Entropy,
    ) -> None:
        """Keep what was released; the mass inside the box is found from the model alone."""
        encoding = intake.encoding
        density = Density(normaliser, model, encoding.low, encoding.high)
        self.density_ = density.with_inside_mass(key_of(entropy, "sampling", step=1))
        self.plan_ = plan
        self._adopt(self._promised(plan, intake.stamps), encoding, intake.form)

    def _promised(self, plan: Any, stamps: Sequence[str]) -> Guarantee:
        """What carrying out the plan promises, with what the settings and ``stamps`` say."""
        return plan.guarantee(stamps=(*stamps, *self.stamps()), caveats=self.caveats(plan.rows))

    def _adopt(self, guarantee: Guarantee, encoding: Any, form: Form) -> None:
        self.guarantee_, self.encoding_, self.form_ = guarantee, encoding, form
        self.n_features_in_ = len(encoding.schema.columns)
        names = feature_names(form, encoding.schema)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _declarations(self) -> Declarations:
        return Declarations(self.schema, self.bounds, self.discover)

    @unquoted
    def _points(self, X: Any) -> Any:
        return self.encoding_.score_points(self._table(X))

    def _table(self, X: Any) -> Table:
        """Rows to score, read as the rows of the fit were."""
        return rows_to_score(X, self.encoding_.schema, type(self).__name__)

    def _budget(self) -> Budget:
        check_choice("neighbours", self.neighbours, NEIGHBOURS)
        if self.neighbours == "add-remove":
            raise InputError(
                "neighbours must be zero-out or replace-one: a fit publishes the number of rows "
                "in its plan, which add-remove would have to hide"
            )
        return Budget(self.epsilon, self.delta, cast(Neighbours, self.neighbours))

    def _budget_for(self, rows: int) -> Budget:
        """The budget, if its delta is fit for a table of so many rows."""
        budget = self._budget()
        require_small_delta(budget, rows, allowed=self.allow_large_delta)
        return budget

    def _entropy(self) -> Entropy:
        return entropy_for(self.insecure_test_seed)

    def caveats(self, rows: int) -> tuple[str, ...]:
        """What the certificate of a fit to so many rows must say besides its figures."""
        return large_delta_caveats(self._budget(), rows)

    def stamps(self) -> tuple[str, ...]:
        """What the settings alone will mark a fit with; empty if nothing voids its promise."""
        unlimited = () if self._budget().is_private else (NON_PRIVATE_STAMP,)
        seeded = (self._entropy().stamp,) if self.insecure_test_seed is not None else ()
        return (*unlimited, *seeded)


def entropy_for(insecure_test_seed: int | None) -> Entropy:
    """The operating system's entropy, or that of a test, which is stamped.

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


def key_of(entropy: Entropy, stream: Any, *, step: int = 0) -> Any:
    """A JAX key of a stream."""
    return jax.random.wrap_key_data(jnp.asarray(entropy.key(stream, step=step)))
