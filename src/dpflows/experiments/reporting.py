"""From measurements to a table, in Markdown for readers and in JSON for programs."""

import json
import math
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dpflows
from dpflows.evaluation.curves import Curve
from dpflows.experiments.running import Measurement
from dpflows.files import write_atomically

_LIBRARIES = ("jax", "flowjax", "equinox", "optax", "dp-accounting", "opendp", "scikit-learn")
_KEY = ("dataset", "method", "epsilon", "delta", "accountant", "measure")


class Provenance(NamedTuple):
    """How a table came about."""

    command: str
    machine: str
    versions: dict[str, str]


def provenance(command: str) -> Provenance:
    """Of a table made here and now; says what the machine is, not which.

    Example:
        >>> "cores" in provenance("dpflows reproduce half-moons").machine
        True
    """
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    versions = {"dpflows": dpflows.__version__}
    return Provenance(command, machine, versions | {n: metadata.version(n) for n in _LIBRARIES})


def cells(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Means and deviations over folds, in the order in which they were asked for.

    Example:
        >>> one = Measurement(dataset="power", method="ours", epsilon=1.0, delta=1e-5,
        ...     accountant="pld", fold=1, measure="log-likelihood", value=2.0)
        >>> cells([one, one])[0]["mean"]
        2.0
    """
    groups: dict[tuple[Any, ...], list[Measurement]] = {}
    for figure in found:
        groups.setdefault(tuple(getattr(figure, name) for name in _KEY), []).append(figure)
    return [dict(zip(_KEY, key, strict=True)) | _summary(group) for key, group in groups.items()]


def _summary(group: Sequence[Measurement]) -> dict[str, Any]:
    values = np.array([figure.value for figure in group])
    first = group[0]
    return {
        "mean": round(float(values.mean()), 4),
        "sd": round(float(values.std()), 4),
        "folds": len(group),
        "paper": first.paper,
        "seconds": round(float(np.mean([figure.seconds for figure in group])), 1),
        "proven": _rounded(first.proven),
        "replace_one": _rounded(first.replace_one),
    }


def curves_of(found: Sequence[Measurement], measure: str | None = None) -> list[Curve]:
    """One curve per method and accountant, and one per curve of the paper."""
    chosen = [cell for cell in cells(found) if measure in (None, cell["measure"])]
    names = dict.fromkeys((cell["method"], cell["accountant"]) for cell in chosen)
    curves = []
    for method, accountant in names:
        mine = [c for c in chosen if (c["method"], c["accountant"]) == (method, accountant)]
        curves.append(_curve(_label(method, accountant), mine))
        if not method.startswith("ours"):
            printed = [c | {"mean": c["paper"], "sd": 0.0} for c in mine if c["paper"] is not None]
            curves.append(_curve(f"{_label(method, accountant)}, in print", printed))
    return [curve for curve in curves if curve.means]


def _curve(label: str, mine: Sequence[dict[str, Any]]) -> Curve:
    epsilons = [math.inf if c["epsilon"] is None else c["epsilon"] for c in mine]
    return Curve(label, epsilons, [c["mean"] for c in mine], [c["sd"] for c in mine])


def _label(method: str, accountant: str) -> str:
    return method if accountant in ("pld", "none") else f"{method} ({accountant})"


def write_tables(
    folder: Path,
    name: str,
    title: str,
    found: Sequence[Measurement],
    made: Provenance,
    pictures: Sequence[Path] = (),
) -> list[Path]:
    """Write ``NAME.json`` and ``NAME.md``; the latter shows pictures of the same folder."""
    document = {"cells": cells(found), "experiment": name, **made._asdict()}
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    texts = [json.dumps(document, indent=2) + "\n", markdown(title, found, made, pictures)]
    for path, text in zip(paths, texts, strict=True):
        with write_atomically(path) as file:
            file.write(text.encode())
    return paths


class Sheet(NamedTuple):
    """A table for readers: methods down, budgets across."""

    caption: str
    head: list[str]
    lines: list[list[str]]


def sheets(found: Sequence[Measurement]) -> list[Sheet]:
    """One table per measure; where nothing depends on a budget, one with measures down.

    Example:
        >>> one = Measurement(dataset="power", method="ours", epsilon=1.0, delta=1e-5,
        ...     accountant="pld", fold=1, measure="log-likelihood", value=2.0, paper=-2.0)
        >>> sheets([one])[0].lines
        [['ours', '2.00 (paper -2.00)', '0.0']]
    """
    every = cells(found)
    if all(cell["epsilon"] is None for cell in every):
        return [_overview(every)]
    measures = dict.fromkeys(cell["measure"] for cell in every)
    return [_sheet(m, [c for c in every if c["measure"] == m]) for m in measures]


def _overview(every: Sequence[dict[str, Any]]) -> Sheet:
    methods = list(dict.fromkeys(cell["method"] for cell in every))
    figures = {(c["measure"], c["method"]): _three_digits(c["mean"]) for c in every}
    measures = dict.fromkeys(cell["measure"] for cell in every)
    lines = [[m, *(figures.get((m, method), "") for method in methods)] for m in measures]
    return Sheet("measures", ["", *methods], lines)


def _sheet(caption: str, mine: Sequence[dict[str, Any]]) -> Sheet:
    budgets = list(dict.fromkeys(c["epsilon"] for c in mine if c["epsilon"] is not None))
    names = dict.fromkeys((c["dataset"], c["method"], c["accountant"]) for c in mine)
    several = len({dataset for dataset, _, _ in names}) > 1
    lines = []
    for name in names:
        own = [c for c in mine if (c["dataset"], c["method"], c["accountant"]) == name]
        seconds = f"{np.mean([c['seconds'] for c in own]):.1f}"
        label = f"{name[0]}: " if several else ""
        lines.append([label + _label(*name[1:]), *(_shown(own, b) for b in budgets), seconds])
    return Sheet(caption, ["method", *(f"epsilon {b:g}" for b in budgets), "seconds"], lines)


def _shown(own: Sequence[dict[str, Any]], budget: float) -> str:
    """The figure at a budget; one without privacy stands at all of them."""
    matches = [c for c in own if c["epsilon"] in (budget, None)]
    if not matches:
        return ""
    cell = matches[0]
    digits = 2 if abs(cell["mean"]) >= 1 else 3
    spread = f" +- {cell['sd']:.{digits}f}" if cell["folds"] > 1 else ""
    paper = "" if cell["paper"] is None else f" (paper {cell['paper']:.2f})"
    return f"{cell['mean']:.{digits}f}{spread}{paper}"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def markdown(
    title: str, found: Sequence[Measurement], made: Provenance, pictures: Sequence[Path] = ()
) -> str:
    """The tables as Markdown, pictures, every cell with its costs, and how it was made."""
    parts = [f"# {title}", ""]
    for sheet in sheets(found):
        parts += [f"**{sheet.caption}**, mean and standard deviation over folds", ""]
        parts += [_joined(sheet.head), _joined(["---"] * len(sheet.head))]
        parts += [*map(_joined, sheet.lines), ""]
    for path in pictures:
        parts += [f"![{path.stem}]({path.name})", ""]
    parts += ["## Every cell", "", *_HEAD, *map(_line, cells(found)), ""]
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    parts += [f"Made by `{made.command}` on {made.machine}; {versions}.", "", _LEGEND, ""]
    return "\n".join(parts)


_HEAD = [
    "| data | method | accountant | measure | epsilon | mean | sd | paper | difference | folds "
    "| seconds | proven epsilon | replace-one |",
    "|" + " --- |" * 13,
]
_LEGEND = (
    "`epsilon` is what the row's own accountant states. `proven epsilon` is a bound for the same "
    "run when a row is blanked out, `replace-one` when it is exchanged for any other; a dash "
    "means that nothing is proven. `ours` pays for everything it learns from the rows, "
    "preprocessing included; `paper-recipe` and `dp-mog` scale columns by the rows' own moments "
    "or largest norm, unpaid, as their originals do. `paper` beside `ours` is the paper's best "
    "private figure."
)


def _line(cell: dict[str, Any]) -> str:
    paper = cell["paper"]
    words = [cell[name] for name in ("dataset", "method", "accountant", "measure")]
    return _joined(
        [
            *words,
            _number(cell["epsilon"], "g", "none"),
            f"{cell['mean']:.3f}",
            f"{cell['sd']:.3f}",
            _number(paper, ".2f"),
            _number(None if paper is None else cell["mean"] - paper, "+.2f"),
            cell["folds"],
            cell["seconds"],
            _number(cell["proven"], ".3g"),
            _number(cell["replace_one"], ".3g"),
        ]
    )


def _joined(entries: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, entries)) + " |"


def _number(value: float | None, form: str, missing: str = "-") -> str:
    return missing if value is None else format(value, form)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
