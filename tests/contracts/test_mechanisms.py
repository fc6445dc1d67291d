"""Every mechanism: its sensitivity on hostile rows, and its odds on neighbouring tables.

Odds are estimated with exact (OpenDP) noise. Each statistical test has exact binomial
confidence bounds with a false-alarm rate of one in a million (sparse vector: one in ten
thousand), and a twin in which the noise is 30% too small and which it must reject.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, chi2

from dpflows.errors import BudgetError, InputError
from dpflows.privacy.accounting import delta_of, epsilon_of
from dpflows.privacy.events import (
    NEIGHBOURS,
    Event,
    GaussianEvent,
    SelectionEvent,
    Sensitivity,
)
from dpflows.privacy.mechanisms import (
    SparseVector,
    categories,
    choosing,
    clipped_moments,
    counting,
    discover_categories,
    exponential_mechanism,
    moments,
    noisy_count,
    noisy_histogram,
    noisy_vote,
    private_bounds,
    private_quantile,
    quantiles,
    report_noisy_max,
    select_best,
    sparse,
    tuning,
    voting,
)
from dpflows.privacy.mechanisms.samplers import Sampler, sampler_for
from dpflows.privacy.randomness import TEST_SEED_STAMP, Entropy

FALSE_ALARM = 1e-6
OS = Entropy.from_os()
UNIT = Sensitivity.uniformly(1.0)
EDGES = np.array([-1.0, 0.0, 0.5, 1.0])
MODULES = (categories, choosing, counting, moments, quantiles, sparse, voting)


# ---------------------------------------------------------------- sensitivity on hostile rows

HOSTILE = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 0.5, 1.0]),
)
NULL = math.nan


def neighbour(rows: list, place: int, other, neighbours: str) -> list:
    """The table after one row was blanked out, removed or replaced."""
    before, after = rows[:place], rows[place + 1 :]
    middle = {"zero-out": [None], "add-remove": [], "replace-one": [other]}[neighbours]
    return [*before, *middle, *after]


def column(rows: list) -> np.ndarray:
    return np.array([NULL if row is None else row for row in rows], dtype=np.float64)


def matrix(rows: list) -> np.ndarray:
    return np.array([[NULL, NULL] if row is None else row for row in rows]).reshape(-1, 2)


def l1(difference: np.ndarray) -> float:
    return float(np.abs(difference).sum())


def linf(difference: np.ndarray) -> float:
    return float(np.abs(difference).max(initial=0.0))


@dataclasses.dataclass(frozen=True)
class Statistic:
    """What a mechanism computes before noise, how it is measured and what it claims."""

    compute: Callable[[list], np.ndarray]
    norm: Callable[[np.ndarray], float]
    claimed: Sensitivity
    row: st.SearchStrategy = HOSTILE


def category_counts(rows: list) -> np.ndarray:
    names = ["a", "b", "c", ""]
    return np.array([sum(row == name for row in rows) for name in names], dtype=np.float64)


def votes_of(rows: list) -> np.ndarray:
    """Three shards by position; each votes by the mean of its rows."""
    slots = column([*rows, *[None] * 3])
    shards = [np.nan_to_num(slots[shard::3], posinf=1.0, neginf=-1.0) for shard in range(3)]
    return np.array([float(sum(np.clip(shard, -1, 1).sum() > 0.2 for shard in shards))])


BOX = (np.array([-2.0, 0.0]), np.array([3.0, 1e-3]))
HUGE = (np.array([-1.7e308, -1e-300]), np.array([1.7e308, 3e-300]))
PAIR = st.tuples(HOSTILE, HOSTILE).map(list)

STATISTICS = {
    "histogram": Statistic(
        lambda rows: counting.bin_counts(column(rows), EDGES), l1, counting.COUNTING
    ),
    "count": Statistic(
        lambda rows: np.array([np.count_nonzero(~np.isnan(column(rows)))]), l1, UNIT
    ),
    "bounds": Statistic(
        lambda rows: counting.bin_counts(column(rows), quantiles._DOUBLING_EDGES),
        l1,
        counting.COUNTING,
    ),
    **{
        f"quantile {fraction}": Statistic(
            lambda rows, f=fraction: quantiles.quantile_scores(column(rows), EDGES, f),
            linf,
            quantiles.quantile_sensitivity(fraction),
        )
        for fraction in (0.05, 0.5, 0.9)
    },
    "categories": Statistic(
        category_counts, l1, counting.COUNTING, st.sampled_from(["a", "b", "c", ""])
    ),
    "moments": Statistic(
        lambda rows: moments.unit_sums(matrix(rows), *BOX),
        lambda d: float(np.linalg.norm(d)),
        moments.moments_sensitivity(2),
        PAIR,
    ),
    "moments in a huge box": Statistic(
        lambda rows: moments.unit_sums(matrix(rows), *HUGE),
        lambda d: float(np.linalg.norm(d)),
        moments.moments_sensitivity(2),
        PAIR,
    ),
}


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("name", STATISTICS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_row_moves_a_statistic_by_more_than_claimed(name, neighbours, data):
    statistic = STATISTICS[name]
    rows = data.draw(st.lists(statistic.row, min_size=1, max_size=8))
    place = data.draw(st.integers(0, len(rows) - 1))
    other = neighbour(rows, place, data.draw(statistic.row), neighbours)
    moved = statistic.norm(statistic.compute(rows) - statistic.compute(other))
    assert moved <= statistic.claimed.under(neighbours) * (1 + 1e-12)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@given(rows=st.lists(HOSTILE, min_size=1, max_size=9), other=HOSTILE, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_turns_at_most_one_vote(neighbours, rows, other, data):
    place = data.draw(st.integers(0, len(rows) - 1))
    changed = neighbour(rows, place, other, neighbours)
    assert l1(votes_of(rows) - votes_of(changed)) <= voting.VOTING.under(neighbours)


@given(score=HOSTILE, change=st.floats(-1, 1))
@settings(max_examples=200, deadline=None)
def test_taming_scores_does_not_stretch_them(score, change):
    tamed = choosing._tamed(np.array([score, score + change, math.nan]))
    assert tamed[2] == -1e15
    if not math.isnan(score):
        assert abs(tamed[0] - tamed[1]) <= 1 + 1e-12 or abs(score) > 1e15


@given(value=st.floats(-1e9, 1e9), change=st.floats(-1, 1))
@settings(max_examples=200, deadline=None)
def test_the_sparse_vector_lattice_does_not_stretch_values(value, change):
    steps = [round(v * sparse._LATTICE) for v in (value, value + change)]
    # Floats near 1e9 are themselves spaced by up to 1e-7.
    assert abs(steps[0] - steps[1]) <= sparse._LATTICE + 1 + 2.5e-7 * sparse._LATTICE


def test_the_worst_replacement_for_moments_is_attained():
    """The claimed 2 sqrt(columns) is not slack: a row jumps from one corner to the other."""
    low, high = np.array([[-1.0, -1.0]]), np.array([[1.0, 1.0]])
    box = (np.array([-1.0, -1.0]), np.array([1.0, 1.0]))
    moved = np.linalg.norm(moments.unit_sums(low, *box) - moments.unit_sums(high, *box))
    assert moved == pytest.approx(2 * math.sqrt(2))


@pytest.mark.parametrize("rows", [[], [NULL], [math.inf, -math.inf], [1e308, 5e-324]])
def test_hostile_columns_are_answered_not_refused(rows):
    values = np.array(rows, dtype=np.float64)
    assert noisy_histogram(values, EDGES, scale=1.0, entropy=OS).value.shape == (3,)
    assert isinstance(noisy_count(values, scale=1.0, entropy=OS).value, int)
    private_bounds(values, scale=1.0, entropy=OS)
    assert private_quantile(values, EDGES, fraction=0.3, scale=1.0, entropy=OS).value in EDGES
    table = values[:, None]
    found = clipped_moments(table, np.array([0.0]), np.array([1.0]), noise=1.0, entropy=OS).value
    assert np.isfinite([found.mean[0], found.deviation[0], found.count]).all()
    assert discover_categories([], scale=1.0, delta=1e-9, entropy=OS).value == {}


# ---------------------------------------------------------------- odds on neighbouring tables


class Buffered(Sampler):
    """OpenDP's noise, drawn in large batches, with its scale multiplied by ``factor``."""

    def __init__(self, factor: float) -> None:
        self._exact, self._factor, self._kept = sampler_for(OS, ""), factor, {}

    def discrete_laplace(self, values, scale: float) -> list[int]:
        return [value + self._draw(scale) for value in values]

    def gaussian(self, values, noise: float) -> list[float]:
        return self._exact.gaussian(values, noise * self._factor)

    def noisy_max(self, scores, scale: float, law) -> int:
        return self._exact.noisy_max(scores, scale * self._factor, law)

    def _draw(self, scale: float) -> int:
        kept = self._kept.setdefault(scale, [])
        if not kept:
            kept.extend(self._exact.discrete_laplace([0] * 4000, scale * self._factor))
        return kept.pop()


