"""From a table to a certificate, verb by verb."""

import dataclasses
import gzip
import json
import os
import re

import numpy as np
import pandas as pd
import pytest

from dpflows.cli.schema import WARNING
from dpflows.cli.score import NOTE
from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.persistence import load
from dpflows.table import Encoding, Form, Schema
from dpflows.training.dp_sgd import Progress

SMALL = ["--steps", "3", "--architecture", "nsf", "--batch-size", "50"]


def test_schema_proposes_kinds_and_says_what_is_missing(dpflows, job, tmp_path):
    target = tmp_path / "proposal.toml"
    code, out, err = dpflows("schema", job.rows, "--output", target)
    assert (code, err) == (0, "")
    assert "age: min and max (integer)" in out
    assert "Next: dpflows plan" in out
    assert Schema.read(target).undeclared() == ("age", "dose")
    assert not Schema.read(target).values_read


def test_schema_with_consent_warns_and_says_so_in_the_file(dpflows, job, tmp_path):
    target = tmp_path / "read.json"
    code, out, _ = dpflows("schema", job.rows, "--output", target, "--read-values")
    assert code == 0
    assert WARNING in out
    assert Schema.read(target).values_read
    assert Schema.read(target).undeclared() == ()
    code, out, _ = dpflows("plan", "--schema", target, "--rows", 300, "--epsilon", 1)
    assert out.startswith("NOT PRIVATE")


def test_schema_is_not_replaced_without_force(dpflows, refused, job, tmp_path):
    target = tmp_path / "mine.toml"
    target.write_text("declared by hand")
    assert "--force" in refused("schema", job.rows, "--output", target)
    assert target.read_text() == "declared by hand"
    assert dpflows("schema", job.rows, "--output", target, "--force")[0] == 0
    assert Schema.read(target).names == ("age", "dose")


def test_schema_as_json(dpflows, job, tmp_path):
    _, out, _ = dpflows("schema", job.rows, "--output", tmp_path / "s.toml", "--json")
    assert json.loads(out)["undeclared"] == {"age": ["min", "max"], "dose": ["min", "max"]}
    assert json.loads(out)["values_read"] is False


def test_names_that_look_like_markup_are_shown_as_they_are(dpflows, tmp_path):
    (tmp_path / "t.csv").write_text("[red]dose,b\x9b\n1.5,2\n")
    code, out, _ = dpflows("schema", tmp_path / "t.csv", "--output", tmp_path / "s.toml")
    assert code == 0
    assert "[red]dose" in out
    assert "\x9b" not in out


def test_plan_shows_the_price_of_each_purpose(dpflows, job):
    words = ("plan", "--schema", job.schema, "--rows", 24_000, "--epsilon", 2, "--prior", "none")
    code, out, err = dpflows(*words)
    assert (code, err) == (0, "")
    for shown in ("Gaussian", "training", "replace-one", "noise multiplier", "delta 1e-06"):
        assert shown in out
    assert "the smaller of 1e-6 and 1 / (10 rows)" in out
    document = json.loads(dpflows(*words, "--json")[1])
    assert document["guarantee"]["epsilon"] <= 2 <= document["guarantee"]["replace_one_epsilon"]
    purposes = [part["purpose"] for part in document["purposes"]]
    assert purposes == ["normalisation", "Gaussian", "training", "progress checks"]
    assert document["plan"]["steps"] > 0
    assert document["seconds"] > 0
    assert document["megabytes"] > 0


def test_plan_says_where_a_mixture_leaves_nothing_for_a_flow(dpflows, job):
    words = ("plan", "--schema", job.schema, "--rows", 24_000, "--epsilon", 2)
    assert "DPGaussianMixture of 24,000 rows, no training steps" in dpflows(*words)[1]
    document = json.loads(dpflows(*words, "--json")[1])
    assert [part["purpose"] for part in document["purposes"]] == ["mixture"]
    assert "steps" not in document["plan"]


def test_plan_prices_discovery_and_follows_the_settings(dpflows, job, tmp_path):
    dpflows("schema", job.rows, "--output", tmp_path / "s.toml")
    words = ("plan", "--schema", tmp_path / "s.toml", "--rows", 900, "--epsilon", 1, "--json")
    document = json.loads(dpflows(*words, "--discover", 0.2, *SMALL, "--delta", 1e-7)[1])
    purposes = [part["purpose"] for part in document["purposes"]]
    assert purposes[:2] == ["bounds of column 1", "bounds of column 2"]
    assert document["plan"]["batch_size"] == 50
    assert document["delta_rule"] is None
    assert document["guarantee"]["delta"] == 1e-7


def test_plan_shows_every_stamp_that_the_fit_will_carry(dpflows, job):
    words = ("plan", "--schema", job.schema, "--rows", "300", "--epsilon", "1", "--prior", "none")
    code, out, _ = dpflows(*words, "--normalisation", "paper-not-private")
    assert code == 0
    assert "NOT PRIVATE: columns were standardised" in out
    assert "NOT PRIVATE" not in dpflows(*words)[1]


