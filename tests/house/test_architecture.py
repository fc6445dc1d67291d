"""The page of the architecture shows the package as it is."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "dpflows"


@pytest.fixture(scope="module")
def walk():
    """The program that makes the figure."""
    found = importlib.util.spec_from_file_location("walk", ROOT / "benchmarks" / "walk.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_the_walk_of_a_fit_is_what_runs(walk, tmp_path):
    assert walk.with_figure(PAGE, walk.figure(tmp_path)) == PAGE


def test_a_planted_stage_would_be_noticed(walk):
    planted = PAGE.replace("EncodeRows.run", "ReadRows.run")
    shown = PAGE.split(walk.BEGIN)[1].split(walk.END)[0].strip().strip("`").removeprefix("text\n")
    assert planted != PAGE
    assert walk.with_figure(planted, shown.rstrip("\n")) != planted


def _rows() -> dict[str, set[str]]:
    """The modules that the table of packages names, by package."""
    table = PAGE.split("## Packages")[1].split("## Layers")[0]
    lines = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    return {
        package: set(re.findall(r"`(\w+)`", cells[2]))
        for cells in lines
        for package in re.findall(r"`([\w.]+)`", cells[0])
    }


def test_every_module_has_its_place_in_the_table_of_packages():
    rows = _rows()
    for path in SOURCE.rglob("*.py"):
        if path.stem in ("__init__", "__main__"):
            continue
        *package, name = path.relative_to(SOURCE).with_suffix("").parts
        assert name in rows[".".join(package)] if package else name in rows, path


def test_the_table_names_no_module_that_is_gone():
    for package, modules in _rows().items():
        folder = SOURCE / package.replace(".", "/")
        assert {name for name in modules if not (folder / f"{name}.py").exists()} == set()


def test_the_layers_are_those_of_the_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (one["layers"] for one in contract["contracts"] if one["type"] == "layers")
    wanted = [re.sub(r"dpflows\.|[()]", "", layer) for layer in layers]
    shown = PAGE.split("## Layers")[1].split("```text\n")[1].split("\n```")[0].splitlines()
    assert shown == wanted
