"""Noisy counts, moments and kernel sums of columns.

Counts in bins and on a grid get two-sided geometric noise; marginal tables and the nested
bins of all columns get Gaussian noise; ``discover_categories`` releases those categories of a
column whose noisy count passes a threshold. ``clipped_moments`` releases means and standard
deviations, ``noisy_covariance`` the mean and the covariance of all columns, ``noisy_kernel_sum`` a
sum of Gaussian kernels as a function with Gaussian-process noise, by the following mechanism.

The mechanism of Hall, Rinaldo and Wasserman (2013). A row x adds the kernel k(., x), a
function of norm sqrt(k(x, x)) = 1 in the kernel's reproducing Hilbert space. At grid
points with Gram matrix K, a function f of that space has Mahalanobis length
f' K^-1 f <= |f|^2: the left side is the squared norm of f's projection onto the span of the
kernels at the grid points. So one row moves the values at the grid by at most 1 in the
metric of K, and noise with covariance s^2 K, a path of the Gaussian process with that
kernel, is a Gaussian mechanism of noise s and sensitivity 1. A finer grid costs nothing.
Replacing x by y moves the function by sqrt(2 - 2 k(x, y)) <= sqrt(2).
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float64, Int64

from dpflows.errors import InputError
from dpflows.privacy.events import (
    ApproximateEvent,
    Column,
    DiscreteLaplaceEvent,
    GaussianEvent,
    Release,
    Sensitivity,
    check_at_least,
    check_edges,
    check_fraction,
    check_positive,
)
from dpflows.privacy.randomness import Entropy, sampler_for

Matrix = Float64[np.ndarray, "rows columns"]
Vector = Float64[np.ndarray, " columns"]

#: One row is in one bin or in none; replacing it may change two bins.
COUNTING = Sensitivity(zero_out=1.0, add_remove=1.0, replace_one=2.0)


def bin_counts(values: Column, edges: Float64[np.ndarray, " edges"]) -> Int64[np.ndarray, " bins"]:
    """How many values lie in each bin; values outside, or NaN, are in none.

    Bins are closed on the left; the last one is closed on both sides.
    """
    inside = values[(values >= edges[0]) & (values <= edges[-1])]
    return np.histogram(inside, edges)[0].astype(np.int64)


def noisy_histogram(
    values: Column,
    edges: Float64[np.ndarray, " edges"],
    *,
    scale: float,
    entropy: Entropy,
    purpose: str = "histogram",
) -> Release[Int64[np.ndarray, " bins"]]:
    """The number of values in each of the bins given by public ``edges``.

    Args:
        values: One number per row; NaN and values outside are not counted.
        edges: Public, strictly increasing.
        scale: Scale of the noise; epsilon is the sensitivity over it.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        L1 sensitivity 1 (zero-out, add-remove) or 2 (replace-one), integer noise.

    Example:
        >>> import numpy as np
        >>> edges = np.array([0.0, 0.5, 1.0])
        >>> release = noisy_histogram(
        ...     np.array([0.2, 0.7, 0.9]), edges, scale=2.0, entropy=Entropy.insecure(1)
        ... )
        >>> release.value.shape, release.event.sensitivity.under("replace-one")
        ((2,), 2.0)
    """
    check_edges(edges)
    check_positive("scale", scale)
    counts = bin_counts(values, edges).tolist()
    noisy = sampler_for(entropy, purpose).discrete_laplace(counts, scale)
    event = DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=purpose)
    return Release(np.array(noisy, dtype=np.int64), event, entropy.stamp)


def noisy_count(
    present: Column, *, scale: float, entropy: Entropy, purpose: str = "count"
) -> Release[int]:
    """The number of rows whose value is a number.

    Guarantee:
        Sensitivity 1 under every neighbour relation.

    Example:
        >>> import numpy as np
        >>> release = noisy_count(np.ones(5), scale=1.0, entropy=Entropy.insecure(1))
        >>> release.event.sensitivity.under("replace-one")
        1.0
    """
    check_positive("scale", scale)
    count = int(np.count_nonzero(~np.isnan(present)))
    noisy = sampler_for(entropy, purpose).discrete_laplace([count], scale)[0]
    event = DiscreteLaplaceEvent(
        scale=scale, sensitivity=Sensitivity.uniformly(1.0), purpose=purpose
    )
    return Release(noisy, event, entropy.stamp)


#: More cells than this would take longer than they can be worth.
MOST_CELLS = 1 << 20


def grid_counts(
    rows: Matrix, lower: Vector, upper: Vector, *, bins: int
) -> Int64[np.ndarray, "..."]:
    """Rows per cell, ``bins`` cells along each column; a row with NaN is not counted.

    A row outside the box is counted in the nearest cell.
    """
    whole = rows[~np.isnan(rows).any(axis=1)]
    half = upper / 2 - lower / 2
    place = (np.clip(whole, lower, upper) / 2 - lower / 2) / half
    index = np.clip((place * bins).astype(np.int64), 0, bins - 1)
    shape = (bins,) * rows.shape[1]
    flat = np.ravel_multi_index(tuple(index.T), shape)
    return np.bincount(flat, minlength=bins ** rows.shape[1]).astype(np.int64).reshape(shape)


def noisy_grid(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    bins: int,
    scale: float,
    entropy: Entropy,
    purpose: str = "grid",
) -> Release[Int64[np.ndarray, "..."]]:
    """Noisy number of rows in each cell of a public grid.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column.
        upper: Public upper bound of each column.
        bins: Cells along each column.
        scale: Scale of the noise; epsilon is the sensitivity over it.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        A row is in one cell, so the L1 sensitivity is 1 (zero-out, add-remove) or 2
        (replace-one), whatever the number of columns and cells; the noise is integer.

    Example:
        >>> rows = np.array([[0.1, 0.1], [0.9, 0.2]])
        >>> release = noisy_grid(
        ...     rows, np.zeros(2), np.ones(2), bins=2, scale=1.0, entropy=Entropy.from_os()
        ... )
        >>> release.value.shape
        (2, 2)
    """
    check_positive("scale", scale)
    check_at_least("bins", bins, 1)
    check_box(rows, lower, upper)
    if bins ** rows.shape[1] > MOST_CELLS:
        raise InputError(f"bins must give at most {MOST_CELLS:,} cells in all, got {bins} per axis")
    counts = grid_counts(rows, lower, upper, bins=bins)
    noisy = sampler_for(entropy, purpose).discrete_laplace(counts.ravel().tolist(), scale)
    event = DiscreteLaplaceEvent(scale=scale, sensitivity=COUNTING, purpose=purpose)
    return Release(np.array(noisy, dtype=np.int64).reshape(counts.shape), event, entropy.stamp)


_COUNT_LATTICE = 2.0**-20

Places = Int64[np.ndarray, "rows tables"]
Counts = Float64[np.ndarray, " cells"]


def marginals_sensitivity(tables: int) -> Sensitivity:
    """A row is in at most one cell of each table; a replaced row moves two of each."""
    return Sensitivity(math.sqrt(tables), math.sqrt(tables), math.sqrt(2 * tables))


def table_counts(places: Places, sizes: Sequence[int]) -> list[Counts]:
    """The number of rows in each cell, table by table; a place of -1 is not counted."""
    pairs = zip(places.T, sizes, strict=True)
    return [np.bincount(at[at >= 0], minlength=size).astype(float) for at, size in pairs]


def noisy_marginals(
    places: Places,
    sizes: Sequence[int],
    *,
    noise: float,
    entropy: Entropy,
    purpose: str = "marginals",
) -> Release[tuple[Counts, ...]]:
    """Noisy number of rows in each cell of each of several tables.

    Args:
        places: For every row, its cell in each table; -1 if it is in none.
        sizes: The public number of cells of each table.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``marginals_sensitivity``, whatever
        the number of cells. Places must be computed row by row.

    Example:
        >>> places = np.array([[0, 1], [0, 2], [1, -1]])
        >>> release = noisy_marginals(places, (2, 3), noise=0.01, entropy=Entropy.from_os())
        >>> [[round(count) for count in counts] for counts in release.value]
        [[2, 1], [0, 1, 1]]
    """
    check_positive("noise", noise)
    if places.shape[1] != len(sizes) or (places >= np.asarray(sizes)).any():
        raise InputError("places must have one column for each table and lie below its size")
    counts = table_counts(places, sizes)
    flat = np.concatenate([np.empty(0), *counts])
    noisy = np.array(
        sampler_for(entropy, purpose).gaussian(flat.tolist(), noise, lattice=_COUNT_LATTICE)
    )
    event = GaussianEvent(
        noise=noise, sensitivity=marginals_sensitivity(len(sizes)), purpose=purpose
    )
    parts = np.split(noisy, np.cumsum(sizes)[:-1])
    return Release(tuple(parts), event, entropy.stamp)


#: Every bin is cut into so many, so often: 4,096 bins in the end.
BRANCHES, LEVELS = 16, 3
BINS = BRANCHES**LEVELS
#: The largest standard deviation of a cumulative count, in units of the noise on a bin.
RANK_ERROR = 4.7


LevelCounts = Float64[np.ndarray, "columns _"]
Cumulative = Float64[np.ndarray, "columns edges"]


def trees_sensitivity(columns: int) -> Sensitivity:
    """A row is in one bin of each level of each column; a replaced row moves two of each."""
    nodes = LEVELS * columns
    return Sensitivity(math.sqrt(nodes), math.sqrt(nodes), math.sqrt(2 * nodes))


def noisy_distributions(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    noise: float,
    entropy: Entropy,
    purpose: str = "distributions",
) -> Release[Cumulative]:
    """How many rows lie below each of 4,097 equally spaced edges, column by column.

    Noise is put on counts in nested bins, and the counts of all levels are reconciled by
    least squares (Hay et al., 2010), so that a cumulative count sums a few noisy numbers
    instead of thousands.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column; values below are clipped to it.
        upper: Public upper bound of each column.
        noise: Standard deviation of the noise on each count, in rows.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``trees_sensitivity``; the rest is
        computed from its noisy counts. The result increases from zero.

    Example:
        >>> rows = np.linspace(0, 1, 4000)[:, None]
        >>> release = noisy_distributions(
        ...     rows, np.array([0.0]), np.array([2.0]), noise=3.0, entropy=Entropy.insecure(1)
        ... )
        >>> release.value.shape, bool(abs(release.value[0, 1024] - 2000) < 50)
        ((1, 4097), True)
    """
    check_positive("noise", noise)
    check_box(rows, lower, upper)
    levels = nested_counts(rows, lower, upper)
    sampler = sampler_for(entropy, purpose)
    flat = np.concatenate([counts.ravel() for counts in levels])
    noisy = np.array(sampler.gaussian(flat.tolist(), noise, lattice=_COUNT_LATTICE))
    cuts = np.cumsum([counts.size for counts in levels])[:-1]
    parts = zip(np.split(noisy, cuts), levels, strict=True)
    leaves = reconciled([part.reshape(counts.shape) for part, counts in parts])
    event = GaussianEvent(
        noise=noise, sensitivity=trees_sensitivity(rows.shape[1]), purpose=purpose
    )
    return Release(_cumulative(leaves), event, entropy.stamp)


def nested_counts(rows: Matrix, lower: Vector, upper: Vector) -> list[LevelCounts]:
    """LevelCounts per column at every level, coarse to fine; a row with NaN is not counted."""
    whole = rows[~np.isnan(rows).any(axis=1)]
    half = upper / 2 - lower / 2
    place = (np.clip(whole, lower, upper) / 2 - lower / 2) / half
    leaf = np.clip((place * BINS).astype(np.int64), 0, BINS - 1)
    columns = rows.shape[1]
    fine = np.bincount((leaf + BINS * np.arange(columns)).ravel(), minlength=BINS * columns)
    counts = [fine.reshape(columns, BINS).astype(np.float64)]
    for _ in range(LEVELS - 1):
        counts.insert(0, _parents(counts[0]))
    return counts


def reconciled(levels: list[LevelCounts]) -> LevelCounts:
    """The finest counts that fit the noisy counts of all levels best."""
    best = [levels[-1]]
    for height, noisy in enumerate(reversed(levels[:-1]), start=2):
        own = (BRANCHES**height - BRANCHES ** (height - 1)) / (BRANCHES**height - 1)
        best.insert(0, own * noisy + (1 - own) * _parents(best[0]))
    agreed = best[0]
    for finer in best[1:]:
        agreed = finer + np.repeat((agreed - _parents(finer)) / BRANCHES, BRANCHES, axis=1)
    return agreed


def _parents(counts: LevelCounts) -> LevelCounts:
    return counts.reshape(len(counts), -1, BRANCHES).sum(axis=2)


def _cumulative(leaves: LevelCounts) -> Cumulative:
    below = np.concatenate([np.zeros((len(leaves), 1)), leaves.cumsum(axis=1)], axis=1)
    return np.maximum.accumulate(np.maximum(below, 0.0), axis=1)


def discovery_threshold(scale: float, delta: float) -> int:
    """The noisy count that a category with a single row reaches with probability delta.

    The noise is k >= 1 or more with probability exp(-k / scale) / (1 + exp(-1 / scale)).
    """
    return 1 + max(1, math.ceil(-scale * math.log(delta * (1 + math.exp(-1 / scale)))))


def discover_categories(
    values: Sequence[str | None],
    *,
    scale: float,
    delta: float,
    entropy: Entropy,
    purpose: str = "categories",
) -> Release[dict[str, int]]:
    """The categories that enough rows have, with noisy counts, in alphabetical order.

    Args:
        values: One category per row; ``None`` is not counted.
        scale: Scale of the noise on each count.
        delta: The probability that a category of a single row is released.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        (1/scale, delta) when a row is added, removed or zeroed out, (2/scale, delta) when it is
        replaced: apart from releasing its own category, a row changes one count by one.

    Example:
        >>> values = ["a"] * 500 + ["b"] * 500 + ["secret"]
        >>> found = discover_categories(
        ...     values, scale=1.0, delta=1e-9, entropy=Entropy.from_os()
        ... )
        >>> sorted(found.value)
        ['a', 'b']
    """
    check_positive("scale", scale)
    check_fraction("delta", delta)
    counts = Counter(value for value in values if value is not None)
    names = sorted(counts)
    noisy = sampler_for(entropy, purpose).discrete_laplace([counts[n] for n in names], scale)
    threshold = discovery_threshold(scale, delta)
    shown = {name: count for name, count in zip(names, noisy, strict=True) if count >= threshold}
    epsilon = Sensitivity(1 / scale, 1 / scale, 2 / scale)
    event = ApproximateEvent(epsilon=epsilon, delta=delta, purpose=purpose)
    return Release(shown, event, entropy.stamp)


_LATTICE = 2.0**-30


@dataclasses.dataclass(frozen=True)
class Moments:
    """Noisy mean and standard deviation of each column, in the column's units.

    Example:
        >>> Moments(np.zeros(1), np.ones(1), 10.0).count
        10.0
    """

    mean: np.ndarray
    deviation: np.ndarray
    count: float


def moments_sensitivity(columns: int) -> Sensitivity:
    """The L2 sensitivity of (1, x, x^2) summed over rows, x in the cube [-1, 1]^columns.

    A row that is added or removed changes the sum by a vector of norm at most sqrt(1 + 2 columns).
    Replacing x by y changes each pair (x, x^2) by |x - y| sqrt(1 + (x + y)^2) <= 2; a row may also
    become null. The last digit allows for rounding to the lattice.
    """
    present = math.sqrt(1 + 2 * columns)
    return Sensitivity(present, present, max(present, 2 * math.sqrt(columns) * (1 + 1e-8)))


def unit_sums(rows: Matrix, lower: Vector, upper: Vector) -> Float64[np.ndarray, " sums"]:
    """The sums of (1, x, x^2) over rows scaled to the cube; a row with NaN contributes nothing.

    Contributions are rounded to a lattice and summed as integers, so that the order of
    the rows and the rounding of large sums cannot add to the sensitivity.
    """
    whole = rows[~np.isnan(rows).any(axis=1)]
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    cube = np.clip((np.clip(whole, lower, upper) - middle) / half, -1.0, 1.0)
    parts = np.concatenate([np.ones((len(cube), 1)), cube, cube**2], axis=1)
    return np.rint(parts / _LATTICE).astype(np.int64).sum(axis=0) * _LATTICE


def clipped_moments(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    noise: float,
    entropy: Entropy,
    purpose: str = "moments",
) -> Release[Moments]:
    """The mean and standard deviation of each column, clipped to public bounds.

    One Gaussian release of the count, the sums and the sums of squares of all columns.
    The deviation is computed from noisy sums: released directly it would have a
    sensitivity of the order of 1/sqrt(rows), not 1/rows.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column.
        upper: Public upper bound of each column.
        noise: Standard deviation of the noise on each sum, in rows.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``moments_sensitivity``.

    Example:
        >>> import numpy as np
        >>> rows = np.linspace(0, 1, 2001)[:, None]
        >>> release = clipped_moments(
        ...     rows, np.array([-2.0]), np.array([2.0]), noise=3.0, entropy=Entropy.insecure(1)
        ... )
        >>> bool(abs(release.value.mean[0] - 0.5) < 0.05)
        True
    """
    check_positive("noise", noise)
    check_box(rows, lower, upper)
    sums = unit_sums(rows, lower, upper).tolist()
    noisy = np.array(sampler_for(entropy, purpose).gaussian(sums, noise, lattice=_LATTICE))
    sensitivity = moments_sensitivity(rows.shape[1])
    event = GaussianEvent(noise=noise, sensitivity=sensitivity, purpose=purpose)
    return Release(_moments(noisy, lower, upper), event, entropy.stamp)


def _moments(noisy: Float64[np.ndarray, " sums"], lower: Vector, upper: Vector) -> Moments:
    count = max(float(noisy[0]), 1.0)
    mean, square = np.split(noisy[1:] / count, 2)
    mean = np.clip(mean, -1.0, 1.0)
    deviation = np.sqrt(np.clip(square - mean**2, 1e-8, 1.0))
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    return Moments(middle + mean * half, deviation * half, count)


def check_box(rows: Matrix, lower: Vector, upper: Vector) -> None:
    """Refuse bounds that do not enclose a box with a side for each column."""
    if not len(lower) == len(upper) == rows.shape[1]:
        raise InputError("lower and upper must give one bound for each column")
    finite = np.isfinite(lower).all() and np.isfinite(upper).all()
    if not (finite and (upper / 2 - lower / 2 > 0).all()):
        raise InputError("lower must be below upper in every column, both finite")


#: Keeps computed lengths below one whatever the rounding of the computation.
_ROOM = 1 - 1e-12
_FAR = 1e100


@final
@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of the count and of the sums relative to the second moments.

    In units of the radius a row is u with |u| <= 1 and contributes (count, mean u, u u'), so its
    squared norm is at most count^2 + mean^2 + 1. Noise on the three parts increases the error of a
    Gaussian fit, in nats, in the proportion d/4 : d r^2/2 : d(d+1) r^4/8, for columns of unit
    variance; the weights minimise the total.

    Example:
        >>> Weights.best(radius=4.0, columns=3).mean
        0.5
    """

    count: float
    mean: float

    @classmethod
    def best(cls, *, radius: float, columns: int) -> "Weights":
        """The weights with the least error of the fit."""
        root = math.sqrt(columns + 1)
        return cls(math.sqrt(math.sqrt(2) / (radius**2 * root)), math.sqrt(2 / (radius * root)))

    @property
    def sensitivity(self) -> Sensitivity:
        """The exact L2 sensitivity of the weighted sums.

        Replacing u by v moves the squared norm by mean^2 |u - v|^2 + |uu' - vv'|^2. That
        grows with |u| and |v|, so both are one; with c = u.v it is
        2 mean^2 (1 - c) + 2 (1 - c^2), largest at c = -mean^2 / 2, or at c = -1 where
        the mean weighs more. A row may also become null. The last digits allow for the
        lattice; in one column, where c is 1 or -1, the bound is not attained.
        """
        present = math.sqrt(self.count**2 + self.mean**2 + 1)
        moved = (2 + self.mean**2) / math.sqrt(2) if self.mean**2 <= 2 else 2 * self.mean
        return Sensitivity(present, present, max(present, moved * (1 + 1e-6)))


