"""The paper's ensemble: parts of Half-Moons vote on what is normal."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np

from dpflows.anomaly.assignment import Assignment
from dpflows.anomaly.members import Cut, Member, count_normal, fit_members
from dpflows.anomaly.threshold import DPAnomalyDetector
from dpflows.estimators.base import DensityEstimator
from dpflows.estimators.flow import DPFlow
from dpflows.estimators.mixture import DPGaussianMixture
from dpflows.evaluation.curves import against_epsilon
from dpflows.evaluation.detection_plots import decision_map
from dpflows.experiments.paper import COMPONENTS
from dpflows.experiments.reporting import curves_of
from dpflows.experiments.running import Experiment, Job, Measurement
from dpflows.experiments.shelf import Desk
from dpflows.experiments.tables import RealTable, Rows, Vector
from dpflows.privacy.events import VOTE_LAWS, Sensitivity, VoteEvent, VoteLaw
from dpflows.privacy.randomness import Entropy

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

    def measure(self, job: Job, desk: Desk) -> list[Measurement]:
        """Fit the members, count votes, and expect over the noise."""
        table = desk.table(DATASET)
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

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """Accuracy against epsilon, and the map that a threshold detector draws."""
        paths = [folder / f"{self.name}.png", folder / f"{self.name}-map.png"]
        against_epsilon(
            curves_of(found),
            paths[0],
            label="accuracy",
            title=self.title,
            over="epsilon per answer",
        )
        table = desk.table(DATASET)
        density = desk.models(DATASET, "ours", 1, [1.5])[0].model
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


def _questions(test: Rows) -> tuple[Rows, np.ndarray]:
    """Test rows and as many anomalies, and which are normal."""
    rows = np.concatenate([test, _spread(len(test))])
    return rows, np.arange(len(rows)) < len(test)


def _spread(count: int) -> Rows:
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
