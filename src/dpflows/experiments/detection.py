"""Anomalies told from normal rows by a density and a threshold."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import LocalOutlierFactor

from dpflows.evaluation.detection_plots import roc, roc_figure, score_histograms
from dpflows.experiments.likelihoods import measured, pieces, without_model
from dpflows.experiments.methods import METHODS
from dpflows.experiments.running import Experiment, Job, Measurement
from dpflows.experiments.shelf import Desk
from dpflows.experiments.tables import RealTable, Rows

AUC = "ROC AUC"
#: Detectors of others, without privacy, with their own defaults.
PEERS: dict[str, Callable[[], Any]] = {
    "IsolationForest": IsolationForest,
    "LocalOutlierFactor": lambda: LocalOutlierFactor(novelty=True),
    "GaussianMixture": lambda: GaussianMixture(10),
}


def in_the_tails(rows: Rows, count: int) -> Rows:
    """The paper's anomalies: every cell between the 5th and 30th or the 70th and 95th percentile.

    Example:
        >>> rows = np.linspace(0, 1, 101)[:, None]
        >>> made = in_the_tails(rows, 50)
        >>> bool((abs(made - 0.5) > 0.19).all() and (abs(made - 0.5) < 0.46).all())
        True
    """
    random = np.random.default_rng()
    low, below, above, high = np.quantile(rows, [0.05, 0.30, 0.70, 0.95], axis=0)
    shape = (count, rows.shape[1])
    upper = random.random(shape) < 0.5
    return random.uniform(np.where(upper, above, low), np.where(upper, high, below))


def trial(table: RealTable, fold: int) -> tuple[Rows, np.ndarray]:
    """The fold's test rows and as many anomalies, or the known ones; and which are normal."""
    test = table.split(fold)[1]
    strange = in_the_tails(test, len(test)) if table.anomalies is None else table.anomalies
    rows = np.concatenate([test, strange])
    return rows, np.arange(len(rows)) < len(test)


class Detection(Experiment):
    """Areas under ROC curves of densities."""

    methods: tuple[str, ...]

    def measure(self, job: Job, desk: Desk) -> list[Measurement]:
        """Rank the trial's rows by their density."""
        table = desk.table(job.dataset)
        rows, normal = trial(table, job.fold)
        if job.method in PEERS:
            scores = PEERS[job.method]().fit(table.split(job.fold)[0]).score_samples(rows)
            return [without_model(job, AUC, roc(scores, normal)[2])]
        found = []
        for kept in desk.models(job.dataset, job.method, job.fold, job.epsilons):
            scores = METHODS[job.method].log_density(kept.model, rows)
            found.append(measured(job, kept, table.delta, AUC, roc(scores, normal)[2]))
        return found


@final
@dataclasses.dataclass(frozen=True)
class AnomalyROC(Detection):
    """The paper's figure: anomalies in the tails of Life Science."""

    name: str = "anomaly-roc"
    title: str = "Life Science: anomalies between the percentiles, area under the ROC curve"
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    folds: int = 10
    methods: tuple[str, ...] = (
        "ours",
        "dp-mog",
        "mixture-without-privacy",
        "flow-without-privacy",
        "ours-flow",
    )

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """Every method on every fold."""
        return pieces("life-science", self.methods, folds, epsilons)

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """ROC curves of the first fold, and how the scores of both kinds lie."""
        table = desk.table("life-science")
        rows, normal = trial(table, 1)
        paths = []
        for epsilon in sorted({f.epsilon for f in found if f.epsilon is not None}):
            curves = {}
            for method in self.methods:
                for kept in desk.models("life-science", method, 1, [epsilon]):
                    scores = METHODS[method].log_density(kept.model, rows)
                    label = method + _suffix(kept.setting.accountant)
                    curves[label] = (scores, normal)
            paths.append(folder / f"{self.name}-{epsilon:g}.png")
            roc_figure(curves, paths[-1])
            paths.append(folder / f"{self.name}-scores-{epsilon:g}.png")
            score_histograms(*curves["ours"], None, paths[-1])
        return paths


@final
@dataclasses.dataclass(frozen=True)
class LabelledAnomalies(Detection):
    """Known anomalies of four public sets; fitted to normal rows, ours beside scikit-learn's."""

    name: str = "labelled-anomalies"
    title: str = "Labelled anomalies: area under the ROC curve"
    epsilons: tuple[float, ...] = (1.0, 4.0)
    folds: int = 3
    methods: tuple[str, ...] = ("ours", "ours-mixture", "ours-gaussian")
    sets: tuple[str, ...] = ("thyroid", "shuttle", "cardio", "mammography")

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """One set after the other, the peers last."""
        every = range(1, folds + 1)
        return [
            job
            for dataset in self.sets
            for job in (
                *pieces(dataset, self.methods, folds, epsilons),
                *(Job(dataset, peer, fold, ()) for peer in PEERS for fold in every),
            )
        ]


def _suffix(accountant: str) -> str:
    return "" if accountant in ("pld", "none") else f" ({accountant})"
