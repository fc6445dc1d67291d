"""Runs that survive a crash.

Guarantee:
    A checkpoint holds noisy parameters, optimizer moments, a step number and what was
    released before the first step: no rows, no keys. A resumed run makes only the steps
    its plan has not yet made, each with fresh noise, so the plan's events still cover
    all that is ever released. Steps lost in a crash were seen by nobody.
"""

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpflows.errors import InputError
from dpflows.files import read_model, write_model
from dpflows.training.loop import State
from dpflows.training.plan import Plan

_KIND = "checkpoint"
_BEFORE = "before-"

#: A JSON-ready header and named arrays.
Before = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass
class Checkpoints:
    """Where a run's state is kept, and how often.

    Args:
        path: The file; it is replaced whole or not at all.
        plan: Only a run of this very plan may go on from the file.
        seconds: The least time between two writes.
    """

    path: Path
    plan: Plan
    seconds: float = 30.0
    _written: float = field(default=-np.inf, init=False)
    _before: Before = field(default=({}, {}), init=False)

    def before(self) -> Before | None:
        """What an earlier start of this run released before training; None if there was none."""
        if not self.path.exists():
            return None
        header, arrays = self._read()
        kept = {name.removeprefix(_BEFORE): a for name, a in arrays.items() if _BEFORE in name}
        return header["before"], kept

    def remember(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Keep beside every state what was released before training."""
        self._before = header, arrays

    def keep(self, state: State) -> None:
        """Write the state, if enough time has passed since the last write."""
        if time.monotonic() - self._written >= self.seconds:
            self.write(state)

    def write(self, state: State) -> None:
        """Write the state now."""
        leaves = {f"leaf-{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        header, arrays = self._before
        beside = {_BEFORE + name: array for name, array in arrays.items()}
        marks = {"kind": _KIND, "plan": self._digest(), "before": header}
        write_model(self.path, header=marks, arrays=leaves | beside)
        self._written = time.monotonic()

    def resume(self, start: State) -> State:
        """The kept state if there is one, else ``start``.

        Raises:
            InputError: If the file belongs to another plan or does not fit.
        """
        if not self.path.exists():
            return start
        _, arrays = self._read()
        leaves, tree = jax.tree.flatten(start)
        return jax.tree.unflatten(tree, [_like(leaf, arrays, i) for i, leaf in enumerate(leaves)])

    def remove(self) -> None:
        """Forget the run, once its result is safe."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> Before:
        header, arrays = read_model(self.path)
        if header.get("kind") != _KIND or header.get("plan") != self._digest():
            raise InputError(
                f"the checkpoint {os.fspath(self.path)} belongs to another run: "
                "remove it or repeat the settings it was made with"
            )
        return header, arrays

    def _digest(self) -> str:
        budget = self.plan.budget
        public = [self.plan.to_dict(), budget.epsilon, budget.delta, budget.neighbours]
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def _like(leaf: jax.Array, arrays: dict[str, np.ndarray], index: int) -> jax.Array:
    found = arrays.get(f"leaf-{index}")
    if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
        raise InputError("the checkpoint does not fit its plan; remove it and start again")
    return jnp.asarray(found)
