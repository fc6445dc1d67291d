"""Files that are not written as the defaults say: proposed, declared, or told by options."""

import json

import numpy as np
import pytest

from dpflows.anomaly.persistence import load
from dpflows.cli.main import app, run

BOUNDS = {"age": ("integer", 0, 120), "dose": ("continuous", 0, 9)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table with semicolons and decimal commas, and a schema that says nothing of them."""
    chance = np.random.default_rng()
    lines = [f"{chance.integers(120)};{chance.random():.3f}".replace(".", ",") for _ in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["age;dose", *lines]) + "\n")
    columns = {n: {"kind": k, "min": a, "max": b} for n, (k, a, b) in BOUNDS.items()}
    (tmp_path / "s.json").write_text(json.dumps({"columns": columns}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = "fit t.csv --schema s.json --epsilon 1 --delta 1e-4 --output m.dpflow"
FIT = COMMAND.split()


def test_a_proposal_is_said_to_be_read_off_the_rows(folder, capsys):
    assert run(app, ["schema", "t.csv", "--output", "p.toml"]) == 0
    said = capsys.readouterr().out
    assert "were inferred from the rows" in " ".join(said.split())
    assert '[text] delimiter = ";"' in said
    assert '[text] decimal = ","' in said
    written = (folder / "p.toml").read_text()
    assert 'delimiter = ";"\ndecimal = ","' in written
    assert "check every line" in written


def test_the_refusal_names_the_option(folder, capsys):
    assert run(app, FIT) == 2
    assert '--delimiter ";"' in capsys.readouterr().err


def test_options_stand_in_place_of_the_schema(folder, capsys):
    told = ["--delimiter", ";", "--decimal", ","]
    assert run(app, [*FIT, *told]) == 0
    assert load(folder / "m.dpflow").encoding_.schema.text.to_dict() == {
        "delimiter": ";",
        "decimal": ",",
    }
    # the model knows how its table was written
    assert run(app, ["score", "m.dpflow", "t.csv", "--output", "a.csv"]) == 0
    (folder / "u.tsv").write_text("age\tdose\n30\t1.5\n")
    score = ["score", "m.dpflow", "u.tsv", "--output", "b.csv"]
    assert run(app, [*score, "--delimiter", "tab", "--decimal", "."]) == 0
    capsys.readouterr()
    assert run(app, [*score[:-1], "c.csv", "--unreadable", "missing"]) == 2
    assert "declare nullable = true there" in " ".join(capsys.readouterr().err.split())
