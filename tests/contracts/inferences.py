"""What readers used to tell from all rows, planted again so that the property can catch it."""

import codecs
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from contracts.neighbours import Pair
from contracts.row_by_row import Inference, Reading
from contracts.text_files import MISSING, Dialect, Stored

#: Lines of text, as a dialect decodes them.
Lines = list[str]
NUMERIC = re.compile(r"\s*[+-]?[0-9.,]+([eE][+-]?\d+)?\s*")
DELIMITERS = ",;\t|"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def on_bytes(change: Callable[[list[bytes], Dialect], list[bytes]]) -> Inference:
    """A fault that changes the lines of text files before they are read."""

    def before(source: Any, pair: Pair) -> Any:
        lines = change(list(source.lines), pair.dialect)
        return pair.dialect.file(_names(source, pair), lines) if lines else source

    return Inference(before=before, concerns=_is_by_line)


def _is_by_line(pair: Pair) -> bool:
    return pair.dialect is not None and not pair.dialect.multiline


def _is_pandas(pair: Pair) -> bool:
    return pair.reader.startswith("pandas")


def on_lines(change: Callable[[Lines, Dialect], Lines]) -> Inference:
    """A fault that changes decoded lines; lines that it leaves alone keep their bytes."""

    def changed(lines: list[bytes], one: Dialect) -> list[bytes]:
        texts = [line.decode(one.codec, errors="replace") for line in lines]
        known = dict(zip(texts, lines, strict=True))
        return [known.get(text, one.encode(text)) for text in change(texts, one)]

    return on_bytes(changed)


def _names(source: Stored, pair: Pair) -> tuple[str, ...]:
    if pair.schema is not None:
        return pair.schema.names
    first = source.content.splitlines()[0].decode()
    return tuple(first.split(","))


# Text -----------------------------------------------------------------------------------


def decimal_commas(lines: Lines, one: Dialect) -> Lines:
    """Commas are decimal marks in a column whose cells all look like numbers."""
    rows = [line.split(one.delimiter) for line in lines]
    width = max(map(len, rows))
    for place in range(width):
        cells = [row[place] for row in rows if len(row) > place]
        if all(cell.strip() in MISSING or NUMERIC.fullmatch(cell) for cell in cells):
            for row in rows:
                row[place : place + 1] = [c.replace(",", ".") for c in row[place : place + 1]]
    return [one.delimiter.join(row) for row in rows]


def latin_1(lines: list[bytes], one: Dialect) -> list[bytes]:
    """A file that is not UTF-8 throughout is Latin-1 throughout."""
    if one.codec != "utf-8":
        return lines
    try:
        b"".join(lines).decode("utf-8")
    except UnicodeDecodeError:
        return [line.decode("latin-1").encode("utf-8") for line in lines]
    return lines


def sniffed_delimiter(lines: Lines, one: Dialect) -> Lines:
    """The delimiter is the commonest mark of the first row."""
    found = max(DELIMITERS, key=lambda mark: (lines[0].count(mark), mark == one.delimiter))
    if found == one.delimiter:
        return lines
    # what was a delimiter is now a character like others
    return [line.replace(one.delimiter, "_").replace(found, one.delimiter) for line in lines]


def quotes_over_lines(lines: Lines, one: Dialect) -> Lines:
    """A quote that is not closed goes on in the next line."""
    if not one.quote:
        return lines
    records, waiting = [], ""
    for line in lines:
        waiting = f"{waiting} {line}" if waiting else line
        if waiting.count(one.quote) % 2 == 0:
            records.append(waiting)
            waiting = ""
    return records + ([waiting] if waiting else [])


def no_blank_lines(lines: Lines, one: Dialect) -> Lines:
    """Blank lines are no rows."""
    return [line for line in lines if line.strip()]


