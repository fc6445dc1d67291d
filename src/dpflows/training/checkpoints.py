"""Checkpoints: runs that survive a crash, bound to their table without storing any of it.

Guarantee:
    A checkpoint holds noisy parameters, optimizer moments, a step number, what was
    released before the first step, the run's id and a tag of its table: no rows, no keys. A
    resumed run makes only the steps that its plan has not yet made, each with fresh noise, on
    the same table, so the plan's events still cover everything that is ever released.
    Steps lost in a crash were never visible: a result is in the file before it is returned.
    The id is on disk before the run is charged, so that a second start finds it and is not
    charged again. A run is locked while it is active: of two simultaneous starts one
    continues and the other is refused.

    The tag is the HMAC-SHA-256 of the table under a random key of 256 bits that is drawn for
    the run. The key is stored outside the checkpoint, in the user's state folder
    (``$XDG_STATE_HOME/dpflows/run-keys``, else ``~/.local/state/dpflows/run-keys``; folder
    0700, file 0600), and is removed with the run. The checkpoint without the key reveals
    nothing by the tag: no guess of a row, nor of the whole table, can be compared with it.
    With both, guesses of the whole table could be tested.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpflows.errors import BudgetError, InputError
from dpflows.files import NamedLock, read_model, require_one_name, write_atomically, write_model
from dpflows.table.reading import Table
from dpflows.training.dp_sgd import State

_KEY_BYTES = 32
_CHUNK = 65_536


def key_path(run: str) -> Path:
    """The path of a run's key."""
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
    """The key of a run that continues; None if it is not on this machine."""
    with contextlib.suppress(OSError):
        key = key_path(run).read_bytes()
        return key if len(key) == _KEY_BYTES else None
    return None


def forget_key(run: str) -> None:
    """Remove the key of a finished run."""
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
    """The values of a column in chunks, equal values as equal bytes."""
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
        f"cannot keep the run's key: {reason}; set XDG_STATE_HOME to a writable folder of yours "
        "with free space"
    )


_KIND = "checkpoint"
_BEFORE, _RESULT = "before-", "result-"
#: What is kept of a run that cannot go on.
FAILED = "failed"
_RUN = re.compile(r"[0-9a-f]{32}")

