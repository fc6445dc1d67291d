"""The statistic that is released: moments of rows seen from each component's own frame.

A component's mean m and factor L are already public, so a row x may be looked at as
y = L^-1 (x - m), cut to a ball of radius ``clip``. The released sums over rows are, for
all components stacked, r_k [a0, a1 y, a2 (y y' - t I)] with responsibilities r_k that
sum to at most one. The noise then scales with the component, not with the table.
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Bool, Float64, Int

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
    """Which moments are released and how they are weighed.

    Attributes:
        columns: The number d of columns.
        block: All products among the first ``block`` columns are released; of the other
            columns the squares alone. ``columns`` gives full covariances.
        clip: The radius c to which rows are cut in a component's frame.
        centre: The multiple t of the identity that is taken off the products.
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
        """Where a covariance may differ from zero."""
        allowed = np.zeros((self.columns, self.columns), dtype=bool)
        one, other = self.pairs
        allowed[one, other] = allowed[other, one] = True
        return allowed

    @property
    def size(self) -> int:
        """How many numbers a component costs."""
        return 1 + self.columns + len(self.pairs[0])

    def norm(self, square: float) -> float:
        """The norm of a row's contribution if it lies at squared radius ``square`` on an axis."""
        t, d = self.centre, self.columns
        second = square**2 - 2 * t * square + t * t * d
        return math.sqrt(self.count**2 + self.first**2 * square + self.second**2 * second)

    def sensitivity(self) -> float:
        """The largest norm of one row's contribution.

        Its square is convex in the squared radius, so the largest is at an end; leaving
        out products of different columns only shortens it, except on the axes.
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
    """The released mixture so far; weights sum to one beside the background's.

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
    """The rows without a NaN, each brought into the cube [-1, 1]^d.

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
        Each row moves the whole array by at most ``ROUNDING`` in L2 norm.
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
        """Shares of each row by component; the background takes what is left."""
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
