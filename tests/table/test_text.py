"""Dialects of text files: each of them holds the same two rows."""

import gzip

import numpy as np
import pytest

from dpflows.table import Column, Schema, read_file

SCHEMA = Schema(
    (Column("age", "integer", min=0, max=120), Column("größe", "continuous", min=0, max=9))
)
TEXT = "age,größe\n30,1.5\n40,2.5\n"

DIALECTS = {
    "plain": TEXT.encode(),
    "mark": TEXT.encode("utf-8-sig"),
    "utf-16": TEXT.encode("utf-16"),
    "utf-16 big end first": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "latin-1": TEXT.encode("latin-1"),
    "windows line ends": TEXT.replace("\n", "\r\n").encode(),
    "old line ends": TEXT.replace("\n", "\r").encode(),
    "no last line end": TEXT.strip().encode(),
    "blank lines": ("\n\n" + TEXT.replace("\n", "\n\n")).encode(),
    "semicolons": TEXT.replace(",", ";").encode(),
    "tabs": TEXT.replace(",", "\t").encode(),
    "bars": TEXT.replace(",", "|").encode(),
    "decimal commas": TEXT.replace(",", ";").replace(".", ",").encode(),
    "quotes": '"age","größe"\n"30","1.5"\n"40","2.5"\n'.encode(),
    "blanks": "age , größe \n 30 ,  1.5\n40,2.5 \n".encode(),
    "other order": "größe,age\n1.5,30\n2.5,40\n".encode(),
    "plus and exponents": "age,größe\n+30,.15e1\n4E+1,2.50\n".encode(),
    "whole numbers with points": "age,größe\n30.0,1.5\n40.,2.5\n".encode(),
}


def _check(table):
    assert table.schema == SCHEMA
    assert list(table.columns) == ["age", "größe"]
    np.testing.assert_array_equal(table.matrix, [[30, 1.5], [40, 2.5]])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".txt", ".CSV", ".csv.gz"])
def test_every_dialect_holds_the_same_rows(dialect, ending, tmp_path):
    path = tmp_path / f"table{ending}"
    content = DIALECTS[dialect]
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    _check(read_file(path, SCHEMA))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_a_schema_the_same_kinds_are_found(dialect, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(DIALECTS[dialect])
    table = read_file(path)
    kind = "continuous" if "exponents" in dialect or "points" in dialect else "integer"
    assert table.schema.column("age").kind == kind
    assert table.schema.column("größe").kind == "continuous"
    assert sorted(table.schema.undeclared()) == ["age", "größe"]
    np.testing.assert_array_equal(table.columns["größe"], [1.5, 2.5])


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_file_without_header_is_named_by_its_schema(delimiter, tmp_path):
    path = tmp_path / "table.csv"
    text = f"30{delimiter}1.5\n40{delimiter}2.5\n"
    path.write_text(text)
    _check(read_file(path, SCHEMA, header=False))
    path.write_text(text.replace(".", ",") if delimiter == ";" else text)
    _check(read_file(path, SCHEMA, header=False))


def test_names_that_are_numbers_are_names_when_declared(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("2019,2020\n1,2\n")
    schema = Schema.from_bounds([0, 0], 9, names=["2019", "2020"])
    assert read_file(path, schema).columns["2020"].tolist() == [2.0]
    assert read_file(path, header=True).schema.names == ("2019", "2020")


def test_names_may_hold_delimiters_quotes_and_line_ends(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('"a,b";"c;d\n""e"""\n1;2\n')
    schema = Schema.from_bounds([0, 0], 9, names=["a,b", 'c;d\n"e"'])
    assert read_file(path, schema).matrix.tolist() == [[1.0, 2.0]]


def test_names_with_blanks_around_them(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(" a,b\n1,2\n")
    assert read_file(path, Schema.from_bounds([0, 0], 9, names=[" a", "b"])).rows == 1


def test_extra_columns_are_dropped_when_asked(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x,age,größe\nsmith,30,1.5\njones,40,2.5\n", encoding="utf-8")
    _check(read_file(path, SCHEMA, drop_extra=True))


def test_commas_stay_where_another_column_uses_points(tmp_path):
    """A comma is then more likely to part thousands."""
    path = tmp_path / "table.csv"
    path.write_text("a;b\n1.5;1,234\n")
    assert [column.kind for column in read_file(path).schema.columns] == [
        "continuous",
        "categorical",
    ]


def test_one_column(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("dose\n1\n2.5\n\n\n")
    assert read_file(path).matrix.tolist() == [[1.0], [2.5]]


def test_one_row_and_large_numbers(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1e308,-1e308\n")
    table = read_file(path, Schema.from_bounds([0, 0], 9, names=["a", "b"]))
    assert table.rows == 1
    assert table.outside == 2
    assert table.matrix.tolist() == [[1e308, -1e308]]


def test_other_kinds(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        "sex,alive,seen\nF,yes,2020-01-01\n NA ,0,2020-01-02 10:00\n?,TRUE,1900-01-01\n"
    )
    schema = Schema(
        (
            Column("sex", "categorical", categories=("F", "NA")),
            Column("alive", "boolean"),
            Column("seen", "date", min=0, max=86400 * 365 * 60),
        )
    )
    table = read_file(path, schema)
    assert table.columns["sex"].tolist() == ["F", "NA", "?"]
    assert table.columns["alive"].tolist() == [True, False, True]
    assert table.columns["seen"].astype("datetime64[h]").astype(str).tolist() == [
        "2020-01-01T00",
        "2020-01-02T10",
        "1900-01-01T00",
    ]
    assert table.outside == 2


def test_other_kinds_are_found_without_a_schema(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("sex,alive,seen,id\nF,true,2020-01-01,a\nM,false,2020-01-02,1\n")
    found = [column.kind for column in read_file(path).schema.columns]
    assert found == ["categorical", "boolean", "date", "categorical"]


def test_missing_cells_of_nullable_columns(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,c,d,e\n1,NA,F,true,2020-01-01\n,2,,,\n")
    kinds = ("integer", "continuous", "categorical", "boolean", "date")
    columns = tuple(Column(n, k, nullable=True) for n, k in zip("abcde", kinds, strict=True))
    table = read_file(path, Schema(columns))
    np.testing.assert_array_equal(table.columns["a"], [1, np.nan])
    np.testing.assert_array_equal(table.columns["b"], [np.nan, 2])
    assert table.columns["c"].tolist() == ["F", None]
    assert table.columns["d"].tolist() == [True, None]
    assert np.isnat(table.columns["e"]).tolist() == [False, True]
