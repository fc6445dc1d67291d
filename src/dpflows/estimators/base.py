"""What every private density estimator can do once it is fitted."""

import abc
import functools
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
from dpflows.estimators.charging import Job, Payment, charge
from dpflows.estimators.intake import (
    Declarations,
    Intake,
    feature_names,
    rows_to_score,
    stamps_of,
)
from dpflows.flows.density import Defended, Density
from dpflows.flows.normalisers import Normaliser
from dpflows.privacy.events import NEIGHBOURS, Event, Neighbours, check_choice
from dpflows.privacy.guarantee import Budget, Guarantee
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
        then hands the rows to ``_learn``, which releases what the plan says.
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
    ) -> Self:
        """Read, plan, pay, learn; ``beside`` is paid for as well, and released by the caller."""
        entropy = self._entropy()
        table = self._declarations().read(X)
        plan = self.plan(table.rows, len(table.schema.columns))
        stamps = (*stamps_of(table.schema), *self.stamps())
        journal = _journal(checkpoint, plan, ledger)
        payment = charge(ledger, (*plan.events, *beside), stamps=stamps, journal=journal)
        self._learn(Job(table, plan, entropy, journal, callbacks))
        self._payment, self.receipt_ = payment, payment.receipt
        return self

    @abc.abstractmethod
    def _learn(self, job: Job) -> None:
        """Make the plan's releases from the rows, and keep them with ``_release``."""

    def sample(self, n_samples: int = 1) -> Any:
        """``n_samples`` synthetic rows, as the kind of table that was fitted."""
        check_is_fitted(self, "density_")
        if n_samples < 1:
            raise InputError(f"n_samples must be at least 1, got {n_samples}")
        points = self.density_.sample(key_of(self._entropy(), "sampling"), n_samples)
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

        Where the fit was charged, the ledger marks the run as released before the file gets
        its name. The checkpoint of the run, if there is one, is removed when the file is safe.

        Args:
            path: Where the file goes.
            overwrite: Whether a file that has the name already may be lost; a model that
                was paid for cannot be had again without paying again.
        """
        from dpflows.estimators.persistence import save

        self._payment.deliver(path, functools.partial(save, self), overwrite=overwrite)
        self._payment = Payment()

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
        guarantee = Guarantee.from_dict(header["guarantee"])
        estimator = cls._rebuild(header, arrays, guarantee, Schema.from_dict(header["schema"]))
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
        stamps = (*intake.stamps, *self.stamps())
        self._adopt(plan.guarantee(stamps=stamps), encoding, intake.form)

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

    def _entropy(self) -> Entropy:
        return entropy_for(self.insecure_test_seed)

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
    checkpoint: str | os.PathLike[str] | None, plan: Any, ledger: Ledger | None
) -> Checkpoints | None:
    if checkpoint is None:
        return None
    return Checkpoints(Path(checkpoint), plan, None if ledger is None else ledger.identity)


def key_of(entropy: Entropy, stream: Any, *, step: int = 0) -> Any:
    """A JAX key of a stream."""
    return jax.random.wrap_key_data(jnp.asarray(entropy.key(stream, step=step)))
