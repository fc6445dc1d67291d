"""EM in local frames: the released statistic, noise-aware updates, and splitting.

A component's mean m and factor L are already released, so a row x may be expressed as
y = L^-1 (x - m), clipped to a ball of radius ``clip``. The released sums over rows are, for
all components stacked, r_k [a0, a1 y, a2 (y y' - t I)] with responsibilities r_k that
sum to at most one. The noise then scales with the component, not with the table.

The noise of every release is known, so its moments are weighted by Kalman gains, one per
component and kind of moment, against the remaining uncertainty of the component. A mixture
grows by splitting its heaviest components along their longest axes. Both are post-processing
of released numbers. The constants (``Recipe``) were chosen once by measurement, never from
the rows.
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy.special import gammaln
from scipy.stats import chi2

from dpflows.privacy.events import Sensitivity

#: The statistic is scaled to this part of the sensitivity it is charged for, so that no
#: rounding of sums over up to 10^9 rows can exceed the claim.
ROUNDING = 1 - 1e-6
#: What every release of this room claims: a row adds a vector of norm at most one, so
#: putting another in its place moves the sum by at most two (triangle inequality).
UNIT = Sensitivity.of_sum(1.0)
#: Responsibilities below this count as zero; that only shortens a contribution.
NEGLIGIBLE = 1e-6
_CHUNK_NUMBERS = 2**21

Rows = Float64[np.ndarray, "n d"]
Sums = Float64[np.ndarray, "k p"]


@dataclasses.dataclass(frozen=True)
class Statistic:
    """The released moments and their weights.

    Attributes:
        columns: The number d of columns.
        block: All products among the first ``block`` columns are released; of the other columns
        only the squares. ``columns`` gives full covariances.
        clip: The radius c to which rows are clipped in a component's frame.
        centre: The multiple t of the identity that is subtracted from the products.
        count: The weight a0 of the responsibilities themselves.
        first: The weight a1 of the first moments.
        second: The weight a2 of the second moments.

    Guarantee:
        One row contributes a vector of L2 norm at most ``ROUNDING``, and some row attains it.

    Example:
        >>> statistic_for(columns=2, block=2).size
        6
    """

    columns: int
    block: int
    clip: float
    centre: float
    count: float
    first: float
    second: float

    @functools.cached_property
    def pairs(self) -> tuple[Int[np.ndarray, " q"], Int[np.ndarray, " q"]]:
        """The two columns of every released product; squares come first."""
        row, column = np.tril_indices(self.block, -1)
        squares = np.arange(self.columns)
        return np.concatenate([squares, row]), np.concatenate([squares, column])

    @functools.cached_property
    def mask(self) -> Bool[np.ndarray, "d d"]:
        """The entries of a covariance that may be nonzero."""
        allowed = np.zeros((self.columns, self.columns), dtype=bool)
        one, other = self.pairs
        allowed[one, other] = allowed[other, one] = True
        return allowed

    @property
    def size(self) -> int:
        """Number of released values per component."""
        return 1 + self.columns + len(self.pairs[0])

    def norm(self, square: float) -> float:
        """The norm of a row's contribution if it lies at squared radius ``square`` on an axis."""
        t, d = self.centre, self.columns
        second = square**2 - 2 * t * square + t * t * d
        return math.sqrt(self.count**2 + self.first**2 * square + self.second**2 * second)

    def sensitivity(self) -> float:
        """The largest norm of one row's contribution.

        Its square is convex in the squared radius, so the largest is at an end; leaving out
        products of different columns only reduces it, except on the axes.
        """
        return max(self.norm(0.0), self.norm(self.clip**2))


def statistic_for(
    *, columns: int, block: int, offset: float = 0.1, count_share: float = 0.05
) -> Statistic:
    """The weights that spread the noise evenly, scaled to unit sensitivity.

    Example:
        >>> round(statistic_for(columns=3, block=3).sensitivity(), 4)
        1.0
    """
    clip = math.sqrt(columns) + offset
    raw = _unscaled(columns, block, clip, count_share)
    scale = ROUNDING / raw.sensitivity()
    return dataclasses.replace(
        raw, count=raw.count * scale, first=raw.first * scale, second=raw.second * scale
    )


