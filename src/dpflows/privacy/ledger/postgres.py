"""A ledger on a PostgreSQL server, for several hosts that share one data set.

One ledger lives in one schema of one database: the first schema of the search path.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, final

from dpflows.errors import InputError
from dpflows.privacy.ledger.entries import Row
from dpflows.privacy.ledger.stores import PATIENCE, Store, StoredRows, closed_by_opener

_CONNECT_SECONDS = 15
#: Whoever makes the table holds this lock, since there is no table to lock yet.
_MAKING = 0x64_70_66_6C_6F_77_73

_MAKE = (
    "CREATE TABLE dpflows_ledger "
    "(number BIGINT PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE OR REPLACE FUNCTION dpflows_ledger_only_grows() RETURNS trigger LANGUAGE plpgsql "
    "AS $$ BEGIN RAISE EXCEPTION 'a ledger only grows'; END $$",
    "CREATE TRIGGER entries_stay BEFORE UPDATE OR DELETE ON dpflows_ledger "
    "FOR EACH ROW EXECUTE FUNCTION dpflows_ledger_only_grows()",
    "CREATE TRIGGER entries_are_kept BEFORE TRUNCATE ON dpflows_ledger "
    "FOR EACH STATEMENT EXECUTE FUNCTION dpflows_ledger_only_grows()",
)
_COLUMNS = "SELECT number, body, hash FROM dpflows_ledger"


@final
class PostgresStore(Store):
    """One table in the schema that the address names.

    Guarantee:
        A transaction locks the table against all other writers and ends when the server
        has the rows on disk; a server that is set not to wait for its disk is refused.

    Example:
        >>> PostgresStore("postgresql://clerk:secret@budgets/clinic").name
        'the PostgreSQL ledger'
    """

    def __init__(self, place: str) -> None:
        self._address = place

    @property
    def name(self) -> str:
        """A fixed name, since the address may hold a password."""
        return "the PostgreSQL ledger"

    def exists(self) -> bool:
        """Whether the table exists."""
        with self._connected() as connection:
            return _has_table(connection)

    @contextlib.contextmanager
    def creating(self) -> Iterator[StoredRows]:
        """In one transaction, create the table if it does not exist, and add the block's rows."""
        with self._transaction("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE") as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
            if not _has_table(connection):
                for command in _MAKE:
                    connection.execute(command)
            yield _locked(connection)

    @contextlib.contextmanager
    def writing(self) -> Iterator[StoredRows]:
        """Lock the table, waiting if necessary."""
        with self._transaction("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE") as connection:
            yield _locked(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[StoredRows]:
        """Read one snapshot, without a lock."""
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as connection:
            yield _Rows(connection)

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[Any]:
        with self._connected() as connection:
            connection.execute(begin)
            # Closing the connection, or dying, takes back what was not committed.
            yield connection
            # A transaction that has failed answers "commit" with "rollback", and no error.
            if connection.execute("COMMIT").statusmessage != "COMMIT":
                raise InputError(f"{self.name} did not commit; nothing was granted, try again")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        psycopg = _library()
        with _explained(psycopg.Error):
            connection = psycopg.connect(
                self._address, autocommit=True, connect_timeout=_CONNECT_SECONDS
            )
            with closed_by_opener(connection):
                _settle(connection)
                yield connection


@final
class _Rows(StoredRows):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def at(self, number: int) -> Row | None:
        return self._one(f"{_COLUMNS} WHERE number = %s", number)

    def last(self) -> Row | None:
        return self._one(f"{_COLUMNS} ORDER BY number DESC LIMIT 1")

    def after(self, number: int) -> Iterator[Row]:
        query = f"{_COLUMNS} WHERE number > %s ORDER BY number"
        return (Row(*values) for values in self._connection.execute(query, (number,)))

    def append(self, row: Row) -> None:
        values = (row.number, row.body, row.head)
        self._connection.execute("INSERT INTO dpflows_ledger VALUES (%s, %s, %s)", values)

    def _one(self, query: str, *values: int) -> Row | None:
        found = self._connection.execute(query, values).fetchone()
        return None if found is None else Row(*found)


def _locked(connection: Any) -> StoredRows:
    # Each statement sees what was committed before it, so after the lock nothing is missed.
    connection.execute("LOCK TABLE dpflows_ledger IN EXCLUSIVE MODE")
    return _Rows(connection)


def _has_table(connection: Any) -> bool:
    # Made in the first schema of the path and sought there alone: another ledger further
    # down the path is not this one.
    query = "SELECT to_regclass(quote_ident(current_schema()) || '.dpflows_ledger')"
    return connection.execute(query).fetchone()[0] is not None


def _settle(connection: Any) -> None:
    for command in (
        "SET synchronous_commit TO on",
        f"SET lock_timeout TO '{PATIENCE}s'",
        "SET client_encoding TO 'UTF8'",
    ):
        connection.execute(command)
    for setting in ("fsync", "full_page_writes"):
        if connection.execute(f"SHOW {setting}").fetchone()[0] != "on":
            raise InputError(
                f"the PostgreSQL server runs with {setting} off and could lose a charge; turn it on"
            )


def _library() -> Any:
    try:
        import psycopg
    except ImportError:
        raise InputError(
            "a ledger on PostgreSQL needs the package psycopg; install dpflows[postgres]"
        ) from None
    return psycopg


@contextlib.contextmanager
def _explained(problem: type[Exception]) -> Iterator[None]:
    try:
        yield
    except problem as error:
        # Its text may quote the address, and with it a password.
        code = getattr(error, "sqlstate", None) or "no connection"
        raise InputError(
            f"cannot use the PostgreSQL ledger ({type(error).__name__}, {code}); nothing was "
            "granted; check the address, the server and the user's permissions"
        ) from None
