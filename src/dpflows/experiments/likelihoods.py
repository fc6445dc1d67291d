"""Experiments of the paper: likelihoods, downstream learning, and plots of synthetic rows.

Test log-likelihoods against epsilon; learners trained on synthetic rows and tested on real
ones; synthetic Life Science rows shown with real ones, by column and by principal components.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor
from threadpoolctl import threadpool_limits

from dpflows.evaluation.plots import against_epsilon, column_histograms, principal_planes
from dpflows.experiments.data import TableRows
from dpflows.experiments.methods import METHODS
from dpflows.experiments.paper_recipe import published
from dpflows.experiments.running import Experiment, Job, Kept, Measurement, Workspace, curves_of
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
    """A figure of the rows themselves or of another method, without a claim."""
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

    def measure(self, job: Job, workspace: Workspace) -> list[Measurement]:
        """Fit, or find, the models of a job and score the fold's test rows."""
        table = workspace.table(job.dataset)
        test = np.clip(table.split(job.fold)[1], table.low, table.high)
        found = []
        for kept in workspace.models(job.dataset, job.method, job.fold, job.epsilons):
            scores = METHODS[job.method].log_density(kept.model, test)
            value = float(scores.mean()) + table.log_unit
            figure = measured(job, kept, table.delta, "log-likelihood", value)
            paper = published(job.dataset, job.method, *kept.setting)
            found.append(dataclasses.replace(figure, paper=paper))
        return found

    def draw(self, found: Sequence[Measurement], workspace: Workspace, folder: Path) -> list[Path]:
        """Likelihood against epsilon, with the paper's figures beside ours."""
        path = folder / f"{self.name}.png"
        against_epsilon(curves_of(found), path, label="test log-likelihood", title=self.title)
        return [path]


REAL_ROWS = "real-rows"
NEIGHBOURS = 3


def prediction_errors(train: TableRows, test: TableRows) -> dict[str, float]:
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


def distances(real: TableRows, synthetic: TableRows) -> dict[str, float]:
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


def _error(
    learner: "KNeighborsRegressor | HistGradientBoostingRegressor", test: TableRows
) -> float:
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

    def measure(self, job: Job, workspace: Workspace) -> list[Measurement]:
        """As many synthetic rows as there were real ones."""
        table = workspace.table(job.dataset)
        train, test = table.split(job.fold)
        if job.method == REAL_ROWS:
            return [without_model(job, *item) for item in _figures(train, test).items()]
        return [
            measured(job, kept, table.delta, *item)
            for kept in workspace.models(job.dataset, job.method, job.fold, job.epsilons)
            for item in _figures(kept.model.sample(len(train)), test).items()
        ]

    def draw(self, found: Sequence[Measurement], workspace: Workspace, folder: Path) -> list[Path]:
        """The error of each learner against epsilon."""
        paths = []
        for measure in ("k-NN MSE", "boosting MSE"):
            paths.append(folder / f"{self.name}-{measure.split()[0].lower()}.png")
            label = f"{measure} on real rows, in variances"
            against_epsilon(curves_of(found, measure), paths[-1], label=label, title=self.title)
        return paths


def _figures(train: TableRows, test: TableRows) -> dict[str, float]:
    return prediction_errors(train, test) | distances(test, train)


DATASET = "life-science"
METHODS_SHOWN = ("ours", "dp-mog")


class Shown(Experiment):
    """Synthetic rows of the first fold, drawn beside the real ones; pictures are NOT PRIVATE."""

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """Both methods at every budget."""
        return pieces(DATASET, METHODS_SHOWN, folds, epsilons)

    def measure(self, job: Job, workspace: Workspace) -> list[Measurement]:
        """Distances of columns and of pairs, as numbers."""
        table = workspace.table(job.dataset)
        train, test = table.split(job.fold)
        return [
            measured(job, kept, table.delta, *item)
            for kept in workspace.models(job.dataset, job.method, job.fold, job.epsilons)
            for item in distances(test, kept.model.sample(len(train))).items()
        ]


def synthetic(workspace: Workspace, method: str, epsilon: float, rows: int) -> TableRows:
    """TableRows of the first fold's model, by the moments accountant where there are two."""
    return workspace.models(DATASET, method, 1, [epsilon])[0].model.sample(rows)


@final
@dataclasses.dataclass(frozen=True)
class Histograms(Shown):
    """Every column's histogram, synthetic over real."""

    name: str = "histograms"
    title: str = "Columns of Life Science, synthetic over real"
    epsilons: tuple[float, ...] = (0.5, 0.6)
    folds: int = 1

    def draw(self, found: Sequence[Measurement], workspace: Workspace, folder: Path) -> list[Path]:
        """One picture per budget: ours above, DP-MoG below."""
        real = workspace.table(DATASET).split(1)[0]
        paths = []
        for epsilon in sorted({f.epsilon for f in found if f.epsilon is not None}):
            drawn = {m: synthetic(workspace, m, epsilon, len(real)) for m in METHODS_SHOWN}
            paths.append(folder / f"{self.name}-{epsilon:g}.png")
            column_histograms(real, drawn, paths[-1], title=f"{self.title}, epsilon {epsilon:g}")
        return paths


@final
@dataclasses.dataclass(frozen=True)
class Planes(Shown):
    """Two principal components, as in the paper."""

    name: str = "pca"
    title: str = "Life Science on its two principal components"
    epsilons: tuple[float, ...] = (2.0, 4.0, 6.0)
    folds: int = 1

    def draw(self, found: Sequence[Measurement], workspace: Workspace, folder: Path) -> list[Path]:
        """A row of pictures per method, the real rows at the end."""
        real = workspace.table(DATASET).split(1)[0]
        epsilons = sorted({f.epsilon for f in found if f.epsilon is not None})
        drawn = {
            f"{method}, epsilon {epsilon:g}": synthetic(workspace, method, epsilon, len(real))
            for method in METHODS_SHOWN
            for epsilon in epsilons
        }
        path = folder / f"{self.name}.png"
        principal_planes(real, drawn, path, title=self.title, across=len(epsilons))
        return [path]
