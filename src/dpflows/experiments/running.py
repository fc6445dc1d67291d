"""Experiments as jobs that are done once: cut into pieces, run in parallel, resumed.

A job's measurements are written down as soon as it ends; a run that was killed finds them
and does only what is left.
"""

import abc
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

from sklearn.utils.parallel import Parallel, delayed

from dpflows.estimators.repeated_fits import untracked
from dpflows.experiments.shelf import Desk

#: As many jobs at once as this process may use cores.
EVERY_CORE = -1
#: Called with the jobs done, their number, and the one that just ended, if any.
Progress = Callable[[int, int, "Job | None"], None]


@final
@dataclasses.dataclass(frozen=True)
class Job:
    """A piece of an experiment that is measured in one go.

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
        """What tells it from every other job of its experiment."""
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
        accountant: Who states it.
        fold: Which rows were kept for the test.
        measure: What the figure is, for example ``log-likelihood``.
        value: The figure.
        proven: The epsilon that is proven for the same run, rows blanked out.
        replace_one: The same, for exchanging a row for any other.
        paper: The figure in print, if there is one.
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
    def measure(self, job: Job, desk: Desk) -> list[Measurement]:
        """Do one piece."""

    def datasets(self) -> set[str]:
        """Whose files it reads."""
        return {job.dataset for job in self.jobs(1, self.epsilons)}

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """The picture, where the paper has one."""
        return []


@final
class Journal:
    """What was measured, one line per finished job.

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
        """Write down a finished job; once this returns it survives a crash."""
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
    desk: Desk,
    *,
    folds: int,
    epsilons: Sequence[float],
    parallel: int = 1,
    progress: Progress | None = None,
) -> list[Measurement]:
    """Do what is left of an experiment and return all its measurements.

    Args:
        experiment: Which.
        desk: Where data, models and the journal are.
        folds: How many folds.
        epsilons: Which budgets.
        parallel: How many jobs at once.
        progress: Told of each finished job.
    """
    journal = Journal(desk.output / f"{experiment.name}.jsonl")
    wanted = experiment.jobs(folds, epsilons)
    done = journal.read()
    left = [job for job in wanted if job.key not in done]
    tell = progress or _say_nothing
    tell(len(wanted) - len(left), len(wanted), None)
    for count, (job, found) in enumerate(_finished(experiment, desk, left, parallel), 1):
        journal.add(job, found)
        done[job.key] = found
        tell(len(wanted) - len(left) + count, len(wanted), job)
    return [found for job in wanted for found in done[job.key]]


def _finished(
    experiment: Experiment, desk: Desk, jobs: Sequence[Job], parallel: int
) -> Iterator[tuple[Job, list[Measurement]]]:
    """Jobs in the order in which they end."""
    if parallel != 1:
        # one that serves several budgets is the longest: begun last, it would run on alone
        jobs = sorted(jobs, key=lambda job: -len(job.epsilons))
    workers = Parallel(n_jobs=parallel, return_as="generator_unordered", max_nbytes=None)
    yield from workers(delayed(_one)(experiment, desk, job) for job in jobs)


def _one(experiment: Experiment, desk: Desk, job: Job) -> tuple[Job, list[Measurement]]:
    # the rows of experiments are public
    with untracked():
        return job, experiment.measure(job, desk)


def _say_nothing(done: int, total: int, job: Job | None) -> None:
    """For callers that want no news."""


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
