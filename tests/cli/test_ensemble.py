"""``dpflows ensemble``, and what ``detect`` and ``certificate`` make of its file."""

import json
import os

import pandas as pd
import pytest

from dpflows.anomaly.members import INTERNAL_STAMP
from dpflows.cli import ensemble as verb
from dpflows.cli import fit


@pytest.fixture(scope="module")
def made(job, tmp_path_factory):
    """An ensemble that was made by the command."""
    from dpflows.cli.main import app, run

    path = tmp_path_factory.mktemp("made") / "e.dpflow"
    assert run(app, words_for(job, path)) == 0
    return path


def words_for(job, path, *more):
    words = ["ensemble", job.rows, "--schema", job.schema, "--epsilon", 8, "--output", path]
    budget = ["--epsilon-per-query", 2, "--parts", 3]
    return [str(word) for word in [*words, *budget, *more]]


def test_it_says_what_it_made_and_what_comes_next(dpflows, job, tmp_path):
    path = tmp_path / "e.dpflow"
    code, out, err = dpflows(*words_for(job, path))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == INTERNAL_STAMP
    assert lines[1].startswith("Guarantee of all answers together: (8, 1e-06)-differential")
    assert lines[2] == (
        "The budget allows 4 charges, each for one answer. Answers within the budget: at least 4"
    )
    assert lines[3:] == [
        f"Ensemble: {path}",
        f"Next: dpflows detect {path} rows.csv --output answers.csv",
    ]
    assert os.stat(path).st_mode & 0o077 == 0


def test_json_holds_the_same_for_a_machine(dpflows, job, tmp_path):
    more = ["--mechanism", "sparse-vector", "--alarms", 2, "--jobs", 1, "--delta", 1e-7, "--json"]
    code, out, err = dpflows(*words_for(job, tmp_path / "e.dpflow", *more))
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["internal"], told["stamp"]) == (True, INTERNAL_STAMP)
    assert told["plan"]["mechanism"] == "sparse-vector"
    assert told["remaining_queries"] == 2 * told["plan"]["charges"]
    assert told["guarantee"]["is_private"] is True
    assert told["guarantee"]["delta"] == 1e-7


def test_detect_answers_and_charges_the_file(dpflows, made, tmp_path):
    rows = tmp_path / "few.csv"
    rows.write_text("age,dose\n50,4.5\n30,10\n")
    code, out, _ = dpflows("detect", made, rows, "--output", tmp_path / "a.csv")
    assert code == 0
    assert "Answers left: 2" in out
    assert pd.read_csv(tmp_path / "a.csv")["anomaly"].dtype == bool


def test_detect_refuses_more_than_is_left_and_leaves_no_file(refused, job, made, tmp_path):
    line = refused("detect", made, job.rows, "--output", tmp_path / "b.csv", code=3)
    assert "but 300 were requested" in line
    assert not (tmp_path / "b.csv").exists()


def test_the_certificate_shows_the_stamp(dpflows, made):
    code, out, _ = dpflows("certificate", made)
    assert code == 0
    assert out.startswith(INTERNAL_STAMP)
    document = json.loads(dpflows("certificate", made, "--json")[1])
    assert document["statement"].startswith(INTERNAL_STAMP)
    assert document["plan"]["parts"] == 3


@pytest.mark.parametrize("name", ["sample", "score"])
def test_no_other_verb_opens_it(refused, job, made, tmp_path, name):
    more = [job.rows] if name == "score" else ["--rows", 5]
    line = refused(name, made, *more, "--output", tmp_path / "x.csv")
    assert "only its answers" in line


def test_a_watched_fit_shows_its_parts(dpflows, job, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "is_terminal", lambda: True)
    code, _, err = dpflows(*words_for(job, tmp_path / "e.dpflow"))
    assert code == 0
    assert "3/3" in err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--epsilon", "inf"], "epsilon must be finite"),
        (["--epsilon-per-query", -1], "epsilon_per_query must be a positive"),
        (["--mechanism", "coin"], "mechanism must be one of"),
        (["--estimator", "oracle"], "estimator must be mixture or flow"),
        (["--parts", 0], "k must be at least 1"),
        (["--parts", 200], "k must be at most half the number of rows"),
        (["--contamination", 2], "contamination must be in"),
        (["--jobs", 0], "jobs must be at least 1"),
        (["--neighbours", "friends"], "neighbours must be one of"),
        (["--neighbours", "add-remove"], "delta must be given with add-remove"),
        (["--output", "e.txt"], "output must end in .dpflow"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(refused, job, tmp_path, more, message):
    path = tmp_path / "e.dpflow"
    assert message in refused(*words_for(job, path, *more))
    assert not path.exists()


def test_a_question_dearer_than_the_budget_is_refused(refused, job, tmp_path):
    line = refused(*words_for(job, tmp_path / "e.dpflow", "--epsilon", 0.5), code=3)
    assert "decrease it, or increase total_budget" in line
    assert not (tmp_path / "e.dpflow").exists()


def test_a_flow_is_made_from_the_schema(job):
    from dpflows import DPFlow, Schema

    schema = Schema.read(job.schema)
    flow = verb._density("flow", schema)
    assert isinstance(flow, DPFlow)
    assert flow.schema == schema
