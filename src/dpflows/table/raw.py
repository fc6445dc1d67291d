"""Cells as libraries and files give them, and what is declared about cells written as text.

A library gives a column one type for all its rows, and one row can change it: whole numbers
become floats beside a gap, and objects beside a word. So cells are brought to four plain sorts
first, number, text, truth value and moment, in which the same cell is the same whatever its
neighbours are.

``TextFormat`` says how text is read: marks, encoding and what becomes of cells that break the
rules. All of it is declared, or a public default. Nothing is inferred from the rows.
"""

import codecs
import contextlib
import datetime
import decimal
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError

#: The most that a file may hold once it is decompressed.
MAX_BYTES = 2**33
MAX_CELLS = 2**30
#: The most columns that a table may have.
MAX_COLUMNS = 50_000

#: A column as its library gave it.
Raw: TypeAlias = pa.ChunkedArray | np.ndarray

#: Names of columns, in order.
Names: TypeAlias = tuple[str, ...]

NUMBER, TEXT, TRUTH, MOMENT, UNKNOWN = "number", "text", "truth", "moment", "unknown"

#: When the calendar begins and ends, in seconds since 1970 began.
YEAR_1, YEAR_10000 = -62135596800, 253402300800
#: How many of a unit of time a second or a part of it has, and how many seconds it has.
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS = {"m": 60, "h": 3600, "D": 86_400}
EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)


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
        is_text: Whether cells came as text whose types are not known yet.
        gaps: Numbers of rows whose cells could not be separated; they are missing.
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


def check_unpacked(cells: int, size: int) -> None:
    """Refuse files that could not be held once they are unpacked."""
    if cells > MAX_CELLS or size > MAX_BYTES:
        raise InputError(f"file must hold at most {MAX_CELLS} cells, {MAX_BYTES} bytes; split it")


def check_width(columns: int) -> None:
    """Refuse tables that are too wide for any model here."""
    if columns > MAX_COLUMNS:
        raise InputError(
            f"table must have at most {MAX_COLUMNS} columns, got {columns}; keep those that matter"
        )


def default_names(count: int) -> tuple[str, ...]:
    """Names for the columns of a plain array: x0, x1 and so on."""
    return tuple(f"x{i}" for i in range(count))


@final
@dataclass(frozen=True, repr=False)
class Cells:
    """Cells of one sort.

    Args:
        sort: What they are.
        values: Numbers as float64, not a number where missing; text and truth values as Arrow
            columns; moments as microseconds, not a time where missing; nothing for unknown ones.
        at: Where in the column they stand; everywhere if None.
        wrong: Which of them have no place among the values; none if None.
    """

    sort: str
    values: Any = None
    at: np.ndarray | None = None
    wrong: np.ndarray | None = None


def sorted_cells(raw: Raw) -> list[Cells]:
    """A column's cells by sort.

    Raises:
        InputError: The column's type is not one that a table may have.

    Guarantee:
        The sort and the value of a cell depend on that cell alone.

    Example:
        >>> parts = sorted_cells(np.array([1, "a", None], dtype=object))
        >>> [(part.sort, part.at.tolist()) for part in parts]
        [('number', [0, 2]), ('text', [1])]
    """
    if isinstance(raw, pa.ChunkedArray):
        return [_from_arrow(raw)]
    return _from_objects(raw) if raw.dtype == object else [_from_vector(raw)]


def _from_arrow(cells: pa.ChunkedArray) -> Cells:
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if is_text(cells.type):
        return Cells(TEXT, cells.cast(pa.large_string()))
    if pa.types.is_boolean(cells.type):
        return Cells(TRUTH, cells)
    if is_moment(cells.type):
        return _moments(*_counts(cells))
    if pa.types.is_decimal(cells.type):
        # through text, because a shared number of digits must not move the last bit
        cells = cells.cast(pa.large_string())
    elif not (is_number(cells.type) or pa.types.is_null(cells.type)):
        raise InputError("type is not accepted")
    return Cells(NUMBER, cells.cast(pa.float64(), safe=False).to_numpy())


def _counts(cells: pa.ChunkedArray) -> tuple[np.ndarray, str, np.ndarray]:
    """Moments as whole numbers of their unit since 1970 began; a time zone only shows them."""
    if pa.types.is_timestamp(cells.type):
        unit, whole = cells.type.unit, cells.cast(pa.int64())
    elif pa.types.is_date32(cells.type):
        unit, whole = "D", cells.cast(pa.int32()).cast(pa.int64())
    else:
        unit, whole = "ms", cells.cast(pa.int64())
    missing = whole.is_null().to_numpy().astype(bool)
    return whole.fill_null(0).to_numpy(), unit, missing


