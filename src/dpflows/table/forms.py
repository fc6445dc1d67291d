"""The kind of table that came in, so that the same kind goes out."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np

from dpflows.errors import InputError
from dpflows.table.columns import Column
from dpflows.table.schema import Schema
from dpflows.table.sources import Source

FORMS = ("numpy", "pandas", "polars", "arrow")

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_PLAIN = {name: name for name in [*_INTEGERS, "float16", "float32", "float64"]}
_ARROW = {name: name for name in _INTEGERS} | {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
_POLARS = {
    **{name.replace("i", "I").replace("u", "U"): name for name in _INTEGERS},
    "Float32": "float32",
    "Float64": "float64",
}

#: The numeric types of each library, by its own name, and what numpy calls them.
DTYPES: dict[str, dict[str, str]] = {
    "numpy": _PLAIN,
    "pandas": _PLAIN | _POLARS | {f"{own}[pyarrow]": name for own, name in _ARROW.items()},
    "polars": _POLARS,
    "arrow": _ARROW,
}


@final
@dataclass(frozen=True)
class Form:
    """What a table was, without any of its rows.

    Args:
        kind: One of ``FORMS``.
        dtypes: Types of numeric columns in the library's own words.
        has_integer_labels: Whether a pandas frame named its columns by numbers.

    Example:
        >>> form = Form("numpy", {"x0": "int16"})
        >>> schema = Schema((Column("x0", "integer", min=0, max=9),))
        >>> form.frame({"x0": np.array([3.0])}, schema).dtype.name
        'int16'
    """

    kind: str
    dtypes: dict[str, str] = field(default_factory=dict)
    has_integer_labels: bool = False

    def __post_init__(self) -> None:
        if self.kind not in FORMS:
            raise InputError(f"kind of table must be one of {', '.join(FORMS)}")
        if not all(dtype in DTYPES[self.kind] for dtype in self.dtypes.values()):
            raise InputError("form of the table names a column type that is not known")

    @classmethod
    def of(cls, source: Source) -> "Form":
        """The form of a table; types that are not numeric are left to the schema."""
        known = DTYPES[source.kind]
        pairs = zip(source.names, source.dtypes or ("",) * len(source.names), strict=True)
        dtypes = {name: dtype for name, dtype in pairs if dtype in known}
        return cls(source.kind, dtypes, source.has_integer_labels)

    @classmethod
    def from_dict(cls, description: Any) -> "Form":
        """Read back ``to_dict``; the content may be hostile."""
        if not isinstance(description, dict):
            raise InputError("form of the table must be a dictionary")
        kind, dtypes = description.get("kind"), description.get("dtypes", {})
        labels = description.get("has_integer_labels", False)
        if not isinstance(kind, str) or not isinstance(dtypes, dict) or type(labels) is not bool:
            raise InputError("form of the table must hold a kind, column types and a flag")
        if not all(isinstance(text, str) for pair in dtypes.items() for text in pair):
            raise InputError("column types in the form of the table must be text")
        return cls(kind, dict(dtypes), labels)

    def to_dict(self) -> dict[str, Any]:
        """The form as plain JSON."""
        return asdict(self)

    def frame(self, columns: Mapping[str, np.ndarray], schema: Schema) -> Any:
        """Columns as the kind of table that came in, with integers as integers."""
        values = {
            column.name: _typed(columns[column.name], column, self._numpy_dtype(column.name))
            for column in schema.columns
        }
        return _BUILDERS[self.kind](values, self)

    def label(self, name: str) -> str | int:
        """A pandas frame's own label of a column."""
        return int(name) if self.has_integer_labels and name.lstrip("-").isdecimal() else name

    def _numpy_dtype(self, name: str) -> str:
        return DTYPES[self.kind].get(self.dtypes.get(name, ""), "")


def _typed(values: np.ndarray, column: Column, dtype: str) -> np.ndarray:
    if column.kind == "integer" and not np.isnan(values).any():
        return values.astype(_roomy(column, dtype, "iu", "int64"))
    if column.kind == "continuous":
        return _rounded_inward(values, column, _roomy(column, dtype, "f", "float64"))
    return values


def _roomy(column: Column, dtype: str, codes: str, default: str) -> str:
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


def _numpy_frame(values: dict[str, np.ndarray], form: Form) -> np.ndarray:
    dtypes = {array.dtype for array in values.values()}
    if len(dtypes) > 1 and all(dtype.kind in "fiu" for dtype in dtypes):
        return np.column_stack([array.astype(np.float64) for array in values.values()])
    return np.column_stack(list(values.values()))


def _pandas_frame(values: dict[str, np.ndarray], form: Form) -> Any:
    import pandas as pd

    series = {
        form.label(name): pd.Series(array).astype(_pandas_dtype(array, form.dtypes.get(name)))
        for name, array in values.items()
    }
    return pd.DataFrame(series)


def _pandas_dtype(array: np.ndarray, own: str | None) -> Any:
    # the original type may have been too small for the declared bounds
    fits = own is not None and DTYPES["pandas"][own] == array.dtype.name
    return own if fits else array.dtype


def _polars_frame(values: dict[str, np.ndarray], form: Form) -> Any:
    try:
        import polars as pl
    except ImportError:
        raise InputError("polars is not installed; run: pip install polars") from None
    return pl.DataFrame({name: _polars_ready(array) for name, array in values.items()})


def _polars_ready(array: np.ndarray) -> Any:
    return array.tolist() if array.dtype == object else array


def _arrow_frame(values: dict[str, np.ndarray], form: Form) -> Any:
    import pyarrow as pa

    return pa.table({name: pa.array(array) for name, array in values.items()})


_BUILDERS: dict[str, Callable[[dict[str, np.ndarray], Form], Any]] = {
    "numpy": _numpy_frame,
    "pandas": _pandas_frame,
    "polars": _polars_frame,
    "arrow": _arrow_frame,
}
