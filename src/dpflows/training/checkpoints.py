"""Runs that survive a crash.

Guarantee:
    A checkpoint holds noisy parameters, optimizer moments, a step number, what was
    released before the first step and the run's id: no rows, no keys. A resumed run makes
    only the steps its plan has not yet made, each with fresh noise, so the plan's events
    still cover all that is ever released. Steps lost in a crash were seen by nobody: what
    a run hands out is in the file before it is handed out. The id is on disk before the
    run is charged, so that a second start finds it and is not charged again.
"""

import contextlib
import hashlib
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
from dpflows.files import read_model, write_model
from dpflows.training.loop import State
from dpflows.training.plan import Plan

_KIND = "checkpoint"
_BEFORE = "before-"
#: What is kept of a run that cannot go on.
FAILED = "failed"
_RUN = re.compile(r"[0-9a-f]{32}")

#: A JSON-ready header and named arrays.
Before = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass
class Checkpoints:
    """Where a run's state is kept, and how often.

    Args:
        path: The file; it is replaced whole or not at all.
        plan: Only a run of this very plan may go on from the file.
        ledger: The identity of the ledger that the run is charged to, if there is one;
            a run goes on with the ledger it began with.
        seconds: The least time between two writes.
    """

    path: Path
    plan: Plan
    ledger: str | None = None
    seconds: float = 30.0
    _written: float = field(default=-np.inf, init=False)
    _before: Before | None = field(default=None, init=False)
    _run: str = field(default="", init=False)
    _is_new: bool = field(default=False, init=False)

    def begin(self) -> str:
        """The run's id: the file's, or a new one that is on disk when this returns."""
        if self.path.exists():
            self._run = self._read()[0]["run"]
        else:
            self._run, self._is_new = secrets.token_hex(16), True
            self._write(None)
        return self._run

    def abandon(self) -> None:
        """Forget a run that began here and was not allowed to go on."""
        if self._is_new:
            self.remove()

    def known_run(self) -> str | None:
        """The id of a run that was begun earlier; None if there is no file."""
        return self._read()[0]["run"] if self.path.exists() else None

    def before(self) -> Before | None:
        """What an earlier start of this run released before training; None if nothing."""
        if not self.path.exists():
            return None
        header, arrays = self._read()
        if header["before"] is None:
            return None
        if FAILED in header["before"]:
            raise BudgetError(str(header["before"][FAILED]))
        kept = {name.removeprefix(_BEFORE): a for name, a in arrays.items() if _BEFORE in name}
        self._before = header["before"], kept
        return self._before

    @contextlib.contextmanager
    def failing_for_good(self) -> Iterator[None]:
        """Keep a failure that noise decided, so that another start does not roll it again."""
        try:
            yield
        except BudgetError as failure:
            self.remember({FAILED: str(failure)}, {})
            raise

    def remember(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Write what was released before training; it is kept beside every state."""
        self._before = header, arrays
        self._write(None)

    @property
    def has_state(self) -> bool:
        """Whether there is a state to go on from."""
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
        """The kept state if there is one, else ``start``.

        Raises:
            InputError: If the file belongs to another plan or does not fit.
        """
        if not self.has_state:
            return start
        _, arrays = self._read()
        leaves, tree = jax.tree.flatten(start)
        return jax.tree.unflatten(tree, [_like(leaf, arrays, i) for i, leaf in enumerate(leaves)])

    def remove(self) -> None:
        """Forget the run, once its result is safe; another run's file is left alone."""
        with contextlib.suppress(InputError):
            if self.known_run() == self._run:
                self.path.unlink(missing_ok=True)

    def _write(self, state: State | None) -> None:
        leaves = {f"leaf-{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        header, arrays = (None, {}) if self._before is None else self._before
        beside = {_BEFORE + name: array for name, array in arrays.items()}
        marks = {
            "kind": _KIND,
            "plan": self._digest(),
            "run": self._run,
            "ledger": self.ledger,
            "before": header,
            "has_state": state is not None,
        }
        write_model(self.path, header=marks, arrays=leaves | beside)

    def _read(self) -> Before:
        header, arrays = read_model(self.path)
        if header.get("kind") != _KIND or header.get("plan") != self._digest():
            raise InputError(
                f"the checkpoint {os.fspath(self.path)} belongs to another run: "
                "remove it or repeat the settings it was made with"
            )
        if header.get("ledger") != self.ledger:
            raise InputError(
                f"the checkpoint {os.fspath(self.path)} belongs to a run with "
                f"{'another' if header.get('ledger') else 'no'} ledger: give the one that it "
                "began with, or remove it and start again"
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


def _is_run(value: Any) -> bool:
    return isinstance(value, str) and _RUN.fullmatch(value) is not None


def _misfit() -> InputError:
    return InputError("the checkpoint does not fit its plan; remove it and start again")
