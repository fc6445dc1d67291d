"""What every kind of column keeps, whoever wrote it."""

import json

import numpy as np
import pyarrow as pa
import pytest

from dpflows.errors import InputError
from dpflows.table import KINDS, Column, Schema, read_table
from dpflows.table.bins import MergedBins
from dpflows.table.columns import read_cells
from dpflows.table.raw import PLAIN, is_missing

#: A declared column of every kind, and cells of text that fit it.
EXAMPLES = {
    "continuous": (Column("x", "continuous", min=-1, max=9, spikes=(0,)), ["0", "1.5", "-1"]),
    "integer": (Column("x", "integer", min=-2, max=5000), ["0", "17", "-2"]),
    "categorical": (Column("x", "categorical", categories=("a", "b"), other="b"), ["a", "b"]),
    "boolean": (Column("x", "boolean"), ["true", "no"]),
    "date": (
        Column("x", "date", min=0, max=11_574 * 86_400, unit="day"),
        ["1970-01-01", "1999-12-31"],
    ),
}
KEYS = {"min": 0, "max": 1, "categories": ("a",), "spikes": (), "other": "a"}


def example(kind, *, nullable=True):
    column, cells = EXAMPLES[kind]
    fields = {key: getattr(column, key) for key in ("min", "max", "unit", *list(KEYS)[2:])}
    return Column("x", kind, nullable=nullable, **fields), cells


def text(cells):
    return pa.chunked_array([pa.array(cells, pa.large_string())])


def read(column, cells):
    return read_cells(text(cells), column, "x", PLAIN)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_a_kind_says_who_it_is(kind):
    column, _ = example(kind)
    assert column.rules.name == kind
    assert type(column.rules) is KINDS[kind]
    assert column.is_declared
    assert np.full(1, column.rules.nothing, dtype=column.rules.dtype).shape == (1,)


def test_each_cell_is_read_by_itself(kind):
    column, cells = example(kind)
    alone = [read(column, [cell]) for cell in [*cells, ""]]
    together = read(column, [*cells, ""])
    np.testing.assert_array_equal(np.concatenate(alone), together)
    assert is_missing(together).tolist() == [False] * len(cells) + [True]
    assert together.dtype == np.dtype(column.rules.dtype)


def test_cells_that_fit_nothing_are_refused_without_being_quoted(kind):
    column, cells = example(kind)
    if kind == "categorical":
        pytest.skip("any text is a label")
    with pytest.raises(InputError, match="1 cell of another form, the first in row 2") as refused:
        read(column, [cells[0], "zebra"])
    assert "zebra" not in str(refused.value)


@pytest.mark.parametrize("key", KEYS)
def test_fields_of_other_kinds_are_refused(kind, key):
    if key in KINDS[kind].fields:
        pytest.skip("the kind knows it")
    with pytest.raises(InputError, match=f"{key} (do|does) not belong to a {kind} column"):
        Column("x", kind, **{key: KEYS[key]})


def test_a_declaration_survives_schema_files(kind, tmp_path):
    schema = Schema((example(kind)[0], Column("y", kind)))
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    for ending in (".toml", ".json"):
        schema.write(tmp_path / f"schema{ending}")
        assert Schema.read(tmp_path / f"schema{ending}") == schema


def test_what_is_lacking_can_be_discovered(kind):
    open_ended = Column("x", kind)
    assert bool(open_ended.rules.lacks) == (open_ended.rules.discovers is not None)
    assert set(open_ended.rules.lacks) <= set(KINDS[kind].fields)
    assert open_ended.is_declared == (not open_ended.rules.lacks)


def test_bins_depend_on_cells_one_by_one_and_give_them_back(kind):
    column, cells = example(kind)
    values, bins = read(column, [*cells, ""]), column.bins()
    found = bins.find(values)
    np.testing.assert_array_equal([bins.find(values[[i]])[0] for i in range(len(values))], found)
    assert found[-1] == bins.size - 1
    drawn = bins.draw(np.arange(bins.size), np.random.default_rng().random)
    assert drawn.dtype == values.dtype
    np.testing.assert_array_equal(bins.find(drawn), np.arange(bins.size))
    merged = MergedBins.evenly(bins, 3)
    np.testing.assert_array_equal(merged.find(drawn), merged.groups)


def test_no_value_that_bins_give_lies_outside(kind):
    rules = example(kind)[0].rules
    drawn = rules.bins().draw(np.arange(rules.bins().filled), np.random.default_rng().random)
    assert not rules.outside(drawn).any()
    assert not rules.beyond(drawn).any()
    np.testing.assert_array_equal(rules.inside(drawn), drawn)


def test_volumes_fill_the_domain(kind):
    rules = example(kind, nullable=False)[0].rules
    spikes = 0 if rules.is_whole or rules.has_labels else rules.bins().singles
    assert np.exp(rules.bins().log_volumes).sum() - spikes == pytest.approx(np.exp(rules.log_size))


def test_rows_come_out_in_the_type_of_the_kind(kind):
    column, cells = example(kind)
    schema = Schema((column,))
    table = read_table(pa.table({"x": text([*cells, ""])}), schema)
    frames = [table.form.frame({"x": values}, schema) for values in _halves(table.columns["x"])]
    assert frames[0].schema == frames[1].schema
    again = [read_table(frame, schema).columns["x"] for frame in frames]
    np.testing.assert_array_equal(np.concatenate(again), table.columns["x"])


def _halves(values):
    return values[:1], values[1:]


def test_a_kind_proposes_what_holds_its_values(kind):
    column, cells = example(kind)
    values = read(column, cells)
    found = column.rules.domain(values)
    assert set(found) <= set(KINDS[kind].fields)
    assert not Column("x", kind, nullable=True, **found).rules.outside(values).any()
    proposed = Schema.from_frame(pa.table({"x": example(kind)[0].rules.to_arrow(values)}))
    assert proposed.columns[0].kind == kind


def test_reports_name_every_bin_once(kind):
    from dpflows.evaluation.measures import coding_of

    column, cells = example(kind)
    values = read(column, [*cells, ""])
    coding = coding_of(column, values, 4)
    assert len(set(coding.names)) == len(coding.names) == coding.size
    assert coding.codes(values)[-1] == coding.size - 1
