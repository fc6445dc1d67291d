"""The kind of table that came in, so that the same kind goes out."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa

from dpflows.errors import InputError
from dpflows.table.columns import Column
from dpflows.table.schema import Schema
from dpflows.table.sources import Source

FORMS = ("numpy", "pandas", "polars", "arrow")


@final
@dataclass(frozen=True)
class Form:
    """What library a table came from, without any of its rows or types.

    Args:
        kind: One of ``FORMS``.
        has_integer_labels: Whether a pandas frame named its columns by numbers.

    Guarantee:
        The types of columns that come out follow from the schema alone. Those that came in
        are not kept: one row can change them.

    Example:
        >>> schema = Schema((Column("x0", "integer", min=0, max=9),))
        >>> Form("pandas").frame({"x0": np.array([3.0])}, schema).dtypes.tolist()
        [dtype('int64')]
    """

    kind: str
    has_integer_labels: bool = False

    def __post_init__(self) -> None:
        if self.kind not in FORMS:
            raise InputError(f"kind of table must be one of {', '.join(FORMS)}")

    @classmethod
    def of(cls, source: Source) -> "Form":
        """The form of a table."""
        return cls(source.kind, source.has_integer_labels)

    @classmethod
    def from_dict(cls, description: Any) -> "Form":
        """Read back ``to_dict``; the content may be hostile.

        Files of version 0.1 also name types of columns, which are left aside.
        """
        if not isinstance(description, dict):
            raise InputError("form of the table must be a dictionary")
        kind, labels = description.get("kind"), description.get("has_integer_labels", False)
        if not isinstance(kind, str) or type(labels) is not bool:
            raise InputError("form of the table must hold a kind and a flag")
        return cls(kind, labels)

    def to_dict(self) -> dict[str, Any]:
        """The form as plain JSON."""
        return asdict(self)

    def frame(self, columns: Mapping[str, np.ndarray], schema: Schema) -> Any:
        """Columns as the kind of table that came in, each with the type of its kind."""
        cells = [_TYPED[column.kind](columns[column.name], column) for column in schema.columns]
        return _BUILDERS[self.kind](cells, schema.columns, self)

    def label(self, name: str) -> str | int:
        """A pandas frame's own label of a column."""
        return int(name) if self.has_integer_labels and name.lstrip("-").isdecimal() else name


def _number(values: np.ndarray, column: Column) -> pa.Array:
    return pa.array(values.astype(np.float64), mask=np.isnan(values))


def _integer(values: np.ndarray, column: Column) -> pa.Array:
    missing = np.isnan(values)
    return pa.array(np.where(missing, 0.0, values).astype(np.int64), mask=missing)


def _label(values: np.ndarray, column: Column) -> pa.Array:
    return pa.array(values, pa.large_string())


def _truth(values: np.ndarray, column: Column) -> pa.Array:
    return pa.array(values.tolist(), pa.bool_())


def _date(values: np.ndarray, column: Column) -> pa.Array:
    if column.counts_days:
        return pa.array(values.astype("datetime64[D]")).cast(pa.date32())
    return pa.array(values.astype("datetime64[s]")).cast(pa.timestamp("s"))


_TYPED: dict[str, Callable[[np.ndarray, Column], pa.Array]] = {
    "continuous": _number,
    "integer": _integer,
    "categorical": _label,
    "boolean": _truth,
    "date": _date,
}


def _numpy_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> np.ndarray:
    """Float64 if all columns are numbers, and objects otherwise."""
    if all(column.kind in ("continuous", "integer") for column in columns):
        return np.column_stack([_vector(array).astype(np.float64) for array in cells])
    return np.column_stack([_objects(array) for array in cells])


def _vector(array: pa.Array) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


def _objects(array: pa.Array) -> np.ndarray:
    objects = np.empty(len(array), dtype=object)
    objects[:] = array.to_pylist()
    return objects


def _pandas_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    import pandas as pd

    series = {
        form.label(column.name): _series(array, column)
        for array, column in zip(cells, columns, strict=True)
    }
    return pd.DataFrame(series)


def _series(array: pa.Array, column: Column) -> Any:
    import pandas as pd

    if column.kind == "date":
        # pandas has no type for days: they are midnights
        return pd.Series(_vector(array.cast(pa.timestamp("s"))))
    own: Any = pd.api.types.pandas_dtype(_pandas_type(column))
    if isinstance(own, np.dtype):
        return pd.Series(_vector(array).astype(own))
    return pd.Series(own.__from_arrow__(pa.chunked_array([array])))


def _pandas_type(column: Column) -> str:
    """A type of pandas that has a word for a missing cell where one may be missing."""
    if column.kind == "integer":
        return "Int64" if column.nullable else "int64"
    if column.kind == "boolean":
        return "boolean" if column.nullable else "bool"
    return "float64" if column.kind == "continuous" else "str"


def _polars_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    try:
        import polars as pl
    except ImportError:
        raise InputError("polars is not installed; run: pip install polars") from None
    pairs = zip(cells, columns, strict=True)
    return pl.DataFrame([pl.Series(column.name, array) for array, column in pairs])


def _arrow_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    pairs = zip(cells, columns, strict=True)
    arrays = [a.cast(pa.string()) if c.kind == "categorical" else a for a, c in pairs]
    return pa.table(arrays, names=[column.name for column in columns])


_BUILDERS: dict[str, Callable[[list[pa.Array], tuple[Column, ...], Form], Any]] = {
    "numpy": _numpy_frame,
    "pandas": _pandas_frame,
    "polars": _polars_frame,
    "arrow": _arrow_frame,
}