def _unscaled(columns: int, block: int, clip: float, count_share: float) -> Statistic:
    products = columns + block * (block - 1) / 2
    first = math.sqrt(columns * clip**2 / 2)
    second = math.sqrt(clip**4 * products / 4)
    whole = (1 + count_share) * (first + second)
    return Statistic(
        columns=columns,
        block=block,
        clip=clip,
        centre=clip**2 / (columns + 2),
        count=math.sqrt(count_share / (1 + count_share)),
        first=math.sqrt(first / whole) / clip,
        second=math.sqrt(second / whole) / clip**2,
    )


@dataclasses.dataclass(frozen=True)
class Components:
    """The released mixture so far; weights sum to one without the background's.

    Example:
        >>> len(Components(np.ones(1), np.zeros((1, 2)), np.eye(2)[None]))
        1
    """

    weights: Float64[np.ndarray, " k"]
    means: Float64[np.ndarray, "k d"]
    factors: Float64[np.ndarray, "k d d"]

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def inverses(self) -> Float64[np.ndarray, "k d d"]:
        """The inverse factors, lower triangular."""
        return np.linalg.inv(self.factors)


@dataclasses.dataclass(frozen=True)
class Background:
    """A public component of constant density: its weight and its log-density."""

    weight: float
    log_density: float


def inside_cube(rows: Rows) -> Float64[np.ndarray, "m d"]:
    """The rows without a NaN, each clipped to the cube [-1, 1]^d.

    Example:
        >>> inside_cube(np.array([[0.5, np.inf], [np.nan, 0.0]])).tolist()
        [[0.5, 1.0]]
    """
    return np.clip(rows[~np.isnan(rows).any(axis=1)], -1.0, 1.0)


