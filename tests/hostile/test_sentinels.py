"""Values planted in cells are nowhere in what a charged job leaves, says or refuses with.

The command-line suite searches a job without a ledger, its compiled programs included.
This one adds the ledger, a kept checkpoint, ensembles, budgets and refusals. A value is
sought as text and as the eight bytes of its float64; neither is met by chance.
"""

import json
import os
import random
import secrets
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from cli.test_sentinels import SCHEMA, hits
from dpflows.cli.main import app, run
from dpflows.errors import InputError, unchained
from dpflows.table import Column, Schema, read_file, read_table
from figures import note

pl = pytest.importorskip("polars")

COUNT = 1_000
#: A job that keeps its checkpoint, which a finished run would remove.
JOB = """
import json, logging, sys
logging.basicConfig(level=logging.DEBUG)
from dpflows.cli.main import app, run
from dpflows.training.checkpoints import Checkpoints
Checkpoints.remove = lambda self: None
{leak}
for words in json.loads(sys.argv[1]):
    print(words, run(app, words), flush=True)
"""
CHARGED = "--ledger clinic.ledger --cap-epsilon 9 --cap-delta 1e-4 --debug"
SMALL = "--steps 3 --architecture nsf --batch-size 50 --checkpoint run.part"
COMMANDS = [
    f"fit t.csv --schema s.toml --epsilon 1 --delta 1e-6 --output m.dpflow {SMALL} {CHARGED}",
    f"fit damaged.csv --schema s.toml --epsilon 1 --delta 1e-6 --output n.dpflow {CHARGED}",
    "ensemble t.csv --schema s.toml --epsilon-per-query 0.5 --epsilon 2 --delta 1e-6 --parts 3 "
    f"--output e.dpflow {CHARGED}",
    "detect e.dpflow few.csv --output a.csv --ledger clinic.ledger --debug",
    "score m.dpflow damaged.csv --output g.csv --debug",
    "budget show clinic.ledger --debug",
    "budget history clinic.ledger --json --debug",
    "budget verify clinic.ledger --model m.dpflow --debug",
    "certificate m.dpflow --debug",
]
LEAK = """
from dpflows.privacy.ledger import Ledger
honest = Ledger.reserve
def careless(self, events, *, purpose, run=None):
    import pathlib
    cell = pathlib.Path("t.csv").read_text().split()[8].split(",")[0]
    return honest(self, events, purpose=f"{purpose} {cell}", run=run)
Ledger.reserve = careless
"""


def _planted() -> list[tuple[str, str]]:
    """Numbers of fourteen digits beside whole ones of twelve."""
    chance = random.Random(secrets.randbits(64))
    return [
        (f"{chance.uniform(1e7, 1e8):.5f}{chance.choice('123456789')}",
         str(chance.randrange(10**11, 10**12)))
        for _ in range(COUNT // 2)
    ]  # fmt: skip


def _write(folder: Path, cells: list[tuple[str, str]]) -> list[str]:
    lines = [f"{dose},{count}" for dose, count in cells]
    damaged = [*lines, f"{cells[0][0]}x,{cells[0][1]}", f"{cells[1][0]},{cells[1][1]}.5"]
    tables = {"t.csv": lines, "few.csv": lines[:2], "damaged.csv": damaged}
    for name, content in tables.items():
        (folder / name).write_text("\n".join(["dose,count", *content]) + "\n")
    (folder / "s.toml").write_text(SCHEMA)
    return [value for pair in cells for value in pair]


def _found(folder: Path, said: bytes, planted: list[str]) -> dict[str, set[str]]:
    inputs = {"t.csv", "few.csv", "damaged.csv"}
    files = [p for p in folder.rglob("*") if p.is_file() and p.name not in inputs]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: hits(content, planted) for name, content in (contents | {"said": said}).items()}


def _job(folder: Path, commands: list[str], leak: str = "") -> tuple[bytes, list[str]]:
    planted = _write(folder, _planted())
    (folder / "home").mkdir()
    own = {name: str(folder / "home") for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME")}
    environment = os.environ | own | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    words = json.dumps([line.split() for line in commands])
    script = [sys.executable, "-c", JOB.format(leak=leak), words]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, timeout=280)
    return done.stdout + done.stderr, planted


@pytest.mark.long
def test_no_planted_value_is_in_what_a_charged_job_leaves_or_says(tmp_path):
    said, planted = _job(tmp_path, COMMANDS)
    codes = [line[-1:] for line in said.splitlines() if line.startswith(b"[")]
    assert codes == [b"2" if "damaged" in line else b"0" for line in COMMANDS], said.decode()
    found = _found(tmp_path, said, planted)
    assert {"clinic.ledger", "m.dpflow", "run.part", "e.dpflow", "a.csv"} <= found.keys()
    note("planted values", {"values": COUNT, "places": sorted(found), "hits": 0})
    assert found == dict.fromkeys(found, set())


