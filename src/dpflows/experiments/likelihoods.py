"""Test log-likelihoods against epsilon: the tables of the paper."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from dpflows.evaluation.curves import against_epsilon
from dpflows.experiments.methods import METHODS
from dpflows.experiments.paper import published
from dpflows.experiments.reporting import curves_of
from dpflows.experiments.running import Experiment, Job, Measurement
from dpflows.experiments.shelf import Desk, Kept
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import Event

#: Methods whose one run serves every budget.
ALL_AT_ONCE = ("paper-recipe",)
#: Such a run takes minutes; a few folds show where it lands.
LONG_RUN_FOLDS = 3


def pieces(
    dataset: str,
    methods: Sequence[str],
    folds: int,
    epsilons: Sequence[float],
    *,
    long_run_folds: int = LONG_RUN_FOLDS,
) -> list[Job]:
    """One job per method, fold and budget; one per method and fold where a run serves them all.

    Long runs are made on a few folds only.

    Example:
        >>> [job.key for job in pieces("power", ["ours", "paper-recipe"], 1, [1.0, 2.0])]
        ['power/ours/1/1', 'power/ours/1/2', 'power/paper-recipe/1/1+2']
    """
    jobs = []
    for method in methods:
        once = method in ALL_AT_ONCE or not METHODS[method].is_private
        budgets = [tuple(epsilons)] if once else [(epsilon,) for epsilon in epsilons]
        count = min(folds, long_run_folds) if method in ALL_AT_ONCE else folds
        jobs += [Job(dataset, method, fold, b) for fold in range(1, count + 1) for b in budgets]
    return jobs


def measured(job: Job, kept: Kept, delta: float, measure: str, value: float) -> Measurement:
    """A figure of a fitted model, with what the model costs."""
    guarantee = kept.model.guarantee_
    return Measurement(
        dataset=job.dataset,
        method=job.method,
        epsilon=kept.setting.epsilon,
        delta=delta,
        accountant=kept.setting.accountant,
        fold=job.fold,
        measure=measure,
        value=value,
        proven=_proven(guarantee.events, delta),
        replace_one=guarantee.replace_one_epsilon,
        paper=None,
        seconds=kept.seconds,
    )


def without_model(job: Job, measure: str, value: float) -> Measurement:
    """A figure of the rows themselves, or of somebody else's method; nothing is claimed."""
    return Measurement(
        dataset=job.dataset,
        method=job.method,
        epsilon=None,
        delta=None,
        accountant="none",
        fold=job.fold,
        measure=measure,
        value=value,
    )


def _proven(events: Sequence[Event], delta: float) -> float | None:
    """What the events cost by a proof; None where nothing was charged."""
    if not events:
        return None
    return epsilon_of(events, delta=delta, neighbours="zero-out", accountant="pld")


@final
@dataclasses.dataclass(frozen=True)
class Likelihoods(Experiment):
    """Mean test log-likelihoods of one data set."""

    name: str
    title: str
    epsilons: tuple[float, ...]
    folds: int = 10
    methods: tuple[str, ...] = ("ours", "ours-flow", "dp-mog", "paper-recipe")
    long_run_folds: int = LONG_RUN_FOLDS

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """Ours first."""
        return pieces(self.name, self.methods, folds, epsilons, long_run_folds=self.long_run_folds)

    def measure(self, job: Job, desk: Desk) -> list[Measurement]:
        """Fit, or find, the models of a job and score the fold's test rows."""
        table = desk.table(job.dataset)
        test = np.clip(table.split(job.fold)[1], table.low, table.high)
        found = []
        for kept in desk.models(job.dataset, job.method, job.fold, job.epsilons):
            scores = METHODS[job.method].log_density(kept.model, test)
            value = float(scores.mean()) + table.log_unit
            figure = measured(job, kept, table.delta, "log-likelihood", value)
            paper = published(job.dataset, job.method, *kept.setting)
            found.append(dataclasses.replace(figure, paper=paper))
        return found

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """Likelihood against epsilon, with the paper's figures beside ours."""
        path = folder / f"{self.name}.png"
        against_epsilon(curves_of(found), path, label="test log-likelihood", title=self.title)
        return [path]
