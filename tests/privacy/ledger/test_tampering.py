"""Whatever is changed in a ledger behind its back is found."""

import dataclasses
import os
import secrets
import shutil
import sqlite3
import stat
import time

import pytest

from dpflows.errors import InputError
from dpflows.privacy.ledger import Ledger, Receipt, stores
from dpflows.privacy.ledger.entries import Row, chain, read_entry
from privacy.ledger.charges import cap_for, query


@pytest.fixture
def path(tmp_path):
    """A ledger with a charge, its release and another charge."""
    place = tmp_path / "clinic.ledger"
    ledger = Ledger(place, cap=cap_for(10), accountant="zcdp")
    receipt = ledger.reserve([query()], purpose="fit", run="night-7")
    ledger.release(receipt, artefact="ab" * 32)
    ledger.reserve([query(count=2)], purpose="fit", run="night-8")
    return place


def _rows(path) -> list[Row]:
    with sqlite3.connect(path) as connection:
        return [Row(*values) for values in connection.execute("SELECT * FROM entries")]


GUARDS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"


def _forced(path, command: str, *values: object) -> None:
    """What somebody does who knows SQLite: the guards are gone for a moment only."""
    connection = sqlite3.connect(path, isolation_level=None)
    guards = connection.execute(GUARDS).fetchall()
    assert len(guards) == 3
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(command, values)
    for _, guard in guards:
        connection.execute(guard)
    connection.close()


def test_a_ledger_without_its_guards_is_refused(path):
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_stay")
    connection.close()
    with pytest.raises(InputError, match="its protection was removed"):
        Ledger(path)


ENDLESS = (
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n, 'a', 'b' FROM t"
)
GUARD_NAMES = ("entries_are_kept", "entries_stay", "entries_follow")


def _instead(name: str, action: str) -> str:
    return f"CREATE TRIGGER {name} INSTEAD OF {action} ON entries BEGIN SELECT 1; END"


HOSTILE = {
    "a view that never ends": [
        "DROP TABLE entries",
        f"CREATE VIEW entries(number, body, hash) AS {ENDLESS}",
        *map(_instead, GUARD_NAMES, ("DELETE", "UPDATE", "INSERT")),
    ],
    "a view beside the table": [f"CREATE VIEW more AS {ENDLESS}"],
    "one more trigger": [
        f"CREATE TRIGGER more AFTER INSERT ON entries BEGIN SELECT count(*) FROM ({ENDLESS}); END"
    ],
    "a guard that does something else": [
        "DROP TRIGGER entries_follow",
        "CREATE TRIGGER entries_follow BEFORE INSERT ON entries "
        f"WHEN (SELECT count(*) FROM ({ENDLESS})) BEGIN SELECT 1; END",
    ],
    "an index with an expression": ["CREATE INDEX i ON entries (length(body) + 1)"],
    "a virtual table": ["CREATE VIRTUAL TABLE more USING fts5(body)"],
    "a column that is computed": [
        "ALTER TABLE entries ADD COLUMN more GENERATED ALWAYS AS (length(body)) VIRTUAL"
    ],
    "another table": ["CREATE TABLE more (number)"],
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("before", [True, False])
def test_a_hostile_schema_is_refused_within_a_second(path, kind, before):
    """Also where it was changed behind the back of a ledger that is open."""
    ledger = None if before else Ledger(path)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for command in HOSTILE[kind]:
            connection.execute(command)
    except sqlite3.OperationalError as lacking:
        pytest.skip(f"this SQLite cannot make it: {lacking}")
    connection.close()
    started = time.perf_counter()
    with pytest.raises(InputError, match="was changed by another program"):
        Ledger(path, cap=cap_for(10))
    for use in ("remaining", "history", "verify") if ledger else ():
        with pytest.raises(InputError, match="was changed by another program"):
            getattr(ledger, use)()
    assert time.perf_counter() - started < 1


def test_a_file_that_keeps_sqlite_busy_is_left(path, monkeypatch):
    """The last resort, should a file get past the list of its schema."""
    monkeypatch.setattr(stores, "_has_table", lambda connection, path: True)
    monkeypatch.setattr(stores, "_LARGEST_WORK", 4000)
    connection = sqlite3.connect(path, isolation_level=None)
    for command in HOSTILE["a view that never ends"]:
        connection.execute(command)
    connection.close()
    with pytest.raises(InputError, match="does not end"):
        Ledger(path)


def _rewritten(path, number: int, old: str, new: str) -> None:
    """A forger who chains everything anew."""
    head, bodies = "0" * 64, []
    for row in _rows(path):
        body = row.body.replace(old, new) if row.number == number else row.body
        head = chain(head, body)
        bodies.append((body, head, row.number))
    for values in bodies:
        _forced(path, "UPDATE entries SET body = ?, hash = ? WHERE number = ?", *values)


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        (2, '"purpose":"fit"', '"purpose":"fit\\u001b[2J"'),
        (2, '"purpose":"fit"', '"purpose":"fit\\nSpent: epsilon 0"'),
        (2, "night-7", "night\\u0007"),
        (2, "night-7", "night\\r7"),
        (1, '"zcdp"', '"zcdp\\nSpent: epsilon 0"'),
        (1, '"ledger":"', '"ledger":"\\u001b'),
        (2, '"time":"2', '"time":"\\u009b2'),
        (2, "zero-out", "zero-out\\n"),
    ],
)
def test_no_control_character_gets_out_of_a_ledger(path, number, old, new, capfd):
    from dpflows.cli.main import app, run

    assert old in _rows(path)[number - 1].body
    _rewritten(path, number, old, new)
    for action in ("show", "history", "verify"):
        for more in ([], ["--json"]):
            assert run(app, ["budget", action, str(path), *more]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 6
    assert all(letter.isprintable() or letter == "\n" for letter in err)


def _flipped(path, stride: int) -> int:
    """Flip a bit in every ``stride``-th byte of every row, in the file itself; gives how many."""
    content, tried = path.read_bytes(), 0
    for row in _rows(path):
        stored = (row.body + row.head).encode()
        start = content.index(stored)
        for place in range(start + secrets.randbelow(stride), start + len(stored), stride):
            flip = 1 << secrets.randbelow(7)
            path.write_bytes(
                content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :]
            )
            with pytest.raises(InputError, match="was changed or damaged"):
                Ledger(path).verify()
            tried += 1
    path.write_bytes(content)
    Ledger(path).verify()
    return tried


