"""Our sparse vector against the known wrong ones, by one test at one claimed epsilon.

The wrong ones are those that Lyu, Su and Li (2017, Figure 1) found in the literature and
other well known blunders. The test asks whether an outcome is likelier on one of two
neighbouring streams than exp(epsilon) times its chance on the other, by exact binomial
bounds over all outcomes of the battery. False alarms: at most one in a million per test.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, laplace

from dpflows.privacy.events import Sensitivity
from dpflows.privacy.mechanisms import SparseVector, selection
from dpflows.privacy.randomness import Entropy, Sampler, sampler_for

FALSE_ALARM = 1e-6
EPSILON = 2.0
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """So many times no, then so many times yes, on two streams that differ by one everywhere.

    One row lowers the first values by one and raises the last ones. ``shown`` also asks that
    a noisy value is revealed with the last answer and is at most that large; a mechanism
    that reveals no value never has such an outcome.
    """

    refused: tuple[int, float]
    granted: tuple[int, float]
    shown: float = math.inf

    @property
    def positives(self) -> int:
        return self.granted[0]

    @property
    def pattern(self) -> list[bool]:
        return [False] * self.refused[0] + [True] * self.granted[0]

    def stream(self, side: int) -> list[float]:
        (nos, low), (yeses, high) = self.refused, self.granted
        return [low + side] * nos + [high - side] * yeses


#: The threshold is zero. Each outcome is common enough on the first stream to be seen often.
BATTERY = {
    "six no, one yes": Outcome((6, -0.5), (1, 0.5)),
    "six no, one yes with a value": Outcome((6, -0.5), (1, 0.5), shown=1.0),
    "four no, four yes": Outcome((4, -1.5), (4, 0.5)),
}
#: How often the class itself is run: the bugs planted below slip through once in a thousand.
RUNS = {"six no, one yes": 20_000, "four no, four yes": 10_000}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A sparse vector by its Laplace scales, for a sensitivity of one, and its habits."""

    threshold: float
    value: float
    shared: bool = False
    reveals: bool = False

    def chance(self, outcome: Outcome, side: int, runs: int, draw: np.random.Generator) -> int:
        """How many of ``runs`` streams end in the outcome."""
        stream = np.array(outcome.stream(side))
        bar = self.threshold * draw.laplace(size=(runs, 1))
        noise = self.value * draw.laplace(size=(runs, 1 if self.shared else len(stream)))
        seen = (stream + noise >= bar) == np.array(outcome.pattern)
        if not self.reveals:
            return int(seen.all(axis=1).sum()) if math.isinf(outcome.shown) else 0
        return int((seen.all(axis=1) & ((stream + noise)[:, -1] <= outcome.shown)).sum())

    def exact(self, outcome: Outcome, side: int) -> float:
        """The chance of the outcome by an integral over the threshold's noise, if not shared."""
        grid = np.linspace(-50, 50, 40_001) + 1e-7 if self.threshold else np.zeros(1)
        weights, bar = laplace.pdf(grid), grid * max(self.threshold, 1e-300)
        stream = outcome.stream(side)
        nos = self._below(bar - stream[0]) ** outcome.refused[0]
        above = self._below(stream[-1] - bar) - self._below(stream[-1] - np.array(outcome.shown))
        yeses = np.maximum(above, 0.0) ** outcome.granted[0]
        return float(weights @ (nos * yeses) / weights.sum())

    def _below(self, gap: np.ndarray) -> np.ndarray:
        return laplace.cdf(gap, scale=self.value) if self.value else np.heaviside(gap, 0.0)

    def attained(self, outcome: Outcome) -> float:
        """The epsilon that this outcome alone shows on this pair of streams."""
        absent = self.exact(outcome, 1)
        return math.log(self.exact(outcome, 0) / absent) if absent else math.inf


def ours(positives: int, epsilon: float = EPSILON) -> Variant:
    threshold, value = (
        scale / selection._QUERY_LATTICE for scale in selection._scales(epsilon, positives)
    )
    return Variant(threshold, value)


