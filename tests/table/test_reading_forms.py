"""The same library's table goes out as came in, with types by the schema's kinds."""

import datetime
import json
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
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
def test_frames_come_back_by_their_kinds(name):
    """Whatever types came in: one row can change them."""
    frame = FRAMES[name]
    table = read_table(frame, SCHEMA)
    form = Form.from_dict(json.loads(json.dumps(table.form.to_dict())))
    assert form == table.form == Form(name.split()[0])
    back = form.frame(table.columns, SCHEMA)
    assert type(back) is type(frame)
    assert _types(back) == _types(FRAMES[name.split()[0]])
    again = read_table(back, SCHEMA)
    assert again.columns["age"].tolist() == AGES
    np.testing.assert_allclose(again.columns["dose"], DOSES, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float32", "float64", "O", "U8"])
@pytest.mark.parametrize("kind", ["integer", "continuous"])
def test_arrays_of_numbers(dtype, kind):
    schema = Schema(tuple(Column(name, kind, min=0, max=9) for name in ("x0", "x1")))
    array = np.array([[1, 2], [3, 4]]).astype(dtype)
    table = read_table(array, schema)
    back = table.form.frame(table.columns, schema)
    assert back.dtype == np.float64
    np.testing.assert_array_equal(back, [[1, 2], [3, 4]])


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


MIXED = Schema(
    (
        Column("sex", "categorical", categories=("M", "F"), nullable=True),
        Column("grade", "categorical", categories=("3", "1", "2"), nullable=True),
        Column("ill", "boolean", nullable=True),
        Column("age", "integer", min=0, max=120, nullable=True),
        Column("dose", "continuous", min=0, max=99, nullable=True),
        Column("seen", "date", min=0, max=3e9, nullable=True),
    )
)
SEXES, GRADES, ILLS = ["F", None, "M"], [1, None, 3], [True, None, False]
NUMBERS, MOMENT = [30, None, 40], datetime.datetime(2020, 5, 17, 12, 30, 15)
MOMENTS = [MOMENT, None, datetime.datetime(1969, 1, 2)]
DATES = [datetime.date(2020, 5, 17), None, datetime.date(1970, 1, 1)]
ARROW = {
    "plain": (pa.string(), pa.int64(), pa.bool_(), pa.int16(), pa.float32(), pa.timestamp("s")),
    "large": (
        pa.large_string(),
        pa.uint8(),
        pa.bool_(),
        pa.int64(),
        pa.float64(),
        pa.timestamp("ns", "Europe/Berlin"),
    ),
    "labels": (
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.int64(), ordered=True),
        pa.int8(),
        pa.int64(),
        pa.float64(),
        pa.date32(),
    ),
    "days": (pa.string(), pa.string(), pa.bool_(), pa.int64(), pa.float64(), pa.date64()),
}
PANDAS = {
    "plain": ("str", "Int64", "boolean", "float64", "float64", "datetime64[us]"),
    "nullable": ("string", "Int8", "boolean", "Int64", "Float32", "datetime64[s]"),
    "labels": ("category", "category", "object", "UInt8", "float32", "datetime64[ns, Asia/Tokyo]"),
    "objects": ("object", "object", "object", "Int64", "float64", "object"),
    "arrow": (
        "string[pyarrow]",
        "int64[pyarrow]",
        "bool[pyarrow]",
        "int32[pyarrow]",
        "double[pyarrow]",
        "timestamp[us][pyarrow]",
    ),
    "arrow days": ("str", "str", "boolean", "Int64", "Float64", "date32[day][pyarrow]"),
}
POLARS = {
    "plain": (pl.String, pl.Int64, pl.Boolean, pl.Int64, pl.Float64, pl.Datetime("us")),
    "labels": (pl.Categorical, pl.UInt8, pl.Int8, pl.Int8, pl.Float32, pl.Date),
    "enum": (
        pl.Enum(["M", "F"]),
        pl.Enum(["3", "1", "2"]),
        pl.Boolean,
        pl.UInt16,
        pl.Float64,
        pl.Datetime("ms", "Europe/Berlin"),
    ),
}


def _is_day(dtype):
    return str(dtype) in ("object", "Date", "date32[day]", "date64[ms]", "date32[day][pyarrow]")


def _is_text(dtype):
    return any(word in str(dtype).lower() for word in ("str", "object", "enum"))