@final
@dataclasses.dataclass(frozen=True)
class SecondMoments:
    """Noisy mean and covariance.

    Attributes:
        mean: Of each column.
        covariance: Symmetric; the noise may have made it indefinite.
        count: Noisy number of rows, at least one.
        doubt: Standard deviation of the noise in a variance; a covariance has less by
            the square root of two.
    """

    mean: np.ndarray
    covariance: np.ndarray
    count: float
    doubt: float


def weighted_sums(rows: Matrix, *, radius: float) -> Float64[np.ndarray, " sums"]:
    """The sums of (1, u, uu'), weighted, over rows clipped to the ball of that radius.

    The upper triangle of uu' stands for all of it, so off-diagonal entries are weighted by the
    square root of two. Contributions are rounded towards zero to a lattice, which lengthens none,
    and are summed as integers. A row with NaN contributes nothing.
    """
    tame = np.clip(rows[~np.isnan(rows).any(axis=1)], -_FAR, _FAR)
    length = np.maximum(np.linalg.norm(tame, axis=1), radius)
    unit = tame * (_ROOM / length)[:, None]
    weights = Weights.best(radius=radius, columns=rows.shape[1])
    ones = np.full((len(unit), 1), weights.count * _ROOM)
    parts = np.concatenate([ones, weights.mean * unit, _upper_triangles(unit)], axis=1)
    return np.trunc(parts / _LATTICE).astype(np.int64).sum(axis=0) * _LATTICE


