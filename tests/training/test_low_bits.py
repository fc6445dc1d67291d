"""Whether the low bits of one noisy step tell if a row was there.

The attack is that of a recipient who knows every other row: one step of gradient descent
with a learning rate of 2^-60 from zero leaves the noisy sum in the released parameters, bit
by bit. For both secrets ("the row was there", "it was not") the attacker asks which released
numbers the sampler could have made at all.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpflows.privacy.randomness import Entropy
from dpflows.training.batches import UniformBatches
from dpflows.training.dp_sgd import Loop, Optimizer, PrivateGradient, private_gradient
from dpflows.training.ghost_clipping import Clipping, by_taps, take_apart

ROWS, SIGMA = 16, 30.0
RATE = 2.0**-60
#: Chance alone reaches 133 of 200 with a probability below this; so does the advantage of 0.7
#: percent that epsilon itself allows at this noise.
FALSE_ALARM = 1e-5
MOST_BY_CHANCE = 133


class Blank(eqx.Module):
    """A layer at zero, so that one step shows its whole gradient."""

    layer: eqx.nn.Linear

    def log_prob(self, row):
        return -jnp.sum((self.layer(row[:3]) - row[3:]) ** 2)


@pytest.fixture(scope="module")
def game():
    return Game()


class Game:
    def __init__(self):
        layer = eqx.nn.Linear(3, 4, key=jax.random.key(0))
        model = Blank(jax.tree.map(jnp.zeros_like, layer))
        self.parameters, blueprint = take_apart(model)
        clipper = by_taps(lambda model, row: -model.log_prob(row), blueprint, Clipping())
        self.gradient = private_gradient(
            clipper, blueprint, self.parameters, noise_multiplier=SIGMA, batch_size=ROWS
        )
        descent = Optimizer("sgd", learning_rate=RATE, schedule="constant")
        self.loop = Loop(self.gradient, UniformBatches(ROWS, ROWS), descent, 1)
        self.rows = np.random.default_rng(3).normal(size=(ROWS, 7)).astype(np.float32)
        self.sums = jax.jit(self.gradient.sums)

    def table(self, secret):
        rows = self.rows.copy()
        rows[0] = rows[0] if secret else np.nan
        return jnp.asarray(rows)

    def released(self, secret):
        """The noisy sum as the released parameters show it."""
        state = self.loop.run(
            self.loop.start(self.parameters), self.table(secret), entropy=Entropy.from_os()
        )
        leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.parameters)]
        return np.concatenate(leaves) * np.float32(-ROWS / RATE)

    def guess(self, seen, coin):
        """The secret under which more of the released numbers are possible, else a coin."""
        present = jnp.ones(ROWS, bool)
        possible = [
            reachable(seen, np.asarray(self.sums(self.parameters, self.table(secret), present)))
            for secret in (False, True)
        ]
        return coin if possible[0] == possible[1] else possible[1] > possible[0]

    def right_guesses(self, trials):
        coins = np.random.default_rng().random((trials, 2)) < 0.5
        return sum(self.guess(self.released(secret), coin) == secret for secret, coin in coins)


def single_normals():
    """All values that a normal of 23 random bits can take in single precision, sorted."""
    u = np.arange(2**23, dtype=np.uint32) | np.uint32(0x3F800000)
    uniform = u.view(np.float32) - np.float32(1)
    low = np.nextafter(np.float32(-1), np.float32(0))
    spread = np.maximum(low, uniform * (np.float32(1) - low) + low)
    return np.sort(np.asarray(np.float32(np.sqrt(2)) * jax.lax.erf_inv(jnp.asarray(spread))))


NORMALS = []


def reachable(seen, sums):
    """How many released numbers such a normal, scaled and added to the sum, can make."""
    if not NORMALS:
        NORMALS.append(single_normals())
    normals, sums = NORMALS[0], sums.astype(np.float32)
    near = np.searchsorted(normals, (seen - sums) / np.float32(SIGMA))
    tried = normals[np.clip(near[:, None] + np.arange(-8, 8), 0, len(normals) - 1)]
    made = sums[:, None] + np.float32(SIGMA) * tried
    return int((made == seen[:, None].astype(np.float32)).any(axis=1).sum())


def single_precision(self, sums, normals):
    """Noise as it was: 23 random bits per normal, added in single precision."""
    uniform = jax.scipy.stats.norm.cdf(normals.astype(jnp.float32))
    low = np.nextafter(np.float32(-1), np.float32(0))
    bits = jnp.floor(uniform * 2**23).astype(jnp.float32) * np.float32(2.0**-23)
    drawn = np.float32(np.sqrt(2)) * jax.lax.erf_inv(jnp.maximum(low, bits * (1 - low) + low))
    noisy = sums.astype(jnp.float32) + np.float32(self.scale) * drawn
    with jax.enable_x64(True):
        return noisy.astype(jnp.float64) / self.batch_size, jnp.asarray(False)


def test_low_bits_tell_nothing(game):
    assert stats.binom.sf(MOST_BY_CHANCE - 1, 200, 0.507) < FALSE_ALARM
    assert game.right_guesses(200) < MOST_BY_CHANCE


def test_noise_of_23_bits_in_single_precision_is_caught(monkeypatch):
    monkeypatch.setattr(PrivateGradient, "rounded", single_precision)
    assert Game().right_guesses(6) == 6
