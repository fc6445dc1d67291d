"""Proposed schemas hold nothing from the rows without consent."""

import datetime

import numpy as np
import pandas as pd
import pytest

from dpflows.table import Column, Schema

pl = pytest.importorskip("polars")

FRAME = pd.DataFrame(
    {
        "age": [31, 77, 45],
        "dose": [0.5, np.nan, 7.25],
        "sex": ["F", "M", "F"],
        "alive": [True, False, True],
        "seen": pd.to_datetime(["2020-01-01 00:00", "2020-03-01 12:00", "2020-02-01 00:00"]),
        "constant": [5, 5, 5],
        "code": pd.Categorical(["a", "b", "a"]),
    }
)


def test_kinds_from_types_alone():
    schema = Schema.from_frame(FRAME)
    assert schema == Schema(
        (
            Column("age", "integer"),
            Column("dose", "continuous"),
            Column("sex", "categorical"),
            Column("alive", "boolean"),
            Column("seen", "date"),
            Column("constant", "integer"),
            Column("code", "categorical"),
        )
    )
    assert not schema.names_read


def test_another_table_of_the_same_types_gives_the_same_schema():
    """Whatever the rows hold, also gaps, infinities and one person's label."""
    other = FRAME.copy()
    other["age"] = [-1, 10**18, 0]
    other["dose"] = [np.inf, -np.inf, np.nan]
    other["sex"] = ["sentinel", None, ""]
    assert Schema.from_frame(other) == Schema.from_frame(FRAME)


def test_values_are_read_with_consent_and_said_to_be():
    schema = Schema.from_frame(FRAME, read_values=True)
    noon = datetime.datetime(2020, 3, 1, 12, tzinfo=datetime.UTC).timestamp()
    assert schema == Schema(
        (
            Column("age", "integer", min=31, max=77),
            Column("dose", "continuous", min=0.5, max=7.25, nullable=True),
            Column("sex", "categorical", categories=("F", "M")),
            Column("alive", "boolean"),
            Column("seen", "date", min=1577836800, max=noon),
            Column("constant", "integer", min=5, max=5),
            Column("code", "categorical", categories=("a", "b")),
        ),
        values_read=True,
    )


@pytest.mark.parametrize("make", [pl.from_pandas, lambda frame: frame.to_numpy()[:, :1]])
def test_other_tables(make):
    schema = Schema.from_frame(make(FRAME[["age", "alive"]]), read_values=True)
    assert (schema.columns[0].min, schema.columns[0].max) == (31, 77)


def test_columns_that_cannot_be_declared_stay_open():
    frame = pd.DataFrame({"a": [0, 10**17], "b": [np.nan, np.nan], "c": [None, None]})
    schema = Schema.from_frame(frame, read_values=True)
    assert schema.undeclared() == ("a", "b", "c")


def test_a_proposal_survives_its_file(tmp_path):
    for consent in (False, True):
        schema = Schema.from_frame(FRAME, read_values=consent)
        schema.write(tmp_path / "s.toml")
        assert Schema.read(tmp_path / "s.toml") == schema


def test_a_file_is_proposed_for_too(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("age,dose\n31,0.5\n77,7.25\n")
    schema = Schema.from_frame(path, read_values=True)
    assert schema.column("age") == Column("age", "integer", min=31, max=77)


def test_days_are_proposed_as_days(tmp_path):
    """From a type that has no time of day, or from a text file in which no cell has one."""
    days = pl.DataFrame({"born": [datetime.date(2020, 1, 1)], "seen": [datetime.datetime.min]})
    assert [column.unit for column in Schema.from_frame(days).columns] == ["day", ""]
    path = tmp_path / "t.csv"
    path.write_text("born,seen\n2020-01-01,2020-01-01 12:00:00\n2020-01-02,2020-01-02\n")
    schema = Schema.from_frame(path)
    assert [(c.kind, c.unit) for c in schema.columns] == [("date", "day"), ("date", "")]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series(["a"], dtype=pl.Enum(["a", "b"])), "categorical"),
        (pl.Series(["a"], dtype=pl.Categorical), "categorical"),
        (pl.Series([True, None]), "boolean"),
        (pl.Series([1, None], dtype=pl.Int8), "integer"),
        (pl.Series(["a", None]), "categorical"),
        (pl.Series([1.5, None]), "continuous"),
    ],
)
def test_kinds_of_polars(column, kind):
    assert Schema.from_frame(pl.DataFrame({"x": column})).column("x") == Column("x", kind)