def local_sums(
    rows: Rows, components: Components, statistic: Statistic, background: Background
) -> Sums:
    """The statistic summed over rows, one line per component.

    Guarantee:
        Each row changes the whole array by at most ``ROUNDING`` in L2 norm.
    """
    total = np.zeros((len(components), statistic.size))
    inverses = components.inverses
    scorer = Scorer(components, inverses, statistic, background)
    step = max(256, _CHUNK_NUMBERS // (len(components) + statistic.size))
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        shares = scorer.responsibilities(chunk)
        for k in range(len(components)):
            total[k] += _component_sums(
                chunk, shares[k], components.means[k], inverses[k], statistic
            )
    return total


class Scorer:
    """Responsibilities of components, from log-densities as linear maps of products."""

    def __init__(
        self,
        components: Components,
        inverses: Float64[np.ndarray, "k d d"],
        statistic: Statistic,
        background: Background,
    ) -> None:
        self._pairs = statistic.pairs
        self._map = _log_density_map(components, inverses, statistic, background)
        with np.errstate(divide="ignore"):
            self._floor = np.log(background.weight) + background.log_density

    def responsibilities(self, rows: Rows) -> Float64[np.ndarray, "k n"]:
        """Shares of each row by component; the background gets the rest."""
        one, other = self._pairs
        features = np.concatenate(
            [np.ones((len(rows), 1)), rows, rows[:, one] * rows[:, other]], axis=1
        )
        logs = self._map @ features.T
        top = np.maximum(logs.max(axis=0), self._floor)
        np.subtract(logs, top, out=logs)
        shares = np.exp(logs, out=logs)
        shares /= shares.sum(axis=0) + np.exp(self._floor - top)
        return shares


def _log_density_map(
    components: Components,
    inverses: Float64[np.ndarray, "k d d"],
    statistic: Statistic,
    background: Background,
) -> Float64[np.ndarray, "k p"]:
    one, other = statistic.pairs
    precision = np.einsum("kji,kjl->kil", inverses, inverses)
    linear = np.einsum("kij,kj->ki", precision, components.means)
    square = -np.where(one == other, 0.5, 1.0) * precision[:, one, other]
    heights = -np.log(np.diagonal(components.factors, axis1=1, axis2=2)).sum(axis=1)
    constant = (
        np.log(components.weights * (1 - background.weight))
        + heights
        - 0.5 * np.einsum("ki,ki->k", linear, components.means)
        - 0.5 * statistic.columns * math.log(2 * math.pi)
    )
    return np.concatenate([constant[:, None], linear, square], axis=1)


def _component_sums(
    rows: Rows,
    shares: Float64[np.ndarray, " n"],
    mean: Float64[np.ndarray, " d"],
    inverse: Float64[np.ndarray, "d d"],
    statistic: Statistic,
) -> Float64[np.ndarray, " p"]:
    near = np.flatnonzero(shares > NEGLIGIBLE)
    share = shares[near]
    local = (rows[near] - mean) @ inverse.T
    radius = np.sqrt(np.einsum("nd,nd->n", local, local))
    local *= np.minimum(1.0, statistic.clip / np.maximum(radius, 1e-300))[:, None]
    weighted = local * share[:, None]
    products = weighted.T @ local
    count = share.sum()
    products[np.diag_indices(statistic.columns)] -= statistic.centre * count
    one, other = statistic.pairs
    flat = products[one, other] * np.where(one == other, 1.0, math.sqrt(2))
    return np.concatenate(
        [[statistic.count * count], statistic.first * weighted.sum(axis=0), statistic.second * flat]
    )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Constants of the local fit; use the defaults, other values serve ablations.

    Attributes:
        background: The fixed weight of the uniform density on the cube.
        early_background: Its weight while components still grow; nearly none, so that rows far from
        all components still attract the nearest instead of being assigned to the background.
        clip_offset: Rows are clipped to sqrt(columns) plus this many deviations of a component.
        count_share: The part of the statistic's square norm that goes to the counts,
            relative to the part of the moments.
        gains: Whether noisy moments are damped by Kalman gains.
        splitting: Whether components grow by splitting instead of starting at random.
        scouting: Whether a wide component searches for rows far from all others.
        scout_weight: Its initial weight.
        scout_keep: It is kept if its count is this multiple of the smallest count above the noise.
        zoom_steps: Number of releases for the first Gaussian.
        zoom_first: The part of each but the last of them, where there is one component.
        zoom_share: The least part of the budget they get, in squared mu.
        level_steps: Releases after each doubling of the number of components.
        last_steps: Releases with the final number of components.
        noise_per_component: A component must have this many noise deviations per parameter.
        rows_per_component: A component must have this many rows per parameter.
        most_per_column: The largest number of components per column.
        weight_variance: The prior variance of a component's relative weight.
        mean_variance: The prior variance of its mean in its frame.
        shape_variance: The prior variance of its covariance in its frame.
        drift: The increase of each variance between releases, because the target moves.
        split_at: The distance of the halves from the component's mean, in its deviations.
        split_left: The fraction of the variance along the split that each half keeps.
        floor: The smallest deviation of a component relative to that of all rows.

    Example:
        >>> Recipe(gains=False).background
        0.01
    """

    background: float = 0.01
    early_background: float = 1e-9
    clip_offset: float = 0.1
    count_share: float = 0.05
    gains: bool = True
    splitting: bool = True
    scouting: bool = True
    scout_weight: float = 0.01
    scout_keep: float = 2.0
    zoom_steps: int = 4
    zoom_first: float = 0.1
    zoom_share: float = 0.04
    level_steps: int = 3
    last_steps: int = 10
    noise_per_component: float = 1.7
    rows_per_component: float = 2.0
    most_per_column: int = 24
    weight_variance: float = 0.3
    mean_variance: float = 0.3
    shape_variance: float = 0.06
    drift: float = 0.005
    split_at: float = 0.8
    split_left: float = 0.36
    floor: float = 1e-3


DEFAULT = Recipe()


PerComponent = Float64[np.ndarray, " k"]
Vectors = Float64[np.ndarray, "k d"]
Matrices = Float64[np.ndarray, "k d d"]


@dataclasses.dataclass(frozen=True)
class Response:
    """The effect of clipping rows to a ball on the moments of a standard normal.

    Attributes:
        mean: The derivative of the first moment by the true mean.
        level: The second moment of a column.
        shape: The derivative of the second moments by a traceless change of covariance.
        size: Their derivative by a multiple of the identity.
    """

    mean: float
    level: float
    shape: float
    size: float


@functools.lru_cache(maxsize=64)
def response(columns: int, clip: float) -> Response:
    """The response by Stein's lemma, in moments of the chi-square law.

    Example:
        >>> uncut = response(3, 100.0)
        >>> [round(x, 6) for x in (uncut.mean, uncut.level, uncut.shape, uncut.size)]
        [1.0, 1.0, 1.0, 1.0]
    """
    d, edge = columns, clip * clip
    inside = [float(chi2.cdf(edge, d + 2 * more)) for more in range(3)]
    capped = d * inside[1] + edge * (1 - inside[0])
    product = d * (d + 2) * inside[2] + edge * d * (1 - inside[1])
    return Response(
        mean=inside[0] + _beyond(d, clip),
        level=capped / d,
        shape=product / (d * (d + 2)),
        size=(product / d - capped) / 2,
    )


def _beyond(d: int, clip: float) -> float:
    """The part of the mean's response that comes from rows outside the ball."""
    if d == 1:
        return 0.0
    inverse_radius = math.exp(float(gammaln((d - 1) / 2) - gammaln(d / 2))) / math.sqrt(2)
    return clip * inverse_radius * float(chi2.sf(clip * clip, d - 1)) * (d - 1) / d


@dataclasses.dataclass(frozen=True)
class State:
    """Components and their remaining uncertainties, as variances in their frames."""

    components: Components
    weight: PerComponent
    mean: PerComponent
    shape: PerComponent

    @staticmethod
    def fresh(components: Components, recipe: Recipe) -> "State":
        """Components with prior uncertainties, before any release."""
        ones = np.ones(len(components))
        return State(
            components,
            recipe.weight_variance * ones,
            recipe.mean_variance * ones,
            recipe.shape_variance * ones,
        )


@dataclasses.dataclass(frozen=True)
class Channel:
    """The public facts of a release: its statistic, its noise and its limits.

    Attributes:
        statistic: The summed statistic.
        noise: The standard deviation added to each sum.
        rows: The number of rows the components share.
        limits: The smallest and largest change of variance in one step.
    """

    statistic: Statistic
    noise: float
    rows: float
    recipe: Recipe
    limits: tuple[float, float] = (0.25, 4.0)

    @property
    def response(self) -> Response:
        """The effect of clipping on each moment."""
        return response(self.statistic.columns, self.statistic.clip)

    @property
    def least(self) -> float:
        """The smallest count that is more than noise."""
        return max(self.noise / self.statistic.count, 1.0)

    def gain(self, prior: PerComponent, unit: float, size: PerComponent) -> PerComponent:
        """The fraction of a step to take if a row of ``size`` changes the sum by ``unit``."""
        if not self.recipe.gains:
            return np.ones_like(prior)
        return prior / (prior + (self.noise / (unit * size)) ** 2 + 1 / size)


def updated(state: State, sums: Sums, channel: Channel) -> State:
    """The components after one release, each step damped by its gain."""
    old, recipe, d = state.components, channel.recipe, channel.statistic.columns
    weights, weight_gain = _weights(state, sums[:, 0], channel)
    size = np.maximum(channel.rows * weights, channel.least)
    unit = channel.statistic.first * channel.response.mean
    step = _shortened(sums[:, 1 : 1 + d] / (unit * size[:, None]), channel.statistic.clip)
    mean_gain = channel.gain(state.mean, unit, size)
    inner, shape_gain = _inner(state, sums[:, 1 + d :], size, channel, _outer(step, mean_gain))
    means = old.means + np.einsum("kij,kj->ki", old.factors, mean_gain[:, None] * step)
    factors = old.factors @ np.linalg.cholesky(limited(inner, *channel.limits))
    return State(
        Components(weights, means, factors),
        (1 - weight_gain) * state.weight + recipe.drift,
        (1 - mean_gain) * state.mean + recipe.drift,
        (1 - shape_gain) * state.shape + recipe.drift,
    )


def _weights(
    state: State, sums: PerComponent, channel: Channel
) -> tuple[PerComponent, PerComponent]:
    old, unit = state.components.weights, channel.statistic.count
    gain = channel.gain(state.weight, unit, np.maximum(channel.rows * old, channel.least))
    new = old + gain * (sums / (unit * channel.rows) - old)
    new = np.maximum(new, channel.least / (4 * channel.rows))
    return new / new.sum(), gain


def _shortened(steps: Vectors, longest: float) -> Vectors:
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    return steps * np.minimum(1.0, longest / np.maximum(lengths, 1e-300))


def _outer(step: Vectors, gain: PerComponent) -> Matrices:
    """What the second moment about the old mean exceeds that about the moved one by."""
    moved = gain * (2 - gain)
    return moved[:, None, None] * step[:, :, None] * step[:, None, :]


def _inner(
    state: State,
    sums: Float64[np.ndarray, "k q"],
    size: PerComponent,
    channel: Channel,
    moved: Matrices,
) -> tuple[Matrices, PerComponent]:
    """The new covariance in the old frame; shape and size have gains of their own."""
    statistic, cut = channel.statistic, channel.response
    flat = sums / (statistic.second * size[:, None])
    shape, level = _apart(_matrices(flat, statistic), statistic)
    moved_shape, moved_level = _apart(moved, statistic)
    shape_gain = channel.gain(state.shape, statistic.second * cut.shape, size)
    size_gain = channel.gain(state.shape, statistic.second * cut.size, size)
    change = size_gain * ((level + statistic.centre - cut.level) / cut.size - moved_level)
    bent = shape_gain[:, None, None] * (shape / cut.shape - moved_shape)
    eye = np.eye(statistic.columns)
    return eye + bent + change[:, None, None] * eye, shape_gain


def _matrices(flat: Float64[np.ndarray, "k q"], statistic: Statistic) -> Matrices:
    one, other = statistic.pairs
    values = np.where(one == other, flat, flat / math.sqrt(2))
    matrices = np.zeros((len(flat), statistic.columns, statistic.columns))
    matrices[:, one, other] = matrices[:, other, one] = values
    return matrices


def _apart(matrices: Matrices, statistic: Statistic) -> tuple[Matrices, PerComponent]:
    """The traceless part, where the statistic has entries, and the mean of the diagonal."""
    level = np.trace(matrices, axis1=1, axis2=2) / statistic.columns
    shape = matrices - level[:, None, None] * np.eye(statistic.columns)
    return shape * statistic.mask, level


def limited(matrices: Matrices, low: float, high: float) -> Matrices:
    """Symmetric matrices with their eigenvalues clipped to a range.

    Example:
        >>> limited(np.diag([0.1, 9.0])[None], 0.25, 4.0)[0].diagonal().tolist()
        [0.25, 4.0]
    """
    values, vectors = np.linalg.eigh(matrices)
    return np.einsum("kij,kj,klj->kil", vectors, np.clip(values, low, high), vectors)


def split(state: State, target: int, recipe: Recipe, block: int) -> State:
    """The state with ``target`` components, or twice as many as now if that is less.

    A half keeps ``split_left`` of the variance along the split and starts ``split_at`` deviations
    from the old mean, so the pair has about the moments of the original component.

    Example:
        >>> whole = Components(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)))
        >>> halves = split(State.fresh(whole, Recipe()), 2, Recipe(), 1).components
        >>> halves.weights.tolist(), halves.means.ravel().tolist()
        ([0.5, 0.5], [0.8, -0.8])
    """
    old = state.components
    chosen = np.argsort(-old.weights, kind="stable")[: max(target - len(old), 0)]
    across = longest_axes(old.factors[chosen], block)
    shift = recipe.split_at * np.einsum("kij,kj->ki", old.factors[chosen], across)
    fresh = State.fresh(_halves(old, chosen, across, shift, recipe.split_left), recipe)
    touched = np.concatenate([np.isin(np.arange(len(old)), chosen), np.ones(len(chosen), bool)])
    kept = np.concatenate([np.arange(len(old)), chosen])
    return State(
        fresh.components,
        np.where(touched, fresh.weight, state.weight[kept]),
        np.where(touched, fresh.mean, state.mean[kept]),
        np.where(touched, fresh.shape, state.shape[kept]),
    )


def with_scout(state: State, wide: Components, weight: float) -> State:
    """The state with a wide component appended, which searches for rows that no other covers.

    It has prior uncertainty only, so it follows its first moments freely.
    """
    old = state.components
    joined = Components(
        np.append(old.weights * (1 - weight), weight),
        np.concatenate([old.means, wide.means]),
        np.concatenate([old.factors, wide.factors]),
    )
    doubts = (np.append(variance, 1.0) for variance in (state.weight, state.mean, state.shape))
    return State(joined, *doubts)


def without_idle_scout(state: State, weight: float) -> State:
    """The state without its last component if that found fewer rows than ``weight`` of all."""
    if len(state.components) < 2 or state.components.weights[-1] >= weight:
        return state
    old = state.components
    rest = Components(old.weights[:-1] / old.weights[:-1].sum(), old.means[:-1], old.factors[:-1])
    return State(rest, state.weight[:-1], state.mean[:-1], state.shape[:-1])


def _halves(
    old: Components, chosen: Int[np.ndarray, " s"], across: Vectors, shift: Vectors, left: float
) -> Components:
    outer = across[:, :, None] * across[:, None, :]
    inner = np.eye(across.shape[1]) - (1 - left) * outer
    weights, means, factors = old.weights.copy(), old.means.copy(), old.factors.copy()
    weights[chosen] /= 2
    means[chosen] += shift
    factors[chosen] = factors[chosen] @ np.linalg.cholesky(inner)
    return Components(
        np.concatenate([weights, weights[chosen]]),
        np.concatenate([means, old.means[chosen] - shift]),
        np.concatenate([factors, factors[chosen]]),
    )


def longest_axes(factors: Matrices, block: int) -> Vectors:
    """Unit directions, each in its component's frame, of the longest axis the shape allows.

    A covariance that is full in the first ``block`` columns and diagonal beyond keeps
    that form only if the cut lies inside the block or along a single column.
    """
    covariances = factors @ np.swapaxes(factors, 1, 2)
    squares = np.diagonal(covariances, axis1=1, axis2=2)
    inside, lengths = _leading(covariances, block)
    single = np.argmax(squares, axis=1)
    alone = np.take_along_axis(squares, single[:, None], axis=1)[:, 0] > lengths
    best = np.where(alone[:, None], np.eye(factors.shape[1])[single], inside)
    local = np.linalg.solve(factors, best[:, :, None])[:, :, 0]
    return local / np.linalg.norm(local, axis=1, keepdims=True)


def _leading(covariances: Matrices, block: int) -> tuple[Vectors, Float64[np.ndarray, " k"]]:
    k, d, _ = covariances.shape
    if block < 2 or k == 0:
        return np.zeros((k, d)), np.zeros(k)
    values, vectors = np.linalg.eigh(covariances[:, :block, :block])
    padded = np.zeros((k, d))
    padded[:, :block] = vectors[:, :, -1]
    # the margin keeps rounding from preferring a single column to the same axis
    return padded, values[:, -1] * (1 + 1e-9)
