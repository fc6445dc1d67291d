"""DP-EM as released by its authors, for comparison only: it does not satisfy its guarantee.

Park, Foulds, Chaudhuri and Welling (2017) add noise to each parameter at a scale divided by
the private number of rows in its component, and their program makes one step more than the
budget covers. So nothing made here is private, whatever the budget, and every result
carries ``STAMP``. Their early stopping on the likelihood without noise is left out.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64
from scipy.optimize import brentq

from dpflows.errors import InputError
from dpflows.models.distributions import Rows
from dpflows.privacy.events import check_choice
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.mechanisms.noise import sampler_for
from dpflows.privacy.randomness import Entropy
from dpflows.training.dp_em import (
    LAWS,
    PRIOR_COUNT,
    Fitted,
    global_sums,
    in_unit_ball,
    in_units,
    maximised,
    positive_factors,
    random_start,
)
from dpflows.training.local_frames import Components

COMPOSITIONS = ("moments", "zcdp", "zcdp-slip", "advanced", "linear")
STAMP = (
    "NOT PRIVATE: DP-EM as released scales its noise by private counts and makes one step more "
    "than its budget covers"
)
_EACH_DELTA = 1e-6
#: Noise deviation for unit L2 sensitivity and unit epsilon, by the classical bound.
_GAUSSIAN = math.sqrt(2 * math.log(1.25 / _EACH_DELTA))
_LATTICE = 2.0**40


def each_epsilon(
    budget: Budget,
    *,
    components: int,
    steps: int,
    composition: str = "moments",
    law: str = "gaussian",
) -> float:
    """The epsilon of each release of a parameter by the authors' composition.

    Example:
        >>> 0.1 < each_epsilon(Budget(1.0, 1e-4), components=3, steps=10) < 0.2
        True
    """
    check_choice("composition", composition, COMPOSITIONS)
    check_choice("law", law, LAWS)
    if not budget.is_private:
        return math.inf
    releases = steps * (2 * components + 1)
    spread = _GAUSSIAN**2 if law == "gaussian" else 1.0
    if composition == "linear":
        return budget.epsilon / releases
    if composition == "advanced":
        return _advanced(budget, releases)
    if composition == "moments":
        return _moments(budget, releases, spread)
    slipped = steps * components if composition == "zcdp-slip" else 0
    cost = (releases - slipped) / (2 * spread) + slipped / 2
    return math.sqrt(_largest_rho(budget) / cost)


def _advanced(budget: Budget, releases: int) -> float:
    """Advanced composition (Dwork, Rothblum and Vadhan) with half of delta as slack."""
    root = math.sqrt(2 * releases * math.log(2 / budget.delta))

    def excess(each: float) -> float:
        return each * root + releases * each * math.expm1(each) - budget.epsilon

    return float(brentq(excess, 0.0, min(budget.epsilon, 50.0)))


def _moments(budget: Budget, releases: int, spread: float) -> float:
    """The largest epsilon allowed by a moment of order up to 100."""
    orders = np.arange(1, 101)
    allowed = (math.log(budget.delta) + orders * budget.epsilon) * 2 * spread
    squares = allowed / (releases * (orders**2 + orders))
    if squares.max() <= 0:
        raise InputError(
            f"epsilon must be at least log(1/delta)/100 for these moments, got {budget.epsilon}"
        )
    return math.sqrt(float(squares.max()))


def _largest_rho(budget: Budget) -> float:
    root = math.log(1 / budget.delta)
    return (math.sqrt(root + budget.epsilon) - math.sqrt(root)) ** 2


def fit_faithful(
    rows: Rows,
    budget: Budget,
    *,
    components: int = 3,
    steps: int = 10,
    composition: str = "moments",
    law: str = "gaussian",
    radius: float = 1.0,
    entropy: Entropy,
) -> Fitted:
    """DP-EM with the authors' noise; for comparison only.

    Guarantee:
        None: see the module documentation. The result has no events and carries ``STAMP``.

    Example:
        >>> rows = np.random.default_rng().normal(0.0, 0.2, size=(500, 2))
        >>> found = fit_faithful(rows, Budget(1.0, 1e-4), entropy=Entropy.from_os())
        >>> found.events, found.stamps[0][:11]
        ((), 'NOT PRIVATE')
    """
    unit = in_unit_ball(rows, radius)
    each = each_epsilon(
        budget, components=components, steps=steps, composition=composition, law=law
    )
    state = random_start(components, rows.shape[1], entropy)
    for step in range(steps + 1):
        state = _step(unit, state, _Noise(each, law, entropy, step))
    stamps = (STAMP, entropy.stamp) if entropy.stamp else (STAMP,)
    return Fitted(in_units(state, radius), (), stamps)


@dataclasses.dataclass(frozen=True)
class _Noise:
    """Noise for an L2 (Gaussian) or L1 (Laplace) sensitivity at ``each`` epsilon."""

    each: float
    law: str
    entropy: Entropy
    step: int

    def stretch(self, l2: float, l1: float) -> float:
        """The ratio of norms that this law is measured in."""
        return l2 if self.law == "gaussian" else l1

    def drawn(self, name: str, count: int, sensitivity: float) -> Float64[np.ndarray, " count"]:
        """``count`` numbers, different for every name and step."""
        scale = self.stretch(_GAUSSIAN, 1.0) * sensitivity / self.each
        if not scale:
            return np.zeros(count)
        sampler = sampler_for(self.entropy, f"{name} {self.step}")
        if self.law == "gaussian":
            return np.array(sampler.gaussian([0.0] * count, scale))
        whole = sampler.discrete_laplace([0] * count, scale * _LATTICE)
        return np.array(whole, dtype=np.float64) / _LATTICE


def _step(rows: Rows, state: Components, noise: _Noise) -> Components:
    """One step of EM with the authors' noise on the result."""
    sums = global_sums(rows, state)
    counts = sums[:, 0] / sums[:, 0].sum() * len(rows)
    exact = maximised(sums)
    d = rows.shape[1]
    weights = exact.weights + noise.drawn("weights", len(state), 2 / len(rows))
    means = exact.means.copy()
    covariances = exact.factors @ np.swapaxes(exact.factors, 1, 2)
    for k, count in enumerate(counts):
        reach = 2 * noise.stretch(1.0, math.sqrt(d)) / (count + PRIOR_COUNT)
        means[k] += noise.drawn(f"mean {k}", d, reach)
        reach = noise.stretch(1.0, (d + 1) / 2) / (count + 2 * d + 3)
        flat = noise.drawn(f"covariance {k}", d * (d + 1) // 2, reach)
        covariances[k] += _mirrored(flat, d)
    return Components(_simplex(weights), _projected(means), positive_factors(covariances))


def _mirrored(flat: Float64[np.ndarray, " q"], d: int) -> Float64[np.ndarray, "d d"]:
    matrix = np.zeros((d, d))
    row, column = np.tril_indices(d)
    matrix[row, column] = matrix[column, row] = flat
    return matrix


def _simplex(weights: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    positive = np.maximum(weights, 1e-3)
    return positive / positive.sum()


def _projected(means: Float64[np.ndarray, "k d"]) -> Float64[np.ndarray, "k d"]:
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1.0)