@pytest.fixture
def noise(monkeypatch):
    """Make all mechanisms draw from OpenDP in batches, with a planted factor on the scale."""

    def plant(factor: float) -> None:
        sampler = Buffered(factor)
        for module in MODULES:
            if hasattr(module, "sampler_for"):
                monkeypatch.setattr(module, "sampler_for", lambda *_: sampler)
        monkeypatch.setattr(quantiles, "_DOUBLING_EDGES", np.array([0.0, 2.0, 4.0, 8.0]))

    return plant


@dataclasses.dataclass(frozen=True)
class Trial:
    """An outcome that tells two neighbouring tables apart as well as any."""

    outcome: Callable[[int], bool]
    epsilon: float
    delta: float = 0.0
    odds: bool = False
    runs: int = 4000
    alarm: float = FALSE_ALARM


def in_bin(rows: list[float]) -> bool:
    return bool(noisy_histogram(np.array(rows), EDGES, scale=1.0, entropy=OS).value[1] >= 1)


def in_first_not_second(rows: list[float]) -> bool:
    first, second = noisy_histogram(np.array(rows), EDGES, scale=1.0, entropy=OS).value[1:]
    return bool(first >= 1 and second <= 0)


def counted(rows: list[float]) -> bool:
    return noisy_count(np.array(rows), scale=1.0, entropy=OS).value >= 1


