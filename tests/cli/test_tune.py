"""``dpflows tune`` from candidates in a file to a model, and a large delta at every verb."""

import json

import pytest

from dpflows import Ledger, load

GRID = "[grid]\nradius = [4.0, 6.0]\n"
LISTED = '[{"radius": 4.0}, {"radius": "none"}]'


@pytest.fixture
def words(job, tmp_path):
    (tmp_path / "c.toml").write_text(GRID)
    given = ["tune", job.rows, "--schema", job.schema, "--epsilon", 1]
    more = ["--candidates", tmp_path / "c.toml", "--estimator", "gaussian"]
    return [*given, *more, "--output", tmp_path / "m.dpflow"]


@pytest.mark.filterwarnings("ignore::dpflows.errors.RepeatedFitWarning")
def test_the_best_candidate_becomes_a_model(dpflows, words, tmp_path):
    code, out, err = dpflows(*words)
    assert code == 0
    assert "2 fits on average (geometric law) among 2 candidates, each at epsilon 0." in err
    for part in ("Guarantee of the whole selection: (1, 1e-06)", "Chosen: radius = ", "Next: "):
        assert part in out
    (event,) = load(tmp_path / "m.dpflow").guarantee_.events
    assert event.kind == "selection"
    kept = (tmp_path / "m.dpflow").read_bytes()
    assert dpflows(*words)[0] == 2
    assert (tmp_path / "m.dpflow").read_bytes() == kept
    assert dpflows(*words, "--force")[0] == 0


def test_machines_get_one_document_and_the_ledger_one_charge(dpflows, words, tmp_path):
    (tmp_path / "c.json").write_text(LISTED)
    words[words.index("--candidates") + 1] = tmp_path / "c.json"
    place = tmp_path / "a.ledger"
    cap = ["--ledger", place, "--cap-epsilon", 2, "--cap-delta", 1e-6]
    code, out, _ = dpflows(*words, *cap, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["chosen"]["radius"] in (4.0, None)
    assert told["plan"]["run_epsilon"] < 1.0
    assert told["plan"]["mean_runs"] == 2.0
    assert 0.99 < told["guarantee"]["epsilon"] <= 1.0
    assert len(Ledger(place).odometer()) == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "candidates must be a .toml or .json file"),
        ("candidate = 3", "candidates must be a .toml or .json file"),
        ("[grid]\nepsilon = [1, 2]", "must not set epsilon"),
        ("[[candidate]]\nradius = [1]", "must set radius to a number"),
        ("[[candidate]]\ncolour = 1", "'colour' is not one of them"),
        ("not toml", "candidates must be a .toml or .json file"),
    ],
)
def test_bad_candidates_are_one_line_and_code_two(dpflows, words, tmp_path, content, expected):
    (tmp_path / "c.toml").write_text(content)
    code, out, err = dpflows(*words)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_a_delta_of_one_over_rows_is_refused_unless_it_is_accepted(dpflows, job, words, tmp_path):
    budget = ["--schema", job.schema, "--epsilon", 1, "--delta", 0.004]
    model = ["--output", tmp_path / "o.dpflow"]
    small = ["--steps", 3, "--architecture", "nsf", "--batch-size", 50]
    verbs = [
        ["plan", *budget, "--rows", 300, *small],
        ["fit", job.rows, *budget, *model, *small],
        ["ensemble", job.rows, *budget, "--epsilon-per-query", 0.5, *model],
        [*words, "--delta", 0.004],
    ]
    for verb in verbs:
        code, _, err = dpflows(*verb)
        assert code == 2
        assert "delta must be below 1 / rows = 0.003333, got 0.004" in err
        assert "--allow-large-delta" in err
    for verb in (verbs[0], verbs[3]):
        code, out, _ = dpflows(*verb, "--allow-large-delta")
        assert code == 0
        assert "Caveat: delta 0.004 is not below one over the number of rows (300)" in out
