"""Synthetic rows put to work: learners trained on them and tested on real ones."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor
from threadpoolctl import threadpool_limits

from dpflows.evaluation.curves import against_epsilon
from dpflows.experiments.likelihoods import measured, pieces, without_model
from dpflows.experiments.reporting import curves_of
from dpflows.experiments.running import Experiment, Job, Measurement
from dpflows.experiments.shelf import Desk
from dpflows.experiments.tables import Rows

REAL_ROWS = "real-rows"
NEIGHBOURS = 3


def prediction_errors(train: Rows, test: Rows) -> dict[str, float]:
    """Mean squared errors of predicting the last column, in units of its variance.

    Example:
        >>> rows = np.random.default_rng().normal(size=(200, 3))
        >>> sorted(prediction_errors(rows, rows))
        ['boosting MSE', 'k-NN MSE']
    """
    learners = {
        "k-NN MSE": KNeighborsRegressor(NEIGHBOURS),
        "boosting MSE": HistGradientBoostingRegressor(),
    }
    unit = float(test[:, -1].var())
    # beside other work the threads of boosting mostly wait for each other
    with threadpool_limits(1):
        return {
            name: _error(learner.fit(train[:, :-1], train[:, -1]), test) / unit
            for name, learner in learners.items()
        }


def distances(real: Rows, synthetic: Rows) -> dict[str, float]:
    """How far columns and pairs of columns are apart; 0 is alike, 1 as far as can be.

    A column's distance is the largest difference of the distribution functions, a pair's
    half the difference of the correlations; both are averaged.

    Example:
        >>> rows = np.random.default_rng().normal(size=(100, 2))
        >>> distances(rows, rows)
        {'marginal distance': 0.0, 'pair distance': 0.0}
    """
    columns = [ks_2samp(a, b).statistic for a, b in zip(real.T, synthetic.T, strict=True)]
    upper = np.triu_indices(real.shape[1], 1)
    gap = np.abs(np.corrcoef(real.T) - np.corrcoef(synthetic.T))[upper]
    return {
        "marginal distance": float(np.mean(columns)),
        "pair distance": float(gap.mean() / 2) if gap.size else 0.0,
    }


def _error(learner: "KNeighborsRegressor | HistGradientBoostingRegressor", test: Rows) -> float:
    return float(np.mean((learner.predict(test[:, :-1]) - test[:, -1]) ** 2))


@final
@dataclasses.dataclass(frozen=True)
class Downstream(Experiment):
    """Regression of the last Life Science column, trained on synthetic rows."""

    name: str = "downstream"
    title: str = "Predicting the last Life Science column from synthetic rows"
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    folds: int = 10
    methods: tuple[str, ...] = (
        "ours",
        "dp-mog",
        "mixture-without-privacy",
        "flow-without-privacy",
        "paper-recipe",
    )

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """The real rows first: the level to reach."""
        real = [Job("life-science", REAL_ROWS, fold, ()) for fold in range(1, folds + 1)]
        return real + pieces("life-science", self.methods, folds, epsilons)

    def measure(self, job: Job, desk: Desk) -> list[Measurement]:
        """As many synthetic rows as there were real ones."""
        table = desk.table(job.dataset)
        train, test = table.split(job.fold)
        if job.method == REAL_ROWS:
            return [without_model(job, *item) for item in _figures(train, test).items()]
        return [
            measured(job, kept, table.delta, *item)
            for kept in desk.models(job.dataset, job.method, job.fold, job.epsilons)
            for item in _figures(kept.model.sample(len(train)), test).items()
        ]

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """The error of each learner against epsilon."""
        paths = []
        for measure in ("k-NN MSE", "boosting MSE"):
            paths.append(folder / f"{self.name}-{measure.split()[0].lower()}.png")
            label = f"{measure} on real rows, in variances"
            against_epsilon(curves_of(found, measure), paths[-1], label=label, title=self.title)
        return paths


def _figures(train: Rows, test: Rows) -> dict[str, float]:
    return prediction_errors(train, test) | distances(test, train)