def test_plan_without_privacy_is_stamped(dpflows, job):
    words = ("plan", "--schema", job.schema, "--rows", 900, "--epsilon", "inf")
    assert dpflows(*words)[1].startswith("NOT PRIVATE")
    assert json.loads(dpflows(*words, "--json")[1])["guarantee"]["epsilon"] is None


def test_fit_tells_guarantee_file_and_next_command(job):
    assert job.complained == ""  # away from a terminal there is no progress
    lines = job.said.splitlines()
    spent = re.match(r"Guarantee: \((.+), 1e-06\)-differential privacy", lines[0])
    assert spent is not None
    assert 0.999 <= float(spent[1]) <= 1
    assert lines[1:] == [
        "Delta by the public rule: the smaller of 1e-6 and 1 / (10 rows).",
        f"Model: {job.model}",
        "The file is readable by you only; run chmod to share it.",
        f"Next: dpflows sample {job.model} --rows 300 --output synthetic.csv",
    ]
    assert sorted(os.listdir(job.folder)) == ["m.dpflow", "s.toml", "t.csv"]
    assert job.model.read_bytes() != b"old"


class Trained(Exception):
    """Stands for training, which is not what these tests are about."""


@pytest.fixture
def untrained(monkeypatch):
    """Fits end where training would begin; gives the table that came."""
    seen = []

    def fit(self, X, **options):
        seen.append((self, X, options))
        raise Trained

    monkeypatch.setattr(DensityEstimator, "fit", fit)
    return seen


def _fit_words(job, tmp_path, *more, rows=None):
    words = ("fit", rows or job.rows, "--schema", job.schema, "--epsilon", "1")
    return (*words, "--output", tmp_path / "m.dpflow", *more)


def test_fit_passes_every_setting_on(dpflows, job, tmp_path, untrained):
    more = {
        "accountant": "rdp",
        "sampling": "uniform",
        "neighbours": "replace-one",
        "architecture": "maf",
        "normalisation": "moments",
        "discover": 0.25,
        "steps": 7,
        "batch_size": 30,
        "learning_rate": 0.5,
        "noise_multiplier": 9.0,
        "delta": 1e-5,
    }
    options = [part for k, v in more.items() for part in (f"--{k.replace('_', '-')}", v)]
    kept = tmp_path / "run.part"
    dpflows(*_fit_words(job, tmp_path, *options, "--checkpoint", kept))
    flow, _, passed = untrained[0]
    assert {name: flow.get_params()[name] for name in more} == more
    assert passed["checkpoint"] == kept


def test_a_terminal_shows_steps_and_epsilon(dpflows, job, tmp_path, monkeypatch):
    def fit(self, X, *, callbacks, checkpoint, ledger):
        callbacks.on_progress(Progress(3, 3, 1.0))
        raise InputError("far enough")

    monkeypatch.setattr(DensityEstimator, "fit", fit)
    monkeypatch.setattr("dpflows.cli.fit.is_terminal", lambda: True)
    code, out, err = dpflows(*_fit_words(job, tmp_path, *SMALL))
    assert (code, out) == (2, "")
    assert "3/3" in err
    assert "epsilon 1.000" in err


def test_fit_reads_files_without_header_and_with_extra_columns(
    dpflows, refused, job, tmp_path, untrained
):
    bare, wide = tmp_path / "bare.csv", tmp_path / "wide.csv"
    bare.write_text("30,1.5\n40,2.5\n")
    wide.write_text("dose,name,age\n1.5,x,30\n2.5,y,40\n")
    assert "--no-header" in refused(*_fit_words(job, tmp_path, rows=bare))
    assert "--drop-extra" in refused(*_fit_words(job, tmp_path, rows=wide))
    small = ("--batch-size", 1, "--steps", 1)
    dpflows(*_fit_words(job, tmp_path, "--no-header", *small, rows=bare))
    dpflows(*_fit_words(job, tmp_path, "--drop-extra", *small, rows=wide))
    assert len(untrained) == 2
    for _, prepared, _ in untrained:
        cells = {name: cells.tolist() for name, cells in prepared.table.columns.items()}
        assert cells == {"age": [30.0, 40.0], "dose": [1.5, 2.5]}


def test_hiding_the_number_of_rows_is_refused(refused, job, tmp_path):
    words = ("plan", "--schema", job.schema, "--rows", 300, "--epsilon", 1)
    for said in (
        refused(*_fit_words(job, tmp_path, "--neighbours", "add-remove")),
        refused(*words, "--neighbours", "add-remove"),
    ):
        assert "neighbours must be zero-out or replace-one" in said


