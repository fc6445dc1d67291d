"""Schemas proposed for tables that came without one.

A proposal is told from the rows, so that one row can change it. It is meant for somebody who
checks it; nothing is fitted with it unseen.
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
from dpflows.table.cells import numbers_in_text, read_cells, seconds, trimmed
from dpflows.table.columns import DAY, MAX_CATEGORIES, Column, counted, is_missing
from dpflows.table.opening import TEXT_ENDINGS, check_file, ending_of, file_errors, open_source
from dpflows.table.records import grammar
from dpflows.table.scalars import MOMENT, NUMBER, TEXT, TRUTH, Cells, Raw, is_moment, sorted_cells
from dpflows.table.schema import Schema
from dpflows.table.sources import Source
from dpflows.table.text import decoded, load
from dpflows.table.text_format import AS_MISSING, TextFormat

#: A comma comes last: beside another delimiter it is more likely a decimal comma.
_BY_LIKELIHOOD = ";\t|,"


def numeric_schema(source: Source, text: TextFormat) -> Schema:
    """Names as they came; every column is continuous, whatever its cells and types are.

    Guarantee:
        Nothing in the schema depends on a row.
    """
    _check_names(source.names)
    columns = tuple(Column(name, "continuous") for name in source.names)
    return Schema(columns, names_read=source.has_own_names, text=text)


@unchained
def propose(frame: Any, *, read_values: bool = False) -> Schema:
    """What ``Schema.from_frame`` documents."""
    source, text = _opened(frame)
    _check_names(source.names)
    pairs = zip(source.names, source.cells, strict=True)
    columns = tuple(_column(name, cells, source.is_text, text) for name, cells in pairs)
    if read_values:
        columns = tuple(
            _with_values(cells, column, text)
            for cells, column in zip(source.cells, columns, strict=True)
        )
    return Schema(columns, values_read=read_values, text=text, is_proposed=True)


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


def _check_names(names: tuple[str, ...]) -> None:
    if unnamed := sum(not name for name in names):
        raise InputError(f"columns must have names, got {counted(unnamed, 'unnamed column')}; name")
    if repeated := len(names) - len(set(names)):
        raise InputError(f"names must differ, got {counted(repeated, 'repeated name')}; rename")


def _column(name: str, cells: Raw, is_text: bool, text: TextFormat) -> Column:
    if is_text:
        kind, are_days = _text_kind(cells, text)
    elif isinstance(cells, pa.ChunkedArray):
        kind, are_days = _kind(cells.type), pa.types.is_date(cells.type)
    else:
        kind, are_days = _vector_kind(cells)
    return Column(name, kind, unit=DAY if are_days else "")


def _kind(dtype: pa.DataType) -> str:
    if pa.types.is_dictionary(dtype):
        return "categorical"
    if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype) or pa.types.is_null(dtype):
        return "continuous"
    if pa.types.is_integer(dtype):
        return "integer"
    if pa.types.is_boolean(dtype):
        return "boolean"
    return "date" if is_moment(dtype) else "categorical"


def _vector_kind(vector: np.ndarray) -> tuple[str, bool]:
    """The kind of a column of numpy, and whether it holds days."""
    if vector.dtype != object:
        kinds = {"f": "continuous", "i": "integer", "u": "integer", "b": "boolean", "M": "date"}
        return kinds.get(vector.dtype.kind, "categorical"), vector.dtype == "datetime64[D]"
    sorts = {part.sort for part in sorted_cells(vector) if not _is_empty(part)}
    if len(sorts) > 1:
        return "categorical", False
    kinds = {NUMBER: "continuous", TRUTH: "boolean", MOMENT: "date", TEXT: "categorical"}
    kind = kinds.get(sorts.pop(), "categorical") if sorts else "continuous"
    return kind, kind == "date" and not any(isinstance(v, datetime.datetime) for v in vector)


def _is_empty(part: Cells) -> bool:
    return part.sort == NUMBER and bool(np.isnan(part.values).all())


def _text_kind(cells: pa.ChunkedArray, text: TextFormat) -> tuple[str, bool]:
    """The narrowest kind that all cells of a text file's column fit, and whether as days."""
    numbers, wrong = numbers_in_text(cells, text)
    if not wrong.any():
        present = numbers[~np.isnan(numbers)]
        is_whole = len(present) > 0 and np.isfinite(present).all() and (np.rint(present) == present)
        return "integer" if np.all(is_whole) else "continuous", False
    for kind in ("boolean", "date"):
        if _fits(cells, Column("x", kind, nullable=True), text):
            longest = pc.max(pc.utf8_length(trimmed(cells, text))).as_py()
            return kind, kind == "date" and longest <= len("2020-12-31")
    return "categorical", False


def _fits(cells: Raw, column: Column, text: TextFormat) -> bool:
    try:
        read_cells(cells, column, "a column", text)
    except InputError:
        return False
    return True


def _with_values(cells: Raw, column: Column, text: TextFormat) -> Column:
    nullable = dataclasses.replace(column, nullable=True)
    values = read_cells(cells, nullable, "a column", text)
    missing = is_missing(values)
    found = {"nullable": bool(missing.any())} | _domain(values[~missing], column)
    try:
        return dataclasses.replace(column, **found)
    except InputError:
        # constant or too wide: left undeclared, which fails closed later
        return dataclasses.replace(column, nullable=bool(missing.any()))


def _domain(present: np.ndarray, column: Column) -> dict[str, Any]:
    if len(present) == 0 or column.kind == "boolean":
        return {}
    if column.kind == "categorical":
        labels = tuple(sorted(set(present)))
        return {"categories": labels} if len(labels) <= MAX_CATEGORIES else {}
    if column.kind == "date":
        present = seconds(present)
        return {"min": float(np.floor(present.min())), "max": float(np.ceil(present.max()))}
    return {"min": float(present.min()), "max": float(present.max())}
