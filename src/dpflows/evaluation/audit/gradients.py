"""Canaries in the space of gradients: each moves one weight of its own, as far as it may.

No row can be seen more clearly than one whose gradient has a coordinate to itself. The
canaries are trained by ``fit_model``: the batches, the clipping, the noise, the division
and the optimizer are those of every private flow. Only the model differs: a single dense
layer, in which canary ``(i, o)`` pulls at the weight from input ``i`` to output ``o``.
Natural-gradient training is run without progress checks: they release sums over all rows, in
which no canary has a coordinate, and would undo steps that the auditor reads canaries from.
"""

import math
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dpflows.evaluation.audit.findings import Finding
from dpflows.evaluation.audit.game import Game
from dpflows.pipeline.plan import make_plan
from dpflows.pipeline.training import Settings, fit_model
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.training.optimizers import NaturalGradient

#: Length of a canary's gradient before clipping, in clipping norms: clipping must act.
STEEPNESS = 8.0
STEPS = 100
#: The chance of a row to be in a batch.
RATE = 0.1
#: Optimizers that are run with other settings than their defaults.
OPTIMIZERS = {NaturalGradient.name: NaturalGradient(checks=0)}


@final
class CanaryWeights(eqx.Module):
    """A model whose loss at row ``(i, o)`` is a steep multiple of one weight.

    A row with a NaN has no gradient, as null rows must not.

    Example:
        >>> from dpflows.privacy.randomness import Entropy
        >>> model = CanaryWeights.blank(3, Entropy.from_os())
        >>> float(model.log_prob(jnp.array([0.0, 1.0])))
        -0.0
    """

    layer: eqx.nn.Linear

    @classmethod
    def blank(cls, side: int, entropy: Entropy) -> "CanaryWeights":
        """All ``side * side`` weights at zero."""
        key = jax.random.wrap_key_data(jnp.asarray(entropy.key("initialisation")))
        layer = eqx.nn.Linear(side, side, use_bias=False, key=key)
        return cls(eqx.tree_at(lambda at: at.weight, layer, jnp.zeros((side, side))))

    def log_prob(self, row: Float[Array, "2"]) -> Float[Array, ""]:
        """Minus the steep multiple of the weight that the row names."""
        side = self.layer.weight.shape[0]
        places = jnp.clip(jnp.round(row), 0, side - 1).astype(jnp.int32)
        source, goal = jax.nn.one_hot(places, side, dtype=row.dtype)
        steepness = jnp.where(jnp.isfinite(row).all(), STEEPNESS, jnp.nan)
        return -steepness * jnp.dot(goal, self.layer(source))

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n 2"]:
        """Rows that name weights at random: natural-gradient training looks at them."""
        side = self.layer.weight.shape[0]
        return jax.random.randint(key, (n, 2), 0, side).astype(self.layer.weight.dtype)


def audit_gradients(
    budget: Budget,
    game: Game,
    *,
    entropy: Entropy,
    steps: int = STEPS,
    rate: float = RATE,
    sampling: str = "poisson",
    optimizer: str = "sgd",
) -> Finding:
    """Train one model on Dirac canaries and guess which were in.

    Args:
        budget: What the run claims to cost at most.
        game: Canaries, guesses and confidence.
        entropy: Where coins, batches and noise come from.
        steps: Of the run.
        rate: The chance of a row to be in a batch.
        sampling: ``poisson`` or ``uniform``.
        optimizer: ``sgd``, or ``natural`` to clip and noise in the Fisher metric.

    Example:
        >>> entropy = Entropy.from_os()
        >>> audit_gradients(Budget(1.0, 1e-5), Game(5000), entropy=entropy)  # doctest: +SKIP
        Finding(way='gradients', claimed=0.99999, delta=1e-05, bound=0.228, ...)
    """
    batch = max(round(rate * game.canaries), 1)
    settings = Settings(
        sampling=sampling,
        batch_size=batch,
        steps=steps,
        optimizer=OPTIMIZERS.get(optimizer, optimizer),
        schedule="constant",
        learning_rate=1.0 if optimizer == "sgd" else None,
    )
    plan = make_plan(budget, rows=game.canaries, columns=2, settings=settings)
    claim = plan.guarantee()
    game = game.rules(claim.epsilon, claim.delta)
    coins, side = game.coins(entropy), math.ceil(math.sqrt(game.canaries))
    places = np.column_stack(np.divmod(np.arange(game.canaries), side)).astype(float)
    rows = np.where(coins[:, None], places, np.nan)
    model = fit_model(
        CanaryWeights.blank(side, entropy),
        rows,
        plan.trained,
        entropy=entropy,
        known_to_taps=True,
    )
    # Plain descent from zero: minus the weight is the sum of all that was released. Natural steps
    # weigh it by gains that all weights share.
    released = -np.asarray(model.layer.weight, dtype=float).T.ravel()[: game.canaries]
    details = {
        "steps": steps,
        "batch_size": batch,
        "sampling": sampling,
        "optimizer": optimizer,
        "noise_multiplier": plan.noise_multiplier,
        "neighbours": claim.neighbours,
    }
    return game.finding("gradients", claim, game.correct(released, coins), details, internal=False)
