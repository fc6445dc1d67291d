"""Synthetic Life Science rows beside real ones: histograms by column, and principal planes."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

from dpflows.evaluation.projections import column_histograms, principal_planes
from dpflows.experiments.downstream import distances
from dpflows.experiments.likelihoods import measured, pieces
from dpflows.experiments.running import Experiment, Job, Measurement
from dpflows.experiments.shelf import Desk
from dpflows.experiments.tables import Rows

DATASET = "life-science"
METHODS_SHOWN = ("ours", "dp-mog")


class Shown(Experiment):
    """Synthetic rows of the first fold, drawn beside the real ones; pictures are NOT PRIVATE."""

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """Both methods at every budget."""
        return pieces(DATASET, METHODS_SHOWN, folds, epsilons)

    def measure(self, job: Job, desk: Desk) -> list[Measurement]:
        """What the eye will see, as numbers: distances of columns and of pairs."""
        table = desk.table(job.dataset)
        train, test = table.split(job.fold)
        return [
            measured(job, kept, table.delta, *item)
            for kept in desk.models(job.dataset, job.method, job.fold, job.epsilons)
            for item in distances(test, kept.model.sample(len(train))).items()
        ]


def synthetic(desk: Desk, method: str, epsilon: float, rows: int) -> Rows:
    """Rows of the first fold's model, by the moments accountant where there are two."""
    return desk.models(DATASET, method, 1, [epsilon])[0].model.sample(rows)


@final
@dataclasses.dataclass(frozen=True)
class Histograms(Shown):
    """Every column's histogram, synthetic over real."""

    name: str = "histograms"
    title: str = "Columns of Life Science, synthetic over real"
    epsilons: tuple[float, ...] = (0.5, 0.6)
    folds: int = 1

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """One picture per budget: ours above, DP-MoG below."""
        real = desk.table(DATASET).split(1)[0]
        paths = []
        for epsilon in sorted({f.epsilon for f in found if f.epsilon is not None}):
            drawn = {m: synthetic(desk, m, epsilon, len(real)) for m in METHODS_SHOWN}
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

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """A row of pictures per method, the real rows at the end."""
        real = desk.table(DATASET).split(1)[0]
        epsilons = sorted({f.epsilon for f in found if f.epsilon is not None})
        drawn = {
            f"{method}, epsilon {epsilon:g}": synthetic(desk, method, epsilon, len(real))
            for method in METHODS_SHOWN
            for epsilon in epsilons
        }
        path = folder / f"{self.name}.png"
        principal_planes(real, drawn, path, title=self.title, across=len(epsilons))
        return [path]
