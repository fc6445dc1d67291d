"""What a cell means depends on its own row and on declarations, whatever other rows hold.

Every test reads two tables that differ in one row, and compares all the others.
"""

import dataclasses
import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from dpflows.errors import InputError
from dpflows.table import Column, Schema, TextFormat, read_table, sources
from dpflows.table.reading import MixedEncoding

pl = pytest.importorskip("polars")

MISSING = TextFormat(unreadable="missing")
SCHEMA = Schema(
    (
        Column("town", "categorical", categories=("Zürich", "0,5", "1,5", "none"), nullable=True),
        Column("age", "integer", min=0, max=120, nullable=True),
        Column("dose", "continuous", min=0, max=9, nullable=True),
        Column("ill", "boolean", nullable=True),
        Column("seen", "date", min=0, max=3e9, nullable=True),
    )
)
ROWS = [
    "Zürich,30,1.5,true,2020-01-01",
    '"0,5",31,2.5,no,2020-01-02T10:00',
    '"1,5",,0.5,1,NA',
    "none,33,1e-1,f,1969-12-31",
]
#: What one row may become: bytes that used to change how others are read, or whether they are.
LINES = [
    *(b"none,33.5,1,1,2020-01-01", b"none,x,x,x,x", b",,,,", b"0;5,1;0,1;5,1,2020-01-01"),
    *(b"Z\xfcrich,1,1,1,2020-01-01", b"\xff\xfe", b"\xef\xbb\xbfnone,1,1,1,", b"\xc3,1,1,1,"),
    *(b'"none,1,1,1,2020-01-01', b'none","1,1,1,"', b'"none"x,1,1,1,', b'"', b'"""', b'""""'),
    *(b"none,1,1,1", b"none,1,1,1,,,", b"", b" ", b"none", b"\r", b"none\r1,1,1,1"),
    *(b"none,\x00,1,1,", b"none,\x1a,1,1,", b"\x0b\x0c\x1c\x85", b"x" * (2**22 + 9)),
    *(b'"a\nb",1,1,1,'.replace(b"\n", b" "), b"none,1,1,1,2020-01-01T00:00:00Z"),
    *(b"none,1e400,-inf,2,9999-99-99", b"NA,NA,NA,NA,NA", b"none,1_0,0x1,yes,0000-01-01"),
    *(b'"1,000","1,000","1,000",1,', b"\xe2\x80\xa8,1,1,1,", b"\xed\xa0\x80,1,1,1,"),
]


def encodings(table):
    """All that is kept of rows, and all that is kept beside them."""
    points = MixedEncoding(table.schema).encode(table, lambda count: np.full(count, 0.5))
    return points, table.columns, (table.schema.to_dict(), table.form.to_dict())


def check_others(one, two, changed):
    """Everything but one row is the same to the last bit."""
    (points, columns, header), (points2, columns2, header2) = encodings(one), encodings(two)
    assert header == header2
    assert points.shape == points2.shape
    keep = np.arange(len(points)) != changed
    assert points[keep].tobytes() == points2[keep].tobytes()
    for name, values in columns.items():
        assert values.dtype == columns2[name].dtype
        assert repr(values[keep].tolist()) == repr(columns2[name][keep].tolist())


def written(lines, path, end=b"\n"):
    path.write_bytes(b"town,age,dose,ill,seen" + end + b"".join(line + end for line in lines))
    return path


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:30]))
def test_a_line_changes_no_other_row_of_a_text_file(line, place, tmp_path):
    lines = [*(row.encode() for row in ROWS[:place]), line, *(r.encode() for r in ROWS[place:])]
    other = [*lines[:place], ROWS[0].encode(), *lines[place + 1 :]]
    if place == 4 and line in (b"", b"\r"):
        # behind an empty line at the very end stands no row; one in the middle is a row
        lines, other = [*lines, ROWS[1].encode()], [*other, ROWS[1].encode()]
    tables = [
        read_table(written(rows, tmp_path / "t.csv"), SCHEMA, text=MISSING)
        for rows in (other, lines)
    ]
    check_others(*tables, changed=place)
    try:
        strict = read_table(written(lines, tmp_path / "t.csv"), SCHEMA)
    except InputError:
        return
    check_others(tables[0], strict_as(strict, tables[0]), changed=place)


def strict_as(table, like):
    """The same table under the other's schema, which differs in what it refuses."""
    return dataclasses.replace(table, schema=like.schema)


@pytest.mark.parametrize("declared", [{"delimiter": ";"}, {"delimiter": ";", "decimal": ","}])
def test_commas_mean_what_is_declared_whatever_other_cells_hold(declared, tmp_path):
    schema = Schema((Column("a", "categorical", categories=("0,5", "1,5", "none")),))
    lines = ["0,5", "1,5", "0,5", "none"]
    tables = []
    for last in ("none", "0,5"):
        (tmp_path / "t.csv").write_text("\n".join(["a", *lines[:-1], last]) + "\n")
        tables.append(read_table(tmp_path / "t.csv", schema, text=TextFormat(**declared)))
    check_others(*tables, changed=3)
    assert tables[1].outside == 0