def no_blank_end(lines: Lines, one: Dialect) -> Lines:
    """Blank lines at the end are no rows."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def header_by_looks(lines: Lines, one: Dialect) -> Lines:
    """A first line without a number holds names."""
    cells = lines[0].split(one.delimiter)
    looks = not one.header and not any(NUMERIC.fullmatch(cell) for cell in cells)
    return lines[1:] if looks else lines


def no_ragged_rows(lines: Lines, one: Dialect) -> Lines:
    """Rows of another length than most are left out."""
    lengths = [line.count(one.delimiter) for line in lines]
    usual = max(set(lengths), key=lengths.count)
    return [line for line, length in zip(lines, lengths, strict=True) if length == usual]


def byte_order(lines: list[bytes], one: Dialect) -> list[bytes]:
    """A file that starts like UTF-16 is UTF-16, whatever is declared."""
    if one.header or one.has_mark or not lines[0].startswith(UTF16_MARKS):
        return lines
    return b"\n".join(lines).decode("utf-16", errors="replace").encode("utf-8").split(b"\n")


def thousands_by_column(lines: Lines, one: Dialect) -> Lines:
    """Marks before three digits group thousands if all cells of a column allow it."""
    grouped = re.compile(r"-?\d{1,3}([.,]\d{3})*")
    rows = [line.split(one.delimiter) for line in lines]
    for place in range(max(map(len, rows))):
        cells = [row[place] for row in rows if len(row) > place]
        if all(cell.strip() in MISSING or grouped.fullmatch(cell) for cell in cells):
            for row in rows:
                row[place : place + 1] = [re.sub("[.,]", "", c) for c in row[place : place + 1]]
    return [one.delimiter.join(row) for row in rows]


# Tables of types ------------------------------------------------------------------------


def _dtypes(source: Any) -> list[str]:
    if isinstance(source, pd.DataFrame):
        return [str(dtype) for dtype in source.dtypes]
    if isinstance(source, pl.DataFrame):
        return [str(dtype) for dtype in source.dtypes]
    if isinstance(source, pa.Table):
        return [str(dtype) for dtype in source.schema.types]
    return [str(source.dtype)] if isinstance(source, np.ndarray) else []


def kept_dtypes(reading: Reading, source: Any, pair: Pair) -> Reading:
    """The form of the table holds the types that came in."""
    reading.header["form"] = {**reading.header["form"], "dtypes": _dtypes(source)}
    return reading


def kinds_from_cells(reading: Reading, source: Any, pair: Pair) -> Reading:
    """Without a schema, a column of whole numbers is an integer column."""
    for column in reading.header["schema"]["columns"]:
        values = reading.columns[column["name"]]
        column["kind"] = "integer" if (np.rint(values) == values).all() else "continuous"
    return reading


def days_from_cells(reading: Reading, source: Any, pair: Pair) -> Reading:
    """Dates that are all midnights have no time of day."""
    for column in reading.header["schema"]["columns"]:
        values = reading.columns[column["name"]]
        if column["kind"] == "date":
            present = values[~np.isnat(values)]
            are_days = (present == present.astype("datetime64[D]")).all()
            column["unit"] = "day" if are_days else "second"
    return reading


def one_type_per_column(reading: Reading, source: Any, pair: Pair) -> Reading:
    """One text in a pandas column of numbers, and none of its numbers is read."""
    for name, values in reading.columns.items():
        if values.dtype.kind == "f" and source[name].dtype == object:
            reading.columns[name] = np.full_like(values, np.nan)
    return reading


def labels_by_dtype(reading: Reading, source: Any, pair: Pair) -> Reading:
    """Whole numbers that a gap turned into floats are labels with a point."""
    for name, values in reading.columns.items():
        if values.dtype == object and source[name].dtype == float:
            marked = [v if v is None else f"{v}.0" for v in values.tolist()]
            reading.columns[name] = np.array(marked, dtype=object)
    return reading


def filled_with_mean(reading: Reading, source: Any, pair: Pair) -> Reading:
    """Missing numbers are filled with the mean of the others."""
    for name, values in reading.columns.items():
        if values.dtype.kind == "f" and np.isnan(values).any() and not np.isnan(values).all():
            reading.columns[name] = np.where(np.isnan(values), np.nanmean(values), values)
    return reading


#: Every inference by what it tells from the rows.
PLANTED: dict[str, Inference] = {
    "decimal commas by column": on_lines(decimal_commas),
    "thousands marks by column": on_lines(thousands_by_column),
    "Latin-1 for the whole file": on_bytes(latin_1),
    "byte order from the first row": on_bytes(byte_order),
    "delimiter from the first row": on_lines(sniffed_delimiter),
    "quotes over lines": on_lines(quotes_over_lines),
    "blank lines dropped": on_lines(no_blank_lines),
    "blank lines at the end dropped": on_lines(no_blank_end),
    "ragged rows dropped": on_lines(no_ragged_rows),
    "header by its looks": on_lines(header_by_looks),
    "kinds from cells": Inference(after=kinds_from_cells, concerns=lambda p: p.schema is None),
    "days from cells": Inference(after=days_from_cells),
    "types in the form": Inference(after=kept_dtypes, concerns=lambda p: not p.is_text),
    "one type per column": Inference(after=one_type_per_column, concerns=_is_pandas),
    "labels by the column's type": Inference(after=labels_by_dtype, concerns=_is_pandas),
    "gaps filled with the mean": Inference(after=filled_with_mean),
}