def noisy_covariance(
    rows: Matrix, *, radius: float, noise: float, entropy: Entropy, purpose: str = "covariance"
) -> Release[SecondMoments]:
    """Noisy mean and covariance of rows clipped to a public ball around zero.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        radius: Public; longer rows are clipped to it.
        noise: Standard deviation of the noise on each weighted sum.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        A Gaussian mechanism with the L2 sensitivity of ``Weights.sensitivity``.

    Example:
        >>> rows = np.random.default_rng().normal(size=(5000, 2))
        >>> found = noisy_covariance(rows, radius=5.0, noise=2.0, entropy=Entropy.from_os())
        >>> bool(np.abs(found.value.covariance - np.eye(2)).max() < 0.2)
        True
    """
    check_positive("noise", noise)
    check_positive("radius", radius)
    sums = weighted_sums(rows, radius=radius).tolist()
    noisy = np.array(sampler_for(entropy, purpose).gaussian(sums, noise, lattice=_LATTICE))
    weights = Weights.best(radius=radius, columns=rows.shape[1])
    event = GaussianEvent(noise=noise, sensitivity=weights.sensitivity, purpose=purpose)
    return Release(_read(noisy, weights, rows.shape[1], radius, noise), event, entropy.stamp)


def _read(
    noisy: Float64[np.ndarray, " sums"], weights: Weights, columns: int, radius: float, noise: float
) -> SecondMoments:
    count = max(float(noisy[0]) / weights.count, 1.0)
    mean = radius * noisy[1 : 1 + columns] / (weights.mean * count)
    square = radius**2 * _symmetric(noisy[1 + columns :], columns) / count
    return SecondMoments(mean, square - np.outer(mean, mean), count, radius**2 * noise / count)


