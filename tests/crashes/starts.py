"""Two processes that start the same kept run at the same moment, again and again.

Run as a script, ``starts.py FOLDER TRIALS BUG`` prints one JSON document. Children are forked
from a parent that has imported everything and worked out the plan. Whoever may learn waits
until the other one has ended, so that both are alive when the second asks.
"""

import hashlib
import json
import os
import select
import sys
from pathlib import Path

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import jax
import numpy as np

from dpflows import Budget, DPFlow
from dpflows.errors import InputError
from dpflows.files import NamedLock, model_bytes
from dpflows.privacy.ledger import Ledger

ROWS = np.random.default_rng(5).normal(size=(200, 2)).clip(-4, 4)
CAP = Budget(9.0, 1e-4)
#: Without a lock nobody ends, and both would wait for ever.
PATIENCE = 20.0


def flow() -> DPFlow:
    return DPFlow(1.0, 1e-4, bounds=(-4, 4), prior="mixture", prior_share=1.0)


def warm_up(folder: Path, bug: str) -> None:
    plan = flow().plan(*ROWS.shape)
    DPFlow._plan = lambda self, *given: plan
    Ledger(folder / "warm.ledger", cap=CAP).reserve(plan.events, purpose="warm")
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_disable_most_optimizations", True)
    if bug == "unlocked":
        global PATIENCE
        PATIENCE = 1.0
        NamedLock.take = lambda self: (
            setattr(self, "_descriptor", os.open(os.devnull, os.O_RDONLY)) or True
        )


def slowly(bell: tuple[int, int]) -> None:
    """Learn only when the other start has ended."""
    honest = DPFlow._run

    def run(self: DPFlow, *given: object) -> None:
        select.select([bell[0]], [], [], PATIENCE)
        honest(self, *given)

    DPFlow._run = run


def start(folder: Path) -> dict[str, str]:
    """What one process got: a model, or a refusal."""
    try:
        ledger = Ledger(folder / "run.ledger", cap=CAP)
        model = flow().fit(ROWS, ledger=ledger, checkpoint=folder / "run.part")
    except InputError as error:
        return {"refused": str(error)}
    header, arrays = model._file_content()
    # Not before both have ended, or the second would find no run and begin one.
    return {"model": hashlib.sha256(model_bytes(header=header, arrays=arrays)).hexdigest()}


def child(folder: Path, gate: tuple[int, int], bell: tuple[int, int], told: int) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.close(gate[1])
        slowly(bell)
        os.read(gate[0], 1)
        result = start(folder)
        os.write(told, (json.dumps(result) + "\n").encode())
        os.write(bell[1], b".")
        code = 0
    finally:
        os._exit(code)


def trial(folder: Path) -> dict[str, object]:
    folder.mkdir()
    Ledger(folder / "run.ledger", cap=CAP)
    gate, bell, told = os.pipe(), os.pipe(), os.pipe()
    children = [child(folder, gate, bell, told[1]) for _ in range(2)]
    for end in (*gate, told[1]):
        os.close(end)
    codes = [os.waitpid(process, 0)[1] for process in children]
    with os.fdopen(told[0]) as answers:
        results = [json.loads(line) for line in answers]
    for end in bell:
        os.close(end)
    states = [entry.state for entry in Ledger(folder / "run.ledger").history()[1:]]
    return {"codes": codes, "results": results, "ledger": states, "left": os.listdir(folder)}


if __name__ == "__main__":
    place, trials, bug = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    warm_up(place, bug)
    print(json.dumps([trial(place / f"trial-{number}") for number in range(trials)]))
