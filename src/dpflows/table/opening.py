"""Opens whatever holds a table: the kind of object or the ending of a file decides."""

import os
import stat
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

TEXT_ENDINGS = (".csv", ".tsv", ".txt")
PARQUET_ENDINGS = (".parquet",)
ARROW_ENDINGS = (".feather", ".arrow")


def open_source(source: Any, schema: Schema | None, header: bool | None) -> Source:
    """Take a table of any accepted kind apart into columns."""
    if isinstance(source, str | os.PathLike):
        return from_path(source, schema, header)
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


def from_path(path: Any, schema: Schema | None, header: bool | None) -> Source:
    """Read a file by its ending."""
    path = Path(path)
    ending = _ending(path)
    if header is not None and ending not in TEXT_ENDINGS:
        raise InputError("header is for text files; leave it out for Parquet and Arrow files")
    try:
        _check_file(path)
        if ending in TEXT_ENDINGS:
            return read_text(path, schema, header)
        return from_arrow(read_parquet(path) if ending in PARQUET_ENDINGS else read_ipc(path))
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise InputError(f"cannot read {str(path)!r}: {reason}; check the path") from None
    except MemoryError:
        raise InputError("the table does not fit into memory; use fewer rows or columns") from None


def _ending(path: Path) -> str:
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


def _check_file(path: Path) -> None:
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
