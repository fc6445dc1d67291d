"""How far to trust noisy moments: a Kalman gain per component and kind of moment.

The noise of every release is known, so its moments are weighed against what is still
uncertain about a component. Post-processing of released numbers; no row is seen here.
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Float64
from scipy.special import gammaln
from scipy.stats import chi2

from dpflows.mixtures.frames import Components, Statistic, Sums
from dpflows.mixtures.recipe import Recipe

PerComponent = Float64[np.ndarray, " k"]
Vectors = Float64[np.ndarray, "k d"]
Matrices = Float64[np.ndarray, "k d d"]


@dataclasses.dataclass(frozen=True)
class Response:
    """What cutting rows to a ball leaves of the moments of a standard normal.

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
    """Components and how uncertain each still is, as variances in its own frame."""

    components: Components
    weight: PerComponent
    mean: PerComponent
    shape: PerComponent

    @staticmethod
    def fresh(components: Components, recipe: Recipe) -> "State":
        """Components about which nothing was released yet."""
        ones = np.ones(len(components))
        return State(
            components,
            recipe.weight_variance * ones,
            recipe.mean_variance * ones,
            recipe.shape_variance * ones,
        )


@dataclasses.dataclass(frozen=True)
class Channel:
    """What is public about a release: its statistic, its noise, and what it may do.

    Attributes:
        statistic: What was summed.
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
        """What the cut leaves of each moment."""
        return response(self.statistic.columns, self.statistic.clip)

    @property
    def least(self) -> float:
        """The smallest count that is more than noise."""
        return max(self.noise / self.statistic.count, 1.0)

    def gain(self, prior: PerComponent, unit: float, size: PerComponent) -> PerComponent:
        """How much of a step to take if one row of ``size`` moves the sum by ``unit``."""
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
    """Symmetric matrices with their eigenvalues brought into a range.

    Example:
        >>> limited(np.diag([0.1, 9.0])[None], 0.25, 4.0)[0].diagonal().tolist()
        [0.25, 4.0]
    """
    values, vectors = np.linalg.eigh(matrices)
    return np.einsum("kij,kj,klj->kil", vectors, np.clip(values, low, high), vectors)
