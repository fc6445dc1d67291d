"""Running experiments: jobs in parallel, resumable, with shared models and result tables.

A model costs seconds to minutes, a measurement of it next to nothing; so a model is fitted
once per data set, method, budget and fold, and reused by every later experiment. A job's
measurements are written as soon as it ends; a run that was killed reads them and does only the
rest. Results are written as tables in Markdown and in JSON.
"""

import abc
import dataclasses
import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

import dpflows
from dpflows.estimators.charging import untracked
from dpflows.estimators.persistence import load
from dpflows.evaluation.plots import Curve
from dpflows.experiments.data import RealTable, read_real
from dpflows.experiments.methods import METHODS, Setting
from dpflows.files import write_atomically


class Kept(NamedTuple):
    """A fitted model, what it claims, and how long the fit took."""

    setting: Setting
    model: Any
    seconds: float


@final
@dataclasses.dataclass(frozen=True)
class Workspace:
    """The folders of an experiment.

    Attributes:
        data: The folder of the real tables.
        output: The folder of journals, models, tables and pictures.
    """

    data: Path
    output: Path

    def table(self, dataset: str) -> RealTable:
        """The rows of a data set."""
        return read_real(dataset, self.data)

    def models(self, dataset: str, method: str, fold: int, epsilons: Sequence[float]) -> list[Kept]:
        """The models of a method, fitted now or before."""
        wanted = METHODS[method].settings(dataset, epsilons)
        missing = [s for s in wanted if not self._path(dataset, method, fold, s).exists()]
        if missing:
            self._fit(dataset, method, fold, missing)
        return [self._kept(dataset, method, fold, setting) for setting in wanted]

    def _fit(self, dataset: str, method: str, fold: int, settings: Sequence[Setting]) -> None:
        table = self.table(dataset)
        for setting, model, seconds in METHODS[method].fit(dataset, table, fold, settings):
            path = self._path(dataset, method, fold, setting)
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(path.with_suffix(".json")) as file:
                file.write(json.dumps({"seconds": round(seconds, 2)}).encode())
            # two runs that miss the same model may both fit it
            model.save(path, overwrite=True)

    def _kept(self, dataset: str, method: str, fold: int, setting: Setting) -> Kept:
        path = self._path(dataset, method, fold, setting)
        timing = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Kept(setting, load(path), float(timing["seconds"]))

    def _path(self, dataset: str, method: str, fold: int, setting: Setting) -> Path:
        name = f"{method}-{setting.accountant}-{setting.epsilon:g}-{fold}.dpflow"
        return self.output / "models" / dataset / name


#: As many jobs at once as this process may use cores.
EVERY_CORE = -1
#: Called with the jobs done, their number, and the one that just ended, if any.
Progress = Callable[[int, int, "Job | None"], None]


@final
@dataclasses.dataclass(frozen=True)
class Job:
    """A part of an experiment that is measured at once.

    Example:
        >>> Job("life-science", "ours", 1, (0.5, 1.0)).key
        'life-science/ours/1/0.5+1'
    """

    dataset: str
    method: str
    fold: int
    epsilons: tuple[float, ...]

    @property
    def key(self) -> str:
        """Its unique name within the experiment."""
        epsilons = "+".join(f"{epsilon:g}" for epsilon in self.epsilons)
        return f"{self.dataset}/{self.method}/{self.fold}/{epsilons}"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """One figure.

    Attributes:
        dataset: Whose rows.
        method: What was fitted.
        epsilon: As the method's accountant states it; None without privacy.
        delta: Beside it.
        accountant: The accountant.
        fold: Which rows were kept for the test.
        measure: What the figure is, for example ``log-likelihood``.
        value: The figure.
        proven: The epsilon that is proven for the same run under zero-out.
        replace_one: The same under replace-one.
        paper: The figure as published, if there is one.
        seconds: What the fit took.
    """

    dataset: str
    method: str
    epsilon: float | None
    delta: float | None
    accountant: str
    fold: int
    measure: str
    value: float
    proven: float | None = None
    replace_one: float | None = None
    paper: float | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "proven", "replace_one"):
            object.__setattr__(self, name, _finite(getattr(self, name)))


class Experiment(abc.ABC):
    """A table or figure of the paper.

    Attributes:
        name: As the command line calls it.
        title: One line about it.
        epsilons: The paper's.
        folds: How many it is run on by default.
    """

    name: str
    title: str
    epsilons: tuple[float, ...]
    folds: int

    @abc.abstractmethod
    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """The pieces, in an order that gives the most telling ones first."""

    @abc.abstractmethod
    def measure(self, job: Job, workspace: Workspace) -> list[Measurement]:
        """Do one piece."""

    def datasets(self) -> set[str]:
        """Whose files it reads."""
        return {job.dataset for job in self.jobs(1, self.epsilons)}

    def draw(self, found: Sequence[Measurement], workspace: Workspace, folder: Path) -> list[Path]:
        """The picture, where the paper has one."""
        return []


