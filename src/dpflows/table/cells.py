"""What a cell must be to fit what its schema declares, one cell by one.

A message says how many cells are wrong and where the first one stands. It never
quotes a cell, and never passes on the text of a library, which might.
"""

import contextlib
import datetime
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpflows.errors import InputError
from dpflows.table.columns import Column, counted, is_missing
from dpflows.table.scalars import (
    MOMENT,
    NUMBER,
    TEXT,
    TRUTH,
    Cells,
    Raw,
    microseconds,
    sorted_cells,
)
from dpflows.table.text_format import PLAIN, TextFormat

_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")
#: From here on neighbouring whole numbers share a float, so that they are no labels.
_MOST_LABEL = 2.0**53
_ISO = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d([.,]\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII
)

#: What is wrong with a cell: nothing, its form, its size, or its fraction.
_FINE, _FORM, _INFINITE, _FRACTION = range(4)
_ADVICE = (
    "correct them, or declare in the schema their kind, how they are written ([text]), or "
    'unreadable = "missing"'
)
_FILL = "fill them, drop their rows, or declare nullable = true (DPDensity models missing cells)"

#: Values of a part of a column, and what is wrong with each.
Reading = tuple[np.ndarray, np.ndarray]


@contextlib.contextmanager
def explained(message: str) -> Iterator[None]:
    """Turn whatever a library raises into one line that quotes nothing."""
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError("the table does not fit into memory; use fewer rows or columns") from None
    except Exception:  # a library's message may hold cells, whatever its class
        raise InputError(message) from None


def read_cells(
    raw: Raw,
    column: Column,
    label: str,
    text: TextFormat = PLAIN,
    gaps: np.ndarray | None = None,
) -> np.ndarray:
    """One column as float64, text, booleans or dates; missing where that is declared.

    Args:
        raw: The cells.
        column: What they mean.
        label: How a message speaks of the column.
        text: How cells of text are written.
        gaps: Numbers of rows whose cells could not be told apart, which are missing.

    Guarantee:
        Each value depends on its own cell and on declarations alone.
    """
    with explained(f"{label} has a type that is not accepted as {column.kind}; convert it"):
        parts = _sorted(raw, label)
        values, wrong = _merged(parts, len(raw), column, text)
    if gaps is not None:
        values[gaps], wrong[gaps] = _NOTHING[column.kind], _FINE
    if text.makes_missing:
        values[wrong != _FINE] = _NOTHING[column.kind]
    else:
        _refuse_wrong(wrong, column, label, text)
    if not column.nullable:
        what = "must be filled, got {cells} without a value (NaN)"
        _refuse(is_missing(values), label, what, _FILL)
        return values.astype(bool) if column.kind == "boolean" else values
    return values


def _sorted(raw: Raw, label: str) -> list[Cells]:
    try:
        return sorted_cells(raw)
    except InputError:
        message = f"{label} has a type that tables may not have; convert it"
    raise InputError(message)


def _merged(parts: list[Cells], rows: int, column: Column, text: TextFormat) -> Reading:
    """The values of all parts, each in its place."""
    if len(parts) == 1 and parts[0].at is None:
        return _read(parts[0], rows, column, text)
    values = np.full(rows, _NOTHING[column.kind], dtype=_DTYPES[column.kind])
    wrong = np.zeros(rows, dtype=np.uint8)
    for part in parts:
        places = np.arange(rows) if part.at is None else part.at
        values[places], wrong[places] = _read(part, len(places), column, text)
    return values, wrong


def _read(part: Cells, rows: int, column: Column, text: TextFormat) -> Reading:
    reader = _READERS[column.kind].get(part.sort)
    if reader is None:
        values = np.full(rows, _NOTHING[column.kind], dtype=_DTYPES[column.kind])
        return values, np.where(_is_gap(part, rows), _FINE, _FORM).astype(np.uint8)
    values, wrong = reader(part.values, column, text)
    if part.wrong is not None:
        wrong = np.where(part.wrong, np.uint8(_FORM), wrong)
    return values, wrong