#: Each by the number of yes that were bought, with its true epsilon where 2 is claimed, and
#: what the battery's outcomes attain of it. Patterns have exactly that many yes, so a missing
#: cut-off shows in noise that does not grow with them.
WRONG = {
    # Each no costs up to half of the values' share per positive: unbounded in the number of
    # questions. Six no and one yes attain 3.79.
    "no threshold noise": lambda c: dataclasses.replace(ours(c), threshold=0.0),
    # Stoddard, Chen and Machanavajjhala 2014: unbounded. A value below and a value above the
    # bar cannot change places, so the outcome is impossible on the second stream.
    "no query noise": lambda c: Variant(2 / EPSILON, 0.0),
    # Chen, Xiao, Zhang and Xu 2015: unbounded in the number of yes. Four no, four yes: 4.18.
    "no cut-off": lambda c: Variant(2 / EPSILON, 2 / EPSILON),
    # Lee and Clifton 2014: (1 + 6 c)/4 times the claim, 12.5 for four yes. Attained: 5.14.
    "query noise without the positives": lambda c: Variant(4 / EPSILON, 4 / (3 * EPSILON)),
    # Roth's notes of 2011: unbounded. A shown value bounds the bar from above, which makes
    # each earlier no cost. Six no and one yes shown below one attain 4.38.
    "the noisy value revealed": lambda c: Variant(2 / EPSILON, 2 * c / EPSILON, reveals=True),
    # A yes costs twice the values' share: 3.23 for one positive, of which 3.06 is attained.
    "query noise without the factor two": lambda c: dataclasses.replace(
        ours(c), value=ours(c).value / 2
    ),
    # Unbounded for the same reason as no query noise at all.
    "one noise for all queries": lambda c: dataclasses.replace(ours(c), shared=True),
}


def bounds(hits: int, runs: int) -> tuple[float, float]:
    """Exact binomial bounds, each wrong in its share of the battery's false alarms."""
    alarm = FALSE_ALARM / len(BATTERY) / 2
    lower = beta.ppf(alarm, hits, runs - hits + 1) if hits else 0.0
    upper = beta.isf(alarm, hits + 1, runs - hits) if hits < runs else 1.0
    return float(lower), float(upper)


def violated(hits: tuple[int, int], runs: int) -> bool:
    """Whether the outcome is surely likelier on the first stream than the claim allows."""
    return bounds(hits[0], runs)[0] > math.exp(EPSILON) * bounds(hits[1], runs)[1]


def simulated(variant_for, outcome: Outcome, runs: int = 200_000) -> bool:
    draw, variant = np.random.default_rng(), variant_for(outcome.positives)
    hits = tuple(variant.chance(outcome, side, runs, draw) for side in (0, 1))
    return violated(hits, runs)


@pytest.mark.parametrize("name", WRONG)
def test_the_battery_rejects_every_wrong_variant(name):
    assert any(simulated(WRONG[name], outcome) for outcome in BATTERY.values())


def test_the_battery_passes_our_noise():
    assert not any(simulated(ours, outcome) for outcome in BATTERY.values())


@pytest.mark.parametrize(
    ("name", "outcome", "attained"),
    [
        ("no threshold noise", "six no, one yes", 3.79),
        ("no query noise", "six no, one yes", math.inf),
        ("no cut-off", "four no, four yes", 4.18),
        ("query noise without the positives", "four no, four yes", 5.14),
        ("the noisy value revealed", "six no, one yes with a value", 4.38),
        ("query noise without the factor two", "six no, one yes", 3.06),
    ],
)
def test_wrong_variants_truly_cost_more(name, outcome, attained):
    """No chance involved: the integral over the threshold's noise."""
    variant = WRONG[name](BATTERY[outcome].positives)
    assert variant.attained(BATTERY[outcome]) == pytest.approx(attained, abs=0.01)


