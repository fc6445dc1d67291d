"""Plain DP-EM: corrected, and as released by its authors.

``fit_corrected`` adds noise to sums in one public ball, in exactly as many steps as charged: after
Park, Foulds, Chaudhuri and Welling (2017) with Gaussian noise, and after Wu et al. (2016) with
Laplace noise and sequential composition. Both originals add noise to the parameters, at a scale
that depends on the private size of each component; here noise is added to the sums, with a public
sensitivity, and they are divided afterwards.

``fit_faithful`` is the program of Park et al., for comparison only. It does not satisfy its
guarantee: noise is scaled by the private number of rows in a component, and the program makes one
step more than the budget covers. So nothing made by it is private, whatever the budget, and every
result carries ``STAMP``. Early stopping on the likelihood without noise is left out.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from scipy.optimize import brentq

from dpflows.errors import InputError
from dpflows.models.density import Mixture, Rows
from dpflows.privacy.accounting import calibrate_noise
from dpflows.privacy.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    Sensitivity,
    check_at_least,
    check_choice,
)
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy, sampler_for
from dpflows.training.local_frames import (
    ROUNDING,
    UNIT,
    Background,
    Components,
    Matrices,
    Scorer,
    Statistic,
    Sums,
    limited,
)
from dpflows.training.mixture_em import noisy

LAWS = ("gaussian", "laplace")
PURPOSE = "mixture"
#: The prior of the original: a normal-inverse-Wishart law in the unit ball.
PRIOR_COUNT, PRIOR_SCATTER = 1.01, 0.1
#: No variance falls below this, in the unit ball.
LEAST_VARIANCE = 1e-3
_NOWHERE = Background(0.0, 0.0)
_LATTICE = 2.0**30
_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A mixture, the events of its release, and its stamps."""

    mixture: Mixture
    events: tuple[Event, ...]
    stamps: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class EMPlan:
    """The plan of a run of plain DP-EM.

    Attributes:
        components: The number of components, fixed from the start.
        steps: The number of releases.
        law: The law of the noise.
        noise: The standard deviation (Gaussian) or scale (Laplace) of each release; zero for none.
        radius: Rows are projected to the ball of this radius.
    """

    components: int
    steps: int
    law: str
    noise: float
    rows: int
    columns: int
    radius: float

    @property
    def events(self) -> tuple[Event, ...]:
        """The releases, all alike.

        Guarantee:
            Responsibilities sum to one, so a row changes the stacked sums by no more than those of
            a single component.
        """
        if not self.noise:
            return ()
        if self.law == "gaussian":
            return (
                GaussianEvent(
                    noise=self.noise, sensitivity=UNIT, purpose=PURPOSE, count=self.steps
                ),
            )
        reach = sum_sensitivity(self.columns)
        return (
            LaplaceEvent(scale=self.noise, sensitivity=reach, purpose=PURPOSE, count=self.steps),
        )


def sum_sensitivity(columns: int) -> Sensitivity:
    """The L1 sensitivity of a row of the unit ball, weighted as in ``global_statistic``.

    |x|_1 is at most sqrt(d), and the products with i <= j, those with i < j times sqrt 2,
    sum to at most (|x|_2^2 (1 - 1/sqrt 2) + |x|_1^2 / sqrt 2).
    """
    products = 1 - math.sqrt(0.5) + columns * math.sqrt(0.5)
    return Sensitivity.of_sum((1 + math.sqrt(columns) + products) / math.sqrt(3))


def global_statistic(columns: int) -> Statistic:
    """Counts, first and second moments in the unit ball, each with a third of the norm.

    Example:
        >>> round(global_statistic(3).sensitivity(), 4)
        1.0
    """
    part = ROUNDING / math.sqrt(3)
    return Statistic(columns, columns, 1.0, 0.0, part, part, part)


