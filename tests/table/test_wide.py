"""Wide tables are read in a time that grows with their width, and no faster."""

import ast
import gc
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpflows.errors import InputError
from dpflows.table import Schema, read_table
from figures import note

ROWS = 10


def _file(folder, columns: int, rows: int):
    path = folder / f"{columns}.csv"
    line = ",".join(["0.5"] * columns)
    names = ",".join(f"c{i}" for i in range(columns))
    path.write_text("\n".join([names, *[line] * rows]) + "\n")
    return path


def _seconds(work) -> float:
    """Of this process, because other work on the machine is none of it.

    Without garbage collection, which would visit all that other tests have left behind.
    """
    gc.disable()
    start = time.process_time()
    work()
    taken = time.process_time() - start
    gc.enable()
    return taken


def _works(folder, columns: int, rows: int):
    path = _file(folder, columns, rows)
    names = [f"c{i}" for i in range(columns)]
    schema = Schema.from_bounds(np.zeros(columns), np.ones(columns), names)
    frame = pd.DataFrame(np.full((rows, columns), 0.5), columns=names)
    return {
        "a schema from bounds": lambda: Schema.from_bounds(np.zeros(columns), 1, names),
        "a text file": lambda: read_table(path, schema),
        "a text file without a schema": lambda: read_table(path),
        "a frame": lambda: read_table(frame, schema),
        "an array": lambda: read_table(frame.to_numpy(), schema),
        "a proposal": lambda: Schema.from_frame(path),
        "a schema file": lambda: _written(folder, schema),
    }


def _written(folder, schema) -> None:
    schema.write(folder / "s.toml")
    Schema.read(folder / "s.toml")


def test_four_times_as_many_columns_take_about_four_times_as_long(tmp_path):
    """A quadratic reader takes sixteen times as long; a linear one about four times."""
    small, large = (_works(tmp_path, columns, ROWS) for columns in (500, 2_000))
    for name, work in small.items():
        work()
        before, after = (min(_seconds(each) for _ in range(2)) for each in (work, large[name]))
        assert after < 8 * before + 0.2, name


TOO_WIDE = {
    "a file": lambda folder: read_table(_file(folder, 100_000, 3)),
    "an array": lambda folder: read_table(np.zeros((2, 100_000))),
    "bounds": lambda folder: Schema.from_bounds(np.zeros(100_000), 1),
}


@pytest.mark.parametrize("source", TOO_WIDE)
def test_a_table_that_is_too_wide_is_refused(source, tmp_path):
    with pytest.raises(InputError, match="at most 50000 columns, got 100000; keep those"):
        TOO_WIDE[source](tmp_path)


@pytest.mark.long
def test_twenty_thousand_columns_of_a_hundred_rows(tmp_path):
    """In a process of its own, as the run-time type checker of the tests doubles the time."""
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from table.test_wide import _seconds, _works\n"
        "works = _works(Path(sys.argv[1]), 20_000, 100)\n"
        "print({name: round(_seconds(work), 2) for name, work in works.items()})"
    )
    words = [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parents[1])]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    taken = ast.literal_eval(found)
    note("20,000 columns x 100 rows, seconds of the process", taken)
    assert max(taken.values()) < 5