def test_a_changed_byte_of_any_row_is_found(path):
    assert _flipped(path, 9) > 80


@pytest.mark.long
def test_every_changed_byte_of_every_row_is_found(path):
    assert _flipped(path, 1) > 800


@pytest.mark.parametrize("method", ["reserve", "release", "state_of", "history", "charged"])
def test_nothing_goes_on_with_a_changed_row(path, method):
    receipt = Ledger(path).reserve([query()], purpose="fit", run="night-9")
    _forced(path, "UPDATE entries SET body = replace(body, '0.01', '0.00') WHERE number = 2")
    calls = {
        "reserve": lambda ledger: ledger.reserve([query()], purpose="fit"),
        "release": lambda ledger: ledger.release(receipt),
        "state_of": lambda ledger: ledger.state_of("night-7"),
        "history": lambda ledger: ledger.history(),
        "charged": lambda ledger: ledger.charged("fit"),
    }
    with pytest.raises(InputError, match="entry 2 of the ledger was changed or damaged"):
        calls[method](Ledger(path))


def test_remaining_notices_a_changed_last_row(path):
    _forced(path, "UPDATE entries SET body = replace(body, 'epsilon', 'Epsilon') WHERE number = 4")
    with pytest.raises(InputError, match="entry 4"):
        Ledger(path).remaining()


@pytest.mark.parametrize(
    "command",
    [
        "DELETE FROM entries WHERE number = 2",
        "DELETE FROM entries WHERE number = 3",
        "UPDATE entries SET number = 9 WHERE number = 4",
        "UPDATE entries SET number = -number WHERE number = 1",
        "UPDATE entries SET hash = upper(hash) WHERE number = 3",
        "UPDATE entries SET body = CAST(body AS BLOB) WHERE number = 2",
        "INSERT INTO entries SELECT 5, body, hash FROM entries WHERE number = 4",
        "UPDATE entries SET body = body || ' ' WHERE number = 4",
    ],
)
def test_removed_moved_added_and_retyped_rows_are_found(path, command):
    _forced(path, command)
    with pytest.raises(InputError):
        Ledger(path).verify()


@pytest.mark.parametrize(
    "command",
    [
        "DELETE FROM entries",
        "DELETE FROM entries WHERE number = 4",
        "UPDATE entries SET body = '{}'",
        "INSERT OR REPLACE INTO entries SELECT 2, body, hash FROM entries WHERE number = 3",
        "INSERT INTO entries SELECT 7, body, hash FROM entries WHERE number = 3",
    ],
)
def test_the_file_itself_refuses_all_but_new_rows(path, command):
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        connection.execute(command)
    connection.close()


@pytest.mark.parametrize(
    "command", ["DELETE FROM dpflows_ledger", "UPDATE dpflows_ledger SET body = ''"]
)
def test_a_server_refuses_all_but_new_rows(server, command):
    import psycopg

    place = server.new_place()
    Ledger(place, cap=cap_for(10), accountant="zcdp")
    for forbidden in (command, "TRUNCATE dpflows_ledger"):
        with psycopg.connect(place) as connection, pytest.raises(psycopg.Error, match="only grows"):
            connection.execute(forbidden)


