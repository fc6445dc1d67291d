"""The domain of a table: what is declared about it, and the discovery of what is not.

``TableSpec`` holds the declarations. The stage ``EncodeRows`` finds undeclared bounds and
categories with a share of the budget and encodes the rows in the resulting domain.

Guarantee:
    The domain comes from declarations, or from noisy counts whose events are part of the
    plan; never from the rows directly. A column about which nothing is declared is refused.
    Kinds are declared, too: without a schema all columns are continuous, whatever the types
    are that the table gives them.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from scipy.sparse import issparse

from dpflows.errors import BudgetError, InputError, unquoted
from dpflows.pipeline.plan import Stage, Work
from dpflows.privacy.events import ApproximateEvent, DiscreteLaplaceEvent, Event, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.selection import private_bounds
from dpflows.privacy.mechanisms.statistics import COUNTING, discover_categories
from dpflows.privacy.randomness import Entropy
from dpflows.table.bins import MOST_LABELS
from dpflows.table.columns import Column
from dpflows.table.kinds.base import CATEGORIES
from dpflows.table.raw import is_missing
from dpflows.table.reading import Encoding, Form, MixedEncoding, Table, read_table, require_declared
from dpflows.table.schema import Schema
from dpflows.training.checkpoints import Before


@final
@dataclasses.dataclass(frozen=True)
class Discovery:
    """The discovery of undeclared bounds and categories.

    Args:
        share: Of epsilon, divided evenly over the columns in ``gaps``; and of delta,
            divided evenly over those of them that hold labels.
        budget: The total.
        gaps: The places of undeclared columns, and whether each holds labels.

    Guarantee:
        ``find`` releases what ``events`` lists and nothing else. Together they cost at most the
        share of epsilon and, if there are labels, the share of delta. A label of a single row is
        released with probability at most the column's part of delta.

    Example:
        >>> schema = Schema((Column("age", "integer"), Column("sex", "categorical")))
        >>> search = Discovery(0.1, Budget(1.0, 1e-5), gaps_of(schema))
        >>> [event.purpose for event in search.events()]
        ['bounds of column 1', 'categories of column 2']
    """

    share: float
    budget: Budget
    gaps: tuple[tuple[int, bool], ...]

    @property
    def scale(self) -> float:
        """Scale of the noise on every count."""
        epsilon = self.share * self.budget.epsilon
        return len(self.gaps) * COUNTING.under(self.budget.neighbours) / epsilon

    @property
    def delta(self) -> float:
        """The probability that a label of a single row is released."""
        return self.share * self.budget.delta / sum(is_labelled for _, is_labelled in self.gaps)

    def events(self) -> tuple[Event, ...]:
        """The events of the search; none if all is declared or the budget is unlimited."""
        if not self.budget.is_private:
            return ()
        return tuple(self._event(place, is_labelled) for place, is_labelled in self.gaps)

    def _event(self, place: int, is_labelled: bool) -> Event:
        purpose, scale = _purpose(place, is_labelled), self.scale
        if not is_labelled:
            return DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=purpose)
        epsilon = Sensitivity(1 / scale, 1 / scale, 2 / scale)
        return ApproximateEvent(epsilon=epsilon, delta=self.delta, purpose=purpose)

    def find(self, table: Table, entropy: Entropy) -> Schema:
        """The schema completed by what was found."""
        schema, described = table.schema, []
        for place, is_labelled in self.gaps:
            column = schema.columns[place]
            search = self._with_labels if is_labelled else self._with_bounds
            found = search(
                column, table.columns[column.name], _purpose(place, is_labelled), entropy
            )
            if found is None:
                raise _nothing(schema.label(column.name), is_labelled)
            described.append(found)
        return schema.with_columns(described)

    def _with_bounds(
        self, column: Column, values: np.ndarray, purpose: str, entropy: Entropy
    ) -> Column | None:
        numbers = column.rules.numbers(values)
        if self.budget.is_private:
            found = private_bounds(numbers, scale=self.scale, entropy=entropy, purpose=purpose)
            bounds = found.value
        else:
            present = numbers[~np.isnan(numbers)]
            bounds = (float(present.min()), float(present.max())) if len(present) else None
        return None if bounds is None else column.within(*column.rules.settled(*bounds))

    def _with_labels(
        self, column: Column, values: np.ndarray, purpose: str, entropy: Entropy
    ) -> Column | None:
        if not self.budget.is_private:
            labels, counts = np.unique(values[~is_missing(values)].astype(str), return_counts=True)
            return _labelled(column, dict(zip(labels.tolist(), counts.tolist(), strict=True)))
        found = discover_categories(
            values.tolist(), scale=self.scale, delta=self.delta, entropy=entropy, purpose=purpose
        )
        return _labelled(column, found.value)


def gaps_of(schema: Schema) -> tuple[tuple[int, bool], ...]:
    """The places of undeclared columns, and whether each holds labels."""
    return tuple(
        (place, column.rules.discovers == CATEGORIES)
        for place, column in enumerate(schema.columns)
        if not column.is_declared
    )


def _labelled(column: Column, counts: dict[str, int]) -> Column | None:
    """The column with the found labels, only the most frequent if there are many."""
    other = () if column.other is None else (column.other,)
    known = [label for label in counts if label not in other]
    if len(known) + len(other) > MOST_LABELS:
        if not other:
            raise BudgetError(
                f"more than {MOST_LABELS} categories of column {column.name!r} were found, and "
                'the share for finding them is spent; declare other = "a label" for the rare ones, '
                "group them, or drop the column"
            )
        known = sorted(known, key=lambda label: -counts[label])[: MOST_LABELS - 1]
    labels = (*sorted(known), *other)
    return dataclasses.replace(column, categories=labels) if labels else None


def _nothing(label: str, is_labelled: bool) -> BudgetError:
    things = "categories" if is_labelled else "bounds"
    return BudgetError(
        f"no {things} of {label} could be found above the noise, and the share for finding them is "
        "spent; declare them, or use a larger discover share"
    )


def _purpose(place: int, is_labelled: bool) -> str:
    return f"{'categories' if is_labelled else 'bounds'} of column {place + 1}"


VALUES_READ_STAMP = "NOT PRIVATE: bounds were read from the rows without a privacy budget"


@final
@dataclasses.dataclass(frozen=True)
class TableSpec:
    """The curator's declarations about a table, made before it is read.

    Args:
        schema: The schema; without one every column is continuous.
        bounds: ``(low, high)`` of the columns instead of a schema, numbers or one per column.
        discover: The share of epsilon, and of delta if there are labels, spent on finding
        undeclared bounds and categories.
        mixed: Whether the estimator models columns of all kinds, missing cells and
            constraints; they must be declared in a schema.

    Example:
        >>> spec = TableSpec.resolve(None, (0, 1), None)
        >>> spec.read(np.full((3, 2), 0.5)).rows
        3
    """

    schema: Schema | None
    bounds: Any
    discover: float | None
    mixed: bool = False

    def __post_init__(self) -> None:
        if self.discover is not None and not 0 < self.discover < 1:
            raise InputError(f"discover must be a share between 0 and 1, got {self.discover}")

    @classmethod
    def resolve(
        cls,
        schema: Schema | str | os.PathLike[str] | None,
        bounds: Any,
        discover: float | None,
        *,
        mixed: bool = False,
    ) -> "TableSpec":
        """The declarations, with the schema read from its file, once."""
        if schema is not None and bounds is not None:
            raise InputError(
                "bounds must be declared only once: in the schema or as bounds, not both"
            )
        if isinstance(schema, str | os.PathLike):
            schema = Schema.read(schema)
        if schema is not None and not isinstance(schema, Schema):
            raise InputError("schema must be a Schema or the path of a TOML or JSON file")
        return cls(schema, bounds, discover, mixed)

    @property
    def is_mixed(self) -> bool:
        """Whether the schema declares other kinds than numbers."""
        return self.schema is not None and self.schema.is_mixed

    def count(self, columns: int | None) -> int:
        """The number of columns, from the schema or else from the caller."""
        declared = None if self.schema is None else len(self.schema.columns)
        if columns is None and declared is None:
            raise InputError("columns must be given if no schema declares them")
        if columns is not None and declared not in (None, columns):
            raise InputError(f"columns must be {declared} as in the schema, got {columns}")
        return columns if declared is None else declared  # type: ignore[return-value]

    def domain(self, budget: Budget, columns: int, *, mixed: bool = False) -> "EncodeRows":
        """The stage that completes the declarations and encodes the rows."""
        if self.discover is None:
            return EncodeRows(None, mixed)
        if self.schema is not None:
            gaps = gaps_of(self.schema)
        else:
            gaps = tuple((i, False) for i in range(columns)) if self.bounds is None else ()
        return EncodeRows(Discovery(self.discover, budget, gaps), mixed)

    @unquoted
    def read(self, source: Any) -> Table:
        """Read a table according to the declarations.

        Raises:
            InputError: The estimator does not model a kind that is declared, or something is
            neither declared nor to be discovered; nothing is charged then.
        """
        table = read_table(as_source(source), self.schema)
        if self.schema is None and self.bounds is not None:
            table = dataclasses.replace(table, schema=with_bounds(table.schema, self.bounds))
        if self.schema is None or not self.mixed:
            table.schema.require_numeric()
        if self.discover is None:
            require_declared(table.schema)
        return table


@final
@dataclasses.dataclass(frozen=True)
class EncodeRows(Stage):
    """Find bounds and categories that are not declared, and encode the rows.

    Attributes:
        discovery: The search for what is not declared; ``None`` if all is declared.
        mixed: Whether rows become bins of columns of any kind, or points of a box.

    Guarantee:
        Releases what the search lists. Encoding is row by row and is not released.
    """

    discovery: Discovery | None
    mixed: bool = False

    is_kept = True

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of the search."""
        return () if self.discovery is None else self.discovery.events()

    def run(self, work: Work) -> Work:
        """Search, then encode."""
        return self._encoded(work, self._found(work))

    @unquoted
    def _found(self, work: Work) -> Schema:
        declared = work.table.schema
        if declared.undeclared() and self.discovery is not None:
            return self.discovery.find(work.table, work.entropy)
        return declared

    def keep(self, work: Work) -> Before:
        """The schema with what was found."""
        return {"schema": work.table.schema.to_dict()}, {}

    def resume(self, work: Work, kept: Before) -> Work:
        """Encode by the schema that was found before."""
        return self._encoded(work, Schema.from_dict(kept[0]["schema"]))

    @unquoted
    def _encoded(self, work: Work, found: Schema) -> Work:
        table = dataclasses.replace(work.table, schema=found)
        encoding = MixedEncoding(found) if self.mixed else Encoding(found)
        rows = encoding.encode(table, lambda n: work.entropy.uniforms("dither", step=0, count=n))
        return work.after(table=table, encoding=encoding, rows=rows)


