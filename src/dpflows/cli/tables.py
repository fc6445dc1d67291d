"""Tables on their way in and out of the command line."""

import contextlib
import csv
import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dpflows.errors import InputError
from dpflows.files import write_atomically
from dpflows.table.reading import read_table
from dpflows.table.schema import Schema

#: Writes the next rows of a table.
Write = Callable[[pa.Table], None]

_SPOKEN = {"drop_extra=True": "--drop-extra", "pass header=False": "use --no-header"}


def read_rows(path: Path, schema: Schema, *, drop_extra: bool, no_header: bool) -> pa.Table:
    """Rows of a file that fit a schema, as a table of the schema's columns."""
    with spoken():
        table = read_table(path, schema, drop_extra=drop_extra, header=False if no_header else None)
    return pa.table(table.columns)


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """Turn the arguments that a message recommends into options of the command line.

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
    """Write a table piece by piece, as the ending says: whole or not at all.

    Args:
        path: The file.
        overwrite: Whether another file of that name may be lost.

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
