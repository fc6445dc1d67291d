"""Tables in memory: arrays and frames of every kind."""

import datetime
import decimal
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from dpflows.errors import InputError
from dpflows.table import Column, Schema, Table, raw, read_file, read_table
from table.bad_files import stream

pl = pytest.importorskip("polars")

SCHEMA = Schema(
    (Column("age", "integer", min=0, max=120), Column("dose", "continuous", min=0, max=9))
)
DATA = {"age": [30, 40, 130], "dose": [1.5, -2.5, 3.5]}
MAKERS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}


@pytest.mark.parametrize("kind", MAKERS)
def test_frames(kind):
    table = read_table(MAKERS[kind](DATA), SCHEMA)
    assert table.form.kind == kind
    assert table.rows == 3
    assert table.outside == 2
    assert table.matrix.dtype == np.float64
    np.testing.assert_array_equal(table.matrix.T, list(DATA.values()))


@pytest.mark.parametrize("kind", MAKERS)
def test_frames_in_another_order_with_extra_columns(kind):
    frame = MAKERS[kind]({"name": ["a", "b", "c"], **dict(reversed(DATA.items()))})
    with pytest.raises(InputError, match="has 1 column that the schema does not declare"):
        read_table(frame, SCHEMA)
    table = read_table(frame, SCHEMA, drop_extra=True)
    np.testing.assert_array_equal(table.matrix.T, list(DATA.values()))


@pytest.mark.parametrize("kind", MAKERS)
def test_kinds_are_proposed_from_types(kind):
    frame = MAKERS[kind](
        {
            "a": [1, 2],
            "b": [0.5, 1],
            "c": ["x", "y"],
            "d": [True, False],
            "e": [datetime.datetime(2020, 1, 1), datetime.datetime(2021, 1, 1)],
        }
    )
    schema = Schema.from_frame(frame)
    assert [column.kind for column in schema.columns] == [
        "integer",
        "continuous",
        "categorical",
        "boolean",
        "date",
    ]
    assert schema.undeclared() == ("a", "b", "c", "e")
    assert not schema.values_read


@pytest.mark.parametrize("kind", MAKERS)
def test_without_a_schema_every_column_is_continuous(kind):
    """A type would tell: one fraction makes floats of whole numbers."""
    schemas = [read_table(MAKERS[kind]({"a": [last, 1]})).schema for last in (2, 2.5)]
    assert schemas[0] == schemas[1] == Schema((Column("a", "continuous"),))


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1, 2], [3, 4]]),
        np.array([[1, 2], [3, 4]], dtype=np.float32),
        np.array([[1, 2], [3, 4]], dtype=">i2"),
        np.array([[1, 2], [3, 4]], dtype=np.longdouble),
        np.array([[1, 2], [3, 4]], dtype=object),
        np.array([["1", "2"], ["3", "4"]]),
        np.asfortranarray([[1.0, 2], [3, 4]]),
        np.array([[0, 1.0, 9, 2], [0, 3, 9, 4]])[:, 1::2],
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays(array):
    table = read_table(array, Schema.from_bounds([0, 0], 9))
    assert table.form.kind == "numpy"
    np.testing.assert_array_equal(table.matrix, [[1, 2], [3, 4]])


def test_masked_cells_are_missing():
    array = np.ma.masked_array([[1, 2], [3, 4]], mask=[[False, False], [True, False]])
    with pytest.raises(InputError, match="column 'x0' must be filled, got 1 cell .* row 2;"):
        read_table(array, Schema.from_bounds([0, 0], 9))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros(3), "array must have two dimensions, .* got 1; .*reshape"),
        (np.zeros((2, 2, 2)), "array must have two dimensions"),
        (np.zeros((0, 2)), "table has no rows"),
        (np.zeros((2, 0)), "table has no columns"),
        (np.zeros((2, 3)), "array has 3 columns, the schema declares 2"),
        (np.zeros((2, 2), dtype=complex), "array must hold numbers, text"),
        (np.zeros(2, dtype=[("a", float), ("b", float)]), "structured arrays are not accepted"),
        (np.array([[1, np.nan], [1, 2]]), "column 'dose' must be filled, got 1 cell .* row 1"),
        (np.array([[1, 1], [1, np.inf]]), "column 'dose' must hold finite numbers, got 1 cell"),
        (np.array([[1.5, 1]]), "column 'age' is declared integer, got 1 cell with a fraction"),
        ([[1, 2]], "table must be a numpy array.*, got list; convert it"),
        (None, "table must be a numpy array.*, got NoneType; convert it"),
        (pd.Series([1, 2]), r"for a Series use .to_frame\(\)"),
        (pl.Series([1, 2]), r"for a Series use .to_frame\(\)"),
        (pl.LazyFrame(DATA), r"LazyFrame holds no rows yet; call .collect\(\) first"),
        (pd.DataFrame(DATA).iloc[:0], "table has no rows"),
        (pl.DataFrame(), "table has no rows"),
        (pd.DataFrame([[1, 2, 3]], columns=["age", "age", "dose"]), "more than one column of"),
        (pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([(1, 2), (3, 4)])), "one level"),
        (pd.DataFrame({"age": [1, "x", b"y"], "dose": 1.0}), "got 2 cells .* the first in row 2"),
        (pd.DataFrame({"age": [1, object()], "dose": 1.0}), "got 1 cell of another form, .* row 2"),
        (pd.DataFrame({"age": [1j], "dose": 1.0}), "got 1 cell of another form, .* row 1"),
        (pd.DataFrame({"age": pd.arrays.IntervalArray.from_breaks([0, 1]), "dose": 1.0}), "age"),
        (pd.DataFrame({"age": [10**400], "dose": 1.0}), "got 1 cell of another form, .* row 1"),
        (
            pl.DataFrame({"age": [[1]], "dose": [1.0]}),
            "column 'age' has a type that tables may not",
        ),
        (pd.DataFrame({"age": ["x", "1"], "dose": 1.0}), "column 'age' must hold numbers, got 1"),
        (pd.DataFrame({"age": pd.array([1, None], "Int64"), "dose": 1.0}), "must be filled"),
    ],
)
def test_bad_tables(source, message):
    with pytest.raises(InputError, match=message) as caught:
        read_table(source, SCHEMA)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        pd.array([1, 2], "Int8"),
        pd.array([1, 2], "int64[pyarrow]"),
        pd.array([1, 2], "Float32"),
        pd.Categorical([1, 2]),
        pd.arrays.SparseArray([1, 2]),
        pd.array(["1", "2"], "string"),
        [decimal.Decimal("1"), decimal.Decimal("2")],
        np.array([1, 2], np.float16),
    ],
    ids=lambda values: type(values).__name__,
)
def test_numbers_in_many_pandas_types(values):
    frame = pd.DataFrame({"age": values, "dose": [1.0, 2.0]})
    assert read_table(frame, SCHEMA).columns["age"].tolist() == [1.0, 2.0]


