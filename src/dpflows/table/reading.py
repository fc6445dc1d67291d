"""Rows checked against a schema, encoded as points or bins, and given back as they came.

Every mistake in a table is one ``InputError`` of one line. It names columns of the
schema and counts everything else: it quotes no cell, and no name that the schema
does not hold, because the first line of a file without a header is a row.

An encoding follows from the schema alone: rows are points of a box, or numbers of bins.
"""

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError, unchained
from dpflows.table.bins import FinestBins, Uniforms
from dpflows.table.columns import Column, check_names, read_cells
from dpflows.table.kinds.base import CATEGORIES, KEYS
from dpflows.table.raw import Source, TextFormat, counted
from dpflows.table.schema import Schema, listed
from dpflows.table.sources import open_source

__all__ = ["Form", "Table", "TextFormat", "read_file", "read_table"]

FORMS = ("numpy", "pandas", "polars", "arrow")


@final
@dataclass(frozen=True)
class Form:
    """What library a table came from, without any of its rows or types.

    Args:
        kind: One of ``FORMS``.
        has_integer_labels: Whether a pandas frame named its columns by numbers.

    Guarantee:
        The types of columns that come out follow from the schema alone. Those that came in
        are not kept: one row can change them.

    Example:
        >>> schema = Schema((Column("x0", "integer", min=0, max=9),))
        >>> Form("pandas").frame({"x0": np.array([3.0])}, schema).dtypes.tolist()
        [dtype('int64')]
    """

    kind: str
    has_integer_labels: bool = False

    def __post_init__(self) -> None:
        if self.kind not in FORMS:
            raise InputError(f"kind of table must be one of {', '.join(FORMS)}")

    @classmethod
    def of(cls, source: Source) -> "Form":
        """The form of a table."""
        return cls(source.kind, source.has_integer_labels)

    @classmethod
    def from_dict(cls, description: Any) -> "Form":
        """Read back ``to_dict``; the content may be hostile.

        Files of version 0.1 also name types of columns, which are left aside.
        """
        if not isinstance(description, dict):
            raise InputError("form of the table must be a dictionary")
        kind, labels = description.get("kind"), description.get("has_integer_labels", False)
        if not isinstance(kind, str) or type(labels) is not bool:
            raise InputError("form of the table must hold a kind and a flag")
        return cls(kind, labels)

    def to_dict(self) -> dict[str, Any]:
        """The form as plain JSON."""
        return asdict(self)

    def frame(self, columns: Mapping[str, np.ndarray], schema: Schema) -> Any:
        """Columns as the kind of table that came in, each with the type of its kind."""
        cells = [column.rules.to_arrow(columns[column.name]) for column in schema.columns]
        return _BUILDERS[self.kind](cells, schema.columns, self)

    def label(self, name: str) -> str | int:
        """A pandas frame's own label of a column."""
        return int(name) if self.has_integer_labels and name.lstrip("-").isdecimal() else name


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table that fit its schema.

    Args:
        columns: Cells by column in the schema's order: float64 for numbers, text,
            booleans or dates for the other kinds.
        schema: What the columns mean.
        form: The kind of table that came in.
        outside: How many cells lie outside the declared bounds or categories. It is
            read from the rows, so it is internal and never printed by default.

    Example:
        >>> read_table(np.array([[1.0, 2.0]]), Schema.from_bounds([0, 0], 1)).outside
        1
    """

    columns: dict[str, np.ndarray] = field(repr=False)
    schema: Schema
    form: Form
    outside: int = field(repr=False)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    @property
    def matrix(self) -> np.ndarray:
        """The cells as float64, one row per row; only for numeric columns.

        Raises:
            InputError: a column is not filled with numbers.
        """
        self.schema.require_numbers()
        return np.column_stack(list(self.columns.values()))


@unchained
def read_table(
    source: Any,
    schema: Schema | None = None,
    *,
    drop_extra: bool = False,
    header: bool | None = None,
    text: TextFormat | None = None,
) -> Table:
    """Read an array, a frame or a file, and check it against a schema.

    Args:
        source: A two-dimensional numpy array, a pandas, polars or pyarrow table, or the
            path of a ``.csv``, ``.tsv``, ``.txt`` (also ``.gz``), ``.parquet``,
            ``.feather`` or ``.arrow`` file.
        schema: What the columns mean; without it every column is continuous.
        drop_extra: Leave out columns that the schema does not declare.
        header: Whether a text file's first line holds names, instead of what is declared.
        text: How cells of text are written, instead of what the schema declares.

    Guarantee:
        A cell's value depends on that cell, on its own line in a text file, and on what is
        declared: not on other rows, nor on a type that other rows gave the column. What
        breaks the declaration is refused, which depends on the rows and is outside any
        privacy guarantee, or, with ``unreadable="missing"``, a missing cell of its row.
        Messages quote neither a cell nor a name that is not in the schema. Cells outside
        the bounds are kept: the encoding moves them to the nearest bound.

    Example:
        >>> table = read_table(np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> table.rows, table.schema.names
        (2, ('x0', 'x1'))
    """
    if schema is not None and text is not None:
        schema = dataclasses.replace(schema, text=text)
    text = text or (TextFormat() if schema is None else schema.text)
    opened = open_source(source, None if schema is None else schema.names, header, text)
    schema = _numeric_schema(opened, text) if schema is None else schema
    positions = _positions(opened, schema, drop_extra)
    columns = {
        column.name: read_cells(
            opened.cells[at], column, schema.label(column.name), text, opened.gaps
        )
        for column, at in zip(schema.columns, positions, strict=True)
    }
    outside = sum(int(c.rules.outside(columns[c.name]).sum()) for c in schema.columns)
    return Table(columns, schema, Form.of(opened), outside)


def read_file(
    path: str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    drop_extra: bool = False,
    header: bool | None = None,
    text: TextFormat | None = None,
) -> Table:
    r"""Read a table from a file; see ``read_table``.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/doses.csv"
        >>> with open(path, "w") as file:
        ...     _ = file.write("dose;age\n1,5;30\n2,5;40\n")
        >>> read_file(path, text=TextFormat(delimiter=";", decimal=",")).columns["dose"].tolist()
        [1.5, 2.5]
    """
    return read_table(Path(path), schema, drop_extra=drop_extra, header=header, text=text)


def _positions(source: Source, schema: Schema, drop_extra: bool) -> list[int]:
    """Where each column of the schema stands in the source."""
    places = {name: at for at, name in enumerate(source.names)}
    counts = Counter(source.names) if len(places) < len(source.names) else {}
    if repeated := [name for name in schema.names if counts.get(name, 1) > 1]:
        raise InputError(f"table has more than one column of the name {listed(repeated)}; rename")
    if missing := [name for name in schema.names if name not in places]:
        raise InputError(
            f"table lacks columns that the schema declares: {listed(missing)}; "
            "add them or take them out of the schema"
        )
    extra = len(source.names) - len(schema.names)
    if extra and not drop_extra:
        raise InputError(
            f"table has {counted(extra, 'column')} that the schema does not declare; declare or "
            "drop them: unused columns are dropped only with drop_extra=True"
        )
    return [places[name] for name in schema.names]


def _numeric_schema(source: Source, text: TextFormat) -> Schema:
    """Names as they came; every column is continuous, whatever its cells and types are.

    Guarantee:
        Nothing in the schema depends on a row.
    """
    check_names(source.names)
    columns = tuple(Column(name, "continuous") for name in source.names)
    return Schema(columns, names_read=source.has_own_names, text=text)


def _numpy_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> np.ndarray:
    """Float64 if all columns are numbers, and objects otherwise."""
    if all(column.rules.is_number for column in columns):
        return np.column_stack([_vector(array).astype(np.float64) for array in cells])
    return np.column_stack([_objects(array) for array in cells])


def _vector(array: pa.Array) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


def _objects(array: pa.Array) -> np.ndarray:
    objects = np.empty(len(array), dtype=object)
    objects[:] = array.to_pylist()
    return objects


def _pandas_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    import pandas as pd

    series = {
        form.label(column.name): _series(array, column)
        for array, column in zip(cells, columns, strict=True)
    }
    return pd.DataFrame(series)


def _series(array: pa.Array, column: Column) -> Any:
    import pandas as pd

    if pa.types.is_date(array.type):
        # pandas has no type for days: they are midnights
        array = array.cast(pa.timestamp("s"))
    if column.rules.pandas_type is None:
        return pd.Series(_vector(array))
    own: Any = pd.api.types.pandas_dtype(column.rules.pandas_type)
    if isinstance(own, np.dtype):
        return pd.Series(_vector(array).astype(own))
    return pd.Series(own.__from_arrow__(pa.chunked_array([array])))


def _polars_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    try:
        import polars as pl
    except ImportError:
        raise InputError("polars is not installed; run: pip install polars") from None
    pairs = zip(cells, columns, strict=True)
    return pl.DataFrame([pl.Series(column.name, array) for array, column in pairs])


def _arrow_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    arrays = [a.cast(pa.string()) if pa.types.is_large_string(a.type) else a for a in cells]
    return pa.table(arrays, names=[column.name for column in columns])


_BUILDERS: dict[str, Callable[[list[pa.Array], tuple[Column, ...], Form], Any]] = {
    "numpy": _numpy_frame,
    "pandas": _pandas_frame,
    "polars": _polars_frame,
    "arrow": _arrow_frame,
}


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