def test_ragged_rows_in_a_file_of_many_blocks(tmp_path, monkeypatch):
    """Numbers of rows count on where the parser begins another block."""
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 300)
    schema = Schema((Column("a", "integer", nullable=True), Column("b", "integer", nullable=True)))
    lines = [f"{i},{i + 1}" for i in range(5_000)]
    bad = [0, 1, 2_701, 4_999]
    for at in bad:
        lines[at] = "1,2,3"
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    table = read_table(tmp_path / "t.csv", schema, text=MISSING)
    expected = np.arange(5_000.0)
    expected[bad] = np.nan
    np.testing.assert_array_equal(table.columns["a"], expected)


MOMENT = datetime.datetime(2020, 1, 1, 12, 30)
#: Cells of each kind that a column of typed cells may hold.
CELLS = {
    "number": [3, 3.0, 4.0, 0, True, None, float("nan"), "5", "x", decimal.Decimal("7"), 10**400],
    "label": ["none", "1", 1, 1.0, 1.5, True, None, "NA", 2**60, MOMENT, "\ud800"],
    "truth": [True, False, 1, 0.0, 2, None, "yes", "maybe", MOMENT],
    "moment": [
        *(MOMENT, MOMENT.date(), None, "2020-01-01", "x", 5, datetime.datetime.max),
        *(MOMENT.astimezone(datetime.UTC), datetime.datetime.min, pd.Timestamp("1700-01-01")),
        *(pd.Timestamp("1969-12-31T23:59:59.999999999"), np.datetime64("20000-01-01"), pd.NaT),
    ],
}
KINDS = {
    "number": Column("a", "integer", min=0, max=9, nullable=True),
    "label": Column("a", "categorical", categories=("none", "1", "true"), nullable=True),
    "truth": Column("a", "boolean", nullable=True),
    "moment": Column("a", "date", min=0, max=3e9, nullable=True),
}


def _frames(cells):
    """The same cells in every library that can hold them, in the type that it finds best."""
    makers = {
        "pandas": lambda c: pd.DataFrame({"a": c}),
        "pandas objects": lambda c: pd.DataFrame({"a": pd.Series(c, dtype=object)}),
        "pandas best": lambda c: pd.DataFrame({"a": pd.Series(c)}).convert_dtypes(),
        "polars": lambda c: pl.DataFrame({"a": c}),
        "arrow": lambda c: pa.table({"a": c}),
        "numpy objects": lambda c: np.array([[x] for x in c], dtype=object),
    }
    if any(isinstance(cell, np.datetime64) for cell in cells):
        # which polars takes for another moment
        del makers["polars"]
    for name, make in makers.items():
        try:
            yield name, make(cells)
        except Exception:  # a library that cannot hold such cells in one column
            continue


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        *(("number", "integer"), ("number", "categorical"), ("label", "categorical")),
        *(("truth", "boolean"), ("truth", "continuous"), ("moment", "date")),
        ("moment", "categorical"),
    ],
)
def test_a_typed_cell_is_read_by_its_own_value(cells, kind):
    """Beside every other cell, in every library, as it is read alone."""
    column = next(c for c in KINDS.values() if c.kind in (kind, "integer"))
    column = Column("a", kind, nullable=True) if column.kind != kind else column
    schema = Schema((column,), text=MISSING)
    alone = {}
    for i, cell in enumerate(CELLS[cells]):
        array = np.empty((1, 1), dtype=object)
        array[0, 0] = cell
        alone[i] = repr(read_table(array, schema).columns["a"].tolist())
    for i, first in enumerate(CELLS[cells]):
        for second in CELLS[cells]:
            for name, frame in _frames([first, second, first]):
                read = read_table(frame, schema).columns["a"]
                assert repr(read[:1].tolist()) == alone[i], (name, first, second)
                assert repr(read[2:].tolist()) == alone[i], (name, first, second)


def test_moments_beyond_the_calendar_are_not_the_year_1970(tmp_path):
    schema = Schema((KINDS["moment"],))
    far = pa.array([0, 2**62, -(2**62)], pa.int64())
    for unit in ("s", "ms"):
        table = pa.table({"a": far.cast(pa.timestamp(unit))})
        sources = [table]
        if unit == "ms":
            pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
            sources.append(tmp_path / "t.parquet")
        for source in sources:
            with pytest.raises(InputError, match="must hold dates .* got 2 cells .* row 2"):
                read_table(source, schema)
            read = read_table(source, schema, text=MISSING).columns["a"]
            assert np.isnat(read).tolist() == [False, True, True]
    days = pa.table({"a": pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32())})
    assert np.isnat(read_table(days, schema, text=MISSING).columns["a"]).tolist() == [False, True]


def test_the_digits_that_decimals_share_move_no_bit():
    column = Schema((Column("a", "continuous"),))
    short = pa.table({"a": pa.array([decimal.Decimal("1.1")])})
    long = pa.table({"a": pa.array([decimal.Decimal("1.1"), decimal.Decimal("1e-30")])})
    one, two = (read_table(t, column).columns["a"][0] for t in (short, long))
    assert one == two == 1.1
