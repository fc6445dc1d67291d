"""Tables of every kind: what goes in comes out in kind, and nothing else comes out."""

import dataclasses
import functools

import numpy as np
import pandas as pd
import pytest

from contracts.tables import EVERY_KIND, SENTINEL, TABLES, frame
from dpflows import DPAutoregressive, load
from dpflows.privacy.accounting import epsilon_of
from dpflows.table import Column, Form, Schema, read_table

FEW = {"steps": 3, "batch_size": 50}
#: Every fit costs a compilation: one table is left to the long suite.
every_table = pytest.mark.parametrize(
    "name", ["every kind", "hostile", pytest.param("all missing", marks=pytest.mark.long)]
)


def test_all_tables_are_tried():
    assert set(TABLES) == {"every kind", "hostile", "all missing"}


@functools.cache
def fitted(name):
    return DPAutoregressive(1.0, 1e-4, schema=EVERY_KIND, **FEW).fit(TABLES[name]())


@functools.cache
def sampled(name):
    return fitted(name).sample(400)


@every_table
def test_what_comes_out_fits_the_schema(name):
    rows = sampled(name)
    table = read_table(rows, EVERY_KIND)
    assert len(rows) == 400
    assert table.outside == 0
    for rule in EVERY_KIND.constraints:
        assert rule.holds(table.columns, EVERY_KIND).all()


@every_table
def test_types_come_out_by_the_kinds_of_the_schema(name):
    """Not by the types that came in, which one row can change."""
    types = {"categorical": "str", "date": "datetime64[s]", "continuous": "float64"}
    for column, dtype in sampled(name).dtypes.items():
        declared = EVERY_KIND.column(column)
        types |= {"integer": "Int64" if declared.nullable else "int64"}
        types |= {"boolean": "boolean" if declared.nullable else "bool"}
        assert str(dtype) == types[declared.kind]


@every_table
def test_a_label_that_is_not_declared_comes_out_nowhere(name, tmp_path):
    fitted(name).save(tmp_path / "model.dpflow")
    assert SENTINEL.encode() not in (tmp_path / "model.dpflow").read_bytes()
    assert SENTINEL not in sampled(name).to_csv()


@every_table
def test_the_price_is_within_the_budget_and_covers_every_release(name):
    model = fitted(name)
    assert [event.purpose for event in model.plan_.before] == ["histograms", "marginals"]
    assert epsilon_of(model.guarantee_.events, delta=1e-4, neighbours="zero-out") <= 1.0
    assert not model.guarantee_.stamps


@every_table
def test_a_saved_model_says_and_draws_the_same(name, tmp_path):
    model = fitted(name)
    model.save(tmp_path / "model.dpflow")
    again = load(tmp_path / "model.dpflow")
    rows = sampled(name)
    np.testing.assert_allclose(again.score_samples(rows), model.score_samples(rows), rtol=1e-5)
    assert again.sample(5).dtypes.to_dict() == rows.dtypes.to_dict()
    assert again.guarantee_ == model.guarantee_


@every_table
def test_rows_of_the_model_have_a_density(name):
    assert np.isfinite(fitted(name).score_samples(sampled(name))).all()


def test_rows_beyond_the_declaration_have_none():
    rows = frame(6)
    rows["sex"] = rows["sex"].astype(object)
    rows.loc[0, "sex"] = SENTINEL
    rows.loc[1, "age"] = 111
    rows.loc[2, "admitted"] = pd.Timestamp("1900-01-01")
    rows.loc[3, "weight"] = -0.1
    scores = fitted("every kind").score_samples(rows)
    assert np.isneginf(scores).tolist() == [True] * 4 + [False] * 2


@pytest.mark.long
def test_polars_comes_out_alike_from_a_file(tmp_path):
    polars = pytest.importorskip("polars")
    rows = polars.from_pandas(frame(300))
    model = DPAutoregressive(1.0, 1e-4, schema=EVERY_KIND, **FEW).fit(rows)
    model.save(tmp_path / "model.dpflow")
    drawn = [source.sample(50) for source in (model, load(tmp_path / "model.dpflow"))]
    assert drawn[0].schema == drawn[1].schema
    assert drawn[0].columns == rows.columns


@pytest.mark.long
def test_an_arrow_table_and_a_file_are_welcome(tmp_path):
    import pyarrow as pa

    rows = pa.Table.from_pandas(frame(300))
    model = DPAutoregressive(1.0, 1e-4, schema=EVERY_KIND, **FEW).fit(rows)
    assert model.sample(20).schema.names == rows.schema.names
    frame(300).to_csv(tmp_path / "rows.csv", index=False)
    model = DPAutoregressive(1.0, 1e-4, schema=EVERY_KIND, **FEW).fit(tmp_path / "rows.csv")
    assert read_table(model.sample(20), EVERY_KIND).rows == 20


def test_types_do_not_tell_whether_a_cell_is_missing():
    """One person's gap turns pandas' integers into floats, and truths into objects."""
    whole = pd.DataFrame({"age": [1, 2, 3], "ill": [True, False, True], "dose": [1, 2, 3]})
    gaps = pd.DataFrame({"age": [None, 2, 3], "ill": [None, False, True], "dose": [None, 2, 3]})
    schema = Schema(
        (
            Column("age", "integer", min=0, max=9, nullable=True),
            Column("ill", "boolean", nullable=True),
            Column("dose", "continuous", min=0, max=9, nullable=True),
        )
    )
    assert gaps["age"].dtype != whole["age"].dtype
    assert read_table(gaps, schema).form == read_table(whole, schema).form
    for rows in (gaps, whole):
        array = rows.to_numpy()
        assert read_table(array, renamed(schema)).form == Form("numpy")


def renamed(schema):
    columns = (dataclasses.replace(c, name=f"x{i}") for i, c in enumerate(schema.columns))
    return Schema(tuple(columns))


@pytest.mark.long
def test_the_last_day_counts_whole():
    day = Column("day", "date", min=0, max=86_400, unit="day")
    schema = Schema((day, Column("ill", "boolean")))
    rows = pd.DataFrame({"day": pd.to_datetime(["1970-01-02 12:00"] * 50), "ill": [True] * 50})
    model = DPAutoregressive(1.0, 1e-4, schema=schema, **FEW).fit(rows)
    assert np.isfinite(model.score_samples(rows)).all()
    assert model.sample(3, conditions={"day": np.datetime64("1970-01-02T12:00")}).shape == (3, 2)
