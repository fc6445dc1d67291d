"""A small flow whose training is killed again and again.

Run as a script, ``worker.py FOLDER KILLS BUG`` prints one JSON document. The parent has
imported everything and worked out the plan; children are forked from it before JAX starts
its threads, and find compiled programs in a cache on disk, so that most of a short life is
training. A seed makes runs comparable, and a ledger refuses seeds: the refusal is taken out
in this process alone.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import jax
import numpy as np

from dpflows import Budget, DPFlow
from dpflows.estimators import charging
from dpflows.files import read_model
from dpflows.models.architectures import Architecture
from dpflows.privacy.ledger import Ledger
from dpflows.training.checkpoints import Checkpoints

ROWS = np.random.default_rng(5).normal(size=(200, 2)).clip(-4, 4)
CAP = Budget(9.0, 1e-4)
STEPS = 1000
#: A child rings when it has written a state.
BELL = os.pipe2(os.O_NONBLOCK)


def small_flow() -> DPFlow:
    return DPFlow(
        1.0,
        1e-4,
        bounds=(-4, 4),
        architecture=Architecture("maf", width=4, depth=1, blocks=1),
        steps=STEPS,
        batch_size=20,
        insecure_test_seed=11,
    )


def without_refusal() -> None:
    """Let a ledger charge seeded fits, and keep every state; for this process alone."""
    charging.require_price = lambda stamps: None
    honest = Checkpoints.keep

    def keep(self: Checkpoints, state: object) -> None:
        self.seconds = 0.0
        honest(self, state)
        os.write(BELL[1], b".")

    Checkpoints.keep = keep


def warm_up(folder: Path) -> None:
    """Work out once, without JAX, what every child would work out again."""
    without_refusal()
    plan = small_flow().plan(*ROWS.shape)
    DPFlow._plan = lambda self, *given: plan
    Ledger(folder / "warm.ledger", cap=CAP).reserve(plan.events, purpose="warm")
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_disable_most_optimizations", True)


def live(folder: Path) -> None:
    """One start of the run of a folder, as the command line makes it."""
    ledger, kept, model = Ledger(folder / "run.ledger", cap=CAP), folder / "run.part", folder / "m"
    small_flow().fit(ROWS, ledger=ledger, checkpoint=kept).save(model)


def forgetful() -> None:
    """The planted bug: the run's id is not on disk when it is charged."""
    Checkpoints.begin = lambda self: (
        setattr(self, "_run", self._run or os.urandom(16).hex()) or (self._run)
    )


def one_life(folder: Path, moment: "Moment") -> tuple[bool, float]:
    """Start the run and kill it at the moment; whether that was needed, and its age."""
    began = time.monotonic()
    while heard():
        pass
    if (child := os.fork()) == 0:
        try:
            live(folder)
            os._exit(0)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(1)
    ended, code = 0, 0
    while not ended and not moment.has_come():
        time.sleep(0.001)
        ended, code = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        code = os.waitpid(child, 0)[1]
    if code not in (0, signal.SIGKILL):
        raise SystemExit("a start failed by itself")
    return code != 0, time.monotonic() - began


def heard() -> bool:
    try:
        return bool(os.read(BELL[0], 4096))
    except BlockingIOError:
        return False


class Moment:
    """So many seconds after the start, or after the first state that is written."""

    def __init__(self, seconds: float, *, in_training: bool) -> None:
        self.seconds = seconds
        self.began = None if in_training else time.monotonic()

    def has_come(self) -> bool:
        if self.began is None and heard():
            self.began = time.monotonic()
        return self.began is not None and time.monotonic() - self.began > self.seconds


def phase(folder: Path) -> str:
    """How far a run was when it was killed, by its files and its ledger together."""
    told = states(folder)
    if not (folder / "run.part").exists():
        expected = {"not begun": [], "finished": ["RESERVED", "RELEASED"]}
        name = "finished" if (folder / "m").exists() else "not begun"
        return name if told == expected[name] else "lost"
    ledger = Ledger(folder / "run.ledger", cap=CAP)
    header, arrays = read_model(folder / "run.part")
    state = ledger.state_of(header["run"])
    if state is None:
        return "not charged"
    if state.is_released:
        return "released"
    if header["result"] is not None:
        return "trained"
    if not header["has_state"]:
        return "charged"
    return "trained" if any(a.shape == () and a == STEPS for a in arrays.values()) else "training"


def states(folder: Path) -> list[str]:
    """What happened in a run's ledger since it was made."""
    return [entry.state for entry in Ledger(folder / "run.ledger", cap=CAP).history()[1:]]


def outcome(folder: Path) -> dict[str, int | str]:
    """What a finished run left."""
    ledger = Ledger(folder / "run.ledger")
    ledger.verify()
    told = states(folder)
    header, arrays = read_model(folder / "m")
    receipt = header.pop("receipt")
    content = json.dumps([header, {k: a.tobytes().hex() for k, a in sorted(arrays.items())}])
    left = sorted(set(os.listdir(folder)) - {"m", "run.ledger"})
    return {
        "charges": told.count("RESERVED"),
        "releases": told.count("RELEASED"),
        "ledger": " ".join(told),
        "model": hashlib.sha256(content.encode()).hexdigest(),
        "is_receipt_good": ledger.history()[receipt["entry"] - 1].head == receipt["head"],
        "left": " ".join(left),
    }


def _chance(age: float, trained: float) -> Moment:
    """A moment of a whole life, or one after the first new state; each half of the time."""
    in_training = random.random() < 0.5
    return Moment(
        random.uniform(0, 0.5 * trained if in_training else 0.8 * age), in_training=in_training
    )


def kill_often(place: Path, kills: int, bug: str) -> dict[str, object]:
    """Kill one run after the other until so many kills are made; then let the last one end."""
    warm_up(place)
    folders = [place / "whole", place / "timed"]
    for folder in folders:
        folder.mkdir()
        never = Moment(600.0, in_training=True)
        _, age = one_life(folder, never)
        trained = time.monotonic() - (never.began or 0)
    if bug == "forgetful":
        forgetful()
    phases: Counter[str] = Counter()
    too_late, killed = 0, set()
    while sum(phases.values()) < kills:
        folders.append(place / f"run-{len(folders)}")
        folders[-1].mkdir()
        while one_life(folders[-1], _chance(age, trained))[0]:
            if (name := phase(folders[-1])) == "finished":
                # Its model is safe and its run forgotten: another start would be another run.
                too_late += 1
                break
            phases[name] += 1
            killed.add(folders[-1])
            if sum(phases.values()) == kills:
                one_life(folders[-1], Moment(600.0, in_training=False))
                break
    spent = {"a whole life": age, "of it in training": trained}
    counted = {"phases": phases, "too_late": too_late, "seconds": spent, "killed": len(killed)}
    return counted | {"runs": [outcome(folder) for folder in folders]}


if __name__ == "__main__":
    print(json.dumps(kill_often(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
