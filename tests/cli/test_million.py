"""A million rows of ten columns, in bounded time and memory."""

import subprocess
import sys
import time

import numpy as np
import pytest

from dpflows import DPFlow
from dpflows.models.architectures import Architecture

ROWS = 1_000_000


#: The peak is asked of the process itself: what its parent is told starts at the parent's own.
SCRIPT = """
import re, sys
from dpflows.cli.main import app, run
code = run(app, sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(peak[1], file=sys.stderr)
sys.exit(code)
"""


def measured(*words):
    """Seconds and peak gigabytes of one command."""
    began = time.monotonic()
    command = [sys.executable, "-c", SCRIPT, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began, int(done.stderr.split()[-1]) / 2**20


@pytest.mark.long
def test_a_million_rows_are_sampled_and_scored(tmp_path):
    rows = np.random.default_rng(1).normal(size=(2000, 10)).clip(-5, 5)
    shape = Architecture("maf", width=100, depth=2, blocks=5)
    model = tmp_path / "maf.dpflow"
    DPFlow(1.0, 1e-5, bounds=(-5, 5), architecture=shape, steps=3).fit(rows).save(model)
    table = tmp_path / "rows.parquet"
    seconds, gigabytes = measured("sample", model, "--rows", ROWS, "--output", table)
    print(f"sample: {seconds:.1f} s, {gigabytes:.2f} GB")
    assert seconds < 60
    assert gigabytes < 1
    seconds, gigabytes = measured("score", model, table, "--output", tmp_path / "scores.parquet")
    print(f"score: {seconds:.1f} s, {gigabytes:.2f} GB")
    assert seconds < 30
