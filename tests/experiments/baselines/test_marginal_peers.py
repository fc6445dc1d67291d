"""MST and AIM: the price of what they release, and what comes out."""

import itertools
import math

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.experiments.baselines import BASELINES, TooSlow, base, graphical
from dpflows.experiments.baselines.base import (
    Binned,
    Clock,
    Measured,
    exact_counts,
    fit_graph,
    places,
)
from dpflows.privacy.accounting import epsilon_of
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.table.columns import Column
from dpflows.table.schema import Schema

pytest.importorskip("mbi")

#: Those that were written here, and price what they release.
WRITTEN = [name for name, baseline in BASELINES.items() if baseline.needs == "mbi"]
SCHEMA = Schema(
    (
        Column("sex", "categorical", categories=("F", "M")),
        Column("ill", "boolean"),
        Column("age", "integer", min=0, max=3),
    )
)


def rows(count=4000):
    """Illness follows sex, age follows illness."""
    random = np.random.default_rng()
    sex = random.random(count) < 0.5
    ill = np.where(random.random(count) < 0.9, sex, ~sex)
    age = np.where(random.random(count) < 0.9, 3.0 * ill, random.integers(0, 4, count))
    return {"sex": np.where(sex, "F", "M").astype(object), "ill": ill, "age": age}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_a_peer_spends_the_budget_and_no_more(name, neighbours, epsilon):
    budget = Budget(epsilon, 1e-6, neighbours)
    promise = BASELINES[name]().guarantee(SCHEMA, budget)
    assert 0.98 * epsilon < promise.epsilon <= epsilon
    assert promise.is_private
    assert promise.accountant == "zcdp"


class Recording:
    """Keeps the events of mechanisms that a module calls."""

    def __init__(self, monkeypatch, module, names):
        self.events = []
        for name in names:
            monkeypatch.setattr(module, name, self._kept(getattr(module, name)))

    def _kept(self, mechanism):
        def call(*arguments, **options):
            release = mechanism(*arguments, **options)
            self.events.append(release.event)
            return release

        return call


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_released_costs_what_is_stated(name, monkeypatch):
    """Every mechanism's own event is priced again, and compared with the promise."""
    monkeypatch.setattr(graphical, "_ROUNDS", 1)
    found = Recording(monkeypatch, graphical, ["exponential_mechanism", "noisy_marginals"])
    budget = Budget(1.0, 1e-6)
    baseline = BASELINES[name]()
    drawn = baseline.fit_sample(rows(), SCHEMA, budget, 500, Entropy.from_os())
    assert {cells.shape for cells in drawn.values()} == {(500,)}
    spent = epsilon_of(found.events, delta=1e-6, accountant="zcdp")
    stated = baseline.guarantee(SCHEMA, budget).epsilon
    assert spent <= stated * (1 + 1e-6)
    assert spent > 0.95 * stated


def test_a_choice_that_is_not_paid_for_would_be_noticed(monkeypatch):
    """The twin of the test above: a tree chosen at half the noise costs more than is stated."""
    honest = graphical.exponential_mechanism
    monkeypatch.setattr(
        graphical,
        "exponential_mechanism",
        lambda scores, *, scale, **options: honest(scores, scale=scale / 2, **options),
    )
    found = Recording(monkeypatch, graphical, ["exponential_mechanism", "noisy_marginals"])
    graphical.MST().fit_sample(rows(500), SCHEMA, Budget(1.0, 1e-6), 10, Entropy.from_os())
    spent = epsilon_of(found.events, delta=1e-6, accountant="zcdp")
    assert spent > 1.1 * graphical.MST().guarantee(SCHEMA, Budget(1.0, 1e-6)).epsilon


@pytest.mark.parametrize("name", ["mst", pytest.param("aim", marks=pytest.mark.long)])
def test_counts_of_pairs_come_back_at_a_large_budget(name):
    """Noise of a few rows in 4,000; the largest error of a share is far below 0.05."""
    real = rows()
    made = BASELINES[name]().fit_sample(real, SCHEMA, Budget(50.0, 1e-6), 4000, Entropy.from_os())
    for one, two in itertools.combinations(SCHEMA.names, 2):
        cells = {(a, b) for a, b in zip(real[one], real[two], strict=True)}
        for a, b in cells:
            share, drawn = (
                np.mean([(x, y) == (a, b) for x, y in zip(t[one], t[two], strict=True)])
                for t in (real, made)
            )
            assert abs(share - drawn) < 0.05


