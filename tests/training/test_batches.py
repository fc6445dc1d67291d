"""Batches are what the accountant prices: sizes, membership and independence."""

import jax
import numpy as np
import pytest
from scipy import stats

from dpflows.errors import InputError
from dpflows.privacy.randomness import Entropy
from dpflows.training.batches import distinct_rows, make_batches

ROWS, SIZE, DRAWS = 50, 8, 100_000
#: Every test below rejects a correct sampler with at most this probability.
FALSE_ALARM = 1e-6


def keys(count, seed):
    return jax.random.split(jax.random.key(seed), count)


def memberships(batches, draws, seed=3):
    """A (draws, rows) table of who was in which batch."""
    sizes = batches.sizes(Entropy.insecure(seed), step=0, count=draws)
    drawn = np.asarray(jax.jit(jax.vmap(batches.draw))(keys(draws, seed)))
    table = np.zeros((draws, batches.rows), bool)
    kept = np.arange(batches.slots) < sizes[:, None]
    table[np.nonzero(kept)[0], drawn[kept]] = True
    return table, sizes


def size_p_value(sizes, rows, batch_size, cap):
    """Chi-square of drawn sizes against the capped Binomial, rare sizes pooled."""
    expected = stats.binom.pmf(np.arange(cap + 1), rows, batch_size / rows)
    expected[cap] += stats.binom.sf(cap, rows, batch_size / rows)
    expected *= len(sizes)
    common = expected > 10
    observed = np.bincount(sizes, minlength=cap + 1)
    pool = lambda counts: np.append(counts[common], counts[~common].sum())  # noqa: E731
    return stats.chisquare(pool(observed), pool(expected)).pvalue


def worst_pair_score(table, joint):
    """The largest z-score of any pair's joint membership against ``joint``."""
    together = (table.T.astype(np.float32) @ table.astype(np.float32))[
        np.triu_indices(table.shape[1], 1)
    ]
    sd = np.sqrt(len(table) * joint * (1 - joint))
    return np.abs(together - len(table) * joint).max() / sd


def pair_limit(rows):
    return stats.norm.isf(FALSE_ALARM / (rows * (rows - 1)))


@pytest.fixture(scope="module")
def poisson():
    batches = make_batches("poisson", rows=ROWS, batch_size=SIZE)
    return batches, *memberships(batches, DRAWS)


def test_sizes_are_binomial(poisson):
    batches, _, sizes = poisson
    assert size_p_value(sizes, ROWS, SIZE, batches.slots) > FALSE_ALARM


def test_filled_slots_are_distinct_rows(poisson):
    _, table, sizes = poisson
    np.testing.assert_array_equal(table.sum(axis=1), sizes)


def test_pairs_of_rows_join_independently(poisson):
    _, table, _ = poisson
    assert worst_pair_score(table, (SIZE / ROWS) ** 2) < pair_limit(ROWS)


def test_every_row_is_equally_likely(poisson):
    _, table, _ = poisson
    rate = SIZE / ROWS
    scores = (table.mean(axis=0) - rate) / np.sqrt(rate * (1 - rate) / DRAWS)
    assert np.abs(scores).max() < stats.norm.isf(FALSE_ALARM / (2 * ROWS))


@pytest.fixture(scope="module")
def uniform():
    batches = make_batches("uniform", rows=ROWS, batch_size=SIZE)
    return batches, *memberships(batches, DRAWS)


def test_fixed_size_batches_in_place_of_poisson_are_caught(uniform):
    _, table, sizes = uniform
    cap = make_batches("poisson", rows=ROWS, batch_size=SIZE).slots
    assert size_p_value(sizes, ROWS, SIZE, cap) < FALSE_ALARM
    assert worst_pair_score(table, (SIZE / ROWS) ** 2) > pair_limit(ROWS)


def test_a_wrong_rate_is_caught():
    batches = make_batches("poisson", rows=ROWS, batch_size=SIZE + 1)
    sizes = batches.sizes(Entropy.insecure(3), step=0, count=DRAWS)
    assert size_p_value(sizes, ROWS, SIZE, batches.slots) < FALSE_ALARM


def test_uniform_batches_are_full_and_pairwise_uniform(uniform):
    _, table, sizes = uniform
    assert (sizes == SIZE).all()
    joint = SIZE * (SIZE - 1) / (ROWS * (ROWS - 1))
    assert worst_pair_score(table, joint) < pair_limit(ROWS)


def test_the_cut_is_at_the_cap():
    batches = make_batches("poisson", rows=ROWS, batch_size=SIZE)
    always_large = Entropy.insecure(0)
    always_large.uniforms = lambda *args, count, **kwargs: np.full(count, 1 - 2.0**-53)
    assert batches.sizes(always_large, step=0, count=1).tolist() == [batches.slots]


@pytest.mark.parametrize(("rows", "count"), [(7, 7), (10, 3), (40, 19), (10_000_000, 4096)])
def test_distinct_rows_are_distinct_and_in_range(rows, count):
    drawn = np.asarray(distinct_rows(jax.random.key(rows), rows=rows, count=count))
    assert len(np.unique(drawn)) == count
    assert drawn.min() >= 0
    assert drawn.max() < rows


def test_orders_are_equally_likely():
    """Chi-square over all 60 ordered choices of 2 of 8 would miss position bias; use them."""
    drawn = np.asarray(jax.vmap(lambda k: distinct_rows(k, rows=8, count=2))(keys(20_000, 9)))
    counts = np.bincount(drawn[:, 0] * 8 + drawn[:, 1], minlength=64)
    assert stats.chisquare(counts[np.flatnonzero(~np.eye(8, dtype=bool))]).pvalue > FALSE_ALARM


def test_event_names_what_is_drawn():
    event = make_batches("poisson", rows=1000, batch_size=100).event(steps=7, noise_multiplier=2.0)
    assert (event.sampling, event.rate, event.batch_cap, event.count) == ("poisson", 0.1, 140, 7)
    whole = make_batches("poisson", rows=10, batch_size=10).event(steps=1, noise_multiplier=2.0)
    assert whole.batch_cap is None


@pytest.mark.parametrize("batch_size", [0, 11])
def test_impossible_batch_sizes_are_refused(batch_size):
    with pytest.raises(InputError, match="batch_size must be between 1 and"):
        make_batches("poisson", rows=10, batch_size=batch_size)


def test_unknown_sampling_is_refused():
    with pytest.raises(InputError, match="sampling must be"):
        make_batches("shuffle", rows=10, batch_size=2)
