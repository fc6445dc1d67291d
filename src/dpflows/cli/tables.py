"""Reading and writing of tables for the command line, and escaping of formulas.

A cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break is a formula to most
spreadsheets, and a formula can fetch addresses or start programs when the file is opened.
Labels come from the schema or from contributed rows, so they may contain formulas.
"""

import contextlib
import csv
import gzip
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from dpflows.errors import InputError
from dpflows.files import write_atomically
from dpflows.table.reading import read_table
from dpflows.table.schema import Schema

if TYPE_CHECKING:
    from dpflows.table.schema import Schema


#: Writes the next rows of a table.
Write = Callable[[pa.Table], None]

_SPOKEN = {"drop_extra=True": "--drop-extra", "pass header=False": "use --no-header"}


def read_rows(path: Path, schema: Schema, *, drop_extra: bool, no_header: bool) -> pa.Table:
    """Read a file and check it against a schema; the columns are those of the schema."""
    with spoken():
        table = read_table(path, schema, drop_extra=drop_extra, header=False if no_header else None)
    return pa.table(table.columns)


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """Rewrite Python arguments in an error message as command-line options.

    Example:
        >>> with spoken():
        ...     raise InputError("dropped only with drop_extra=True")
        Traceback (most recent call last):
        dpflows.errors.InputError: dropped only with --drop-extra
    """
    try:
        yield
    except InputError as error:
        line = str(error)
        for argument, option in _SPOKEN.items():
            line = line.replace(argument, option)
        raise InputError(line) from None


@contextlib.contextmanager
def write_table(path: Path, *, overwrite: bool = False) -> Iterator[Write]:
    """Write a table in chunks, atomically, in the format of the file name's ending.

    Args:
        path: The file.
        overwrite: Whether an existing file of that name may be overwritten.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows.csv"
        >>> with write_table(path) as write:
        ...     write(pa.table({"age": [30]}))
        ...     write(pa.table({"age": [40]}))
        >>> path.read_text().split()
        ['age', '30', '40']
    """
    ending = next(ending for ending in WRITERS if path.name.lower().endswith(ending))
    with write_atomically(path, overwrite=overwrite) as file, WRITERS[ending](file) as write:
        yield write


@contextlib.contextmanager
def _csv(file: Any) -> Iterator[Write]:
    with contextlib.ExitStack() as stack:
        writers: list[pyarrow.csv.CSVWriter] = []

        def write(rows: pa.Table) -> None:
            if not writers:
                file.write(_header(rows.column_names))
                options = pyarrow.csv.WriteOptions(include_header=False)
                writer = pyarrow.csv.CSVWriter(file, rows.schema, write_options=options)
                writers.append(stack.enter_context(writer))
            writers[0].write_table(rows)

        yield write


@contextlib.contextmanager
def _packed_csv(file: IO[bytes]) -> Iterator[Write]:
    # neither the temporary name nor the time belongs into the file
    packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0)
    with packed, _csv(packed) as write:
        yield write


@contextlib.contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Write]:
    with contextlib.ExitStack() as stack:
        writers: list[pyarrow.parquet.ParquetWriter] = []

        def write(rows: pa.Table) -> None:
            if not writers:
                writer = pyarrow.parquet.ParquetWriter(file, rows.schema)
                writers.append(stack.enter_context(writer))
            writers[0].write_table(rows)

        yield write


def _header(names: list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(names)
    return line.getvalue().encode("utf-8")


WRITERS: dict[str, Callable[[IO[bytes]], contextlib.AbstractContextManager[Write]]] = {
    ".csv": _csv,
    ".csv.gz": _packed_csv,
    ".parquet": _parquet,
}


#: The last four are the wide forms, which some languages' spreadsheets read alike.
FORMULA = r"^(?:\s*[=+\-@\uFF1D\uFF0B\uFF0D\uFF20]|[\t\r\n])"
#: A negative number is no formula.
NUMBER = r"^[+\-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+\-]?[0-9]+)?$"

_MARK = "'"


def begins_formula(text: str) -> bool:
    """Whether a spreadsheet would interpret the text as a formula.

    Example:
        >>> begins_formula("=1+1"), begins_formula("-1.5"), begins_formula("a=b")
        (True, False, False)
    """
    return bool(re.search(FORMULA, text)) and not re.search(NUMBER, text)


def escaped(rows: pa.Table) -> pa.Table:
    """The table with a quote before every text and column name that begins a formula.

    Example:
        >>> rows = pa.table({"=id": ["=1+1", "plain", "-3", None], "dose": [-1.0, 2, 3, 4]})
        >>> escaped(rows).to_pydict()["'=id"]
        ["'=1+1", 'plain', '-3', None]
    """
    columns = [_escaped(column) for column in rows.columns]
    names = [_MARK + name if begins_formula(name) else name for name in rows.column_names]
    return pa.table(columns, names=names)


def _escaped(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    is_number = pc.match_substring_regex(column, NUMBER)
    is_formula = pc.and_not(pc.match_substring_regex(column, _WIDE_IN_RE2), is_number)
    mark, nothing = pa.scalar(_MARK, column.type), pa.scalar("", column.type)
    marked = pc.binary_join_element_wise(mark, column, nothing)
    return pc.if_else(is_formula, marked, column)


# Arrow's expressions write characters by number in another way.
_WIDE_IN_RE2 = re.sub(r"\\u([0-9A-F]{4})", r"\\x{\1}", FORMULA)


def columns_with_formulas(schema: "Schema") -> list[str]:
    """The columns whose name or a label of which begins a formula; all are public.

    Example:
        >>> from dpflows.table.schema import Schema
        >>> columns_with_formulas(Schema.from_bounds([0], [1]))
        []
    """
    return [
        column.name
        for column in schema.columns
        if any(begins_formula(str(text)) for text in (column.name, *(column.categories or ())))
    ]
