"""Epsilon against iterations: what each accountant says of the paper's own run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

from dpflows.evaluation.curves import Curve, against_epsilon
from dpflows.experiments.moments import moments_epsilon
from dpflows.experiments.running import Experiment, Job, Measurement
from dpflows.experiments.shelf import Desk
from dpflows.experiments.trajectory import recipe_event
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.events import Neighbours, Sampling

#: The figure's own settings, which differ a little from the tables'.
ROWS, DELTA = 21_384, 1e-4
ITERATIONS = (100, 500, 1_000, 2_000, 4_000, 8_000, 12_000, 16_000, 20_000)


@final
@dataclasses.dataclass(frozen=True)
class Statement:
    """One way to state the epsilon of a run.

    Attributes:
        accountant: Who computes; ``ma`` is the paper's own code.
        sampling: How batches are taken to be drawn.
        neighbours: Which change is hidden.
    """

    accountant: str
    sampling: Sampling
    neighbours: Neighbours

    def epsilon(self, steps: int) -> float:
        """After so many steps of the paper's run."""
        event = dataclasses.replace(recipe_event(ROWS, steps), sampling=self.sampling)
        if self.accountant == "ma":
            return moments_epsilon(event, DELTA)
        return epsilon_of(
            [event], delta=DELTA, neighbours=self.neighbours, accountant=self.accountant
        )


#: The first two are as the paper states them: an estimate, and a bound for a relation that
#: is not its own. The third is proven for its batches and relation, the others for ours.
STATEMENTS: dict[str, Statement] = {
    "paper, gdp-clt": Statement("gdp-clt", "uniform", "zero-out"),
    "paper, ma": Statement("ma", "uniform", "replace-one"),
    "proven for it": Statement("pld", "uniform", "replace-one"),
    "poisson, pld": Statement("pld", "poisson", "zero-out"),
    "poisson, rdp": Statement("rdp", "poisson", "zero-out"),
    "poisson, pld, rows exchanged": Statement("pld", "poisson", "replace-one"),
}


@final
@dataclasses.dataclass(frozen=True)
class Accountants(Experiment):
    """The epsilon of the paper's run by every accountant; needs no data."""

    name: str = "accountants"
    title: str = "Epsilon against iterations (q = 100/21384, sigma 2.1, delta 1e-4)"
    epsilons: tuple[float, ...] = ()
    folds: int = 1

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """One per way of stating."""
        return [Job("life-science", method, 1, ()) for method in STATEMENTS]

    def datasets(self) -> set[str]:
        """None: only the size of the table matters."""
        return set()

    def measure(self, job: Job, desk: Desk) -> list[Measurement]:
        """The epsilon at each number of iterations."""
        statement = STATEMENTS[job.method]
        return [
            Measurement(
                dataset=job.dataset,
                method=job.method,
                epsilon=None,
                delta=DELTA,
                accountant=statement.accountant,
                fold=1,
                measure=f"{steps:,} steps",
                value=statement.epsilon(steps),
            )
            for steps in ITERATIONS
        ]

    def draw(self, found: Sequence[Measurement], desk: Desk, folder: Path) -> list[Path]:
        """All curves in one picture."""
        curves = [
            Curve(
                name,
                ITERATIONS,
                [f.value for f in found if f.method == name],
                [0.0] * len(ITERATIONS),
            )
            for name in STATEMENTS
        ]
        path = folder / f"{self.name}.png"
        against_epsilon(curves, path, label="epsilon", title=self.title, over="iterations")
        return [path]
