"""Tables of mixed kinds: an autoregressive network over the bins of every column."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.drawing import draw_rows
from dpflows.estimators.parameters import PARAMETER, parameter_arrays, with_parameters
from dpflows.estimators.training import TrainedEstimator
from dpflows.flows.cells import CellShape
from dpflows.flows.mixed import MixedDensity
from dpflows.pipeline.defaults import cell_defaults
from dpflows.pipeline.domain import TableSpec, with_bounds
from dpflows.pipeline.marginals import (
    BuildNetwork,
    CountMarginals,
    RakeNetwork,
    column_arrays,
    order_of,
    read_columns,
)
from dpflows.pipeline.plan import Plan, make_plan
from dpflows.pipeline.stage import Work, jax_key, needed
from dpflows.privacy.events import check_choice
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.table.columns import Column
from dpflows.table.mixing import MixedEncoding
from dpflows.table.schema import Schema
from dpflows.training.grouping import plan_grouping
from dpflows.training.optimizers import Optimizer, name_of


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPAutoregressive(TrainedEstimator):
    """A differentially private autoregressive network over columns of any kind.

    Every column is cut into bins, rare bins are merged by noisy counts, a network learns each
    column given those before it, and its marginals are raked to noisy ones. The schema declares
    labels, truth values, whole numbers, dates, missing cells, spikes, a target and constraints.

    Args:
    {common}

    Attributes:
        acceptance_: The share of the last draws that kept the schema's constraints.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> from dpflows.table.columns import Column
        >>> rows = [[sex, age] for sex in ("F", "M") for age in range(20, 70)]
        >>> sex = Column("sex", "categorical", categories=("F", "M"))
        >>> people = Schema((sex, Column("age", "integer", min=0, max=99)))
        >>> model = DPAutoregressive(epsilon=1.0, delta=1e-4, schema=people, steps=2).fit(rows)
        >>> model.sample(5).shape, model.guarantee_.epsilon <= 1.0
        ((5, 2), True)
    """

    models_mixed: ClassVar[bool] = True

    def _stages(self, spec: TableSpec, budget: Budget, rows: int, columns: int) -> Plan:
        schema = _declared(spec, columns)
        rule = cell_defaults(budget, rows=rows)
        given = {name: getattr(self, name) for name in ("batch_size", "learning_rate", "steps")}
        fixed = {n: getattr(rule, n) if value is None else value for n, value in given.items()}
        if self.noise_multiplier is not None:
            fixed["steps"] = self.steps
        fields = [schema.columns[at] for at in order_of(schema)]
        has_target = schema.target is not None
        grouping = plan_grouping(budget, fields, rows=rows, has_target=has_target)
        return make_plan(
            budget,
            rows=rows,
            columns=columns,
            settings=self._settings(
                architecture=rule.shape, optimizer=self._first_order(), **fixed
            ),
            before=(
                spec.domain(budget, columns, mixed=True),
                CountMarginals(grouping),
                BuildNetwork(rule.shape),
            ),
            after=(RakeNetwork(rows),),
        )

    def _first_order(self) -> str | Optimizer:
        """The optimizer; natural gradient is for flows."""
        if isinstance(self.optimizer, Optimizer):
            return self.optimizer
        check_choice("optimizer", name_of(self.optimizer), ("auto", "adam", "sgd"))
        return "adam" if self.optimizer == "auto" else str(self.optimizer)

    def _assemble(self, plan: Plan, work: Work) -> MixedDensity:
        return MixedDensity(work.model, needed(work.bins), order_of(work.mixed.schema))

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
            conditions: Wanted values by column. Rows follow the conditional distribution: exactly
                if the columns come first in the model's order, by weighted draws otherwise.
            background: No effect: this model has no background.

        Rows that break a constraint of the schema are drawn again. ``acceptance_`` then says
        which share of the draws was kept.
        """
        check_is_fitted(self, "density_")
        key = jax_key(self._entropy(), "sampling")
        drawn = draw_rows(self.density_, self.encoding_, n_samples, conditions or {}, key)
        self.acceptance_ = drawn.acceptance
        return self.form_.frame(drawn.columns, self.encoding_.schema)

    def _describe_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = column_arrays(self.density_.columns) | parameter_arrays(self.density_.network)
        return {"plan": self.plan_.to_dict()}, arrays

    @classmethod
    def _rebuild(
        cls,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        guarantee: Guarantee,
        schema: Schema,
    ) -> "DPAutoregressive":
        estimator = cls(**cls._settings_of(guarantee, schema))
        estimator.plan_ = Plan.from_dict(header["plan"], guarantee.budget)
        estimator.encoding_ = MixedEncoding(schema)
        columns = read_columns(arrays, estimator.encoding_)
        sizes, shape = [column.size for column in columns], _shape(estimator.plan_)
        held = sum(array.size for name, array in arrays.items() if name.startswith(PARAMETER))
        if shape.size(sizes) != held:
            raise InputError("the file's parameters do not fit its architecture")
        key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32))
        network = with_parameters(shape.build(sizes, key=key), arrays)
        estimator.density_ = MixedDensity(network, columns, order_of(schema))
        return estimator


def _declared(spec: TableSpec, columns: int) -> Schema:
    """The schema, or continuous columns with the declared bounds."""
    if spec.schema is not None:
        return spec.schema
    names = (f"x{at}" for at in range(columns))
    plain = Schema(tuple(Column(name, "continuous") for name in names))
    return plain if spec.bounds is None else with_bounds(plain, spec.bounds)


def _shape(plan: Plan) -> CellShape:
    if not isinstance(plan.architecture, CellShape):
        raise InputError("the plan is for a table of numbers")
    return plan.architecture
