"""AIM: an adaptive and iterative mechanism for synthetic data.

Tables of counts are measured one after the other, where the current distribution fits worst.
McKenna, Mullins, Sheldon and Miklau, "AIM: an adaptive and iterative mechanism for
differentially private synthetic data" (2022), implemented from the paper.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, final

import numpy as np

from dpflows.experiments.baselines.base import (
    Binned,
    Clique,
    Clock,
    Codes,
    Graph,
    Measured,
    Peer,
    cells_of,
    exact_counts,
    fit_graph,
    megabytes,
)
from dpflows.experiments.baselines.mst import DISTANCE, measure
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import Event, Sensitivity, ZCDPEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms import exponential_mechanism
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

#: The share of each round that buys counts; the rest buys the choice of the table.
_SHARE = 0.9
#: So many rounds are planned for each column, before the noise is lowered.
_ROUNDS = 16
#: The mean size of a unit Gaussian.
_MEAN_NOISE = math.sqrt(2 / math.pi)
#: Mirror descent starts where the round before ended.
_ITERATIONS = 1000


@final
@dataclasses.dataclass(frozen=True)
class AIM(Peer):
    """Every round spends on the pair, or column, that the distribution so far explains worst.

    Attributes:
        megabytes: How large the distribution may become; it grows with what is spent.
    """

    megabytes: float = 80.0

    name: ClassVar[str] = "aim"
    title: ClassVar[str] = "AIM"
    needs: ClassVar[str] = "mbi"

    def events(self, schema: Schema, budget: Budget) -> tuple[Event, ...]:
        """What all rounds together cost at most, whatever they choose."""
        return (_all_rounds(_rho(budget)),)

    def draw(self, rows: Binned, budget: Budget, n: int, entropy: Entropy) -> Codes:
        """Measure every column, then what is worst, until the budget is spent."""
        columns, fit = len(rows.sizes), _fitting(rows, Clock.of(self.seconds))
        spending = Spending.planned(_rho(budget), _ROUNDS * columns)
        noise = spending.noise / math.sqrt(columns)
        seen = measure(rows, [(i,) for i in range(columns)], noise, entropy, "aim columns")
        graph = fit(seen, iterations=_ITERATIONS)
        spending = spending.after(columns * spending.cost_of_counts)
        while spending.left > 0:
            spending = spending.used_up_if_last()
            best = self._worst(rows, graph, seen, spending, entropy)
            purpose = f"aim round {len(seen)}"
            seen += measure(rows, [best], spending.noise, entropy, purpose)
            before, graph = graph, fit(seen, start=graph, iterations=_ITERATIONS)
            spending = spending.after(spending.cost)
            if _is_noise(before, graph, best, cells_of(rows.sizes, best), spending.noise):
                spending = spending.with_less_noise()
        return fit(seen, start=graph).draw(n)

    def _worst(
        self,
        rows: Binned,
        graph: Graph,
        seen: Sequence[Measured],
        spending: "Spending",
        entropy: Entropy,
    ) -> Clique:
        """A column or pair, chosen in private by how far its counts are from expected ones."""
        known = [one.clique for one in seen]
        room = self.megabytes * spending.share_spent
        able = [one for one in _workload(len(rows.sizes)) if _fits(rows.sizes, known, one, room)]
        scores = [_score(rows, graph, clique, spending.noise) for clique in able]
        best = exponential_mechanism(
            np.array(scores),
            sensitivity=DISTANCE,
            scale=2 / spending.width,
            entropy=entropy,
            purpose=f"aim choice {len(seen)}",
        )
        return able[best.value]


@final
@dataclasses.dataclass(frozen=True)
class Spending:
    """The budget spent so far, in zCDP, and the cost of a round.

    Attributes:
        rho: The total budget.
        spent: The budget spent so far.
        noise: Standard deviation of counts.
        width: The range of a choice: the bound on its change of log probability ratios.

    Guarantee:
        Rounds cost what ``cost`` says, and never more than ``left`` if ``used_up_if_last``
        was asked before. Noise may depend on what was released, since these costs add up.

    Example:
        >>> spending = Spending.planned(0.5, rounds=10)
        >>> round(spending.cost, 3), round(spending.with_less_noise().cost, 3)
        (0.05, 0.2)
        >>> round(spending.after(0.42).used_up_if_last().cost, 3)
        0.08
    """

    rho: float
    spent: float
    noise: float
    width: float

    @classmethod
    def planned(cls, rho: float, rounds: int) -> "Spending":
        """Nothing spent yet, and a budget that lasts for so many rounds."""
        return cls(rho, 0.0, *_noise_and_width(rho / rounds))

    @property
    def cost_of_counts(self) -> float:
        """The cost of one table."""
        return 1 / (2 * self.noise**2)

    @property
    def cost(self) -> float:
        """The cost of one choice and one table."""
        return self.cost_of_counts + self.width**2 / 8

    @property
    def left(self) -> float:
        """What may still be spent; nothing where it is only rounding."""
        return max(0.0, self.rho - self.spent) if self.spent < self.rho * (1 - 1e-9) else 0.0

    @property
    def share_spent(self) -> float:
        """How much of all will have been spent after this round."""
        return min(1.0, (self.spent + self.cost) / self.rho)

    def after(self, cost: float) -> "Spending":
        """With so much more spent."""
        return dataclasses.replace(self, spent=self.spent + cost)

    def with_less_noise(self) -> "Spending":
        """Half the noise, at four times the cost."""
        return dataclasses.replace(self, noise=self.noise / 2, width=self.width * 2)

    def used_up_if_last(self) -> "Spending":
        """All that is left in this round, if it would not suffice for two."""
        if self.left > 2 * self.cost:
            return self
        noise, width = _noise_and_width(self.left)
        return dataclasses.replace(self, noise=noise, width=width)


def _noise_and_width(cost: float) -> tuple[float, float]:
    return math.sqrt(1 / (2 * _SHARE * cost)), math.sqrt(8 * (1 - _SHARE) * cost)


def _fitting(rows: Binned, clock: Clock) -> Callable[..., Graph]:
    """Fits to counts of these rows, of which only the public sizes are used."""
    return functools.partial(fit_graph, rows.sizes, rows=len(rows.codes), clock=clock)


def _workload(columns: int) -> list[Clique]:
    singles = [(i,) for i in range(columns)]
    return [*singles, *itertools.combinations(range(columns), 2)]


def _score(rows: Binned, graph: Graph, clique: Clique, noise: float) -> float:
    """The distance beyond that of noise; a column matters to its own pairs, half as much."""
    weight = len(clique) / 2
    gap = np.abs(exact_counts(rows.codes, rows.sizes, clique) - graph.counts(clique)).sum()
    return weight * float(gap - _MEAN_NOISE * noise * cells_of(rows.sizes, clique))


def _fits(sizes: Sequence[int], known: Sequence[Clique], new: Clique, room: float) -> bool:
    if any(set(new) <= set(clique) for clique in known):
        return True
    return megabytes(sizes, [*known, new]) <= room


def _is_noise(before: Graph, after: Graph, clique: Clique, cells: int, noise: float) -> bool:
    """Whether the last counts changed the distribution by less than their noise would."""
    moved = np.abs(after.counts(clique) - before.counts(clique)).sum()
    return bool(moved <= _MEAN_NOISE * noise * cells)


def _all_rounds(rho: float) -> Event:
    # exchanging a row costs counts twice and choices four times as much
    return ZCDPEvent(rho=Sensitivity(rho, rho, 4 * rho), purpose="aim")


def _rho(budget: Budget) -> float:
    noise = calibrate_noise(budget, lambda z: [_all_rounds(z**-2)], accountant="zcdp")
    return noise**-2
