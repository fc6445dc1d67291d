"""Several processes publish under one receipt: one file, and nothing of the others."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from dpflows.privacy.guarantee import Budget
from dpflows.privacy.ledger import Ledger

#: Forked processes that all write before any of them asks the ledger.
RACE = """
import json, os, sys
from pathlib import Path
from dpflows.errors import InputError
from dpflows.privacy.events import PureEvent, Sensitivity
from dpflows.privacy.ledger import Ledger, ledger as ledgers, publish
folder, contents, names, bug = Path(sys.argv[1]), *map(json.loads, sys.argv[2:4]), sys.argv[4]
ledger = Ledger(folder / "clinic.ledger")
event = PureEvent(epsilon=Sensitivity.uniformly(0.1))
receipt = ledger.reserve([event], purpose="report", run="night-7")
if bug == "one pending name":
    ledgers._new_pending = lambda path, run: Path(path).with_name(".pending.out")
told, ready, gate = os.pipe(), os.pipe(), os.pipe()

def work(content, name):
    def write(path):
        path.write_text(content)
        os.write(ready[1], b".")
        os.close(gate[1])
        os.read(gate[0], 1)
    try:
        publish(ledger, receipt, folder / name, write)
        return "published"
    except InputError as error:
        return str(error)
    except Exception as error:
        return "BARE " + type(error).__name__

children = []
for content, name in zip(contents, names):
    if (child := os.fork()) == 0:
        os.write(told[1], (json.dumps([name, content, work(content, name)]) + "\\n").encode())
        os._exit(0)
    children.append(child)
for _ in children:
    os.read(ready[0], 1)
os.close(gate[1])
for child in children:
    os.waitpid(child, 0)
os.close(told[1])
sys.stdout.write(os.fdopen(told[0]).read())
"""


def race(folder, contents, names, bug="none"):
    Ledger(folder / "clinic.ledger", cap=Budget(1.0, 1e-6))
    words = [sys.executable, "-c", RACE, str(folder), json.dumps(contents), json.dumps(names), bug]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(folder, told):
    won = [(name, content) for name, content, said in told if said == "published"]
    for *_, said in told:
        assert said == "published" or "released with another artefact" in said
    assert len(won) == 1
    name, content = won[0]
    assert (folder / name).read_text() == content
    assert sorted(os.listdir(folder)) == sorted(["clinic.ledger", name])
    artefact = Ledger(folder / "clinic.ledger").state_of("night-7").artefact
    assert artefact == hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize("names", [["m.out"] * 4, ["a.out", "b.out", "c.out", "d.out"]])
def test_the_loser_of_a_race_leaves_nothing(tmp_path, names):
    told = race(tmp_path, list("abcd"), names)
    assert len(told) == 4
    judge(tmp_path, told)


def test_equal_content_is_no_contest(tmp_path):
    told = race(tmp_path, ["a"] * 3, ["m.out"] * 3)
    assert {said for *_, said in told} == {"published"}
    assert sorted(os.listdir(tmp_path)) == ["clinic.ledger", "m.out"]


def test_the_test_catches_processes_that_share_a_pending_file(tmp_path):
    with pytest.raises(AssertionError):
        judge(tmp_path, race(tmp_path, list("abcd"), ["m.out"] * 4, "one pending name"))
