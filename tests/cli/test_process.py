"""The command as a process: exit codes, Ctrl-C at any time, streams that are closed or full.

Ctrl-C is sent at random times after the start. Before Python has come to our first line it
ends the process in Python's own way; such attempts are told by their trace, in which no
file of ours is named, and are made again. Whatever comes later has to be code 130 and one line.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

SAID = b"error: interrupted; no incomplete file was left\n"
#: As ``python -m dpflows``; a suite in the background passes ignored interrupts on to children.
START = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.{handler})
sys.argv[0] = "dpflows"
runpy.run_module("dpflows", run_name="__main__", alter_sys=True)
"""
FIT = "fit {rows} --schema {schema} --epsilon 1 --prior none --output {out}"


def _shell(line: str, folder) -> tuple[int, str]:
    """Run a line of a shell in which ``dpflows`` is the command; its code and what was said."""
    script = f'dpflows() {{ "{sys.executable}" -m dpflows "$@"; }}; {line}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("dpflows --version", 0, "dpflows 0."),
        ("dpflows nonsense", 2, "error: verb must be one of"),
        ("dpflows plan", 2, "error: Missing option"),
        ("dpflows --version > /dev/full", 1, "error: operating system error: No space left on d"),
        ("dpflows nonsense 2> /dev/full", 2, ""),
        ("dpflows --help | true; exit ${PIPESTATUS[0]}", 141, ""),
        ("dpflows nonsense 2>&1 | true; exit ${PIPESTATUS[0]}", 2, ""),
        ("dpflows --help >&-", 0, ""),
        ("dpflows --help >&- 2>&- <&-", 0, ""),
        ("dpflows nonsense 2>&-", 2, ""),
    ],
)
def test_codes_and_streams(tmp_path, line, code, said):
    found = _shell(line, tmp_path)
    assert found[0] == code, found
    assert found[1].startswith(said), found
    assert found[1] == "" or said != ""
    assert "Traceback" not in found[1]
    assert "is a bug" not in found[1]


def test_help_states_the_exit_codes(tmp_path):
    shown = " ".join(_shell("dpflows --help", tmp_path)[1].split())
    for part in ("0 done", "2 invalid", "3 privacy budget", "4 training", "130 int", "141 stdout"):
        assert part in shown


@pytest.mark.long
def test_an_exhausted_budget_has_its_own_code(tmp_path, job):
    words = f"--schema {job.schema} --epsilon 0.1 --epsilon-per-query 0.5 --output e.dpflow"
    code, said = _shell(f"dpflows ensemble {job.rows} {words}", tmp_path)
    assert (code, said.count("\n")) == (3, 1), said
    assert os.listdir(tmp_path) == []


DIVERGING = """
import sys
from dpflows.training import dp_sgd
def diverge(state):
    raise dp_sgd.TrainingError("training diverged by step 3 and nothing was released")
dp_sgd._require_finite = diverge
from dpflows.__main__ import main
main()
"""


@pytest.mark.long
def test_a_training_that_fails_has_its_own_code(tmp_path, job):
    """Clipping keeps even a step size of 1,000 finite, so the failure is brought about."""
    words = FIT.format(rows=job.rows, schema=job.schema, out="m.dpflow")
    more = "--steps 3 --batch-size 50 --architecture nsf"
    process = _started(DIVERGING, f"{words} {more}".split(), tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.count(b"\n")) == (4, b"", 1), err
    assert err.startswith(b"error: training diverged")
    assert os.listdir(tmp_path) == []


def test_nothing_that_is_printed_gets_into_a_file(tmp_path, job):
    """With stdout and stderr closed, a file that is opened would get their numbers."""
    line = f"dpflows schema {job.rows} --output p.json >&- 2>&- <&-"
    assert _shell(line, tmp_path) == (0, "")
    assert json.loads((tmp_path / "p.json").read_text())["columns"]


def _started(code: str, words: list[str], folder) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # what a test reads as a line must not take along what communicate() is to find
        bufsize=0,
    )


def _interrupted(words: list[str], after: float, folder) -> tuple[int, bytes, bytes]:
    process = _started(START.format(handler="default_int_handler"), words, folder)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def _was_too_early(code: int, err: bytes) -> bool:
    """Whether Python had not yet come to our first line."""
    is_silent = code == -signal.SIGINT and err == b""
    return is_silent or (
        SAID not in err and b"__main__.py" not in err and b"dpflows/cli" not in err
    )


def _attempts(job, folder, count: int, longest: float) -> None:
    words = FIT.format(rows=job.rows, schema=job.schema, out="m.dpflow").split()
    chance, done = random.Random(os.urandom(8)), 0
    for _ in range(3 * count):
        after = chance.uniform(0, longest)
        code, out, err = _interrupted(words, after, folder)
        if _was_too_early(code, err):
            continue
        assert (code, out, err) == (130, b"", SAID), (after, code, out, err)
        assert os.listdir(folder) == []
        done += 1
        if done == count:
            return
    pytest.fail(f"only {done} interrupts came in time")


def test_ctrl_c_at_an_early_time_is_one_line(tmp_path, job):
    _attempts(job, tmp_path, count=6, longest=1.5)


@pytest.mark.long
def test_ctrl_c_at_any_early_time_is_one_line(tmp_path, job):
    _attempts(job, tmp_path, count=100, longest=2.0)


def test_a_library_that_swallows_exceptions_does_not_swallow_ctrl_c(tmp_path):
    """Imports that catch everything, as some do, and an import in which nothing can be raised."""
    (tmp_path / "greedy.py").write_text(
        "import time\nprint('importing', flush=True)\n"
        "try:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
    )
    code = (
        "import signal, sys; sys.path.insert(0, '.'); sys.argv = ['dpflows', '--version']\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import dpflows.cli.main as m, dpflows.__main__ as start\n"
        "def run(app, words):\n    import greedy\n    print('lost')\n    return 0\n"
        "m.run = run\nstart.main()\n"
    )
    process = _started(code, [], tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", SAID)


def test_an_ignored_interrupt_stays_ignored(tmp_path):
    """As nohup and a shell's background jobs start a command."""
    code = START.format(handler="SIG_IGN").replace("sys.argv[0]", "print(flush=True); sys.argv[0]")
    process = _started(code, ["--version"], tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0].startswith(b"dpflows 0.")
    assert process.returncode == 0
