"""One training run as every accountant sees it."""

import dataclasses
from collections.abc import Iterator, Sequence

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting.calibration import calibrate_steps
from dpflows.privacy.accounting.pricing import ACCOUNTANTS, epsilon_of
from dpflows.privacy.events import NEIGHBOURS, SAMPLINGS, Neighbours, SampledGaussianEvent, Sampling
from dpflows.privacy.guarantee import Budget, Kind


@dataclasses.dataclass(frozen=True)
class View:
    """One way to price a run: who counts, how batches are drawn, what is hidden.

    Example:
        >>> View("gdp-clt", "uniform", "replace-one").kind
        'estimate'
    """

    accountant: str
    sampling: Sampling
    neighbours: Neighbours

    @property
    def kind(self) -> Kind:
        """Whether its figures are bounds or estimates."""
        return ACCOUNTANTS[self.accountant].kind

    @property
    def reading(self) -> str:
        """What its figures mean, in one line."""
        return ACCOUNTANTS[self.accountant].reading


@dataclasses.dataclass(frozen=True)
class Run:
    """Steps of private training whose number is still open.

    Example:
        >>> run = Run(rows=24059, batch_size=100, noise_multiplier=2.1, delta=1.52e-5)
        >>> view = View("gdp-clt", "uniform", "replace-one")
        >>> run.steps(view, epsilon=1.0), round(run.epsilon(view, steps=12565), 2)
        (12565, 1.0)
    """

    rows: int
    batch_size: int
    noise_multiplier: float
    delta: float

    def events(self, sampling: Sampling, steps: int) -> list[SampledGaussianEvent]:
        """What a run of ``steps`` steps releases."""
        step = SampledGaussianEvent(
            sampling=sampling,
            rows=self.rows,
            batch_size=self.batch_size,
            noise_multiplier=self.noise_multiplier,
            count=steps,
        )
        return [step]

    def epsilon(self, view: View, *, steps: int) -> float:
        """What ``steps`` steps cost in this view."""
        return epsilon_of(
            self.events(view.sampling, steps),
            delta=self.delta,
            neighbours=view.neighbours,
            accountant=view.accountant,
        )

    def steps(self, view: View, *, epsilon: float) -> int:
        """How many steps ``epsilon`` allows in this view; none if not even one."""
        budget = Budget(epsilon, self.delta, view.neighbours)
        try:
            return calibrate_steps(
                budget, lambda t: self.events(view.sampling, t), accountant=view.accountant
            )
        except BudgetError:
            return 0

    def views(self, samplings: Sequence[Sampling] = SAMPLINGS) -> Iterator[View]:
        """All views that can price this run, the default accountant first."""
        self.events("poisson", 1)
        for accountant in ACCOUNTANTS:
            for sampling in samplings:
                for neighbours in NEIGHBOURS:
                    view = View(accountant, sampling, neighbours)
                    if self._priced(view):
                        yield view

    def _priced(self, view: View) -> bool:
        accountant = ACCOUNTANTS[view.accountant]
        try:
            accountant.profile(self.events(view.sampling, 1), view.neighbours)
        except InputError:
            return False
        return True
