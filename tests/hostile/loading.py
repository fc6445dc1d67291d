"""Load mutated model files in a process that is watched; a program for the tests.

Usage: loading.py FOLDER COUNT [SEED]. Says in one JSON document what happened. While a
file is loaded, nothing may be imported, compiled, executed, started, connected to or
written. A clock of five seconds runs; it counts the process's own time, because the
machine may be shared.
"""

import importlib
import json
import os
import random
import resource
import secrets
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import dpflows  # noqa: E402
from dpflows.errors import InputError
from hostile.mutating import SENTINEL, mutated  # noqa: E402

SECONDS = 5
GIGABYTES = 3
#: Events of the interpreter that no file may cause.
FORBIDDEN = ("compile", "exec", "import", "os.", "shutil.", "subprocess.", "socket.", "ctypes.")
FORBIDDEN += ("marshal.", "pickle.", "pty.", "webbrowser.", "urllib.", "code.", "tempfile.")
HARMLESS = ("os.scandir", "os.listdir")


class Watch:
    """Notes forbidden events while it is armed."""

    def __init__(self) -> None:
        self.is_armed, self.seen = False, []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_armed or event in HARMLESS:
            return
        writes = event == "open" and not _only_reads(*arguments[1:])
        is_forbidden = writes or event.startswith(FORBIDDEN)
        if is_forbidden and not _is_template(sys._getframe(1)):
            self.seen.append(f"{event} {arguments!r}"[:200])


def _is_template(caller: FrameType) -> bool:
    """Whether SciPy makes a frozen distribution, which compiles a constant text of its own.

    An accountant does so when it prices a Laplace event again; nothing of a file is in the text.
    """
    code = caller.f_code
    return (code.co_name, Path(code.co_filename).name) == (
        "_attach_argparser_methods",
        "_distn_infrastructure.py",
    )


def _only_reads(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return not set(mode) & set("wax+")
    return not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)


def _give_up(*_: Any) -> None:
    raise TimeoutError("the file kept its reader busy")


def judge(watch: Watch, path: Path) -> tuple[str, str, float]:
    """What became of a file, what is wrong with that, and how long it took."""
    caught: BaseException | None = None
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    start = time.process_time()
    watch.is_armed = True
    try:
        dpflows.load(path).privacy_statement()
    except BaseException as error:
        caught = error
    finally:
        watch.is_armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - start
    outcome, wrong = _named(caught)
    slow = ["slow"] if seconds > SECONDS else []
    wrong = " ".join([*filter(None, [wrong]), *slow, *watch.seen])
    watch.seen.clear()
    return outcome, wrong, seconds


def _named(caught: BaseException | None) -> tuple[str, str]:
    if caught is None:
        return "loaded", ""
    if type(caught) is InputError:
        return "refused", _fault(str(caught))
    return "crashed", "".join(traceback.format_exception(caught))[-2000:]


def _fault(line: str) -> str:
    """What no refusal may be: several lines, or words from the file."""
    if "\n" in line or SENTINEL in line or "\x1b" in line:
        return f"says: {line[:500]}"
    return ""


def main(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Load so many mutations of the files in a folder."""
    sound = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.dpflow"))}
    target = folder / "mutated" / "model.dpflow"
    target.parent.mkdir(exist_ok=True)
    for path in folder.glob("*.dpflow"):
        dpflows.load(path)  # all that loading imports is imported now
    importlib.import_module("jax.experimental.multihost_utils")  # JAX itself imports it late
    _limit_memory()
    signal.signal(signal.SIGPROF, _give_up)
    watch, outcomes, faults = Watch(), Counter(), []
    began = time.perf_counter()
    slowest = 0.0
    for number in range(count):
        chance = random.Random(seed + number)
        name = chance.choice(list(sound))
        kind, content = mutated(chance, sound[name])
        target.write_bytes(content)
        outcome, wrong, took = judge(watch, target)
        slowest = max(slowest, took)
        outcomes[f"{kind} {outcome}"] += 1
        if wrong:
            faults.append({"seed": seed + number, "model": name, "kind": kind, "wrong": wrong})
    seconds = time.perf_counter() - began
    figures = {"cases": count, "seconds": round(seconds, 1), "slowest": round(slowest, 2)}
    return figures | {"outcomes": outcomes, "faults": len(faults), "first": faults[:20]}


def _limit_memory() -> None:
    """A file that asks for more fails here instead of filling the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    start = int(sys.argv[3]) if len(sys.argv) > 3 else secrets.randbits(48)
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), start)))
