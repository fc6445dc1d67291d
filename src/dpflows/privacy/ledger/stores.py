"""Where rows are kept. A new kind of store is one module and one line in ``STORES``."""

import abc
import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from dpflows.errors import InputError
from dpflows.privacy.ledger.entries import Row

#: How long a charge waits for those before it, in seconds.
PATIENCE = 120

#: Which class keeps the ledger of an address; a place without ``://`` is a file.
STORES: dict[str, tuple[str, str]] = {
    "file": ("dpflows.privacy.ledger.sqlite", "SQLiteStore"),
    "postgresql": ("dpflows.privacy.ledger.postgres", "PostgresStore"),
}


#: Connections of a parent process, kept so that nothing closes them.
_INHERITED: list[Any] = []


class Pages(abc.ABC):
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
    """Rows that are only ever added.

    Args:
        place: Where the rows are.

    Guarantee:
        ``writing`` and ``creating`` keep every other writer out, see all rows that were
        ever committed, and return only when the new rows would survive a power cut. A
        block that raises leaves no row. No connection outlives its block, so none is
        shared by threads or by a process and its forks.
    """

    @abc.abstractmethod
    def __init__(self, place: str) -> None: ...

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The place for messages, without passwords."""

    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether rows were ever committed here."""

    @abc.abstractmethod
    def creating(self) -> contextlib.AbstractContextManager[Pages]:
        """An exclusive transaction that first makes a place for rows if there is none."""

    @abc.abstractmethod
    def writing(self) -> contextlib.AbstractContextManager[Pages]:
        """An exclusive transaction."""

    @abc.abstractmethod
    def reading(self) -> contextlib.AbstractContextManager[Pages]:
        """All rows as they were at one moment."""


def open_store(place: str | os.PathLike[str]) -> Store:
    """The store that a place names.

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
    """Close a connection at the end, in the process that opened it and in no other.

    A process that was forked off inside the block would take back its parent's rows.
    """
    opener = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == opener:
            connection.close()
        else:
            _INHERITED.append(connection)
