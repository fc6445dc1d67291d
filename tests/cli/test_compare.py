"""``dpflows compare``: INTERNAL, one table, everybody at the same budget."""

import json

import numpy as np
import pandas as pd
import pytest

from dpflows.cli import compare
from dpflows.evaluation.measures import INTERNAL_STAMP
from dpflows.experiments.baselines import BASELINES, comparison, smartnoise
from dpflows.experiments.baselines.base import Baseline

pytest.importorskip("mbi")

MIXED = """
target = "ill"

[columns.sex]
kind = "categorical"
categories = ["F", "M"]

[columns.ill]
kind = "boolean"

[columns.age]
kind = "integer"
min = 0
max = 7
"""
NUMERIC = """
[columns.height]
kind = "continuous"
min = -4
max = 4

[columns.weight]
kind = "continuous"
min = -4
max = 4
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two tables and their schemas."""
    folder = tmp_path_factory.mktemp("compare")
    chance = np.random.default_rng()
    ill = chance.random(600) < 0.4
    sex = np.where(chance.random(600) < 0.8, np.where(ill, "F", "M"), "F")
    age = chance.integers(0, 8, 600)
    pd.DataFrame({"sex": sex, "ill": ill, "age": age}).to_csv(folder / "mixed.csv", index=False)
    table = pd.DataFrame(chance.normal(size=(600, 2)).clip(-4, 4), columns=["height", "weight"])
    table.to_csv(folder / "numeric.csv", index=False)
    (folder / "mixed.toml").write_text(MIXED)
    (folder / "numeric.toml").write_text(NUMERIC)
    return folder


@pytest.fixture
def command(dpflows, files):
    def run(kind, *words, epsilon=1):
        table, schema = files / f"{kind}.csv", files / f"{kind}.toml"
        return dpflows("compare", table, "--schema", schema, "--epsilon", epsilon, *words)

    return run


@pytest.fixture
def without_trees(monkeypatch):
    """Figures that take a second each are made up."""
    monkeypatch.setattr(comparison, "detection_auc", lambda *_, **__: 0.5)
    monkeypatch.setattr(comparison, "learn_auc", lambda *_, **__: float("nan"))


@pytest.mark.usefixtures("without_trees")
def test_a_mixed_table_is_compared_and_all_is_internal(command, tmp_path):
    code, out, _ = command("mixed", "--methods", "mst", "--output", tmp_path / "c.json")
    assert code == 0
    assert out.startswith(INTERNAL_STAMP[:30])
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["internal"] is True
    assert found["rows"] == {"fitted": 480, "held_out": 120}
    real, discretised, baseline = found["lines"]
    assert [line["method"] for line in (real, discretised, baseline)] == [
        "real rows",
        "real, discretised",
        "mst",
    ]
    assert real["epsilon"] is None
    assert real["two_way_fitted"] == 0
    assert 0.98 < baseline["epsilon"] <= 1 < baseline["replace_one_epsilon"]
    assert (baseline["neighbours"], baseline["delta"], baseline["accountant"]) == (
        "zero-out",
        1e-6,
        "zcdp",
    )
    for line in (real, discretised, baseline):
        assert line["remark"] == ""
        assert 0 <= line["one_way"] <= line["two_way"] <= 1
        assert line["detection"] == 0.5
        assert line["method"] in out