def test_booleans_may_be_declared_integers():
    frame = pd.DataFrame({"age": [True, False], "dose": [1.0, 2.0]})
    assert read_table(frame, SCHEMA).columns["age"].tolist() == [1.0, 0.0]


def test_numbers_may_be_declared_booleans():
    frame = pd.DataFrame({"alive": [1.0, 0.0, np.nan]})
    table = read_table(frame, Schema((Column("alive", "boolean", nullable=True),)))
    assert table.columns["alive"].tolist() == [True, False, None]


def test_header_is_for_text():
    with pytest.raises(InputError, match="header is for text files"):
        read_table(np.zeros((2, 2)), header=True)


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
def test_parquet(codec, tmp_path):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table(DATA), path, compression=codec)
    np.testing.assert_array_equal(read_file(path, SCHEMA).matrix.T, list(DATA.values()))


def test_arrow_files_and_streams(tmp_path):
    table = pa.table(DATA)
    pyarrow.feather.write_feather(table, tmp_path / "t.feather")
    (tmp_path / "t.arrow").write_bytes(stream(**DATA))
    for name in ("t.feather", "t.arrow"):
        read = read_file(str(tmp_path / name), SCHEMA)
        np.testing.assert_array_equal(read.matrix.T, list(DATA.values()))


def test_a_parquet_file_that_claims_too_many_cells(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({"age": np.zeros(1000, int)}), path)
    monkeypatch.setattr(raw, "MAX_CELLS", 999)
    with pytest.raises(InputError, match="at most 999 cells"):
        read_file(path)


def test_an_arrow_file_of_too_many_cells(tmp_path, monkeypatch):
    """Columns of nothing take no room, so that a short file may claim any length."""
    path = tmp_path / "t.arrow"
    path.write_bytes(stream(age=pa.nulls(1000)))
    monkeypatch.setattr(raw, "MAX_CELLS", 999)
    with pytest.raises(InputError, match="at most 999 cells"):
        read_file(path)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            Column("sex", "categorical"),
            "column 'sex' is categorical: not yet supported by this estimator; "
            "use DPDensity with a schema, which models it, drop it, or declare it continuous or "
            "integer",
        ),
        (
            Column("sex", "integer", nullable=True),
            "column 'sex' is nullable: not yet supported by this estimator; "
            "use DPDensity with a schema, which models missing cells, or fill them and declare "
            "nullable = false, or drop it",
        ),
    ],
)
def test_what_is_not_yet_modelled_is_said(column, message):
    table = read_table(pd.DataFrame({"sex": [1, 2]}), Schema((column,)))
    with pytest.raises(InputError) as caught:
        _ = table.matrix
    assert str(caught.value) == message


def test_a_table_without_schema_is_spoken_of_by_numbers():
    with pytest.raises(InputError, match="column number 1 must hold numbers, got 1 cell"):
        read_table(pd.DataFrame({"smith": ["a"]}))


def test_nothing_of_the_rows_is_printed():
    table = read_table(pd.DataFrame({"age": [77], "dose": [66.5]}), SCHEMA)
    assert isinstance(table, Table)
    assert not {"77", "66.5", "outside"} & set(repr(table).replace("=", " ").split())


def test_polars_is_loaded_only_for_polars(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    assert read_table(pd.DataFrame(DATA), SCHEMA).rows == 3