def test_a_changed_row_on_a_server_is_found(server):
    import psycopg

    place = server.new_place()
    Ledger(place, cap=cap_for(10), accountant="zcdp").reserve([query()], purpose="fit")
    with psycopg.connect(place) as connection:
        connection.execute("ALTER TABLE dpflows_ledger DISABLE TRIGGER ALL")
        connection.execute("UPDATE dpflows_ledger SET body = replace(body, 'fit', 'fix')")
    with pytest.raises(InputError, match="entry 2 of the ledger was changed"):
        Ledger(place).verify()


def test_a_forger_who_chains_anew_is_found_by_the_prices(path):
    rows = _rows(path)
    entries, head = [], "0" * 64
    for row in rows:
        entries.append(read_entry(row, head))
        head = row.head
    cheap = dataclasses.replace(entries[3], epsilon=entries[3].epsilon / 2)
    forged = cheap.chained_to(rows[2].head)
    _forced(
        path, "UPDATE entries SET body = ?, hash = ? WHERE number = 4", forged.body, forged.head
    )
    with pytest.raises(InputError, match="entry 4 of the ledger records a total"):
        Ledger(path).verify()


def test_a_restored_old_ledger_is_found_by_a_receipt(path, tmp_path):
    shutil.copy(path, tmp_path / "old")
    ledger = Ledger(path)
    receipt = ledger.reserve([query()], purpose="fit")
    ledger.verify(receipt)
    ledger.verify(Receipt.from_dict(receipt.to_dict()))
    os.replace(tmp_path / "old", path)
    Ledger(path).verify()  # the old one is whole: only the receipt can tell
    for charge in ([query()], [query(count=3)]):
        with pytest.raises(InputError, match="the ledger was replaced by an older copy"):
            Ledger(path).verify(receipt)
        Ledger(path).reserve(charge, purpose="fit")


def test_a_process_that_saw_more_notices_a_restored_ledger_by_itself(path, tmp_path):
    shutil.copy(path, tmp_path / "old")
    ledger = Ledger(path)
    ledger.reserve([query()], purpose="fit")
    os.replace(tmp_path / "old", path)
    with pytest.raises(InputError, match="lacks entries that it had before"):
        ledger.reserve([query()], purpose="fit")


def test_another_ledger_in_its_place_is_noticed(path, tmp_path):
    ledger = Ledger(path)
    Ledger(tmp_path / "other", cap=cap_for(10), accountant="zcdp")
    os.replace(tmp_path / "other", path)
    with pytest.raises(InputError, match="replaced by another"):
        ledger.reserve([query()], purpose="fit")
    with pytest.raises(InputError, match="replaced by another"):
        ledger.verify()


def test_only_the_owner_may_read_it(path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"age,dose\n41,2.5\n" * 60, b"\0" * 4096])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    for cap in (None, cap_for(10)):
        with pytest.raises(InputError, match="not a ledger|damaged"):
            Ledger(path, cap=cap)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "patients.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE patients (name TEXT)")
    with pytest.raises(InputError, match="is another kind of database"):
        Ledger(path, cap=cap_for(10))


def test_an_interrupted_making_is_finished_by_the_next(tmp_path):
    path = tmp_path / "clinic.ledger"
    path.touch()
    with pytest.raises(InputError, match="there is no ledger"):
        Ledger(path)
    assert path.stat().st_size == 0
    Ledger(path, cap=cap_for(10), accountant="zcdp").verify()


@pytest.mark.parametrize("place", ["", "mysql://host/ledger", "file://ledger", "sqlite://x"])
def test_unknown_places_are_refused(place):
    with pytest.raises(InputError, match="a ledger's place must be"):
        Ledger(place)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="No such file or directory; choose a folder"):
        Ledger(tmp_path / "absent" / "clinic.ledger", cap=cap_for(10))


def test_a_server_that_is_not_there_is_not_quoted():
    secret = "postgresql://clerk:s3cret@localhost:1/clinic"
    with pytest.raises(InputError, match="check the address") as refusal:
        Ledger(secret)
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    "change",
    [
        {"ledger": "x" * 32},
        {"ledger": "ab"},
        {"run": "two words"},
        {"run": 7},
        {"entry": 0},
        {"entry": True},
        {"entry": 10**30},
        {"head": "AB" * 32},
        {"head": None},
        {"epsilon": float("nan")},
        {"epsilon": -1},
        {"epsilon": "1"},
        {"more": 1},
    ],
)
def test_a_hostile_receipt_is_refused(change):
    good = Receipt("0f" * 16, "night-7", 2, "ab" * 32, 0.5).to_dict()
    assert Receipt.from_dict(good).entry == 2
    with pytest.raises(InputError, match="receipt|run must"):
        Receipt.from_dict(good | change)
    for shapeless in ([], None, "receipt", {}, {1: 2}):
        with pytest.raises(InputError, match="receipt"):
            Receipt.from_dict(shapeless)
