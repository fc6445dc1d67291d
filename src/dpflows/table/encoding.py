"""Rows as points, and back, from the schema alone: points of a box, or numbers of bins."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dpflows.errors import InputError, unchained
from dpflows.table.bins import FinestBins, Uniforms
from dpflows.table.columns import read_cells
from dpflows.table.kinds.base import CATEGORIES, KEYS
from dpflows.table.reading import Table
from dpflows.table.schema import Schema, listed


@final
@dataclass(frozen=True)
class Encoding:
    """The map between rows and points of a box.

    A continuous cell is its own coordinate. An integer cell is spread evenly over the
    unit interval around it, so that a density can describe it. The density of the
    points is then a density per unit: its value at an integer approximates the
    probability of that integer, and the two agree when the density is flat across the
    unit interval.

    Args:
        schema: Continuous and integer columns, all with declared bounds.

    Guarantee:
        The box depends on the schema alone, and each point on its own row and its own
        random numbers alone.

    Example:
        >>> from dpflows.table.columns import Column
        >>> encoding = Encoding(Schema((Column("age", "integer", min=0, max=120),)))
        >>> encoding.low.tolist(), encoding.high.tolist()
        ([-0.5], [120.5])
        >>> encoding.decode(np.array([[29.7], [120.5]]))["age"].tolist()
        [30.0, 120.0]
    """

    schema: Schema

    def __post_init__(self) -> None:
        self.schema.require_numeric()
        require_declared(self.schema)

    @functools.cached_property
    def low(self) -> np.ndarray:
        """The lowest corner of the box."""
        return _frozen(self.schema.lows() - self._margins)

    @functools.cached_property
    def high(self) -> np.ndarray:
        """The highest corner of the box."""
        return _frozen(self.schema.highs() + self._margins)

    def encode(self, table: Table, uniforms: Uniforms) -> np.ndarray:
        """Rows as points of the box.

        Cells outside the bounds move to the nearest bound; integers are then dithered
        within half a unit.

        Args:
            table: Rows that were read with this schema.
            uniforms: Called once with the number of integer cells. The numbers are
                dealt out row by row, so that a row's share does not depend on the
                values of other rows.
        """
        points = np.clip(self._matrix(table), self.schema.lows(), self.schema.highs())
        dithered = self._margins > 0
        integers, margins = points[:, dithered], self._margins[dithered]
        if integers.size:
            points[:, dithered] = _dithered(integers, margins, _drawn(uniforms, integers.size))
        return points

    def score_points(self, table: Table) -> np.ndarray:
        """Rows as points at which a density is to be read: integers at their centre.

        Cells outside the bounds stay where they are, outside the box, where the density
        is zero.
        """
        return self._matrix(table)

    def decode(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Points as cells by column: inside the bounds, integers whole, halves upward."""
        if points.ndim != 2 or points.shape[1] != len(self.schema.columns):
            raise InputError(f"points must have {len(self.schema.columns)} columns")
        rounded = np.where(self._margins > 0, _nearest(points), points)
        cells = np.clip(rounded, self.schema.lows(), self.schema.highs())
        return {name: cells[:, i].copy() for i, name in enumerate(self.schema.names)}

    @functools.cached_property
    def _margins(self) -> np.ndarray:
        return np.array([column.rules.margin for column in self.schema.columns])

    def _matrix(self, table: Table) -> np.ndarray:
        if table.schema.names != self.schema.names:
            raise InputError("table must be read with the schema of the encoding")
        return table.matrix