def _cells(types, rows):
    grades = [grade if grade is None else str(grade) for grade in GRADES]
    cells = {
        "sex": SEXES,
        "grade": grades if _is_text(types[1]) else GRADES,
        "ill": ILLS,
        "age": NUMBERS,
        "dose": NUMBERS,
        "seen": DATES if _is_day(types[5]) else MOMENTS,
    }
    # without the middle row nothing is missing
    return {name: values if rows == 3 else values[::2] for name, values in cells.items()}


def _arrow_array(cells, dtype):
    if not pa.types.is_dictionary(dtype):
        return pa.array(cells).cast(dtype)
    known = ["M", "F"] if dtype.value_type == pa.string() else [3, 1, 2]
    codes = [None if cell is None else known.index(cell) for cell in cells]
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, dtype.index_type), pa.array(known, dtype.value_type), ordered=dtype.ordered
    )


def _arrow_table(types, rows):
    cells = _cells(types, rows)
    arrays = [_arrow_array(c, t) for c, t in zip(cells.values(), types, strict=True)]
    return pa.table(dict(zip(cells, arrays, strict=True)))


def _pandas_frame(types, rows):
    cells, series = _cells(types, rows), {}
    for (name, values), dtype in zip(cells.items(), types, strict=True):
        if "Asia" in dtype:
            moments = pd.Series(values, dtype="datetime64[ns]")
            series[name] = moments.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
        else:
            series[name] = pd.Series(values, dtype=object).astype(dtype)
    return pd.DataFrame(series)


def _polars_frame(types, rows):
    cells = _cells(types, rows)
    return pl.DataFrame(
        [
            pl.Series(name, values)
            .cast(pl.Datetime("ms"))
            .dt.replace_time_zone("UTC")
            .dt.convert_time_zone(dtype.time_zone)
            if getattr(dtype, "time_zone", None)
            else pl.Series(name, values).cast(dtype)
            for (name, values), dtype in zip(cells.items(), types, strict=True)
        ]
    )


MAKERS = {
    **{f"arrow {n}": (_arrow_table, types) for n, types in ARROW.items()},
    **{f"pandas {n}": (_pandas_frame, types) for n, types in PANDAS.items()},
    **{f"polars {n}": (_polars_frame, types) for n, types in POLARS.items()},
}


#: The type of each kind, where cells may be missing.
TYPES = {
    "arrow": ["string", "string", "bool", "int64", "double", "timestamp[s]"],
    "pandas": ["str", "str", "boolean", "Int64", "float64", "datetime64[s]"],
    "polars": [
        *("String", "String", "Boolean", "Int64", "Float64"),
        "Datetime(time_unit='ms', time_zone=None)",
    ],
}


@pytest.mark.parametrize("rows", [3, 2], ids=["with gaps", "without gaps"])
@pytest.mark.parametrize("name", MAKERS)
def test_tables_of_every_type_hold_the_same_cells(name, rows):
    make, types = MAKERS[name]
    table = read_table(make(types, rows), MIXED)
    expected = _cells(types, rows)
    days = any(_is_day(types[5]) and isinstance(d, datetime.date) for d in expected["seen"])
    expected |= {"grade": [None if g is None else str(g) for g in expected["grade"]]}
    for column in ("sex", "grade", "ill"):
        assert table.columns[column].tolist() == expected[column]
    for column in ("age", "dose"):
        np.testing.assert_array_equal(table.columns[column], np.array(expected[column], float))
    moments = np.array(expected["seen"], "datetime64[D]" if days else "datetime64[us]")
    np.testing.assert_array_equal(table.columns["seen"], moments.astype("datetime64[us]"))


@pytest.mark.parametrize("rows", [3, 2], ids=["with gaps", "without gaps"])
@pytest.mark.parametrize("name", MAKERS)
def test_tables_of_every_type_come_out_by_their_kinds(name, rows):
    make, types = MAKERS[name]
    table = read_table(make(types, rows), MIXED)
    form = Form.from_dict(json.loads(json.dumps(table.form.to_dict())))
    assert form == Form(name.split()[0])
    back = form.frame(table.columns, MIXED)
    assert [str(dtype) for dtype in _types(back)] == TYPES[form.kind]
    again = read_table(back, MIXED).columns
    for column in MIXED.names:
        np.testing.assert_array_equal(again[column], table.columns[column])


def test_labels_of_a_type_are_not_kept():
    """A frame's own list of labels may hold one that is not declared."""
    own = pd.Categorical(["F", "M"], categories=["F", "M", "one person's label"], ordered=True)
    schema = Schema((Column("sex", "categorical", categories=("M", "F")),))
    form = read_table(pd.DataFrame({"sex": own}), schema).form
    assert form == Form("pandas")
    back = form.frame({"sex": np.array(["F"], dtype=object)}, schema)
    assert str(back["sex"].dtype) == "str"


