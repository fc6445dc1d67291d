"""Schemas proposed for tables that came without one."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError
from dpflows.table.cells import is_moment, plain, read_cells, seconds, trimmed
from dpflows.table.columns import DAY, MAX_CATEGORIES, Column, counted
from dpflows.table.opening import open_source
from dpflows.table.schema import Schema
from dpflows.table.sources import Source


def propose(frame: Any, *, read_values: bool = False) -> Schema:
    """What ``Schema.from_frame`` documents."""
    source = open_source(frame, None, None)
    schema = dataclasses.replace(proposed(source), names_read=False)
    if not read_values:
        return schema
    columns = tuple(map(_with_values, source.cells, schema.columns))
    return Schema(columns, values_read=True)


def proposed(source: Source) -> Schema:
    """Names as they came and kinds from types; no value enters the schema."""
    _check_names(source.names)
    pairs = zip(source.names, source.cells, strict=True)
    columns = tuple(_column(name, cells, source.is_text) for name, cells in pairs)
    return Schema(columns, names_read=source.has_own_names)


def _column(name: str, cells: pa.ChunkedArray, is_text: bool) -> Column:
    kind = _text_kind(cells) if is_text else _kind(cells.type)
    held = trimmed(plain(cells)) if is_text and kind == "date" else None
    are_days = pa.types.is_date(cells.type) if held is None else _fits(held, pa.date32())
    return Column(name, kind, unit=DAY if are_days else "")


def _check_names(names: tuple[str, ...]) -> None:
    if unnamed := sum(not name for name in names):
        raise InputError(f"columns must have names, got {counted(unnamed, 'unnamed column')}; name")
    if repeated := len(names) - len(set(names)):
        raise InputError(f"names must differ, got {counted(repeated, 'repeated name')}; rename")


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


def _text_kind(cells: pa.ChunkedArray) -> str:
    """The narrowest type that all cells of a text file's column fit."""
    text = trimmed(plain(cells))
    kinds = {pa.float64(): "continuous", pa.bool_(): "boolean", pa.timestamp("us"): "date"}
    kind = next((kind for dtype, kind in kinds.items() if _fits(text, dtype)), "categorical")
    return "integer" if kind == "continuous" and _are_digits(text) else kind


def _fits(text: pa.ChunkedArray, dtype: pa.DataType) -> bool:
    try:
        text.cast(dtype)
    except pa.ArrowInvalid:
        return False
    return True


def _are_digits(text: pa.ChunkedArray) -> bool:
    return text.null_count < len(text) and _fits(text, pa.int64())


def _with_values(cells: pa.ChunkedArray, column: Column) -> Column:
    nullable = dataclasses.replace(column, nullable=True)
    values = read_cells(cells, nullable, "a column")
    present = values[~_missing(values)]
    found = {"nullable": len(present) < len(values)} | _domain(present, column)
    try:
        return dataclasses.replace(column, **found)
    except InputError:
        # constant or too wide: left undeclared, which fails closed later
        return dataclasses.replace(column, nullable=len(present) < len(values))


def _missing(values: np.ndarray) -> np.ndarray:
    if values.dtype == object:
        return np.array([value is None for value in values], dtype=bool)
    return np.isnat(values) if values.dtype.kind == "M" else np.isnan(values.astype(float))


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
