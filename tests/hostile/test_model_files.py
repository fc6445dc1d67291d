"""Mutated model files are loaded or refused in one line; nothing else ever happens."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dpflows
from dpflows.errors import InputError
from figures import note
from hostile.making import FILES, names, write
from hostile.mutating import SENTINEL, mutated, opened, sealed

PROGRAM = Path(__file__).with_name("loading.py")


def _loaded(folder: Path, count: int, *, seconds: int) -> dict[str, Any]:
    """The report of a process that loads so many mutations of the files of a folder."""
    words = [sys.executable, str(PROGRAM), str(folder), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def _check(report: dict[str, Any], count: int) -> None:
    assert report["faults"] == 0, report["first"]
    assert report["cases"] == count
    assert sum(report["outcomes"].values()) == count
    # the mutations reach the estimators, and some are harmless there
    assert report["outcomes"]["sealed refused"] > 0.2 * count
    assert report["outcomes"]["sealed loaded"] > 0.02 * count


@pytest.fixture
def folder(tmp_path) -> Path:
    for path in FILES.glob("*.dpflow"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_every_class_has_a_file_and_every_file_is_loaded():
    """After a change of the format run ``python tests/hostile/making.py``."""
    assert {path.stem for path in FILES.glob("*.dpflow")} == set(names())
    for path in FILES.glob("*.dpflow"):
        assert type(dpflows.load(path)).__name__ == path.stem


def test_a_sound_content_is_sealed_as_the_product_does(tmp_path):
    """Or the forgeries would all be refused at the digest."""
    for path in FILES.glob("*.dpflow"):
        content = opened(path.read_bytes())
        (tmp_path / "m.dpflow").write_bytes(sealed(content))
        assert type(dpflows.load(tmp_path / "m.dpflow")).__name__ == path.stem
        content.header["guarantee" if "guarantee" in content.header else "density"] = SENTINEL
        (tmp_path / "m.dpflow").write_bytes(sealed(content))
        with pytest.raises(InputError, match="is inconsistent"):
            dpflows.load(tmp_path / "m.dpflow")


def test_mutations_are_many_and_repeatable():
    content = (FILES / "DPFlow.dpflow").read_bytes()
    mutants = [mutated(random.Random(seed), content)[1] for seed in range(200)]
    assert len(set(mutants)) > 180
    assert mutants == [mutated(random.Random(seed), content)[1] for seed in range(200)]


def test_some_mutations(folder):
    _check(_loaded(folder, 250, seconds=250), 250)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", ["first", "second"])
def test_a_hundred_thousand_mutations_in_two_parts(tmp_path, part):
    write(tmp_path, names())
    report = _loaded(tmp_path, 50_000, seconds=3300)
    note(f"mutated model files, {part} part", report)
    _check(report, 50_000)


#: Programs that do what no file may cause, in the place of loading.
CULPRITS = {
    "it runs a command": "os.system('true')",
    "it starts a process": "subprocess.run(['true'])",
    "it executes text": "exec('1')",
    "it imports": "import this",
    "it writes": "open(str(path) + '.x', 'w').close()",
    "it deletes": "os.remove(path)",
    "it connects": "socket.socket().connect_ex(('127.0.0.1', 9))",
    "it quotes": f"raise dpflows.InputError('expected a name, got {SENTINEL}')",
    "it raises another error": "raise KeyError('guarantee')",
    "it asks for more lines": "raise dpflows.InputError('one\\ntwo')",
    "it goes on for ever": "while True: pass",
}
CULPRIT = """
import os, socket, subprocess, sys
sys.path.insert(0, {tests!r})
from hostile import loading
import dpflows
loading.SECONDS = 1
def load(path):
    {body}
dpflows.load = load
import pathlib, signal, tempfile
signal.signal(signal.SIGPROF, loading._give_up)
watch = loading.Watch()
path = pathlib.Path(tempfile.mkdtemp(), "m")
path.write_text("")
print(bool(loading.judge(watch, path)[1]))
"""


@pytest.mark.parametrize(
    "name",
    [n if n == "it executes text" else pytest.param(n, marks=pytest.mark.long) for n in CULPRITS],
)
def test_the_judge_has_power(name):
    program = CULPRIT.format(tests=str(PROGRAM.parents[1]), body=CULPRITS[name])
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr[-2000:]
