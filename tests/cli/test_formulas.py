"""Text that a spreadsheet would run is marked where somebody asks for it, and numbers never are."""

import csv
import gzip
import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflows import DPAutoregressive
from dpflows.cli.sample import sample
from dpflows.cli.tables import begins_formula, escaped
from dpflows.table import Schema

LABELS = ["=cmd|' /C calc'!A0", "@SUM(1,2)", "-5", "plain"]
SCHEMA = {
    "columns": {
        "=note": {"kind": "categorical", "categories": LABELS},
        "dose": {"kind": "continuous", "min": -9, "max": 9},
    }
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("formulas") / "m.dpflow"
    rng = np.random.default_rng()
    rows = pd.DataFrame({"=note": rng.choice(LABELS, 400), "dose": rng.uniform(-9, 9, 400)})
    flow = DPAutoregressive(8.0, 1e-5, schema=Schema.from_dict(SCHEMA), steps=3, batch_size=50)
    flow.fit(rows).save(path)
    return path


def _cells(path) -> list[list[str]]:
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return list(csv.reader(io.StringIO(text.decode())))


@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz"])
def test_labels_and_names_are_marked_and_numbers_are_not(dpflows, model, tmp_path, name):
    words = ("sample", model, "--rows", 200, "--output", tmp_path / name, "--escape-formulas")
    code, out, _ = dpflows(*words)
    assert (code, "Note:" in out) == (0, False)
    head, *rows = _cells(tmp_path / name)
    assert head == ["'=note", "dose"]
    assert {note for note, _ in rows} == {f"'{LABELS[0]}", f"'{LABELS[1]}", "-5", "plain"}
    assert min(float(dose) for _, dose in rows) < 0


def test_without_it_the_labels_are_as_declared_and_a_note_says_so(dpflows, model, tmp_path):
    _, out, _ = dpflows("sample", model, "--rows", 200, "--output", tmp_path / "s.csv")
    assert "Warning: text in column '=note' begins like a formula" in out
    assert "--escape-formulas" in out
    assert {row[0] for row in _cells(tmp_path / "s.csv")[1:]} == set(LABELS)
    _, out, _ = dpflows("sample", model, "--rows", 9, "--output", tmp_path / "s.parquet")
    assert "Note" not in out


def test_it_belongs_to_text_files(refused, model, tmp_path):
    words = ("sample", model, "--rows", 5, "--output", tmp_path / "s.parquet")
    assert ".csv" in refused(*words, "--escape-formulas")
    assert "escape_formulas" in sample.__annotations__


@given(st.lists(st.one_of(st.none(), st.text()), min_size=1))
def test_no_text_begins_a_formula_any_more_and_nothing_else_changes(texts):
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(texts, pa.string()).cast(kind)
        marked = escaped(pa.table({"a": column})).column("a").to_pylist()
        for before, after in zip(texts, marked, strict=True):
            assert after in (before, f"'{before}")
            assert before is None or (after != before) == begins_formula(before)
            assert after is None or not begins_formula(after)


@pytest.mark.parametrize(
    "text", ["=1", "+a", "-a", "@a", "\t1", "\r=1", "\n", " =1", "＝1", "-1-1"]
)
def test_what_spreadsheets_run(text):
    assert begins_formula(text)


@pytest.mark.parametrize("text", ["", "a=1", "-1", "+1.5", "-1,5", "-.5e-3", "'=1", "1-2"])
def test_what_they_do_not(text):
    assert not begins_formula(text)
