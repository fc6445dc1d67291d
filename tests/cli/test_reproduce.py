"""``dpflows reproduce``: lists, refuses, runs without data, goes on."""

import json

from dpflows.cli.main import app, run
from dpflows.experiments import recipe_studies
from dpflows.experiments.likelihoods import Likelihoods
from dpflows.experiments.running import Job


def test_the_list_names_every_experiment(capsys):
    assert run(app, ["reproduce", "--list", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert {"life-science", "ensemble", "accountants"} <= set(names)
    assert run(app, ["reproduce", "--list"]) == 0
    assert "half-moons" in capsys.readouterr().out


def test_mistakes_are_one_line(capsys, tmp_path):
    for words, wanted in {
        ("moons",): "NAME must be one of",
        ("half-moons", "--data", str(tmp_path / "absent")): "data must be a folder",
        ("half-moons", "--data", str(tmp_path), "--output", str(tmp_path / "o")): "half-moons",
        (): "an experiment must be named",
        (
            "gowalla",
            "--jobs",
            "1",
            "--output",
            str(tmp_path / "o"),
        ): "or --download to download them",
    }.items():
        assert run(app, ["reproduce", *words]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error:")
        assert wanted in error


def test_generated_sets_need_no_folder_and_keep_their_rows(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("DPFLOWS_DATA", raising=False)
    monkeypatch.setattr(Likelihoods, "jobs", lambda self, *_: [Job(self.name, "dp-mog", 1, (1.5,))])
    words = ["reproduce", "half-moons", "--jobs", "1", "--output", str(tmp_path)]
    assert run(app, words) == 0
    assert "generated " in capsys.readouterr().out
    rows = (tmp_path / "data/toy/moons.csv").read_bytes()
    assert "`dpflows reproduce half-moons --jobs 1`" in (tmp_path / "half-moons.md").read_text()
    assert run(app, words) == 0
    assert "generated " not in capsys.readouterr().out
    assert (tmp_path / "data/toy/moons.csv").read_bytes() == rows
    given = [*words[:-1], str(tmp_path / "again"), "--data", str(tmp_path / "data")]
    assert run(app, given) == 0
    page = (tmp_path / "again/half-moons.md").read_text()
    assert "`dpflows reproduce half-moons --data FOLDER --jobs 1`" in page


def test_an_experiment_runs_and_goes_on(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_studies, "ITERATIONS", (100, 500))
    monkeypatch.setattr(
        recipe_studies, "STATEMENTS", dict(list(recipe_studies.STATEMENTS.items())[:2])
    )
    # one job at a time: what is patched here is not patched in other processes
    words = ["reproduce", "accountants", "--jobs", "1", "--output", str(tmp_path), "--json"]
    assert run(app, words) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert len(cells) == 4
    assert all(0 < cell["mean"] < 1 for cell in cells)
    written = (tmp_path / "accountants.jsonl").read_text()
    for name in ("accountants.md", "accountants.json", "accountants.png"):
        assert (tmp_path / name).stat().st_size > 0
    assert run(app, words[:-1]) == 0
    assert "500 steps" in capsys.readouterr().out
    assert (tmp_path / "accountants.jsonl").read_text() == written
