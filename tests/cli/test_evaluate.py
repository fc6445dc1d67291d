"""``dpflows evaluate``: stamped INTERNAL, or noisy, charged first and guaranteed."""

import json

import numpy as np
import pandas as pd
import pytest

from dpflows import DPGaussian
from dpflows.evaluation.measures import INTERNAL_STAMP
from dpflows.evaluation.private import PrivateEvaluation
from dpflows.privacy.ledger import Ledger

CAPS = ("--cap-epsilon", 2, "--cap-delta", 1e-5)
PRIVATE = ("--private", "--epsilon", 1, "--delta", 1e-6)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, its schema's rows, and a stamped model."""
    folder = tmp_path_factory.mktemp("evaluate")
    chance = np.random.default_rng()
    table = pd.DataFrame(chance.normal(size=(600, 2)).clip(-4, 4), columns=["height", "weight"])
    table.to_csv(folder / "rows.csv", index=False)
    DPGaussian(2.0, 1e-6, bounds=(-4, 4)).fit(table).save(folder / "model.dpflow")
    DPGaussian(float("inf"), 1e-6, bounds=(-4, 4)).fit(table).save(folder / "open.dpflow")
    return folder


@pytest.fixture
def evaluate(dpflows, files):
    def command(*words, model="model.dpflow"):
        return dpflows("evaluate", files / model, files / "rows.csv", *words)

    return command


def test_without_private_everything_is_internal(evaluate, tmp_path):
    code, out, err = evaluate("--output", tmp_path / "e.json")
    assert (code, err) == (0, "")
    shown = out.splitlines()
    assert shown[0] == INTERNAL_STAMP
    assert shown[1].startswith("Mean log-density")
    assert "Guarantee" not in out
    document = json.loads((tmp_path / "e.json").read_text())
    assert document["internal"] is True
    assert document["stamps"] == [INTERNAL_STAMP]
    assert set(document["figures"]["kolmogorov"]) == {"height", "weight"}


def test_private_figures_come_with_their_guarantee(evaluate):
    code, out, _ = evaluate(*PRIVATE)
    assert code == 0
    assert "INTERNAL" not in out
    assert "Guarantee for the 600 rows of this evaluation: (" in out
    assert "neighbours: zero-out" in out
    assert "of the noise" in out


def test_private_as_json_hides_what_was_not_bought(evaluate):
    document = json.loads(evaluate(*PRIVATE, "--neighbours", "replace-one", "--json")[1])
    assert document["guarantee"]["is_private"]
    assert document["guarantee"]["epsilon"] <= 1
    assert document["guarantee"]["neighbours"] == "replace-one"
    assert set(document["figures"]) == {"log-likelihood", "kolmogorov", "total-variation"}
    assert "cells_beyond_bounds" not in document["figures"]["log-likelihood"]


def test_the_ledger_is_charged_and_told(evaluate, tmp_path):
    place, target = tmp_path / "clinic.ledger", tmp_path / "e.json"
    code, out, err = evaluate(*PRIVATE, "--ledger", place, *CAPS, "--output", target)
    assert (code, err) == (0, "")
    ledger = Ledger(place)
    assert "Charged: entry" in out
    assert 0 < ledger.remaining() < 2
    receipt = json.loads(target.read_text())["receipt"]
    assert ledger.state_of(receipt["run"]).name == "RELEASED"
    assert ledger.charged("evaluate") == 3


def test_the_charge_comes_first_and_stays(evaluate, tmp_path, monkeypatch):
    """Whatever fails once rows were used, the ledger has it already."""
    place = tmp_path / "clinic.ledger"

    def fail(self, subject, entropy):
        assert Ledger(place).charged("evaluate") == 3
        raise KeyboardInterrupt

    monkeypatch.setattr(PrivateEvaluation, "release", fail)
    code = evaluate(*PRIVATE, "--ledger", place, *CAPS, "--output", tmp_path / "e.json")[0]
    assert code == 130
    assert not (tmp_path / "e.json").exists()
    assert Ledger(place).remaining() < 2


def test_an_exhausted_ledger_refuses_before_anything_is_computed(evaluate, tmp_path, monkeypatch):
    place = tmp_path / "clinic.ledger"
    assert evaluate(*PRIVATE, "--ledger", place, "--cap-epsilon", 1.1, "--cap-delta", 1e-6)[0] == 0
    monkeypatch.setattr(PrivateEvaluation, "release", None)
    code, out, err = evaluate(*PRIVATE, "--ledger", place, "--output", tmp_path / "e.json")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert not (tmp_path / "e.json").exists()


def test_a_model_that_is_not_private_voids_the_guarantee(evaluate, tmp_path):
    out = evaluate(*PRIVATE, model="open.dpflow")[1]
    assert out.startswith("NOT PRIVATE")
    assert "differential privacy, neighbours" not in out
    code, _, err = evaluate(*PRIVATE, "--ledger", tmp_path / "l", *CAPS, model="open.dpflow")
    assert code == 2
    assert "not private" in err
    assert not (tmp_path / "l").exists()


def test_a_report_is_one_page(evaluate, tmp_path):
    place = tmp_path / "report.html"
    code, out, err = evaluate("--report", place)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"Report: {place}"
    page = place.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert INTERNAL_STAMP in page
    assert page.count("<svg") == 3


def test_a_private_report_shows_no_row(evaluate, tmp_path):
    place, books = tmp_path / "report.html", tmp_path / "clinic.ledger"
    document = json.loads(
        evaluate(*PRIVATE, "--ledger", books, *CAPS, "--report", place, "--json")[1]
    )
    page = place.read_text()
    assert "INTERNAL" not in page
    assert "real rows" not in page
    assert f"{document['figures']['kolmogorov']['height']:.4f}" in page
    assert document["report"] == str(place)
    assert Ledger(books).state_of(document["receipt"]["run"]).name == "RELEASED"


def test_figures_and_report_are_written_for_one_charge(evaluate, tmp_path):
    books, files = tmp_path / "clinic.ledger", [tmp_path / "e.json", tmp_path / "e.html"]
    words = ("--output", files[0], "--report", files[1])
    code, _, err = evaluate(*PRIVATE, "--ledger", books, *CAPS, *words)
    assert (code, err) == (0, "")
    assert all(file.stat().st_size for file in files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clinic.ledger", "e.html", "e.json"]
    assert Ledger(books).charged("evaluate") == 3


def test_a_report_of_a_model_that_is_not_private_says_so(evaluate, tmp_path):
    evaluate(*PRIVATE, "--report", tmp_path / "e.html", model="open.dpflow")
    page = (tmp_path / "e.html").read_text()
    assert page.index("NOT PRIVATE") < page.index("Privacy guarantee of the model")
    assert 'class="banner alarm"' in page


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--private"], "--epsilon"),
        (["--epsilon", "1"], "--private"),
        (["--ledger", "l"], "--private"),
        (["--delta", "0.001"], "--private"),
        (["--private", "--epsilon", "inf"], "finite"),
        (["--private", "--epsilon", "1", "--neighbours", "friends"], "neighbours"),
        (["--private", "--epsilon", "1", "--neighbours", "add-remove"], "neighbours"),
        (["--output", "e.csv"], ".json"),
        (["--report", "e.json"], ".html"),
    ],
)
def test_mistakes_are_one_line(refused, files, words, hint):
    assert hint in refused("evaluate", files / "model.dpflow", files / "rows.csv", *words)
