"""Atheris, which looks for ways through the loader, finds none that ends badly."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from figures import note
from hostile.making import FILES

PROGRAM = Path(__file__).with_name("fuzz_loader.py")
SECONDS = 60

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None,
        reason="atheris is not installed: model files are mutated without its guidance only",
    ),
]


def _run(folder: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    for path in FILES.glob("*.dpflow"):
        shutil.copy(path, folder)
    words = [sys.executable, str(PROGRAM), str(folder), str(seconds)]
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds + 240)


@pytest.mark.timeout(600)
def test_the_loader_withstands_guided_mutations(tmp_path):
    done = _run(tmp_path, SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    count = int(re.search(r"number_of_executed_units: *(\d+)", done.stderr)[1])
    note("guided mutations of model files", {"cases": count, "seconds": SECONDS, "faults": 0})
    assert count > 100
    assert list(tmp_path.glob("found-*")) == []
