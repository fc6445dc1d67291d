"""A full disk at any point: no charge is granted that was not committed, and nothing breaks."""

import errno
import hashlib
import os
import sqlite3
from pathlib import Path

import pytest

from dpflows.errors import InputError
from dpflows.privacy.ledger import Ledger, RunState, pending_files, publish, recover, stores
from privacy.ledger.charges import cap_for, query

FULL = "database or disk is full"


@pytest.fixture
def path(tmp_path) -> Path:
    place = tmp_path / "clinic.ledger"
    Ledger(place, cap=cap_for(200), accountant="zcdp").reserve([query()], purpose="first")
    return place


def _charges(path: Path) -> list[str]:
    """The runs of a ledger that opens clean."""
    ledger = Ledger(path)
    ledger.verify()
    return [entry.run for entry in ledger.history() if entry.state == "RESERVED"]


def _fill(ledger: Ledger, granted: list[str]) -> None:
    for _ in range(100):
        granted.append(ledger.reserve([query()], purpose="fit").run)


def test_a_disk_that_fills_up_grants_what_it_kept(path, monkeypatch):
    """SQLite itself runs out of pages, after different numbers of charges."""
    settle = stores._settle
    stored = path.stat().st_size // 4096
    for extra in (0, 1, 3):

        def cramped(connection, limit=stored + extra):
            settle(connection)
            connection.execute(f"PRAGMA max_page_count = {limit}")

        before = _charges(path)
        ledger, granted = Ledger(path), []
        monkeypatch.setattr(stores, "_settle", cramped)
        with pytest.raises(InputError, match="disk is full; nothing was granted"):
            _fill(ledger, granted)
        monkeypatch.setattr(stores, "_settle", settle)
        assert _charges(path) == before + granted
        stored = path.stat().st_size // 4096


class Failing(sqlite3.Connection):
    """Fails at one of its statements, before or after it was carried out."""

    left, late = -1, False

    def execute(self, *words):
        Failing.left -= 1
        if Failing.left != 0:
            return super().execute(*words)
        if Failing.late:
            super().execute(*words).fetchall()
        raise sqlite3.OperationalError(FULL)


@pytest.fixture
def failing(monkeypatch):
    connect = sqlite3.connect

    def with_faults(*words, **settings):
        return connect(*words, factory=Failing, **settings)

    monkeypatch.setattr(stores.sqlite3, "connect", with_faults)

    def arm(point: int, late: bool) -> None:
        Failing.left, Failing.late = point, late

    yield arm
    Failing.left = -1


def _until_it_works(failing, late, attempt) -> int:
    """Try with a fault at the first statement, the second and so on; gives how many failed."""
    for point in range(1, 100):
        failing(point, late)
        refusal = _refusal(attempt, point)
        failing(-1, late)
        if not refusal:
            return point - 1
        assert "disk is full" in refusal
    raise AssertionError("it never works")


def _refusal(attempt, point: int) -> str:
    try:
        attempt(point)
    except InputError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("late", [False, True])
def test_a_full_disk_at_any_statement_of_a_charge(path, failing, late):
    granted = []

    def attempt(point):
        granted.append(Ledger(path).reserve([query()], purpose="fit", run=f"run-{point}").run)

    points = _until_it_works(failing, late, attempt)
    assert points >= 8
    kept = _charges(path)[1:]
    assert set(granted) <= set(kept)
    # Only an answer that was lost after the commit leaves a charge that nobody got.
    assert len(kept) - len(granted) == (1 if late else 0)
    for run in kept:
        Ledger(path).reserve([query()], purpose="fit", run=run)
    assert _charges(path)[1:] == kept


@pytest.mark.parametrize("late", [False, True])
def test_a_full_disk_while_a_ledger_is_made(tmp_path, failing, late):
    path = tmp_path / "new.ledger"

    def attempt(point):
        Ledger(path, cap=cap_for(10), accountant="zcdp")
        assert late or path.stat().st_size > 0

    assert _until_it_works(failing, late, attempt) >= 6
    Ledger(path).verify()


