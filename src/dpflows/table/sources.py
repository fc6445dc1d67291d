"""Opens whatever holds a table: arrays, frames and files, each as named columns.

The type of an object, or the ending of a file's name, says how it is opened.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError
from dpflows.table.raw import (
    MAX_BYTES,
    Names,
    Raw,
    Source,
    check_cells,
    check_unpacked,
    default_names,
    explained,
)
from dpflows.table.text import read_text
from dpflows.table.text_format import TextFormat

TEXT_ENDINGS = (".csv", ".tsv", ".txt")
PARQUET_ENDINGS = (".parquet",)
ARROW_ENDINGS = (".feather", ".arrow")

_MESSAGE_START = b"\xff\xff\xff\xff"
_STREAM_END = _MESSAGE_START + bytes(4)
#: Where the messages of an Arrow file begin.
_FILE_START = 8


def open_source(
    source: Any, declared: Names | None, header: bool | None, text: TextFormat
) -> Source:
    """Take a table of any accepted kind apart into columns."""
    if isinstance(source, str | os.PathLike):
        return from_path(source, declared, header, text)
    if header is not None:
        raise InputError("header is for text files; leave it out for tables in memory")
    if isinstance(source, np.ndarray):
        return from_numpy(source, declared)
    if isinstance(source, pa.Table):
        return from_arrow(source)
    library = type(source).__module__.partition(".")[0]
    if library in ("pandas", "polars"):
        return (from_pandas if library == "pandas" else from_polars)(source)
    raise InputError(
        "table must be a numpy array, a pandas, polars or pyarrow table, or a path, "
        f"got {type(source).__name__}; convert it"
    )


def from_path(path: Any, declared: Names | None, header: bool | None, text: TextFormat) -> Source:
    """Read a file by its ending."""
    path = Path(path)
    ending = ending_of(path)
    if header is not None and ending not in TEXT_ENDINGS:
        raise InputError("header is for text files; leave it out for Parquet and Arrow files")
    with file_errors(path):
        check_file(path)
        if ending in TEXT_ENDINGS:
            return read_text(path, declared, header, text)
        return from_arrow(read_parquet(path) if ending in PARQUET_ENDINGS else read_ipc(path))


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be read."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise InputError(f"cannot read {str(path)!r}: {reason}; check the path") from None
    except MemoryError:
        raise InputError("the table does not fit into memory; use fewer rows or columns") from None


def ending_of(path: Path) -> str:
    """How the name of a table's file ends, without what says that it is packed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    ending = "".join(suffixes[-2:-1] if is_packed else suffixes[-1:])
    binary = () if is_packed else PARQUET_ENDINGS + ARROW_ENDINGS
    if ending not in TEXT_ENDINGS + binary:
        known = ", ".join(TEXT_ENDINGS + PARQUET_ENDINGS + ARROW_ENDINGS)
        raise InputError(
            f"file must end in {known}, or in .csv.gz, .tsv.gz or .txt.gz, "
            f"got {str(path)!r}; rename or export it"
        )
    return ending


def check_file(path: Path) -> None:
    """Refuse what is no file of a size that can be read."""
    # opening a pipe would wait for a writer, so the kind of file is asked first
    try:
        found = path.stat()
    except ValueError:
        raise InputError("path must not hold NUL characters; check the path") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise InputError(f"cannot read {str(path)!r}: it is {kind}; name a file")
    if found.st_size == 0:
        raise InputError("file is empty; expected a header line and rows")
    if found.st_size > MAX_BYTES:
        raise InputError(f"file must hold at most {MAX_BYTES} bytes; split it")


def from_numpy(array: np.ndarray, declared: Names | None) -> Source:
    """The columns of a two-dimensional array."""
    if array.dtype.names is not None:
        raise InputError("structured arrays are not accepted; pass a frame or a plain array")
    if array.ndim != 2:
        raise InputError(
            f"array must have two dimensions, rows and columns, got {array.ndim}; "
            "Reshape your data, for one column by array.reshape(-1, 1)"
        )
    check_cells(*array.shape)
    names = default_names(array.shape[1]) if declared is None else declared
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
    """A column in its own type, or as objects where that type would depend on other rows."""
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
        check_unpacked(cells, size)
        yield batch