def _upper_triangles(unit: Matrix) -> Float64[np.ndarray, "rows pairs"]:
    first, second = np.triu_indices(unit.shape[1])
    return unit[:, first] * unit[:, second] * np.where(first == second, 1.0, math.sqrt(2))


def _symmetric(
    triangle: Float64[np.ndarray, " pairs"], columns: int
) -> Float64[np.ndarray, "columns columns"]:
    first, second = np.triu_indices(columns)
    matrix = np.zeros((columns, columns))
    matrix[first, second] = triangle / np.where(first == second, 1.0, math.sqrt(2))
    return np.triu(matrix) + np.triu(matrix, 1).T


#: The most columns; the number of coefficients grows with their power.
MOST_COLUMNS = 2
MOST_POINTS = 256
#: Of the coordinates along one column; products of two lie on its square.
_KERNEL_LATTICE = 2.0**-15
_KERNEL_ROOM = 1 - 1e-9
_FAINTEST = 1e-10
_CHUNK = 8192

#: The last digits of a replaced row allow for the lattice: at most 2^-15 in each of at
#: most 256 coordinates, for two rows and two columns.
KERNEL = Sensitivity(1.0, 1.0, math.sqrt(2) * 1.002)


@final
class KernelAxis:
    """One column's kernels in orthonormal coordinates.

    With K = Q D Q' at the points, a kernel k(., x) has the coordinates
    D^(-1/2) Q' k(points, x), of length at most one, and Q D^(1/2) turns coordinates back
    into values. Noise s on every coordinate is noise s^2 K on the values. Directions whose
    eigenvalue is below 1e-10 of the largest are left out, which shortens coordinates.

    Example:
        >>> axis = KernelAxis(points=32, bandwidth=0.1)
        >>> bool(np.linalg.norm(axis.coordinates(np.array([0.3]))) <= 1)
        True
    """

    def __init__(self, *, points: int, bandwidth: float) -> None:
        check_positive("bandwidth", bandwidth)
        if not 2 <= points <= MOST_POINTS:
            raise InputError(f"points must be from 2 to {MOST_POINTS}, got {points}")
        self.points = (np.arange(points) + 0.5) / points
        self.bandwidth = bandwidth

    @functools.cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh(self._kernel(self.points))
        kept = values > _FAINTEST * values.max()
        return values[kept], vectors[:, kept]

    @property
    def values(self) -> Float64[np.ndarray, "points rank"]:
        """Convert coordinates into values at the points."""
        strengths, vectors = self._spectrum
        return vectors * np.sqrt(strengths)

    def coordinates(self, x: Float64[np.ndarray, " rows"]) -> Float64[np.ndarray, "rows rank"]:
        """The kernel of each row, rounded towards zero to the lattice, of norm at most one."""
        strengths, vectors = self._spectrum
        exact = self._kernel(x) @ (vectors / np.sqrt(strengths))
        length = np.linalg.norm(exact, axis=1, keepdims=True)
        return (
            np.trunc(exact * _KERNEL_ROOM / np.maximum(length, 1.0) / _KERNEL_LATTICE)
            * _KERNEL_LATTICE
        )

    def _kernel(self, x: Float64[np.ndarray, " rows"]) -> Float64[np.ndarray, "rows points"]:
        return np.exp(-(((x[:, None] - self.points) / self.bandwidth) ** 2) / 2)