def _from_vector(vector: np.ndarray) -> Cells:
    if vector.dtype.kind in "fiu":
        return Cells(NUMBER, vector.astype(np.float64))
    if vector.dtype.kind == "M":
        unit, step = np.datetime_data(vector.dtype)
        counts = np.where(np.isnat(vector), 0, vector.astype(np.int64))
        if unit not in _PER_SECOND | _SECONDS or step != 1:
            raise InputError("type is not accepted")
        return _moments(counts, unit, np.isnat(vector))
    return _from_arrow(pa.chunked_array([pa.array(vector)]))


def _moments(counts: np.ndarray, unit: str, missing: np.ndarray) -> Cells:
    """Moments as microseconds; those outside the years 1 to 9999 are wrong, not moved."""
    seconds = _SECONDS.get(unit, 1)
    parts = _PER_SECOND.get(unit, 1)
    # whole seconds before the comparison, which nanoseconds of the year 1 would overflow
    whole = counts // parts if seconds == 1 else counts
    wrong = (whole < YEAR_1 // seconds) | (whole >= YEAR_10000 // seconds)
    safe = np.where(wrong | missing, 0, counts)
    micros = safe * (10**6 * seconds // parts) if parts <= 10**6 else safe // (parts // 10**6)
    moments = micros.astype("datetime64[us]")
    moments[missing | wrong] = np.datetime64("NaT")
    return Cells(MOMENT, moments, wrong=wrong & ~missing)


def _from_objects(objects: np.ndarray) -> list[Cells]:
    pairs = [_sorted_object(value) for value in objects]
    sorts = np.array([sort for sort, _ in pairs])
    parts = []
    for sort in dict.fromkeys((NUMBER, TEXT, TRUTH, MOMENT, UNKNOWN)):
        at = np.flatnonzero(sorts == sort)
        if len(at):
            parts.append(Cells(sort, _gathered(sort, [pairs[i][1] for i in at]), at))
    return parts


def _gathered(sort: str, values: list[Any]) -> Any:
    if sort == NUMBER:
        return np.array(values, dtype=np.float64)
    if sort == MOMENT:
        return np.array(values, dtype=np.int64).astype("datetime64[us]")
    types = {TEXT: pa.large_string(), TRUTH: pa.bool_()}
    return pa.chunked_array([pa.array(values, types[sort])]) if sort in types else None


def _sorted_object(value: Any) -> tuple[str, Any]:
    """The sort of a Python object, and its value; a missing one is not a number."""
    if value is None:
        return NUMBER, np.nan
    if isinstance(value, str):
        return (TEXT, str(value)) if _is_unicode(value) else (UNKNOWN, None)
    if isinstance(value, bool | np.bool_):
        return TRUTH, bool(value)
    if isinstance(value, int | float | np.integer | np.floating | decimal.Decimal):
        return _sorted_number(value)
    if isinstance(value, complex | np.complexfloating) and value.imag == 0:
        # one complex cell makes a whole column of a frame complex
        return _sorted_number(value.real)
    if isinstance(value, datetime.date | np.datetime64):
        return _sorted_moment(value)
    # pandas has an object of its own for what is missing
    return (NUMBER, np.nan) if type(value).__name__ == "NAType" else (UNKNOWN, None)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _sorted_number(value: Any) -> tuple[str, Any]:
    try:
        return NUMBER, float(value)
    except (OverflowError, ValueError):
        return UNKNOWN, None


def _sorted_moment(value: Any) -> tuple[str, Any]:
    if type(value).__name__ == "NaTType":
        return NUMBER, np.nan
    if hasattr(value, "to_datetime64"):
        value = value.to_datetime64()
    if isinstance(value, np.datetime64):
        return _sorted_vector(np.array([value]))
    micros = microseconds(value)
    return (UNKNOWN, None) if micros is None else (MOMENT, micros)


def _sorted_vector(vector: np.ndarray) -> tuple[str, Any]:
    if np.isnat(vector).all():
        return NUMBER, np.nan
    try:
        cells = _from_vector(vector)
    except InputError:
        return UNKNOWN, None
    is_wrong = cells.wrong is not None and cells.wrong.any()
    return (UNKNOWN, None) if is_wrong else (MOMENT, int(cells.values.astype(np.int64)[0]))


def microseconds(when: datetime.date) -> int | None:
    """Microseconds since 1970 began; None if the moment lies beyond the calendar.

    Example:
        >>> microseconds(datetime.date(1970, 1, 2))
        86400000000
    """
    if not isinstance(when, datetime.datetime):
        when = datetime.datetime(when.year, when.month, when.day)
    if when.tzinfo is not None:
        try:
            when = when.astimezone(datetime.UTC).replace(tzinfo=None)
        except (OverflowError, ValueError):
            return None
    return (when - EPOCH) // _MICROSECOND


def is_text(kind: pa.DataType) -> bool:
    """Whether a column's type is text."""
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column's type is numeric."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def is_moment(kind: pa.DataType) -> bool:
    """Whether a column's type is a date, with or without a time of day."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def is_missing(values: np.ndarray) -> np.ndarray:
    """Which cells of a column hold nothing.

    Example:
        >>> is_missing(np.array(["a", None], dtype=object)).tolist()
        [False, True]
    """
    if values.dtype.kind == "M":
        return np.isnat(values)
    if values.dtype == object:
        return np.array([value is None for value in values.tolist()], dtype=bool)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def to_numpy(cells: Any) -> np.ndarray:
    """An Arrow column as a vector."""
    if isinstance(cells, pa.ChunkedArray):
        return cells.to_numpy()
    return cells.to_numpy(zero_copy_only=False)


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


def counted(count: int, noun: str) -> str:
    """A number of things, for a message.

    Example:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


#: What a cell of text holds when it holds nothing, unless something else is declared.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "Null", "null", "None")

REFUSE, AS_MISSING = "refuse", "missing"
MAX_MARKS = 100
MAX_MARK_LENGTH = 100

#: Delimiters that files usually have.
USUAL_DELIMITERS = (",", ";", "\t", "|")

#: Encodings in which a line end is one byte that stands for nothing else, so that every
#: line can be decoded by itself.
_BY_LINE = {
    *("utf-8", "ascii", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "mac-greek"),
    *("mac-latin2", "mac-turkish", "gbk", "gb2312", "gb18030", "big5", "euc_jp", "euc_kr"),
    *("shift_jis", "cp932", "cp949", "cp950", "cp437", "cp737", "cp775", "cp850", "cp852"),
    *("cp855", "cp857", "cp858", "cp860", "cp861", "cp862", "cp863", "cp865", "cp866", "cp874"),
    *(f"cp125{i}" for i in range(9)),
    *(f"iso8859-{i}" for i in range(1, 17)),
}
#: Encodings of two bytes or more per character; files in them are decoded whole.
_WHOLE = {"utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"}
_FORBIDDEN_MARKS = re.compile(r"[0-9A-Za-z+\-\x00-\x08\x0a-\x1f\x7f]")


@final
@dataclass(frozen=True)
class TextFormat:
    r"""How the cells of a table are written as text.

    Args:
        delimiter: What stands between cells; ``None`` is a tab in files whose name ends in
            ``.tsv``, and a comma in others.
        decimal: What stands before the fraction of a number.
        thousands: What may stand between groups of three digits; empty for nothing.
        encoding: Of files; a mark at the start of a file is left out.
        quote: What may stand around a cell; empty for nothing.
        header: Whether a file's first line holds the names of the columns.
        missing: What a cell holds that holds nothing; blanks around it do not count.
        date_formats: How dates are written, in the codes of ``datetime.strptime``, tried in
            order; empty for the forms of ISO 8601, such as ``2020-12-31T23:59:00Z``.
        multiline: Whether quoted cells may hold line ends.
        unreadable: What becomes of cells and lines that break these rules: ``"refuse"``
            refuses the table, ``"missing"`` makes them missing cells of their row.

    Guarantee:
        A cell is read by these public rules alone, whatever other rows hold.

    Example:
        >>> TextFormat(delimiter=";", decimal=",").to_dict()
        {'delimiter': ';', 'decimal': ','}
    """

    delimiter: str | None = None
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    quote: str = '"'
    header: bool = True
    missing: tuple[str, ...] = MISSING
    date_formats: tuple[str, ...] = ()
    multiline: bool = False
    unreadable: str = REFUSE

    def __post_init__(self) -> None:
        _check_types(vars(self))
        for key in ("missing", "date_formats"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        object.__setattr__(self, "encoding", _encoding(self.encoding))
        self._check_marks()
        for written in self.date_formats:
            _check_date_format(written)
        if self.unreadable not in (REFUSE, AS_MISSING):
            raise InputError(f'unreadable must be "{REFUSE}" or "{AS_MISSING}"')
        if self.multiline and not self.quote:
            raise InputError("multiline needs a quote, between which line ends may stand")

    def _check_marks(self) -> None:
        _check_ascii("delimiter", self.delimiter, can_be_empty=False)
        _check_ascii("quote", self.quote, can_be_empty=True)
        if self.quote and self.quote == self.delimiter:
            raise InputError("quote and delimiter must differ")
        for key in ("decimal", "thousands"):
            mark = getattr(self, key)
            if len(mark) > 1 or _FORBIDDEN_MARKS.search(mark):
                raise InputError(f"{key} must be one character that is no digit, letter or sign")
        if not self.decimal or self.decimal in (self.thousands, " ", "\t"):
            raise InputError("decimal must be a visible character other than thousands")

    @property
    def is_decoded_whole(self) -> bool:
        """Whether lines cannot be separated before a file is decoded."""
        return self.encoding in _WHOLE

    @property
    def makes_missing(self) -> bool:
        """Whether unreadable cells are missing ones, and not a reason to refuse."""
        return self.unreadable == AS_MISSING

    def delimiter_of(self, path: str | os.PathLike[str]) -> str:
        r"""The delimiter of a file: as declared, or by the ending of its name.

        Example:
            >>> TextFormat().delimiter_of("rows.tsv.gz"), TextFormat().delimiter_of("rows.csv")
            ('\t', ',')
        """
        if self.delimiter is not None:
            return self.delimiter
        name = Path(path).name.lower().removesuffix(".gz")
        return "\t" if name.endswith(".tsv") else ","

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain JSON."""
        differing = {key: value for key, value in vars(self).items() if value != _DEFAULTS[key]}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in differing.items()}

    @classmethod
    def from_dict(cls, description: Any) -> "TextFormat":
        """Read back ``to_dict``; the content may be hostile."""
        if not isinstance(description, dict):
            raise InputError(f"text must be a table of keys: {', '.join(_DEFAULTS)}")
        if any(key not in _DEFAULTS for key in description):
            raise InputError(f"text: unknown key; known keys are {', '.join(_DEFAULTS)}")
        try:
            _check_types(description)
            lists = {k: tuple(v) for k, v in description.items() if isinstance(v, list)}
            return cls(**description | lists)
        except InputError as error:
            message = f"text: {error}"
        raise InputError(message)


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(TextFormat)}


def _check_types(given: dict[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(_DEFAULTS[key], bool):
            if not isinstance(value, bool):
                raise InputError(f"{key} must be true or false")
        elif isinstance(_DEFAULTS[key], tuple):
            _check_texts(key, value)
        elif not isinstance(value, str) and value is not _DEFAULTS[key]:
            raise InputError(f"{key} must be text")


def _check_texts(key: str, given: Any) -> None:
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
        raise InputError(f"{key} must be a list of texts")
    if len(given) > MAX_MARKS or any(len(text) > MAX_MARK_LENGTH for text in given):
        raise InputError(f"{key} must be at most {MAX_MARKS} texts of {MAX_MARK_LENGTH} characters")


def _check_ascii(key: str, mark: str | None, *, can_be_empty: bool) -> None:
    if mark is None or (can_be_empty and mark == ""):
        return
    is_plain = len(mark) == 1 and (mark == "\t" or " " <= mark <= "~") and not mark.isalnum()
    if not is_plain or mark in ".+-":
        raise InputError(f'{key} must be one ASCII character such as "," and no letter or digit')


def _encoding(name: str) -> str:
    """The usual name of an encoding that can be read."""
    try:
        usual = codecs.lookup(name).name
    except (LookupError, ValueError):
        usual = ""
    usual = {"utf-8-sig": "utf-8", "latin-1": "iso8859-1"}.get(usual, usual)
    if usual not in _BY_LINE | _WHOLE:
        raise InputError(
            "encoding must be one that is known, such as utf-8, utf-16, latin-1 or cp1252"
        )
    return usual


def _check_date_format(written: str) -> None:
    day = datetime.datetime(2021, 11, 23, tzinfo=datetime.UTC)
    try:
        is_known = datetime.datetime.strptime(day.strftime(written), written).date() == day.date()
    except (ValueError, re.error):
        is_known = False
    if not is_known:
        raise InputError('date_formats must hold year, month and day, such as "%d.%m.%Y %H:%M"')


#: What holds where nothing is declared.
PLAIN = TextFormat()