def test_the_tree_takes_the_dependent_pairs():
    """Dependence of the two chosen pairs is hundreds of rows beyond the third; noise is few."""
    grid = np.column_stack([np.arange(4000) % 2, np.arange(4000) % 2, np.arange(4000) // 2 % 2])
    grid[:, 2] = np.where(np.arange(4000) % 5, grid[:, 1], grid[:, 2])
    chosen = graphical._tree(
        Binned(grid, (2, 2, 2)), [np.array([2000.0, 2000.0])] * 3, 0.5, Entropy.from_os()
    )
    assert len(chosen) == 2
    assert (0, 1) in chosen


def test_squeezing_joins_what_noise_drowns_and_spreading_undoes_it():
    codes = np.array([[0], [0], [1], [2], [3], [-1]])
    seen = [Measured((0,), np.array([90.0, 1.0, 80.0, -4.0]), 2.0)]
    squeezed, into = graphical.squeeze(Binned(codes, (4,)), seen)
    assert into[0].tolist() == [0, 2, 1, 2]
    assert squeezed.sizes == (3,)
    assert squeezed.codes[:, 0].tolist() == [0, 0, 2, 1, 2, -1]
    drawn = graphical.spread(np.full((100, 1), 2), into, Entropy.from_os())
    assert set(drawn[:, 0]) == {1, 3}
    assert graphical.joined(seen[0], into[0]).counts.tolist() == [90.0, 80.0, -3.0]


@pytest.mark.parametrize("total", [10.0, 3.0])
def test_the_simplex_is_reached_from_anywhere(total):
    counts = np.random.default_rng().normal(size=30) * 5
    closest = graphical.on_simplex(counts, total)
    assert closest.min() >= 0
    assert closest.sum() == pytest.approx(total)
    # no feasible point is closer: the difference is constant where anything is left
    assert np.ptp((counts - closest)[closest > 0]) < 1e-9


def test_spending_never_passes_the_cap():
    spending = graphical.AIMBudget.planned(0.02, rounds=40)
    spent = 0.0
    for number in itertools.count():
        if spending.left <= 0:
            break
        spending = spending.used_up_if_last()
        spent += 1 / (2 * spending.noise**2) + spending.width**2 / 8
        spending = spending.after(spending.cost)
        spending = spending.with_less_noise() if number % 3 == 0 else spending
    assert spent == pytest.approx(0.02)


def test_a_graph_explains_counts_and_knows_tables_it_was_not_given():
    pair = np.array([[30.0, 10.0], [5.0, 55.0]])
    seen = [Measured((0, 1), pair.ravel(), 1.0), Measured((1, 2), pair.ravel(), 1.0)]
    graph = fit_graph((2, 2, 2), seen, rows=100, clock=Clock.of(60))
    assert graph.counts((0, 1)) == pytest.approx(pair.ravel(), abs=16)
    marginal = graph.counts((0, 1)).reshape(2, 2).sum(axis=1)
    assert graph.counts((0, 2)).reshape(2, 2).sum(axis=1) == pytest.approx(marginal)
    drawn = graph.draw(1000)
    assert drawn.shape == (1000, 3)
    share = exact_counts(drawn, (2, 2, 2), (0, 1)) / 10
    assert share == pytest.approx(graph.counts((0, 1)), abs=0.5)


def test_places_are_numbered_like_tables():
    codes = np.array([[1, 2], [0, 0], [-1, 1]])
    assert places(codes, (2, 3), (1, 0)).tolist() == [5, 0, -1]
    assert exact_counts(codes, (2, 3), (0, 1)).tolist() == [1, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_peer_that_is_too_slow_is_stopped(name):
    baseline = BASELINES[name](seconds=0.0)
    with pytest.raises(TooSlow, match="stopped after the time limit of 0 seconds"):
        baseline.fit_sample(rows(100), SCHEMA, Budget(1.0, 1e-6), 10, Entropy.from_os())


@pytest.mark.parametrize("name", WRITTEN)
def test_a_budget_without_limit_is_refused(name):
    with pytest.raises(InputError, match="finite"):
        BASELINES[name]().fit_sample(rows(9), SCHEMA, Budget(math.inf, 1e-6), 9, Entropy.from_os())


def test_a_peer_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(graphical.MST, "needs", "no_such_library")
    assert "no_such_library" in graphical.MST().missing()
    assert "dpflows[peers]" in graphical.MST().missing()


def test_the_library_sees_no_row():
    """What goes to the library are noisy counts, sizes and the number of rows."""
    assert "codes" not in base.fit_graph.__annotations__
    assert set(Measured.__dataclass_fields__) == {"clique", "counts", "noise", "weights"}
