"""Networks of cells: exact probabilities, draws that follow them, and raking."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import chisquare

from dpflows.errors import InputError
from dpflows.models.autoregressive import (
    CellNetwork,
    CellShape,
    Walk,
    cell_network,
    draw_cells,
    marginals,
    raked,
)

SIZES = (3, 4, 1, 2)
FALSE_ALARM = 1e-6


def moved(network, seed=7, size=0.7):
    """A network away from its start, where columns are independent."""

    def shake(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        return leaf + size * jr.normal(jr.key(seed), leaf.shape)

    return jax.tree.map(shake, network)


@pytest.fixture(scope="module")
def network():
    return moved(cell_network(SIZES, width=16, depth=2, key=jr.key(0)))


def all_rows(sizes=SIZES):
    return np.array(list(itertools.product(*map(range, sizes))))


def chances(network, sizes=SIZES):
    logs = jax.vmap(network.log_prob)(jnp.asarray(all_rows(sizes), float))
    return np.exp(np.asarray(logs, dtype=np.float64))


def numbers(rows, sizes=SIZES):
    return np.ravel_multi_index(tuple(np.asarray(rows).T), sizes)


@pytest.mark.parametrize(
    ("sizes", "depth"), [((2,), 1), ((1, 1), 2), ((3, 4, 1, 2), 3), ((2, 5, 3), 1)]
)
def test_probabilities_of_all_rows_add_up_to_one(sizes, depth):
    model = moved(cell_network(sizes, width=8, depth=depth, key=jr.key(1)))
    assert chances(model, sizes).sum() == pytest.approx(1, abs=1e-5)


def test_a_column_depends_on_earlier_ones_alone(network):
    """A leak would let a row's probability depend on what comes after."""
    table = chances(network).reshape(SIZES)
    given = table.sum(axis=(2, 3)) / table.sum(axis=(1, 2, 3), keepdims=True)[..., 0, 0]
    drawn = draw_cells(network, jnp.tile(jnp.array([1, -1, -1, -1]), (20_000, 1)), jr.key(3))
    share = np.bincount(np.asarray(drawn.cells)[:, 1], minlength=4) / 20_000
    np.testing.assert_allclose(share, given[1], atol=5 * 0.5 / np.sqrt(20_000))


def surprise(network, rows):
    """The chance of frequencies as far from the network's probabilities as these."""
    expected = chances(network)
    observed = np.bincount(numbers(rows), minlength=len(expected))
    return chisquare(observed, expected / expected.sum() * len(rows)).pvalue


def test_draws_follow_the_probabilities(network):
    """False alarms: one in a million."""
    drawn = draw_cells(network, jnp.full((50_000, len(SIZES)), -1), jr.key(2))
    assert surprise(network, drawn.cells) > FALSE_ALARM


def test_the_test_rejects_a_walk_without_direct_links(network, monkeypatch):
    step = Walk.step

    def forgetful(self, column, chosen):
        after = step(self, column, chosen)
        return eqx.tree_at(lambda walk: walk.direct, after, self.direct)

    monkeypatch.setattr(Walk, "step", forgetful)
    draw = draw_cells.__wrapped__  # the program compiled before knows nothing of the bug
    drawn = draw(network, jnp.full((50_000, len(SIZES)), -1), jr.key(2))
    assert surprise(network, drawn.cells) < FALSE_ALARM


def test_weights_are_the_chance_of_what_is_given(network):
    """Five standard errors: a false alarm in less than a million."""
    given = jnp.tile(jnp.array([-1, 2, -1, 1]), (50_000, 1))
    weights = np.exp(draw_cells(network, given, jr.key(4)).log_weight)
    rows = all_rows()
    truth = chances(network)[(rows[:, 1] == 2) & (rows[:, 3] == 1)].sum()
    assert abs(weights.mean() - truth) < 5 * weights.std() / np.sqrt(len(weights))


def test_given_cells_that_come_first_have_one_weight(network):
    given = jnp.tile(jnp.array([2, 1, -1, -1]), (100, 1))
    weights = np.asarray(draw_cells(network, given, jr.key(4)).log_weight)
    np.testing.assert_allclose(weights, weights[0], rtol=1e-5)


def pairs_of(table):
    """Counts of each later column by the first, from a joint table."""
    first = table.sum(axis=(1, 2, 3))
    later = [table.sum(axis=tuple(k for k in (1, 2, 3) if k != j)) for j in (1, 2, 3)]
    return [np.tile(first, (len(first), 1)), *later]


def gap(network, tables, rows):
    got = pairs_of(chances(network).reshape(SIZES) * rows)
    return max(np.abs(a - b).max() for a, b in zip(got[1:], tables[1:], strict=True)) / rows


def test_raking_moves_all_pairs_to_the_counts(network):
    rows = 40_000
    wanted = pairs_of(chances(moved(network, seed=9)).reshape(SIZES) * rows)
    seen = marginals(wanted, noise=1.0, rows=rows)
    before, after = (gap(m, wanted, rows) for m in (network, raked(network, seen, jr.key(5))))
    assert after < 0.012 < 0.1 < before


def test_raking_believes_the_network_where_counts_are_noise(network):
    rows = 40_000
    wanted = pairs_of(chances(moved(network, seed=9)).reshape(SIZES) * rows)
    seen = marginals(wanted, noise=1e6, rows=rows)
    np.testing.assert_allclose(
        chances(raked(network, seen, jr.key(5))), chances(network), atol=1e-3
    )


@pytest.mark.long
def test_a_raked_network_still_adds_up_to_one(network):
    seen = marginals([np.full((1, size), 9.0) for size in SIZES], noise=1.0, rows=9)
    assert chances(raked(network, seen, jr.key(5))).sum() == pytest.approx(1, abs=1e-5)


def test_raking_to_single_columns(network):
    wanted = [np.full((1, size), 30_000 / size) for size in SIZES]
    after = raked(network, marginals(wanted, noise=1.0, rows=30_000), jr.key(6))
    table = chances(after).reshape(SIZES)
    np.testing.assert_allclose(table.sum(axis=(0, 2, 3)), 0.25, atol=0.01)
    np.testing.assert_allclose(table.sum(axis=(1, 2, 3)), 1 / 3, atol=0.01)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"depth": 0}, {"width": 10**9}, {"name": "maf"}])
def test_shapes_are_checked(wrong):
    with pytest.raises(InputError):
        CellShape(**wrong)


@pytest.mark.parametrize("sizes", [(), (2, 0)])
def test_columns_without_cells_are_refused(sizes):
    with pytest.raises(InputError, match="at least one cell"):
        cell_network(sizes, width=4, depth=1, key=jr.key(0))


def test_a_network_is_a_plain_module(network):
    assert isinstance(network, CellNetwork)