@pytest.mark.parametrize("late", [False, True])
def test_a_full_disk_while_a_file_is_published(tmp_path, path, failing, late):
    """At every point: a file that is seen was marked before, with its digest."""
    target = tmp_path / "model.out"

    def attempt(point):
        failing(-1, late)
        receipt = Ledger(path).reserve([query()], purpose="fit", run=f"run-{point}")
        failing(point, late)
        try:
            publish(Ledger(path), receipt, target, lambda file: file.write_text(f"{point}"))
        finally:
            failing(-1, late)
            _judge(path, target, f"run-{point}")

    assert _until_it_works(failing, late, attempt) >= 8


def _judge(path: Path, target: Path, run: str) -> None:
    ledger = Ledger(path)
    ledger.verify()
    if recover(ledger, run, target):
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        assert ledger.state_of(run) == RunState("RELEASED", digest)
        target.unlink()
    assert ledger.state_of(run) is not None
    assert not target.exists()
    assert pending_files(target, run) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_under_the_file_itself(tmp_path, path, monkeypatch, call):
    ledger, target = Ledger(path), tmp_path / "model.out"
    receipt = ledger.reserve([query()], purpose="fit")

    def fail(*words):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            publish(ledger, receipt, target, lambda file: file.write_text("41"))
    assert not target.exists()
    if call == "fsync":
        assert ledger.state_of(receipt.run) == RunState("RESERVED")
        publish(ledger, receipt, target, lambda file: file.write_text("41"))
    else:
        assert recover(ledger, receipt.run, target)
    assert target.read_text() == "41"
    assert sorted(os.listdir(tmp_path)) == ["clinic.ledger", "model.out"]


def test_a_writer_that_fails_leaves_nothing(tmp_path, path):
    ledger, target = Ledger(path), tmp_path / "model.out"
    target.write_text("old")
    receipt = ledger.reserve([query()], purpose="fit")

    def write(file: Path) -> None:
        file.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(ledger, receipt, target, write)
    assert ledger.state_of(receipt.run) == RunState("RESERVED")
    assert target.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["clinic.ledger", "model.out"]


def test_a_release_is_published_once(tmp_path, path):
    ledger, target = Ledger(path), tmp_path / "model.out"
    receipt = ledger.reserve([query()], purpose="fit")
    assert not recover(ledger, receipt.run, target)
    marked = publish(ledger, receipt, target, lambda file: file.write_text("41"))
    ledger.verify(marked)
    assert recover(ledger, receipt.run, target), "it is there already"
    with pytest.raises(InputError, match="was released already"):
        publish(ledger, receipt, tmp_path / "again.out", lambda file: file.write_text("42"))
    assert not recover(ledger, "never", target)
    with pytest.raises(InputError, match="was never charged"):
        publish(ledger, _other(tmp_path), target, lambda file: file.write_text("43"))
    assert target.read_text() == "41"


def _other(folder: Path):
    return Ledger(folder / "other", cap=cap_for(9), accountant="zcdp").reserve(
        [query()], purpose="fit"
    )


def test_a_changed_pending_file_is_not_revealed(tmp_path, path, monkeypatch):
    ledger, target = Ledger(path), tmp_path / "model.out"
    receipt = ledger.reserve([query()], purpose="fit")
    with monkeypatch.context() as patched:
        patched.setattr("dpflows.privacy.ledger.ledger._reveal", lambda *paths: None)
        publish(ledger, receipt, target, lambda file: file.write_text("41"))
    (pending,) = pending_files(target, receipt.run)
    pending.write_text("42")
    assert not recover(ledger, receipt.run, target)
    assert not target.exists()
    pending.write_text("41")
    assert recover(ledger, receipt.run, target)
    assert target.read_text() == "41"
