"""Stores of ledger rows, among them one SQLite file on a local disk.

A new kind of store is one module and one line in ``STORES``.
"""

import abc
import contextlib
import importlib
import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from dpflows.errors import InputError
from dpflows.files import require_one_name
from dpflows.privacy.ledger.entries import Row

#: How long a charge waits for those before it, in seconds.
PATIENCE = 120

#: Which class keeps the ledger of an address; a place without ``://`` is a file.
STORES: dict[str, tuple[str, str]] = {
    "file": ("dpflows.privacy.ledger.stores", "SQLiteStore"),
    "postgresql": ("dpflows.privacy.ledger.postgres", "PostgresStore"),
}


#: Connections of a parent process, kept so that nothing closes them.
_INHERITED: list[Any] = []


class StoredRows(abc.ABC):
    """The rows, inside a transaction."""

    @abc.abstractmethod
    def at(self, number: int) -> Row | None:
        """The row of that number."""

    @abc.abstractmethod
    def last(self) -> Row | None:
        """The row with the largest number."""

    @abc.abstractmethod
    def after(self, number: int) -> Iterator[Row]:
        """All rows with larger numbers, in order."""

    @abc.abstractmethod
    def append(self, row: Row) -> None:
        """Add a row; it counts once the transaction has ended."""


class Store(abc.ABC):
    """A store of rows that can only be appended to.

    Args:
        place: The location of the rows.

    Guarantee:
        ``writing`` and ``creating`` exclude every other writer, see all rows that were
        ever committed, and return only when the new rows would survive a power cut. A
        block that raises leaves no row. No connection outlives its block, so none is
        shared by threads or by a process and its forks.
    """

    @abc.abstractmethod
    def __init__(self, place: str) -> None: ...

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The location for messages, without passwords."""

    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether the store holds committed rows."""

    @abc.abstractmethod
    def creating(self) -> contextlib.AbstractContextManager[StoredRows]:
        """An exclusive transaction that first creates the store if it does not exist."""

    @abc.abstractmethod
    def writing(self) -> contextlib.AbstractContextManager[StoredRows]:
        """An exclusive transaction."""

    @abc.abstractmethod
    def reading(self) -> contextlib.AbstractContextManager[StoredRows]:
        """All rows as they were at one moment."""


def open_store(place: str | os.PathLike[str]) -> Store:
    """The store at a location.

    Example:
        >>> open_store("clinic.ledger").exists()
        False
    """
    address = os.fspath(place)
    scheme = address.split("://")[0].lower() if "://" in address else "file"
    scheme = "postgresql" if scheme == "postgres" else scheme
    if not address or scheme not in STORES or address.lower().startswith("file://"):
        raise InputError(
            "a ledger's place must be the path of a file or an address that begins with "
            "postgresql://"
        )
    module, name = STORES[scheme]
    store: Store = getattr(importlib.import_module(module), name)(address)
    return store


@contextlib.contextmanager
def closed_by_opener(connection: Any) -> Iterator[None]:
    """Close a connection at the end, only in the process that opened it.

    A process that was forked inside the block would roll back its parent's rows.
    """
    opener = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == opener:
            connection.close()
        else:
            _INHERITED.append(connection)


# The insert trigger also stops "insert or replace", which would pass by the other two.
_MAKE = (
    "CREATE TABLE entries "
    "(number INTEGER PRIMARY KEY NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER entries_are_kept BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END",
    "CREATE TRIGGER entries_stay BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END",
    "CREATE TRIGGER entries_follow BEFORE INSERT ON entries "
    "WHEN NEW.number IS NOT (SELECT ifnull(max(number), 0) + 1 FROM entries) "
    "BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END",
)
_TABLE = "entries"
_GUARDS = ("entries_are_kept", "entries_stay", "entries_follow")
#: Everything that the schema of a ledger may hold: nothing else is ever evaluated.
_SCHEMA = {
    ("table", _TABLE, _TABLE, _MAKE[0]),
    *(("trigger", name, _TABLE, made) for name, made in zip(_GUARDS, _MAKE[1:], strict=True)),
}
#: What one connection may do, in thousands of SQLite's instructions; reading a million rows
#: takes a twentieth of it. A file that makes SQLite run in circles ends here.
_LARGEST_WORK = 400_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2**26,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 2**16,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 20,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 2,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 2,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_COLUMNS = "SELECT number, body, hash FROM entries"