def with_bounds(schema: Schema, bounds: Any) -> Schema:
    """The schema with ``(low, high)``, numbers or one per column, declared for all columns.

    Example:
        >>> with_bounds(Schema.from_bounds([0], [1]), (0, 2)).highs().tolist()
        [2.0]
    """
    schema.require_numeric()
    low, high = read_bounds(bounds, len(schema.columns))
    triples = zip(schema.columns, low.tolist(), high.tolist(), strict=True)
    columns = tuple(dataclasses.replace(column, min=a, max=b) for column, a, b in triples)
    return dataclasses.replace(schema, columns=columns)


def read_bounds(bounds: Any, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Declared ``(low, high)``, numbers or one per column, as two vectors."""
    try:
        low, high = (np.broadcast_to(np.asarray(b, float), (columns,)) for b in bounds)
    except (TypeError, ValueError):
        raise InputError(
            f"bounds must be (low, high), numbers or one per each of {columns} columns"
        ) from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise InputError("bounds must be finite with low below high in every column")
    return low.copy(), high.copy()


def stamps_of(schema: Schema) -> tuple[str, ...]:
    """The stamps that a schema causes.

    Example:
        >>> stamps_of(Schema.from_bounds([0], [1]))
        ()
    """
    return (VALUES_READ_STAMP,) if schema.values_read else ()


def as_source(X: Any) -> Any:
    """Nested lists as an array of objects; unsupported tables are refused.

    With a single type, one text cell would turn all numbers into text.
    """
    source = np.array(X, dtype=object) if isinstance(X, list | tuple) else X
    if issparse(source):
        raise InputError("sparse input is not supported; pass X.toarray()")
    if isinstance(source, np.ndarray) and np.iscomplexobj(source):
        raise InputError("Complex data not supported; pass real numbers")
    return source


@unquoted
def rows_to_score(X: Any, schema: Schema, estimator: str) -> Table:
    """Rows to score, read as those of the fit were.

    Example:
        >>> rows_to_score([[0.5], [0.7]], Schema.from_bounds([0], [1]), "DPFlow").rows
        2
    """
    source = as_source(X)
    if isinstance(source, np.ndarray) and source.ndim == 2:
        require_columns(source.shape[1], len(schema.columns), estimator)
    return read_table(source, schema)


def require_columns(found: int, expected: int, estimator: str) -> None:
    """Refuse an array with another number of columns than the fit."""
    if found != expected:
        raise InputError(
            f"X has {found} features, but {estimator} is expecting {expected} features as input"
        )


def feature_names(form: Form, schema: Schema) -> Sequence[str] | None:
    """The column names, if the table has names."""
    return None if form.kind == "numpy" or form.has_integer_labels else schema.names