def bounded(rows: list[float]) -> bool:
    """Over the three bins that the fixture leaves; a noisy count of two makes one visible."""
    return private_bounds(np.array(rows), scale=1.0, miss=0.5, entropy=OS).value == (2.0, 4.0)


def upper_median(rows: list[float]) -> bool:
    candidates = np.array([0.0, 1.0])
    release = private_quantile(np.array(rows), candidates, fraction=0.5, scale=0.5, entropy=OS)
    return release.value == 1.0


def chosen(scores: list[float]) -> bool:
    release = exponential_mechanism(np.array(scores), sensitivity=UNIT, scale=1.0, entropy=OS)
    return release.value == 0


def reported(scores: list[float]) -> bool:
    release = report_noisy_max(np.array(scores), sensitivity=UNIT, scale=4 / 3, entropy=OS)
    return release.value == 0


def shown(rows: list[str], delta: float) -> bool:
    return "a" in discover_categories(rows, scale=1.0, delta=delta, entropy=OS).value


def heavy_moments(rows: np.ndarray) -> bool:
    """The noisy total of (1, x, x^2), read back from the moments; the midpoint decides."""
    found = clipped_moments(
        rows, np.array([-1.0]), np.array([1.0]), noise=math.sqrt(3), entropy=OS
    ).value
    mean, square = found.mean[0], found.deviation[0] ** 2 + found.mean[0] ** 2
    return bool(found.count * (1 + mean + square) > 400 * 1.25 + 1.5)


