"""What exists is not lost: overwriting needs a word, and is refused before anything is done."""

import os
import threading

import numpy as np
import pytest

from dpflows import Budget, DPAnomalyDetector, DPEnsembleDetector, DPGaussian, Ledger, load
from dpflows.cli.main import VERBS, _command
from dpflows.errors import InputError
from dpflows.files import write_atomically

#: The rows of these commands do not exist: a refusal of the output comes before they are read.
COMMANDS = [
    ("schema none.csv --output {out}", "s.toml"),
    ("fit none.csv --schema none.toml --epsilon 1 --output {out}", "m.dpflow"),
    (
        "fit none.csv --schema none.toml --epsilon 1 --output {out} --ledger c.ledger "
        "--cap-epsilon 1 --cap-delta 1e-6",
        "m.dpflow",
    ),
    ("sample none.dpflow --rows 5 --output {out}", "s.csv"),
    ("sample none.dpflow --rows 5 --output {out}", "s.parquet"),
    ("score none.dpflow none.csv --output {out}", "g.csv"),
    ("detect none.dpflow none.csv --output {out}", "a.csv"),
    (
        "ensemble none.csv --schema none.toml --epsilon 1 --epsilon-per-query 0.1 --output {out}",
        "e.dpflow",
    ),
    ("evaluate none.dpflow none.csv --output {out}", "e.json"),
    ("evaluate none.dpflow none.csv --report {out}", "e.html"),
    ("compare none.csv --schema none.toml --epsilon 1 --output {out}", "c.json"),
    ("certificate none.dpflow --output {out}", "c.txt"),
    ("demo --output .", "model.dpflow"),
    ("demo --output .", "certificate.txt"),
]
#: A stopped reproduction goes on in its folder, which holds its own files alone.
CONTINUES = {"reproduce"}


@pytest.mark.parametrize(("command", "name"), COMMANDS)
def test_a_verb_refuses_to_overwrite_before_it_reads_a_row(
    refused, tmp_path, monkeypatch, command, name
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"paid for")
    said = refused(*command.format(out=name).split())
    assert "already exists" in said
    assert "--force" in said
    assert (tmp_path / name).read_bytes() == b"paid for"
    assert os.listdir(tmp_path) == [name]
    forced = refused(*command.format(out=name).split(), "--force") if "none" in command else ""
    assert "already exists" not in forced  # it is the missing rows that are refused now


def test_every_verb_that_writes_can_be_forced():
    options = {
        verb: {word for option in _command(verb, VERBS[verb]).params for word in option.opts}
        for verb in VERBS
    }
    writing = {verb for verb, words in options.items() if words & {"--output", "--report"}}
    assert len(writing) > 8
    assert {verb for verb in writing - CONTINUES if "--force" not in options[verb]} == set()


def test_force_replaces(dpflows, job, tmp_path):
    target = tmp_path / "s.csv"
    words = ("sample", job.model, "--rows", 5, "--output", target)
    assert dpflows(*words)[0] == 0
    first = target.read_bytes()
    assert dpflows(*words)[0] == 2
    assert target.read_bytes() == first
    assert dpflows(*words, "--force")[0] == 0
    assert target.read_bytes() != first


def test_a_link_that_leads_nowhere_is_not_replaced(refused, job, tmp_path):
    target = tmp_path / "s.csv"
    target.symlink_to("elsewhere.csv")
    assert "already exists" in refused("sample", job.model, "--rows", 5, "--output", target)
    assert target.is_symlink()


def test_a_file_that_appears_while_another_is_written_stays(tmp_path):
    target = tmp_path / "m.dpflow"
    with pytest.raises(InputError, match="already exists"):
        _overtaken(target)
    assert target.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["m.dpflow"]


def _overtaken(target):
    with _writing(target) as file:
        file.write(b"second")
        target.write_bytes(b"first")


def _writing(target):
    return write_atomically(target, overwrite=False)


def test_of_many_that_write_at_once_one_wins(tmp_path):
    for attempt in range(20):
        target, start, done = tmp_path / str(attempt), threading.Barrier(4), []

        def write(word, target=target, start=start, done=done):
            start.wait()
            try:
                with _writing(target) as file:
                    file.write(word)
                done.append(word)
            except InputError:
                pass

        threads = [threading.Thread(target=write, args=(b"%d" % i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [target.read_bytes()] == done
    assert len(os.listdir(tmp_path)) == 20


def test_a_disk_without_links_refuses_as_well(tmp_path, monkeypatch):
    def no_links(*paths):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with _writing(tmp_path / "m") as file:
        file.write(b"first")
    with pytest.raises(InputError, match="already exists"), _writing(tmp_path / "m") as file:
        file.write(b"second")
    assert (tmp_path / "m").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["m"]


ROWS = np.random.default_rng(3).uniform(0, 1, (60, 2))


def _gaussian() -> DPGaussian:
    return DPGaussian(1.0, 1e-5, bounds=(0, 1))


def _fitted(kind: str):
    if kind == "density":
        return _gaussian().fit(ROWS)
    if kind == "detector":
        return DPAnomalyDetector(_gaussian()).fit(ROWS)
    budget = Budget(1.0, 1e-6)
    return DPEnsembleDetector(
        3, DPGaussian(bounds=(0, 1)), epsilon_per_query=0.5, total_budget=budget
    ).fit(ROWS)


@pytest.mark.parametrize("kind", ["density", "detector", "ensemble"])
def test_save_refuses_a_name_that_is_taken(tmp_path, kind):
    path = tmp_path / "m.dpflow"
    path.write_bytes(b"paid for")
    fitted = _fitted(kind)
    with pytest.raises(InputError, match="pass overwrite=True"):
        fitted.save(path)
    assert path.read_bytes() == b"paid for"
    fitted.save(path, overwrite=True)
    assert type(load(path)) is type(fitted)


def test_a_charged_model_finds_another_name_and_is_charged_once(tmp_path):
    ledger = Ledger(tmp_path / "c.ledger", cap=Budget(3.0, 1e-4))
    (tmp_path / "old.dpflow").write_bytes(b"paid for")
    fitted = _gaussian().fit(ROWS, ledger=ledger)
    with pytest.raises(InputError, match="already exists"):
        fitted.save(tmp_path / "old.dpflow")
    fitted.save(tmp_path / "new.dpflow")
    assert [entry.state for entry in ledger.history()][1:] == ["RESERVED", "RELEASED"]
    assert (tmp_path / "old.dpflow").read_bytes() == b"paid for"
    assert sorted(os.listdir(tmp_path)) == ["c.ledger", "new.dpflow", "old.dpflow"]
