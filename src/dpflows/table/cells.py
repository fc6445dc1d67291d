"""The cells of one column, read as the kind that its schema declares.

A message says how many cells are wrong and where the first one stands. It never
quotes a cell, and never passes on the text of a library, which might.
"""

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpflows.errors import InputError
from dpflows.table.columns import Column, counted

#: What a cell of text holds when it holds nothing.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "Null", "null", "None")

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")

Cells: TypeAlias = pa.ChunkedArray


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


def read_cells(cells: Cells, column: Column, label: str) -> np.ndarray:
    """One column as float64, text, booleans or dates; missing where that is declared."""
    with explained(f"{label} cannot be read as {column.kind}; convert it"):
        return _READERS[column.kind](plain(cells), column, label)


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


def plain(cells: Cells) -> Cells:
    """Cells without dictionary encoding, and text in one type."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    return cells.cast(pa.large_string()) if is_text(cells.type) else cells


def is_text(kind: pa.DataType) -> bool:
    """Whether a column's type is text."""
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column's type is numeric."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_moment(kind: pa.DataType) -> bool:
    """Whether a column's type is a date, with or without a time of day."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def trimmed(cells: Cells, labels: tuple[str, ...] = ()) -> Cells:
    """Text without blanks around it, and nothing where it says that nothing is there."""
    text = pc.utf8_trim_whitespace(cells)
    words = pa.array([word for word in MISSING if word not in labels], text.type)
    return pc.if_else(pc.is_in(text, value_set=words), pa.scalar(None, text.type), text)


def _as_numbers(cells: Cells, label: str) -> np.ndarray:
    if is_text(cells.type):
        cells = _numbers_in_text(trimmed(cells), label)
    elif pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.uint8())
    elif not (is_number(cells.type) or pa.types.is_null(cells.type)):
        raise InputError(f"{label} must hold numbers, got another type; convert it")
    return _to_numpy(cells.cast(pa.float64(), safe=False))


def _numbers_in_text(text: Cells, label: str) -> Cells:
    # not inside an except clause: the library's message, which quotes a cell, would cling on
    with contextlib.suppress(pa.ArrowInvalid):
        return text.cast(pa.float64())
    fits = pc.fill_null(pc.match_substring_regex(text, _NUMBER), True)
    _refuse(~_to_numpy(fits), label, "must hold numbers, got {cells} of another form")
    raise InputError(f"{label} must hold numbers; convert it")


def _continuous(cells: Cells, column: Column, label: str) -> np.ndarray:
    numbers = _as_numbers(cells, label)
    _check_missing(np.isnan(numbers), column, label)
    _refuse(
        np.isinf(numbers), label, "must hold finite numbers, got {cells} that are infinite (inf)"
    )
    return numbers


def _integer(cells: Cells, column: Column, label: str) -> np.ndarray:
    numbers = _continuous(cells, column, label)
    fractions = ~np.isnan(numbers) & (np.rint(numbers) != numbers)
    _refuse(
        fractions,
        label,
        "is declared integer, got {cells} with a fraction",
        'round them or declare kind = "continuous"',
    )
    return numbers


def _categorical(cells: Cells, column: Column, label: str) -> np.ndarray:
    if pa.types.is_integer(cells.type) or pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.large_string())
    if not (is_text(cells.type) or pa.types.is_null(cells.type)):
        raise InputError(f"{label} must hold labels of text, got another type; convert it")
    text = _labels(cells.cast(pa.large_string()), column.categories or ())
    _check_missing(_to_numpy(text.is_null()), column, label)
    return _to_numpy(text).astype(object)


def _labels(cells: Cells, declared: tuple[str, ...]) -> Cells:
    """Text without blanks around it, but for labels that are declared with them."""
    exact = pc.is_in(cells, value_set=pa.array(declared, cells.type))
    return pc.if_else(exact, cells, trimmed(cells, declared))


def _boolean(cells: Cells, column: Column, label: str) -> np.ndarray:
    cells = _truths(cells, label)
    missing = _to_numpy(cells.is_null())
    _check_missing(missing, column, label)
    return _to_numpy(cells).astype(object if missing.any() else bool)


def _truths(cells: Cells, label: str) -> Cells:
    if pa.types.is_boolean(cells.type) or pa.types.is_null(cells.type):
        return cells.cast(pa.bool_())
    if not (is_text(cells.type) or is_number(cells.type)):
        raise InputError(f"{label} must hold booleans, got another type; convert it")
    if not is_text(cells.type):
        cells = _whole_numbers(cells).cast(pa.large_string())
    words = pc.utf8_lower(trimmed(cells))
    true = pc.is_in(words, value_set=pa.array(_TRUE, words.type))
    false = pc.is_in(words, value_set=pa.array(_FALSE, words.type))
    known = pc.or_(pc.or_(true, false), words.is_null())
    _refuse(~_to_numpy(known), label, "must hold booleans, got {cells} of another form")
    return pc.if_else(words.is_null(), pa.scalar(None, pa.bool_()), true)


def _whole_numbers(cells: Cells) -> Cells:
    """Numbers as integers where they are zero or one, and as something else elsewhere."""
    numbers = cells.cast(pa.float64(), safe=False)
    is_truth = pc.is_in(numbers, value_set=pa.array([0.0, 1.0]))
    is_gap = pc.or_kleene(pc.is_nan(numbers), numbers.is_null())
    other = pc.if_else(is_gap, pa.scalar(None, pa.float64()), pa.scalar(2.0))
    return pc.if_else(is_truth, numbers, other).cast(pa.int8())


def _date(cells: Cells, column: Column, label: str) -> np.ndarray:
    if is_text(cells.type):
        cells = _dates_in_text(trimmed(cells), label)
    elif not (is_moment(cells.type) or pa.types.is_null(cells.type)):
        raise InputError(f"{label} must hold dates, got another type; convert it")
    # a time zone only says how a moment is shown
    dates = _to_numpy(cells.cast(pa.timestamp("us"), safe=False)).astype("datetime64[us]")
    _check_missing(np.isnat(dates), column, label)
    return dates


def _dates_in_text(text: Cells, label: str) -> Cells:
    for zone in (None, "UTC"):
        with contextlib.suppress(pa.ArrowInvalid):
            return text.cast(pa.timestamp("us", zone))
    wrong = np.array([not _is_date(cell) for cell in text])
    _refuse(wrong, label, "must hold dates such as 2020-12-31, got {cells} of another form")
    raise InputError(f"{label} must hold dates either all with or all without a time zone")


def _is_date(cell: pa.Scalar) -> bool:
    for zone in (None, "UTC"):
        with contextlib.suppress(pa.ArrowInvalid):
            cell.cast(pa.timestamp("us", zone))
            return True
    return False


def _to_numpy(cells: Cells) -> np.ndarray:
    if isinstance(cells, pa.ChunkedArray):
        return cells.to_numpy()
    return cells.to_numpy(zero_copy_only=False)


def _check_missing(missing: np.ndarray, column: Column, label: str) -> None:
    if not column.nullable:
        _refuse(
            missing,
            label,
            "must be filled, got {cells} without a value (NaN)",
            "fill them, drop their rows, or declare nullable = true (DPFlow models missing cells)",
        )


def _refuse(wrong: np.ndarray, label: str, what: str, cure: str = "correct them") -> None:
    count = int(np.count_nonzero(wrong))
    if count:
        first = int(np.argmax(wrong)) + 1
        cells = counted(count, "cell")
        raise InputError(f"{label} {what.format(cells=cells)}, the first in row {first}; {cure}")


_READERS = {
    "continuous": _continuous,
    "integer": _integer,
    "categorical": _categorical,
    "boolean": _boolean,
    "date": _date,
}
