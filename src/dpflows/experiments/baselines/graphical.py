"""MST and AIM: synthetic data from noisy counts of chosen tables, by graphical models.

MST counts along a privately chosen spanning tree of pairs of columns: McKenna, Miklau and Sheldon,
"Winning the NIST contest: a scalable and general approach to differentially private synthetic data"
(2021). AIM measures tables one after the other, where the current distribution fits worst: McKenna,
Mullins, Sheldon and Miklau, "AIM: an adaptive and iterative mechanism for differentially private
synthetic data" (2022). Both are implemented from the papers.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, final

import numpy as np
from jaxtyping import Int64

from dpflows.experiments.baselines.base import (
    Baseline,
    Binned,
    Clique,
    Clock,
    Codes,
    Counts,
    Graph,
    Measured,
    cells_of,
    exact_counts,
    fit_graph,
    megabytes,
    places,
)
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import BoundedRangeEvent, Event, GaussianEvent, Sensitivity, ZCDPEvent
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms import exponential_mechanism, noisy_marginals
from dpflows.privacy.mechanisms.statistics import marginals_sensitivity
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

#: A row moves the L1 distance of a table of counts from given ones by so much.
DISTANCE = Sensitivity(zero_out=1.0, add_remove=1.0, replace_one=2.0)
#: Bins whose count is within so many standard deviations of nothing are joined.
_THRESHOLD = 3.0


@final
@dataclasses.dataclass(frozen=True)
class MST(Baseline):
    """Counts of each column, of a spanning tree of pairs, and a distribution inferred from them.

    A third of the budget, in zero-concentrated privacy, goes to each of: the columns' counts,
    the choice of the tree by how far pairs are from independence, and the pairs' counts.

    Example:
        >>> MST().missing() is None or "install" in MST().missing()
        True
    """

    name: ClassVar[str] = "mst"
    title: ClassVar[str] = "MST"
    needs: ClassVar[str] = "mbi"

    def events(self, schema: Schema, budget: Budget) -> tuple[Event, ...]:
        """Two releases of counts, and a choice for each branch of the tree."""
        columns = len(schema.columns)
        return _events(columns, _noise(columns, budget))

    def draw(self, rows: Binned, budget: Budget, n: int, entropy: Entropy) -> Codes:
        """Measure, choose, measure, infer, draw."""
        clock = Clock.of(self.seconds)
        noise = _noise(len(rows.sizes), budget)
        singles = measure(
            rows, [(i,) for i in range(len(rows.sizes))], noise, entropy, "mst columns"
        )
        squeezed, squeezing = squeeze(rows, singles)
        firsts = [joined(seen, into) for seen, into in zip(singles, squeezing, strict=True)]
        tree = _tree(squeezed, [seen.counts for seen in firsts], noise, entropy)
        pairs = measure(squeezed, tree, noise, entropy, "mst pairs")
        graph = fit_graph(squeezed.sizes, [*firsts, *pairs], rows=len(rows.codes), clock=clock)
        return spread(graph.draw(n), squeezing, entropy)


def measure(
    rows: Binned, cliques: Sequence[Clique], noise: float, entropy: Entropy, purpose: str
) -> list[Measured]:
    """Noisy counts of several tables at once.

    Args:
        rows: The private rows.
        cliques: The columns of each table.
        noise: Standard deviation over the sensitivity of all tables together.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        One Gaussian release of the given noise multiplier.
    """
    if not cliques:
        return []
    at = np.column_stack([places(rows.codes, rows.sizes, clique) for clique in cliques])
    cells = [cells_of(rows.sizes, clique) for clique in cliques]
    deviation = noise * math.sqrt(len(cliques))
    released = noisy_marginals(at, cells, noise=deviation, entropy=entropy, purpose=purpose)
    pairs = zip(cliques, released.value, strict=True)
    return [Measured(clique, counts, deviation) for clique, counts in pairs]


def squeeze(
    rows: Binned, singles: Sequence[Measured]
) -> tuple[Binned, list[Int64[np.ndarray, "_"]]]:
    """Rows in fewer bins: those of which noise leaves nothing become one.

    Returns:
        The rows, and for each column the new bin of every old one.
    """
    into = [_kept(seen) for seen in singles]
    columns = [np.where(own < 0, -1, new[own]) for own, new in zip(rows.codes.T, into, strict=True)]
    return Binned(np.column_stack(columns), tuple(int(new.max()) + 1 for new in into)), into


def spread(codes: Codes, squeezing: Sequence[Int64[np.ndarray, "_"]], entropy: Entropy) -> Codes:
    """Undo ``squeeze``: bins that were joined are drawn evenly from."""
    columns = []
    for step, (own, into) in enumerate(zip(codes.T, squeezing, strict=True)):
        old, chance = np.argsort(into, kind="stable"), _uniforms(entropy, step, len(own))
        first, count = np.searchsorted(into[old], own), np.bincount(into)[own]
        columns.append(old[first + (chance * count).astype(np.int64)])
    return np.column_stack(columns)


def on_simplex(counts: Counts, total: float) -> Counts:
    """The closest counts that are not negative and have the total.

    Example:
        >>> on_simplex(np.array([7.0, 3.0, -2.0]), 10.0).tolist()
        [7.0, 3.0, 0.0]
    """
    falling = np.sort(counts)[::-1]
    surplus = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    return np.maximum(counts - surplus[falling > surplus][-1], 0.0)


def _tree(rows: Binned, singles: Sequence[Counts], noise: float, entropy: Entropy) -> list[Clique]:
    """Pairs that connect all columns, each chosen among those that connect two parts."""
    total = float(len(rows.codes))
    alone = [on_simplex(counts, total) / total for counts in singles]
    pairs = list(itertools.combinations(range(len(rows.sizes)), 2))
    gaps = {pair: _dependence(rows, pair, alone, total) for pair in pairs}
    part = list(range(len(alone)))
    chosen: list[Clique] = []
    for step in range(len(alone) - 1):
        open_pairs = [(i, j) for i, j in pairs if part[i] != part[j]]
        best = exponential_mechanism(
            np.array([gaps[pair] for pair in open_pairs]),
            sensitivity=DISTANCE,
            scale=noise * math.sqrt(len(alone) - 1),
            entropy=entropy,
            purpose=f"mst tree {step}",
        )
        chosen.append(open_pairs[best.value])
        part = _united(part, *open_pairs[best.value])
    return chosen


def _dependence(rows: Binned, pair: Clique, alone: Sequence[Counts], total: float) -> float:
    expected = total * np.outer(alone[pair[0]], alone[pair[1]]).ravel()
    return float(np.abs(exact_counts(rows.codes, rows.sizes, pair) - expected).sum())


def _united(part: Sequence[int], i: int, j: int) -> list[int]:
    return [part[i] if own == part[j] else own for own in part]


def _kept(seen: Measured) -> Int64[np.ndarray, "_"]:
    """The new number of every bin; the last is for all bins lost in noise."""
    clear = seen.counts >= _THRESHOLD * seen.noise
    return np.where(clear, np.cumsum(clear) - 1, np.count_nonzero(clear))


def joined(seen: Measured, into: Int64[np.ndarray, "_"]) -> Measured:
    """The counts of the bins after ``squeeze``; joined ones weigh less, as their noise adds up."""
    weights = np.bincount(into) ** -0.5
    return Measured(seen.clique, np.bincount(into, seen.counts), seen.noise, weights)


def _events(columns: int, noise: float) -> tuple[Event, ...]:
    def counted(tables: int, purpose: str) -> Event:
        deviation = noise * math.sqrt(tables)
        sensitivity = marginals_sensitivity(tables)
        return GaussianEvent(noise=deviation, sensitivity=sensitivity, purpose=purpose)

    branches = columns - 1
    if not branches:
        return (counted(columns, "mst columns"),)
    width = 2 / (noise * math.sqrt(branches))
    choice = BoundedRangeEvent(
        epsilon=Sensitivity(width, width, 2 * width), count=branches, purpose="mst tree"
    )
    return counted(columns, "mst columns"), choice, counted(branches, "mst pairs")


def _noise(columns: int, budget: Budget) -> float:
    """The multiplier at which all three parts cost the same and the budget together."""
    return calibrate_noise(budget, lambda noise: _events(columns, noise), accountant="zcdp")


def _uniforms(entropy: Entropy, step: int, count: int) -> np.ndarray:
    return entropy.uniforms("sampling", step=step, count=count)


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
class AIM(Baseline):
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
        spending = AIMBudget.planned(_rho(budget), _ROUNDS * columns)
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
        spending: "AIMBudget",
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
class AIMBudget:
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
        >>> spending = AIMBudget.planned(0.5, rounds=10)
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
    def planned(cls, rho: float, rounds: int) -> "AIMBudget":
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

    def after(self, cost: float) -> "AIMBudget":
        """With so much more spent."""
        return dataclasses.replace(self, spent=self.spent + cost)

    def with_less_noise(self) -> "AIMBudget":
        """Half the noise, at four times the cost."""
        return dataclasses.replace(self, noise=self.noise / 2, width=self.width * 2)

    def used_up_if_last(self) -> "AIMBudget":
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