@pytest.mark.usefixtures("without_trees")
def test_a_numeric_table_with_rows_and_a_target_of_its_own(command, files):
    code, out, _ = command(
        "numeric", "--methods", "DPGaussian", "--test", files / "numeric.csv",
        "--target", "weight", "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert found["rows"] == {"fitted": 600, "held_out": 600}
    assert found["target"] == "weight"
    ours = found["lines"][2]
    assert (ours["method"], ours["accountant"], ours["remark"]) == ("DPGaussian", "pld", "")
    assert ours["epsilon"] <= 1
    # what is not a number is null
    assert ours["learning"] is None


@pytest.mark.usefixtures("without_trees")
def test_a_peer_that_is_missing_or_slow_is_a_line(command, monkeypatch):
    monkeypatch.setattr(BASELINES["aim"], "needs", "no_such_library")
    code, out, _ = command("mixed", "--methods", "mst,aim", "--seconds", 0, "--json")
    assert code == 0
    slow, missing = json.loads(out)["lines"][2:]
    assert slow["remark"].startswith("stopped after the time limit")
    assert missing["remark"].startswith("not installed: aim needs no_such_library")
    assert slow["epsilon"] is missing["epsilon"] is None
    _, out, _ = command("mixed", "--methods", "aim")
    assert "aim: not installed" in out


@pytest.mark.usefixtures("without_trees")
def test_peers_that_are_missing_are_left_out_unless_they_are_asked_for(command, monkeypatch):
    monkeypatch.setattr(comparison, "ESTIMATORS", {})
    monkeypatch.setattr(comparison, "OURS", "mst")
    monkeypatch.setattr(BASELINES["aim"], "needs", "no_such_library")
    monkeypatch.delenv(smartnoise.VARIABLE, raising=False)
    code, out, _ = command("mixed", "--seconds", 0, "--json")
    assert code == 0
    found = json.loads(out)
    assert {line["method"] for line in found["lines"][2:]} == {"mst"}
    assert len(found["left_out"]) == 3
    assert "no_such_library" in found["left_out"][0]


@pytest.mark.usefixtures("without_trees")
def test_a_failure_is_named_and_not_quoted(command, monkeypatch):
    def fail(*_):
        raise ValueError("patient 4711")

    monkeypatch.setattr(BASELINES["mst"], "draw", fail)
    code, out, err = command("mixed", "--methods", "mst")
    assert code == 0
    assert "failed (ValueError)" in out
    assert "4711" not in out + err


def test_plain_numbers_have_more_methods(files):
    plain, mixed = (compare._declared(files / f"{k}.toml", None) for k in ("numeric", "mixed"))
    assert {"DPDensity", "DPFlow", "DPGaussian", "DPKernelDensity", "mst"} <= set(
        comparison.methods_for(plain)
    )
    assert comparison.methods_for(mixed) == ("DPDensity", *BASELINES)


def test_mistakes_are_one_line(files, refused):
    table, schema = files / "mixed.csv", files / "mixed.toml"
    words = ("compare", table, "--schema", schema, "--epsilon")
    assert "finite" in refused(*words, "inf", "--methods", "mst")
    assert "some of DPDensity, mst, aim" in refused(*words, 1, "--methods", "DPGaussian")
    assert "target" in refused(*words, 1, "--target", "height")
    assert ".json" in refused(*words, 1, "--output", files / "c.txt")
    assert "epsilon" in refused(*words, 0)


def test_columns_without_domain_are_refused(files, refused, tmp_path):
    (tmp_path / "s.toml").write_text(NUMERIC.replace("min = -4\nmax = 4\n", ""))
    words = ("--schema", tmp_path / "s.toml", "--epsilon", 1)
    assert "does not discover bounds" in refused("compare", files / "numeric.csv", *words)


@pytest.mark.usefixtures("without_trees")
def test_a_peer_is_one_class_and_one_line(files, monkeypatch):
    """A new entry of the registry takes part at once."""

    class Uniform(Baseline):
        name, title, needs = "uniform", "Uniform", "json"

        def events(self, schema, budget):
            return ()

        def draw(self, rows, budget, n, entropy):
            return np.full((n, len(rows.sizes)), -1)

    monkeypatch.setitem(BASELINES, "uniform", Uniform)
    schema = compare._declared(files / "mixed.toml", None)
    train, test = compare._sides(files / "mixed.csv", None, schema, {})
    compared = comparison.Comparison(train, test, schema, comparison.Budget(1.0, 1e-6))
    line = list(comparison.compare(compared, ["uniform"]))[-1]
    assert line.remark == ""
    assert line.guarantee.epsilon == 0
    assert 0 < line.figures.one_way < 0.4


@pytest.mark.long
def test_all_methods_model_both_tables(command):
    for kind in ("mixed", "numeric"):
        code, out, _ = command(kind, "--json")
        assert code == 0
        assert [line for line in json.loads(out)["lines"] if line["remark"]] == []
