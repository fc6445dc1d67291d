"""Anomaly detection experiments: density thresholds, and the vote of an ensemble.

In the paper's ensemble, members fitted to parts of Half-Moons vote on what is normal.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import LocalOutlierFactor

from dpflows.anomaly.members import Cut, Member, count_normal, fit_members
from dpflows.anomaly.threshold import DPAnomalyDetector
from dpflows.anomaly.voting import Assignment
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.flow import DPFlow
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.evaluation.plots import (
    against_epsilon,
    decision_map,
    roc,
    roc_figure,
    score_histograms,
)
from dpflows.experiments.data import RealTable, TableRows, Vector
from dpflows.experiments.likelihoods import measured, pieces, without_model
from dpflows.experiments.methods import METHODS
from dpflows.experiments.paper_recipe import COMPONENTS
from dpflows.experiments.running import Experiment, Job, Measurement, Workspace, curves_of
from dpflows.privacy.events import VOTE_LAWS, Sensitivity, VoteEvent, VoteLaw
from dpflows.privacy.randomness import Entropy

AUC = "ROC AUC"
#: Detectors of others, without privacy, with their own defaults.
BASELINES: dict[str, Callable[[], Any]] = {
    "IsolationForest": IsolationForest,
    "LocalOutlierFactor": lambda: LocalOutlierFactor(novelty=True),
    "GaussianMixture": lambda: GaussianMixture(10),
}


def in_the_tails(rows: TableRows, count: int) -> TableRows:
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


def trial(table: RealTable, fold: int) -> tuple[TableRows, np.ndarray]:
    """The fold's test rows and as many anomalies, or the known ones; and which are normal."""
    test = table.split(fold)[1]
    strange = in_the_tails(test, len(test)) if table.anomalies is None else table.anomalies
    rows = np.concatenate([test, strange])
    return rows, np.arange(len(rows)) < len(test)


class Detection(Experiment):
    """Areas under ROC curves of densities."""

    methods: tuple[str, ...]

    def measure(self, job: Job, workspace: Workspace) -> list[Measurement]:
        """Rank the trial's rows by their density."""
        table = workspace.table(job.dataset)
        rows, normal = trial(table, job.fold)
        if job.method in BASELINES:
            scores = BASELINES[job.method]().fit(table.split(job.fold)[0]).score_samples(rows)
            return [without_model(job, AUC, roc(scores, normal)[2])]
        found = []
        for kept in workspace.models(job.dataset, job.method, job.fold, job.epsilons):
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

    def draw(self, found: Sequence[Measurement], workspace: Workspace, folder: Path) -> list[Path]:
        """ROC curves of the first fold, and how the scores of both kinds lie."""
        table = workspace.table("life-science")
        rows, normal = trial(table, 1)
        paths = []
        for epsilon in sorted({f.epsilon for f in found if f.epsilon is not None}):
            curves = {}
            for method in self.methods:
                for kept in workspace.models("life-science", method, 1, [epsilon]):
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
                *(Job(dataset, baseline, fold, ()) for baseline in BASELINES for fold in every),
            )
        ]


def _suffix(accountant: str) -> str:
    return "" if accountant in ("pld", "none") else f" ({accountant})"


PARTS = 10
DATASET = "half-moons"
#: Anomalies are spread evenly over this square; the moons fill a small part of it.
_SQUARE = 2.5
_FOLDS = 10

Box = tuple[Vector, Vector]

MEMBERS: dict[str, Callable[[Box], DensityEstimator]] = {
    "flow": lambda box: DPFlow(math.inf, bounds=box),
    "mixture": lambda box: DPGaussianMixture(math.inf, bounds=box, components=COMPONENTS[DATASET]),
    "large-mixture": lambda box: DPGaussianMixture(math.inf, bounds=box),
}


