"""What must not be in the repository, and what must."""

import ast
import importlib.metadata
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

#: What a source file must not contain, with a line that each rule must catch.
FORBIDDEN = {
    "code-executing formats": (
        r"^\s*(import|from)\s+(pickle|cPickle|dill|cloudpickle|shelve|marshal|joblib)\b"
        r"|allow_pickle\s*=\s*True",
        "import pickle",
    ),
    "fixed seeds": (
        r"default_rng\(\s*\d|random\.(seed|PRNGKey|key)\(\s*\d|random_state\s*=\s*\d"
        r"|RandomState\(\s*\d|\bseed\s*(:\s*int\s*)?=\s*\d",
        "rng = np.random.default_rng(0)",
    ),
    "errors from assert": (r"^\s*assert\b", "    assert rows > 0"),
}

#: What no tracked file may contain.
PRIVATE = {
    "machine paths": (r"(?<![\w.])/(work|home|root|Users|tmp|mnt)/\w", "see /home/me/data"),
    "package-index addresses": (
        r"--(extra-)?index[-]url|--find-links|\bindex[-]url\s*=|https?://[^\s)\"']*"
        r"(/simple\b|pypi|artifactory|nexus)",
        "fetched from https://index.example/simple",
    ),
}


def _tracked() -> Iterator[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path != Path(__file__) and path.suffix not in {".png", ".dpflow"}:
            yield path


def _hits(pattern: str, paths: Iterator[Path] | list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(pattern, line) and ">>>" not in line
    ]


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_sources_are_free_of(rule):
    assert _hits(FORBIDDEN[rule][0], SOURCES) == []


@pytest.mark.parametrize("rule", PRIVATE)
def test_the_repository_is_free_of(rule):
    assert _hits(PRIVATE[rule][0], _tracked()) == []


@pytest.mark.parametrize(("pattern", "example"), [*FORBIDDEN.values(), *PRIVATE.values()])
def test_the_searches_have_power(pattern, example):
    assert re.search(pattern, example)


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    matches = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)", line) for line in lines]
    assert all(matches), "constraints.txt must hold lines of the form name==version only"
    return {canonicalize_name(m[1]): m[2] for m in matches if m}


def _needed(requirement: Requirement, seen: set[str]) -> set[str]:
    """The distributions that a requirement brings in on this machine."""
    name = canonicalize_name(requirement.name)
    extras = requirement.extras or {""}
    try:
        declared = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return seen
    if name in seen and not requirement.extras:
        return seen
    seen.add(name)
    for inner in map(Requirement, declared):
        if not inner.marker or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
            _needed(inner, seen)
    return seen


def test_every_distribution_the_package_needs_is_pinned_at_the_installed_version():
    needed = _needed(Requirement("dpflows[check,docs,test]"), set()) - {"dpflows"}
    pins = _pins()
    assert len(needed) > 40
    installed = {name: importlib.metadata.version(name) for name in needed}
    assert {name: pins.get(name) for name in needed} == installed


def test_nothing_is_pinned_that_is_not_needed():
    needed = _needed(Requirement("dpflows[check,docs,test]"), set())
    assert set(_pins()) <= needed


def test_each_dependency_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = sum(project["optional-dependencies"].values(), [])
    explained = (ROOT / "docs" / "dependencies.md").read_text()
    names = [Requirement(line).name for line in project["dependencies"] + optional]
    assert [name for name in names if f"`{name}`" not in explained] == []


def _functions() -> Iterator[tuple[str, int]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.name}", _body_lines(node)


def _body_lines(function: ast.FunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_and_files_stay_short():
    lengths = dict(_functions())
    assert {name: n for name, n in lengths.items() if n > 40} == {}
    assert sorted(lengths.values())[len(lengths) // 2] <= 6
    lines = {str(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: n for name, n in lines.items() if n > 800} == {}


def test_there_is_no_room_for_odds_and_ends():
    assert [path for path in SOURCES if path.stem in {"utils", "util", "helpers", "misc"}] == []


def test_the_suite_finds_every_test_file():
    """A file that pytest does not collect would pass forever."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    strays = [n for n in names if not n.startswith(("test_", "conftest", "__init__"))]
    for stray in strays:
        text = next((ROOT / "tests").rglob(stray)).read_text()
        assert not re.search(r"^def test_|^class Test", text, re.MULTILINE)
