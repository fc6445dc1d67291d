"""The same kind of table goes out as came in."""

import json
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpflows.errors import InputError
from dpflows.table import Column, Form, Schema, read_table

pl = pytest.importorskip("polars")

SCHEMA = Schema(
    (Column("age", "integer", min=0, max=120), Column("dose", "continuous", min=0, max=0.1))
)
AGES, DOSES = [30, 40], [0.05, 0.1]

FRAMES = {
    "pandas": pd.DataFrame({"age": AGES, "dose": DOSES}),
    "pandas small": pd.DataFrame({"age": np.uint8(AGES), "dose": np.float32(DOSES)}),
    "pandas nullable": pd.DataFrame(
        {"age": pd.array(AGES, "Int16"), "dose": pd.array(DOSES, "Float64")}
    ),
    "pandas arrow": pd.DataFrame(
        {"age": pd.array(AGES, "int32[pyarrow]"), "dose": pd.array(DOSES, "float[pyarrow]")}
    ),
    "polars": pl.DataFrame({"age": AGES, "dose": DOSES}),
    "polars small": pl.DataFrame(
        {"age": AGES, "dose": DOSES}, schema={"age": pl.UInt8, "dose": pl.Float32}
    ),
    "arrow": pa.table({"age": AGES, "dose": DOSES}),
    "arrow small": pa.table(
        {"age": pa.array(AGES, pa.int8()), "dose": pa.array(DOSES, pa.float32())}
    ),
}


def _types(frame):
    return list(frame.schema.types) if isinstance(frame, pa.Table) else list(frame.dtypes)


@pytest.mark.parametrize("name", FRAMES)
def test_frames_come_back_as_they_were(name):
    frame = FRAMES[name]
    table = read_table(frame, SCHEMA)
    form = Form.from_dict(json.loads(json.dumps(table.form.to_dict())))
    assert form == table.form
    back = form.frame(table.columns, SCHEMA)
    assert type(back) is type(frame)
    assert _types(back) == _types(frame)
    again = read_table(back, SCHEMA)
    assert again.columns["age"].tolist() == AGES
    np.testing.assert_allclose(again.columns["dose"], DOSES, rtol=1e-6)


@pytest.mark.parametrize("name", FRAMES)
def test_short_types_do_not_round_beyond_the_bounds(name):
    """The nearest single-precision number to 0.1 is above it."""
    columns = {"age": np.array([0.0, 120]), "dose": np.array([0.0, 0.1])}
    back = read_table(FRAMES[name], SCHEMA).form.frame(columns, SCHEMA)
    assert read_table(back, SCHEMA).outside == 0


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float32", "float64"])
def test_arrays_of_integers(dtype):
    schema = Schema((Column("x0", "integer", min=0, max=9), Column("x1", "integer", min=0, max=9)))
    array = np.array([[1, 2], [3, 4]], dtype=dtype)
    table = read_table(array, schema)
    back = table.form.frame(table.columns, schema)
    assert back.dtype == (dtype if "int" in dtype else "int64")
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
def test_arrays_of_real_numbers(dtype):
    schema = Schema.from_bounds([0, 0], 9)
    table = read_table(np.array([[1, 2]], dtype=dtype), schema)
    back = table.form.frame(table.columns, schema)
    assert back.dtype == (dtype if "float" in dtype else "float64")


def test_arrays_of_both():
    schema = Schema((Column("x0", "integer", min=0, max=9), Column("x1", "continuous")))
    table = read_table(np.array([[1, 2.5]]), schema)
    assert table.form.frame(table.columns, schema).tolist() == [[1.0, 2.5]]


def test_a_type_too_small_for_the_bounds_grows():
    schema = Schema(
        (Column("a", "integer", min=0, max=300), Column("b", "continuous", min=0, max=1e6))
    )
    frame = pd.DataFrame({"a": np.int8([1]), "b": np.float16([1])})
    form = read_table(frame, schema).form
    back = form.frame({"a": np.array([300.0]), "b": np.array([1e6])}, schema)
    assert [str(dtype) for dtype in back.dtypes] == ["int64", "float64"]
    assert back.iloc[0].tolist() == [300, 1e6]


def test_pandas_labels_that_are_numbers():
    frame = pd.DataFrame(np.zeros((2, 3)))
    table = read_table(frame)
    assert table.schema.names == ("0", "1", "2")
    back = table.form.frame(table.columns, table.schema)
    pd.testing.assert_frame_equal(back, frame, check_column_type=False)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "numpy"])
def test_other_kinds_pass_through(kind):
    schema = Schema((Column("a", "categorical"), Column("b", "boolean"), Column("c", "date")))
    columns = {
        "a": np.array(["x", None], dtype=object),
        "b": np.array([True, False]),
        "c": np.array(["2020-01-01", "NaT"], dtype="datetime64[us]"),
    }
    frame = Form(kind).frame(columns, schema)
    if kind == "numpy":
        assert frame.shape == (2, 3)
        return
    nullable = Schema(tuple(Column(c.name, c.kind, nullable=True) for c in schema.columns))
    back = read_table(frame, nullable)
    assert back.columns["a"].tolist() == ["x", None]
    assert back.columns["b"].tolist() == [True, False]
    np.testing.assert_array_equal(back.columns["c"], columns["c"])


@pytest.mark.parametrize(
    "hostile",
    [
        None,
        [],
        {},
        {"kind": "os.system"},
        {"kind": ["pandas"]},
        {"kind": "pandas", "dtypes": []},
        {"kind": "pandas", "dtypes": {"a": 5}},
        {"kind": "pandas", "dtypes": {"a": "object"}},
        {"kind": "polars", "dtypes": {"a": "int8"}},
        {"kind": "numpy", "dtypes": {"a": "O"}},
        {"kind": "numpy", "dtypes": {}, "has_integer_labels": 1},
    ],
)
def test_hostile_forms(hostile):
    with pytest.raises(InputError):
        Form.from_dict(hostile)


def test_polars_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="polars is not installed; run: pip install polars"):
        Form("polars").frame({"age": np.ones(1), "dose": np.zeros(1)}, SCHEMA)
