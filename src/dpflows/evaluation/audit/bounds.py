r"""What a number of right guesses proves about epsilon.

Every canary is included by a fair coin, one model is trained, and the auditor guesses
some of the coins. Steinke, Nasr and Jagielski (2023, "Privacy auditing with one training
run") show that under :math:`(\varepsilon, \delta)`-differential privacy the number of
right guesses among ``r`` is hardly larger than a binomial one: with
:math:`W \sim \mathrm{Bin}(r, e^\varepsilon / (1 + e^\varepsilon))`,

.. math:: P(V \ge v) \le P(W \ge v)
          + 2 m \delta \max_{i \ge 1} \frac{P(v - i \le W < v)}{i}.
"""

import math

import numpy as np
from scipy import optimize, stats

from dpflows.errors import InputError
from dpflows.privacy.accounting.gdp import GaussianProfile

#: The search for a bound walks in steps of this size until the guesses are no surprise.
_STRIDE = 0.05
#: Beyond this no number of canaries that fits a machine certifies anything.
_HIGHEST = 30.0
#: Guesses are planned so as to notice noise that is this many times too small.
PLANTED = 3.0


def p_value(correct: int, *, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are at most, if the promise holds.

    Args:
        correct: Right guesses.
        guesses: Guesses made; their number is fixed before the scores are seen.
        canaries: Coins thrown, guessed or not.
        epsilon: The promise.
        delta: The chance that it fails.

    Example:
        >>> p_value(20, guesses=20, canaries=100, epsilon=0.0, delta=0.0) == 0.5**20
        True
    """
    chance = 1 / (1 + math.exp(-epsilon))
    surprise = float(stats.binom.sf(correct - 1, guesses, chance))
    if correct == 0 or delta == 0:
        return min(surprise, 1.0)
    below = stats.binom.cdf(correct - 1, guesses, chance)
    steps = np.arange(1, correct + 1)
    just_missed = (below - stats.binom.cdf(correct - 1 - steps, guesses, chance)) / steps
    return min(surprise + 2 * canaries * delta * float(just_missed.max()), 1.0)


def lower_bound(
    correct: int, *, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """The epsilon below which the promise is refuted by so many right guesses.

    Guarantee:
        If training is (epsilon, delta)-differentially private, the result exceeds
        epsilon with a chance of at most ``1 - confidence``: every smaller promise was
        tested on the way up and refuted at that level.

    Example:
        >>> lower_bound(50, guesses=100, canaries=1000, delta=1e-6, confidence=0.95)
        0.0
        >>> bound = lower_bound(99, guesses=100, canaries=1000, delta=1e-6, confidence=0.95)
        >>> 2.5 < bound < 3.1
        True
    """
    _check_game(correct, guesses, canaries, confidence)

    def excess(epsilon: float) -> float:
        found = p_value(correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta)
        return found - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    refuted = 0.0
    while refuted < _HIGHEST and excess(refuted + _STRIDE) < 0:
        refuted += _STRIDE
    if refuted >= _HIGHEST:
        return refuted
    return max(float(optimize.brentq(excess, refuted, refuted + _STRIDE, xtol=1e-6)) - 1e-6, 0.0)


def separation(epsilon: float, delta: float) -> float:
    """The distance of two unit Gaussians that costs exactly epsilon at delta.

    Example:
        >>> round(separation(1.0, 1e-5), 3)
        0.268
    """
    highest = 1.0
    while GaussianProfile(highest).epsilon(delta) < epsilon:
        highest *= 2
    return float(
        optimize.brentq(lambda mu: GaussianProfile(mu).epsilon(delta) - epsilon, 1e-9, highest)
    )


def expected_bound(
    mu: float, *, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """The bound that a poor day leaves if a canary moves its score by ``mu`` deviations.

    A poor day has one standard deviation fewer right guesses than the average day.
    """
    share = guesses / (2 * canaries)
    edge = optimize.brentq(
        lambda x: (stats.norm.sf(x) + stats.norm.sf(x - mu)) / 2 - share, -10, mu + 40
    )
    right = stats.norm.sf(edge - mu) / (stats.norm.sf(edge) + stats.norm.sf(edge - mu))
    poor = guesses * right - math.sqrt(guesses * right * (1 - right))
    return lower_bound(
        max(int(poor), 0), guesses=guesses, canaries=canaries, delta=delta, confidence=confidence
    )


def planned_guesses(canaries: int, *, epsilon: float, delta: float, confidence: float) -> int:
    """How many coins to guess, from public numbers alone.

    Few guesses are surer, many prove more. The choice gives the best bound against noise
    that is three times too small, and is made before a score exists.

    Example:
        >>> planned_guesses(5000, epsilon=1.0, delta=1e-5, confidence=0.95) in range(50, 500)
        True
    """
    mu = PLANTED * separation(epsilon, delta)
    choices = sorted({2 * max(int(canaries * 0.5 * 0.7**i), 1) for i in range(1, 14)})

    def bound(guesses: int) -> float:
        return expected_bound(
            mu, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence
        )

    return max(choices, key=bound)


def _check_game(correct: int, guesses: int, canaries: int, confidence: float) -> None:
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(
            "guesses must lie between the number of right ones and the number of canaries "
            f"({canaries}), got {guesses}"
        )
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), for example 0.95, got {confidence}")