def plan_corrected(
    budget: Budget,
    *,
    rows: int,
    columns: int,
    components: int = 3,
    steps: int = 10,
    law: str = "gaussian",
    radius: float | None = None,
    accountant: str = "pld",
    before: Sequence[Event] = (),
) -> EMPlan:
    """The plan that spends a budget on equal steps.

    Args:
        budget: The total budget.
        rows: The public number of rows.
        columns: The number of columns.
        components: The number of components.
        steps: The number of releases.
        law: ``gaussian`` composes exactly; ``laplace`` adds up epsilons, as in Wu et al.
        radius: The public radius of the rows; by default that of the cube [-1, 1]^d.
        accountant: The accountant of Gaussian releases.
        before: Other releases within the budget; for Gaussian noise only.

    Guarantee:
        ``before`` and the plan's events together cost at most the budget.

    Example:
        >>> plan = plan_corrected(Budget(1.0, 1e-5), rows=1000, columns=2)
        >>> plan.steps, plan.law
        (10, 'gaussian')
    """
    check_choice("law", law, LAWS)
    check_at_least("components", components, 1)
    check_at_least("steps", steps, 1)
    reach = math.sqrt(columns) if radius is None else radius
    draft = EMPlan(components, steps, law, 0.0, rows, columns, reach)
    if law == "laplace":
        return dataclasses.replace(draft, noise=_laplace_scale(budget, columns, steps, before))
    noise = calibrate_noise(
        budget,
        lambda noise: [*before, *dataclasses.replace(draft, noise=noise).events],
        accountant=accountant,
    )
    return dataclasses.replace(draft, noise=noise)


def _laplace_scale(budget: Budget, columns: int, steps: int, before: Sequence[Event]) -> float:
    if before:
        raise InputError("law must be gaussian if other releases share the budget, got laplace")
    if not budget.is_private:
        return 0.0
    return sum_sensitivity(columns).under(budget.neighbours) * steps / budget.epsilon


def fit_corrected(rows: Rows, plan: EMPlan, *, entropy: Entropy) -> Fitted:
    """Fit a mixture by noisy EM in one public ball.

    Args:
        rows: One row per person; a row with a NaN contributes nothing.
        plan: The releases to make.
        entropy: Source of randomness of the noise and the initialisation.

    Guarantee:
        The mixture is a function of ``plan.events`` and public numbers.

    Example:
        >>> plan = plan_corrected(Budget(5.0, 1e-5), rows=2000, columns=1, components=2)
        >>> rows = np.random.default_rng().normal(0.3, 0.1, size=(2000, 1))
        >>> len(fit_corrected(rows, plan, entropy=Entropy.from_os()).mixture.weights)
        2
    """
    unit = in_unit_ball(rows, plan.radius)
    state = random_start(plan.components, plan.columns, entropy)
    for step in range(plan.steps):
        sums = _noised(global_sums(unit, state), plan, entropy, step)
        state = maximised(sums)
    stamps = [entropy.stamp] if entropy.stamp else []
    return Fitted(in_units(state, plan.radius), plan.events, tuple(stamps))