#: A JSON-ready header and named arrays.
Before = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass
class Checkpoints:
    """Where a run's state is saved, and how often.

    Args:
        path: The file; it is replaced atomically. Links to it are resolved.
        plan: Only a run of exactly this plan may resume from the file.
        ledger: The identity of the ledger that the run is charged to, if there is one;
            a run resumes with the same ledger.
        seconds: The least time between two writes.
        table: The table of the run; another table is refused. ``None`` for callers without a table.
    """

    path: Path
    plan: Any
    ledger: str | None = None
    seconds: float = 30.0
    table: Table | None = None
    _written: float = field(default=-np.inf, init=False)
    _before: Before | None = field(default=None, init=False)
    _run: str = field(default="", init=False)
    _is_new: bool = field(default=False, init=False)
    _tag: str | None = field(default=None, init=False)
    _result: Before | None = field(default=None, init=False)
    _lock: NamedLock = field(init=False)

    def __post_init__(self) -> None:
        # By whatever name a run is reached, it has one lock and one file.
        self.path = Path(os.path.realpath(self.path))
        self._lock = NamedLock(self.path)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Lock the run until the block ends, so that no other start can continue it.

        Raises:
            InputError: The run is being continued elsewhere, or it cannot be locked.
        """
        is_inner = self._lock.is_held
        self._take()
        try:
            yield
        finally:
            if not is_inner:
                # Nobody needs two copies of a model in memory.
                self._before, self._result = None, None
                self._lock.let_go()

    def _take(self) -> None:
        if self._lock.is_held:
            return
        if not self._lock.take():
            raise InputError(
                f"the run kept in {os.fspath(self.path)!r} is being continued by another process "
                f"({self._lock.holder()}): wait for it or use another path"
            )
        # Whoever had the lock before may have changed the file.
        self._run, self._before, self._result, self._is_new = "", None, None, False

    def begin(self) -> str:
        """The run's id, from the file or new; it is on disk when this returns.

        From here on the run is locked: until the block of ``alive`` ends, else for as long
        as this object lives.
        """
        self._take()
        if self._run:
            return self._run
        if self.path.exists():
            self._go_on()
        else:
            self._start()
        # The rows are not kept with the run, which may outlive their use.
        self.table = None
        return self._run

    def _start(self) -> None:
        if self.table is None and self._tag is not None:
            raise InputError("the run is finished; call fit again to start a new one")
        self._run, self._is_new = secrets.token_hex(16), True
        self._tag = None if self.table is None else table_tag(make_key(self._run), self.table)
        self._write(None)

    def _go_on(self) -> None:
        require_one_name(self.path.stat(), self.path, "a kept run")
        header, arrays = self._read()
        self._require_table(header)
        self._run, self._tag = header["run"], header["table"]
        if header["result"] is not None:
            self._result = header["result"], _under(_RESULT, arrays)

    def _require_table(self, header: dict[str, Any]) -> None:
        """Refuse to resume with another table."""
        if self.table is None or header["table"] is None:
            if self.table is None and header["table"] == self._tag:
                return
            raise _misfit()
        key = read_key(header["run"])
        if key is None:
            raise InputError(
                f"the key of the run in {os.fspath(self.path)!r} was not found, so its table "
                f"cannot be checked: copy {os.fspath(key_path(header['run']))!r} from the machine "
                "where the run began, or remove the checkpoint and start a new run, which is "
                "charged again"
            )
        if not hmac.compare_digest(table_tag(key, self.table), str(header["table"])):
            raise InputError(
                f"the checkpoint {os.fspath(self.path)!r} belongs to another table: use the same "
                "rows as before, or remove the checkpoint and start a new run, which is charged "
                "again"
            )

    def abandon(self) -> None:
        """Discard a run that began here and was refused."""
        if self._is_new:
            self.remove()

    def known_run(self) -> str | None:
        """The id of a run that began earlier; None if there is no file."""
        return self._read()[0]["run"] if self.path.exists() else None

    def result(self) -> Before | None:
        """The run's result, also if it was not returned yet; None if it is not finished."""
        return self._result

    def finish(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Write the run's result before it is returned; from now on it returns nothing else."""
        self._result = header, arrays
        self._write(None)

    def before(self) -> Before | None:
        """The releases that an earlier start of this run made before training, or None."""
        if not self.path.exists():
            return None
        header, arrays = self._read()
        if header["before"] is None:
            return None
        if FAILED in header["before"]:
            raise BudgetError(str(header["before"][FAILED]))
        self._before = header["before"], _under(_BEFORE, arrays)
        return self._before

    @contextlib.contextmanager
    def failing_for_good(self) -> Iterator[None]:
        """Save a failure that depended on noise, so that another start does not redraw it."""
        try:
            yield
        except BudgetError as failure:
            self.remember({FAILED: str(failure)}, {})
            raise

    def remember(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Save the releases made before training; they are stored with every state."""
        self._before = header, arrays
        self._write(None)

    @property
    def has_state(self) -> bool:
        """Whether there is a state to resume from."""
        return self.path.exists() and bool(self._read()[0]["has_state"])

    def keep(self, state: State) -> None:
        """Write the state, if enough time has passed since the last write."""
        if time.monotonic() - self._written >= self.seconds:
            self.write(state)

    def write(self, state: State) -> None:
        """Write the state now."""
        self._write(state)
        self._written = time.monotonic()

    def resume(self, start: State) -> State:
        """The saved state if there is one, else ``start``.

        Raises:
            InputError: If the file belongs to another plan or is inconsistent.
        """
        if not self.has_state:
            return start
        _, arrays = self._read()
        leaves, tree = jax.tree.flatten(start)
        return jax.tree.unflatten(tree, [_like(leaf, arrays, i) for i, leaf in enumerate(leaves)])

    def remove(self) -> None:
        """Remove the run once its result is safe; another run's file is not removed.

        Nor is a run that another process is continuing, which removes it itself.
        """
        is_ours = self._lock.is_held
        if not is_ours and not self._lock.take():
            return
        try:
            with contextlib.suppress(InputError):
                if self.known_run() == self._run:
                    self.path.unlink(missing_ok=True)
                    forget_key(self._run)
        finally:
            if not is_ours:
                self._lock.let_go()

    def _write(self, state: State | None) -> None:
        leaves = {f"leaf-{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        before, result = ((None, {}) if kept is None else kept for kept in self._kept())
        beside = {_BEFORE + name: array for name, array in before[1].items()}
        final = {_RESULT + name: array for name, array in result[1].items()}
        marks = {
            "kind": _KIND,
            "plan": self._digest(),
            "run": self._run,
            "ledger": self.ledger,
            "table": self._tag,
            "before": before[0],
            "result": result[0],
            "has_state": state is not None,
        }
        write_model(self.path, header=marks, arrays=leaves | beside | final)

    def _kept(self) -> tuple[Before | None, Before | None]:
        return self._before, self._result

    def _read(self) -> Before:
        header, arrays = read_model(self.path)
        if header.get("kind") != _KIND or header.get("plan") != self._digest():
            raise InputError(
                f"the checkpoint {os.fspath(self.path)} belongs to a run with other settings: use "
                "the same settings, or remove the checkpoint"
            )
        if header.get("ledger") != self.ledger:
            raise InputError(
                f"the checkpoint {os.fspath(self.path)} belongs to a run with "
                f"{'another' if header.get('ledger') else 'no'} ledger: use the same ledger, or "
                "remove the checkpoint and start again"
            )
        if not {"table", "result"} <= header.keys():
            raise InputError(
                f"the checkpoint {os.fspath(self.path)} was made by an older version of dpflows, "
                "which did not record its table: finish the run with that version, or remove the "
                "checkpoint and start a new run, which is charged again"
            )
        if not {"run", "before", "has_state"} <= header.keys() or not _is_run(header["run"]):
            raise _misfit()
        return header, arrays

    def _digest(self) -> str:
        budget = self.plan.budget
        public = [self.plan.to_dict(), budget.epsilon, budget.delta, budget.neighbours]
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def _like(leaf: jax.Array, arrays: dict[str, np.ndarray], index: int) -> jax.Array:
    found = arrays.get(f"leaf-{index}")
    if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
        raise _misfit()
    return jnp.asarray(found)


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _is_run(value: Any) -> bool:
    return isinstance(value, str) and _RUN.fullmatch(value) is not None


def _misfit() -> InputError:
    return InputError("the checkpoint does not match its plan; remove it and start again")
