"""What a curator reads from a ledger, and what is refused."""

import json
import os
import re
import shutil

import numpy as np
import pytest

from dpflows import DPGaussian
from dpflows.files import read_model, write_model
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger, publish


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model that was fitted without a ledger: its releases, header and arrays."""
    rows = np.random.default_rng(1).uniform(-1, 1, size=(200, 2))
    density = DPGaussian(0.1, 1e-6, bounds=(-1, 1)).fit(rows)
    path = tmp_path_factory.mktemp("free") / "free.dpflow"
    density.save(path)
    return density.guarantee_.events, *read_model(path)


@pytest.fixture
def model(fitted):
    """Write that model with a receipt."""
    _, header, arrays = fitted

    def write(path, receipt) -> None:
        charged = header | {"receipt": None if receipt is None else receipt.to_dict()}
        write_model(path, header=charged, arrays=arrays)

    return write


@pytest.fixture
def place(tmp_path, fitted, model):
    """A ledger with one released model and one open charge."""
    ledger = Ledger(tmp_path / "clinic.ledger", cap=Budget(1.0, 1e-6), accountant="zcdp")
    receipt = ledger.reserve(fitted[0], purpose="fit", run="night-7")
    publish(ledger, receipt, tmp_path / "m.dpflow", lambda path: model(path, receipt))
    ledger.reserve(fitted[0], purpose="fit [bold]", run="night-8")
    return tmp_path / "clinic.ledger"


def test_show_says_what_is_spent_and_what_remains(dpflows, place):
    code, out, _ = dpflows("budget", "show", place)
    assert code == 0
    assert f"Ledger: {place}\n" in out
    assert "Cap: epsilon 1.0 at delta 1e-06, neighbours zero-out, accountant zcdp (" in out
    found = re.search(r"Spent: epsilon (.*); charges: 2, of them released: 1\n", out)
    left = re.search(r"Remaining for one further fit: epsilon (.*) at delta 1e-06\n", out)
    assert found
    assert left
    ledger = Ledger(place)
    assert ledger.spent() <= float(found[1]) < ledger.spent() + 1e-4
    assert ledger.remaining() - 1e-4 < float(left[1]) <= ledger.remaining()


def test_show_for_a_machine(dpflows, place):
    shown = json.loads(dpflows("budget", "show", place, "--json")[1])
    ledger = Ledger(place)
    assert shown["spent"] == ledger.spent()
    assert shown["remaining"] == ledger.remaining()
    assert shown["identity"] == ledger.identity
    assert shown["cap"] == {"epsilon": 1.0, "delta": 1e-6, "neighbours": "zero-out"}
    assert (shown["entries"], shown["charges"], shown["released"]) == (4, 2, 1)


def test_history_lists_every_entry(dpflows, place):
    code, out, _ = dpflows("budget", "history", place)
    lines = out.rstrip().splitlines()
    assert (code, len(lines)) == (0, 5)
    assert "OPENED" in lines[1]
    assert "RESERVED" in lines[2]
    assert "night-7" in lines[2]
    assert "RELEASED" in lines[3]
    assert "fit [bold]" in lines[4]


def test_history_for_a_machine_holds_the_events_and_the_chain(dpflows, place, fitted):
    entries = json.loads(dpflows("budget", "history", place, "--json")[1])["entries"]
    assert [entry["state"] for entry in entries] == ["OPENED", "RESERVED", "RELEASED", "RESERVED"]
    assert entries[1]["events"] == [event.to_dict() for event in fitted[0]]
    assert [entry["head"] for entry in entries] == [e.head for e in Ledger(place).history()]


def test_verify_says_that_all_is_well(dpflows, place):
    code, out, _ = dpflows("budget", "verify", place)
    assert code == 0
    assert "OK: hash chain, order and costs verified (4 entries)\n" in out
    assert json.loads(dpflows("budget", "verify", place, "--json")[1])["whole"] is True


def test_verify_finds_the_charge_of_a_model(dpflows, place):
    model = place.parent / "m.dpflow"
    code, out, _ = dpflows("budget", "verify", place, "--model", model)
    assert code == 0
    assert "Model: charged as entry 2, run night-7\n" in out
    assert "The file is the one that the ledger records as released\n" in out
    shown = json.loads(dpflows("budget", "verify", place, "--model", model, "--json")[1])
    assert shown["model"]["run"] == "night-7"
    assert shown["model"]["released"] is True


def test_verify_says_when_it_knows_the_receipt_alone(dpflows, place, fitted, model):
    receipt = Ledger(place).reserve(fitted[0], purpose="fit")
    model(place.parent / "saved.dpflow", receipt)
    _, out, _ = dpflows("budget", "verify", place, "--model", place.parent / "saved.dpflow")
    assert "only its receipt was checked" in out


def test_a_restored_old_ledger_is_found_by_a_newer_model(refused, place, fitted, model):
    folder = place.parent
    shutil.copy(place, folder / "old")
    receipt = Ledger(place).reserve(fitted[0], purpose="fit")
    model(folder / "new.dpflow", receipt)
    os.replace(folder / "old", place)
    line = refused("budget", "verify", place, "--model", folder / "new.dpflow")
    assert "the ledger was replaced by an older copy" in line


def test_a_model_with_a_borrowed_receipt_is_found(refused, place, fitted, model):
    receipt = Ledger(place).reserve(fitted[0], purpose="fit")
    Ledger(place).release(receipt, artefact="ab" * 32)
    model(place.parent / "forged.dpflow", receipt)
    line = refused("budget", "verify", place, "--model", place.parent / "forged.dpflow")
    assert "the ledger records another file as the release of that run" in line


def test_a_model_without_a_receipt_is_not_covered(refused, place, model):
    model(place.parent / "free.dpflow", None)
    line = refused("budget", "verify", place, "--model", place.parent / "free.dpflow")
    assert "has no receipt" in line
    assert "fit it again with --ledger" in line


def test_a_changed_ledger_is_found(refused, place):
    content = place.read_bytes()
    place.write_bytes(content.replace(b"night-8", b"night-9"))
    assert "entry 4 of the ledger was changed" in refused("budget", "verify", place)
    assert "entry 4 of the ledger was changed" in refused("budget", "show", place)


@pytest.mark.parametrize("action", ["show", "history", "verify"])
def test_no_ledger_is_made_by_looking_for_one(refused, tmp_path, action):
    line = refused("budget", action, tmp_path / "clinik.ledger")
    assert "there is no ledger at" in line
    assert "--cap-epsilon" in line
    assert os.listdir(tmp_path) == []


def test_wrong_words_are_refused(refused, place):
    assert "show" in refused("budget", "display", place)
    assert "verify" in refused("budget", "show", place, "--model", place.parent / "m.dpflow")
    assert "LEDGER" in refused("budget", "show")
    assert "not a ledger" in refused("budget", "show", place.parent / "m.dpflow")