@final
@dataclasses.dataclass(frozen=True)
class EnsembleVotes(Experiment):
    """Accuracy against the epsilon of one answer.

    Members get the threshold that is best on public labelled rows, as in the paper. What
    is reported is the expected accuracy over the mechanism's noise, computed from the
    vote counts; those are private and stay in here.
    """

    name: str = "ensemble"
    title: str = "Half-Moons: accuracy of a private vote of ten parts, by epsilon per answer"
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    folds: int = 3

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """One per kind of member and fold; the votes serve every budget."""
        budgets = tuple(epsilons)
        return [Job(DATASET, k, fold, budgets) for k in MEMBERS for fold in range(1, folds + 1)]

    def measure(self, job: Job, workspace: Workspace) -> list[Measurement]:
        """Fit the members, count votes, and expect over the noise."""
        table = workspace.table(DATASET)
        began = time.monotonic()
        members = _members(job.method, table, job.fold)
        seconds = time.monotonic() - began
        rows, normal = _questions(table.split(job.fold)[1])
        votes = np.array(count_normal(members, rows))
        found = [_figure(job, "no noise", None, _plain_accuracy(votes, normal), seconds)]
        for law in VOTE_LAWS:
            for epsilon in job.epsilons:
                value = expected_accuracy(votes, normal, law, epsilon)
                found.append(_figure(job, law, epsilon, value, seconds))
        return found

    def draw(self, found: Sequence[Measurement], workspace: Workspace, folder: Path) -> list[Path]:
        """Accuracy against epsilon, and the map that a threshold detector draws."""
        paths = [folder / f"{self.name}.png", folder / f"{self.name}-map.png"]
        against_epsilon(
            curves_of(found),
            paths[0],
            label="accuracy",
            title=self.title,
            over="epsilon per answer",
        )
        table = workspace.table(DATASET)
        density = workspace.models(DATASET, "ours", 1, [1.5])[0].model
        detector = DPAnomalyDetector.around(density, contamination=0.05)
        test = table.split(1)[1][:1000]
        side = (-_SQUARE, _SQUARE)
        decision_map(detector.decision_function, test, _spread(300), (side, side), paths[1])
        return paths


def expected_accuracy(votes: np.ndarray, normal: np.ndarray, law: VoteLaw, epsilon: float) -> float:
    """How often the mechanism answers rightly, averaged over its noise.

    Example:
        >>> votes, normal = np.array([10, 0]), np.array([True, False])
        >>> round(expected_accuracy(votes, normal, "geometric", 1.0), 4)
        0.9966
    """
    event = VoteEvent(
        voters=PARTS, epsilon=epsilon, law=law, sensitivity=Sensitivity.uniformly(1.0)
    )
    chances = np.array([event.chance(count) for count in range(PARTS + 1)])[votes]
    return float(np.where(normal, chances, 1 - chances).mean())


def _plain_accuracy(votes: np.ndarray, normal: np.ndarray) -> float:
    return float(((2 * votes > PARTS) == normal).mean())


def _members(kind: str, table: RealTable, fold: int) -> list[Member]:
    rows = table.split(fold)[0]
    part = Assignment.drawn(PARTS, "zero-out", Entropy.from_os()).of(rows)
    public, normal = _questions(table.split(fold % _FOLDS + 1)[1])
    return fit_members(
        MEMBERS[kind]((table.low, table.high)),
        [rows[part == index] for index in range(PARTS)],
        Cut("accuracy", rows=public, normal=normal),
        seeds=[None] * PARTS,
        jobs=1,
        backend="sequential",
    )


def _questions(test: TableRows) -> tuple[TableRows, np.ndarray]:
    """Test rows and as many anomalies, and which are normal."""
    rows = np.concatenate([test, _spread(len(test))])
    return rows, np.arange(len(rows)) < len(test)


def _spread(count: int) -> TableRows:
    return np.random.default_rng().uniform(-_SQUARE, _SQUARE, size=(count, 2))


def _figure(job: Job, law: str, epsilon: float | None, value: float, seconds: float) -> Measurement:
    return Measurement(
        dataset=job.dataset,
        method=f"{job.method}, {law}",
        epsilon=epsilon,
        delta=0.0,
        accountant="pld",
        fold=job.fold,
        measure="accuracy",
        value=value,
        seconds=seconds,
    )
