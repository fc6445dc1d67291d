"""What every private density estimator can do once it is fitted."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.tables import Columns, read_rows
from dpflows.flows.density import Density
from dpflows.privacy.guarantee import Guarantee
from dpflows.privacy.randomness import Entropy


class DensityEstimator(DensityMixin, BaseEstimator, abc.ABC):
    """A density released under a guarantee, with scikit-learn manners.

    Guarantee:
        Everything below reads released attributes alone: it is post-processing and
        may be repeated for ever at no cost. Scoring reads the rows it is given and
        keeps nothing; scores of private rows are themselves private.
    """

    density_: Density
    guarantee_: Guarantee
    columns_: Columns
    insecure_test_seed: int | None

    @abc.abstractmethod
    def fit(self, X: Any, y: None = None) -> "DensityEstimator":
        """Spend the budget on the rows of ``X``."""

    def sample(self, n_samples: int = 1) -> Any:
        """``n_samples`` synthetic rows, as the kind of table that was fitted."""
        check_is_fitted(self, "density_")
        if n_samples < 1:
            raise InputError(f"n_samples must be at least 1, got {n_samples}")
        key = jax.random.wrap_key_data(jnp.asarray(self._entropy().key("sampling")))
        return self.columns_.frame(self.density_.sample(key, n_samples))

    def score_samples(self, X: Any) -> Float[np.ndarray, " n"]:
        """The natural logarithm of the density of each row, in original units."""
        check_is_fitted(self, "density_")
        rows, columns = read_rows(X)
        if columns.count != self.columns_.count:
            raise InputError(
                f"expected {self.columns_.count} columns as in fit, got {columns.count}"
            )
        return self.density_.log_prob(rows)

    def score(self, X: Any, y: None = None) -> float:
        """The mean log-density of the rows."""
        return float(np.mean(self.score_samples(X)))

    def privacy_statement(self) -> str:
        """The guarantee in plain words."""
        check_is_fitted(self, "density_")
        return self.guarantee_.privacy_statement()

    def save(self, path: Any) -> None:
        """Write one ``.dpflow`` file that carries its guarantee."""
        from dpflows.estimators.persistence import save

        save(self, path)

    @abc.abstractmethod
    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON-ready header and the arrays that together are the model."""

    @classmethod
    @abc.abstractmethod
    def from_file(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> "DensityEstimator":
        """Read back what ``to_file`` gave; the content may be hostile."""

    def _entropy(self) -> Entropy:
        if self.insecure_test_seed is None:
            return Entropy.from_os()
        return Entropy.insecure(self.insecure_test_seed)
