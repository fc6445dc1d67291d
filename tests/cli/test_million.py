"""A million rows of ten columns, in bounded time and memory."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from dpflows import DPFlow
from dpflows.flows.architectures import Architecture

ROWS = 1_000_000


def measured(*words):
    """Seconds and peak gigabytes of one command."""
    began = time.monotonic()
    command = [sys.executable, "-m", "dpflows.cli.main", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said = child.stderr.read()
    assert child.returncode == 0, said
    return time.monotonic() - began, usage.ru_maxrss / 2**20


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
