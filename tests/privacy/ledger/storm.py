"""Processes that charge, release and die, run as a program of its own.

It imports the ledger alone, so that a worker is forked from a warm parent in
milliseconds, and prints one JSON document.
"""

import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.events import PureEvent, Sensitivity
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger, pending_files, publish, recover

EVENT = PureEvent(epsilon=Sensitivity.uniformly(0.001))
CHANCE = random.SystemRandom()


def forked(work: Callable[[], None]) -> int:
    """A child that does its work and leaves without a word; code 1 if it failed."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"worker: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def release_for_ever(ledger: Ledger, folder: Path) -> None:
    while True:
        receipt = ledger.reserve([EVENT], purpose="storm")
        content = os.urandom(64)
        publish(
            ledger,
            receipt,
            folder / f"{receipt.run}.out",
            lambda path, content=content: path.write_bytes(content) and None,
        )


def charge_after_release_for_ever(ledger: Ledger, folder: Path) -> None:
    """The planted bug: everything is right but the order."""
    while True:
        run, content = os.urandom(16).hex(), os.urandom(64)
        (folder / f"{run}.out").write_bytes(content)
        receipt = ledger.reserve([EVENT], purpose="storm", run=run)
        ledger.release(receipt, artefact=hashlib.sha256(content).hexdigest())


def kills(place: str, count: int, workers: int = 4, planted: bool = False) -> dict:
    """Kill one of the workers at a random moment, ``count`` times, and judge what is left."""
    loop = charge_after_release_for_ever if planted else release_for_ever
    ledger = Ledger(place, cap=Budget(1000.0, 1e-6), accountant="zcdp")
    ledger.reserve([EVENT], purpose="warm up")
    folder = Path(tempfile.mkdtemp())
    started, running, failed = time.monotonic(), [], 0
    for number in range(count):
        while len(running) < workers:
            if number % 50 == 0:
                ledger.state_of("nobody")  # so that a child need not read all rows again
            running.append(forked(lambda: loop(ledger, folder)))
        time.sleep(CHANCE.uniform(0, 0.15))
        failed += _killed(running.pop(CHANCE.randrange(workers)))
        if number == count - 1:
            failed += sum(map(_killed, running))
    seconds = time.monotonic() - started
    result = {"kills": count, "failed": failed, "seconds": seconds} | judged(place, folder)
    shutil.rmtree(folder)
    return result


def _killed(process: int) -> bool:
    """Whether the process had ended by itself, which it never should."""
    os.kill(process, signal.SIGKILL)
    return os.WIFEXITED(os.waitpid(process, 0)[1])


def judged(place: str, folder: Path) -> dict:
    """What is revealed against what is charged."""
    ledger = Ledger(place)
    ledger.verify()
    seen = {path.stem: path for path in folder.glob("[!.]*.out")}
    uncharged = [run for run, path in seen.items() if not _is_paid(ledger, run, path)]
    entries = ledger.history()
    marked = [entry.run for entry in entries if entry.state == "RELEASED"]
    hidden = [run for run in marked if run not in seen]
    return {
        "charged": sum(entry.state == "RESERVED" for entry in entries),
        "marked": len(marked),
        "revealed": len(seen),
        "uncharged": len(uncharged),
        "recovered": sum(recover(ledger, run, folder / f"{run}.out") for run in hidden),
        "lost": sum(not (folder / f"{run}.out").exists() for run in hidden),
        "marked_and_pending": sum(
            bool(pending_files(folder / f"{run}.out", run)) for run in marked
        ),
    }


def _is_paid(ledger: Ledger, run: str, path: Path) -> bool:
    state = ledger.state_of(run)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return state is not None and state.is_released and state.artefact == digest


def crowd(place: str, processes: int, requests: int, room: int) -> dict:
    """Many processes ask at once; the cap has room for exactly ``room`` of all requests."""
    from dpflows.privacy.accounting import epsilon_of

    whole = PureEvent(epsilon=EVENT.epsilon, count=room)
    cap = Budget(epsilon_of([whole], delta=1e-6, accountant="zcdp"), 1e-6)
    ledger = Ledger(place, cap=cap, accountant="zcdp")
    gate, results = os.pipe(), os.pipe()
    started = time.monotonic()
    children = [
        forked(lambda who=who: _ask(Ledger(place), f"process {who}", requests, gate, results))
        for who in range(processes)
    ]
    os.close(gate[1])
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    os.close(results[1])
    with os.fdopen(results[0]) as answers:
        granted = sum(map(int, answers.read().split()))
    ledger.verify()
    granted_to = [entry.purpose for entry in ledger.history() if entry.state == "RESERVED"]
    return {
        "processes": processes,
        "requests": processes * requests,
        "room": room,
        "granted": granted,
        "entries": len(granted_to),
        # how often a grant went to another process than the one before: they did compete
        "turns": sum(a != b for a, b in itertools.pairwise(granted_to)),
        "failed": failed,
        "seconds": time.monotonic() - started,
    }


def _ask(
    ledger: Ledger,
    who: str,
    requests: int,
    gate: tuple[int, int],
    results: tuple[int, int],
) -> None:
    os.close(gate[1])
    os.read(gate[0], 1)  # returns when the parent opens the gate
    granted = 0
    for _ in range(requests):
        time.sleep(CHANCE.uniform(0, 0.01))  # or one process would get the lock again and again
        try:
            ledger.reserve([EVENT], purpose=who)
            granted += 1
        except BudgetError:
            pass
    os.write(results[1], f"{granted}\n".encode())


def forks(place: str) -> dict:
    """A ledger used before, after and, wrongly, in the middle of a fork."""
    ledger = Ledger(place, cap=Budget(10.0, 1e-6), accountant="zcdp")
    ledger.reserve([EVENT], purpose="before")
    child = forked(lambda: ledger.reserve([EVENT], purpose="child"))
    ledger.reserve([EVENT], purpose="parent")
    after = os.waitpid(child, 0)[1] == 0
    with ledger.held():
        ledger.reserve([EVENT], purpose="held")
        child = forked(lambda: _refused(ledger))
        refused = os.waitpid(child, 0)[1] == 0
    try:
        with ledger.held():
            ledger.reserve([EVENT], purpose="split")
            child = os.fork()
    except InputError:
        os._exit(0)  # the child, which may not commit its parent's rows
    committed_by_child = os.waitpid(child, 0)[1] != 0
    ledger.verify()
    purposes = ("before", "child", "parent", "held", "split")
    return {
        "after": after,
        "refused": refused,
        "committed_by_child": committed_by_child,
        "charged": [ledger.charged(purpose) for purpose in purposes],
    }


def _refused(ledger: Ledger) -> None:
    try:
        ledger.reserve([EVENT], purpose="never")
    except InputError:
        return
    raise AssertionError("a held ledger was used in a forked process")


JOBS = {"kills": kills, "crowd": crowd, "forks": forks}


def main() -> None:
    """Do the jobs that the one argument lists, as JSON: [[name, settings], ...]."""
    results = [JOBS[name](**settings) for name, settings in json.loads(sys.argv[1])]
    print(json.dumps({"results": results, "jax": "jax" in sys.modules}))


if __name__ == "__main__":
    main()
