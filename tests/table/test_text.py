"""Dialects of text files: each of them holds the same two rows."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.table import Column, Schema, TextFormat, read_file

SCHEMA = Schema(
    (Column("age", "integer", min=0, max=120), Column("größe", "continuous", min=0, max=9))
)
TEXT = "age,größe\n30,1.5\n40,2.5\n"

#: Contents, and what must be declared about them.
DIALECTS = {
    "plain": (TEXT.encode(), {}),
    "mark": (TEXT.encode("utf-8-sig"), {}),
    "utf-16": (TEXT.encode("utf-16"), {"encoding": "utf-16"}),
    "utf-16 big end first": (b"\xfe\xff" + TEXT.encode("utf-16-be"), {"encoding": "UTF-16"}),
    "utf-16 without a mark": (TEXT.encode("utf-16-le"), {"encoding": "utf-16-le"}),
    "latin-1": (TEXT.encode("latin-1"), {"encoding": "latin-1"}),
    "windows": (TEXT.encode("cp1252"), {"encoding": "cp1252"}),
    "chinese": (TEXT.encode("gb18030"), {"encoding": "gb18030"}),
    "windows line ends": (TEXT.replace("\n", "\r\n").encode(), {}),
    "no last line end": (TEXT.strip().encode(), {}),
    "blank lines before": (("\n\n" + TEXT).encode(), {}),
    "semicolons": (TEXT.replace(",", ";").encode(), {"delimiter": ";"}),
    "tabs": (TEXT.replace(",", "\t").encode(), {"delimiter": "\t"}),
    "bars": (TEXT.replace(",", "|").encode(), {"delimiter": "|"}),
    "decimal commas": (
        TEXT.replace(",", ";").replace(".", ",").encode(),
        {"delimiter": ";", "decimal": ","},
    ),
    "quotes": ('"age","größe"\n"30","1.5"\n"40","2.5"\n'.encode(), {}),
    "single quotes": ("'age','größe'\n'30','1.5'\n'40','2.5'\n".encode(), {"quote": "'"}),
    "quoted line ends": ('"age",größe\n"30\n",1.5\n"\r\n40",2.5\n'.encode(), {"multiline": True}),
    "blanks": ("age , größe \n 30 ,  1.5\n40,2.5 \n".encode(), {}),
    "other order": ("größe,age\n1.5,30\n2.5,40\n".encode(), {}),
    "plus and exponents": ("age,größe\n+30,.15e1\n4E+1,2.50\n".encode(), {}),
    "whole numbers with points": ("age,größe\n30.0,1.5\n40.,2.5\n".encode(), {}),
}
#: What no file shows by itself.
UNPROPOSED = {"utf-16 without a mark", "chinese", "single quotes"}


def _check(table):
    assert table.schema.columns == SCHEMA.columns
    assert list(table.columns) == ["age", "größe"]
    np.testing.assert_array_equal(table.matrix, [[30, 1.5], [40, 2.5]])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("ending", [".csv", ".txt", ".CSV", ".csv.gz"])
def test_every_dialect_holds_the_same_rows(dialect, ending, tmp_path):
    path = tmp_path / f"table{ending}"
    content, declared = DIALECTS[dialect]
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    text = TextFormat(**declared)
    _check(read_file(path, SCHEMA, text=text))
    _check(read_file(path, dataclasses.replace(SCHEMA, text=text)))


@pytest.mark.parametrize("dialect", sorted({*DIALECTS} - UNPROPOSED))
def test_every_dialect_is_proposed(dialect, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(DIALECTS[dialect][0])
    schema = Schema.from_frame(path)
    assert schema.column("age").kind == "integer"
    assert schema.column("größe").kind == "continuous"
    assert sorted(schema.undeclared()) == ["age", "größe"]
    np.testing.assert_array_equal(read_file(path, schema).columns["größe"], [1.5, 2.5])


@pytest.mark.parametrize("ending", [".tsv", ".TSV", ".tsv.gz"])
def test_a_tab_is_the_default_of_its_ending(ending, tmp_path):
    path = tmp_path / f"table{ending}"
    content = TEXT.replace(",", "\t").encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    _check(read_file(path, SCHEMA))
    path.write_bytes(gzip.compress(TEXT.encode()) if ending.endswith("gz") else TEXT.encode())
    _check(read_file(path, SCHEMA, text=TextFormat(delimiter=",")))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_header_says_which_delimiter_to_declare(delimiter, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TEXT.replace(",", delimiter), encoding="utf-8")
    shown = json.dumps(delimiter)
    with pytest.raises(InputError, match="holds the declared names between") as caught:
        read_file(path, SCHEMA)
    assert f"declare delimiter = {shown} in [text], or pass --delimiter" in str(caught.value)


def test_without_a_schema_every_column_is_continuous(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,c\n1,2.5,3\n4,5,6\n")
    assert {column.kind for column in read_file(path).schema.columns} == {"continuous"}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_file_without_header_is_named_by_its_schema(delimiter, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(f"30{delimiter}1.5\n40{delimiter}2.5\n")
    text = TextFormat(delimiter=delimiter)
    _check(read_file(path, SCHEMA, header=False, text=text))
    _check(read_file(path, SCHEMA, text=dataclasses.replace(text, header=False)))


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
    text = TextFormat(delimiter=";", multiline=True)
    assert read_file(path, schema, text=text).matrix.tolist() == [[1.0, 2.0]]


def test_names_with_blanks_around_them(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(" a,b\n1,2\n")
    assert read_file(path, Schema.from_bounds([0, 0], 9, names=[" a", "b"])).rows == 1


def test_extra_columns_are_dropped_when_asked(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x,age,größe\nsmith,30,1.5\njones,40,2.5\n", encoding="utf-8")
    _check(read_file(path, SCHEMA, drop_extra=True))


#: Numbers as text, how they are declared to be written, and what they are.
NUMBERS = [
    ("1.5", {}, 1.5),
    ("1,000", {}, None),
    ("1,000", {"thousands": ","}, 1000.0),
    ("1,000.5", {"thousands": ","}, 1000.5),
    ("1000.5", {"thousands": ","}, 1000.5),
    ("10,00", {"thousands": ","}, None),
    (",100", {"thousands": ","}, None),
    ("1,0000", {"thousands": ","}, None),
    ("1.000,5", {"decimal": ",", "thousands": "."}, 1000.5),
    ("1.000", {"decimal": ",", "thousands": "."}, 1000.0),
    ("1.5", {"decimal": ","}, None),
    ("1,5", {"decimal": ","}, 1.5),
    ("-,5e1", {"decimal": ","}, -5.0),
    ("1 000", {"thousands": " "}, 1000.0),
    ("1'000", {"thousands": "'"}, 1000.0),
    ("1\u202f000", {"thousands": "\u202f"}, 1000.0),
    ("-99", {"missing": ("-99",)}, "gap"),
    ("-99.0", {"missing": ("-99",)}, -99.0),
    ("NA", {"missing": ("-99",)}, None),
    ("inf", {}, None),
    ("1e400", {}, None),
    ("NAN", {}, None),
    ("0x1", {}, None),
    ("1_0", {}, None),
    ("\uff11", {}, None),
    ("1" * 400, {}, None),
]


@pytest.mark.parametrize(("cell", "declared", "number"), NUMBERS)
def test_numbers_are_read_as_declared(cell, declared, number, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(f'x;y\n1;0\n"{cell}";0\n', encoding="utf-8")
    schema = Schema((Column("x", "continuous", nullable=True), Column("y", "boolean")))
    text = TextFormat(delimiter=";", **declared)
    if number is None:
        with pytest.raises(InputError, match=r"column 'x' must hold .* in row 2"):
            read_file(path, schema, text=text)
        return
    read = read_file(path, schema, text=text).columns["x"]
    np.testing.assert_array_equal(read, [1.0, np.nan if number == "gap" else number])


def test_labels_keep_their_marks(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x;y\n0,5;1.000,5\n1.000;2\n")
    schema = Schema((Column("x", "categorical"), Column("y", "continuous")))
    text = TextFormat(delimiter=";", decimal=",", thousands=".")
    table = read_file(path, schema, text=text)
    assert table.columns["x"].tolist() == ["0,5", "1.000"]
    assert table.columns["y"].tolist() == [1000.5, 2.0]


DATES = [
    ("31.12.2020", ("%d.%m.%Y",), "2020-12-31"),
    ("12/31/2020 13:45", ("%d.%m.%Y", "%m/%d/%Y %H:%M"), "2020-12-31T13:45"),
    ("31.12.2020 01:00 +0200", ("%d.%m.%Y %H:%M %z",), "2020-12-30T23:00"),
    ("2020-12-31", ("%d.%m.%Y",), None),
    ("2020-12-31", (), "2020-12-31"),
    ("2020-12-31 10:20:30.123456789", (), "2020-12-31T10:20:30.123456"),
    ("2020-12-31T10:20Z", (), "2020-12-31T10:20"),
    ("2020-12-31T10:20:00+01:00", (), "2020-12-31T09:20"),
    ("2020-02-30", (), None),
    ("20201231", (), None),
    ("0001-01-01T00:00+01:00", (), None),
    ("12020-01-01", (), None),
]


@pytest.mark.parametrize(("cell", "formats", "moment"), DATES)
def test_dates_are_read_as_declared(cell, formats, moment, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(f"x,y\n{cell},1\n")
    schema = Schema((Column("x", "date"), Column("y", "boolean")))
    text = TextFormat(date_formats=formats)
    if moment is None:
        with pytest.raises(InputError, match="column 'x' must hold dates"):
            read_file(path, schema, text=text)
        return
    read = read_file(path, schema, text=text).columns["x"]
    assert read.tolist() == [np.datetime64(moment, "us").item()]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"delimiter": ""}, "delimiter must be one ASCII character"),
        ({"delimiter": ",,"}, "delimiter must be one ASCII character"),
        ({"delimiter": "\n"}, "delimiter must be one ASCII character"),
        ({"delimiter": "a"}, "delimiter must be one ASCII character"),
        ({"delimiter": 5}, "delimiter must be text"),
        ({"quote": ","}, None),
        ({"quote": ",", "delimiter": ","}, "quote and delimiter must differ"),
        ({"decimal": ""}, "decimal must be a visible character"),
        ({"decimal": "1"}, "decimal must be one character"),
        ({"decimal": ",", "thousands": ","}, "decimal must be a visible character other than"),
        ({"thousands": "-"}, "thousands must be one character"),
        ({"encoding": "utf-7"}, "encoding must be one that is known"),
        ({"encoding": "rot13"}, "encoding must be one that is known"),
        ({"encoding": "no\0such"}, "encoding must be one that is known"),
        ({"header": "yes"}, "header must be true or false"),
        ({"missing": "NA"}, "missing must be a list of texts"),
        ({"missing": [1]}, "missing must be a list of texts"),
        ({"missing": ["x"] * 101}, "missing must be at most 100 texts"),
        ({"date_formats": ["%d"]}, "date_formats must hold year, month and day"),
        ({"date_formats": ["%Q"]}, "date_formats must hold year, month and day"),
        ({"multiline": True, "quote": ""}, "multiline needs a quote"),
        ({"unreadable": "skip"}, 'unreadable must be "refuse" or "missing"'),
    ],
)
def test_what_cannot_be_declared(declared, message):
    if message is None:
        assert TextFormat(**declared).to_dict() == declared
        return
    with pytest.raises(InputError, match=f"text: {message}"):
        TextFormat.from_dict(declared)


def test_one_column(tmp_path):
    """An empty line is a row with an empty cell there, also at the end."""
    path = tmp_path / "table.csv"
    path.write_text("dose\n1\n2.5\n")
    assert read_file(path).matrix.tolist() == [[1.0], [2.5]]
    path.write_text("dose\n1\n2.5\n\n")
    schema = Schema((Column("dose", "continuous", nullable=True),))
    assert read_file(path, schema).rows == 3


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


def test_other_kinds_are_proposed(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("sex,alive,seen,id\nF,true,2020-01-01,a\nM,false,2020-01-02,1\n")
    found = [column.kind for column in Schema.from_frame(path).columns]
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
