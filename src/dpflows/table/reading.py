"""Rows checked against a schema.

Every mistake in a table is one ``InputError`` of one line. It names columns of the
schema and counts everything else: it quotes no cell, and no name that the schema
does not hold, because the first line of a file without a header is a row.
"""

import dataclasses
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from dpflows.errors import InputError, unchained
from dpflows.table.cells import count_outside, read_cells
from dpflows.table.columns import counted
from dpflows.table.forms import Form
from dpflows.table.opening import open_source
from dpflows.table.proposing import numeric_schema
from dpflows.table.schema import Schema, listed
from dpflows.table.sources import Source
from dpflows.table.text_format import TextFormat

__all__ = ["Form", "Table", "TextFormat", "read_file", "read_table"]


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
    opened = open_source(source, schema, header, text)
    schema = numeric_schema(opened, text) if schema is None else schema
    positions = _positions(opened, schema, drop_extra)
    columns = {
        column.name: read_cells(
            opened.cells[at], column, schema.label(column.name), text, opened.gaps
        )
        for column, at in zip(schema.columns, positions, strict=True)
    }
    outside = sum(count_outside(columns[column.name], column) for column in schema.columns)
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