def answers(first: float, last: float) -> bool:
    """Six times no and then yes: the threshold's noise must not be spent for free."""
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=3.0, positives=1, entropy=OS)
    return not any(stream.exceeds(first) for _ in range(6)) and stream.exceeds(last)


SPREAD = np.concatenate([np.full(200, -0.5), np.full(200, 0.5)])[:, None]
THRESHOLD = categories.discovery_threshold(1.0, 1e-6)

TRIALS = {
    "count": Trial(lambda side: counted([[1.0], []][side]), 1.0),
    "histogram": Trial(lambda side: in_bin([[0.2], [NULL]][side]), 1.0),
    "histogram, replaced": Trial(lambda side: in_first_not_second([[0.2], [0.7]][side]), 2.0),
    "bounds": Trial(lambda side: bounded([[3.0, 3.0], [3.0, NULL]][side]), 1.0),
    "quantile": Trial(
        lambda side: upper_median([[0.0, 2.0], [0.0]][side]), 2.0, odds=True, runs=2500
    ),
    "exponential": Trial(
        lambda side: chosen([[1.0, 0.0], [0.0, 1.0]][side]), 2.0, odds=True, runs=2500
    ),
    "noisy max": Trial(lambda side: reported([[1.0, 1.0], [0.0, 2.0]][side]), 1.5),
    "vote": Trial(lambda side: noisy_vote([26, 25][side], 50, scale=1.0, entropy=OS).value, 1.0),
    "categories": Trial(lambda side: shown(["a"] * (THRESHOLD - side), 1e-6), 1.0),
    "moments": Trial(
        lambda side: heavy_moments([np.vstack([SPREAD, [[1.0]]]), SPREAD][side]),
        0.0,
        # Two unit Gaussians at distance one.
        delta=math.erf(0.5 / math.sqrt(2)),
        runs=2500,
    ),
    "sparse vector": Trial(
        lambda side: answers(*[(-0.5, 0.5), (0.5, -0.5)][side]), 3.0, runs=40_000, alarm=1e-4
    ),
}


def confidence(hits: int, runs: int, alarm: float = FALSE_ALARM) -> tuple[float, float]:
    """Exact two-sided binomial bounds; each fails in at most half of the false alarms."""
    tail = alarm / 2
    lower = beta.ppf(tail, hits, runs - hits + 1) if hits else 0.0
    upper = beta.isf(tail, hits + 1, runs - hits) if hits < runs else 1.0
    return float(lower), float(upper)


def exceeds_claim(trial: Trial) -> bool:
    """Whether the outcome is surely likelier on one table than the claim allows."""
    hits = [sum(trial.outcome(side) for _ in range(trial.runs)) for side in (0, 1)]
    lower = confidence(hits[0], trial.runs, trial.alarm)[0]
    upper = confidence(hits[1], trial.runs, trial.alarm)[1]
    if trial.odds:
        lower, upper = lower / (1 - lower), upper / (1 - upper)
    return lower > math.exp(trial.epsilon) * upper + trial.delta


@pytest.mark.parametrize("name", TRIALS)
def test_odds_never_exceed_the_claim(name, noise):
    """False alarms: at most ``trial.alarm``, one in a million unless said otherwise."""
    noise(1.0)
    trial = TRIALS[name]
    assert not exceeds_claim(dataclasses.replace(trial, runs=min(trial.runs, 8000)))


@pytest.mark.parametrize("name", TRIALS)
def test_the_test_rejects_thirty_percent_too_little_noise(name, noise):
    noise(0.7)
    assert exceeds_claim(TRIALS[name])


