"""Cells as typed Arrow columns, by the schema and by the types that came in."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dpflows.table.columns import Column
from dpflows.table.dtypes import Dtype

#: Moments that nanoseconds can count, in seconds since 1970 began.
_MOST_NANOSECONDS = 9.2e9


def typed(values: np.ndarray, column: Column, dtype: Dtype) -> pa.Array:
    """One column in the type that came in, if that can hold what is declared.

    Args:
        values: Cells as in ``Table.columns``.
        column: What they mean.
        dtype: The type that came in; an empty one leaves it to the kind.

    Guarantee:
        The type depends on the declaration and on the type that came in, not on cells.

    Example:
        >>> age = Column("age", "integer", min=0, max=120, nullable=True)
        >>> typed(np.array([3.0, np.nan]), age, Dtype()).to_pylist()
        [3, None]
    """
    return _MAKERS[column.kind](values, column, dtype)


def _continuous(values: np.ndarray, column: Column, dtype: Dtype) -> pa.Array:
    short = _rounded_inward(values, column, roomy(column, dtype.numpy, "f", "float64"))
    return pa.array(short, mask=np.isnan(values))


def _integer(values: np.ndarray, column: Column, dtype: Dtype) -> pa.Array:
    missing = np.isnan(values)
    whole = np.where(missing, 0.0, values).astype(roomy(column, dtype.numpy, "iu", "int64"))
    return pa.array(whole, mask=missing)


def roomy(column: Column, dtype: str, codes: str, default: str) -> str:
    """The original type if it is of the right sort and holds the declared bounds."""
    if not dtype or np.dtype(dtype).kind not in codes or column.min is None or column.max is None:
        return default
    limits = np.finfo(dtype) if codes == "f" else np.iinfo(dtype)
    fits = float(limits.min) <= column.min and column.max <= float(limits.max)
    return dtype if fits else default


def _rounded_inward(values: np.ndarray, column: Column, dtype: str) -> np.ndarray:
    """Values in a shorter type, none of them rounded beyond the declared bounds."""
    short = values.astype(dtype)
    if column.min is None or column.max is None or short.dtype == values.dtype:
        return short
    toward_zero = np.array([np.inf, -np.inf], dtype=dtype)
    short = np.where(short.astype(float) < column.min, np.nextafter(short, toward_zero[0]), short)
    return np.where(short.astype(float) > column.max, np.nextafter(short, toward_zero[1]), short)


def _categorical(values: np.ndarray, column: Column, dtype: Dtype) -> pa.Array:
    text = pa.array(values, pa.large_string())
    if not (dtype.is_integer or dtype.has_integer_labels or dtype.sort == "truth"):
        return text
    wanted = pa.bool_() if dtype.sort == "truth" else pa.type_for_alias(dtype.numpy or "int64")
    # all declared labels are asked, so that the type does not depend on the cells
    return text.cast(wanted) if _can_be(column.categories or (), wanted) else text


def _can_be(labels: tuple[str, ...], wanted: pa.DataType) -> bool:
    """Whether labels are what values of a type are written like."""
    try:
        back = pa.array(labels, pa.large_string()).cast(wanted).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return bool(labels) and back.to_pylist() == list(labels)


def _boolean(values: np.ndarray, column: Column, dtype: Dtype) -> pa.Array:
    truths = pa.array(values.tolist(), pa.bool_())
    return truths.cast(pa.type_for_alias(dtype.numpy)) if dtype.sort == "number" else truths


def _date(values: np.ndarray, column: Column, dtype: Dtype) -> pa.Array:
    moments = values.astype("datetime64[us]")
    is_day = dtype.sort == "day" or column.counts_days
    if is_day:
        moments = moments.astype("datetime64[D]")
    if dtype.sort != "moment":
        days, stamps = pa.date32(), pa.timestamp("s")
        return pa.array(moments.astype("datetime64[D]" if is_day else "datetime64[s]")).cast(
            days if is_day else stamps
        )
    unit = dtype.unit if dtype.unit != "ns" or _fits_nanoseconds(column) else "us"
    return pa.array(moments.astype(f"datetime64[{unit}]")).cast(pa.timestamp(unit, dtype.zone))


def _fits_nanoseconds(column: Column) -> bool:
    bounds = (column.min, column.max)
    return all(bound is not None and abs(bound) < _MOST_NANOSECONDS for bound in bounds)


_MAKERS: dict[str, Callable[[np.ndarray, Column, Dtype], pa.Array]] = {
    "continuous": _continuous,
    "integer": _integer,
    "categorical": _categorical,
    "boolean": _boolean,
    "date": _date,
}
