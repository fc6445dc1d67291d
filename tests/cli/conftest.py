"""One small table, its schema and a model of it, for all verbs."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dpflows.cli.main import app, run

SCHEMA = """
[columns.age]
kind = "integer"
min = 0
max = 120

[columns.dose]
kind = "continuous"
min = 0
max = 9
"""
SMALL = ["--steps", "3", "--architecture", "nsf", "--batch-size", "50"]


@dataclass(frozen=True)
class Job:
    """The files of a small job."""

    folder: Path
    rows: Path
    schema: Path
    model: Path
    said: str
    complained: str


@pytest.fixture(scope="session")
def job(tmp_path_factory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    rows, schema, model = folder / "t.csv", folder / "s.toml", folder / "m.dpflow"
    chance = np.random.default_rng()
    cells = np.column_stack([chance.integers(0, 100, 300), chance.uniform(0, 9, 300)])
    np.savetxt(rows, cells, ("%d", "%.9f"), ",", header="age,dose", comments="")
    schema.write_text(SCHEMA)
    model.write_bytes(b"old")
    words = [
        "fit",
        rows,
        "--schema",
        schema,
        "--epsilon",
        "1",
        "--output",
        model,
        *SMALL,
        "--force",
    ]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run(app, [str(word) for word in words]) == 0
    return Job(folder, rows, schema, model, out.getvalue(), err.getvalue())


@pytest.fixture
def dpflows(capsys):
    """Run a command; gives its exit code, stdout and stderr."""

    def command(*words):
        capsys.readouterr()
        code = run(app, [str(word) for word in words])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def refused(dpflows):
    """Run a command that must fail with a code, 2 by default, and one line; gives the line."""

    def command(*words, code: int = 2) -> str:
        found, out, err = dpflows(*words)
        assert (found, out, err.count("\n")) == (code, "", 1), (found, out, err)
        assert err.startswith("error: ")
        return err

    return command