RARE = Trial(lambda side: shown([["a"], [None]][side], 0.05), 0.0, delta=0.05)


def test_a_category_of_one_row_shows_with_chance_delta_at_most(noise):
    """False alarms: at most one in a million runs."""
    noise(1.0)
    assert not exceeds_claim(RARE)


def test_the_test_rejects_a_threshold_thirty_percent_too_low(noise, monkeypatch):
    noise(1.0)
    right = categories.discovery_threshold
    monkeypatch.setattr(
        categories, "discovery_threshold", lambda scale, delta: 0.7 * right(scale, delta)
    )
    assert exceeds_claim(RARE)


def test_claims_match_the_events():
    """The epsilons tried above are those that the events state."""

    def cost(event: Event, neighbours: str = "zero-out") -> float:
        if isinstance(event, GaussianEvent):
            return delta_of([event], epsilon=0.0, neighbours=neighbours)
        return epsilon_of([event], delta=1e-9, neighbours=neighbours)

    rows, near = np.array([0.2]), pytest.approx
    histogram = noisy_histogram(rows, EDGES, scale=1.0, entropy=OS).event
    assert cost(histogram) == near(1.0, abs=1e-3)
    assert cost(histogram, "replace-one") == near(2.0, abs=1e-3)
    quantile = private_quantile(rows, EDGES, fraction=0.5, scale=0.5, entropy=OS).event
    assert quantile.epsilon.under("zero-out") == 2.0
    choice = exponential_mechanism(np.zeros(2), sensitivity=UNIT, scale=1.0, entropy=OS).event
    assert choice.epsilon.under("replace-one") == 2.0
    report = report_noisy_max(np.zeros(2), sensitivity=UNIT, scale=4 / 3, entropy=OS).event
    assert cost(report) == near(1.5, abs=1e-3)
    found = clipped_moments(
        SPREAD, np.array([-1.0]), np.array([1.0]), noise=math.sqrt(3), entropy=OS
    ).event
    assert cost(found) == near(TRIALS["moments"].delta, abs=1e-4)
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=3.0, positives=1, entropy=OS)
    assert cost(stream.event) == near(3.0, abs=1e-3)


# ---------------------------------------------------------------- private selection


def runs_drawn(mean: float, shape: float | None, draws: int = 4000) -> np.ndarray:
    return np.array([tuning.draw_runs(mean, shape, entropy=OS) for _ in range(draws)])


def misfit(drawn: np.ndarray, chances: np.ndarray) -> float:
    """The chance of a worse fit (chi-square over cells that expect at least ten)."""
    cells = np.append(np.flatnonzero(len(drawn) * chances >= 10), len(chances))
    expected = np.array([chances[cell] for cell in cells[:-1]]) * len(drawn)
    observed = np.array([np.count_nonzero(drawn == cell) for cell in cells[:-1]])
    rest = np.array([len(drawn) - expected.sum(), len(drawn) - observed.sum()])
    statistic = float(((observed - expected) ** 2 / expected).sum())
    statistic += (rest[1] - rest[0]) ** 2 / max(rest[0], 1.0)
    return float(chi2.sf(statistic, len(cells) - 1))


@pytest.mark.parametrize("shape", [1.0, 0.0, 0.5, None])
def test_the_number_of_runs_has_the_law_that_is_charged(shape):
    """False alarms: about one in a million; a mean 25% off must be rejected."""
    drawn = runs_drawn(6.0, shape)
    assert misfit(drawn, tuning.run_chances(6.0, shape)) > FALSE_ALARM
    assert misfit(runs_drawn(6.0 * 1.25, shape), tuning.run_chances(6.0, shape)) < FALSE_ALARM


@pytest.mark.parametrize("shape", [1.0, 0.0, 0.5, 3.0, None])
@pytest.mark.parametrize("mean", [1.5, 10.0, 200.0])
def test_the_law_has_the_mean_that_is_charged(shape, mean):
    chances = tuning.run_chances(mean, shape)
    assert chances.sum() == pytest.approx(1.0)
    assert chances @ np.arange(len(chances)) == pytest.approx(mean, rel=1e-6)


