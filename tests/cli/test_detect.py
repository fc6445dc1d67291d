"""``dpflows detect`` over densities, threshold detectors and ensembles; other verbs over those."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from dpflows import DPAnomalyDetector, DPEnsembleDetector, DPGaussian
from dpflows.anomaly.persistence import load
from dpflows.cli.detect import ENSEMBLE_NOTE, NOTE
from dpflows.privacy.guarantee import Budget


@pytest.fixture(scope="module")
def detector(job, tmp_path_factory):
    path = tmp_path_factory.mktemp("detector") / "d.dpflow"
    density = DPGaussian(1.0, 1e-5, schema=str(job.schema))
    DPAnomalyDetector(density, contamination=0.3, threshold="bought").fit(
        pd.read_csv(job.rows)
    ).save(path)
    return path


@pytest.fixture(scope="module")
def ensemble(job, tmp_path_factory):
    path = tmp_path_factory.mktemp("ensemble") / "e.dpflow"
    DPEnsembleDetector(
        3,
        DPGaussian(schema=str(job.schema)),
        epsilon_per_query=1.0,
        total_budget=Budget(10.0, 1e-6),
    ).fit(pd.read_csv(job.rows)).save(path)
    return path


@pytest.fixture
def few(tmp_path):
    """Three rows, the last of them outside the declared bounds."""
    path = tmp_path / "few.csv"
    path.write_text("age,dose\n50,4.5\n30,1.5\n30,10\n")
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_density_judges_by_its_own_samples_and_says_so(dpflows, job, tmp_path, ending):
    target = tmp_path / f"a.{ending}"
    code, out, err = dpflows("detect", job.model, job.rows, "--output", target)
    assert (code, err) == (0, "")
    found = pd.read_parquet(target) if ending == "parquet" else pd.read_csv(target)
    assert list(found.columns) == ["anomaly", "log_density"]
    assert found["anomaly"].dtype == bool
    assert len(found) == 300
    flagged = int(found["anomaly"].sum())
    assert out.splitlines() == [
        NOTE,
        "The model has no threshold; using --contamination 0.1.",
        f"Anomalies: {flagged} of 300 rows, by threshold: the 0.1 quantile of the "
        "log-densities of 20,000 generated rows (free)",
        f"Answers: {target}",
    ]
    lowest = found["log_density"][~found["anomaly"]].min()
    assert (found["log_density"][found["anomaly"]] < lowest).all()


def test_answers_keep_the_order_of_the_rows(dpflows, job, tmp_path, monkeypatch):
    monkeypatch.setattr("dpflows.cli.score.CHUNK", 70)
    target = tmp_path / "a.csv"
    dpflows("detect", job.model, job.rows, "--output", target, "--threshold", -7)
    found, expected = pd.read_csv(target), load(job.model).score_samples(pd.read_csv(job.rows))
    np.testing.assert_allclose(found["log_density"], expected, rtol=1e-4)
    np.testing.assert_array_equal(found["anomaly"], found["log_density"] < -7)


def test_a_detector_has_its_own_threshold(dpflows, job, detector, few, tmp_path):
    target = tmp_path / "a.csv"
    out = dpflows("detect", detector, few, "--output", target)[1]
    assert "about the 0.3 quantile of the training rows' log-densities, released" in out
    assert "assumed" not in out
    expected = load(detector).predict(pd.read_csv(few)) == -1
    np.testing.assert_array_equal(pd.read_csv(target)["anomaly"], expected)
    assert expected[-1]


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [("--threshold", -5, "-5, as given"), ("--contamination", 0.4, "the 0.4 quantile")],
)
def test_another_threshold_may_be_asked_for(
    dpflows, job, detector, few, tmp_path, option, value, sentence
):
    for model in (job.model, detector):
        words = ("detect", model, few, "--output", tmp_path / "a.csv", option, value, "--force")
        assert sentence in dpflows(*words)[1]


def test_another_rate_of_a_bought_threshold_comes_from_what_was_bought(
    dpflows, detector, few, tmp_path
):
    words = ("detect", detector, few, "--output", tmp_path / "a.csv", "--contamination", 0.05)
    threshold = json.loads(dpflows(*words, "--json")[1])["threshold"]
    assert (threshold["rule"], threshold["contamination"]) == ("bought", 0.05)
    assert threshold["tail"] == load(detector).threshold_rule_.tail.to_dict()


def test_as_json(dpflows, job, few, tmp_path):
    words = ("detect", job.model, few, "--output", tmp_path / "a.csv", "--threshold", -1000)
    document = json.loads(dpflows(*words, "--json")[1])
    assert (document["rows"], document["anomalies"]) == (3, 1)  # -inf lies below any number
    assert document["internal"] is True
    assert document["threshold"]["value"] == -1000
    assert document["threshold"]["sentence"].startswith("threshold: -1000")


def test_an_ensemble_answers_and_says_how_many_answers_remain(dpflows, ensemble, few, tmp_path):
    target, before = tmp_path / "a.csv", load(ensemble).remaining_queries()
    code, out, err = dpflows("detect", ensemble, few, "--output", target)
    assert (code, err) == (0, "")
    assert ENSEMBLE_NOTE in out
    assert f"Answers left: {before - 3}" in out
    assert list(pd.read_csv(target).columns) == ["anomaly"]
    document = json.loads(
        dpflows("detect", ensemble, few, "--output", target, "--json", "--force")[1]
    )
    assert document["remaining_queries"] == load(ensemble).remaining_queries() == before - 6
    assert document["columns"] == ["anomaly"]


def test_an_ensemble_answers_all_rows_or_none(refused, job, ensemble, tmp_path):
    before = load(ensemble).remaining_queries()
    refused("detect", ensemble, job.rows, "--output", tmp_path / "a.csv", code=3)
    assert load(ensemble).remaining_queries() == before
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", [("--threshold", -5), ("--contamination", 0.1)])
def test_an_ensemble_has_no_other_threshold(refused, ensemble, few, tmp_path, option):
    said = refused("detect", ensemble, few, "--output", tmp_path / "a.csv", *option)
    assert "neither --threshold nor --contamination" in said


def test_nothing_but_answers_leaves_an_ensemble(refused, ensemble, few, tmp_path):
    for words in (
        ("sample", ensemble, "--rows", 5, "--output", tmp_path / "s.csv"),
        ("score", ensemble, few, "--output", tmp_path / "s.csv"),
    ):
        assert "only its answers may be released" in refused(*words)


def test_the_certificate_of_an_ensemble_is_internal(dpflows, ensemble):
    assert "INTERNAL" in dpflows("certificate", ensemble)[1].splitlines()[0]
    assert json.loads(dpflows("certificate", ensemble, "--json")[1])["estimator"]


def test_a_detector_is_sampled_scored_and_certified(dpflows, detector, few, tmp_path):
    assert dpflows("sample", detector, "--rows", 5, "--output", tmp_path / "s.csv")[0] == 0
    assert dpflows("score", detector, few, "--output", tmp_path / "g.csv")[0] == 0
    expected = load(detector).score_samples(pd.read_csv(few))
    np.testing.assert_allclose(pd.read_csv(tmp_path / "g.csv")["log_density"], expected, 1e-4)
    words = dpflows("certificate", detector)[1]
    assert "Anomalies by threshold: about the 0.3 quantile" in words
    paid = next(line for line in words.splitlines() if line.startswith("Private releases"))
    assert paid.endswith("threshold.")
    document = json.loads(dpflows("certificate", detector, "--json")[1])
    assert document["threshold"]["rule"] == "bought"
    assert document["events"][-1]["purpose"] == "threshold"
    assert document["estimator"] == "DPAnomalyDetector"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--threshold", 1, "--contamination", 0.1), "not both"),
        (("--contamination", 0.9), "contamination must be in"),
        (("--contamination", "nan"), "contamination must be in"),
        (("--threshold", "nan"), "threshold must be a finite number"),
        (("--threshold", "inf"), "threshold must be a finite number"),
    ],
)
def test_mistakes_are_one_line(refused, job, few, tmp_path, more, message):
    assert message in refused("detect", job.model, few, "--output", tmp_path / "a.csv", *more)


def test_detections_go_to_a_file_alone(refused, job, few, tmp_path):
    assert "detections are private" in refused("detect", job.model, few)
    assert "must not be the input file" in refused("detect", job.model, few, "--output", few)
    for bad in (tmp_path / "a.txt", tmp_path / "missing" / "a.csv", tmp_path):
        refused("detect", job.model, few, "--output", bad)
    assert os.listdir(tmp_path) == [few.name]


def test_a_stamp_is_the_first_thing_that_is_shown(dpflows, job, few, tmp_path):
    density = DPGaussian(1.0, 1e-5, schema=str(job.schema), insecure_test_seed=1)
    density.fit(pd.read_csv(job.rows)).save(tmp_path / "m.dpflow")
    words = ("detect", tmp_path / "m.dpflow", few, "--output", tmp_path / "a.csv")
    assert dpflows(*words)[1].startswith("NOT PRIVATE")
    assert json.loads(dpflows(*words, "--json", "--force")[1])["stamps"]
