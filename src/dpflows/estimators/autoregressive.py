"""Densities of mixed tables: an autoregressive network over the bins of every column.

``draw_rows`` samples it under conditions and the schema's constraints.
"""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpflows.errors import InputError
from dpflows.estimators.base import TrainedEstimator
from dpflows.estimators.persistence import PARAMETER, parameter_arrays, with_parameters
from dpflows.models.autoregressive import CellShape
from dpflows.models.mixed import CHUNK, MixedDensity
from dpflows.pipeline.defaults import cell_defaults
from dpflows.pipeline.domain import TableSpec, with_bounds
from dpflows.pipeline.marginals import (
    BuildNetwork,
    CountMarginals,
    RakeNetwork,
    column_arrays,
    order_of,
    plan_grouping,
    read_columns,
)
from dpflows.pipeline.plan import Plan, Work, jax_key, needed
from dpflows.pipeline.training import make_plan, name_of, read_plan
from dpflows.privacy.events import check_choice
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.table.columns import Column
from dpflows.table.reading import MixedEncoding
from dpflows.table.schema import Schema
from dpflows.training.dp_sgd import Optimizer

#: The most draws for one row that is kept, beside those of the first look.
MOST_TRIES = 200
#: Draws of the first look, where conditions make rows weigh differently.
FIRST_LOOK = CHUNK


@final
@dataclasses.dataclass(frozen=True)
class Rows:
    """Sampled rows.

    Attributes:
        columns: Cells by column.
        acceptance: The share of accepted draws.
    """

    columns: dict[str, np.ndarray]
    acceptance: float


def draw_rows(
    density: MixedDensity,
    encoding: MixedEncoding,
    n: Any,
    conditions: Mapping[str, Any],
    key: jax.Array,
) -> Rows:
    """Draw rows that meet conditions and the schema's constraints.

    Wanted values are fixed, and a row is accepted with a probability proportional to the model's
    probability of those values: always, if the wanted columns come first in the model's order.
    Acceptance is relative to the largest weight so far; when that grows, accepted rows are tested
    again. Rows that are likely under the condition but occur in fewer than one of thousands of
    draws may be missed.

    Args:
        density: The fitted model.
        encoding: Its columns.
        n: Number of rows.
        conditions: Wanted values by column.
        key: Random key of the draws.

    Raises:
        InputError: A condition names no declared value, or too few draws could be kept.

    Guarantee:
        Reads only the released model: post-processing.
    """
    n = _count(n)
    wanted = encoding.read_conditions(conditions)
    source = _Source(density, encoding, wanted)
    kept, tries = source.draw(key, _first(n, source)), _first(n, source)
    while len(kept) < n:
        if tries >= MOST_TRIES * n + 4 * FIRST_LOOK:
            raise InputError(
                f"conditions and constraints kept {len(kept)} of {tries} draws; relax them, or fit "
                "a model to data with such rows"
            )
        size = int(min(1.1 * (n - len(kept)) * tries / max(len(kept), 1) + 16, 8 * CHUNK))
        kept, tries = kept.joined(source.draw(jr.fold_in(key, tries), size)), tries + size
    return Rows({name: cells[:n] for name, cells in kept.columns.items()}, len(kept) / tries)


@final
@dataclasses.dataclass(frozen=True)
class _Kept:
    """Rows, each with the largest log weight bound under which it is accepted."""

    columns: dict[str, np.ndarray]
    stays_to: np.ndarray
    bound: float

    def __len__(self) -> int:
        return len(self.stays_to)

    def joined(self, other: "_Kept") -> "_Kept":
        """Both sets, thinned to the larger bound."""
        names, bound = self.columns, max(self.bound, other.bound)
        columns = {
            name: np.concatenate([self.columns[name], other.columns[name]]) for name in names
        }
        stays_to = np.concatenate([self.stays_to, other.stays_to])
        return _Kept(columns, stays_to, bound).thinned()

    def thinned(self) -> "_Kept":
        """Remove the rows that the bound rejects."""
        stays = self.stays_to >= self.bound
        columns = {name: cells[stays] for name, cells in self.columns.items()}
        return _Kept(columns, self.stays_to[stays], self.bound)


@final
@dataclasses.dataclass(frozen=True)
class _Source:
    """A source of rows under a condition."""

    density: MixedDensity
    encoding: MixedEncoding
    wanted: Mapping[str, np.ndarray]

    @property
    def is_even(self) -> bool:
        """Whether all weights are equal: the wanted columns come first in the order."""
        names = [self.encoding.schema.names[at] for at in self.density.order]
        return set(names[: len(self.wanted)]) == set(self.wanted)

    def draw(self, key: jax.Array, size: int) -> _Kept:
        """The accepted rows of a number of draws."""
        first, second = jr.split(key)
        given = np.tile(self.encoding.given(self.wanted), (size, 1))
        points, logs = self.density.sample_given(first, given)
        logs = np.zeros(size) if self.is_even else logs
        columns = _put(self.encoding.decode(points), self.wanted)
        allowed = _allowed(columns, self.encoding)
        columns = {name: cells[allowed] for name, cells in columns.items()}
        bound = float(logs.max(initial=-np.inf))
        return _Kept(columns, (logs + _patience(second, size))[allowed], bound).thinned()


def _patience(key: jax.Array, size: int) -> np.ndarray:
    """Exponential thresholds for acceptance: above x with probability exp(-x)."""
    return np.asarray(jr.exponential(key, (size,)), dtype=float)


def _count(n: Any) -> int:
    try:
        n = operator.index(n)
    except TypeError:
        raise InputError("n_samples must be a whole number") from None
    if n < 1:
        raise InputError(f"n_samples must be at least 1, got {n}")
    return n


def _first(n: int, source: _Source) -> int:
    return max(n, 256) if source.is_even else max(n, FIRST_LOOK)


def _put(columns: dict[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    put = {name: np.repeat(value, len(columns[name])) for name, value in wanted.items()}
    return columns | put


def _allowed(columns: dict[str, np.ndarray], encoding: MixedEncoding) -> np.ndarray:
    rows = len(next(iter(columns.values())))
    allowed = np.ones(rows, dtype=bool)
    for constraint in encoding.schema.constraints:
        allowed &= constraint.holds(columns, encoding.schema)
    return allowed


@final
@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class DPAutoregressive(TrainedEstimator):
    """A differentially private autoregressive network over columns of any kind.

    Every column is divided into bins, rare bins are merged by noisy counts, a network learns each
    column given those before it, and its marginals are raked to noisy ones. The schema declares
    labels, truth values, whole numbers, dates, missing cells, spikes, a target and constraints.

    Args:
    {common}

    Attributes:
        acceptance_: The share of the last draws that met the schema's constraints.

    Guarantee:
        ``guarantee_`` covers everything that ``fit`` computed from the rows.

    Example:
        >>> from dpflows.table.schema import Column
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
            n_samples: Number of rows.
            conditions: Wanted values by column. Rows follow the conditional distribution: exactly
                if the columns come first in the model's order, by weighted draws otherwise.
            background: No effect: this model has no background.

        Rows that violate a constraint of the schema are drawn again; ``acceptance_`` is the share
        of accepted draws.
        """
        check_is_fitted(self, "density_")
        key = jax_key(self.entropy(), "sampling")
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
        estimator.plan_ = read_plan(header["plan"], guarantee.budget)
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
        raise InputError("the plan is for a table of numbers; fit the model again")
    return plan.architecture
