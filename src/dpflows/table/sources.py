"""Where a table comes from: arrays, frames and binary files, each as named Arrow columns."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError
from dpflows.table.cells import explained
from dpflows.table.schema import Schema, default_names

#: The most that a file may hold once it is decompressed.
MAX_BYTES = 2**33
MAX_CELLS = 2**30

_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


@final
@dataclass(frozen=True, repr=False)
class Source:
    """Named columns as they came, not yet checked against a schema.

    Args:
        kind: What the table was: numpy, pandas, polars or arrow.
        names: The columns' names, which may be rows of a file without a header.
        cells: The columns.
        dtypes: The columns' types in the words of the library they came from.
        has_own_names: Whether the names came with the table.
        has_integer_labels: Whether a pandas frame named its columns by numbers.
        is_text: Whether cells came as text whose types are yet to be told.
    """

    kind: str
    names: tuple[str, ...]
    cells: list[pa.ChunkedArray]
    dtypes: tuple[str, ...] = ()
    has_own_names: bool = True
    has_integer_labels: bool = False
    is_text: bool = False


def check_cells(rows: int, columns: int) -> None:
    """Refuse tables that could not be held."""
    if rows == 0:
        raise InputError("table has no rows; expected at least one")
    if columns == 0:
        raise InputError("table has no columns; expected at least one")
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
        array = np.ma.filled(array.astype(float), np.nan)
    with explained("array must hold numbers of one type; convert it"):
        cells = [pa.chunked_array([_from_vector(column)]) for column in array.T]
    return Source("numpy", names, cells, (array.dtype.name,) * len(names), has_own_names=False)


def _from_vector(vector: np.ndarray) -> pa.Array:
    native = np.ascontiguousarray(vector, dtype=vector.dtype.newbyteorder("="))
    if native.dtype.kind == "f" and native.dtype.itemsize > 8:
        native = native.astype(np.float64)
    return pa.array(native, from_pandas=True)


def from_arrow(table: pa.Table) -> Source:
    """The columns of an Arrow table."""
    check_cells(table.num_rows, table.num_columns)
    # the library decodes names only when they are asked for
    with explained("table has a column whose name is not text in UTF-8; rename it"):
        names, dtypes = tuple(table.column_names), tuple(map(str, table.schema.types))
    return Source("arrow", names, table.columns, dtypes)


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
    return Source("polars", tuple(frame.columns), table.columns, tuple(map(str, frame.dtypes)))


def from_pandas(frame: Any) -> Source:
    """The columns of a pandas frame."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError("table must be a pandas DataFrame; for a Series use .to_frame()")
    if isinstance(frame.columns, pd.MultiIndex):
        raise InputError("pandas frame must have one level of column names; flatten them")
    check_cells(*frame.shape)
    cells = [_from_series(frame.iloc[:, i], i) for i in range(frame.shape[1])]
    return Source(
        "pandas",
        tuple(str(label) for label in frame.columns),
        cells,
        tuple(str(dtype) for dtype in frame.dtypes),
        has_integer_labels=bool(pd.api.types.is_integer_dtype(frame.columns.dtype)),
    )


def _from_series(series: Any, position: int) -> pa.ChunkedArray:
    message = f"column number {position + 1} holds mixed or unknown types; convert it to one type"
    with explained(message):
        array = pa.array(series, from_pandas=True)
        return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


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
        return pa.Table.from_batches(_within_limits(batches), reader.schema)


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
