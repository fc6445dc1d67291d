"""Opens whatever holds a table: the kind of object or the ending of a file decides."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError
from dpflows.table.schema import Schema
from dpflows.table.sources import (
    MAX_BYTES,
    Source,
    from_arrow,
    from_numpy,
    from_pandas,
    from_polars,
    read_ipc,
    read_parquet,
)
from dpflows.table.text import read_text
from dpflows.table.text_format import TextFormat

TEXT_ENDINGS = (".csv", ".tsv", ".txt")
PARQUET_ENDINGS = (".parquet",)
ARROW_ENDINGS = (".feather", ".arrow")


def open_source(
    source: Any, schema: Schema | None, header: bool | None, text: TextFormat
) -> Source:
    """Take a table of any accepted kind apart into columns."""
    if isinstance(source, str | os.PathLike):
        return from_path(source, schema, header, text)
    if header is not None:
        raise InputError("header is for text files; leave it out for tables in memory")
    if isinstance(source, np.ndarray):
        return from_numpy(source, schema)
    if isinstance(source, pa.Table):
        return from_arrow(source)
    library = type(source).__module__.partition(".")[0]
    if library in ("pandas", "polars"):
        return (from_pandas if library == "pandas" else from_polars)(source)
    raise InputError(
        "table must be a numpy array, a pandas, polars or pyarrow table, or a path, "
        f"got {type(source).__name__}; convert it"
    )


def from_path(path: Any, schema: Schema | None, header: bool | None, text: TextFormat) -> Source:
    """Read a file by its ending."""
    path = Path(path)
    ending = ending_of(path)
    if header is not None and ending not in TEXT_ENDINGS:
        raise InputError("header is for text files; leave it out for Parquet and Arrow files")
    with file_errors(path):
        check_file(path)
        if ending in TEXT_ENDINGS:
            return read_text(path, schema, header, text)
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