def test_selection_returns_the_best_run_and_charges_all():
    paid = (GaussianEvent(noise=30.0, sensitivity=UNIT),)
    seen = []

    def run(index: int) -> tuple[int, float]:
        seen.append(index)
        return index, math.nan if index == 9 else float(index)

    release = select_best(run, 10, run_events=paid, mean=50.0, entropy=OS)
    assert release.value == max((index for index in seen if index != 9), default=9)
    assert release.event == SelectionEvent(run=paid, mean=50.0, shape=1.0, purpose="selection")
    once, many = epsilon_of(paid, delta=1e-6), epsilon_of([release.event], delta=1e-6)
    assert once < many < epsilon_of(paid * 50, delta=1e-6)


def test_selection_matches_the_published_formula():
    """Papernot and Steinke (2022), Theorem 2, for a geometric law and Gaussian runs."""
    mean, rho, delta = 8.0, 1 / (2 * 20.0**2), 1e-6
    orders = np.geomspace(1.01, 600, 3000)
    # Minimise over the auxiliary order of the theorem, here on the same grid.
    extra = 2 * (1 - 1 / orders) * rho * orders + 2 * math.log(mean) / orders
    curve = rho * orders + extra.min() + math.log(mean) / (orders - 1)
    best = curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    run = (GaussianEvent(noise=20.0, sensitivity=UNIT),)
    event = SelectionEvent(run=run, mean=mean, shape=1.0)
    claimed = epsilon_of([event], delta=delta, accountant="rdp")
    # The accountant knows fewer orders than this grid, so it finds slightly more.
    assert best.min() <= claimed <= 1.04 * best.min()


def test_a_poisson_law_may_select_nothing():
    results = {
        select_best(lambda i: (i, 0.0), 1, run_events=(), mean=0.5, shape=None, entropy=OS).value
        for _ in range(60)
    }
    assert results == {None, 0}


# ---------------------------------------------------------------- seeds, refusals, limits

