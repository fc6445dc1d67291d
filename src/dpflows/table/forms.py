"""The kind of table that came in, so that the same kind goes out."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpflows.errors import InputError
from dpflows.table.cells import is_text
from dpflows.table.columns import Column
from dpflows.table.dtypes import Dtype, dtype_of, public_name
from dpflows.table.schema import Schema
from dpflows.table.sources import Source
from dpflows.table.typed import typed

FORMS = ("numpy", "pandas", "polars", "arrow")


@final
@dataclass(frozen=True)
class Form:
    """What a table was, without any of its rows.

    Args:
        kind: One of ``FORMS``.
        dtypes: Types of columns in the library's own words, without labels.
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
        if any(dtype_of(self.kind, own) is None for own in self.dtypes.values()):
            raise InputError("form of the table names a column type that is not known")

    @classmethod
    def of(cls, source: Source, schema: Schema) -> "Form":
        """The form of a table; types that are not known are left to the schema.

        Guarantee:
            Types are taken as public where no cell may be missing. Where one may, pandas and
            numpy would tell by the type whether one is: there the schema decides.
        """
        triples = zip(source.names, source.dtypes, source.cells, strict=False)
        named = {name: public_name(source.kind, own, c.type) for name, own, c in triples}
        named |= {c.name: unmoved(source.kind, named.get(c.name, ""), c) for c in schema.columns}
        if source.kind == "numpy" and any(column.nullable for column in schema.columns):
            # an array's one type changes with a gap anywhere, unless gaps are words or dates
            named = {n: own for n, own in named.items() if own == "str" or own[:4] == "date"}
        known = {name: own for name, own in named.items() if dtype_of(source.kind, own)}
        return cls(source.kind, known, source.has_integer_labels)

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
        """Columns as the kind of table that came in, each with the type that came in."""
        cells = [typed(columns[c.name], c, self.dtype(c.name)) for c in schema.columns]
        return _BUILDERS[self.kind](cells, schema.columns, self)

    def label(self, name: str) -> str | int:
        """A pandas frame's own label of a column."""
        return int(name) if self.has_integer_labels and name.lstrip("-").isdecimal() else name

    def dtype(self, name: str) -> Dtype:
        """The type of a column; an empty one if it is not known."""
        return dtype_of(self.kind, self.dtypes.get(name, "")) or Dtype()


def unmoved(library: str, own: str, column: Column) -> str:
    """A column's type, or one that does not tell whether a cell is missing.

    Example:
        >>> age = Column("age", "integer", nullable=True)
        >>> unmoved("pandas", "int64", age), unmoved("pandas", "float64", age)
        ('Int64', 'Int64')
    """
    if not column.nullable or library != "pandas" or own.endswith("[pyarrow]"):
        return own
    is_plain = own in (*_WITHOUT_GAPS, "object") or own.startswith("float")
    if column.kind == "integer":
        return "Int64" if is_plain else own
    if column.kind == "boolean":
        return "boolean" if is_plain else own
    if column.kind == "continuous":
        return "float64" if own in (*_WITHOUT_GAPS, "object") else own
    if column.kind == "date":
        return "object[date]" if own == "object" and column.counts_days else own
    return "" if own in _WITHOUT_GAPS or own.startswith("float") else own


def _numpy_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> np.ndarray:
    sorts = {form.dtype(column.name).sort for column in columns}
    if "text" in sorts:
        text = [
            ["" if cell is None else str(cell) for cell in array.to_pylist()] for array in cells
        ]
        return np.array(text, dtype=str).T
    arrays = [_vector(array) for array in cells]
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1 and all(dtype.kind in "fiu" for dtype in dtypes):
        return np.column_stack([array.astype(np.float64) for array in arrays])
    if len(dtypes) > 1 or "object" in sorts:
        return np.column_stack([_objects(array) for array in cells])
    return np.column_stack(arrays)


def _vector(array: pa.Array) -> np.ndarray:
    """A column in the shortest type of numpy; missing numbers are not numbers."""
    if array.null_count and pa.types.is_boolean(array.type):
        return _objects(array)
    return array.to_numpy(zero_copy_only=False)


def _objects(array: pa.Array) -> np.ndarray:
    objects = np.empty(len(array), dtype=object)
    objects[:] = array.to_pylist()
    return objects


def _pandas_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    import pandas as pd

    series = {
        form.label(column.name): _series(array, column, form.dtype(column.name))
        for array, column in zip(cells, columns, strict=True)
    }
    return pd.DataFrame(series)


