"""The step as a whole: what a row can move, what noise covers it, who joins it.

The parts have tests of their own; these hold if the parts are put together rightly.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError
from scipy import stats

from dpflows.privacy import randomness
from dpflows.privacy.randomness import Entropy, RoundedGaussian
from dpflows.training import ghost_clipping
from dpflows.training.batches import make_batches
from dpflows.training.dp_sgd import (
    CHUNK,
    Callbacks,
    Loop,
    Optimizer,
    PrivateGradient,
    private_gradient,
)
from dpflows.training.ghost_clipping import Clipping, Parameters, by_rows, by_taps, take_apart

SIGMA, CLIP, BATCH = 1.3, 0.7, 20
#: Every test below rejects a correct step with at most this probability.
FALSE_ALARM = 1e-6


class Line(eqx.Module):
    """The cheapest model with a dense layer."""

    layer: eqx.nn.Linear

    def log_prob(self, row):
        return -jnp.sum(self.layer(row) ** 2)


def loss(model, row):
    return -model.log_prob(row)


@pytest.fixture(scope="module")
def line():
    return take_apart(Line(eqx.nn.Linear(3, 4, key=jax.random.key(0))))


def vector(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def gradient_of(line, make=by_taps, sigma=SIGMA):
    parameters, blueprint = line
    clipper = make(loss, blueprint, Clipping(CLIP))
    return private_gradient(
        clipper, blueprint, parameters, noise_multiplier=sigma, batch_size=BATCH
    )


def released(line, rows, present, *, sigma=SIGMA, steps=1, entropy=None):
    """What so many steps on the same rows release, one row each."""
    gradient = gradient_of(line, sigma=sigma)
    noise = RoundedGaussian(entropy or Entropy.insecure(3))
    sums = jax.jit(gradient.sums)(line[0], rows, present)
    return np.stack([gradient.release(sums, noise, step=step) for step in range(steps)])


@pytest.mark.parametrize("make", [by_taps, by_rows])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e6, np.nan])
def test_a_row_among_others_moves_the_sum_by_at_most_the_clip(line, make, size):
    """Whatever the others are: scaling all rows together would let one row move them all."""
    parameters, blueprint = line
    rows = np.random.default_rng(1).normal(size=(BATCH, 3)) * 0.05
    rows[0] = size * np.array([1.0, -2.0, 3.0])
    total = jax.jit(lambda *batch: make(loss, blueprint, Clipping(CLIP))(*batch).gradient)
    everyone, others = np.ones(BATCH, bool), np.arange(BATCH) > 0
    sums = [vector(total(parameters, jnp.asarray(rows), p)) for p in (everyone, others)]
    assert np.linalg.norm(sums[0] - sums[1]) <= CLIP
    assert np.linalg.norm(sums[1]) > CLIP  # the others count


@pytest.mark.parametrize("make", [by_taps, by_rows])
@pytest.mark.parametrize("count", [64, 4096, pytest.param(65_536, marks=pytest.mark.long)])
def test_a_row_among_many_that_pull_the_same_way_moves_the_sum_by_at_most_the_clip(
    line, make, count
):
    """Rounding of a long sum must not add to what one row does."""
    assert aligned_shift(line, make, count) <= CLIP


def test_a_sum_in_single_precision_would_be_caught(line, monkeypatch):
    def single(left, right):
        narrow = left.astype(jnp.float32), right.astype(jnp.float32)
        return jnp.einsum("...bo,...bi->...oi", *narrow).astype(left.dtype)

    monkeypatch.setattr(ghost_clipping, "over_rows", single)
    monkeypatch.setattr(ghost_clipping, "rounding_margin", lambda terms, slots: 2.0**-20)
    at_once = functools.partial(by_taps, piece=4096)
    assert aligned_shift(line, at_once, 4096) > CLIP * 1.0001


def aligned_shift(line, make, count):
    """How far the last of many equal rows moves the released sum, before noise."""
    parameters, blueprint = line
    rows = jnp.tile(jnp.asarray([[1.0, 2.0, 3.0]]), (count, 1))
    total = jax.jit(lambda *batch: make(loss, blueprint, Clipping(CLIP))(*batch).gradient)
    sizes = (count, count - 1)
    sums = [vector(total(parameters, rows, jnp.arange(count) < size)) for size in sizes]
    return np.linalg.norm(sums[0] - sums[1])


def noise_of(line, *, sigma=SIGMA, draws=1500):
    """What steps release when no row is in the batch."""
    nobody = np.zeros(BATCH, bool)
    drawn = released(line, jnp.ones((BATCH, 3)), nobody, sigma=sigma, steps=draws)
    return drawn / (SIGMA * CLIP / BATCH)


def is_standard(drawn):
    """The band is that of a chi-square; the variance of 24,000 draws is known to 1 %."""
    total = float((drawn**2).sum())
    band = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], drawn.size)
    return band[0] < total < band[1]


def test_the_noise_of_a_step_is_what_the_plan_says_over_the_batch_size(line):
    assert is_standard(noise_of(line))


def test_noise_five_percent_too_small_is_caught(line):
    assert not is_standard(noise_of(line, sigma=0.95 * SIGMA))


def test_the_divisor_is_public(line):
    """Rows without a gradient change nothing, however many of them were drawn."""
    blank = jnp.full((BATCH, 3), jnp.nan)
    sizes = (0, 1, 7, BATCH)
    outcomes = [released(line, blank, np.arange(BATCH) < size) for size in sizes]
    for other in outcomes[1:]:
        np.testing.assert_array_equal(other, outcomes[0])


def test_a_sum_grows_with_the_rows_that_were_drawn(line):
    """Equal rows: as many times one row's part, whatever the public divisor is."""
    rows, sums = jnp.ones((BATCH, 3)), jax.jit(gradient_of(line).sums)
    one, many = (np.asarray(sums(line[0], rows, np.arange(BATCH) < size)) for size in (1, 7))
    np.testing.assert_allclose(many, 7 * one, rtol=1e-12)


