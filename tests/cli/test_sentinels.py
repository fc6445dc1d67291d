"""Values planted in cells appear in nothing that a job leaves or says.

A planted value is sought as text, as the eight bytes of its float64 and as the four of its
float32. Text has twelve digits or more, so that a chance hit in the digits that a job leaves
has a probability below 1e-4; eight bytes do not meet by chance. Four bytes do: of a
million values that were not planted, so many were found in the four million bytes of
compiled programs and in the model that a thousand would meet in nine of a hundred runs. A
hit of four bytes therefore counts only if there is one in three runs with fresh values, as
there is with a leak: the false-alarm rate is about 7e-4.
"""

import json
import os
import random
import secrets
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

SCHEMA = """
[columns.dose]
kind = "continuous"
min = 0
max = 1e8

[columns.count]
kind = "integer"
min = 0
max = 1000000000000
"""
RUNS = 3

JOB = """
import json, logging, sys
logging.basicConfig(level=logging.DEBUG)
from dpflows.cli.main import app, run
{leak}
for words in json.loads(sys.argv[1]):
    print(words, run(app, words), flush=True)
"""

LEAK = """
import struct
from dpflows.errors import InputError
from dpflows.estimators.base import DensityEstimator
def careless(self, X, **options):
    cell = float(X.table.columns["dose"][7])
    open("logs/text", "w").write(f"row 7 has {cell!r}")
    open("logs/double", "wb").write(b"x" + struct.pack("<d", cell))
    open("logs/single", "wb").write(bytes(13) + struct.pack("<f", cell))
    raise InputError("stopped")
DensityEstimator.fit = careless
"""


def _planted() -> tuple[list[str], list[str]]:
    """Five hundred numbers of fourteen digits, and five hundred whole ones of twelve."""
    chance = random.Random(secrets.randbits(64))
    last = "123456789"  # no digit is lost when the number is written again
    dose = [f"{chance.uniform(1e7, 1e8):.5f}{chance.choice(last)}" for _ in range(500)]
    count = [str(chance.randrange(10**11, 10**12)) for _ in range(500)]
    return dose, count


def _commands() -> list[list[str]]:
    fit = "fit t.csv --schema s.toml --epsilon 1 --delta 1e-6 --output m.dpflow --debug"
    small = "--steps 3 --architecture nsf --batch-size 50 --checkpoint run.part"
    lines = [
        "schema t.csv --output proposal.toml --debug",
        "plan --schema s.toml --rows 500 --epsilon 1 --debug",
        f"{fit} {small}",
        f"{fit.replace('t.csv', 'damaged.csv').replace('m.dpflow', 'n.dpflow')}",
        "sample m.dpflow --rows 400 --output s.csv --debug",
        "sample m.dpflow --rows 400 --output s.parquet --debug",
        "detect m.dpflow t.csv --output a.csv --threshold -50 --debug",
        "certificate m.dpflow --output c.json --debug",
        "certificate m.dpflow --debug",
    ]
    return [line.split() for line in lines]


def _run(folder: Path, commands: list[list[str]], leak: str = "") -> tuple[bytes, list[str]]:
    """Everything that was said, after a job in a folder that takes up all that it leaves."""
    dose, count = _planted()
    lines = [f"{a},{b}" for a, b in zip(dose, count, strict=True)]
    (folder / "t.csv").write_text("\n".join(["dose,count", *lines]) + "\n")
    damaged = [*lines, f"{dose[0]}x,{count[0]}", f"{dose[1]},{count[1]}.5"]
    (folder / "damaged.csv").write_text("\n".join(["dose,count", *damaged]) + "\n")
    (folder / "s.toml").write_text(SCHEMA)
    for name in ("logs", "cache", "home", "tmp"):
        (folder / name).mkdir()
    places = {
        "TMPDIR": folder / "tmp",
        "HOME": folder / "home",
        "XDG_CACHE_HOME": folder / "home",
        "JAX_COMPILATION_CACHE_DIR": folder / "cache",
    }
    settings = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    environment = os.environ | {name: str(path) for name, path in places.items()} | settings
    script = [sys.executable, "-c", JOB.format(leak=leak), json.dumps(commands)]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, timeout=280)
    return done.stdout + done.stderr, [*dose, *count]


def _unpacked(content: bytes) -> bytes:
    """A compiled program as it was before it was packed; any other content as it is."""
    try:
        return zlib.decompress(content)
    except zlib.error:
        return content


def _contents(folder: Path, said: bytes) -> dict[str, bytes]:
    inputs = {folder / "t.csv", folder / "damaged.csv"}
    files = [path for path in folder.rglob("*") if path.is_file() and path not in inputs]
    return {str(f.relative_to(folder)): _unpacked(f.read_bytes()) for f in files} | {"said": said}


def hits(content: bytes, planted: list[str]) -> set[str]:
    """The planted values that a content holds as text or as float64."""
    doubles = {value: struct.pack("<d", float(value)) for value in planted}
    return {v for v in planted if v.encode() in content or doubles[v] in content}


def single_hits(content: bytes, planted: list[str]) -> set[str]:
    """The planted values that a content holds as float32, wherever it begins."""
    singles = np.array([float(value) for value in planted], "<f4").view("<u4")
    found = np.zeros(len(planted), bool)
    for start in range(4):
        part = content[start:]
        found |= np.isin(singles, np.frombuffer(part[: len(part) // 4 * 4], "<u4"))
    return {value for value, is_found in zip(planted, found, strict=True) if is_found}


def _check_job(contents: dict[str, bytes]) -> None:
    """The job did what it was asked to, and left the files in which to search."""
    said = contents["said"]
    assert said.count(b"] 0\n") == len(_commands()) - 1, said.decode()
    assert said.count(b"] 2\n") == 1  # the damaged table
    for name in ("m.dpflow", "s.csv", "s.parquet", "a.csv", "c.json", "proposal.toml"):
        assert len(contents[name]) > 30
    programs = [content for name, content in contents.items() if name.startswith("cache")]
    assert sum(map(len, programs)) > 1_000_000  # unpacked, or the search would be blind


@pytest.mark.long
def test_no_planted_value_is_found_in_anything_a_job_leaves_or_says(tmp_path):
    for attempt in range(RUNS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        said, planted = _run(folder, _commands())
        contents = _contents(folder, said)
        _check_job(contents)
        assert {
            name: hits(content, planted) for name, content in contents.items()
        } == dict.fromkeys(contents, set())
        found = {name: single_hits(content, planted) for name, content in contents.items()}
        if not any(found.values()):
            return
    pytest.fail(f"four bytes of a value in {[name for name, values in found.items() if values]}")


def test_the_search_has_power(tmp_path):
    said, planted = _run(tmp_path, _commands()[2:3], leak=LEAK)
    contents = _contents(tmp_path, said)
    for name in ("text", "double"):
        assert hits(contents[f"logs/{name}"], planted) == {planted[7]}
    assert single_hits(contents["logs/single"], planted) == {planted[7]}
    assert hits(contents["s.toml"], planted) == set()


@pytest.mark.parametrize("value", ["73819264.918273", "498765432101"])
def test_each_form_is_found(value):
    number = float(value)
    forms = (value.encode(), struct.pack("<d", number), struct.pack("<f", number))
    for form, search in zip(forms, (hits, hits, single_hits), strict=True):
        assert search(bytes(9) + form + bytes(8), [value]) == {value}
        assert search(bytes(9) + form[:-1], [value]) == set()
