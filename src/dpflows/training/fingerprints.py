"""Which table a kept run belongs to, told without keeping anything of the table.

Guarantee:
    A checkpoint holds HMAC-SHA-256 of the table under a random key of 256 bits that is
    drawn for the run. The key lies outside the checkpoint, in the state folder of whoever
    runs it (``$XDG_STATE_HOME/dpflows/run-keys``, else ``~/.local/state/dpflows/run-keys``;
    folder 0700, file 0600), and is removed with the run. Whoever has the checkpoint without
    the key learns nothing from the tag: no guess of a row, nor of the whole table, can be
    compared with it. Whoever has both could test guesses of the whole table.
"""

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpflows.errors import InputError
from dpflows.files import write_atomically
from dpflows.table.reading import Table

_KEY_BYTES = 32
_CHUNK = 65_536


def key_path(run: str) -> Path:
    """Where the key of a run lies."""
    # The specification says that relative paths there are to be ignored.
    told = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = told if told.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise _unusable("no home folder is known") from None
    return base / "dpflows" / "run-keys" / run


def make_key(run: str) -> bytes:
    """Draw the key of a new run; it is on disk when this returns."""
    path, key = key_path(run), secrets.token_bytes(_KEY_BYTES)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        with write_atomically(path) as file:
            file.write(key)
    except OSError as error:
        raise _unusable(error.strerror) from None
    return key


def read_key(run: str) -> bytes | None:
    """The key of a run that goes on; None if it is not on this machine."""
    with contextlib.suppress(OSError):
        key = key_path(run).read_bytes()
        return key if len(key) == _KEY_BYTES else None
    return None


def forget_key(run: str) -> None:
    """Remove the key of a run that is over."""
    with contextlib.suppress(OSError):
        key_path(run).unlink(missing_ok=True)


def table_tag(key: bytes, table: Table) -> str:
    """HMAC-SHA-256 of a table: its shape, and name, type and values of every column.

    Example:
        >>> from dpflows.table.reading import read_table
        >>> first, second = (read_table(np.array([[1.0, last]])) for last in (2.0, 3.0))
        >>> key = bytes(32)
        >>> table_tag(key, first) == table_tag(key, second)
        False
        >>> table_tag(key, first) == table_tag(key, read_table(np.array([[1.0, 2.0]])))
        True
    """
    seal = hmac.new(key, digestmod="sha256")
    kinds = [[name, cells.dtype.str] for name, cells in table.columns.items()]
    seal.update(json.dumps([table.rows, kinds]).encode())
    for cells in table.columns.values():
        for piece in _pieces(cells):
            seal.update(piece)
    return seal.hexdigest()


def _pieces(cells: np.ndarray) -> Iterator[bytes]:
    """The values of a column, equal values as equal bytes, a few at a time."""
    for start in range(0, len(cells), _CHUNK):
        piece = cells[start : start + _CHUNK]
        if piece.dtype.kind == "f":
            # There are many ways to write that a number is missing, and two zeros.
            yield np.where(np.isnan(piece), np.nan, piece + 0.0).tobytes()
        elif piece.dtype.hasobject:
            yield json.dumps(piece.tolist(), default=repr).encode()
        else:
            yield piece.tobytes()


def _unusable(reason: str | None) -> InputError:
    return InputError(
        f"cannot keep the run's key: {reason}; set XDG_STATE_HOME to a folder of yours that is "
        "writable and has room"
    )
