"""Where a table comes from: arrays, frames and binary files, each as named Arrow columns."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError
from dpflows.table.cells import explained
from dpflows.table.scalars import Raw
from dpflows.table.schema import Schema, check_width, default_names

#: The most that a file may hold once it is decompressed.
MAX_BYTES = 2**33
MAX_CELLS = 2**30

_MESSAGE_START = b"\xff\xff\xff\xff"
_STREAM_END = _MESSAGE_START + bytes(4)
#: Where the messages of an Arrow file begin.
_FILE_START = 8


@final
@dataclass(frozen=True, repr=False)
class Source:
    """Named columns as they came, not yet checked against a schema.

    Args:
        kind: What the table was: numpy, pandas, polars or arrow.
        names: The columns' names, which may be rows of a file without a header.
        cells: The columns.
        has_own_names: Whether the names came with the table.
        has_integer_labels: Whether a pandas frame named its columns by numbers.
        is_text: Whether cells came as text whose types are yet to be told.
        gaps: Numbers of rows whose cells could not be told apart; they are missing.
    """

    kind: str
    names: tuple[str, ...]
    cells: list[Raw]
    has_own_names: bool = True
    has_integer_labels: bool = False
    is_text: bool = False
    gaps: np.ndarray | None = None


def check_cells(rows: int, columns: int) -> None:
    """Refuse tables that could not be held."""
    if rows == 0:
        raise InputError("table has no rows; expected at least one")
    if columns == 0:
        raise InputError("table has no columns; expected at least one")
    check_width(columns)
    if rows * columns > MAX_CELLS:
        raise InputError(f"table must have at most {MAX_CELLS} cells; use fewer rows or columns")


def from_numpy(array: np.ndarray, schema: Schema | None) -> Source:
    """The columns of a two-dimensional array."""
    if array.dtype.names is not None:
        raise InputError("structured arrays are not accepted; pass a frame or a plain array")
    if array.ndim != 2:
        raise InputError(
            f"array must have two dimensions, rows and columns, got {array.ndim}; "
            "Reshape your data, for one column by array.reshape(-1, 1)"
        )
    check_cells(*array.shape)
    names = default_names(array.shape[1]) if schema is None else schema.names
    if len(names) != array.shape[1]:
        raise InputError(f"array has {array.shape[1]} columns, the schema declares {len(names)}")
    if isinstance(array, np.ma.MaskedArray):
        masked, array = np.ma.getmaskarray(array), array.data.astype(object)
        array[masked] = None
    if array.dtype.kind not in "fiubMUTO":
        raise InputError("array must hold numbers, text, booleans or dates; convert it")
    return Source("numpy", names, _vectors(array), has_own_names=False)


def _vectors(array: np.ndarray) -> list[Raw]:
    """The columns one by one, each in one piece of memory."""
    if array.dtype.kind == "U":
        # a type for words is as wide as the longest of them
        array = array.astype(object)
    return list(np.ascontiguousarray(array.T))


def from_arrow(table: pa.Table) -> Source:
    """The columns of an Arrow table."""
    check_cells(table.num_rows, table.num_columns)
    # the library decodes names only when they are asked for
    with explained("table has a column whose name is not text in UTF-8; rename it"):
        names = tuple(table.column_names)
    return Source("arrow", names, table.columns)


def from_polars(frame: Any) -> Source:
    """The columns of a polars frame."""
    import polars as pl

    if isinstance(frame, pl.LazyFrame):
        raise InputError("polars LazyFrame holds no rows yet; call .collect() first")
    if not isinstance(frame, pl.DataFrame):
        raise InputError("table must be a polars DataFrame; for a Series use .to_frame()")
    check_cells(frame.height, frame.width)
    with explained("polars frame has columns of a type that is not accepted; convert them"):
        table = frame.to_arrow()
    return Source("polars", tuple(frame.columns), table.columns)


def from_pandas(frame: Any) -> Source:
    """The columns of a pandas frame."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError("table must be a pandas DataFrame; for a Series use .to_frame()")
    if isinstance(frame.columns, pd.MultiIndex):
        raise InputError("pandas frame must have one level of column names; flatten them")
    check_cells(*frame.shape)
    return Source(
        "pandas",
        tuple(str(label) for label in frame.columns),
        [_from_series(series) for _, series in frame.items()],
        has_integer_labels=bool(pd.api.types.is_integer_dtype(frame.columns.dtype)),
    )


def _from_series(series: Any) -> Raw:
    """A column in its own type, or as objects where that type would tell of other rows."""
    held = getattr(series.dtype, "categories", series).dtype
    if held.kind != "O" or not isinstance(held, np.dtype):
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
            array = pa.array(series, from_pandas=True)
            return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    objects: np.ndarray = np.asarray(series.astype(object), dtype=object)
    return objects


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file whose sizes were checked first."""
    import pyarrow.parquet

    with (
        path.open("rb") as file,
        explained("file is damaged or not Parquet; get the file again"),
        pyarrow.parquet.ParquetFile(file) as parquet,
    ):
        size = parquet.metadata
        check_cells(size.num_rows, size.num_columns)
        groups = (size.row_group(i) for i in range(size.num_row_groups))
        if sum(group.total_byte_size for group in groups) > MAX_BYTES:
            raise InputError(f"file must hold at most {MAX_BYTES} bytes once unpacked; split it")
        table = parquet.read(use_threads=False)
        table.validate(full=True)
        if table.num_rows != size.num_rows:
            raise ValueError("the row groups do not hold as many rows as the file")
    return table


def read_ipc(path: Path) -> pa.Table:
    """Read an Arrow file or stream, which Feather files are too."""
    with path.open("rb") as file, explained("file is damaged or not Arrow; write it again"):
        is_stream = file.read(6) != b"ARROW1"
        if is_stream:
            _check_end(file)
        file.seek(0)
        reader = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(file)
        batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
        table = pa.Table.from_batches(_within_limits(batches), reader.schema)
        if not is_stream:
            _check_footer(file, reader.num_record_batches)
        elif file.read(1):
            # a damaged length, or another stream after this one, hides the rest of the rows
            raise ValueError("the stream ends before the file does")
        return table


def _check_footer(file: IO[bytes], listed: int) -> None:
    # rows of batches that a damaged footer leaves out would be lost
    file.seek(_FILE_START)
    if file.read(len(_MESSAGE_START)) != _MESSAGE_START:
        return  # Polars writes the schema in a form of its own, and no reader can follow it
    file.seek(_FILE_START)
    messages = pa.ipc.MessageReader.open_stream(file)
    if sum(message.type == "record batch" for message in messages) != listed:
        raise ValueError("the footer does not list the batches of the file")


def _check_end(file: IO[bytes]) -> None:
    # a stream that was cut between two batches reads like a shorter one
    file.seek(max(file.seek(0, os.SEEK_END) - len(_STREAM_END), 0))
    if file.read() != _STREAM_END:
        raise ValueError("the stream is not ended")


def _within_limits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    cells = size = 0
    for batch in batches:
        batch.validate(full=True)
        cells, size = cells + batch.num_rows * batch.num_columns, size + batch.nbytes
        if cells > MAX_CELLS or size > MAX_BYTES:
            raise InputError(
                f"file must hold at most {MAX_CELLS} cells, {MAX_BYTES} bytes; split it"
            )
        yield batch
