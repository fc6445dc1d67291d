"""How the source is organised: sizes, imports, and what one fit passes through.

    python benchmarks/house.py                         # this tree, beside the figures of 0.1
    python benchmarks/house.py --source TREE --save F  # another tree, a checkout of an old release

The figures of 0.1 in ``house_of_0_1.json`` were made by the second command.
"""

import argparse
import ast
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BEFORE = HERE / "house_of_0_1.json"
KINDS = {"continuous", "integer", "categorical", "boolean", "date"}
SHARED_LINES = 6

#: One fit each of a numeric and of a mixed table: few steps, no private data.
FIT = """
import collections, importlib, json, pathlib, runpy, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
source, what, folder = sys.argv[1:4]
passed, hops, reads, deepest = set(), 0, 0, 0
modules = {}

def module_of(frame):
    name = frame.f_code.co_filename
    if name not in modules:
        modules[name] = name[len(source) + 1 :] if name.startswith(source) else None
    return modules[name]

def watch(frame, event, _):
    global hops, reads
    if event != "call":
        return
    here = module_of(frame)
    if here is None or frame.f_code.co_name == "<module>":
        return
    passed.add(here)
    caller = frame.f_back
    while caller is not None and module_of(caller) is None:
        caller = caller.f_back
    hops += caller is not None and module_of(caller) != here
    reads += frame.f_code.co_name == "read" and frame.f_code.co_qualname == "Schema.read"

rng = np.random.default_rng()
kind, door = what.split("-")
schema, rows = pathlib.Path(folder, "s.toml"), pathlib.Path(folder, "rows.csv")
numeric = [f'[columns.x{i}]\\nkind = "continuous"\\nmin = -9.0\\nmax = 9.0\\n' for i in range(3)]
label = '[columns.ward]\\nkind = "categorical"\\ncategories = ["a", "b"]\\n'
schema.write_text("\\n".join(numeric + [label] * (kind == "mixed")))
names = ["x0", "x1", "x2"] + ["ward"] * (kind == "mixed")
lines = [",".join(names)]
for row in rng.normal(size=(400, 3)):
    cells = [f"{value:.3f}" for value in row] + [rng.choice(["a", "b"])] * (kind == "mixed")
    lines.append(",".join(cells))
rows.write_text("\\n".join(lines) + "\\n")
few = {"steps": 3, "batch_size": 50}
for path in sorted(pathlib.Path(source).rglob("*.py")):
    name = ".".join(["dpflows", *path.relative_to(source).with_suffix("").parts])
    # what import runs is not part of the fit, and parts of baselines run elsewhere
    if "worker" not in name and not name.endswith("__main__"):
        importlib.import_module(name.removesuffix(".__init__"))
if door == "api":
    import dpflows
    default = getattr(dpflows, "DPAutoregressive" if kind == "mixed" else "DPFlow", dpflows.DPFlow)
    model = default(1.0, 1e-4, schema=schema, **few)
    sys.setprofile(watch)
    model.fit(rows)
    sys.setprofile(None)
else:
    try:
        from dpflows.__main__ import main
    except ModuleNotFoundError:
        from dpflows.cli.main import main
    words = f"fit {rows} --schema {schema} --epsilon 1 --delta 1e-4 --steps 3 --batch-size 50"
    is_new = pathlib.Path(source, "estimators", "autoregressive.py").exists()
    model = f" --model {'autoregressive' if kind == 'mixed' else 'flow'}" if is_new else ""
    sys.argv = ["dpflows", *f"{words}{model} --output {folder}/m.dpflow".split()]
    sys.setprofile(watch)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    sys.setprofile(None)
print(json.dumps({"modules": len(passed), "hops": hops, "reads": reads, "passed": sorted(passed)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, default=HERE.parent, help="a checkout")
    parser.add_argument("--save", type=pathlib.Path, help="write the figures to this file")
    parser.add_argument("--verbose", action="store_true", help="name what is counted")
    given = parser.parse_args()
    figures = measure(given.source.resolve() / "src" / "dpflows", verbose=given.verbose)
    if given.save:
        given.save.write_text(json.dumps(figures, indent=1) + "\n")
    before = json.loads(BEFORE.read_text()) if BEFORE.exists() else {}
    print(f"{'':52}{'0.1':>8}{'now':>8}")
    for name, value in figures.items():
        print(f"{name:52}{before.get(name, '-'):>8}{value:>8}")


def measure(source: pathlib.Path, *, verbose: bool = False) -> dict[str, int]:
    """Every figure by name."""
    files = sorted(source.rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in files}
    importers = importers_of(trees, source)
    single = {name for name, who in importers.items() if len(who) == 1}
    branches = [f"{p}:{at}" for p, tree in trees.items() for at in kind_branches(tree)]
    plans = [name for tree in trees.values() for name in plan_like(tree)]
    if verbose:
        for title, names in (("imported once", single), ("kind", branches), ("plans", plans)):
            print(title, *sorted(str(name) for name in names), sep="\n  ")
    found = {
        "modules": len(files),
        "modules imported by exactly one other": len(single),
        "branches on a column's kind": len(branches),
        "classes that list events": len(plans),
        "pairs of places that share six lines": shared_lines(files),
        "import cycles inside packages": cycles(trees, source),
    }
    for what in ("numeric-api", "mixed-api", "numeric-cli", "mixed-cli"):
        one = fitted(source, what)
        if verbose:
            print(what, *one["passed"], sep="\n  ")
        found[f"modules a fit passes ({what})"] = one["modules"]
        found[f"calls from module to module ({what})"] = one["hops"]
        if what.endswith("api"):
            found[f"times the schema file is read ({what})"] = one["reads"]
    return found


def fitted(source: pathlib.Path, what: str) -> dict[str, int]:
    """What one fit in a process of its own passes through."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", FIT, str(source), what, folder],
            env=os.environ | {"PYTHONPATH": str(source.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def name_of(path: pathlib.Path, source: pathlib.Path) -> str:
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, known: set[str]) -> set[str]:
    """The modules of the package that a module imports, at any depth of its code."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & known) or {node.module}
    return found & known


def importers_of(
    trees: dict[pathlib.Path, ast.Module], source: pathlib.Path
) -> dict[str, set[str]]:
    known = {name_of(path, source) for path in trees}
    importers = collections.defaultdict(set)
    for path, tree in trees.items():
        for name in imports_of(tree, known):
            importers[name].add(name_of(path, source))
    return importers


def cycles(trees: dict[pathlib.Path, ast.Module], source: pathlib.Path) -> int:
    """How many groups of modules import each other, package files left out."""
    plain = {p: t for p, t in trees.items() if p.name != "__init__.py"}
    known = {name_of(path, source) for path in plain}
    graph = {name_of(path, source): imports_of(tree, known) for path, tree in plain.items()}
    reach = {name: _reached(graph, name) for name in graph}
    groups = {frozenset(b for b in reach[a] if a in reach[b]) for a in graph if a in reach[a]}
    return len(groups)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(graph[name])
    return seen


def kind_branches(tree: ast.AST) -> list[int]:
    """Lines that compare a column's kind with a name, or look something up by it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _is_kind(node.left):
            texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            if texts & KINDS or names & {"BOUNDED_KINDS", "KINDS"}:
                found.append(node.lineno)
        elif _looked_up(node) is not None and _is_kind(_looked_up(node)):
            found.append(node.lineno)
    return found


def _looked_up(node: ast.AST) -> ast.AST | None:
    """The key of ``table[key]`` or ``table.get(key, ...)``."""
    if isinstance(node, ast.Subscript):
        return node.slice
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.args[0] if is_method and node.func.attr == "get" and node.args else None


def _is_kind(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "kind"
    return isinstance(node, ast.Name) and node.id == "kind"


def plan_like(tree: ast.AST) -> list[str]:
    """Classes that say what will be released: they have ``events`` or ``event``."""
    wanted = {"events", "event", "event_for", "events_by"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            fields = {
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            }
            if (names | fields) & wanted:
                found.append(node.name)
    return found


def shared_lines(files: list[pathlib.Path]) -> int:
    """Pairs of places with the same six lines of code, imports included, runs counted once."""
    places = collections.defaultdict(list)
    for number, path in enumerate(files):
        lines = [line.strip() for line in path.read_text().splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        for at in range(len(lines) - SHARED_LINES + 1):
            places["\n".join(lines[at : at + SHARED_LINES])].append((number, at))
    pairs = {
        (a, b)
        for same in places.values()
        for i, a in enumerate(same)
        for b in same[i + 1 :]
        if a[0] != b[0] or b[1] - a[1] >= SHARED_LINES
    }
    starts = {(a, b) for a, b in pairs if ((a[0], a[1] - 1), (b[0], b[1] - 1)) not in pairs}
    return len(starts)


if __name__ == "__main__":
    main()
