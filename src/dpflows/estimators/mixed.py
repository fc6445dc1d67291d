"""Tables of mixed kinds: an autoregressive network over the cells of every column."""

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from dpflows.errors import InputError, unquoted
from dpflows.estimators.charging import Job, for_good, kept_schemas, require_same
from dpflows.estimators.intake import stamps_of
from dpflows.estimators.parameters import PARAMETER, parameter_arrays, with_parameters
from dpflows.estimators.ways import Way
from dpflows.flows.cells import CellNetwork, CellShape
from dpflows.flows.mixed import Grouped, MixedDensity
from dpflows.flows.raking import marginals, raked
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column
from dpflows.table.mixing import MixedEncoding
from dpflows.table.reading import Table
from dpflows.table.schema import Schema
from dpflows.training.defaults import cell_defaults
from dpflows.training.fitting import fit_model
from dpflows.training.grouping import Counted, Grouping, plan_grouping
from dpflows.training.plan import Plan, make_plan

_CELLS, _SHARES, _COUNTS = "cells-{}", "shares-{}", "counts-{}"
#: Settings of flows over numbers, and the values that leave them alone.
_FLOW_ONLY: dict[str, tuple[Any, ...]] = {
    "optimizer": ("auto", "adam", "sgd"),
    "architecture": (None,),
    "prior": ("auto", None),
    "normalisation": ("auto",),
    "initialisation": ("identity",),
    "bounds": (None,),
}


def order_of(schema: Schema) -> tuple[int, ...]:
    """The columns in the model's order: the target, then the others as they are declared.

    Example:
        >>> rows = (Column("sex", "boolean"), Column("ill", "boolean"))
        >>> order_of(Schema(rows, target="ill"))
        (1, 0)
    """
    names = list(schema.names)
    first = [] if schema.target is None else [names.index(schema.target)]
    return (*first, *(at for at in range(len(names)) if at not in first))


@final
@dataclasses.dataclass(frozen=True)
class Bought:
    """What was released before the first step: the cells, and what they count."""

    columns: tuple[Grouped, ...]
    counted: Counted

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many cells each column has."""
        return tuple(column.size for column in self.columns)

    def arrays(self) -> dict[str, np.ndarray]:
        """What ``from_arrays`` needs."""
        tables = {_COUNTS.format(i): table for i, table in enumerate(self.counted.tables)}
        return tables | column_arrays(self.columns)

    @classmethod
    def from_arrays(
        cls, arrays: dict[str, np.ndarray], encoding: MixedEncoding, noise: float
    ) -> "Bought":
        """Build again what ``arrays`` described."""
        columns = read_columns(arrays, encoding)
        tables = tuple(arrays[_COUNTS.format(i)] for i in range(len(columns)))
        return cls(columns, Counted(tables, noise))


@final
class MixedWay(Way):
    """Cells of every column, a network over them, and marginals to rake it to.

    Guarantee:
        Discovered domains, counts of leaves, counts of cells and training: each is in the
        plan. Cells, shares inside them and shifts by raking follow from those.
    """

    def plan(self, rows: int, columns: int) -> Plan:
        """What a fit would do with a table of this shape; reads no row."""
        flow, budget = self.flow, self.flow._budget()
        self._refuse_what_belongs_to_flows()
        rule = cell_defaults(budget, rows=rows)
        fixed: dict[str, Any] = {"architecture": rule.shape}
        if flow.optimizer == "auto":
            fixed["optimizer"] = "adam"
        for name in ("batch_size", "learning_rate", "steps"):
            fixed[name] = _given(getattr(flow, name), getattr(rule, name))
        if flow.noise_multiplier is not None:
            fixed["steps"] = flow.steps
        told = flow._declarations().events(budget, columns)
        return make_plan(
            budget,
            rows=rows,
            columns=columns,
            settings=flow._settings(**fixed),
            before=(*told, *self._grouping(rows).events) if budget.is_private else (),
        )

    def learn(self, job: Job) -> None:
        """Find domains, group leaves, count cells, train, rake."""
        flow, plan, entropy = self.flow, job.plan, job.entropy
        encoding, codes, bought = self._prepare(job)
        cells = cells_of(bought.columns, codes)
        network = fit_model(
            _start(plan, bought, entropy),
            cells.astype(np.float32),
            plan,
            entropy=entropy,
            callbacks=job.callbacks,
            checkpoints=job.journal,
            known_to_taps=True,
        )
        density = MixedDensity(
            _raked(network, bought.counted, plan.rows, entropy),
            bought.columns,
            order_of(encoding.schema),
        )
        flow.density_, flow.plan_ = density, plan
        promise = flow._promised(plan, stamps_of(encoding.schema))
        flow._adopt(promise, encoding, job.table.form)

    def describe(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The plan, the cells and the network's parameters."""
        density = self.flow.density_
        arrays = column_arrays(density.columns) | parameter_arrays(density.network)
        return {"plan": self.flow.plan_.to_dict()}, arrays

    def rebuild(
        self, header: dict[str, Any], arrays: dict[str, np.ndarray], schema: Schema
    ) -> None:
        """Build the network that the cells need, and fill it."""
        flow, encoding = self.flow, MixedEncoding(schema)
        columns = read_columns(arrays, encoding)
        sizes, shape = [column.size for column in columns], _shape(flow.plan_)
        held = sum(array.size for name, array in arrays.items() if name.startswith(PARAMETER))
        if shape.size(sizes) != held:
            raise InputError("the file's parameters do not fit its architecture")
        template = shape.build(sizes, key=_key(np.zeros(2, np.uint32)))
        network = with_parameters(template, arrays)
        flow.density_ = MixedDensity(network, columns, order_of(schema))
        flow.encoding_ = encoding

    def _prepare(self, job: Job) -> tuple[MixedEncoding, np.ndarray, Bought]:
        """Domains, cells and counts: bought now, or taken from an earlier start of this run."""
        flow, plan, entropy = self.flow, job.plan, job.entropy
        kept = None if job.journal is None else job.journal.before()
        found = None if kept is None else Schema.from_dict(kept[0]["schema"])
        require_same(kept, job.table.schema)
        with for_good(job.journal):
            schema = found or flow._declarations().settled(job.table, plan.budget, entropy)
        encoding = MixedEncoding(schema)
        codes = _codes(job.table, encoding, entropy)
        grouping = self._grouping(plan.rows)
        if kept is not None:
            bought = Bought.from_arrays(kept[1], encoding, grouping.cell_noise)
        else:
            bought = _buy(grouping, codes, encoding, entropy)
            if job.journal is not None:
                job.journal.remember(kept_schemas(job.table.schema, schema), bought.arrays())
        return encoding, codes, bought

    def _grouping(self, rows: int) -> Grouping:
        schema = self.flow._declarations().known_schema()
        if schema is None:
            raise InputError("a table of mixed kinds needs a schema; write one with dpflows schema")
        columns: list[Column] = [schema.columns[at] for at in order_of(schema)]
        budget = self.flow._budget()
        return plan_grouping(budget, columns, rows=rows, has_target=schema.target is not None)

    def _refuse_what_belongs_to_flows(self) -> None:
        for name, neutral in _FLOW_ONLY.items():
            value = getattr(self.flow, name)
            if not any(value is one or (isinstance(one, str) and value == one) for one in neutral):
                raise InputError(
                    f"{name} is a setting for tables of numbers, and the schema declares mixed "
                    "kinds; leave it out"
                )