def kernel_sums(
    rows: Matrix, lower: Vector, upper: Vector, axis: KernelAxis
) -> Float64[np.ndarray, "first second"]:
    """The coordinates of the sum of all rows' kernels; a row with NaN contributes nothing.

    In two columns a kernel is a product, so its coordinates are products too. All are
    integers in units of the lattice, and small enough to be summed without rounding.
    """
    whole = rows[~np.isnan(rows).any(axis=1)]
    place = (np.clip(whole, lower, upper) / 2 - lower / 2) / (upper / 2 - lower / 2)
    starts = range(0, max(len(place), 1), _CHUNK)
    return np.sum([_chunk_sum(place[i : i + _CHUNK], axis) for i in starts], axis=0)


def _chunk_sum(place: Matrix, axis: KernelAxis) -> Float64[np.ndarray, "first second"]:
    first = axis.coordinates(place[:, 0])
    second = axis.coordinates(place[:, 1]) if place.shape[1] == 2 else np.ones((len(place), 1))
    return first.T @ second


def noisy_kernel_sum(
    rows: Matrix,
    lower: Vector,
    upper: Vector,
    *,
    axis: KernelAxis,
    noise: float,
    entropy: Entropy,
    purpose: str = "kernels",
) -> Release[Float64[np.ndarray, "..."]]:
    """The sum of the rows' kernels at the points of a grid over a box of one or two columns.

    Args:
        rows: One row per person; a row that holds a NaN counts as null.
        lower: Public lower bound of each column.
        upper: Public upper bound of each column.
        axis: Points and bandwidth along each column, as shares of the box's side.
        noise: Standard deviation of the noise at each point; a kernel has height one.
        entropy: Source of randomness.
        purpose: Label of the event.

    Guarantee:
        A Gaussian mechanism with sensitivity 1 (zero-out, add-remove) or the square root
        of two (replace-one) in orthonormal coordinates, where the noise is added on a
        lattice; the values at the grid are computed from noisy coordinates.

    Example:
        >>> rows = np.full((100, 1), 0.5)
        >>> release = noisy_kernel_sum(
        ...     rows, np.zeros(1), np.ones(1), axis=KernelAxis(points=9, bandwidth=0.1),
        ...     noise=1.0, entropy=Entropy.from_os(),
        ... )
        >>> release.value.shape, bool(abs(release.value[4] - 100) < 10)
        ((9,), True)
    """
    check_positive("noise", noise)
    check_box(rows, lower, upper)
    if rows.shape[1] > MOST_COLUMNS:
        raise InputError(f"rows must have at most {MOST_COLUMNS} columns, got {rows.shape[1]}")
    sums = kernel_sums(rows, lower, upper, axis)
    drawn = sampler_for(entropy, purpose).gaussian(
        sums.ravel().tolist(), noise, lattice=_KERNEL_LATTICE**2
    )
    noisy = axis.values @ np.array(drawn).reshape(sums.shape)
    event = GaussianEvent(noise=noise, sensitivity=KERNEL, purpose=purpose)
    flat = noisy[:, 0] if rows.shape[1] == 1 else noisy @ axis.values.T
    return Release(flat, event, entropy.stamp)