@final
@dataclass(frozen=True)
class MixedEncoding:
    """The map between rows of any kinds and points.

    A point has for every column the number of its bin, and a fraction that says where in the
    bin its value lies. What lies outside the declared domain is -1.

    Args:
        schema: Columns of any kinds, all of them declared.

    Guarantee:
        Bins depend on the schema alone, and each point on its own row and its own random
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
    def bins(self) -> tuple[FinestBins, ...]:
        """The finest bins of every column."""
        return tuple(column.bins() for column in self.schema.columns)

    def encode(self, table: Table, uniforms: Uniforms) -> np.ndarray:
        """The bin of every cell.

        Numbers outside the bounds move to the nearest bound. A label that is not declared
        counts as the column's ``other``, or else as a declared one, drawn at random.

        Args:
            table: Rows that were read with this schema.
            uniforms: Called once with the number of cells, dealt out row by row.
        """
        found = self._found(table)
        drawn = np.asarray(uniforms(found.size)).reshape(found.shape)
        filled = np.array([bins.filled for bins in self.bins])
        return np.where(found < 0, (drawn * filled).astype(np.int64), found)

    def score_points(self, table: Table) -> np.ndarray:
        """Rows as points at which a density is to be read: the middle of their bins."""
        found = self._found(table)
        columns = self.schema.columns
        beyond = np.column_stack([c.rules.beyond(table.columns[c.name]) for c in columns])
        return np.where((found < 0) | beyond, -1.0, found + 0.5)

    def decode(self, points: Any) -> dict[str, np.ndarray]:
        """Points as cells by column, of the types that ``read_table`` gives."""
        points = np.asarray(points, dtype=float)
        if points.ndim != 2 or points.shape[1] != len(self.bins):
            raise InputError(f"points must have {len(self.bins)} columns")
        columns = zip(self.schema.names, self.bins, points.T, strict=True)
        return {
            name: bins.draw(np.floor(at).astype(np.int64), _fractions(at))
            for name, bins, at in columns
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
        point = np.full(len(self.bins), -1.0)
        for name, value in wanted.items():
            at = self.schema.names.index(name)
            point[at] = self.bins[at].find(value)[0] + 0.5
        return point

    def _read_value(self, name: str, value: Any) -> np.ndarray:
        column = self.schema.column(name)
        label = f"condition on {self.schema.label(name)}"
        cells = np.empty(1, dtype=object)
        cells[0] = value
        read = read_cells(cells, column, label)
        if column.rules.outside(read).any():
            raise InputError(f"{label} must be a value that the schema declares")
        return read

    def _found(self, table: Table) -> np.ndarray:
        if table.schema.names != self.schema.names:
            raise InputError("table must be read with the schema of the encoding")
        pairs = zip(self.bins, table.columns.values(), strict=True)
        return np.column_stack([bins.find(values) for bins, values in pairs])


def require_declared(schema: Schema) -> None:
    """Refuse columns without bounds or categories, with the two remedies."""
    names = schema.undeclared()
    if not names:
        return
    lacking = sorted({str(schema.column(name).rules.discovers) for name in names})
    things = " and ".join(lacking)
    keys = " and ".join(" and ".join(KEYS[thing]) for thing in lacking)
    arrays = "" if CATEGORIES in lacking else _ARRAYS
    raise InputError(
        f"{things} are not declared for column {_shown(schema, names)}, and must not be read from "
        f"private rows: declare {keys} in the schema{arrays}, or let "
        "a share of epsilon discover them (discover=0.1, --discover 0.1)"
    )


_ARRAYS = " (or bounds=(low, high))"


def _shown(schema: Schema, names: tuple[str, ...]) -> str:
    if not schema.names_read:
        return listed(names)
    numbers = ", ".join(str(schema.names.index(name) + 1) for name in names[:8])
    return f"number {numbers}" + (" and more" if len(names) > 8 else "")


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _drawn(uniforms: Uniforms, count: int) -> np.ndarray:
    drawn = np.asarray(uniforms(count), dtype=np.float64)
    if drawn.shape != (count,) or not ((drawn >= 0) & (drawn < 1)).all():
        raise InputError("uniforms must give as many numbers in [0, 1) as it is asked for")
    return drawn


def _dithered(integers: np.ndarray, margins: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    moved = integers + 2 * margins * (drawn.reshape(integers.shape) - 0.5)
    # large sums round up to the next unit interval, from where they would not come back
    return np.minimum(moved, np.nextafter(integers + margins, -np.inf))


def _nearest(points: np.ndarray) -> np.ndarray:
    # adding a half before the floor would round numbers just below a half upward
    whole = np.floor(points)
    return whole + (points - whole >= 0.5)


def _fractions(points: np.ndarray) -> Uniforms:
    return lambda count: points - np.floor(points)