@pytest.mark.parametrize("positives", [1, 2, 4])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_our_noise_keeps_the_claim_and_uses_all_of_it(positives, epsilon):
    """Rare outcomes of long streams attain the claim but for the lattice, and none exceeds it."""
    variant = ours(positives, epsilon)
    found = [
        variant.attained(Outcome((nos, low), (positives, high)))
        for nos in (1, 6, 60)
        for low in (-2.0, -0.5, 0.5)
        for high in (-6.0, 0.5)
    ]
    assert epsilon * (1 - 2e-6) < max(found) <= epsilon


class Batched(Sampler):
    """OpenDP's exact noise, drawn in large batches."""

    def __init__(self) -> None:
        self._exact, self._kept = sampler_for(OS, ""), {}

    def discrete_laplace(self, values, scale: float) -> list[int]:
        kept = self._kept.setdefault(scale, [])
        if len(kept) < len(values):
            kept.extend(self._exact.discrete_laplace([0] * 5000, scale))
        return [value + kept.pop() for value in values]

    def gaussian(self, values, noise: float, *, lattice=None) -> list[float]:
        raise NotImplementedError

    def noisy_max(self, scores, scale: float, law) -> int:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _batches(monkeypatch):
    sampler = Batched()
    monkeypatch.setattr(selection, "sampler_for", lambda *_: sampler)


def real(outcome: Outcome, runs: int, positives: int | None = None) -> bool:
    """The same test on answers of the class itself."""
    asked = positives or outcome.positives
    return violated(tuple(_hits(outcome, side, runs, asked) for side in (0, 1)), runs)


def _hits(outcome: Outcome, side: int, runs: int, positives: int) -> int:
    values, pattern = outcome.stream(side), outcome.pattern
    return sum(_matches(values, pattern, positives) for _ in range(runs))


def _matches(values: list[float], pattern: list[bool], positives: int) -> bool:
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=EPSILON, positives=positives, entropy=OS)
    return all(
        not stream.exhausted and stream.exceeds(value) == expected
        for value, expected in zip(values, pattern, strict=True)
    )


@pytest.mark.parametrize(
    "name", [pytest.param("six no, one yes", marks=pytest.mark.long), "four no, four yes"]
)
def test_our_class_passes(name):
    assert not real(BATTERY[name], RUNS[name])


@dataclasses.dataclass(frozen=True)
class Bug:
    """What becomes of the class's scales for the threshold and the values, and who sees it."""

    scales: Callable[[float, float, int], tuple[float, float]]
    outcome: str
    runs: int
    positives: int | None = None


CHEN = 2 * selection._QUERY_LATTICE / EPSILON
PLANTED = {
    "no threshold noise": Bug(lambda bar, value, c: (1e-3, value), "six no, one yes", 20_000),
    "no query noise": Bug(lambda bar, value, c: (bar, 1e-3), "six no, one yes", 2500),
    "query noise without the positives": Bug(
        lambda bar, value, c: (bar, value / (2 * c)), "four no, four yes", 10_000
    ),
    "no cut-off": Bug(
        lambda bar, value, c: (CHEN, CHEN), "four no, four yes", 10_000, positives=10**6
    ),
}


#: Planted in the class by `make test-long`; the battery rejects them by simulation anyhow.
SLOW = ("no threshold noise", "query noise without the positives", "no cut-off")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in PLANTED]
)
def test_the_test_rejects_bugs_planted_in_our_class(name, monkeypatch):
    right, bug = selection._scales, PLANTED[name]
    monkeypatch.setattr(selection, "_scales", lambda e, c: bug.scales(*right(e, c), c))
    assert real(BATTERY[bug.outcome], bug.runs, bug.positives)


@pytest.mark.long
def test_the_test_rejects_our_class_without_the_factor_two(monkeypatch):
    right = selection._scales
    monkeypatch.setattr(selection, "_scales", lambda e, c: (right(e, c)[0], right(e, c)[1] / 2))
    assert real(BATTERY["six no, one yes"], 40_000)


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_our_class_passes_many_more_runs(name):
    assert not real(BATTERY[name], 4 * RUNS[name])


def test_our_class_stops_where_it_must():
    """Four yes after one positive was bought: no stream ends that way."""
    assert _hits(BATTERY["four no, four yes"], 0, 300, positives=1) == 0