def _is_gap(part: Cells, rows: int) -> np.ndarray:
    """Which cells of a sort that the kind does not know hold nothing at all."""
    if part.sort in (NUMBER, MOMENT):
        gaps: np.ndarray = is_missing(part.values)
        return gaps if part.wrong is None else gaps & ~part.wrong
    if part.sort == TRUTH:
        return _to_numpy(part.values.is_null()).astype(bool)
    return np.zeros(rows, dtype=bool)


def count_outside(values: np.ndarray, column: Column) -> int:
    """How many cells lie outside what the schema declares."""
    if column.kind == "categorical":
        if column.categories is None:
            return 0
        known = {*column.categories, None}
        return sum(value not in known for value in values)
    if column.min is None or column.max is None:
        return 0
    low, high = column.min, column.max
    numbers = in_units(values, column)
    return int(np.count_nonzero((numbers < low) | (numbers > high)))


def in_units(values: np.ndarray, column: Column) -> np.ndarray:
    """Numbers as they are; moments as the seconds at which their second, or day, begins."""
    if column.kind != "date":
        return values
    unit = 86_400 if column.counts_days else 1
    return np.floor(seconds(values) / unit) * unit


def seconds(dates: np.ndarray) -> np.ndarray:
    """Dates as seconds since 1970 began; missing ones are not numbers."""
    numbers = dates.astype("datetime64[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(dates), np.nan, numbers)


def trimmed(cells: pa.ChunkedArray, text: TextFormat, labels: tuple[str, ...] = ()) -> Any:
    """Text without blanks around it, and nothing where it says that nothing is there."""
    bare = pc.utf8_trim_whitespace(cells)
    marks = pa.array([mark for mark in text.missing if mark not in labels], bare.type)
    return pc.if_else(pc.is_in(bare, value_set=marks), pa.scalar(None, bare.type), bare)


def numbers_in_text(cells: pa.ChunkedArray, text: TextFormat) -> Reading:
    """Cells of text as numbers.

    Example:
        >>> cells = pa.chunked_array([pa.array(["1.000,5", "1,5", "1.5"], pa.large_string())])
        >>> numbers_in_text(cells, TextFormat(decimal=",", thousands="."))[0].tolist()
        [1000.5, 1.5, nan]
    """
    plain = _plain_numbers(cells) if _is_plain(text) else None
    if plain is not None:
        return plain, np.zeros(len(plain), dtype=np.uint8)
    bare = trimmed(cells, text)
    fits = pc.match_substring_regex(bare, _number_pattern(text))
    known = pc.if_else(pc.fill_null(fits, False), bare, pa.scalar(None, bare.type))
    if text.thousands:
        known = pc.replace_substring(known, text.thousands, "")
    if text.decimal != ".":
        known = pc.replace_substring(known, text.decimal, ".")
    values = _to_numpy(known.cast(pa.float64()))
    wrong = np.where(_to_numpy(pc.fill_null(fits, True)).astype(bool), _FINE, _FORM)
    return values.copy(), wrong.astype(np.uint8)


def _plain_numbers(cells: pa.ChunkedArray) -> np.ndarray | None:
    """Numbers as programs write them; None where a cell is anything else."""
    try:
        values = _to_numpy(cells.cast(pa.float64()))
    except pa.ArrowInvalid:
        return None
    return values.copy() if np.isfinite(values).all() else None


@functools.lru_cache(maxsize=64)
def _is_plain(text: TextFormat) -> bool:
    """Whether a cell that a program reads as a number is that number by declaration, too."""
    is_number = re.compile(_number_pattern(PLAIN), re.ASCII)
    return text.decimal == "." and not any(is_number.match(mark.strip()) for mark in text.missing)


@functools.lru_cache(maxsize=64)
def _number_pattern(text: TextFormat) -> str:
    mark, group = re.escape(text.decimal), re.escape(text.thousands)
    whole = f"([0-9]{{1,3}}({group}[0-9]{{3}})+|[0-9]+)" if group else "[0-9]+"
    number = rf"({whole}({mark}[0-9]*)?|{mark}[0-9]+)([eE][+-]?[0-9]+)?"
    return rf"^[+-]?({number}|(?i:inf|infinity))$"


def _finite(values: np.ndarray, wrong: np.ndarray) -> Reading:
    return values, np.where(np.isinf(values), np.uint8(_INFINITE), wrong)


def _whole(reading: Reading) -> Reading:
    values, wrong = reading
    is_fraction = np.isfinite(values) & (np.rint(values) != values)
    return values, np.where(is_fraction, np.uint8(_FRACTION), wrong)


def _number_of_number(values: np.ndarray, column: Column, text: TextFormat) -> Reading:
    # one and the same nothing, whatever bits it came with
    return _finite(np.where(np.isnan(values), np.nan, values), np.zeros(len(values), np.uint8))


def _number_of_text(cells: Any, column: Column, text: TextFormat) -> Reading:
    return _finite(*numbers_in_text(cells, text))


def _number_of_truth(cells: Any, column: Column, text: TextFormat) -> Reading:
    return _fine(_to_numpy(cells.cast(pa.uint8()).cast(pa.float64())).copy())


def _fine(values: np.ndarray) -> Reading:
    return values, np.zeros(len(values), dtype=np.uint8)


def _whole_of(reader: Callable[[Any, Column, TextFormat], Reading]) -> Callable[..., Reading]:
    return lambda cells, column, text: _whole(reader(cells, column, text))


def _label_of_text(cells: Any, column: Column, text: TextFormat) -> Reading:
    """Text without blanks around it, but for labels that are declared with them."""
    declared = column.categories or ()
    exact = pc.is_in(cells, value_set=pa.array(declared, cells.type))
    labels = pc.if_else(exact, cells, trimmed(cells, text, declared))
    return _fine(_to_numpy(labels).astype(object))


def _label_of_number(values: np.ndarray, column: Column, text: TextFormat) -> Reading:
    """Whole numbers as digits, by whatever type they came."""
    missing = np.isnan(values)
    wrong = ~missing & ~((np.abs(values) < _MOST_LABEL) & (np.rint(values) == values))
    whole = np.where(missing | wrong, 0.0, values).astype(np.int64)
    labels = _to_numpy(pa.array(whole).cast(pa.large_string())).astype(object)
    labels[missing | wrong] = None
    return labels, np.where(wrong, _FORM, _FINE).astype(np.uint8)


def _label_of_truth(cells: Any, column: Column, text: TextFormat) -> Reading:
    return _fine(_to_numpy(cells.cast(pa.large_string())).astype(object))


def _truth_of_truth(cells: Any, column: Column, text: TextFormat) -> Reading:
    return _fine(_to_numpy(cells).astype(object))


def _truth_of_text(cells: Any, column: Column, text: TextFormat) -> Reading:
    words = pc.utf8_lower(trimmed(cells, text))
    true = pc.is_in(words, value_set=pa.array(_TRUE, words.type))
    false = pc.is_in(words, value_set=pa.array(_FALSE, words.type))
    missing, is_true, is_false = (_to_numpy(a).astype(bool) for a in (words.is_null(), true, false))
    return _truths(is_true, is_false, missing)


def _truth_of_number(values: np.ndarray, column: Column, text: TextFormat) -> Reading:
    return _truths(values == 1, values == 0, np.isnan(values))


def _truths(is_true: np.ndarray, is_false: np.ndarray, missing: np.ndarray) -> Reading:
    truths = is_true.astype(object)
    truths[~(is_true | is_false)] = None
    return truths, np.where(is_true | is_false | missing, _FINE, _FORM).astype(np.uint8)


def _date_of_moment(values: np.ndarray, column: Column, text: TextFormat) -> Reading:
    return _fine(values.copy())


def _date_of_text(cells: Any, column: Column, text: TextFormat) -> Reading:
    bare = trimmed(cells, text)
    bare = bare.combine_chunks() if isinstance(bare, pa.ChunkedArray) else bare
    words = bare.dictionary_encode()
    found = [_parsed(word, text.date_formats) for word in words.dictionary.to_pylist()]
    dates = np.array([np.datetime64("NaT") if m is None else m for m in found], "datetime64[us]")
    missing = _to_numpy(words.is_null()).astype(bool)
    places = _to_numpy(words.indices.fill_null(0))
    values = np.full(len(places), np.datetime64("NaT"), dtype="datetime64[us]")
    values[~missing] = dates[places[~missing]]
    wrong = ~missing & np.isnat(values)
    return values, np.where(wrong, _FORM, _FINE).astype(np.uint8)


def _parsed(word: str, formats: tuple[str, ...]) -> int | None:
    """A date as microseconds since 1970 began; None if it is not written as declared."""
    if not formats:
        return _moment(datetime.datetime.fromisoformat, word) if _ISO.fullmatch(word) else None
    tries = (_moment(_strptime(form), word) for form in formats)
    return next((found for found in tries if found is not None), None)


def _strptime(form: str) -> Callable[[str], datetime.datetime]:
    return lambda word: datetime.datetime.strptime(word, form)


def _moment(parse: Callable[[str], datetime.datetime], word: str) -> int | None:
    try:
        return microseconds(parse(word))
    except (ValueError, OverflowError):
        return None


def _to_numpy(cells: Any) -> np.ndarray:
    if isinstance(cells, pa.ChunkedArray):
        return cells.to_numpy()
    return cells.to_numpy(zero_copy_only=False)


def _refuse_wrong(wrong: np.ndarray, column: Column, label: str, text: TextFormat) -> None:
    if not wrong.any():
        return
    _refuse(wrong == _FORM, label, _form_of(column, text), _ADVICE)
    what = "must hold finite numbers, got {cells} that are infinite (inf)"
    _refuse(wrong == _INFINITE, label, what, "correct them")
    what = "is declared integer, got {cells} with a fraction"
    _refuse(wrong == _FRACTION, label, what, 'round them or declare kind = "continuous"')


def _form_of(column: Column, text: TextFormat) -> str:
    dates = "dates in the declared formats" if text.date_formats else "dates such as 2020-12-31"
    things = {"categorical": "labels of text", "boolean": "booleans", "date": dates}
    return f"must hold {things.get(column.kind, 'numbers')}, got {{cells}} of another form"


def _refuse(wrong: np.ndarray, label: str, what: str, cure: str) -> None:
    count = int(np.count_nonzero(wrong))
    if count:
        first = int(np.argmax(wrong)) + 1
        cells = counted(count, "cell")
        raise InputError(f"{label} {what.format(cells=cells)}, the first in row {first}; {cure}")


#: Reads cells of one sort.
Reader = Callable[[Any, Column, TextFormat], Reading]

_NUMBERS: dict[str, Reader] = {
    NUMBER: _number_of_number,
    TEXT: _number_of_text,
    TRUTH: _number_of_truth,
}
_READERS: dict[str, dict[str, Reader]] = {
    "continuous": _NUMBERS,
    "integer": {sort: _whole_of(reader) for sort, reader in _NUMBERS.items()},
    "categorical": {TEXT: _label_of_text, NUMBER: _label_of_number, TRUTH: _label_of_truth},
    "boolean": {TRUTH: _truth_of_truth, TEXT: _truth_of_text, NUMBER: _truth_of_number},
    "date": {MOMENT: _date_of_moment, TEXT: _date_of_text},
}
_DTYPES: dict[str, Any] = {
    "continuous": np.float64,
    "integer": np.float64,
    "categorical": object,
    "boolean": object,
    "date": "datetime64[us]",
}
_NOTHING: dict[str, Any] = {
    "continuous": np.nan,
    "integer": np.nan,
    "categorical": None,
    "boolean": None,
    "date": np.datetime64("NaT"),
}