def joined(steps, rows=400, batch_size=40):
    """How often each row was in a batch of a run, by a gradient that counts."""
    batches = make_batches("poisson", rows=rows, batch_size=batch_size)

    def count(parameters, batch, present):
        numbers = batch[:, 0].astype(jnp.int32)
        seen = jnp.zeros(rows).at[numbers].add(present.astype(jnp.float32))
        return Parameters((), -seen)

    plain = Optimizer(name="sgd", learning_rate=1.0, schedule="constant")
    loop = Loop(count, batches, plain, steps)
    table = jnp.arange(rows, dtype=jnp.float32)[:, None]
    state = loop.run(loop.start(Parameters((), jnp.zeros(rows))), table, entropy=Entropy.from_os())
    return np.asarray(state.parameters.free)


def scatter(counts, steps, rate):
    """Both tails of the chi-square of counts that are binomial and independent."""
    total = float(((counts - steps * rate) ** 2).sum() / (steps * rate * (1 - rate)))
    return min(stats.chi2.cdf(total, len(counts)), stats.chi2.sf(total, len(counts)))


def test_rows_join_the_steps_of_a_run_by_chance():
    """Epochs in which each row has its turn once would leave no scatter at all.

    The counts are binomial with 500 trials: near enough to normal for a chi-square at
    a millionth, with a factor of ten to spare.
    """
    assert scatter(joined(500), 500, 0.1) > FALSE_ALARM / 10


def test_taking_turns_would_be_caught():
    assert scatter(np.full(400, 50.0), 500, 0.1) < FALSE_ALARM / 10


def test_no_key_is_used_twice_in_a_run(line):
    """False alarms: 200 keys of 64 bits collide with a chance below 1e-14."""
    batches = make_batches("poisson", rows=100, batch_size=10)
    loop = Loop(gradient_of(line), batches, Optimizer(), 8 * CHUNK)
    entropy = Entropy.from_os()
    inputs = [loop.chunk_inputs(entropy, step) for step in range(0, 8 * CHUNK, CHUNK)]
    keys = np.concatenate([keys for _, _, keys in inputs])
    assert len(np.unique(keys, axis=0)) == len(keys) == 8 * CHUNK


def test_every_step_of_a_run_has_normals_of_its_own(line, monkeypatch):
    steps = []
    right = RoundedGaussian.normals

    def noted(self, count, *, step):
        steps.append(step)
        return right(self, count, step=step)

    monkeypatch.setattr(RoundedGaussian, "normals", noted)
    run_of(line, 2 * CHUNK)
    assert steps == list(range(2 * CHUNK))


def noise_of_chunks(line, chunks):
    """By how much the noise alone moves a run from chunk to chunk, one row each, as normals."""
    plain = Optimizer(name="sgd", learning_rate=1.0, schedule="constant")
    batches = make_batches("poisson", rows=40, batch_size=BATCH)
    loop = Loop(gradient_of(line), batches, plain, chunks * CHUNK)
    places = [vector(line[0])]
    keep = Callbacks(on_state=lambda state: places.append(vector(state.parameters)))
    blank = jnp.full((40, 3), jnp.nan)
    loop.run(loop.start(line[0]), blank, entropy=Entropy.from_os(), callbacks=keep)
    return np.diff(places, axis=0) / (SIGMA * CLIP / BATCH * np.sqrt(CHUNK))


def test_no_noise_of_a_run_is_used_twice(line):
    """Within a chunk it would add up to too much; from chunk to chunk the same would come again.

    False alarms of the second: 16 normals are so close in one of 780 pairs with a chance
    below 1e-14.
    """
    moves = noise_of_chunks(line, 40)
    assert is_standard(moves)
    apart = np.linalg.norm(moves[:, None] - moves[None], axis=2)
    assert apart[np.triu_indices(len(moves), 1)].min() > 0.3


def run_of(line, steps, entropy=None):
    batches = make_batches("poisson", rows=40, batch_size=BATCH)
    loop = Loop(gradient_of(line), batches, Optimizer(), steps)
    table = jnp.asarray(np.random.default_rng(1).normal(size=(40, 3)), jnp.float32)
    state = loop.run(loop.start(line[0]), table, entropy=entropy or Entropy.from_os())
    return vector(state.parameters)


def test_steps_that_double_precision_cannot_decide_are_released_with_more_bits(line, monkeypatch):
    """With an error a trillion times larger, many steps are undecided and none comes out wrong."""
    usual = run_of(line, CHUNK + 3, Entropy.insecure(5))
    released = []
    right = PrivateGradient.release

    def noted(self, sums, noise, *, step):
        released.append(step)
        return right(self, sums, noise, step=step)

    monkeypatch.setattr(PrivateGradient, "release", noted)
    monkeypatch.setattr(randomness, "ERROR", 2.0**-12)
    np.testing.assert_array_equal(run_of(line, CHUNK + 3, Entropy.insecure(5)), usual)
    assert 5 < len(released) < CHUNK + 3
    assert released == sorted(set(released))


def test_normals_in_single_precision_are_refused(line):
    gradient = gradient_of(line)
    with pytest.raises((TypeError, TypeCheckError)):
        gradient.rounded(jnp.zeros(gradient.coordinates), jnp.zeros(gradient.coordinates))
