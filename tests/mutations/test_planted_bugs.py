"""The ordinary tests notice every planted bug, and pass where none is planted.

A copy of the sources is changed, and the tests that are named beside the bug run on the
copy in a process of their own. A bug is caught when a test fails by what it asserts: an
import that breaks or an exception that nobody expected would prove nothing.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from figures import note
from mutations.planted import BUGS, Bug

ROOT = Path(__file__).parents[2]
SECONDS = 280
CHEAP = [name for name, bug in BUGS.items() if bug.is_cheap]
#: How a failed assertion begins in a report.
ASSERTED = ("AssertionError", "assert ", "Failed: DID NOT RAISE")


@dataclass(frozen=True)
class Verdict:
    """What became of the tests that ran."""

    passed: int
    failed: list[str]
    broken: list[str]


@pytest.fixture
def copy(tmp_path) -> Path:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def judged(copy: Path, *tests: str, seconds: int = SECONDS) -> Verdict:
    """Run tests of the copy on the copy's package, up to the first that fails."""
    report = copy / "report.xml"
    switches = ["-p", "no:cacheprovider", "-n", "0", "-x", f"--junitxml={report}", "-m", ""]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *switches, *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert report.exists(), done.stdout + done.stderr
    return _read(report)


def _read(report: Path) -> Verdict:
    cases = list(ElementTree.parse(report).iter("testcase"))
    said = [found.get("message", "") for case in cases for found in case.iter("failure")]
    errors = [found.get("message", "") for case in cases for found in case.iter("error")]
    unexpected = [line for line in said if not line.startswith(ASSERTED)]
    asserted = [line for line in said if line.startswith(ASSERTED)]
    return Verdict(len(cases) - len(said) - len(errors), asserted, errors + unexpected)


def is_caught(verdict: Verdict) -> bool:
    return bool(verdict.failed) and not verdict.broken


def _check(name: str, copy: Path) -> None:
    BUGS[name].plant(copy / "src" / "dpflows")
    verdict = judged(copy, *BUGS[name].tests)
    assert is_caught(verdict), verdict
    note("planted bugs caught", {name: True})


@pytest.mark.parametrize(
    "name", [CHEAP[0], *(pytest.param(name, marks=pytest.mark.long) for name in CHEAP[1:])]
)
def test_bugs_that_are_quickly_caught(name, copy):
    _check(name, copy)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in BUGS if name not in CHEAP])
def test_bugs_that_take_longer(name, copy):
    _check(name, copy)


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_without_a_bug_the_same_tests_pass(copy):
    tests = {test for bug in BUGS.values() for test in bug.tests}
    verdict = judged(copy, *sorted(tests), seconds=900)
    assert verdict.passed >= len(tests)
    assert (verdict.failed, verdict.broken) == ([], [])


def test_there_are_thirteen_and_each_fits_the_source(copy):
    """A change whose text is gone or stands twice is an error, not a bug that nobody sees."""
    assert len({name.split(":")[0] for name in BUGS}) == 13
    for bug in BUGS.values():
        source = (ROOT / "src" / "dpflows" / bug.file).read_text()
        assert source.count(bug.old) == 1, (bug.file, bug.old)


@pytest.mark.parametrize("old", ["no such line", "def "])
def test_a_change_that_does_not_fit_is_refused(copy, old):
    with pytest.raises(LookupError, match="exactly once"):
        Bug("files.py", old, "", ()).plant(copy / "src" / "dpflows")


@pytest.mark.parametrize(
    ("report", "caught"),
    [
        ('<testcase><failure message="assert 1 == 2"/></testcase>', True),
        ('<testcase><failure message="AssertionError: sums differ"/></testcase>', True),
        (
            '<testcase/><testcase><failure message="Failed: DID NOT RAISE InputError"/></testcase>',
            1,
        ),
        ("<testcase/>", False),
        ('<testcase><failure message="NameError: jnp"/></testcase>', False),
        ('<testcase><error message="collection failure"/></testcase>', False),
    ],
)
def test_only_a_failed_assertion_counts(report, caught, tmp_path):
    (tmp_path / "r.xml").write_text(f"<testsuites><testsuite>{report}</testsuite></testsuites>")
    assert is_caught(_read(tmp_path / "r.xml")) == bool(caught)
