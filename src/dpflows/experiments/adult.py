"""UCI Adult, a table of mixed kinds: dpflows compared with MST and AIM at equal budgets."""

import dataclasses
from collections.abc import Sequence
from typing import final

from dpflows.experiments.baselines import TooSlow
from dpflows.experiments.baselines.comparison import DISCRETISED, OURS, REAL, Comparison, Line
from dpflows.experiments.data import ADULT_SCHEMA, read_adult
from dpflows.experiments.running import Experiment, Job, Measurement, Workspace
from dpflows.privacy.guarantee import Budget
from dpflows.table.reading import read_table
from dpflows.table.schema import Schema

DELTA = 1e-6
#: How the figures of a comparison are called in a table.
MEASURES = {
    "learning": "AUC of income, trained on synthetic and tested on real rows",
    "one_way": "1-way total variation from test rows",
    "two_way": "2-way total variation from test rows",
    "one_way_fitted": "1-way total variation from the fitted rows",
    "two_way_fitted": "2-way total variation from the fitted rows",
    "detection": "AUC of telling synthetic from real rows",
}
STOPPED = "seconds until it was stopped, too slow"
#: What methods of the comparison are called here, and in a table.
METHODS = {"real": REAL, "real-discretised": DISCRETISED, "ours": OURS, "mst": "mst", "aim": "aim"}
_WITHOUT_BUDGET = ("real", "real-discretised")
#: Methods that take a quarter of an hour or more, and are therefore run once.
_ONCE = ("aim",)


@final
@dataclasses.dataclass(frozen=True)
class Adult(Experiment):
    """Fitted to the training rows, evaluated on the test rows; folds are repetitions.

    Attributes:
        seconds: Time limit of a baseline.
    """

    name: str = "adult"
    title: str = "Adult: learning from synthetic rows, marginals, detection"
    epsilons: tuple[float, ...] = (1.0, 4.0)
    folds: int = 3
    seconds: float = 3600.0

    def jobs(self, folds: int, epsilons: Sequence[float]) -> list[Job]:
        """Real rows once, then every method, the slowest last."""
        found = [Job(self.name, method, 1, ()) for method in _WITHOUT_BUDGET]
        budgets = [(fold, epsilon) for fold in range(1, folds + 1) for epsilon in epsilons]
        methods = [method for method in METHODS if method not in _WITHOUT_BUDGET]
        return found + [
            Job(self.name, method, fold, (epsilon,))
            for method in methods
            for fold, epsilon in budgets
            if fold == 1 or method not in _ONCE
        ]

    def measure(self, job: Job, workspace: Workspace) -> list[Measurement]:
        """Fit, draw as many rows as were fitted, and evaluate them."""
        compared = self._arena(job, workspace)
        try:
            line = compared.attempt(METHODS[job.method])
        except TooSlow:
            return [_measured(job, Line(job.method, self.seconds), STOPPED, self.seconds)]
        return _figures(job, line)

    def _arena(self, job: Job, workspace: Workspace) -> Comparison:
        schema = Schema.read(ADULT_SCHEMA)
        train, test = (read_table(rows, schema).columns for rows in read_adult(workspace.data))
        # real rows spend nothing, so that any budget serves
        epsilon = job.epsilons[0] if job.epsilons else self.epsilons[0]
        return Comparison(train, test, schema, Budget(epsilon, DELTA), seconds=self.seconds)


def _figures(job: Job, line: Line) -> list[Measurement]:
    values = {} if line.figures is None else dataclasses.asdict(line.figures)
    return [_measured(job, line, name, values[key]) for key, name in MEASURES.items()]


def _measured(job: Job, line: Line, measure: str, value: float) -> Measurement:
    promise = line.guarantee
    return Measurement(
        dataset=job.dataset,
        method=job.method,
        epsilon=job.epsilons[0] if job.epsilons else None,
        delta=DELTA if job.epsilons else None,
        accountant="none" if promise is None else promise.accountant,
        fold=job.fold,
        measure=measure,
        value=value,
        proven=promise.epsilon if promise is not None and promise.is_private else None,
        replace_one=None if promise is None else promise.replace_one_epsilon,
        seconds=line.seconds,
    )