@final
class Journal:
    """The record of measurements, one line per finished job.

    Example:
        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp()) / "moons.jsonl")
        >>> journal.add(Job("moons", "ours", 1, (1.0,)), [])
        >>> list(journal.read())
        ['moons/ours/1/1']
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, job: Job, measurements: Sequence[Measurement]) -> None:
        """Record a finished job; it is durable when this returns."""
        line = {"job": job.key, "found": [dataclasses.asdict(found) for found in measurements]}
        with open(self.path, "a", encoding="utf-8") as file:
            # a line that a crash cut off must not swallow this one
            file.write("\n" + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[str, list[Measurement]]:
        """Finished jobs by key; a last line that was cut off counts as not there."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        entries = [entry for entry in map(_parsed, text.split("\n")) if entry is not None]
        return {
            entry["job"]: [Measurement(**found) for found in entry["found"]] for entry in entries
        }


def run(
    experiment: Experiment,
    workspace: Workspace,
    *,
    folds: int,
    epsilons: Sequence[float],
    parallel: int = 1,
    progress: Progress | None = None,
) -> list[Measurement]:
    """Run the remaining jobs of an experiment and return all its measurements.

    Args:
        experiment: Which.
        workspace: Where data, models and the journal are.
        folds: How many folds.
        epsilons: Which budgets.
        parallel: How many jobs at once.
        progress: Told of each finished job.
    """
    journal = Journal(workspace.output / f"{experiment.name}.jsonl")
    wanted = experiment.jobs(folds, epsilons)
    done = journal.read()
    left = [job for job in wanted if job.key not in done]
    tell = progress or _say_nothing
    tell(len(wanted) - len(left), len(wanted), None)
    for count, (job, found) in enumerate(_finished(experiment, workspace, left, parallel), 1):
        journal.add(job, found)
        done[job.key] = found
        tell(len(wanted) - len(left) + count, len(wanted), job)
    return [found for job in wanted for found in done[job.key]]


def _finished(
    experiment: Experiment, workspace: Workspace, jobs: Sequence[Job], parallel: int
) -> Iterator[tuple[Job, list[Measurement]]]:
    """Jobs in the order in which they end."""
    if parallel != 1:
        # one that serves several budgets is the longest: begun last, it would run on alone
        jobs = sorted(jobs, key=lambda job: -len(job.epsilons))
    workers = Parallel(n_jobs=parallel, return_as="generator_unordered", max_nbytes=None)
    yield from workers(delayed(_one)(experiment, workspace, job) for job in jobs)


def _one(experiment: Experiment, workspace: Workspace, job: Job) -> tuple[Job, list[Measurement]]:
    # the rows of experiments are public
    with untracked():
        return job, experiment.measure(job, workspace)


def _say_nothing(done: int, total: int, job: Job | None) -> None:
    """The default progress callback."""


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


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
            curves.append(_curve(f"{_label(method, accountant)}, as published", printed))
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


class ResultTable(NamedTuple):
    """A table for readers: methods down, budgets across."""

    caption: str
    head: list[str]
    lines: list[list[str]]


def result_tables(found: Sequence[Measurement]) -> list[ResultTable]:
    """One table per measure; where nothing depends on a budget, one with measures down.

    Example:
        >>> one = Measurement(dataset="power", method="ours", epsilon=1.0, delta=1e-5,
        ...     accountant="pld", fold=1, measure="log-likelihood", value=2.0, paper=-2.0)
        >>> result_tables([one])[0].lines
        [['ours', '2.00 (paper -2.00)', '0.0']]
    """
    every = cells(found)
    if all(cell["epsilon"] is None for cell in every):
        return [_overview(every)]
    measures = dict.fromkeys(cell["measure"] for cell in every)
    return [_result_table(m, [c for c in every if c["measure"] == m]) for m in measures]


def _overview(every: Sequence[dict[str, Any]]) -> ResultTable:
    methods = list(dict.fromkeys(cell["method"] for cell in every))
    figures = {(c["measure"], c["method"]): _three_digits(c["mean"]) for c in every}
    measures = dict.fromkeys(cell["measure"] for cell in every)
    lines = [[m, *(figures.get((m, method), "") for method in methods)] for m in measures]
    return ResultTable("measures", ["", *methods], lines)


def _result_table(caption: str, mine: Sequence[dict[str, Any]]) -> ResultTable:
    budgets = list(dict.fromkeys(c["epsilon"] for c in mine if c["epsilon"] is not None))
    names = dict.fromkeys((c["dataset"], c["method"], c["accountant"]) for c in mine)
    several = len({dataset for dataset, _, _ in names}) > 1
    lines = []
    for name in names:
        own = [c for c in mine if (c["dataset"], c["method"], c["accountant"]) == name]
        seconds = f"{np.mean([c['seconds'] for c in own]):.1f}"
        label = f"{name[0]}: " if several else ""
        lines.append([label + _label(*name[1:]), *(_shown(own, b) for b in budgets), seconds])
    return ResultTable(caption, ["method", *(f"epsilon {b:g}" for b in budgets), "seconds"], lines)


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
    for result_table in result_tables(found):
        parts += [f"**{result_table.caption}**, mean and standard deviation over folds", ""]
        parts += [_joined(result_table.head), _joined(["---"] * len(result_table.head))]
        parts += [*map(_joined, result_table.lines), ""]
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
    "run for zero-out neighbours, `replace-one` for replace-one neighbours; a dash "
    "means that nothing is proven. `ours` charges everything that it computes from the rows, "
    "including preprocessing; `paper-recipe` and `dp-mog` scale columns by the rows' own moments "
    "or largest norm, without noise, as their originals do. `paper` beside `ours` is the paper's "
    "best "
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