def in_unit_ball(rows: Rows, radius: float) -> Float64[np.ndarray, "m d"]:
    """The rows without a NaN, projected to a ball and divided by its radius.

    Example:
        >>> in_unit_ball(np.array([[3.0, 0.0], [np.nan, 1.0], [0.0, np.inf]]), 2.0).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    whole = rows[~np.isnan(rows).any(axis=1)]
    # far beyond any radius, yet small enough to be squared
    bounded = np.clip(whole / radius, -1e100, 1e100)
    lengths = np.linalg.norm(bounded, axis=1, keepdims=True)
    return bounded / np.maximum(lengths, 1.0)


def random_start(k: int, d: int, entropy: Entropy) -> Components:
    """Means by a Latin hypercube inside the ball, unit covariances, equal weights."""
    drawn = entropy.uniforms("initialisation", step=0, count=2 * k * d).reshape(2, k, d)
    cells = (np.argsort(drawn[0], axis=0) + drawn[1]) / k
    means = (2 * cells - 1) / math.sqrt(d)
    return Components(np.full(k, 1 / k), means, np.tile(np.eye(d), (k, 1, 1)))


def global_sums(rows: Rows, state: Components) -> Sums:
    """Responsibility-weighted counts, moments and products of rows in the unit ball.

    Guarantee:
        Each row moves the array by at most ``ROUNDING`` in L2 norm, and by at most
        ``sum_sensitivity`` in L1 norm.
    """
    statistic = global_statistic(rows.shape[1])
    one, other = statistic.pairs
    scale = np.where(one == other, 1.0, math.sqrt(2))
    scorer = Scorer(state, state.inverses, statistic, _NOWHERE)
    total = np.zeros((len(state), statistic.size))
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        products = part[:, one] * part[:, other] * scale
        features = np.concatenate([np.ones((len(part), 1)), part, products], axis=1)
        total += scorer.responsibilities(part) @ features
    return total * statistic.count


def _noised(sums: Sums, plan: EMPlan, entropy: Entropy, step: int) -> Sums:
    purpose = f"em {step}"
    if plan.law == "gaussian" or not plan.noise:
        return noisy(sums, plan.noise, entropy=entropy, purpose=purpose)
    whole = [int(value) for value in np.rint(sums.ravel() * _LATTICE)]
    drawn = sampler_for(entropy, purpose).discrete_laplace(whole, plan.noise * _LATTICE)
    return np.array(drawn, dtype=np.float64).reshape(sums.shape) / _LATTICE


def maximised(sums: Sums) -> Components:
    """The parameters of largest posterior density given noisy sums."""
    d = _columns(sums.shape[1])
    raw = sums / global_statistic(d).count
    counts = np.maximum(raw[:, 0], 1.0)
    averages = raw[:, 1 : 1 + d] / counts[:, None]
    averages /= np.maximum(np.linalg.norm(averages, axis=1, keepdims=True), 1.0)
    scatter = _symmetric(raw[:, 1 + d :], d) - counts[:, None, None] * _outer(averages)
    return posterior(counts, averages, scatter)


def posterior(
    counts: Float64[np.ndarray, " k"], averages: Float64[np.ndarray, "k d"], scatter: Matrices
) -> Components:
    """The update under the prior, from counts, averages and scatter about the averages."""
    d = averages.shape[1]
    weights = (counts + 1) / (counts + 1).sum()
    means = averages * (counts / (counts + PRIOR_COUNT))[:, None]
    pull = PRIOR_COUNT * counts / (PRIOR_COUNT + counts)
    whole = PRIOR_SCATTER * np.eye(d) + scatter + pull[:, None, None] * _outer(averages)
    covariances = whole / (2 * d + 3 + counts)[:, None, None]
    return Components(weights, means, positive_factors(covariances))


def positive_factors(covariances: Matrices) -> Matrices:
    """Cholesky factors after flooring the eigenvalues."""
    return np.linalg.cholesky(limited(covariances, LEAST_VARIANCE, 1e6))


def _columns(size: int) -> int:
    """The d of (d + 1)(d + 2) / 2 numbers."""
    return (math.isqrt(1 + 8 * size) - 3) // 2


def _symmetric(flat: Float64[np.ndarray, "k q"], d: int) -> Matrices:
    one, other = global_statistic(d).pairs
    values = np.where(one == other, flat, flat / math.sqrt(2))
    matrices = np.zeros((len(flat), d, d))
    matrices[:, one, other] = matrices[:, other, one] = values
    return matrices


def _outer(vectors: Float64[np.ndarray, "k d"]) -> Matrices:
    return vectors[:, :, None] * vectors[:, None, :]


def in_units(state: Components, radius: float) -> Mixture:
    """The mixture in the units of the rows."""
    return Mixture(state.weights, state.means * radius, state.factors * radius)


COMPOSITIONS = ("moments", "zcdp", "zcdp-slip", "advanced", "linear")
STAMP = (
    "NOT PRIVATE: DP-EM as released scales its noise by private counts and makes one step more "
    "than its budget covers"
)
_EACH_DELTA = 1e-6
#: Noise deviation for unit L2 sensitivity and unit epsilon, by the classical bound.
_GAUSSIAN = math.sqrt(2 * math.log(1.25 / _EACH_DELTA))
_FINE_LATTICE = 2.0**40


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
        whole = sampler.discrete_laplace([0] * count, scale * _FINE_LATTICE)
        return np.array(whole, dtype=np.float64) / _FINE_LATTICE


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
