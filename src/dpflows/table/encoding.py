"""Rows as points of a box, and back, from the schema alone."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from dpflows.errors import InputError
from dpflows.table.reading import Table
from dpflows.table.schema import Schema, listed

#: Gives that many independent numbers, uniform in [0, 1).
Uniforms = Callable[[int], np.ndarray]


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
        >>> from dpflows.table.schema import Column
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
        return _frozen(self.schema.lows() - 0.5 * self._is_integer)

    @functools.cached_property
    def high(self) -> np.ndarray:
        """The highest corner of the box."""
        return _frozen(self.schema.highs() + 0.5 * self._is_integer)

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
        integers = points[:, self._is_integer]
        if integers.size:
            points[:, self._is_integer] = _dithered(integers, _drawn(uniforms, integers.size))
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
        rounded = np.where(self._is_integer, _nearest(points), points)
        cells = np.clip(rounded, self.schema.lows(), self.schema.highs())
        return {name: cells[:, i].copy() for i, name in enumerate(self.schema.names)}

    @property
    def _is_integer(self) -> np.ndarray:
        return np.array([column.kind == "integer" for column in self.schema.columns])

    def _matrix(self, table: Table) -> np.ndarray:
        if table.schema.names != self.schema.names:
            raise InputError("table must be read with the schema of the encoding")
        return table.matrix


def require_declared(schema: Schema) -> None:
    """Refuse columns without bounds or categories, with the two ways out."""
    names = schema.undeclared()
    if not names:
        return
    labelled = {schema.column(name).kind == "categorical" for name in names}
    things = " and ".join(_GAPS[is_labelled][0] for is_labelled in sorted(labelled))
    keys = " and ".join(_GAPS[is_labelled][1] for is_labelled in sorted(labelled))
    raise InputError(
        f"{things} are not declared for column {_shown(schema, names)}, and must not be read from "
        f"private rows: declare {keys} in the schema{'' if True in labelled else _ARRAYS}, or let "
        "a share of epsilon discover them (discover=0.1, --discover 0.1)"
    )


#: What an undeclared column lacks, and its keys; by whether its cells are labels.
_GAPS = {False: ("bounds", "min and max"), True: ("categories", "categories")}
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


def _dithered(integers: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    moved = integers + (drawn.reshape(integers.shape) - 0.5)
    # large sums round up to the next unit interval, from where they would not come back
    return np.minimum(moved, np.nextafter(integers + 0.5, -np.inf))


def _nearest(points: np.ndarray) -> np.ndarray:
    # adding a half before the floor would round numbers just below a half upward
    whole = np.floor(points)
    return whole + (points - whole >= 0.5)
