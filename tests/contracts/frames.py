"""Typed tables: what each library makes of the same values, one row of them of any type."""

import contextlib
import dataclasses
import datetime
import io
import math
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet

from contracts.text_files import Stored
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

Rng = np.random.Generator
#: Cells by column.
Cells = dict[str, list[Any]]


@dataclasses.dataclass(frozen=True)
class Style:
    """How one column's values are held; a public choice, the same for both tables."""

    has_decimals: bool = False
    has_integer_labels: bool = False
    is_tight: bool = False
    is_dictionary: bool = False
    unit: str = "us"
    zone: str | None = None
    batch: int = 100


def lenient(schema: Schema) -> Schema:
    """The schema under which what cannot be read is missing."""
    from dpflows.table.raw import TextFormat

    return dataclasses.replace(schema, text=TextFormat(unreadable="missing"))


def pair(
    rng: Rng, reader: str, schema: Schema, rows: list[list[Any]], at: int, other: list[Any]
) -> tuple[str, tuple[Any, Any]]:
    """Two tables of one library, the second with another row in the place of one."""
    styles = {c.name: _style(rng, c) for c in schema.columns}
    build, kept = BUILDERS[reader], [i for i in range(len(rows)) if i != at]
    first = _columns(schema, styles, rows)
    wanted = _source(build, first, styles, kept, first)
    if wanted is None:
        raise ValueError(f"{reader} cannot hold the first table")
    names = list(CHANGES if schema.columns[0].nullable else MILD)
    weights = np.array([3.0 if name in WEIGHTY else 1.0 for name in names])
    while True:
        change = str(rng.choice(names, p=weights / weights.sum()))
        changed = _changed(rng, schema, rows[at] if rng.random() < 0.5 else other, change)
        second = _columns(schema, styles, [*rows[:at], changed, *rows[at + 1 :]])
        found = _source(build, second, styles, kept, first)
        if found is not None:
            return change, (wanted, found)


def _style(rng: Rng, column: Column) -> Style:
    digits = column.kind == "categorical" and all(map(_is_plain_integer, column.categories or ()))
    return Style(
        has_decimals=column.kind == "continuous" and bool(rng.random() < 0.2),
        has_integer_labels=digits and bool(rng.random() < 0.7),
        is_tight=bool(rng.random() < 0.4),
        is_dictionary=bool(rng.random() < 0.3),
        unit=str(rng.choice(["s", "ms", "us", "ns"])),
        zone="UTC" if rng.random() < 0.2 else None,
        batch=int(rng.integers(1, 8)),
    )


def _is_plain_integer(label: str) -> bool:
    return label.isdecimal() and str(int(label)) == label


def _columns(schema: Schema, styles: dict[str, Style], rows: list[list[Any]]) -> Cells:
    return {
        column.name: [_styled(row[i], styles[column.name]) for row in rows]
        for i, column in enumerate(schema.columns)
    }


def _styled(value: Any, style: Style) -> Any:
    if style.has_decimals and isinstance(value, float) and math.isfinite(value):
        return Decimal(repr(value)) if abs(value) < 1e9 else value
    is_number = style.has_integer_labels and isinstance(value, str) and _is_plain_integer(value)
    return int(value) if is_number else value


def _changed(rng: Rng, schema: Schema, row: list[Any], change: str) -> list[Any]:
    """Some or all cells of a row replaced."""
    if change == ANOTHER:
        return row
    chosen = rng.random(len(row)) < rng.choice([0.3, 1.0])
    chosen[int(rng.integers(len(row)))] = True
    values = CHANGES[change]
    return [
        values[int(rng.integers(len(values)))] if taken else cell
        for cell, taken in zip(row, chosen, strict=True)
    ]


