"""The noisy sum of one step, repeated many times with and without a worst-case row.

Guarantee:
    If one step over all rows hides a row as Gaussian noise of the claimed multiplier
    does, then no test of "was the row there?" has errors below the trade-off curve of
    two unit Gaussians at distance ``1 / noise_multiplier``. Errors that surely lie below
    it refute the multiplier.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from dpflows.errors import InputError
from dpflows.evaluation.audit.findings import Finding
from dpflows.evaluation.audit.gradients import CanaryWeights
from dpflows.pipeline.plan import Plan, make_plan
from dpflows.pipeline.training import Settings, negative_log_likelihood
from dpflows.privacy.accounting.gdp import GaussianProfile
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.noise import RoundedGaussian
from dpflows.privacy.randomness import Entropy
from dpflows.training.dp_sgd import private_gradient
from dpflows.training.ghost_clipping import by_taps, take_apart

REPETITIONS = 100_000
#: The rows beside the one in question; they are null, so that nothing else is in the sum.
BYSTANDERS = 7
_PIECE = 20_000


def audit_step(
    budget: Budget,
    *,
    entropy: Entropy,
    repetitions: int = REPETITIONS,
    confidence: float = 0.95,
) -> Finding:
    """Repeat one full-batch step and bound its epsilon by the errors of the best test.

    Args:
        budget: What the step claims to cost.
        entropy: Where batches and noise come from.
        repetitions: On each side, with the row and without it.
        confidence: Of the bound.

    Example:
        >>> audit_step(Budget(1.0, 1e-5), entropy=Entropy.from_os())  # doctest: +SKIP
        Finding(way='step', claimed=0.99994, delta=1e-05, bound=0.935, ...)
    """
    if repetitions < 100 or not 0 < confidence < 1:
        raise InputError("repetitions must be at least 100, and confidence must be in (0, 1)")
    rows = 1 + BYSTANDERS
    settings = Settings(steps=1, batch_size=rows)
    plan = make_plan(budget, rows=rows, columns=2, settings=settings)
    claim = plan.guarantee()
    seen, unseen = (
        released_sums(plan, present, entropy=entropy, repetitions=repetitions)
        for present in (True, False)
    )
    # Halfway: the fixed threshold at which both errors of a Gaussian test are equal.
    middle = plan.trained.clipping.norm / 2
    misses, alarms = int((seen <= middle).sum()), int((unseen > middle).sum())
    mu = surely_apart(misses, alarms, repetitions=repetitions, confidence=confidence)
    most = surely_apart(0, 0, repetitions=repetitions, confidence=confidence)
    return Finding(
        way="step",
        claimed=claim.epsilon,
        delta=claim.delta,
        bound=GaussianProfile(mu).epsilon(claim.delta),
        confidence=confidence,
        largest=GaussianProfile(most).epsilon(claim.delta),
        trials=repetitions,
        details={
            "noise_multiplier": plan.noise_multiplier,
            "largest_noise_multiplier": 1 / mu if mu > 0 else None,
            "misses": misses,
            "false_alarms": alarms,
            "neighbours": claim.neighbours,
        },
    )


def released_sums(
    plan: Plan, present: bool, *, entropy: Entropy, repetitions: int
) -> Float[np.ndarray, " repetitions"]:
    """The noisy sum in the row's direction, drawn again and again by the code of a step."""
    parameters, blueprint = take_apart(CanaryWeights.blank(1, entropy))
    gradient = private_gradient(
        by_taps(negative_log_likelihood, blueprint, plan.trained.clipping),
        blueprint,
        parameters,
        noise_multiplier=plan.noise_multiplier,
        batch_size=plan.batches.batch_size,
    )
    rows = np.full((plan.rows, 2), np.nan)
    rows[0] = 0.0 if present else np.nan

    def once(rows: Array, size: Array, words: Array) -> Array:
        drawn = rows[plan.batches.draw(jax.random.wrap_key_data(words))]
        return gradient.sums(parameters, drawn, jnp.arange(plan.batches.slots) < size)

    many, noise = jax.jit(jax.vmap(once, in_axes=(None, 0, 0))), RoundedGaussian(entropy)
    parts = []
    for start in range(0, repetitions, _PIECE):
        count = min(_PIECE, repetitions - start)
        at = start + (repetitions if present else 0)
        sizes = plan.batches.sizes(entropy, step=at, count=count)
        words = entropy.words("batch-rows", step=at, count=2 * count).reshape(count, 2)
        released = gradient.release(many(jnp.asarray(rows), sizes, words), noise, step=at)
        # a step divides the sum by the public batch size
        parts.append(released[:, 0] * plan.batches.batch_size)
    return np.concatenate(parts)


def surely_apart(misses: int, alarms: int, *, repetitions: int, confidence: float) -> float:
    """The distance in deviations that the two sides surely have, by exact binomial bounds.

    Example:
        >>> round(surely_apart(0, 0, repetitions=1000, confidence=0.95), 2)
        5.36
        >>> surely_apart(500, 500, repetitions=1000, confidence=0.95)
        0.0
    """
    tail = (1 - confidence) / 2
    worst = [
        float(stats.beta.isf(tail, errors + 1, repetitions - errors))
        if errors < repetitions
        else 1.0
        for errors in (misses, alarms)
    ]
    return max(float(stats.norm.isf(worst[0]) + stats.norm.isf(worst[1])), 0.0)
