"""Proposals for a schema, inferred from the rows.

One row can change a proposal. It is meant for somebody who checks it; nothing is fitted with it
unseen.
"""

import codecs
import dataclasses
import datetime
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpflows.errors import InputError, unchained
from dpflows.table.columns import Column, check_names, read_cells
from dpflows.table.kinds import KINDS
from dpflows.table.kinds.numbers import numbers_in_text
from dpflows.table.raw import (
    AS_MISSING,
    MOMENT,
    NUMBER,
    TRUTH,
    Cells,
    Raw,
    Source,
    TextFormat,
    is_missing,
    sorted_cells,
)
from dpflows.table.sources import (
    TEXT_ENDINGS,
    check_file,
    decoded,
    ending_of,
    file_errors,
    grammar,
    load,
    open_source,
)

#: A comma comes last: beside another delimiter it is more likely a decimal comma.
_BY_LIKELIHOOD = ";\t|,"


@unchained
def propose(frame: Any, *, read_values: bool = False) -> tuple[tuple[Column, ...], TextFormat]:
    """What ``Schema.from_frame`` documents: the columns, and how text seems to be written."""
    source, text = _opened(frame)
    check_names(source.names)
    pairs = list(zip(source.names, source.cells, strict=True))
    columns = tuple(_proposed(name, cells, source.is_text, text) for name, cells in pairs)
    if read_values:
        columns = tuple(
            _with_values(cells, column, text)
            for cells, column in zip(source.cells, columns, strict=True)
        )
    return columns, text


def _opened(frame: Any) -> tuple[Source, TextFormat]:
    """The table, and how its text seems to be written."""
    is_path = isinstance(frame, str | os.PathLike)
    if not is_path or ending_of(Path(frame)) not in TEXT_ENDINGS:
        return open_source(frame, None, None, TextFormat()), TextFormat()
    path = Path(frame)
    with file_errors(path):
        check_file(path)
        content = load(path, TextFormat(unreadable=AS_MISSING))
    text = _guessed(content, path)
    source = open_source(path, None, None, text)
    if b'"' in content or text.delimiter is not None:
        # elsewhere no cell can hold a comma
        text = dataclasses.replace(text, decimal=_decimal(source.cells, text))
    return source, text


def _guessed(content: bytes, path: Path) -> TextFormat:
    """The encoding, the delimiter, and whether cells hold line ends, as the file looks."""
    text = TextFormat(encoding=_encoding(content))
    content = decoded(content, text)[0].lstrip(b" \r\n")
    first = content.partition(b"\n")[0].decode("utf-8", errors="replace")
    bare = re.sub(r'"[^"]*"', "", first)
    delimiter = max(_BY_LIKELIHOOD, key=bare.count) if bare else ","
    if delimiter != text.delimiter_of(path):
        text = dataclasses.replace(text, delimiter=delimiter)
    return dataclasses.replace(text, multiline=_is_multiline(content, text, delimiter))


def _encoding(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return next(name for name in ("utf-8", "cp1252", "latin-1") if _decodes(content, name))


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_multiline(content: bytes, text: TextFormat, delimiter: str) -> bool:
    """Whether quotes are balanced over the file, but not on every line."""
    if b'"' not in content:
        return False
    lines, whole = (
        re.compile(b"(?:" + grammar(dataclasses.replace(text, multiline=m), delimiter) + b")*+")
        for m in (False, True)
    )
    content = content.rstrip(b"\r\n") + b"\n"
    return not lines.fullmatch(content) and bool(whole.fullmatch(content))


def _decimal(columns: list[Raw], text: TextFormat) -> str:
    """A comma where numbers are written with commas and none with a point."""
    comma = dataclasses.replace(text, decimal=",")
    with_points, with_commas = False, False
    for cells in columns:
        if not _are_numbers(cells, text):
            with_commas |= _are_numbers(cells, comma)
        elif pc.any(pc.match_substring(cells, ".")).as_py():
            with_points = True
    return "," if with_commas and not with_points else text.decimal


def _are_numbers(cells: Raw, text: TextFormat) -> bool:
    return not numbers_in_text(cells, text)[1].any()


def _proposed(name: str, cells: Raw, is_text: bool, text: TextFormat) -> Column:
    """The column as the first kind declares it that all cells fit, narrow kinds first."""
    dtype = None if is_text else _type_of(cells)
    for kind in sorted(KINDS.values(), key=lambda one: one.precedence):
        if dtype is None:
            found = kind.proposed_by_text(cells, text)
        else:
            found = kind.proposed_by_type(dtype)
        if found is not None:
            return Column(name, kind.name, **found)
    raise InputError(f"column {name!r} is of no kind that is known; convert it")


def _type_of(cells: Raw) -> pa.DataType:
    """The Arrow type that says what a column holds; that of text where cells differ."""
    if isinstance(cells, pa.ChunkedArray):
        return cells.type
    if cells.dtype != object:
        moments = pa.date32() if cells.dtype == "datetime64[D]" else pa.timestamp("us")
        return {"M": moments}.get(cells.dtype.kind) or _ARROW_TYPES.get(
            cells.dtype.kind, pa.string()
        )
    sorts = {part.sort for part in sorted_cells(cells) if not _is_empty(part)}
    if len(sorts) > 1:
        return pa.string()
    have_times = any(isinstance(value, datetime.datetime) for value in cells)
    moments = pa.timestamp("us") if have_times else pa.date32()
    types = {NUMBER: pa.float64(), TRUTH: pa.bool_(), MOMENT: moments}
    return types.get(sorts.pop(), pa.string()) if sorts else pa.null()


#: What the types of numpy, by their letters, are for Arrow; the rest is text.
_ARROW_TYPES = {"f": pa.float64(), "i": pa.int64(), "u": pa.int64(), "b": pa.bool_()}


def _is_empty(part: Cells) -> bool:
    return part.sort == NUMBER and bool(np.isnan(part.values).all())


def _with_values(cells: Raw, column: Column, text: TextFormat) -> Column:
    nullable = dataclasses.replace(column, nullable=True)
    values = read_cells(cells, nullable, "a column", text)
    missing = is_missing(values)
    present = values[~missing]
    domain = column.rules.domain(present) if len(present) else {}
    try:
        return dataclasses.replace(column, nullable=bool(missing.any()), **domain)
    except InputError:
        # constant or too wide: left undeclared, which fails closed later
        return dataclasses.replace(column, nullable=bool(missing.any()))