def test_types_do_not_depend_on_cells():
    """Pieces of one file must have one type, whatever is missing in each."""
    form = Form("arrow")
    full, empty = (
        {
            "sex": np.array([label], dtype=object),
            "grade": np.array([label and "1"], dtype=object),
            "ill": np.array([truth], dtype=object),
            "age": np.array([number]),
            "dose": np.array([number]),
            "seen": np.array([moment], dtype="datetime64[us]"),
        }
        for label, truth, number, moment in (("F", True, 3.0, 0), (None, None, np.nan, "NaT"))
    )
    assert form.frame(full, MIXED).schema == form.frame(empty, MIXED).schema
    assert form.frame(empty, MIXED).to_pylist() == [dict.fromkeys(MIXED.names)]


def test_whole_days_stay_whole_days():
    cells = {"seen": np.array(["2020-05-17T12:30:15"], dtype="datetime64[us]")}
    days = Schema((Column("seen", "date", min=0, max=3e9, unit="day"),))
    assert Form("arrow").frame(cells, days)["seen"].to_pylist() == [datetime.date(2020, 5, 17)]
    own = Form("pandas").frame(cells, days)["seen"]
    assert own.tolist() == [pd.Timestamp("2020-05-17")]
    assert str(own.dtype) == "datetime64[s]"


def test_moments_that_nanoseconds_cannot_count():
    far = Schema((Column("seen", "date", min=0, max=2e11),))
    cells = {"seen": np.array(["5000-01-01"], dtype="datetime64[us]")}
    assert Form("pandas").frame(cells, far)["seen"].dt.year.tolist() == [5000]


@pytest.mark.parametrize("dtype", [object, str])
def test_arrays_of_every_kind(dtype):
    rows = [["F", "1", True, 30, 1.5], ["M", "3", False, 40, 2.5]]
    schema = Schema(MIXED.columns[:5])
    array = np.array(rows, dtype=dtype)
    table = read_table(array, schema)
    back = table.form.frame(table.columns, schema)
    assert back.dtype == object
    assert back.shape == array.shape
    again = read_table(back, schema).columns
    for name in schema.names:
        assert again[name].tolist() == table.columns[name].tolist()


def test_a_text_file_of_what_was_drawn_reads_back(tmp_path):
    """Labels with blanks, quotes or words for nothing are told from missing cells."""
    labels = (" F", 'M"', "NA", "a,b", "1")
    schema = Schema(
        (
            Column("sex", "categorical", categories=labels, nullable=True),
            *MIXED.columns[1:5],
            Column("seen", "date", min=0, max=3e9, nullable=True),
            Column("born", "date", min=0, max=3e9, nullable=True, unit="day"),
        )
    )
    moments = np.array(["2020-05-17T12:30:15", "NaT"] * 3, dtype="datetime64[us]")
    columns = {
        "sex": np.array([*labels, None], dtype=object),
        "grade": np.array(["1", "2", "3", None, "1", "2"], dtype=object),
        "ill": np.array([True, False, None] * 2, dtype=object),
        "age": np.array([0.0, 120, np.nan] * 2),
        "dose": np.array([0.1, 1 / 3, np.nan] * 2),
        "seen": moments,
        "born": moments.astype("datetime64[D]").astype("datetime64[us]"),
    }
    path = tmp_path / "t.csv"
    pyarrow.csv.write_csv(Form("arrow").frame(columns, schema), path)
    assert "2020-05-17 12:30:15,2020-05-17\n" in path.read_text()
    back = read_table(path, schema)
    assert back.outside == 0
    for name, values in columns.items():
        np.testing.assert_array_equal(back.columns[name], values)


@pytest.mark.parametrize(
    "hostile",
    [
        None,
        [],
        {},
        {"kind": "os.system"},
        {"kind": ["pandas"]},
        {"kind": "numpy", "dtypes": {}, "has_integer_labels": 1},
    ],
)
def test_hostile_forms(hostile):
    with pytest.raises(InputError):
        Form.from_dict(hostile)


def test_types_that_version_0_1_kept_are_left_aside():
    """Whatever a file says about them."""
    for dtypes in ({"age": "int16"}, {"a": "os.system"}, [], None):
        assert Form.from_dict({"kind": "pandas", "dtypes": dtypes}) == Form("pandas")


def test_polars_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="polars is not installed; run: pip install polars"):
        Form("polars").frame({"age": np.ones(1), "dose": np.zeros(1)}, SCHEMA)