def _shape(plan: Plan) -> CellShape:
    if not isinstance(plan.architecture, CellShape):
        raise InputError("the plan is for a table of numbers")
    return plan.architecture


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


@unquoted
def _codes(table: Table, encoding: MixedEncoding, entropy: Entropy) -> np.ndarray:
    """The leaf of every cell, in the model's order of columns."""
    read = dataclasses.replace(table, schema=encoding.schema)
    leaves = encoding.encode(read, lambda n: entropy.uniforms("dither", step=0, count=n))
    return leaves[:, order_of(encoding.schema)]


def _buy(
    grouping: Grouping, codes: np.ndarray, encoding: MixedEncoding, entropy: Entropy
) -> Bought:
    """Both releases that come before training."""
    leaves = [encoding.leaves[at] for at in order_of(encoding.schema)]
    columns = grouping.group(codes, leaves, entropy=entropy)
    sizes = [column.size for column in columns]
    counted = grouping.count(cells_of(columns, codes), sizes, entropy=entropy)
    return Bought(columns, counted)


def cells_of(columns: tuple[Grouped, ...], codes: np.ndarray) -> np.ndarray:
    """The cell of every leaf."""
    pairs = zip(columns, codes.T, strict=True)
    return np.column_stack([column.cells[at] for column, at in pairs])


def _start(plan: Plan, bought: Bought, entropy: Entropy) -> CellNetwork:
    """A network of independent columns that have their noisy marginals."""
    counts = [np.maximum(t.sum(axis=0), bought.counted.noise) for t in bought.counted.tables]
    biases = np.concatenate([np.log(count / count.sum()) for count in counts])
    key = _key(entropy.key("initialisation"))
    return _shape(plan).build(bought.sizes, key=key, biases=biases)


def _raked(network: CellNetwork, counted: Counted, rows: int, entropy: Entropy) -> CellNetwork:
    seen = marginals(counted.tables, noise=counted.noise, rows=rows)
    return raked(network, seen, _key(entropy.key("sampling", step=1)))


def column_arrays(columns: tuple[Grouped, ...]) -> dict[str, np.ndarray]:
    """The cells of all columns by name."""
    cells = {_CELLS.format(i): column.cells for i, column in enumerate(columns)}
    return cells | {_SHARES.format(i): column.shares for i, column in enumerate(columns)}


def read_columns(arrays: dict[str, np.ndarray], encoding: MixedEncoding) -> tuple[Grouped, ...]:
    """The columns that ``column_arrays`` described; the content may be hostile."""
    leaves = [encoding.leaves[at] for at in order_of(encoding.schema)]
    return tuple(
        Grouped(
            arrays[_CELLS.format(i)].astype(np.int64),
            arrays[_SHARES.format(i)].astype(float),
            column.log_volumes,
        )
        for i, column in enumerate(leaves)
    )


def _key(words: np.ndarray) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(words))