def test_a_stamp_is_the_first_thing_that_is_shown(dpflows, job, tmp_path):
    flow = load(job.model)
    flow.guarantee_ = dataclasses.replace(flow.guarantee_, stamps=("NOT PRIVATE: seeded",))
    flow.save(tmp_path / "m.dpflow")
    shown = dpflows("sample", tmp_path / "m.dpflow", "--rows", 9, "--output", tmp_path / "s.csv")[1]
    assert shown.startswith("NOT PRIVATE: seeded\n")
    words = ("certificate", tmp_path / "m.dpflow")
    assert dpflows(*words)[1].startswith("NOT PRIVATE: seeded\n")
    document = json.loads(dpflows(*words, "--json")[1])
    assert document["is_private"] is False
    assert document["stamps"] == ["NOT PRIVATE: seeded"]


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_sample_writes_what_the_ending_says(dpflows, job, tmp_path, ending):
    target = tmp_path / f"rows.{ending}"
    words = ("sample", job.model, "--rows", 250, "--output", target, "--chunk", 100)
    code, out, err = dpflows(*words)
    assert (code, err) == (0, "")
    private = "The file is readable by you only; run chmod to share it."
    assert out == f"Rows: 250 synthetic rows in {target}\n{private}\n"
    frame = pd.read_parquet(target) if ending == "parquet" else pd.read_csv(target)
    assert list(frame.columns) == ["age", "dose"]
    assert len(frame) == 250
    assert frame["age"].dtype == np.int64
    assert frame["age"].between(0, 120).all()
    assert frame["dose"].between(0, 9).all()
    assert not frame.duplicated().any()  # each piece has randomness of its own
    assert os.listdir(tmp_path) == [target.name]


def test_a_packed_sample_keeps_no_name_and_no_time(dpflows, job, tmp_path):
    target = tmp_path / "rows.csv.gz"
    dpflows("sample", job.model, "--rows", 5, "--output", target)
    assert target.read_bytes()[3:8] == bytes(5)
    assert gzip.decompress(target.read_bytes()).startswith(b"age,dose\n")


def test_sample_of_a_model_that_was_fitted_on_an_array(dpflows, job, tmp_path):
    flow = load(job.model)
    named = zip(flow.encoding_.schema.columns, ("a,b", "c"), strict=True)
    columns = tuple(dataclasses.replace(column, name=name) for column, name in named)
    flow.form_, flow.encoding_ = Form("numpy"), Encoding(Schema(columns))
    flow.save(tmp_path / "m.dpflow")
    dpflows("sample", tmp_path / "m.dpflow", "--rows", 20, "--output", tmp_path / "s.csv")
    assert list(pd.read_csv(tmp_path / "s.csv").columns) == ["a,b", "c"]
    assert pd.read_csv(tmp_path / "s.csv")["a,b"].dtype == np.int64


def test_score_keeps_the_order_of_the_rows(dpflows, job, tmp_path, monkeypatch):
    monkeypatch.setattr("dpflows.cli.score.CHUNK", 70)
    target = tmp_path / "g.csv"
    code, out, err = dpflows("score", job.model, job.rows, "--output", target)
    assert (code, err) == (0, "")
    assert out == f"{NOTE}\nScores: {target}\n"
    found = pd.read_csv(target)
    assert list(found.columns) == ["log_density"]
    expected = load(job.model).score_samples(pd.read_csv(job.rows))
    np.testing.assert_allclose(found["log_density"], expected, rtol=1e-4)


def test_scores_outside_the_bounds_and_as_json(dpflows, job, tmp_path):
    (tmp_path / "t.csv").write_text("age,dose\n30,1.5\n30,10\n")
    words = ("score", job.model, tmp_path / "t.csv", "--output", tmp_path / "g.parquet", "--json")
    code, out, _ = dpflows(*words)
    assert code == 0
    assert json.loads(out)["internal"] is True
    scores = pd.read_parquet(tmp_path / "g.parquet")["log_density"]
    assert np.isfinite(scores[0])
    assert scores[1] == -np.inf


def test_scores_go_to_a_file_alone(refused, job):
    assert "scores are private" in refused("score", job.model, job.rows)


def test_certificate_in_words_and_for_machines(dpflows, job, tmp_path):
    code, words, err = dpflows("certificate", job.model)
    assert (code, err) == (0, "")
    assert "Who is protected" in words
    assert "age (integer), dose (continuous)" in words
    document = json.loads(dpflows("certificate", job.model, "--json")[1])
    keys = "epsilon delta neighbours accountant kind replace_one_epsilon events stamps versions"
    assert {*keys.split(), "plan", "columns"} <= set(document)
    assert document["columns"][0] == {"name": "age", "kind": "integer"}
    assert document["is_private"] is True
    assert document["plan"]["rows"] == 300
    for name in ("c.json", "c.txt"):
        shown = dpflows("certificate", job.model, "--output", tmp_path / name)[1]
        assert shown == f"Certificate: {tmp_path / name}\n"
    assert json.loads((tmp_path / "c.json").read_text()) == document
    assert (tmp_path / "c.txt").read_text() == words
