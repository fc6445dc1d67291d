"""``dpflows account`` prints one table, strict JSON or a picture, and refuses nonsense."""

import json

import pytest

from dpflows.cli.main import app, run

PAPER = [
    *("account", "--rows", "24059", "--batch-size", "100"),
    *("--noise-multiplier", "2.1", "--delta", "1.52e-5"),
]


def printed(capsys, *words: str) -> str:
    assert run(app, [*PAPER, *words]) == 0
    return capsys.readouterr().out


def rows_of(capsys, *words: str) -> dict[tuple[str, str, str], dict]:
    document = json.loads(printed(capsys, *words, "--json"))
    assert list(document) == ["rows"]
    return {
        (row["accountant"], row["sampling"], row["neighbours"]): row for row in document["rows"]
    }


def test_steps_for_an_epsilon(capsys):
    rows = rows_of(capsys, "--epsilon", "1")
    steps = {view: row["steps"] for view, row in rows.items()}
    assert steps["pld", "poisson", "zero-out"] == pytest.approx(16968, rel=0.005)
    assert steps["rdp", "poisson", "zero-out"] == pytest.approx(14308, rel=0.01)
    assert steps["gdp-clt", "uniform", "replace-one"] == pytest.approx(12565, abs=1)
    assert steps["gdp-clt", "poisson", "zero-out"] == pytest.approx(17205, abs=1)
    assert steps["pld", "poisson", "replace-one"] == pytest.approx(4790, rel=0.005)
    assert steps["pld", "uniform", "replace-one"] == pytest.approx(1746, rel=0.02)
    for row in rows.values():
        assert list(row) == ["accountant", "sampling", "neighbours", "steps", "kind"]
        assert (row["kind"] == "estimate") == (row["accountant"] == "gdp-clt")


def test_epsilon_for_steps(capsys):
    rows = rows_of(capsys, "--steps", "12565", "--sampling", "uniform")
    assert {view[1] for view in rows} == {"uniform"}
    assert 2.90 <= rows["pld", "uniform", "replace-one"]["epsilon"] <= 3.05


def test_the_table_reads_in_eighty_columns(capsys):
    table = printed(capsys, "--steps", "12565", "--sampling", "poisson")
    assert all(len(line) <= 80 for line in table.splitlines())
    for part in ("0.848", "estimate", "may understate", "Not applicable to batches: zcdp, gdp"):
        assert part in table


def test_a_hopeless_budget_allows_no_steps(capsys):
    rows = rows_of(capsys, "--epsilon", "0.0001", "--sampling", "poisson")
    assert rows["pld", "poisson", "replace-one"]["steps"] == 0


@pytest.mark.parametrize("name", ["curve.png", pytest.param("curve.svg", marks=pytest.mark.long)])
def test_the_picture_is_written(tmp_path, capsys, name):
    path = tmp_path / name
    printed(capsys, "--steps", "200", "--sampling", "poisson", "--plot", str(path))
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "parameter"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--epsilon", "nan"], "epsilon"),
        (["--epsilon", "inf"], "epsilon"),
        (["--steps", "0"], "steps"),
        (["--steps", "5", "--epsilon", "1"], "--steps or --epsilon"),
        ([], "--steps or --epsilon"),
        (["--steps", "5", "--delta", "0"], "delta"),
        (["--steps", "5", "--delta", "1"], "delta"),
        (["--steps", "5", "--rows", "99"], "batch_size"),
        (["--steps", "5", "--noise-multiplier", "0"], "noise_multiplier"),
        (["--steps", "5", "--sampling", "shuffle"], "sampling"),
        (["--steps", "5", "--sampling", "balls-in-bins"], "no useful proven bound"),
        (["--steps", "5", "--sampling", "magic"], "sampling"),
        (["--steps", "5", "--sampling", "poisson", "--plot", "/no/such/place.png"], "plot"),
        (["--steps", "5", "--sampling", "poisson", "--plot", "picture.unknown"], "plot"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_parameter(capsys, words, parameter):
    assert run(app, [*PAPER, *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error:")
    assert parameter in error
