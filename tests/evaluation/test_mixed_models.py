"""A fitted model of mixed rows, judged as the command line judges it."""

import json

import pandas as pd
import pytest

from dpflows import DPAutoregressive, load
from dpflows.cli.main import app, run
from dpflows.evaluation.measures import Subject
from dpflows.privacy.randomness import Entropy
from dpflows.table.reading import read_table
from dpflows.table.schema import Schema
from evaluation.mixed import SCHEMA, fresh_rows

pytestmark = pytest.mark.long

RULE = "sex = F -> age >= 30"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that was hardly trained, of a table with a constraint, and rows to judge it by."""
    place = tmp_path_factory.mktemp("mixed")
    schema = Schema.from_dict(SCHEMA.to_dict() | {"constraints": [RULE]})
    rows = pd.DataFrame(fresh_rows(1500))
    rows = rows[(rows["sex"] != "F") | (rows["age"] >= 30)]
    rows.to_csv(place / "rows.csv", index=False)
    fitted = DPAutoregressive(4.0, 1e-6, schema=schema, steps=3).fit(rows)
    fitted.save(place / "model.dpflow")
    return place


def test_generated_rows_keep_the_constraints(folder):
    model = load(folder / "model.dpflow")
    table = read_table(folder / "rows.csv", model.encoding_.schema)
    subject = Subject.of(model, table, Entropy.from_os())
    young = subject.generated["age"] < 30
    assert young.any()
    assert not (subject.generated["sex"][young] == "F").any()


def test_every_measure_and_the_page(folder, capsys):
    words = ["evaluate", folder / "model.dpflow", folder / "rows.csv", "--json"]
    words += ["--report", folder / "report.html"]
    assert run(app, [str(word) for word in words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["figures"]) >= {"prediction", "detection", "triple-cells", "pair-cells"}
    assert found["figures"]["log-likelihood"]["rows_of_density_zero"] == 0
    assert max(found["figures"]["total-variation"].values()) < 0.9
    assert (folder / "report.html").read_text().count("<svg") == 7


def test_a_private_evaluation(folder, capsys):
    words = ["evaluate", folder / "model.dpflow", folder / "rows.csv", "--json"]
    words += ["--private", "--epsilon", "2"]
    assert run(app, [str(word) for word in words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["guarantee"]["is_private"]
    assert set(found["figures"]["total-variation"]) == set(SCHEMA.names)
