"""What every private density estimator can do once it is fitted."""

import abc
import os
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.intake import (
    Declarations,
    Intake,
    as_source,
    feature_names,
    require_columns,
)
from dpflows.flows.density import Defended, Density
from dpflows.flows.normalisers import Normaliser, normaliser_from
from dpflows.privacy.events import NEIGHBOURS, Neighbours, check_choice
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy
from dpflows.privacy.spending import Spending
from dpflows.table.encoding import Encoding
from dpflows.table.forms import Form
from dpflows.table.reading import Table, read_table
from dpflows.table.schema import Schema

NON_PRIVATE_STAMP = "NOT PRIVATE: fitted without privacy (epsilon is infinite)"


class DensityEstimator(DensityMixin, BaseEstimator, abc.ABC):
    """A density released under a guarantee, with scikit-learn manners.

    Guarantee:
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

    density_: Density
    guarantee_: Guarantee
    plan_: Any
    encoding_: Encoding
    form_: Form

    @abc.abstractmethod
    def plan(self, rows: int, columns: int | None = None) -> Spending:
        """What ``fit`` would do with a table of this shape; reads no row."""

    @abc.abstractmethod
    def fit(self, X: Any, y: Any = None) -> "DensityEstimator":
        """Spend the budget on the rows of ``X``."""

    def sample(self, n_samples: int = 1) -> Any:
        """``n_samples`` synthetic rows, as the kind of table that was fitted."""
        check_is_fitted(self, "density_")
        if n_samples < 1:
            raise InputError(f"n_samples must be at least 1, got {n_samples}")
        points = self.density_.sample(key_of(self._entropy(), "sampling"), n_samples)
        return self.form_.frame(self.encoding_.decode(points), self.encoding_.schema)

    def score_samples(self, X: Any) -> Float[np.ndarray, " n"]:
        """The natural logarithm of the density of each row, in original units.

        Rows outside the declared bounds have density zero. An integer column counts as
        a density per unit, so that its value approximates a probability.
        """
        check_is_fitted(self, "density_")
        return self.density_.log_prob(self.encoding_.score_points(self._table(X)))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density of the rows."""
        return float(np.mean(self.score_samples(X)))

    def privacy_statement(self) -> str:
        """The guarantee in plain words."""
        check_is_fitted(self, "density_")
        return self.guarantee_.privacy_statement()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one ``.dpflow`` file that carries its guarantee."""
        from dpflows.estimators.persistence import save

        save(self, path)

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-ready header and the arrays that together are the model."""
        check_is_fitted(self, "density_")
        header, arrays = self._describe_model()
        common = {
            "schema": self.encoding_.schema.to_dict(),
            "form": self.form_.to_dict(),
            "log_inside": self.density_.log_inside,
            "background_weight": self.density_.model.weight,
            "guarantee": self.guarantee_.to_dict(),
        }
        return common | header, self.density_.normaliser.arrays() | arrays

    @classmethod
    def from_file(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> "DensityEstimator":
        """Read back what ``to_file`` gave; the content may be hostile."""
        guarantee = Guarantee.from_dict(header["guarantee"])
        encoding = Encoding(Schema.from_dict(header["schema"]))
        normaliser = normaliser_from(arrays)
        estimator, model = cls._rebuild(header, arrays, guarantee, encoding, normaliser)
        weighted = Defended(model.flow, model.background, float(header["background_weight"]))
        inside = float(header["log_inside"])
        estimator.density_ = Density(normaliser, weighted, encoding.low, encoding.high, inside)
        estimator._adopt(guarantee, encoding, Form.from_dict(header["form"]))
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
        encoding: Encoding,
        normaliser: Normaliser,
    ) -> tuple[Any, Defended]:
        """An unfitted estimator with the file's settings, and its model."""

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

    def _adopt(self, guarantee: Guarantee, encoding: Encoding, form: Form) -> None:
        self.guarantee_, self.encoding_, self.form_ = guarantee, encoding, form
        self.n_features_in_ = len(encoding.schema.columns)
        names = feature_names(form, encoding.schema)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _declarations(self) -> Declarations:
        return Declarations(self.schema, self.bounds, self.discover)

    def _table(self, X: Any) -> Table:
        """Rows to score, read as the rows of the fit were."""
        source, schema = as_source(X), self.encoding_.schema
        if isinstance(source, np.ndarray) and source.ndim == 2:
            require_columns(source.shape[1], len(schema.columns), type(self).__name__)
        return read_table(source, schema)

    def _budget(self) -> Budget:
        check_choice("neighbours", self.neighbours, NEIGHBOURS)
        if self.neighbours == "add-remove":
            raise InputError(
                "neighbours must be zero-out or replace-one: a fit publishes the number of rows "
                "in its plan, which add-remove would have to hide"
            )
        return Budget(self.epsilon, self.delta, cast(Neighbours, self.neighbours))

    def _entropy(self) -> Entropy:
        if self.insecure_test_seed is None:
            return Entropy.from_os()
        return Entropy.insecure(self.insecure_test_seed)

    def stamps(self) -> tuple[str, ...]:
        """What the settings alone will mark a fit with; empty if nothing voids its promise."""
        unlimited = () if self._budget().is_private else (NON_PRIVATE_STAMP,)
        seeded = (self._entropy().stamp,) if self.insecure_test_seed is not None else ()
        return (*unlimited, *seeded)


def key_of(entropy: Entropy, stream: Any, *, step: int = 0) -> Any:
    """A JAX key of a stream."""
    return jax.random.wrap_key_data(jnp.asarray(entropy.key(stream, step=step)))