SEEDED = {
    "count": lambda e: noisy_count(np.ones(9), scale=3.0, entropy=e),
    "histogram": lambda e: noisy_histogram(np.ones(9), EDGES, scale=3.0, entropy=e),
    "quantile": lambda e: private_quantile(np.ones(9), EDGES, fraction=0.5, scale=9.0, entropy=e),
    "bounds": lambda e: private_bounds(np.ones(900), scale=3.0, entropy=e),
    "categories": lambda e: discover_categories(["a"] * 99, scale=3.0, delta=0.01, entropy=e),
    "moments": lambda e: clipped_moments(
        SPREAD, np.array([-1.0]), np.array([1.0]), noise=3.0, entropy=e
    ),
    "exponential": lambda e: exponential_mechanism(
        np.zeros(50), sensitivity=UNIT, scale=3.0, entropy=e
    ),
    "noisy max": lambda e: report_noisy_max(np.zeros(50), sensitivity=UNIT, scale=3.0, entropy=e),
    "vote": lambda e: noisy_vote(5, 9, scale=3.0, entropy=e),
    "selection": lambda e: select_best(lambda i: (i, 0.0), 50, run_events=(), mean=5.0, entropy=e),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_test_seed_repeats_itself_and_leaves_its_stamp(name):
    one, two = (SEEDED[name](Entropy.insecure(5)) for _ in range(2))
    assert repr(one.value) == repr(two.value)
    assert one.stamp == TEST_SEED_STAMP
    assert SEEDED[name](OS).stamp == ""


@pytest.mark.parametrize("law", ["laplace", "gaussian", "gumbel", "exponential"])
def test_seeded_noise_follows_the_same_law_as_exact_noise(law):
    """Frequencies of one outcome; false alarms: at most four in a million."""

    def frequency(sampler: Callable[[int], Sampler]) -> tuple[float, float]:
        def outcome(run: int) -> bool:
            if law == "laplace":
                return sampler(run).discrete_laplace([0], 2.0)[0] >= 1
            if law == "gaussian":
                return sampler(run).gaussian([0.0], 2.0)[0] >= 1.0
            return sampler(run).noisy_max([0.0, 1.0], 2.0, law) == 0

        return confidence(sum(outcome(run) for run in range(2500)), 2500)

    exact = frequency(lambda run: sampler_for(OS, ""))
    seeded = frequency(lambda run: sampler_for(Entropy.insecure(run), "x"))
    assert exact[0] <= seeded[1]
    assert seeded[0] <= exact[1]


@pytest.mark.parametrize(
    ("attempt", "parameter"),
    [
        (lambda: noisy_count(np.ones(3), scale=0.0, entropy=OS), "scale"),
        (lambda: noisy_histogram(np.ones(3), EDGES, scale=-1.0, entropy=OS), "scale"),
        (lambda: noisy_histogram(np.ones(3), EDGES[::-1], scale=1.0, entropy=OS), "edges"),
        (lambda: noisy_histogram(np.ones(3), EDGES[:1], scale=1.0, entropy=OS), "edges"),
        (
            lambda: private_quantile(np.ones(3), EDGES, fraction=1.0, scale=1.0, entropy=OS),
            "fraction",
        ),
        (lambda: private_bounds(np.ones(3), scale=1.0, miss=0.0, entropy=OS), "miss"),
        (lambda: discover_categories(["a"], scale=1.0, delta=0.0, entropy=OS), "delta"),
        (
            lambda: clipped_moments(SPREAD, np.ones(1), np.ones(1), noise=1.0, entropy=OS),
            "lower",
        ),
        (
            lambda: clipped_moments(SPREAD, np.zeros(1), np.ones(1), noise=0.0, entropy=OS),
            "noise",
        ),
        (lambda: noisy_vote(5, 3, scale=1.0, entropy=OS), "votes"),
        (lambda: noisy_vote(0, 0, scale=1.0, entropy=OS), "voters"),
        (
            lambda: exponential_mechanism(np.zeros(0), sensitivity=UNIT, scale=1.0, entropy=OS),
            "scores",
        ),
        (
            lambda: SparseVector(0.0, sensitivity=UNIT, epsilon=0.0, positives=1, entropy=OS),
            "epsilon",
        ),
        (
            lambda: SparseVector(0.0, sensitivity=UNIT, epsilon=1.0, positives=0, entropy=OS),
            "positives",
        ),
        (lambda: select_best(lambda i: (i, 0.0), 0, run_events=(), mean=2.0, entropy=OS), "cand"),
        (lambda: select_best(lambda i: (i, 0.0), 1, run_events=(), mean=1.0, entropy=OS), "mean"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(attempt, parameter):
    with pytest.raises(InputError, match=parameter) as refusal:
        attempt()
    assert "\n" not in str(refusal.value)


def test_a_sparse_vector_stops_after_its_positives():
    stream = SparseVector(0.0, sensitivity=UNIT, epsilon=50.0, positives=2, entropy=OS)
    assert [stream.exceeds(v) for v in (100.0, -100.0, math.nan, math.inf)] == [
        True,
        False,
        False,
        True,
    ]
    with pytest.raises(BudgetError, match="positives"):
        stream.exceeds(0.0)


def test_the_discovery_threshold_keeps_its_delta():
    """The exact tail of the noise at the threshold is at most delta, and not far below."""
    for scale in (0.3, 1.0, 20.0):
        for delta in (1e-3, 1e-9):
            gap = categories.discovery_threshold(scale, delta) - 1
            tail = math.exp(-gap / scale) / (1 + math.exp(-1 / scale))
            assert tail <= delta
            assert gap == 1 or tail * math.exp(1 / scale) > delta
