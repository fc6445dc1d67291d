"""The default estimator: a private density of any table, chosen by a public rule."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.autoregressive import DPAutoregressive
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.flow import DPFlow
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.pipeline.domain import TableSpec
from dpflows.pipeline.plan import Plan, Work
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.table.schema import Schema

#: Up to so many columns a mixture needs no flow.
FEW_COLUMNS = 3
_CHOICES: tuple[type[DensityEstimator], ...] = (DPAutoregressive, DPFlow, DPGaussianMixture)


def rule(budget: Budget, *, columns: int, is_mixed: bool) -> type[DensityEstimator]:
    """The public rule: the estimator for a table, by its shape and the budget only.

    Example:
        >>> rule(Budget(1.0, 1e-6), columns=10, is_mixed=False).__name__
        'DPFlow'
        >>> rule(Budget(1.0, 1e-6), columns=2, is_mixed=False).__name__
        'DPGaussianMixture'
    """
    if is_mixed:
        return DPAutoregressive
    is_simple = columns <= FEW_COLUMNS or not budget.is_private
    return DPGaussianMixture if is_simple else DPFlow


def _choice(name: object) -> type[DensityEstimator]:
    """The estimator that the rule chose, by its name in a plan or file."""
    for one in _CHOICES:
        if one.__name__ == name:
            return one
    raise InputError(f"model must be one of {', '.join(one.__name__ for one in _CHOICES)}")


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPDensity(DensityEstimator):
    """A differentially private density of a table of numbers or of mixed kinds.

    A public rule chooses the estimator, from the schema, the number of columns and the budget:
    ``DPAutoregressive`` where the schema declares labels, dates, missing cells or other mixed
    kinds, ``DPGaussianMixture`` for up to three columns of numbers, ``DPFlow`` for more. For other
    settings use those estimators directly.

    Args:
    {common}

    Attributes:
        model_: The chosen estimator, fitted.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> rows = np.random.default_rng().normal(size=(500, 2)).clip(-4, 4)
        >>> density = DPDensity(epsilon=1.0, delta=1e-4, bounds=(-4, 4)).fit(rows)
        >>> type(density.model_).__name__, density.guarantee_.epsilon <= 1.0
        ('DPGaussianMixture', True)
    """

    models_mixed: ClassVar[bool] = True
    model_: DensityEstimator = dataclasses.field(init=False)

    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        chosen = self._chosen(spec, columns)
        plan = chosen._stages(spec, budget, rows, columns)
        return dataclasses.replace(plan, details=plan.details | {"model": type(chosen).__name__})

    def _chosen(self, spec: TableSpec, columns: int) -> DensityEstimator:
        """The estimator chosen by the rule, with these settings."""
        chosen = rule(self.budget(), columns=columns, is_mixed=spec.is_mixed)
        names = [field.name for field in dataclasses.fields(DensityEstimator) if field.init]
        return chosen(**{name: getattr(self, name) for name in names} | {"schema": spec.schema})

    def _assemble(self, plan: Plan, work: Work) -> Any:
        chosen = _choice(plan.details["model"])
        self.model_ = chosen(insecure_test_seed=self.insecure_test_seed)
        self.model_.density_ = self.model_._assemble(plan, work)
        return self.model_.density_

    def _adopt(self, guarantee: Guarantee, encoding: Any, form: Any) -> None:
        super()._adopt(guarantee, encoding, form)
        self.model_.plan_, self.model_.receipt_ = self.plan_, None
        self.model_._adopt(guarantee, encoding, form)

    def sample(
        self,
        n_samples: int = 1,
        conditions: Mapping[str, Any] | None = None,
        *,
        background: bool = False,
    ) -> Any:
        """``n_samples`` synthetic rows, as the kind of table that was fitted.

        Args:
            n_samples: Number of rows.
            conditions: Wanted values by column, for tables of mixed kinds. Rows follow the
                conditional distribution: exactly if the columns come first in the model's
                order, by weighted draws otherwise.
            background: Whether to include samples of the background, a hundredth of the density
            that is uniform over the declared box and describes no rows. Tables of mixed kinds have
            no background.

        Rows that violate a constraint of the schema are drawn again; ``acceptance_`` is the share
        of accepted draws.
        """
        check_is_fitted(self, "density_")
        if isinstance(self.model_, DPAutoregressive):
            drawn = self.model_.sample(n_samples, conditions)
            self.acceptance_ = self.model_.acceptance_
            return drawn
        if conditions:
            raise InputError(
                "conditions need a model of mixed column kinds; this model has numeric columns only"
            )
        return super().sample(n_samples, background=background)

    def _describe_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = self.model_._describe_model()
        return header | {"model": type(self.model_).__name__}, arrays

    @classmethod
    def _rebuild(
        cls,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        guarantee: Guarantee,
        schema: Schema,
    ) -> "DPDensity":
        estimator = cls(**cls._settings_of(guarantee, schema))
        chosen = _choice(header["model"])
        estimator.model_ = model = chosen._rebuild(header, arrays, guarantee, schema)
        estimator.plan_, estimator.encoding_ = model.plan_, model.encoding_
        estimator.density_ = model.density_
        return estimator
