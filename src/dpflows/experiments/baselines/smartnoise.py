"""MST and AIM of SmartNoise, run in a separate environment.

Its versions of shared libraries are older than ours, so it cannot be installed together with
dpflows. An environment variable names the Python of an environment that has it.
"""

import dataclasses
import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from dpflows.errors import InputError
from dpflows.experiments.baselines.base import Baseline, Binned, Codes, TooSlow
from dpflows.privacy.events import Event
from dpflows.privacy.guarantee import Budget, Guarantee
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

#: Names the Python of an environment with smartnoise-synth.
VARIABLE = "DPFLOWS_SMARTNOISE_PYTHON"
CLAIM = "epsilon is as claimed by SmartNoise; it was not verified by dpflows"

_WORKER = Path(__file__).with_name("smartnoise_worker.py")


@dataclasses.dataclass(frozen=True)
class SmartNoise(Baseline):
    """A synthesizer of SmartNoise. Rows go to its process, and come back, through pipes."""

    needs: ClassVar[str] = "snsynth"
    accountant: ClassVar[str] = "claimed"
    synthesizer: ClassVar[str]

    def missing(self) -> str | None:
        """An environment to name, if none is."""
        python = os.environ.get(VARIABLE)
        if python and shutil.which(python):
            return None
        return (
            f"{self.name} needs smartnoise-synth in a separate environment; set {VARIABLE} to the "
            "Python of that environment"
        )

    def events(self, schema: Schema, budget: Budget) -> tuple[Event, ...]:
        """None are known: the releases are made by other code."""
        return ()

    def guarantee(self, schema: Schema, budget: Budget, *, stamp: str = "") -> Guarantee:
        """The claimed guarantee, marked as such."""
        stamps = (CLAIM, *((stamp,) if stamp else ()))
        return Guarantee(
            epsilon=budget.epsilon,
            delta=budget.delta,
            neighbours=budget.neighbours,
            accountant=self.accountant,
            kind="estimate",
            events=(),
            replace_one_epsilon=None,
            versions={},
            stamps=stamps,
        )

    def draw(self, rows: Binned, budget: Budget, n: int, entropy: Entropy) -> Codes:
        """Let another process fit and draw; it is stopped when the time is over."""
        if budget.neighbours == "replace-one":
            raise InputError(f"{self.name} makes no claim for replace-one neighbours; use zero-out")
        task = {"epsilon": budget.epsilon, "delta": budget.delta, "n": n, "sizes": rows.sizes}
        # its labels must be declared: what is not becomes the first of them
        said = self._run(_packed(codes=np.maximum(rows.codes, 0), **task))
        with np.load(io.BytesIO(said), allow_pickle=False) as file:
            drawn = file["codes"].astype(np.int64)
        if drawn.shape != (n, len(rows.sizes)) or (drawn >= np.array(rows.sizes)).any():
            raise InputError(f"{self.name} returned rows of an unexpected shape")
        return drawn

    def _run(self, task: bytes) -> bytes:
        python = os.environ.get(VARIABLE, "")
        command = [python, str(_WORKER), self.synthesizer]
        try:
            done = subprocess.run(command, input=task, capture_output=True, timeout=self.seconds)
        except subprocess.TimeoutExpired:
            raise TooSlow(self.seconds) from None
        if done.returncode != 0:
            # what it printed could quote a row
            raise InputError(f"{self.name} failed in its environment (code {done.returncode})")
        return done.stdout


def _packed(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    return file.getvalue()


@final
@dataclasses.dataclass(frozen=True)
class SmartNoiseMST(SmartNoise):
    """SmartNoise's MST."""

    name: ClassVar[str] = "smartnoise-mst"
    title: ClassVar[str] = "MST of SmartNoise"
    synthesizer: ClassVar[str] = "mst"


@final
@dataclasses.dataclass(frozen=True)
class SmartNoiseAIM(SmartNoise):
    """SmartNoise's AIM."""

    name: ClassVar[str] = "smartnoise-aim"
    title: ClassVar[str] = "AIM of SmartNoise"
    synthesizer: ClassVar[str] = "aim"