def _series(array: pa.Array, column: Column, dtype: Dtype) -> Any:
    import pandas as pd

    if dtype.sort == "labels" and column.kind == "categorical":
        return pd.Series(_categories(array, column, "ordered" in dtype.own))
    if dtype.own.startswith("object"):
        return pd.Series(_objects(array), dtype=object)
    if pa.types.is_temporal(array.type):
        return _moments(array, dtype)
    own = _pandas_dtype(array, column, dtype)
    if isinstance(own, np.dtype):
        return pd.Series(array.to_numpy(zero_copy_only=False).astype(own))
    return pd.Series(own.__from_arrow__(pa.chunked_array([array])))


def _categories(array: pa.Array, column: Column, is_ordered: bool) -> Any:
    import pandas as pd

    labels = pa.array(column.categories or (), pa.large_string()).cast(array.type).to_pylist()
    known = labels or sorted(set(array.drop_null().to_pylist()))
    return pd.Categorical(array.to_pylist(), categories=known, ordered=is_ordered)


def _moments(array: pa.Array, dtype: Dtype) -> Any:
    import pandas as pd

    if dtype.own.endswith("[pyarrow]"):
        return pd.Series(pd.array(pa.chunked_array([array]), dtype=pd.ArrowDtype(array.type)))
    # days without a type of their own are midnights
    plain = array.cast(pa.timestamp("s")) if pa.types.is_date(array.type) else array
    moments = pd.Series(plain.to_numpy(zero_copy_only=False))
    return moments.dt.tz_localize("UTC").dt.tz_convert(dtype.zone) if dtype.zone else moments


def _pandas_dtype(array: pa.Array, column: Column, dtype: Dtype) -> Any:
    """The original type, or one like it that holds the cells."""
    import pandas as pd

    own = dtype.own if _is_same(array, column, dtype) else _like(array.type)
    if column.nullable and own in _WITHOUT_GAPS:
        own = "boolean" if own == "bool" else own.replace("i", "I").replace("u", "U")
    return pd.api.types.pandas_dtype(own)


#: Types of pandas that have no word for a missing cell.
_WITHOUT_GAPS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


def _is_same(array: pa.Array, column: Column, dtype: Dtype) -> bool:
    if dtype.sort != "number":
        return dtype.sort == {"bool": "truth", "str": "text"}.get(_like(array.type))
    # pandas has floats for whole numbers some of which are missing
    kept = column.nullable and dtype.own == dtype.numpy and not dtype.is_integer
    return _like(array.type) == dtype.numpy or (kept and pa.types.is_integer(array.type))


def _like(held: pa.DataType) -> str:
    """A plain type of pandas for an Arrow type."""
    return "str" if is_text(held) else np.dtype(held.to_pandas_dtype()).name


def _polars_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    try:
        import polars as pl
    except ImportError:
        raise InputError("polars is not installed; run: pip install polars") from None
    series = []
    for array, column in zip(cells, columns, strict=True):
        one, own = pl.Series(column.name, array), form.dtype(column.name).own
        if own == "Categorical" and one.dtype == pl.String:
            one = one.cast(pl.Categorical)
        elif own == "Enum" and column.categories:
            one = one.cast(pl.Enum(column.categories), strict=False)
        series.append(one)
    return pl.DataFrame(series)


def _arrow_frame(cells: list[pa.Array], columns: tuple[Column, ...], form: Form) -> Any:
    arrays = [
        _arrow_column(array, column, form.dtype(column.name))
        for array, column in zip(cells, columns, strict=True)
    ]
    return pa.table(arrays, names=[column.name for column in columns])


def _arrow_column(array: pa.Array, column: Column, dtype: Dtype) -> pa.Array:
    if dtype.sort == "labels" and column.categories:
        return _dictionary(array, column.categories, dtype)
    if is_text(array.type):
        return array if dtype.own == "large_string" else array.cast(pa.string())
    is_day = dtype.own == "date64[ms]" and pa.types.is_temporal(array.type)
    return array.cast(pa.date64()) if is_day else array


def _dictionary(array: pa.Array, labels: tuple[str, ...], dtype: Dtype) -> pa.Array:
    values, _, rest = dtype.own.removeprefix("dictionary<values=").partition(", indices=")
    indices, ordered = rest.split(", ordered=")
    wanted = pa.type_for_alias(values) if values != "int64" else array.type
    known = pa.array(labels, pa.large_string()).cast(wanted)
    room = indices if len(labels) <= np.iinfo(indices).max else "int32"
    found = pc.index_in(array.cast(wanted), value_set=known)
    codes = found.cast(pa.type_for_alias(room))
    return pa.DictionaryArray.from_arrays(codes, known, ordered=ordered.startswith("1"))


_BUILDERS: dict[str, Callable[[list[pa.Array], tuple[Column, ...], Form], Any]] = {
    "numpy": _numpy_frame,
    "pandas": _pandas_frame,
    "polars": _polars_frame,
    "arrow": _arrow_frame,
}