@pytest.mark.long
def test_a_ledger_that_keeps_a_cell_is_caught(tmp_path):
    said, planted = _job(tmp_path, COMMANDS[:1], leak=LEAK)
    assert _found(tmp_path, said, planted)["clinic.ledger"] == {planted[14]}


def test_no_planted_label_is_in_a_proposal_or_a_refusal(tmp_path, monkeypatch, capsys):
    """A thousand labels in cells and none in a schema, a message or a file that is left."""
    monkeypatch.chdir(tmp_path)
    labels = [f"person-{secrets.token_hex(6)}" for _ in range(COUNT)]
    lines = [f"{label},{i},{label}" for i, label in enumerate(labels)]
    (tmp_path / "t.csv").write_text("\n".join(["name,age,note", *lines]) + "\n")
    (tmp_path / "s.toml").write_text(SCHEMA)
    fit = ["fit", "t.csv", "--schema", "proposal.toml", "--epsilon", "1", "--output", "m.dpflow"]
    assert run(app, ["schema", "t.csv", "--output", "proposal.toml"]) == 0
    assert run(app, fit) == 2
    assert run(app, [*fit[:3], "s.toml", *fit[4:]]) == 2
    said = "".join(capsys.readouterr()) + _refusals(labels, tmp_path)
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.name != "t.csv")
    assert [label for label in labels if label in said or label.encode() in left] == []


def _refusals(labels: list[str], folder: Path) -> str:
    """What readers say of tables in which each label in turn stands where it must not."""
    said = []
    schema = Schema.read(folder / "s.toml")
    for label in labels:
        (folder / "u.csv").write_text(f"dose,count\n1.5,2\n{label},3\n")
        with pytest.raises(InputError) as caught:
            read_file(folder / "u.csv", schema)
        said.append(_everything(caught.value))
    (folder / "u.csv").unlink()
    return "\n".join(said)


def _everything(error: BaseException | None) -> str:
    """What an error and all that it arose from say, hidden or not, to a reader or a program."""
    if error is None:
        return ""
    own = [str(error), repr(error), repr(vars(error)), repr(error.args)]
    shown = traceback.format_exception(error)
    return "\n".join([*own, *shown, _everything(error.__context__), _everything(error.__cause__)])


#: Tables that a planted value makes unreadable, each in another part of the reader.
UNREADABLE = {
    "a number": lambda v: pd.DataFrame({"a": [v]}),
    "a number among objects": lambda v: pd.DataFrame({"a": [1, v, b"x"]}),
    "words in an array": lambda v: np.array([[v]]),
    "a frame of polars": lambda v: pl.DataFrame({"a": [v]}),
    "an arrow table": lambda v: pa.table({"a": [v]}),
    "a type": lambda v: pa.table({"a": [[v]]}),
    "bytes": lambda v: pa.table({"a": [v.encode()]}),
    "a surrogate": lambda v: np.array([[v + chr(0xD800)]], dtype=object),
    "a line": lambda v: f"a\n{v}\n".encode(),
    "bytes of a line": lambda v: f"a\n{v}".encode() + b"\xff\n",
    "a quote": lambda v: f'a\n"{v}\n'.encode(),
    "a row": lambda v: f"a\n{v},2\n".encode(),
    "a name": lambda v: f"{v}\n1\n".encode(),
    "a bad name": lambda v: f"{v}".encode() + b"\xff\n1\n",
}
KINDS = ("continuous", "integer", "boolean", "date")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", UNREADABLE)
def test_no_planted_cell_clings_to_an_error(way, kind, tmp_path):
    label = f"person-{secrets.token_hex(6)}"
    source = UNREADABLE[way](label)
    if isinstance(source, bytes):
        (tmp_path / "u.csv").write_bytes(source)
        source = tmp_path / "u.csv"
    with pytest.raises(InputError) as caught:
        read_table(source, Schema((Column("a", kind),)))
    assert label not in _everything(caught.value)


def test_a_cell_that_clings_to_an_error_is_found():
    def careless():
        try:
            float("person-0")
        except ValueError:
            raise InputError("not a number") from None

    with pytest.raises(InputError) as caught:
        careless()
    assert "person-0" in _everything(caught.value)
    with pytest.raises(InputError) as caught:
        unchained(careless)()
    assert "person-0" not in _everything(caught.value)
