"""Mixed rows as leaves, and back, from the schema alone."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dpflows.errors import InputError, unchained
from dpflows.table.cells import count_outside, in_units, read_cells
from dpflows.table.columns import Column
from dpflows.table.encoding import Uniforms, require_declared
from dpflows.table.leaves import Leaves, leaves_of
from dpflows.table.reading import Table
from dpflows.table.schema import Schema


@final
@dataclass(frozen=True)
class MixedEncoding:
    """The map between rows of any kinds and points.

    A point has for every column the number of its leaf, and a fraction that says where in the
    leaf its value lies. What lies outside the declared domain is -1.

    Args:
        schema: Columns of any kinds, all of them declared.

    Guarantee:
        Leaves depend on the schema alone, and each point on its own row and its own random
        numbers alone.

    Example:
        >>> from dpflows.table.columns import Column
        >>> sex = Column("sex", "categorical", categories=("F", "M"))
        >>> encoding = MixedEncoding(Schema((sex, Column("age", "integer", min=0, max=120))))
        >>> {name: cells.tolist() for name, cells in encoding.decode([[1.5, 30.2]]).items()}
        {'sex': ['M'], 'age': [30.0]}
    """

    schema: Schema

    def __post_init__(self) -> None:
        require_declared(self.schema)

    @functools.cached_property
    def leaves(self) -> tuple[Leaves, ...]:
        """The leaves of every column."""
        return tuple(leaves_of(column) for column in self.schema.columns)

    def encode(self, table: Table, uniforms: Uniforms) -> np.ndarray:
        """The leaf of every cell.

        Numbers outside the bounds move to the nearest bound. A label that is not declared
        counts as the column's ``other``, or else as a declared one, drawn at random.

        Args:
            table: Rows that were read with this schema.
            uniforms: Called once with the number of cells, dealt out row by row.
        """
        found = self._found(table)
        drawn = np.asarray(uniforms(found.size)).reshape(found.shape)
        filled = np.array([leaves.filled for leaves in self.leaves])
        return np.where(found < 0, (drawn * filled).astype(np.int64), found)

    def score_points(self, table: Table) -> np.ndarray:
        """Rows as points at which a density is to be read: the middle of their leaves."""
        found = self._found(table)
        outside = np.column_stack([_beyond(table.columns[c.name], c) for c in self.schema.columns])
        return np.where((found < 0) | outside, -1.0, found + 0.5)

    def decode(self, points: Any) -> dict[str, np.ndarray]:
        """Points as cells by column, of the types that ``read_table`` gives."""
        points = np.asarray(points, dtype=float)
        if points.ndim != 2 or points.shape[1] != len(self.leaves):
            raise InputError(f"points must have {len(self.leaves)} columns")
        columns = zip(self.schema.names, self.leaves, points.T, strict=True)
        return {
            name: leaves.draw(np.floor(at).astype(np.int64), _fractions(at))
            for name, leaves, at in columns
        }

    @unchained
    def read_conditions(self, conditions: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Wanted values by column, each read as a cell of a table would be.

        Raises:
            InputError: The schema has no such column, or does not declare that value.
        """
        return {name: self._read_value(name, value) for name, value in conditions.items()}

    def given(self, wanted: Mapping[str, np.ndarray]) -> np.ndarray:
        """The point of wanted values; -1 in columns that are free."""
        point = np.full(len(self.leaves), -1.0)
        for name, value in wanted.items():
            at = self.schema.names.index(name)
            point[at] = self.leaves[at].find(value)[0] + 0.5
        return point

    def _read_value(self, name: str, value: Any) -> np.ndarray:
        column = self.schema.column(name)
        label = f"condition on {self.schema.label(name)}"
        cells = np.empty(1, dtype=object)
        cells[0] = value
        read = read_cells(cells, column, label)
        if count_outside(read, column):
            raise InputError(f"{label} must be a value that the schema declares")
        return read

    def _found(self, table: Table) -> np.ndarray:
        if table.schema.names != self.schema.names:
            raise InputError("table must be read with the schema of the encoding")
        pairs = zip(self.leaves, table.columns.values(), strict=True)
        return np.column_stack([leaves.find(values) for leaves, values in pairs])


def _beyond(values: np.ndarray, column: Column) -> np.ndarray:
    """Which numbers lie beyond the declared bounds."""
    if column.min is None or column.max is None:
        return np.zeros(len(values), dtype=bool)
    numbers = in_units(values, column)
    return (numbers < column.min) | (numbers > column.max)


def _fractions(points: np.ndarray) -> Callable[[int], np.ndarray]:
    return lambda count: points - np.floor(points)