def _source(
    build: Callable[[Cells, dict[str, Style]], Any],
    cells: Cells,
    styles: dict[str, Style],
    kept: list[int],
    wanted: Cells,
) -> Any:
    """The table, or None if its library cannot hold these cells or changes the other rows."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source, held = build(cells, styles)
    except (TypeError, ValueError, OverflowError, pa.ArrowException, pl.exceptions.PolarsError):
        return None
    same = all(_is_same(held[name][i], wanted[name][i]) for name in wanted for i in kept)
    return source if same else None


def _is_same(held: Any, meant: Any) -> bool:
    """Whether a library holds what was meant, if as another type."""
    if _is_gap(meant) or _is_gap(held):
        return _is_gap(meant) and _is_gap(held)
    if isinstance(held, bytes) or isinstance(meant, bytes):
        return False
    if isinstance(meant, datetime.date) and isinstance(held, datetime.date):
        return _moment(held) == _moment(meant)
    if isinstance(held, str):
        return held.lower() == str(meant).lower()
    return bool(held == meant) or (isinstance(meant, Decimal) and held == float(meant))


def _is_gap(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or value != value


def _moment(value: datetime.date) -> datetime.datetime:
    if not isinstance(value, datetime.datetime):
        return datetime.datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=None)


# One builder per library and way ------------------------------------------------------

Held = tuple[Any, Cells]


def _pandas(make: Callable[[list[Any], Style], pd.Series]) -> Callable[..., Held]:
    def build(cells: Cells, styles: dict[str, Style]) -> Held:
        frame = pd.DataFrame({name: make(values, styles[name]) for name, values in cells.items()})
        return frame, {name: frame[name].tolist() for name in cells}

    return build


def _inferred(values: list[Any], style: Style) -> pd.Series:
    series = pd.Series(values)
    if series.dtype.kind == "M" and series.dt.tz is None:
        with contextlib.suppress(pd.errors.OutOfBoundsDatetime):
            return series.astype(f"datetime64[{style.unit}]")
    return series


def _as_objects(values: list[Any], style: Style) -> pd.Series:
    return pd.Series(values, dtype=object)


def _as_category(values: list[Any], style: Style) -> pd.Series:
    return pd.Series(values, dtype="category" if style.is_dictionary else None)


def _nullable(values: list[Any], style: Style) -> pd.Series:
    return pd.Series(values).convert_dtypes(dtype_backend="numpy_nullable")


def _arrow_backed(values: list[Any], style: Style) -> pd.Series:
    array = arrow_column(values, style)
    return pd.Series(pd.array(array, dtype=pd.ArrowDtype(array.type)))


def _polars(cells: Cells, styles: dict[str, Style]) -> Held:
    columns = [_polars_column(name, values, styles[name]) for name, values in cells.items()]
    frame = pl.DataFrame(columns)
    return frame, {name: frame[name].to_list() for name in cells}


def _polars_column(name: str, values: list[Any], style: Style) -> pl.Series:
    if any(isinstance(v, Decimal) and not _is_short(v) for v in values):
        raise ValueError("polars panics at such a decimal")
    series = pl.Series(name, values, strict=False)
    if style.is_dictionary and series.dtype == pl.String:
        return series.cast(pl.Categorical)
    return series.shrink_dtype() if style.is_tight and series.dtype.is_integer() else series


def _is_short(number: Decimal) -> bool:
    exponent = number.as_tuple().exponent
    return isinstance(exponent, int) and exponent > -38 and number.adjusted() < 38


def _arrow_table(cells: Cells, styles: dict[str, Style]) -> pa.Table:
    arrays = [arrow_column(values, styles[name]) for name, values in cells.items()]
    table = pa.table(arrays, names=list(cells))
    size = next(iter(styles.values())).batch
    return pa.Table.from_batches(table.to_batches(max_chunksize=size), table.schema)


def _arrow(cells: Cells, styles: dict[str, Style]) -> Held:
    table = _arrow_table(cells, styles)
    return table, table.to_pydict()


def _parquet(cells: Cells, styles: dict[str, Style]) -> Held:
    table, file = _arrow_table(cells, styles), io.BytesIO()
    size = next(iter(styles.values())).batch
    pyarrow.parquet.write_table(table, file, row_group_size=size)
    held = pyarrow.parquet.read_table(io.BytesIO(file.getvalue())).to_pydict()
    return Stored("rows.parquet", file.getvalue()), held


def _ipc(make: Any, name: str) -> Callable[..., Held]:
    def build(cells: Cells, styles: dict[str, Style]) -> Held:
        table, file = _arrow_table(cells, styles).unify_dictionaries(), io.BytesIO()
        with make(file, table.schema) as writer:
            writer.write_table(table)
        return Stored(name, file.getvalue()), table.to_pydict()

    return build


def arrow_column(values: list[Any], style: Style) -> pa.Array:
    """One column of one type: the narrowest that holds it all, in the end text."""
    values = [None if _is_gap(v) and not isinstance(v, float) else v for v in values]
    present = {type(v) for v in values if v is not None}
    if style.is_tight and present <= {int}:
        return _tight(values)
    if style.is_tight and present == {float} and _are_short(values):
        return pa.array(values, pa.float32())
    if present == {datetime.datetime}:
        return _stamps(values, style)
    mixed = datetime.date in present and len(present) > 1
    for attempt in () if mixed else (_plain, _floats):
        try:
            array = attempt(values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
        is_text = pa.types.is_string(array.type) and style.is_dictionary
        return array.dictionary_encode() if is_text else array
    return pa.array([None if v is None else str(v) for v in values])


def _are_short(values: list[Any]) -> bool:
    with np.errstate(over="ignore", under="ignore"):
        return all(v is None or _is_gap(v) or float(np.float32(v)) == v for v in values)


def _plain(values: list[Any]) -> pa.Array:
    return pa.array(values)


def _floats(values: list[Any]) -> pa.Array:
    if any(isinstance(v, str | bool | bytes) for v in values):
        raise TypeError("not numbers")
    return pa.array([None if v is None else float(v) for v in values])


def _tight(values: list[Any]) -> pa.Array:
    for bits in (8, 16, 32, 64):
        try:
            return pa.array(values, pa.type_for_alias(f"int{bits}"))
        except (pa.ArrowInvalid, OverflowError):
            continue
    return pa.array([None if v is None else float(v) for v in values])


def _stamps(values: list[Any], style: Style) -> pa.Array:
    for unit in (style.unit, "us"):
        try:
            return pa.array(values).cast(pa.timestamp(unit, style.zone))
        except pa.ArrowInvalid:
            continue
    raise ValueError("no unit counts these moments")


def _numpy(dtype: Any) -> Callable[..., Held]:
    def build(cells: Cells, styles: dict[str, Style]) -> Held:
        rows = [list(row) for row in zip(*cells.values(), strict=True)]
        array = np.array(rows, dtype=dtype)
        if array.ndim != 2:
            raise ValueError("not a table")
        return array, dict(zip(cells, array.T.tolist(), strict=True))

    return build


def _masked(cells: Cells, styles: dict[str, Style]) -> Held:
    rows = [list(row) for row in zip(*cells.values(), strict=True)]
    mask = [[_is_gap(value) for value in row] for row in rows]
    filled = [[_number(value) for value in row] for row in rows]
    array = np.ma.MaskedArray(np.array(filled), mask=mask)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ValueError("not a table of numbers")
    return array, dict(zip(cells, array.T.tolist(), strict=True))


def _number(value: Any) -> Any:
    if _is_gap(value):
        return 0
    return float(value) if isinstance(value, Decimal) else value


BUILDERS: dict[str, Callable[[Cells, dict[str, Style]], Held]] = {
    "pandas, inferred": _pandas(_inferred),
    "pandas, nullable": _pandas(_nullable),
    "pandas, category": _pandas(_as_category),
    "pandas, object": _pandas(_as_objects),
    "pandas, pyarrow": _pandas(_arrow_backed),
    "polars": _polars,
    "pyarrow": _arrow,
    "parquet": _parquet,
    "arrow file": _ipc(pa.ipc.new_file, "rows.arrow"),
    "arrow stream": _ipc(pa.ipc.new_stream, "rows.feather"),
    "numpy, inferred": _numpy(None),
    "numpy, integer": _numpy(None),
    "numpy, float": _numpy(float),
    "numpy, object": _numpy(object),
    "numpy, masked": _masked,
}
#: Arrays of numbers, and the kinds of their columns.
KINDS_OF_ARRAYS = {
    "numpy, float": ("continuous", "integer"),
    "numpy, integer": ("integer",),
    "numpy, masked": ("continuous", "integer"),
}

ANOTHER = "another row"
_ZONED = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
CHANGES: dict[str, tuple[Any, ...]] = {
    ANOTHER: (),
    "text": ("abc", "12", "1,5", "1.5", "", "NA", "true", "2020-01-01", "Zürich"),
    "missing": (None, math.nan),
    "missing in pandas": (pd.NA, pd.NaT),
    "infinite": (math.inf, -math.inf),
    "extreme": (1e308, -1e308, 2**63 - 1, -(2**63), 2**63, 2**70, 5e-324, -0.0, 10**400),
    "fraction": (33.5, 0.1),
    "whole number": (7, 1, 0),
    "truth": (True, False),
    "label": ("elsewhere", "1", "0,5"),
    "date": (datetime.date(1, 1, 1), datetime.date(1500, 2, 3), datetime.date(9999, 12, 31)),
    "moment": (
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        datetime.datetime(2020, 1, 1, 0, 0, 0, 1),
        _ZONED,
    ),
    "many digits": (Decimal("0.1234567890123456789012"), Decimal("1e30"), Decimal("NaN")),
    "bytes": (b"x", b"\xff"),
    "object": (1 + 2j, [1], {"a": 1}, (1, 2), "\ud800", "x" * 70_000, "a\0b"),
}
#: What changes the type of a column most often.
WEIGHTY = ("missing", "fraction", "text")
#: What can be read where no cell may be missing.
MILD = (ANOTHER, "fraction", "whole number", "extreme", "label")