@final
class SQLiteStore(Store):
    """One file, readable by its owner alone.

    Guarantee:
        A transaction ends with the file and its folder on disk (journal mode DELETE,
        synchronous EXTRA). A process that is killed leaves a journal from which the next
        one restores the last committed rows. A file whose schema is not exactly that of a
        ledger is refused before anything in it is evaluated.

    Example:
        >>> import tempfile
        >>> store = SQLiteStore(f"{tempfile.mkdtemp()}/clinic.ledger")
        >>> with store.creating() as pages:
        ...     pages.append(Row(1, "{}", ""))
        >>> store.exists()
        True
    """

    def __init__(self, place: str) -> None:
        # The file itself, so that it stays the same wherever the process and its links go.
        self._place, self._path = place, Path(os.path.realpath(place))

    @property
    def name(self) -> str:
        """The file's path as given."""
        return self._place

    def exists(self) -> bool:
        """Whether the file exists and holds a ledger."""
        if not self._path.exists():
            return False
        with self._connected() as connection:
            return _has_table(connection, self._path)

    @contextlib.contextmanager
    def creating(self) -> Iterator[StoredRows]:
        """Create the file, and in one transaction the table and the block's rows."""
        self._touch()
        with self._transaction("BEGIN IMMEDIATE") as connection:
            if not _has_table(connection, self._path):
                for command in _MAKE:
                    connection.execute(command)
            yield _Rows(connection)

    @contextlib.contextmanager
    def writing(self) -> Iterator[StoredRows]:
        """Take the file's write lock, waiting if necessary."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            _require_table(connection, self._path)
            yield _Rows(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[StoredRows]:
        """Read under the shared lock."""
        with self._transaction("BEGIN") as connection:
            _require_table(connection, self._path)
            yield _Rows(connection)

    def _touch(self) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)
        try:
            os.close(os.open(self._path, flags, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            raise InputError(
                f"cannot create the ledger {str(self._path)!r}: {error.strerror}; choose a folder "
                "that exists and is writable"
            ) from None

    def _require_one_name(self) -> None:
        # SQLite finds a journal by the file's name: a second name would not see the first's.
        with contextlib.suppress(OSError):
            require_one_name(os.stat(self._path), self._path, "a ledger")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._connected() as connection:
            connection.execute(begin)
            # Closing the connection, or dying, takes back what was not committed.
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with _explained(self._path):
            self._require_one_name()
            address = f"{self._path.as_uri()}?mode=rw"
            connection = sqlite3.connect(
                address, uri=True, timeout=PATIENCE, isolation_level=None, cached_statements=16
            )
            with closed_by_opener(connection):
                _settle(connection)
                yield connection


@final
class _Rows(StoredRows):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def at(self, number: int) -> Row | None:
        return self._one(f"{_COLUMNS} WHERE number = ?", number)

    def last(self) -> Row | None:
        return self._one(f"{_COLUMNS} ORDER BY number DESC LIMIT 1")

    def after(self, number: int) -> Iterator[Row]:
        query = f"{_COLUMNS} WHERE number > ? ORDER BY number"
        return map(_row, self._connection.execute(query, (number,)))

    def append(self, row: Row) -> None:
        values = (row.number, row.body, row.head)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?)", values)

    def _one(self, query: str, *values: int) -> Row | None:
        found = self._connection.execute(query, values).fetchone()
        return None if found is None else _row(found)


def _row(values: tuple[Any, ...]) -> Row:
    number, body, head = values
    if type(body) is not str or type(head) is not str:
        # A changed type is a changed row; its hash will not fit.
        return Row(int(number), "", "")
    return Row(int(number), body, head)


def _settle(connection: sqlite3.Connection) -> None:
    for limit, most in _LIMITS.items():
        connection.setlimit(limit, most)
    work = itertools.count()
    connection.set_progress_handler(lambda: next(work) > _LARGEST_WORK, 1000)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    mode = connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
    if mode != "delete":
        raise InputError(
            f"a ledger needs SQLite's journal mode DELETE, but the file is in mode {mode}; close "
            "every other program that has it open"
        )
    connection.execute("PRAGMA synchronous = EXTRA")


def _require_table(connection: sqlite3.Connection, path: Path) -> None:
    if not _has_table(connection, path):
        raise InputError(f"{str(path)!r} holds no ledger; give a cap to create one")


def _has_table(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a ledger; its schema must be exactly that of a ledger.

    Guarantee:
        Reads the list of the schema and evaluates nothing in it, so that no view, trigger
        or virtual table of a hostile file is ever run.
    """
    found = connection.execute(_LISTED, (len(_SCHEMA) + 1,)).fetchall()
    if found and _TABLE not in {name for _, name, _, _ in found}:
        raise InputError(
            f"{str(path)!r} is another kind of database; choose another file for the ledger"
        )
    if found and set(found) != _SCHEMA:
        raise InputError(
            f"the ledger {str(path)!r} was changed by another program: its protection was removed "
            "or something was added; restore a copy that matches all receipts"
        )
    return bool(found)


_LISTED = "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT ?"


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"cannot use the ledger {str(path)!r}: {_remedy(error)}") from error


def _remedy(error: sqlite3.Error) -> str:
    text = str(error)
    for sign, remedy in _REMEDIES.items():
        if sign in text:
            return f"{sign}; {remedy}"
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return f"{name}; nothing was granted; check the disk and the file's permissions"


_REMEDIES = {
    "disk is full": "nothing was granted; free some space and try again",
    "database is locked": f"other processes held the lock for {PATIENCE} seconds; try again",
    "not a database": "the file is not a ledger; name another one",
    "malformed": "the file is damaged; restore a copy that matches all receipts",
    "readonly": "the file is read-only; change its permissions",
    "unable to open": "check that it exists and that you can read and write it and its folder",
    "no such table": "the file holds no ledger; give a cap to create one",
    "only grows": "rows are never changed or removed",
    "interrupted": "the file is not a ledger: reading it does not end",
    "too big": "the file is not a ledger: it holds too much",
}
